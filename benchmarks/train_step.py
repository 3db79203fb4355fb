"""Microseconds a step: stock fit, its best settings, a graph loop by hand, tune(), Keras on JAX, PyTorch, in turn.

python benchmarks/train_step.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import _measure
import keras
import numpy as np
import tensorflow as tf
from _train_step_models import LOSS_TOLERANCE, PROBLEMS, Problem, Restart, Run, fit_racer, new_model, run_of

import keras_turbo
from keras_turbo.execution.installation import apply_setting
from keras_turbo.execution.setting import ExecutionSetting

EPOCHS = 4
BUDGET_SECONDS = 30.0
# Steps that the loop by hand takes at once.
_LOOP_STEPS = 50

STOCK = "stock"
# "Steps" are steps per execution.
STEPS_PER_EXECUTION = {f"stock, {steps} steps": steps for steps in (10, 50)}
XLA = {"stock, XLA": 1, "stock, XLA, 10 steps": 10}
BY_HAND = "by hand: graph loop"
TURBO = "keras_turbo: tune()"
ALONE = "alone: "
TENSORFLOW, ELSEWHERE = "on TensorFlow", "in other frameworks"

Racer = Callable[[], Run]


@dataclasses.dataclass(frozen=True)
class Peer:
    """A racer in a process of its own.

    Attributes:
        framework: module that must be installed.
        environment: variables of the process.
        options: of `compile`.
    """

    framework: str
    environment: dict[str, str]
    options: dict[str, Any]


PEERS = {
    "Keras on JAX": Peer("jax", {"KERAS_BACKEND": "jax"}, {"steps_per_execution": 1}),
    "Keras on JAX, 50 steps": Peer("jax", {"KERAS_BACKEND": "jax"}, {"steps_per_execution": 50}),
    "PyTorch, bare loop": Peer("torch", {"KERAS_BACKEND": "torch"}, {}),
}


def setting_of(candidate: Mapping[str, Any]) -> ExecutionSetting:
    """The setting of one candidate of the report of `tune`, as a value."""
    return ExecutionSetting(**candidate["setting"])


@dataclasses.dataclass
class Tuned:
    """A model that `tune` has set, and what it reported."""

    model: keras.Model
    report: dict[str, Any]
    budget_seconds: float

    @property
    def settings(self) -> list[ExecutionSetting]:
        """Those that worked, but for the first, which is stock."""
        return [setting_of(one) for one in self.report["candidates"][1:] if one["step_ms"] is not None]

    @property
    def seconds_over(self) -> float:
        """What `tune` took beyond its budget and the longest compile."""
        longest_compile = max((one["compile_seconds"] for one in self.report["candidates"]), default=0.0)
        return self.report["seconds"] - self.budget_seconds - longest_compile


def tuned(problem: Problem, weights: list[np.ndarray], dataset: tf.data.Dataset, budget_seconds: float) -> Tuned:
    model = new_model(problem, weights)
    report = keras_turbo.tune(model, dataset, budget_seconds=budget_seconds)
    return Tuned(model, report.to_dict(), budget_seconds)


def loop_by_hand(problem: Problem, weights: list[np.ndarray], dataset: tf.data.Dataset, epochs: int) -> Racer:
    """What people write against the dispatch of each step, with the metrics that `fit` computes."""
    model = new_model(problem, weights)
    optimizer = model.optimizer
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mean_loss, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    restart = Restart(model)
    steps_at_once = min(_LOOP_STEPS, problem.steps)
    if problem.steps % steps_at_once:
        raise ValueError(
            f"{problem.steps} steps an epoch are no multiple of the {steps_at_once} that are taken at once."
        )

    @tf.function
    def train(batches: Iterator[Any]) -> None:
        for _ in tf.range(steps_at_once):
            x, y = next(batches)
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                loss = loss_of(y, outputs)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            mean_loss.update_state(loss)
            accuracy.update_state(y, outputs)

    def run() -> Run:
        restart()
        losses, seconds = [], []
        for _ in range(epochs):
            start = time.perf_counter()
            mean_loss.reset_state()
            accuracy.reset_state()
            batches = iter(dataset)
            for _ in range(problem.steps // steps_at_once):
                train(batches)
            losses.append(float(mean_loss.result()))
            seconds.append(time.perf_counter() - start)
        return run_of(losses, seconds, problem.steps)

    return run


@contextlib.contextmanager
def peer_racer(name: str, peer: Peer, epochs: int, file: Path) -> Iterator[Racer]:
    """Starts a peer's process, which waits while others run, and ends it."""
    script = Path(__file__).parent / "_train_step_peer.py"
    command = [sys.executable, str(script), peer.framework, name, json.dumps(peer.options | {"epochs": epochs}), file]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | peer.environment | {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"},
    )

    def run() -> Run:
        process.stdin.write("run\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{' '.join(map(str, command))} ended; what it said is above.")
        return Run(**json.loads(answer))

    try:
        yield run
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def check_losses(problem: Problem, runs: Mapping[str, Run]) -> dict[str, float]:
    """Compares each epoch's loss with stock's.

    Returns:
        The largest differences, as a share of the first epoch's loss: on TensorFlow and in other frameworks.

    Raises:
        ResultsDifferError: one is above the tolerance.
    """
    stock = np.array(runs[STOCK].losses)
    largest = {TENSORFLOW: 0.0, ELSEWHERE: 0.0}
    for name, run in runs.items():
        where, tolerance = (ELSEWHERE, problem.elsewhere_tolerance) if name in PEERS else (TENSORFLOW, LOSS_TOLERANCE)
        difference = float(np.abs(np.array(run.losses) - stock).max() / stock[0])
        if not difference <= tolerance:
            raise _measure.ResultsDifferError(
                f"Losses of {problem.title}, {name}, differ by {difference:.2g} of the first: {run.losses}; stock's "
                f"are {runs[STOCK].losses}."
            )
        largest[where] = max(largest[where], difference)
    return largest


