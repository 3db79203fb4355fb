"""Other Python processes, for what one process must see of another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 120


def start_python(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a script that can import this project."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    """Waits for a process and gives its standard output; what it writes to standard error is in the assertion."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, errors
    return output


def run_python(script: str, *arguments: str) -> str:
    """Runs a script to its end and gives its standard output."""
    return output_of(start_python(script, *arguments))
