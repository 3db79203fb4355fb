"""Each example runs as it is, small, in stock Keras and with keras_turbo, and both train alike."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

# How far the metrics of both halves may be from one another: losses agree better than the accuracy on a few photos,
# where both halves shuffle in orders of their own; the time series is not shuffled.
TOLERANCES = {"gan": 0.05, "images": 0.3, "mobilenet": 0.4, "table": 0.02, "text": 0.4, "timeseries": 1e-4}


def test_every_example_is_tested():
    names = {path.stem for path in EXAMPLES.glob("*.py") if not path.name.startswith("_")}
    assert names == {f"{name}_{half}" for name in TOLERANCES for half in ("stock", "turbo")}


@pytest.mark.parametrize("name", sorted(TOLERANCES))
def test_halves_differ_in_eight_lines_at_most(name):
    stock, turbo = (
        (EXAMPLES / f"{name}_{half}.py").read_text(encoding="utf-8").splitlines() for half in ("stock", "turbo")
    )
    changed = [line for line in difflib.ndiff(stock, turbo) if line[0] in "+-"]
    assert 0 < len(changed) <= 8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What the examples make is made once."""
    return tmp_path_factory.mktemp("data")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TOLERANCES))
def test_example_trains_as_stock(name, data, tmp_path):
    """Both halves at the same time: most of it is importing and tracing, on one core each."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    processes = {}
    for half in ("stock", "turbo"):
        (tmp_path / half).mkdir()
        processes[half] = subprocess.Popen(
            [sys.executable, EXAMPLES / f"{name}_{half}.py", "--quick", "--epochs", "2", "--data", data],
            cwd=tmp_path / half,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    metrics = {}
    try:
        for half, process in processes.items():
            stdout, stderr = process.communicate(timeout=280)
            assert process.returncode == 0, stderr
            (metrics[half],) = re.findall(r"^\w+: (\S+)$", stdout, re.MULTILINE)
    finally:
        for process in processes.values():
            process.kill()
    checkpoints = list((tmp_path / "turbo" / "checkpoints").iterdir())
    assert checkpoints
    assert list((tmp_path / "turbo" / "logs").iterdir())
