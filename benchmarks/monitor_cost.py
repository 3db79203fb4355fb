"""What monitoring costs: microseconds a step of GpuUtilization, and a batch of the input wait, in turn.

    python benchmarks/monitor_cost.py

- stock: `fit` without a callback; an iterator as it is.
- by hand: a callback that looks at the clock and asks psutil for the CPU's use; a clock zipped before and after the
  batches.
- keras_turbo: `GpuUtilization`; its input wait.

Each fit trains the same model on the same batches in the same order, and must reach the same losses.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import _measure
import keras
import numpy as np
import psutil
import tensorflow as tf

from keras_turbo import GpuUtilization
from keras_turbo.fit.input_wait import InputWait

STOCK = "stock"
BY_HAND = "by hand"
TURBO = "keras_turbo"

FEATURES = 32
BATCH = 64
# Half a per cent of a step of 10 ms; and what a batch may cost.
MOST_STEP_US = 50.0
MOST_BATCH_US = 20.0
# Relative. Threads that share a large product may split it one way or another, and so add in another order.
MOST_DIFFERENCE = 1e-5
# By its units, steps in an epoch and how often each round is run: a step that is nearly all dispatch, and one of about
# 10 ms, of which 50 microseconds are only seen if much is measured, in turns that are short.
SIZES = {"tiny model": (16, 1_200, 1), "model of about 10 ms": (1_700, 150, 6)}


class ClockAndPsutil(keras.callbacks.Callback):
    """What people write."""

    def __init__(self) -> None:
        super().__init__()
        self.step_seconds: list[float] = []
        self.cpu_percents: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begun_at = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.step_seconds.append(time.perf_counter() - self._begun_at)
        if batch % 50 == 0:
            self.cpu_percents.append(psutil.cpu_percent())


def new_model(units: int) -> keras.Model:
    kernels = [keras.initializers.GlorotUniform(seed=number) for number in range(3)]
    layers = [
        keras.layers.Dense(units, "relu", kernel_initializer=kernels[0]),
        keras.layers.Dense(units, "relu", kernel_initializer=kernels[1]),
        keras.layers.Dense(1, kernel_initializer=kernels[2]),
    ]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def fit_cost(units: int, steps: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    """Microseconds a step by contender, and the largest relative difference of a loss from stock's."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH * steps, FEATURES), dtype=np.float32)
    y = rng.standard_normal((BATCH * steps, 1), dtype=np.float32)
    callbacks: dict[str, Callable[[], list[keras.callbacks.Callback]]] = {
        STOCK: list,
        BY_HAND: lambda: [ClockAndPsutil()],
        TURBO: lambda: [GpuUtilization(warn_below=0)],
    }
    losses: dict[str, list[float]] = {name: [] for name in callbacks}

    def contender(name: str) -> Callable[[], float]:
        model = new_model(units)

        def run() -> float:
            stopwatch = _measure.EpochSeconds()
            history = model.fit(
                x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[*callbacks[name](), stopwatch]
            )
            losses[name] += history.history["loss"]
            return min(stopwatch.seconds) * 1e6 / steps

        return run

    measured = _measure.in_turn({name: contender(name) for name in callbacks}, rounds)
    expected = np.array(losses[STOCK])
    return measured, max(float(np.abs(np.array(one) / expected - 1).max()) for one in losses.values())


def batch_cost(batches: int, rounds: int) -> tuple[dict[str, list[float]], bool]:
    """Microseconds a batch by contender, and whether all gave the same batches."""
    seconds = tf.Variable(0.0, dtype=tf.float64)
    input_wait = InputWait()
    data = tf.data.Dataset.from_tensor_slices(np.arange(batches, dtype=np.float32)[:, None])

    def clock() -> tf.data.Dataset:
        return tf.data.Dataset.range(1).repeat().map(lambda _: tf.timestamp())

    def add(begin: tf.Tensor, batch: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        seconds.assign_add(end - begin)
        return batch

    makers = {
        STOCK: lambda: iter(data),
        BY_HAND: lambda: iter(tf.data.Dataset.zip((clock(), data, clock())).map(add)),
        TURBO: lambda: input_wait.timed(iter(data)),
    }

    @tf.function
    def total(iterator: tf.data.Iterator) -> tf.Tensor:
        result = tf.constant(0.0)
        for number in tf.range(batches):
            result += tf.reduce_sum(next(iterator)) * tf.cast(number % 7, tf.float32)
        return result

    totals: set[float] = set()

    def contender(name: str) -> Callable[[], float]:
        def run() -> float:
            iterator = makers[name]()
            begin = time.perf_counter()
            totals.add(float(total(iterator)))
            return (time.perf_counter() - begin) * 1e6 / batches

        return run

    measured = _measure.in_turn({name: contender(name) for name in makers}, rounds)
    return measured, len(totals) == 1


def cost_us(measured: dict[str, list[float]]) -> float:
    """What keras_turbo costs more than stock: the difference of the best rounds, which others disturbed least."""
    return max(0.0, min(measured[TURBO]) - min(measured[STOCK]))


def main() -> None:
    options = _measure.parser(__doc__, "monitor_cost", rounds=5).parse_args()
    _measure.hide_gpus()
    # That there is no GPU is no news here.
    warnings.filterwarnings("ignore", "GpuUtilization gives no figures of GPUs")
    rounds = _measure.num_rounds(options)
    batches = 200 if options.quick else 20_000
    comparisons, targets, largest = [], [], 0.0
    for title, (units, steps, repeats) in SIZES.items():
        sizes = (20, rounds) if options.quick else (steps, rounds * repeats)
        measured, difference = fit_cost(units, *sizes)
        largest = max(largest, difference)
        comparisons.append(
            _measure.Comparison(f"{title}", "µs a step", "lower", _measure.figures(measured), stock=STOCK)
        )
        targets.append(
            _measure.Target(f"{title}: µs a step for GpuUtilization", cost_us(measured), at_most=MOST_STEP_US)
        )
    measured, same = batch_cost(batches, rounds)
    comparisons.append(
        _measure.Comparison("batches read in a graph", "µs a batch", "lower", _measure.figures(measured), stock=STOCK)
    )
    targets.append(_measure.Target("µs a batch for the input wait", cost_us(measured), at_most=MOST_BATCH_US))
    if largest > MOST_DIFFERENCE or not same:
        raise _measure.ResultsDifferError(f"Losses differ by up to {largest:.2g}; the same batches: {same}.")
    for comparison in comparisons:
        comparison.print()
    checks = {"largest relative difference of losses": largest, "batches equal": same}
    settings = {"batches": batches, "units, steps, repeats": SIZES, "rounds": rounds}
    _measure.finish(options, settings, comparisons, targets, checks)


if __name__ == "__main__":
    main()
