"""How long a save holds training up: stock callbacks, by hand, AsyncCheckpoint and a bare copy in memory, in turn.

    python benchmarks/checkpoint_stall.py

- stock: `ModelCheckpoint`, weights and optimizer; `BackupAndRestore`; `OrbaxCheckpoint`, where orbax is installed.
- by hand: `tf.train.CheckpointManager` in a callback.
- keras_turbo: `AsyncCheckpoint`; and the same on a disk that takes 50 MB a second.
- limit: copying every variable into arrays that are ready. Nothing that keeps a state can take less.
- no saving: what the rate of steps is compared with.

All train one model from the same weights on the same batches, save after the same steps, and must end with the same
loss. A stall is what lies between the end of a step and the beginning of the next one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure
import keras
import numpy as np
import tensorflow as tf

import keras_turbo as kt
from keras_turbo.checkpoint.snapshot import read_tensor
from keras_turbo.fit.training_state import assign_state, build_optimizer, find_state, is_variable, raw

CLASSES = 10
BATCH_SIZE = 16
NUM_BATCHES = 20
SLOW_MB_PER_SECOND = 50
# Steps between two saves: enough for a save to be written meanwhile on an ordinary disk.
SAVE_FREQ = 16
# Two saves, and not a third after the last step.
STEPS = 3 * SAVE_FREQ - 1
# Threads add up in another order.
_LOSS_TOLERANCE = 1e-5

STOCK = "stock"
BACKUP = "stock, BackupAndRestore"
ORBAX = "stock, OrbaxCheckpoint"
BY_HAND = "by hand, CheckpointManager"
TURBO = "keras_turbo"
SLOW = f"keras_turbo, {SLOW_MB_PER_SECOND} MB/s"
LIMIT = "limit"
NO_SAVING = "no saving"


@dataclasses.dataclass(frozen=True)
class Size:
    """A stack of Dense layers, trained with Adam: the state is three times the weights."""

    width: int
    depth: int

    @property
    def megabytes(self) -> float:
        return 3 * 4 * self.depth * self.width * (self.width + 1) / 1e6

    def __str__(self) -> str:
        megabytes = self.megabytes
        return f"{megabytes / 1e3:.1f} GB" if megabytes >= 1e3 else f"{megabytes:.0f} MB"


SIZES = (Size(2048, 2), Size(2048, 8), Size(2048, 24))
QUICK_SIZES = (Size(1024, 2),)


class StepClock:
    """Times steps and what is between them. Its two callbacks stand first and last in the list.

    Attributes:
        step_seconds: of each step.
        stall_seconds: between each two steps.
        versions: what `version` gave when each step began.
    """

    def __init__(self, version: Callable[[], Any]) -> None:
        self.step_seconds: list[float] = []
        self.stall_seconds: list[float] = []
        self.versions: list[Any] = []
        self._version = version
        self._begun_at = 0.0
        self._ended_at: float | None = None
        self.total_seconds = 0.0
        self._first_at: float | None = None
        self.first = keras.callbacks.LambdaCallback(on_train_batch_end=self._step_ends)
        self.last = keras.callbacks.LambdaCallback(on_train_batch_begin=self._step_begins)

    def _step_begins(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.versions.append(self._version())
        now = time.perf_counter()
        if self._ended_at is not None:
            self.stall_seconds.append(now - self._ended_at)
        self._first_at = self._first_at or now
        self._begun_at = now

    def _step_ends(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._ended_at = time.perf_counter()
        self.step_seconds.append(self._ended_at - self._begun_at)
        self.total_seconds = self._ended_at - (self._first_at or self._ended_at)

    def steps_while_writing(self) -> list[int]:
        """Steps that began when a save had been taken and not all were on disk."""
        found, written = [], 0
        for step, version in enumerate(self.versions):
            if step and version != self.versions[step - 1]:
                written += 1
            if step // SAVE_FREQ > written:
                found.append(step)
        return found


class ManagerCheckpoint(keras.callbacks.Callback):
    """What people write by hand."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.model.optimizer)
        self._manager = tf.train.CheckpointManager(checkpoint, str(self._folder), max_to_keep=3)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if (batch + 1) % SAVE_FREQ == 0:
            self._manager.save(checkpoint_number=batch + 1)


