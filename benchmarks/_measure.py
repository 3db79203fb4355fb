"""What the benchmarks share: contenders measured in turn, their figures, tables, targets and the JSON file."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import gc
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import rich.console
import rich.table
import tensorflow as tf
from _epoch_seconds import EpochSeconds  # noqa: F401 (for the benchmarks, from here)

import keras_turbo

RESULTS = Path(__file__).parent / "results"

console = rich.console.Console()


@dataclasses.dataclass(frozen=True)
class Figure:
    """What one contender reached in each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Figures of several contenders of one round-robin.

    Attributes:
        title: what was measured.
        unit: of the figures.
        better: "higher" for rates, "lower" for times and memory.
        figures: by contender, in the order of the table.
        stock: the contender that ratios are against; None where a ratio says nothing.
        limits: contenders that none can beat, of which the best counts; none where there is no such thing.
    """

    title: str
    unit: str
    better: Literal["higher", "lower"]
    figures: dict[str, Figure]
    stock: str | None = None
    limits: tuple[str, ...] = ()

    @property
    def limit(self) -> str | None:
        """The best of the limits."""
        choose = max if self.better == "higher" else min
        return choose(self.limits, key=lambda name: self.figures[name].median, default=None)

    def ratio(self, name: str, to: str) -> float:
        """How many times as good one is as another: the median of the rounds' ratios, as a round shares its noise."""
        pairs = zip(self.figures[name].rounds, self.figures[to].rounds, strict=True)
        return statistics.median(a / b if self.better == "higher" else b / a for a, b in pairs)

    @property
    def _ratios(self) -> dict[str, str]:
        """Headings of the columns of ratios, and to whom they are."""
        return {heading: to for heading, to in (("times stock", self.stock), ("of limit", self.limit)) if to}

    def print(self) -> None:
        table = rich.table.Table(title=f"{self.title}\n({self.unit}, {self.better} is better)")
        table.add_column("", no_wrap=True)
        for heading in ("median", "range", *self._ratios):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, figure in self.figures.items():
            ratios = [f"{self.ratio(name, to):.2f}" for to in self._ratios.values()]
            spread = f"{_number(min(figure.rounds))} to {_number(max(figure.rounds))}"
            table.add_row(name, _number(figure.median), spread, *ratios)
        console.print(table)

    def to_dict(self) -> dict[str, Any]:
        contenders = {
            name: {"median": figure.median, "rounds": figure.rounds}
            | {heading.replace(" ", "_"): self.ratio(name, to) for heading, to in self._ratios.items()}
            for name, figure in self.figures.items()
        }
        return {
            "title": self.title,
            "unit": self.unit,
            "better": self.better,
            "limit": self.limit,
            "contenders": contenders,
        }


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure that was promised, beside what was measured."""

    what: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        return self.measured >= self.at_least if self.at_least is not None else self.measured <= self.at_most

    @property
    def bound(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"is_met": self.is_met}


class ResultsDifferError(AssertionError):
    """Contenders did not compute the same, so their times can't be compared."""


def parser(description: str, name: str, rounds: int) -> argparse.ArgumentParser:
    """A parser with the flags of every benchmark."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help=f"where to write the figures (default: benchmarks/results/{name}.json; nowhere with --quick)",
    )
    made.add_argument("--rounds", type=int, metavar="N", help=f"times each contender is measured (default: {rounds})")
    made.add_argument("--quick", action="store_true", help="as little as shows that it works; the figures mean nothing")
    made.set_defaults(name=name, full_rounds=rounds)
    return made


def num_rounds(options: argparse.Namespace) -> int:
    return options.rounds or (1 if options.quick else options.full_rounds)


def in_turn(contenders: Mapping[str, Callable[[], Any]], rounds: int, warm_up: bool = True) -> dict[str, list[Any]]:
    """Runs all contenders in turn, round after round.

    Each round begins with another one, so that none always follows the same neighbour.

    Args:
        contenders: functions that measure themselves.
        rounds: how often each is measured.
        warm_up: whether a round that does not count goes before, for what is done once in a process.

    Returns:
        For each contender what it returned, in the order of rounds.
    """
    names = list(contenders)
    measured: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(-1 if warm_up else 0, rounds):
        start = max(number, 0) % len(names)
        for name in names[start:] + names[:start]:
            gc.collect()
            value = contenders[name]()
            if number >= 0:
                measured[name].append(value)
    return measured


def figures(measured: Mapping[str, Sequence[float]]) -> dict[str, Figure]:
    return {name: Figure(tuple(values)) for name, values in measured.items()}


def finish(
    options: argparse.Namespace,
    settings: Mapping[str, Any],
    comparisons: Sequence[Comparison],
    targets: Sequence[Target],
    checks: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Prints the checks and targets, and writes everything as JSON.

    Args:
        options: of the command line.
        settings: what was measured on: sizes, numbers, rounds.
        comparisons: tables, already printed.
        targets: printed here.
        checks: what was found when the contenders' results were compared; they agreed, or the benchmark had ended.
        more: further entries of the file.
    """
    for what, found in checks.items():
        console.print(f"Checked: {what}: {found}.", soft_wrap=True)
    for target in targets:
        verdict = "met" if target.is_met else "MISSED"
        console.print(f"Target {verdict}: {target.what}: {target.measured:.3g} ({target.bound}).", soft_wrap=True)
    if options.quick:
        console.print("With --quick these figures mean nothing.")
    path = options.json or (None if options.quick else RESULTS / f"{options.name}.json")
    if path is None:
        return
    content = {
        "benchmark": options.name,
        "quick": options.quick,
        "environment": environment(),
        "settings": dict(settings),
        "checks": dict(checks),
        "comparisons": [comparison.to_dict() for comparison in comparisons],
        "targets": [target.to_dict() for target in targets],
        **(more or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d"),
        "keras_turbo": keras_turbo.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": "none used",
    }


def hide_gpus() -> None:
    """The figures are of the processor, which is what feeds a GPU."""
    tf.config.set_visible_devices([], "GPU")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _number(value: float) -> str:
    """Three digits at least, as few as are needed."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
