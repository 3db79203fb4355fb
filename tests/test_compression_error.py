"""The script behind the table of errors in docs/scaling.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "compression_error.py"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def rows_of(output):
    """The cells of the tables' rows, without headings and rules."""
    lines = [line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells[0] in {"2", "as they are", "float16", "bfloat16"}]


def test_it_prints_errors_and_trainings():
    done = run("--replicas", "2", "--trained-replicas", "2", "--epochs", "1", "--seeds", "1")
    assert done.returncode == 0, done.stderr[-3000:]
    of_two, as_they_are, *compressed = rows_of(done.stdout)
    float16, bfloat16 = ([float(cell.rstrip(" %")) for cell in of_two[first::2]] for first in (1, 2))
    # Unit roundoffs are 0.05 % and 0.4 %.
    assert all(0.01 < one < 0.05 for one in float16)
    assert all(0.1 < one < 0.4 for one in bfloat16)
    assert as_they_are[2] == "0.00000"
    assert [cells[0] for cells in compressed] == ["float16", "bfloat16"]
    assert all(0 < float(cells[2]) < 0.05 for cells in compressed)


def test_numbers_below_one_are_refused():
    done = run("--seeds", "0")
    assert done.returncode == 2
    assert "all numbers must be at least 1" in done.stderr