class CopyInMemory(keras.callbacks.Callback):
    """Copies the state and does nothing with it: one thread, without a copy between, into pages that are there."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        state = find_state(model)
        values = [*state.weights.values(), *state.extra.values()]
        variables = {id(raw(value)): raw(value) for value in values if is_variable(value)}
        self._pairs = [(variable, np.array(variable.numpy())) for variable in variables.values()]

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if (batch + 1) % SAVE_FREQ == 0:
            for variable, array in self._pairs:
                np.copyto(array, np.asarray(read_tensor(variable)))


@dataclasses.dataclass(frozen=True)
class Run:
    """One fit.

    Attributes:
        stall_ms: the longest time between two steps.
        steps_per_second: from the first step to the last, stalls among them.
        loss: at its end.
        step_seconds: of each step.
        while_writing: which steps ran while a save was being written.
    """

    stall_ms: float
    steps_per_second: float
    loss: float
    step_seconds: tuple[float, ...]
    while_writing: tuple[int, ...]


class Contest:
    """One model, trained again and again from the same state."""

    def __init__(self, size: Size, folder: Path | None) -> None:
        keras.utils.set_random_seed(0)
        self._folder = folder
        random = np.random.default_rng(0)
        x = random.normal(size=(BATCH_SIZE * NUM_BATCHES, size.width)).astype("float32")
        y = random.integers(CLASSES, size=len(x))
        self._data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE).repeat().prefetch(2)
        layers = [keras.layers.Dense(size.width, activation="relu") for _ in range(size.depth)]
        self.model = keras.Sequential([keras.Input((size.width,)), *layers, keras.layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=False)
        build_optimizer(self.model)
        state = find_state(self.model)
        self._weights = {path: raw(value).numpy() for path, value in state.weights.items()}
        self._extra = {path: raw(value).numpy() for path, value in state.extra.items()}
        self.model.fit(self._data, steps_per_epoch=2, shuffle=False, verbose=0)

    def run(self, name: str) -> Run:
        """Trains once from the start, and saves as this contender does."""
        assign_state(self.model, self._weights, self._extra)
        with tempfile.TemporaryDirectory(dir=self._folder) as made:
            callback = self._callback(name, Path(made))
            clock = StepClock(lambda: getattr(callback, "last_checkpoint", None))
            callbacks = [clock.first, *([] if callback is None else [callback]), clock.last]
            history = self.model.fit(
                self._data, steps_per_epoch=STEPS, shuffle=False, verbose=0, callbacks=callbacks
            ).history
        return Run(
            max(clock.stall_seconds) * 1e3,
            STEPS / clock.total_seconds,
            history["loss"][-1],
            tuple(clock.step_seconds),
            tuple(clock.steps_while_writing()) if name in (TURBO, SLOW) else (),
        )

    def _callback(self, name: str, folder: Path) -> keras.callbacks.Callback | None:
        file = folder / "{epoch}-{batch}.weights.h5"
        made: dict[str, Callable[[], keras.callbacks.Callback | None]] = {
            STOCK: lambda: keras.callbacks.ModelCheckpoint(file, save_weights_only=True, save_freq=SAVE_FREQ),
            BACKUP: lambda: keras.callbacks.BackupAndRestore(folder / "backup", save_freq=SAVE_FREQ),
            ORBAX: lambda: keras.callbacks.OrbaxCheckpoint(folder / "orbax", save_freq=SAVE_FREQ),
            BY_HAND: lambda: ManagerCheckpoint(folder / "manager"),
            TURBO: lambda: kt.AsyncCheckpoint(folder / "turbo", save_freq=SAVE_FREQ),
            SLOW: lambda: kt.AsyncCheckpoint(
                folder / "turbo", save_freq=SAVE_FREQ, max_write_mb_per_second=SLOW_MB_PER_SECOND
            ),
            LIMIT: lambda: CopyInMemory(self.model),
            NO_SAVING: lambda: None,
        }
        return made[name]()


def contenders() -> tuple[str, ...]:
    names = [STOCK, BACKUP, BY_HAND, TURBO, SLOW, LIMIT, NO_SAVING]
    if importlib.util.find_spec("orbax") and hasattr(keras.callbacks, "OrbaxCheckpoint"):
        names.insert(2, ORBAX)
    else:
        _measure.console.print(
            "OrbaxCheckpoint is left out: it needs Keras 3.15 or so, and orbax-checkpoint installed."
        )
    return tuple(names)


def rate_while_writing(runs: list[Run], without: list[Run]) -> float:
    """Steps a second while a save is written, as a share of the same steps' rate without saving; the rounds' median."""
    shares = []
    for run, bare in zip(runs, without, strict=True):
        written = sum(run.step_seconds[step] for step in run.while_writing)
        alone = sum(bare.step_seconds[step] for step in run.while_writing)
        # A save that is on disk before the next step begins slows none.
        shares.append(alone / written if run.while_writing else 1.0)
    return statistics.median(shares)


def compare(
    size: Size, folder: Path | None, rounds: int
) -> tuple[list[_measure.Comparison], list[_measure.Target], float, dict[str, float]]:
    contest = Contest(size, folder)
    names = contenders()
    measured = _measure.in_turn({name: functools.partial(contest.run, name) for name in names}, rounds, warm_up=False)
    losses = [run.loss for runs in measured.values() for run in runs]
    difference = (max(losses) - min(losses)) / abs(min(losses))
    if not difference <= _LOSS_TOLERANCE:
        raise _measure.ResultsDifferError(f"Losses of {size} differ by {difference:.2g} of their size: {losses}.")

    stalls = _measure.Comparison(
        f"Longest stall of a step by a save of {size}",
        "ms",
        "lower",
        _measure.figures({name: [run.stall_ms for run in measured[name]] for name in names if name != NO_SAVING}),
        STOCK,
        (LIMIT,),
    )
    rates = _measure.Comparison(
        f"Steps a second of a fit that saves {size} every {SAVE_FREQ} steps",
        "steps a second",
        "higher",
        _measure.figures({name: [run.steps_per_second for run in measured[name]] for name in names}),
        STOCK,
        (NO_SAVING,),
    )
    while_writing = {name: rate_while_writing(measured[name], measured[NO_SAVING]) for name in (TURBO, SLOW)}
    targets = [
        _measure.Target(f"stall of {size} over that of a copy in memory", 1 / stalls.ratio(TURBO, LIMIT), at_most=2),
        _measure.Target(
            f"how many times shorter than ModelCheckpoint's, {size}", stalls.ratio(TURBO, STOCK), at_least=12
        ),
        _measure.Target(
            f"rate of steps while {size} are written, of that without saving", while_writing[TURBO], at_least=0.9
        ),
        # Not at all slower, within what two runs of the same steps differ by.
        _measure.Target(
            f"rate of steps while {size} are written at {SLOW_MB_PER_SECOND} MB/s", while_writing[SLOW], at_least=0.97
        ),
    ]
    return [stalls, rates], targets, difference, while_writing


def main() -> None:
    parser = _measure.parser(__doc__, "checkpoint_stall", rounds=3)
    parser.add_argument("--dir", type=Path, metavar="DIR", help="an existing folder on the disk to write to")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="MB", help="sizes to measure (default: 100 400 1200)")
    options: argparse.Namespace = parser.parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    sizes = QUICK_SIZES if options.quick else SIZES
    if options.sizes:
        sizes = tuple(Size(2048, max(1, round(megabytes / Size(2048, 1).megabytes))) for megabytes in options.sizes)
    comparisons, targets, differences, while_writing = [], [], [], {}
    for size in sizes:
        more_comparisons, more_targets, difference, while_writing[str(size)] = compare(size, options.dir, rounds)
        comparisons += more_comparisons
        targets += more_targets
        differences.append(difference)
        for comparison in more_comparisons:
            comparison.print()
    _measure.finish(
        options,
        {"sizes": [str(size) for size in sizes], "steps": STEPS, "save_freq": SAVE_FREQ, "rounds": rounds},
        comparisons,
        targets,
        {"largest relative difference of losses": max(differences)},
        {"rate while writing, of that without saving": while_writing},
    )


if __name__ == "__main__":
    main()