@dataclasses.dataclass(frozen=True)
class Race:
    """All that was found out about one model."""

    comparison: _measure.Comparison
    tuned: Tuned
    largest_differences: dict[str, float]
    not_installed: list[str]


def race(name: str, problem: Problem, rounds: int, epochs: int, budget_seconds: float) -> Race:
    x, y = problem.arrays()
    weights = new_model(problem).get_weights()
    # Ready batches, as it is the step that is measured.
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(problem.batch_size, drop_remainder=True).cache()
    dataset = dataset.prefetch(8)

    # The same batches in the same order, as a user of keras_turbo has them.
    fed = keras_turbo.FastDataset(x, y, batch_size=problem.batch_size, drop_remainder=True)

    def fit(model: keras.Model, batches: tf.data.Dataset = dataset) -> Racer:
        return fit_racer(model, problem, epochs, batches)

    settings = {STOCK: {}, **{label: {"steps_per_execution": steps} for label, steps in STEPS_PER_EXECUTION.items()}}
    settings |= {label: {"steps_per_execution": steps, "jit_compile": True} for label, steps in XLA.items()}
    racers = {label: fit(new_model(problem, weights, **options)) for label, options in settings.items()}
    racers[BY_HAND] = loop_by_hand(problem, weights, dataset, epochs)
    found = tuned(problem, weights, fed, budget_seconds)
    racers[TURBO] = fit(found.model, fed)
    for setting in found.settings:
        model = new_model(problem, weights)
        apply_setting(model, setting)
        racers[ALONE + setting.name] = fit(model, fed)

    not_installed = [label for label, peer in PEERS.items() if importlib.util.find_spec(peer.framework) is None]
    with contextlib.ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "problem.npz"
        np.savez(file, x=x, y=y, **{f"weight_{i}": weight for i, weight in enumerate(weights)})
        for label, peer in PEERS.items():
            if label not in not_installed:
                racers[label] = stack.enter_context(peer_racer(name, peer, epochs, file))
        first = _measure.in_turn(racers, 1, warm_up=False)  # all trace and compile here
        measured = _measure.in_turn(racers, rounds, warm_up=False)
    differences = [
        check_losses(problem, {label: runs[number] for label, runs in done.items()})
        for done in (first, measured)
        for number in range(len(done[STOCK]))
    ]
    largest = {where: max(one[where] for one in differences) for where in differences[0]}
    missing = f" (not installed: {', '.join(not_installed)})" if not_installed else ""
    comparison = _measure.Comparison(
        f"{problem.title}, epochs after the first{missing}",
        "µs a step",
        "lower",
        _measure.figures({label: [run.step_us for run in runs] for label, runs in measured.items()}),
        stock=STOCK,
    )
    return Race(comparison, found, largest, not_installed)


