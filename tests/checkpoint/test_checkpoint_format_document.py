"""`docs/checkpoint_format.md` tells the truth: its code reads what we write, without keras_turbo."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from keras_turbo.checkpoint.layout import TrainingState
from keras_turbo.checkpoint.writing import write_checkpoint
from tests.checkpoint.saved import assert_equal_arrays, flip_bit, make_arrays, make_state

DOCUMENT = Path(__file__).parents[2] / "docs" / "checkpoint_format.md"
EXTRA = {"seed": np.array([1, 2], np.uint32), "half": np.arange(3).astype(ml_dtypes.bfloat16)}


@pytest.fixture(scope="module")
def reader():
    (source,) = [code for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if "def " in code]
    assert "keras" not in source
    namespace = {}
    exec(source, namespace)
    return namespace["read_checkpoint"]


@pytest.mark.parametrize("shards", [1, 2])
def test_its_code_reads_a_checkpoint(tmp_path, reader, shards):
    state = make_state(7, metrics={"loss": 0.5})

    def write(index):
        return write_checkpoint(tmp_path, "x", make_arrays(7), EXTRA, state, shard=(shards, index))

    with ThreadPoolExecutor(shards) as pool:
        folder, *_ = pool.map(write, range(shards))
    weights, extra, found = reader(folder)
    assert_equal_arrays(weights, make_arrays(7))
    assert_equal_arrays(extra, EXTRA)
    assert found["optimizer_step"] == 7
    assert found["metrics"] == {"loss": 0.5}
    for path in folder.iterdir():
        whole = path.read_bytes()
        flip_bit(path)
        with pytest.raises((ValueError, KeyError)):
            reader(folder)
        path.write_bytes(whole)


def test_it_has_every_key():
    rows = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert rows == list(json.loads(make_state().to_json()))
    assert set(rows) == {one.name for one in dataclasses.fields(TrainingState)}


def test_its_code_needs_neither_keras_nor_tensorflow(tmp_path):
    folder = write_checkpoint(tmp_path, "x", make_arrays(7), {"seed": np.zeros(2)}, make_state(7))
    (source,) = [code for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if "def " in code]
    source += (
        f"\nimport sys\nprint(read_checkpoint({str(folder)!r})[2]['steps'])\n"
        "print([name for name in ('keras', 'tensorflow', 'keras_turbo') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "8\n[]\n"
