"""Small checkpoints for tests of what is on disk."""

from __future__ import annotations

import numpy as np

from keras_turbo.checkpoint.layout import TrainingState
from keras_turbo.checkpoint.writing import write_checkpoint

VERSIONS = {"keras": "3", "tensorflow": "2", "keras_turbo": "0", "python": "3"}


def make_state(step=0, **changes):
    values = {"epoch": 1, "batch": 2, "optimizer_step": step, "steps": step + 1, "versions": VERSIONS, **changes}
    return TrainingState(**values)


def make_arrays(step=0, size=50):
    """Weights that tell the step, in two layers and an optimizer."""
    rng = np.random.default_rng(step)
    return {
        "layers/dense/vars/0": rng.normal(size=(size, 4)).astype(np.float32),
        "layers/dense/vars/1": np.full(4, step, np.float32),
        "layers/dense_1/vars/0": rng.normal(size=(4, size)).astype(np.float16),
        "optimizer/vars/0": np.array(step, np.int64),
        "optimizer/vars/1": rng.normal(size=(size, 4)).astype(np.float32),
    }


EXTRA = {"seed/0": np.array([3, 4], np.uint32)}


def save(directory, step, name=None, *, state=None, **options):
    name = f"step-{step:08d}" if name is None else name
    return write_checkpoint(directory, name, make_arrays(step), EXTRA, state or make_state(step), **options)


def assert_equal_arrays(found, expected):
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        assert found[path].dtype == array.dtype, path
        np.testing.assert_array_equal(found[path], array, err_msg=path)


def flip_bit(path, position=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 4
    path.write_bytes(content)


class Watch:
    """A rate limit that tells how much was written, and can do something at a certain point."""

    def __init__(self, nbytes=0, action=lambda: None):
        self.spent, self.calls, self.nbytes, self.action = 0, 0, nbytes, action

    def spend(self, nbytes):
        self.calls += 1
        self.spent += nbytes
        if self.spent >= self.nbytes:
            self.nbytes = float("inf")
            self.action()
