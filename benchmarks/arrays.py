"""Microseconds a step on arrays: fit(x, y), by hand, fit(FastDataset(x, y)) and the limit, in turn.

python benchmarks/arrays.py
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import _measure
import keras
import numpy as np
import tensorflow as tf

from keras_turbo import FastDataset

CLASSES = 10
EPOCHS = 4
# Losses of the same sums in the same order; what is left is what threads add up in another order.
_LOSS_TOLERANCE = 1e-5

STOCK = "stock"
BY_HAND = "by hand"
TURBO = "keras_turbo"
LIMIT = "limit"


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is trained on, and in which batches."""

    rows: int
    features: int
    batch_size: int

    @property
    def steps(self) -> int:
        return -(-self.rows // self.batch_size)

    def __str__(self) -> str:
        return f"{self.rows:,} rows of {self.features:,}, batch {self.batch_size}"


#: A size that is over at once, the one of which a ratio is promised, and one whose batches take a while to copy.
PROMISED = Size(38_400, 32, 64)
SIZES = (Size(2_000, 32, 64), PROMISED, Size(16_384, 1_024, 256))
QUICK_SIZES = (Size(200, 8, 32), Size(320, 32, 64))


@dataclasses.dataclass(frozen=True)
class FitTimes:
    """One fit.

    Attributes:
        first_us: microseconds a step in the first epoch.
        later_us: the same in the epochs after it, their median.
        whole_ms: milliseconds of everything, making the dataset included.
    """

    first_us: float
    later_us: float
    whole_ms: float


def arrays_of(size: Size) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((size.rows, size.features), dtype=np.float32)
    return x, np.argmax(x[:, :CLASSES] if size.features >= CLASSES else x, axis=1).astype(np.int32)


def new_model(size: Size) -> keras.Model:
    layers = [
        keras.layers.Dense(units, activation, kernel_initializer=keras.initializers.GlorotUniform(seed=number))
        for number, (units, activation) in enumerate(((64, "relu"), (64, "relu"), (CLASSES, None)))
    ]
    model = keras.Sequential([keras.Input((size.features,)), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fits(size: Size, x: np.ndarray, y: np.ndarray, shuffle: bool) -> dict[str, Callable[..., Any]]:
    """For each contender a function of (model, fit's options) that makes the dataset, fits, and gives the history."""

    def stock(model: keras.Model, **options: Any) -> Any:
        return model.fit(x, y, batch_size=size.batch_size, shuffle=shuffle, **options)

    def by_hand(model: keras.Model, **options: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((x, y))
        if shuffle:
            dataset = dataset.shuffle(1000)
        dataset = dataset.batch(size.batch_size).prefetch(tf.data.AUTOTUNE)
        # Keras 3.15 warns of its own default shuffle=True beside a dataset.
        return model.fit(dataset, shuffle=False, **options)

    def turbo(model: keras.Model, **options: Any) -> Any:
        dataset = FastDataset(x, y, batch_size=size.batch_size, shuffle=shuffle, seed=0)
        return model.fit(dataset, shuffle=False, **options)

    def limit(model: keras.Model, **options: Any) -> Any:
        batch = (x[: size.batch_size], y[: size.batch_size])
        dataset = tf.data.Dataset.from_tensors(batch).repeat(size.steps)
        return model.fit(dataset, shuffle=False, **options)

    return {STOCK: stock, BY_HAND: by_hand, TURBO: turbo, LIMIT: limit}


def check_losses(size: Size) -> float:
    """Trains with each contender from the same weights on the same batches in the same order.

    Returns:
        The largest difference of an epoch's loss, relative.

    Raises:
        ResultsDifferError: it is above the tolerance.
    """
    x, y = arrays_of(size)
    losses = {
        name: np.array(fit(new_model(size), epochs=2, verbose=0).history["loss"])
        for name, fit in fits(size, x, y, shuffle=False).items()
        if name != LIMIT
    }
    largest = max(float(np.abs(loss / losses[STOCK] - 1).max()) for loss in losses.values())
    if not largest <= _LOSS_TOLERANCE:
        raise _measure.ResultsDifferError(f"Losses of {size} differ by {largest:.2g}: {losses}.")
    return largest


def measure(size: Size, rounds: int) -> dict[str, list[FitTimes]]:
    x, y = arrays_of(size)

    def contender(fit: Callable[..., Any]) -> Callable[[], FitTimes]:
        model = new_model(size)

        def run() -> FitTimes:
            before, stopwatch = int(model.optimizer.iterations), _measure.EpochSeconds()
            start = time.perf_counter()
            fit(model, epochs=EPOCHS, verbose=0, callbacks=[stopwatch])
            whole = time.perf_counter() - start
            steps = int(model.optimizer.iterations) - before
            if steps != EPOCHS * size.steps:
                raise _measure.ResultsDifferError(f"{steps} steps instead of {EPOCHS * size.steps}.")
            first, *later = stopwatch.seconds
            return FitTimes(first * 1e6 / size.steps, statistics.median(later) * 1e6 / size.steps, whole * 1e3)

        return run

    return _measure.in_turn({name: contender(fit) for name, fit in fits(size, x, y, shuffle=True).items()}, rounds)


def comparisons_of(size: Size, measured: dict[str, list[FitTimes]]) -> list[_measure.Comparison]:
    def comparison(what: str, unit: str, field: str) -> _measure.Comparison:
        values = {name: [getattr(times, field) for times in rounds] for name, rounds in measured.items()}
        return _measure.Comparison(
            f"{size}: {what}", unit, "lower", _measure.figures(values), stock=STOCK, limits=(LIMIT,)
        )

    return [
        comparison("first epoch", "µs a step", "first_us"),
        comparison("later epochs", "µs a step", "later_us"),
        comparison(f"the whole fit of {EPOCHS} epochs", "ms", "whole_ms"),
    ]


def main() -> None:
    options = _measure.parser(__doc__, "arrays", rounds=7).parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    comparisons, targets, largest = [], [], 0.0
    sizes = QUICK_SIZES if options.quick else SIZES
    for size in sizes:
        largest = max(largest, check_losses(size))
        first, later, whole = comparisons_of(size, measure(size, rounds))
        for comparison in (first, later, whole):
            comparison.print()
            comparisons.append(comparison)
            targets.append(
                _measure.Target(f"{comparison.title}, times stock", comparison.ratio(TURBO, STOCK), at_least=1)
            )
        if size in (PROMISED, QUICK_SIZES[-1]):
            targets.append(_measure.Target(f"{later.title}, times stock", later.ratio(TURBO, STOCK), at_least=1.3))
    checks = {
        "largest relative difference of losses without shuffling": float(f"{largest:.1e}"),
        "steps of every epoch equal": True,
    }
    settings = {"sizes": [dataclasses.asdict(size) for size in sizes], "epochs": EPOCHS, "rounds": rounds}
    _measure.finish(options, settings, comparisons, targets, checks)


if __name__ == "__main__":
    main()
