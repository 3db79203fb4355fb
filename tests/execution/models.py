"""Small models and data for the tests of execution."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 8, 3


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of shape (count, 8) and the class that depends on them."""
    random = np.random.default_rng(7)
    x = random.normal(size=(count, FEATURES)).astype("float32")
    return x, np.argmax(x[:, :CLASSES], axis=1)


def batches(count: int, batch_size: int = 4) -> tf.data.Dataset:
    """So many examples in batches, shuffled with a seed."""
    return tf.data.Dataset.from_tensor_slices(examples(count)).shuffle(count, seed=5).batch(batch_size)


def compiled(model: keras.Model, optimizer: str | keras.Optimizer = "adam", **options: object) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"metrics": ["accuracy"], "jit_compile": False, **options}
    model.compile(optimizer, loss, **options)
    return model


def plain() -> keras.Model:
    return compiled(keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(CLASSES)]))


def unbuilt() -> keras.Model:
    return compiled(keras.Sequential([keras.layers.Dense(5, activation="relu"), keras.layers.Dense(CLASSES)]))


def normalized() -> keras.Model:
    # No bias before the normalization: its gradient is nothing but rounding, which Adam makes whole steps of.
    first = keras.layers.Dense(6, use_bias=False)
    layers = [first, keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Dense(CLASSES)]
    return compiled(keras.Sequential([keras.Input([FEATURES]), *layers]))


def dropped() -> keras.Model:
    layers = [keras.layers.Dense(6), keras.layers.Dropout(0.5, seed=3), keras.layers.Dense(CLASSES)]
    return compiled(keras.Sequential([keras.Input([FEATURES]), *layers]))


def accumulating() -> keras.Model:
    return compiled(plain(), keras.optimizers.Adam(gradient_accumulation_steps=2))


def averaging() -> keras.Model:
    return compiled(plain(), keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3))


def loss_scaling() -> keras.Model:
    return compiled(plain(), keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), dynamic_growth_steps=3))


@keras.saving.register_keras_serializable(package="keras_turbo_tests")
class OwnTrainStep(keras.Model):
    """A model with a train step and a metric of its own."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.dense = keras.layers.Dense(CLASSES)
        self.mean_square = keras.metrics.Mean(name="mean_square")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.dense(x)

    @property
    def metrics(self) -> list:
        return [self.mean_square]

    def train_step(self, data: tuple) -> dict:
        x, y = data
        with tf.GradientTape() as tape:
            square = tf.reduce_mean((self(x, training=True) - tf.one_hot(y, CLASSES)) ** 2)
        self.optimizer.apply_gradients(
            zip(tape.gradient(square, self.trainable_variables), self.trainable_variables, strict=True)
        )
        self.mean_square.update_state(square)
        return {"mean_square": self.mean_square.result(), "last_square": square}


def own_train_step() -> keras.Model:
    return compiled(OwnTrainStep())


MODELS: dict[str, Callable[[], keras.Model]] = {
    function.__name__: function
    for function in (
        plain,
        unbuilt,
        normalized,
        dropped,
        accumulating,
        averaging,
        loss_scaling,
        own_train_step,
    )
}
