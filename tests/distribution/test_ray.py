"""Ray sets TF_CONFIG, and distribute() reads it. Where the extra `ray` is not installed, this is skipped."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_turbo

PROJECT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed")
def test_two_workers_of_ray_train_as_one_device(tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
    script = PROJECT / "tests" / "distribution" / "ray_script.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = [json.loads((tmp_path / f"{index}.json").read_text()) for index in range(2)]
    assert told[0] == told[1]
    assert told[0]["workers"] == 2

    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    data = keras_turbo.FastDataset(x, x.sum(axis=1, keepdims=True), batch_size=16, shuffle=True, seed=0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    np.testing.assert_allclose(told[0]["losses"], model.fit(data, epochs=2, verbose=0).history["loss"], rtol=1e-6)
