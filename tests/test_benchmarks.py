"""Each benchmark runs, compares its contenders' results, and writes what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"

# What each must have compared before its times mean anything.
CHECKS = {
    "image_folder": {
        "images compared",
        "largest difference of pixels, of 255 levels",
        "labels equal",
        "examples of every epoch equal",
        "mean difference of pixels by scaled_decode, of 255 levels",
    },
    "python_sources": {"batches compared", "steps of every fit equal"},
    "arrays": {"largest relative difference of losses without shuffling", "steps of every epoch equal"},
    "train_step": {
        f"largest difference of an epoch's loss from stock's, as a share of the first epoch's, {where}"
        for where in ("on TensorFlow", "in other frameworks")
    },
    "mixed_precision": {"largest relative difference of first losses from float32's"},
    "tfrecord": {"batches in order equal", "shuffled epochs complete"},
    "tabular": {"batches in order equal", "shuffled epochs complete"},
    "loader_gil": {"pixels of threads and processes equal"},
    "attack": {"trials", "lost"},
    "audio": {"batches in order equal", "shuffled epochs complete"},
    "checkpoint_stall": {"largest relative difference of losses"},
    "monitor_cost": {"largest relative difference of losses", "batches equal"},
    "scaling": {
        "largest relative difference of losses from one worker's",
        "largest relative difference of losses with compressed gradients",
    },
    "memory": {"steps of all over files", "steps of all over positions"},
    "scripts": {"distance of metrics from the nearest of stock's, in the range of its seeds (at most 1)"},
}


def run(script, *arguments):
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_every_benchmark_is_tested_and_explained():
    scripts = {path.stem for path in BENCHMARKS.glob("*.py") if not path.name.startswith("_")}
    assert scripts == set(CHECKS)
    readme = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for script in scripts:
        assert f"python benchmarks/{script}.py" in readme


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_benchmark_runs(name, tmp_path):
    result = run(BENCHMARKS / f"{name}.py", "--quick", "--json", tmp_path / "out" / "figures.json")
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "out" / "figures.json").read_text(encoding="utf-8"))
    assert figures["benchmark"] == name
    assert figures["quick"] is True
    environment = figures["environment"]
    assert environment["gpu"] == "none used"
    assert {"date", "keras_turbo", "tensorflow", "keras", "numpy", "python", "cpu", "cores"} < set(environment)
    assert set(figures["checks"]) == CHECKS[name]
    # Nobody's folders in a file that is published.
    assert str(tmp_path) not in json.dumps(figures)

    rounds = figures["settings"]["rounds"]
    for comparison in figures["comparisons"]:
        contenders = comparison["contenders"]
        assert "stock" in contenders
        # Whole scripts are as people publish them.
        assert name == "scripts" or any(contender.startswith("by hand") for contender in contenders)
        assert any(contender.startswith("keras_turbo") for contender in contenders)
        assert comparison["limit"] is None or comparison["limit"] in contenders
        for contender in contenders.values():
            assert len(contender["rounds"]) == rounds
            assert min(contender["rounds"]) <= contender["median"] <= max(contender["rounds"])
        assert contenders["stock"].get("times_stock", 1) == 1
        assert comparison["title"] in " ".join(result.stdout.split())
    for target in figures["targets"]:
        measured, least, most = target["measured"], target["at_least"], target["at_most"]
        assert target["is_met"] == (measured >= least if least is not None else measured <= most)
        assert f"{target['what']}: " in result.stdout


@pytest.mark.slow
def test_results_that_differ_end_a_benchmark(tmp_path):
    """A benchmark whose contenders do not compute the same says so, and writes nothing."""
    script = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import arrays

fits = arrays.fits

def other_batches(size, x, y, shuffle):
    contenders = fits(size, x, y, shuffle)
    return contenders | {{arrays.TURBO: fits(size, x[::-1], y[::-1], shuffle)[arrays.TURBO]}}

arrays.fits = other_batches
arrays.main()
"""
    (tmp_path / "script.py").write_text(script)
    result = run(tmp_path / "script.py", "--quick", "--json", tmp_path / "figures.json")
    assert result.returncode != 0
    assert "ResultsDifferError" in result.stderr
    assert not (tmp_path / "figures.json").exists()
