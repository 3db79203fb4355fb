"""What a blocking checkpoint takes of a step: it is timed while it saves somewhere else, and spread over the steps."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time
import warnings
from collections.abc import Sequence

import keras

from keras_turbo.execution.race import short_reason

_MOST_SAVES = 3
_SUFFIXES = (".weights.h5", ".keras", ".h5")


@dataclasses.dataclass(frozen=True)
class CheckpointTimes:
    """What saving takes.

    Attributes:
        ms: milliseconds a step, by class name: a save, divided by the steps from one to the next.
        notes: what was measured, and what could not be.
    """

    ms: dict[str, float]
    notes: tuple[str, ...]


def checkpoint_times(
    model: keras.Model, callbacks: Sequence[keras.callbacks.Callback], num_batches: int | None, seconds: float
) -> CheckpointTimes:
    """Times the saves of Keras' own `ModelCheckpoint`s. None of them runs, and none of their files is touched.

    The model is saved as they save it, into a temporary folder on the same disk.

    Args:
        model: a built model.
        callbacks: those of the user that do not run; others than `ModelCheckpoint` are left out.
        num_batches: in an epoch; None where that is not known.
        seconds: after which no further save is begun.
    """
    ms: dict[str, float] = {}
    notes = []
    for callback in callbacks:
        # A subclass may save otherwise.
        if type(callback) is not keras.callbacks.ModelCheckpoint:
            continue
        steps = num_batches if callback.save_freq == "epoch" else callback.save_freq
        if not isinstance(steps, int) or steps < 1:
            notes.append("ModelCheckpoint was not timed: how many batches an epoch has is not known")
            continue
        try:
            save_seconds = _save_seconds(model, callback, seconds)
        except Exception as error:  # what a user's layers raise when they are saved, too
            notes.append(f"ModelCheckpoint was not timed: {short_reason(error)}")
            continue
        name = type(callback).__name__
        ms[name] = ms.get(name, 0.0) + save_seconds * 1e3 / steps
        each = f"{steps} batches" if steps > 1 else "batch"
        best = "; it counts as if each were the best" if callback.save_best_only else ""
        took = f"a save, timed in a temporary folder, takes {save_seconds * 1e3:.4g} ms"
        notes.append(f"{name}: {took}, each {each}{best}")
    return CheckpointTimes(ms, tuple(f"{note}." for note in notes))


def _save_seconds(model: keras.Model, callback: keras.callbacks.ModelCheckpoint, seconds: float) -> float:
    """The shortest of some saves."""
    path = str(callback.filepath)
    if "://" in path:
        raise ValueError(f"{path} is on another machine")
    folder = next(parent for parent in pathlib.Path(path).absolute().parents if parent.is_dir())
    suffix = next(each for each in _SUFFIXES if path.endswith(each))
    durations: list[float] = []
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".keras_turbo_audit_") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Keras says of a format, it says where the user saves
        target = str(pathlib.Path(scratch) / f"model{suffix}")
        while len(durations) < _MOST_SAVES and (not durations or time.perf_counter() - begin < seconds):
            start = time.perf_counter()
            if callback.save_weights_only:
                model.save_weights(target, overwrite=True)
            else:
                model.save(target, overwrite=True)
            durations.append(time.perf_counter() - start)
    return min(durations)
