"""Dtype policies: the time of a step by policy, what "auto" chose, the cost of the safe head, and accuracy."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import _measure
import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_turbo as kt

STOCK = "stock"
FLOAT16 = "by hand: mixed_float16"
BFLOAT16 = "by hand: mixed_bfloat16"
TURBO = "keras_turbo: auto"
FLOAT32_DENSE = "by hand: Dense(dtype=float32)"
SAFE_HEAD = "keras_turbo: MixedPrecisionSafeHead"
CLASSES = 10

# First losses of the same weights on the same batch. bfloat16 rounds to 8 bits.
_LOSS_TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model and the shape of its inputs."""

    name: str
    batch_size: int
    shape: tuple[int, ...]
    body: Callable[[Any], Any]

    def model(self, head: Callable[[], Any]) -> keras.Model:
        keras.utils.set_random_seed(0)
        inputs = keras.Input(self.shape)
        model = keras.Model(inputs, head()(self.body(inputs)), name=self.name)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.batch_size, *self.shape), dtype=np.float32)
        return x, rng.integers(0, CLASSES, self.batch_size).astype(np.int32)


def dense(units: int) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        for _ in range(4):
            x = layers.Dense(units, activation="relu")(x)
        return x

    return body


def convolutional(filters: int) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        for factor in (1, 2, 4):
            x = layers.Conv2D(filters * factor, 3, padding="same", strides=1 if factor == 1 else 2, use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
            x = layers.ReLU()(layers.Conv2D(filters * factor, 3, padding="same")(x))
        return layers.GlobalAveragePooling2D()(x)

    return body


def recurrent(units: int) -> Callable[[Any], Any]:
    return lambda x: layers.LSTM(units)(layers.LSTM(units, return_sequences=True)(x))


def attention(units: int) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        for _ in range(2):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, units // 4)(x, x))
            x = layers.LayerNormalization()(x + layers.Dense(units)(layers.Dense(4 * units, activation="relu")(x)))
        return layers.GlobalAveragePooling1D()(x)

    return body


WORKLOADS = (
    Workload("dense", 128, (1024,), dense(1024)),
    Workload("convolutional", 32, (32, 32, 3), convolutional(32)),
    Workload("recurrent", 32, (32, 64), recurrent(128)),
    Workload("attention", 16, (64, 128), attention(128)),
)
QUICK_WORKLOADS = (
    Workload("dense", 8, (16,), dense(16)),
    Workload("recurrent", 4, (4, 8), recurrent(8)),
)


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    with kt.use_mixed_precision(name, verbose=False):
        yield


def plain_head() -> Any:
    return layers.Dense(CLASSES)


def models_by_policy(workload: Workload, auto: str) -> dict[str, keras.Model]:
    """The same weights under each policy, by hand with a float32 head as Keras' guide says."""
    found = {}
    for contender, name in ((STOCK, "float32"), (FLOAT16, "mixed_float16"), (BFLOAT16, "mixed_bfloat16")):
        with policy(name):
            found[contender] = workload.model(lambda: layers.Dense(CLASSES, dtype="float32"))
    with policy(auto):
        found[TURBO] = workload.model(plain_head)
        with kt.precision.silence_warnings():
            kt.make_precision_safe(found[TURBO], verbose=False)
    return found


def first_losses(models: dict[str, keras.Model], workload: Workload) -> float:
    """The largest relative difference from float32's of the first losses.

    Raises:
        ResultsDifferError: it is above the tolerance.
    """
    x, y = workload.batch()
    losses = {name: model.evaluate(x, y, batch_size=len(x), verbose=0) for name, model in models.items()}
    largest = max(abs(loss / losses[STOCK] - 1) for loss in losses.values())
    if not largest <= _LOSS_TOLERANCE:
        raise _measure.ResultsDifferError(
            f"First losses of the {workload.name} model differ by {largest:.2g}: {losses}."
        )
    return largest


class StepSeconds(keras.callbacks.Callback):
    """Times the steps of a fit."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begun_at = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.seconds.append(time.perf_counter() - self._begun_at)


def step_ms(model: keras.Model, workload: Workload, steps: int) -> Callable[[], float]:
    """A function that gives the milliseconds of a step inside fit: the fastest of some, as others' work only adds."""
    # The same batch again: what feeds the model is not measured.
    dataset = tf.data.Dataset.from_tensors(workload.batch()).repeat(steps)
    stopwatch = StepSeconds()

    def measure() -> float:
        model.fit(dataset, verbose=0, shuffle=False, callbacks=[stopwatch])
        return min(stopwatch.seconds) * 1e3

    return measure


def compare(title: str, models: dict[str, keras.Model], workload: Workload, options: Any) -> _measure.Comparison:
    runs = {name: step_ms(model, workload, 3 if options.quick else 20) for name, model in models.items()}
    measured = _measure.in_turn(runs, _measure.num_rounds(options))
    comparison = _measure.Comparison(title, "ms a step", "lower", _measure.figures(measured), stock=STOCK)
    comparison.print()
    return comparison


def head_models(workload: Workload, auto: str) -> dict[str, keras.Model]:
    heads = {
        STOCK: plain_head,
        FLOAT32_DENSE: lambda: layers.Dense(CLASSES, dtype="float32"),
        SAFE_HEAD: lambda: kt.MixedPrecisionSafeHead(CLASSES),
    }
    with policy(auto):
        return {name: workload.model(head) for name, head in heads.items()}


def digit_accuracy(name: str, seed: int, epochs: int) -> float:
    """Percent of held-out digits that a small conv net tells after training under a policy, made safe."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    x, y = (digits.images / 16).astype("float32")[order, ..., None], digits.target[order]
    with policy(name):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(CLASSES, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        with kt.precision.silence_warnings():
            kt.make_precision_safe(model, verbose=False)
        model.fit(x[:-360], y[:-360], batch_size=32, epochs=epochs, verbose=0)
        return 100 * model.evaluate(x[-360:], y[-360:], verbose=0)[1]


def compare_accuracy(options: Any) -> _measure.Comparison:
    names = {
        STOCK: "float32",
        "by hand: float16, safe": "mixed_float16",
        "keras_turbo: bfloat16, safe": "mixed_bfloat16",
    }
    seeds, epochs = _measure.num_rounds(options), 1 if options.quick else 15
    measured = {
        contender: [digit_accuracy(name, seed, epochs) for seed in range(seeds)] for contender, name in names.items()
    }
    comparison = _measure.Comparison(
        f"Held-out digits told after {epochs} epochs", "percent", "higher", _measure.figures(measured), stock=STOCK
    )
    comparison.print()
    return comparison


def main() -> None:
    options = _measure.parser(__doc__, "mixed_precision", rounds=7).parse_args()
    _measure.hide_gpus()
    with kt.use_mixed_precision() as choice:
        auto, reason = choice
    comparisons, targets, largest = [], [], 0.0
    workloads = QUICK_WORKLOADS if options.quick else WORKLOADS
    for workload in workloads:
        models = models_by_policy(workload, auto)
        largest = max(largest, first_losses(models, workload))
        comparison = compare(f"By policy: {workload.name} model", models, workload, options)
        comparisons.append(comparison)
        times = f"{workload.name} model: {TURBO} ({auto}), times float32"
        targets.append(_measure.Target(times, comparison.ratio(TURBO, STOCK), at_least=0.95))
        fastest = max((STOCK, FLOAT16, BFLOAT16), key=lambda name: comparison.ratio(name, STOCK))
        console_line = f"Fastest policy by hand for the {workload.name} model: {fastest}; auto chose {auto}."
        _measure.console.print(console_line, soft_wrap=True)
    for workload in workloads[:2]:
        comparison = compare(
            f"Heads of the {workload.name} model, {auto}", head_models(workload, auto), workload, options
        )
        comparisons.append(comparison)
        cost = 1 / comparison.ratio(SAFE_HEAD, STOCK)
        targets.append(
            _measure.Target(f"{workload.name} model: a step with the safe head, times Dense", cost, at_most=1.1)
        )
    accuracy = compare_accuracy(options)
    comparisons.append(accuracy)
    float32 = np.mean(accuracy.figures[STOCK].rounds)
    for name, figure in accuracy.figures.items():
        if name != STOCK:
            lost = float(float32 - np.mean(figure.rounds))
            targets.append(_measure.Target(f"digits: points below float32, {name}", lost, at_most=0.3))
    _measure.console.print("No GPU was used: these are times of the processor alone.")
    checks = {"largest relative difference of first losses from float32's": float(f"{largest:.1e}")}
    settings = {
        "workloads": [{"name": one.name, "batch_size": one.batch_size, "shape": one.shape} for one in workloads],
        "auto": auto,
        "reason": reason,
        "rounds": _measure.num_rounds(options),
    }
    _measure.finish(options, settings, comparisons, targets, checks)


if __name__ == "__main__":
    main()