def targets_of(name: str, problem: Problem, found: Race) -> list[_measure.Target]:
    comparison = found.comparison

    def fastest(labels: Sequence[str]) -> str:
        return min(labels, key=lambda label: comparison.figures[label].median)

    def times(label: str) -> float:
        """The time of tune's choice as a multiple of another's."""
        return 1 / comparison.ratio(TURBO, label)

    alone = [label for label in comparison.figures if label.startswith(ALONE)]
    others = [label for label in comparison.figures if label not in (TURBO, BY_HAND, *alone)]
    rivals, best_alone = fastest(others), fastest([STOCK, *alone])
    targets = [
        _measure.Target(f"{problem.title}: time of tune()'s choice by that of {rivals!r}", times(rivals), at_most=1.05),
        _measure.Target(f"{problem.title}: the same by that of {best_alone!r}", times(best_alone), at_most=1.05),
        _measure.Target(f"{problem.title}: the same by stock's", times(STOCK), at_most=1.02),
        _measure.Target(
            f"{problem.title}: seconds that tune() took beyond its budget and the longest compile",
            found.tuned.seconds_over,
            at_most=0,
        ),
    ]
    if name == "small_mlp":
        best = fastest([STOCK, *STEPS_PER_EXECUTION])
        targets += [
            _measure.Target(f"{problem.title}: times stock", comparison.ratio(TURBO, STOCK), at_least=8),
            _measure.Target(f"{problem.title}: times {best!r}", comparison.ratio(TURBO, best), at_least=2),
        ]
    return targets


def main() -> None:
    parser = _measure.parser(__doc__, "train_step", rounds=5)
    parser.add_argument("--models", nargs="+", choices=PROBLEMS, help="which to measure (default: all)")
    options = parser.parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    names = options.models or (["small_mlp"] if options.quick else list(PROBLEMS))
    problems = {name: PROBLEMS[name] for name in names}
    epochs, budget_seconds = EPOCHS, BUDGET_SECONDS
    if options.quick:
        problems = {name: dataclasses.replace(problem, steps=10) for name, problem in problems.items()}
        epochs, budget_seconds = 2, 1.0
    races, targets = {}, []
    for name, problem in problems.items():
        races[name] = race(name, problem, rounds, epochs, budget_seconds)
        races[name].comparison.print()
        targets += targets_of(name, problem, races[name])
    checks = {
        f"largest difference of an epoch's loss from stock's, as a share of the first epoch's, {where}": {
            name: float(f"{found.largest_differences[where]:.1e}") for name, found in races.items()
        }
        for where in (TENSORFLOW, ELSEWHERE)
    }
    settings = {
        "models": {
            name: {"title": one.title, "batch_size": one.batch_size, "steps": one.steps}
            for name, one in problems.items()
        },
        "epochs": epochs,
        "rounds": rounds,
        "tune_budget_seconds": budget_seconds,
        "not_installed": sorted({label for found in races.values() for label in found.not_installed}),
    }
    reports = {name: found.tuned.report for name, found in races.items()}
    _measure.finish(
        options,
        settings,
        [found.comparison for found in races.values()],
        targets,
        checks,
        more={"tune": reports},
    )


if __name__ == "__main__":
    main()
