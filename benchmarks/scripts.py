"""Whole scripts as people publish them, with stock Keras and with the README's lines: what a user waits for.

    python benchmarks/scripts.py                                   # all of `examples/`, 5 and 30 epochs
    python benchmarks/scripts.py --scripts images gan --epochs 5   # some, and shorter

- stock: `examples/NAME_stock.py`.
- keras_turbo: `examples/NAME_turbo.py`, the same script with the README's lines.

Each run is a process of its own, in an empty folder and with empty caches, and knows nothing of being measured: its
epochs are timed by when Keras prints that they begin. Both halves of a round have the same seed, each round another
one; the metric of keras_turbo must be as near to one of stock's as stock's are to one another.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import _measure
import rich.table

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = ("images", "mobilenet", "text", "timeseries", "table", "gan")
# The others take longer to begin; the tests of the examples run all.
QUICK_SCRIPTS = ("timeseries", "gan")

STOCK = "stock"
TURBO = "keras_turbo"

# What is promised: by epochs of a script, how many times as fast as stock it is at least, from start to end.
LEAST_WHOLE = {5: 0.98, 30: 1.0}
# And where stock waits for its input, or for Python between its steps, which is so in at least that many scripts.
LEAST_LATER_WHERE_LIMITED, LEAST_WHOLE_WHERE_LIMITED, NUM_LIMITED = 3.0, 1.5, 3


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run of a script took.

    Attributes:
        seconds: from the start of the process to its end.
        seconds_before: to the beginning of the first epoch: imports, data, model.
        epoch_seconds: of each epoch, with its validation and callbacks.
        seconds_after: from the end of the last epoch.
        metric: what the script prints at its end.
        load: processes that wanted a core in the minute before.
    """

    seconds: float
    seconds_before: float
    epoch_seconds: list[float]
    seconds_after: float
    metric: float
    load: float


PHASES: dict[str, Callable[[Run], float]] = {
    "first epoch": lambda run: run.epoch_seconds[0],
    "later epochs": lambda run: statistics.median(run.epoch_seconds[1:]),
    "whole script": lambda run: run.seconds,
}


def run_script(script: Path, arguments: Sequence[Any]) -> Run:
    """Runs a script to its end.

    Raises:
        RuntimeError: it failed, or printed no epochs or no metric.
    """
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="keras_turbo_script_") as folder, tempfile.TemporaryFile() as stderr:
        paths = [str(ROOT), str(EXAMPLES), os.environ.get("PYTHONPATH")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "XDG_CACHE_HOME": f"{folder}/cache",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        command = [sys.executable, str(script), *map(str, arguments)]
        begun_at = time.perf_counter()
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stderr) as process:
            assert process.stdout is not None  # noqa: S101 (it is a pipe)
            lines = [(line.decode(), time.perf_counter() - begun_at) for line in process.stdout]
        seconds = time.perf_counter() - begun_at
        stderr.seek(0)
        messages = stderr.read().decode(errors="replace")
    epochs = [line for line in lines if re.fullmatch(r"Epoch \d+/\d+\n", line[0])]
    metric = re.fullmatch(r"\w+: (\S+)\n", lines[-1][0]) if lines else None
    if process.returncode or len(epochs) < 2 or not metric:
        raise RuntimeError(
            f"{script.name} ended with status {process.returncode}, after {len(epochs)} epochs (two are needed). Its "
            f"last lines were:\n{messages[-3000:]}{''.join(line for line, _ in lines[-3:])}"
        )
    # The progress bar of an epoch ends when its other callbacks are through.
    last = next(line for line in reversed(lines) if "/step" in line[0])
    marks = [at for _, at in [*epochs, last]]
    return Run(
        seconds=seconds,
        seconds_before=marks[0],
        epoch_seconds=[after - before for before, after in itertools.pairwise(marks)],
        seconds_after=seconds - marks[-1],
        metric=float(metric[1]),
        load=load,
    )


def distance(stock: Sequence[float], turbo: Sequence[float]) -> float | None:
    """How far a metric of keras_turbo is from the nearest of stock's, in ranges of those.

    None where one seed of stock alone was run.
    """
    if len(stock) < 2:
        return None
    far = min(abs(statistics.median(turbo) - metric) for metric in stock)
    return far / (max(stock) - min(stock)) if far else 0.0


def measure(name: str, epochs: int, rounds: int, options: argparse.Namespace) -> dict[str, list[Run]]:
    """Runs both halves of a script in turns; a round has the same seed for both."""

    def runs_of(script: Path) -> Callable[[], Run]:
        seeds = iter(range(rounds))
        quick = ["--quick"] if options.quick else []
        return lambda: run_script(script, ["--epochs", epochs, "--data", options.data, "--seed", next(seeds), *quick])

    halves = {STOCK: EXAMPLES / f"{name}_stock.py", TURBO: EXAMPLES / f"{name}_turbo.py"}
    # Nothing is done once for all runs of a process, since each has its own; so no round is without account.
    return _measure.in_turn({half: runs_of(path) for half, path in halves.items()}, rounds, warm_up=False)


