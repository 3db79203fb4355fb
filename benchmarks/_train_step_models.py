"""The models of train_step.py, for every backend of Keras, and a fit that starts from the same weights each time."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from _epoch_seconds import EpochSeconds
from keras import layers

CLASSES = 10
# Of the mean loss of each epoch, as a share of the first epoch's (later ones may come near 0). All add up the same
# numbers; XLA, JAX and PyTorch do it in other orders, and hundreds of steps of Adam enlarge that. PyTorch's Adam also
# adds its epsilon elsewhere.
LOSS_TOLERANCE = 2e-3


@dataclasses.dataclass(frozen=True)
class Problem:
    """A model and how much it is trained on.

    Attributes:
        title: what it is, for people.
        build: makes the model.
        input_shape: of one example.
        batch_size: examples a step.
        steps: an epoch has.
        tokens: inputs are integers below this; 0 for normally distributed floats.
        elsewhere_tolerance: by how much losses in other frameworks may differ, as a share of the first epoch's.
    """

    title: str
    build: Callable[[tuple[int, ...]], keras.Model]
    input_shape: tuple[int, ...]
    batch_size: int
    steps: int
    tokens: int = 0
    elsewhere_tolerance: float = LOSS_TOLERANCE

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        shape = (self.steps * self.batch_size, *self.input_shape)
        if self.tokens:
            x = rng.integers(0, self.tokens, shape, dtype=np.int32)
        else:
            x = rng.standard_normal(shape, dtype=np.float32)
        return x, rng.integers(0, CLASSES, len(x), dtype=np.int32)


def small_mlp(input_shape: tuple[int, ...]) -> keras.Model:
    hidden = [layers.Dense(64, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input(input_shape), *hidden, layers.Dense(CLASSES)])


def middle_mlp(input_shape: tuple[int, ...]) -> keras.Model:
    hidden = [layers.Dense(1024, activation="gelu") for _ in range(4)]
    return keras.Sequential([keras.Input(input_shape), *hidden, layers.Dense(CLASSES)])


def conv_net(input_shape: tuple[int, ...]) -> keras.Model:
    model = keras.Sequential([keras.Input(input_shape)])
    for filters in (32, 64, 128):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(CLASSES))
    return model


def transformer(input_shape: tuple[int, ...]) -> keras.Model:
    inputs = keras.Input(input_shape, dtype="int32")
    hidden = layers.Embedding(1000, 64)(inputs)
    for _ in range(2):
        hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(4, 16)(hidden, hidden))
        wide = layers.Dense(128, activation="gelu")(hidden)
        hidden = layers.LayerNormalization()(hidden + layers.Dense(64)(wide))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(hidden)))


def lstm(input_shape: tuple[int, ...]) -> keras.Model:
    return keras.Sequential([keras.Input(input_shape), layers.LSTM(64), layers.Dense(CLASSES)])


PROBLEMS = {
    "small_mlp": Problem("MLP 32-64-64-10, batch 64", small_mlp, (32,), 64, 600),
    "middle_mlp": Problem("MLP 4x1024, batch 64", middle_mlp, (1024,), 64, 50),
    "conv_net": Problem("conv net 64x64, batch 64", conv_net, (64, 64, 3), 64, 10),
    # On TensorFlow, Keras' Adam squares each part of an embedding row's gradient before it adds up what the batch gives
    # for the row, elsewhere after, so that losses agree less well from one framework to another.
    "transformer": Problem(
        "transformer, 2 layers of 64, 32 tokens, batch 32", transformer, (32,), 32, 100, 1000, elsewhere_tolerance=0.02
    ),
    "lstm": Problem("LSTM 64, 32 time steps, batch 32", lstm, (32, 16), 32, 100),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What one racer did in one round.

    Attributes:
        losses: mean loss of each epoch.
        step_us: microseconds a step in the epochs after the first, their median.
    """

    losses: tuple[float, ...]
    step_us: float


def run_of(losses: list[float], epoch_seconds: list[float], steps: int) -> Run:
    return Run(tuple(losses), statistics.median(epoch_seconds[1:]) * 1e6 / steps)


def new_model(problem: Problem, weights: list[np.ndarray] | None = None, **compile_options: Any) -> keras.Model:
    """A compiled model with a built optimizer, from a seed or from given weights."""
    keras.utils.set_random_seed(0)
    model = problem.build(problem.input_shape)
    if weights is not None:
        model.set_weights(weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **compile_options)
    model.optimizer.build(model.trainable_variables)
    return model


class Restart:
    """Puts weights and optimizer back to where they were, so that each round does the same work."""

    def __init__(self, model: keras.Model) -> None:
        self._variables = [*model.variables, *model.optimizer.variables]
        self._values = [keras.ops.convert_to_numpy(variable).copy() for variable in self._variables]

    def __call__(self) -> None:
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


def fit_racer(model: keras.Model, problem: Problem, epochs: int, *data: Any, **fit_options: Any) -> Callable[[], Run]:
    """A function that fits from the model's present weights, each time the same, and times it."""
    restart = Restart(model)

    def run() -> Run:
        restart()
        clock = EpochSeconds()
        history = model.fit(*data, epochs=epochs, shuffle=False, verbose=0, callbacks=[clock], **fit_options)
        return run_of(history.history["loss"], clock.seconds, problem.steps)

    return run
