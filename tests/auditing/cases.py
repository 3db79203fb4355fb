"""Models and data of which it is known what a step waits for: they sleep."""

from __future__ import annotations

import time

import keras
import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 8, 3


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    return random.normal(size=(count, FEATURES)).astype("float32"), random.integers(0, CLASSES, count)


def _slept(x: tf.Tensor, seconds_per_row: float) -> tf.Tensor:
    def sleep(values: np.ndarray) -> np.ndarray:
        time.sleep(seconds_per_row * len(values))
        return values

    slept = tf.numpy_function(sleep, [x], x.dtype)
    return tf.ensure_shape(slept, x.shape)


def slow_input(batch_ms: float, *, batches: int = 12, batch_size: int = 4) -> tf.data.Dataset:
    """Batches that take a while each."""
    dataset = tf.data.Dataset.from_tensor_slices(examples(batches * batch_size)).batch(batch_size)
    return dataset.map(lambda x, y: (_slept(x, batch_ms / 1e3 / batch_size), y))


@keras.saving.register_keras_serializable(package="keras_turbo_tests")
class SlowLayer(keras.layers.Layer):
    """Takes a while for each example, as computing does."""

    def __init__(self, row_ms: float, **options: object) -> None:
        super().__init__(**options)
        self.row_ms = row_ms

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return _slept(x, self.row_ms / 1e3)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self) -> dict:
        return {**super().get_config(), "row_ms": self.row_ms}


class SlowCallback(keras.callbacks.Callback):
    """Takes a while at each batch."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.ms = ms
        self.calls: list[int] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.calls.append(batch)
        time.sleep(self.ms / 1e3)


def model(step_ms: float = 0.0, *, batch_size: int = 4, hidden: int = 4) -> keras.Model:
    slow = [SlowLayer(step_ms / batch_size)] if step_ms else []
    built = keras.Sequential([keras.Input([FEATURES]), *slow, keras.layers.Dense(hidden), keras.layers.Dense(CLASSES)])
    return compiled(built)


def compiled(built: keras.Model) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return built


def step_ms(fitted: keras.Model, data: object, *, epochs: int = 2) -> float:
    """Milliseconds a step of stock `fit` in the best epoch after the first, as anybody would measure them."""

    class Clock(keras.callbacks.Callback):
        needs_every_batch = False

        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            ends.append(time.perf_counter())

    each = []
    for _ in range(epochs):
        ends: list[float] = []
        fitted.fit(data, verbose=0, shuffle=False, callbacks=[Clock()])
        each.append((ends[-1] - ends[0]) / (len(ends) - 1) * 1e3)
    return min(each[1:])