def summary(measured: Mapping[tuple[str, int], Mapping[str, list[Run]]]) -> rich.table.Table:
    """One row for each script and number of epochs: medians, ratios with their range, and metrics."""
    table = rich.table.Table(title="seconds of stock → keras_turbo: times as fast (range)")
    for heading in ("script", "epochs", *PHASES, "metric"):
        table.add_column(heading)

    def cells(runs: Mapping[str, list[Run]]) -> Iterator[str]:
        for value in PHASES.values():
            stock, turbo = ([value(run) for run in runs[name]] for name in (STOCK, TURBO))
            ratios = [a / b for a, b in zip(stock, turbo, strict=True)]
            yield (
                f"{statistics.median(stock):.1f} → {statistics.median(turbo):.1f}: {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )
        yield " → ".join(f"{statistics.median(run.metric for run in runs[name]):.4g}" for name in (STOCK, TURBO))

    for (name, epochs), runs in measured.items():
        table.add_row(name, str(epochs), *cells(runs))
    return table


def targets_of(comparisons: Mapping[tuple[str, int], Mapping[str, _measure.Comparison]]) -> list[_measure.Target]:
    """What is promised of the scripts that were run."""
    targets = [
        _measure.Target(
            f"{name}, {epochs} epochs, whole script: times as fast as stock",
            phases["whole script"].ratio(TURBO, STOCK),
            at_least=LEAST_WHOLE[epochs],
        )
        for (name, epochs), phases in comparisons.items()
        if epochs in LEAST_WHOLE
    ]
    most_epochs = max((epochs for _, epochs in comparisons), default=0)
    gaining = [
        name
        for (name, epochs), phases in comparisons.items()
        if epochs == most_epochs
        and phases["later epochs"].ratio(TURBO, STOCK) >= LEAST_LATER_WHERE_LIMITED
        and phases["whole script"].ratio(TURBO, STOCK) >= LEAST_WHOLE_WHERE_LIMITED
    ]
    if {name for name, _ in comparisons} == set(SCRIPTS):
        what = (
            f"scripts that are {LEAST_LATER_WHERE_LIMITED:g} times as fast in later epochs and "
            f"{LEAST_WHOLE_WHERE_LIMITED:g} times from start to end, at {most_epochs} epochs"
        )
        targets.append(_measure.Target(what, len(gaining), at_least=NUM_LIMITED))
    return targets


def parse_arguments() -> argparse.Namespace:
    parser = _measure.parser(__doc__, "scripts", rounds=3)
    parser.add_argument("--epochs", type=int, nargs="+", metavar="N", help="how long to train (default: 5 30)")
    parser.add_argument("--scripts", nargs="+", choices=SCRIPTS, metavar="NAME", help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the scripts keep their data (default: nowhere)")
    options = parser.parse_args()
    options.epochs = options.epochs or ([2] if options.quick else [5, 30])
    if min(options.epochs) < 2:
        parser.error("--epochs must be at least 2: later epochs are measured, too.")
    options.scripts = options.scripts or (QUICK_SCRIPTS if options.quick else SCRIPTS)
    return options


def main() -> None:
    options = parse_arguments()
    rounds = _measure.num_rounds(options)
    measured: dict[tuple[str, int], dict[str, list[Run]]] = {}
    comparisons: dict[tuple[str, int], dict[str, _measure.Comparison]] = {}
    with tempfile.TemporaryDirectory(prefix="keras_turbo_scripts_") as folder:
        options.data = (options.data or Path(folder) / "data").absolute()
        for name, epochs in itertools.product(options.scripts, options.epochs):
            if epochs == options.epochs[0] and not options.quick:
                # It makes the data, which no other run waits for.
                run_script(EXAMPLES / f"{name}_stock.py", ["--epochs", 2, "--data", options.data])
            runs = measured[name, epochs] = measure(name, epochs, rounds, options)
            comparisons[name, epochs] = {
                phase: _measure.Comparison(
                    f"{name}, {epochs} epochs: {phase}",
                    "seconds",
                    "lower",
                    _measure.figures({contender: [value(run) for run in runs[contender]] for contender in runs}),
                    stock=STOCK,
                )
                for phase, value in PHASES.items()
            }
            for comparison in comparisons[name, epochs].values():
                comparison.print()
    _measure.console.print(summary(measured))
    distances = {
        f"{name}, {epochs} epochs": distance(*([run.metric for run in runs[half]] for half in (STOCK, TURBO)))
        for (name, epochs), runs in measured.items()
    }
    too_far = {what: far for what, far in distances.items() if far is not None and far > 1}
    if too_far and not options.quick:
        raise _measure.ResultsDifferError(
            f"Metrics are further from stock's than its seeds are from one another, in their range: {too_far}."
        )
    checks = {"distance of metrics from the nearest of stock's, in the range of its seeds (at most 1)": distances}
    settings = {"scripts": list(options.scripts), "epochs": options.epochs, "rounds": rounds}
    all_runs = {
        f"{name}, {epochs} epochs": {half: [dataclasses.asdict(run) for run in of_one] for half, of_one in runs.items()}
        for (name, epochs), runs in measured.items()
    }
    flat = [comparison for phases in comparisons.values() for comparison in phases.values()]
    _measure.finish(options, settings, flat, targets_of(comparisons), checks, {"runs": all_runs})


if __name__ == "__main__":
    main()
