"""Small models of many kinds, the data to train them on, and their states as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.fit.training_state import ModelState, find_state, is_variable
from keras_turbo.precision.loss_scaling import SafeLossScaleOptimizer

FEATURES, CLASSES, STEPS = 8, 3, 4
L = keras.layers


def batches(steps: int = STEPS) -> tf.data.Dataset:
    """So many batches of 4 examples, in the same order each time."""
    random = np.random.default_rng(7)
    x = random.normal(size=(steps * 4, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, np.argmax(x[:, :CLASSES], axis=1))).batch(4)


def train(model: keras.Model, steps: int = STEPS) -> None:
    model.fit(batches(steps), shuffle=False, verbose=0)


def compiled(model: keras.Model, optimizer: Any = "adam", **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **{"metrics": ["accuracy"], "jit_compile": False, **options})
    return model


def sequential(*layers: keras.Layer) -> keras.Sequential:
    return keras.Sequential([keras.Input([FEATURES]), *layers, L.Dense(CLASSES)])


def dense() -> keras.Model:
    return compiled(sequential(L.Dense(6)))


def with_random_layers() -> keras.Model:
    return compiled(sequential(L.Dense(6), L.BatchNormalization(), L.Dropout(0.5), L.GaussianNoise(0.1)))


def with_augmentation() -> keras.Model:
    layers = [L.Reshape((2, 2, 2)), L.RandomFlip(), L.RandomTranslation(0.5, 0.5), L.Conv2D(3, 1), L.Flatten()]
    return compiled(sequential(*layers))


def with_normalization() -> keras.Model:
    normalization = L.Normalization()
    normalization.adapt(np.random.default_rng(3).normal(2.0, 3.0, (50, FEATURES)))
    return compiled(sequential(normalization, L.LayerNormalization()))


def recurrent() -> keras.Model:
    return compiled(sequential(L.Reshape((4, 2)), L.LSTM(3, recurrent_dropout=0.3), L.Dense(4)))


def with_embedding() -> keras.Model:
    layers = [L.Discretization(bin_boundaries=[-1.0, 0.0, 1.0]), L.Embedding(4, 5), L.Flatten()]
    return compiled(sequential(*layers))


def nested_and_shared() -> keras.Model:
    inputs = keras.Input([FEATURES])
    block = keras.Sequential([keras.Input([FEATURES]), L.Dense(FEATURES), L.Dropout(0.2)])
    shared = L.Dense(5)
    outputs = L.Dense(CLASSES)(L.Add()([shared(block(inputs)), shared(inputs)]))
    return compiled(keras.Model(inputs, outputs))


class Subclassed(keras.Model):
    """Holds layers in containers, and state of every kind that Keras and TensorFlow know."""

    def __init__(self) -> None:
        super().__init__()
        self.first = L.Dense(6)
        self.blocks = [L.Dense(5), [L.Dense(4)], {"drop": L.Dropout(0.3)}]
        self.seeds = keras.random.SeedGenerator(5)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.calls = tf.Variable(0.0, trainable=False)
        self.noise = tf.random.Generator.from_seed(3)
        self.seen = keras.metrics.Mean(name="seen")
        self.last = L.Dense(CLASSES)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.first(x)
        if training:
            self.calls.assign_add(1.0)
            self.seen.update_state(tf.reduce_mean(x))
            x += self.noise.normal(tf.shape(x)) * 0.1 + keras.random.normal((), seed=self.seeds) * 0.1
        x = self.blocks[2]["drop"](self.blocks[1][0](self.blocks[0](x)), training=training)
        return self.last(x) * self.scale


def subclassed() -> keras.Model:
    model = compiled(Subclassed())
    model(np.zeros((1, FEATURES), "float32"))
    return model


def with_schedule() -> keras.Model:
    return compiled(dense(), keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 20)))


def averaging() -> keras.Model:
    return compiled(dense(), keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3))


def accumulating() -> keras.Model:
    # The last batch of an epoch is in the middle of an accumulation.
    return compiled(dense(), keras.optimizers.Adam(gradient_accumulation_steps=3))


def loss_scaled() -> keras.Model:
    inner = keras.optimizers.Adam(use_ema=True)
    return compiled(dense(), keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=3))


def safely_loss_scaled() -> keras.Model:
    inner = keras.optimizers.Adam(gradient_accumulation_steps=2)
    return compiled(dense(), SafeLossScaleOptimizer(inner, initial_scale=2.0**20, dynamic_growth_steps=3))


def of_bfloat16() -> keras.Model:
    return compiled(sequential(L.Dense(6, dtype="bfloat16"), L.Dense(6, dtype="mixed_bfloat16")))


def of_mixed_float16() -> keras.Model:
    return compiled(sequential(L.Dense(6, dtype="mixed_float16"), L.Dropout(0.5, dtype="mixed_float16")))


def under_xla() -> keras.Model:
    return compiled(with_random_layers(), jit_compile=True)


KINDS: dict[str, Callable[[], keras.Model]] = {
    made.__name__: made
    for made in (
        dense,
        with_random_layers,
        with_augmentation,
        with_normalization,
        recurrent,
        with_embedding,
        nested_and_shared,
        subclassed,
        with_schedule,
        averaging,
        accumulating,
        loss_scaled,
        safely_loss_scaled,
        of_bfloat16,
        of_mixed_float16,
        under_xla,
    )
}


def arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies of what variables hold, as a checkpoint would keep them."""
    return {path: value.numpy() if is_variable(value) else np.array(value) for path, value in values.items()}


def state_arrays(model: keras.Model) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    state: ModelState = find_state(model)
    return arrays(state.weights), arrays(state.extra)


def differing(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> list[str]:
    """Paths whose values are not equal to the bit, or that are in one only."""
    return sorted(
        path
        for path in one.keys() | other.keys()
        if path not in one
        or path not in other
        or one[path].dtype != other[path].dtype
        or one[path].shape != other[path].shape
        or one[path].tobytes() != other[path].tobytes()
    )
