"""One training step of a model under another dtype policy, from the same weights, with what each layer gave."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.fit.train_function import functions_set_aside
from keras_turbo.fit.training_state import KeptValues
from keras_turbo.layers import MixedPrecisionSafeHead
from keras_turbo.precision.float32_operation import Float32Operation
from keras_turbo.precision.fragile_layers import half_layers
from keras_turbo.precision.layer_calls import all_layers, recorded_calls

# Where Keras' own loss scaling begins.
_FIRST_SCALE = 2.0**15

# Attributes of Keras' layers that say how much they change at random: of Dropout and its kin, noise, recurrent layers.
_RANDOM_RATES = ("rate", "stddev", "dropout", "recurrent_dropout")

_FLOATS = ("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class PolicyRun:
    """What a step gave.

    Attributes:
        loss: unscaled.
        outputs: of each layer by `id`, in float32; of several calls one after another.
        gradients: of each trainable variable by `id`, unscaled, in float32; without those that have none.
        loss_scale: the largest power of two up to 2**15 at which no gradient overflowed; 1 where none is needed, or
            where they overflow at any.
        timed_step: runs the step once more, without recording.
        peak_memory_mb: of the GPU; None where there is none.
    """

    loss: float
    outputs: dict[int, np.ndarray]
    gradients: dict[int, np.ndarray]
    loss_scale: float
    timed_step: Callable[[], None]
    peak_memory_mb: float | None

    def step_ms(self) -> float:
        """Times one step, in milliseconds."""
        begun_at = time.perf_counter()
        self.timed_step()
        return (time.perf_counter() - begun_at) * 1e3


@contextlib.contextmanager
def unchanged(model: keras.Model) -> Iterator[Callable[[], None]]:
    """Puts the policies, the state that is not trained and the random seeds of a model back at the end.

    Meanwhile dropout and noise are off: half precision draws other random numbers from the same seed, so that policies
    would be compared under other masks.

    Args:
        model: whose steps are tried.

    Yields:
        A function that puts state and seeds back at any time.
    """
    layers = [model, *all_layers(model)]
    policies = [layer.dtype_policy for layer in layers]
    seeds = [one.state for layer in layers for one in layer._seed_generators]
    kept = KeptValues([*model.non_trainable_variables, *seeds])
    rates = [
        (layer, name, layer.__dict__[name])
        for layer in layers
        for name in _RANDOM_RATES
        if isinstance(layer.__dict__.get(name), float) and layer._seed_generators
    ]

    for layer, name, _ in rates:
        setattr(layer, name, 0.0)
    try:
        with functions_set_aside(model):
            yield kept.restore
    finally:
        for layer, name, value in rates:
            setattr(layer, name, value)
        kept.restore()
        for layer, policy in zip(layers, policies, strict=True):
            _set(layer, policy)
        for metric in model.metrics:
            metric.reset_state()


def set_policy(model: keras.Model, layers: list[Any], policy: str) -> None:
    """Sets the policy of some layers of a model, and of the model itself.

    Args:
        model: any.
        layers: of it.
        policy: its name.
    """
    for layer in (model, *layers):
        _set(layer, keras.DTypePolicy(policy))


def layers_to_vary(model: keras.Model) -> list[Any]:
    """The layers that would take the global policy.

    Args:
        model: any.

    Returns:
        Where some compute in half precision, these: the others were given float32 by intention. Else all that can.
    """
    able = [
        layer
        for layer in all_layers(model)
        if layer.dtype_policy.name in _FLOATS and not isinstance(layer, MixedPrecisionSafeHead | Float32Operation)
    ]
    half = half_layers(model)
    return half or able


def run_policy(model: keras.Model, batch: tuple[Any, Any, Any]) -> PolicyRun:
    """Runs one step under the policies that the layers have now; no weight is changed.

    Args:
        model: compiled with a loss.
        batch: inputs, targets and sample weights, the last two possibly None.

    Returns:
        What it gave.
    """
    x, y, sample_weight = batch
    scale = tf.Variable(tf.constant(1.0))
    layers: list[Any] = []

    def loss_and_gradients() -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
            computed: Any = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
            loss = tf.cast(computed, tf.float32)
            scaled = loss * scale
        gradients = tape.gradient(scaled, model.trainable_variables)
        return loss, [None if one is None else tf.cast(tf.convert_to_tensor(one), tf.float32) for one in gradients]

    def recorded() -> tuple[Any, list[Any], list[list[Any]]]:
        with recorded_calls(model) as calls:
            loss, gradients = loss_and_gradients()
        layers[:] = [call.layer for call in calls]
        # What is inside a loop's own graph, such as a recurrent cell, can't leave it.
        here = loss.graph
        outputs = [[one for one in call.outputs if one.graph is here and one.dtype.is_floating] for call in calls]
        return loss, gradients, tf.nest.map_structure(lambda one: tf.cast(one, tf.float32), outputs)

    recorded_step = tf.function(recorded, autograph=False)
    scale.assign(_FIRST_SCALE if any(layer.compute_dtype == "float16" for layer in half_layers(model)) else 1.0)
    while True:
        loss, gradients, outputs = recorded_step()
        is_finite = all(bool(tf.reduce_all(tf.math.is_finite(one))) for one in gradients if one is not None)
        if is_finite or float(scale) <= 1:
            break
        scale.assign(scale / 2)

    plain_step = tf.function(loss_and_gradients, autograph=False, jit_compile=bool(model.jit_compile))

    def timed_step() -> None:
        plain_step()[0].numpy()

    found: dict[int, list[np.ndarray]] = {}
    for layer, tensors in zip(layers, outputs, strict=True):
        found.setdefault(id(layer), []).extend(one.numpy().ravel() for one in tensors)
    return PolicyRun(
        loss=float(loss),
        outputs={key: np.concatenate(values) for key, values in found.items() if values},
        gradients={
            id(variable): one.numpy() / float(scale)
            for variable, one in zip(model.trainable_variables, gradients, strict=True)
            if one is not None
        },
        loss_scale=float(scale),
        timed_step=timed_step,
        peak_memory_mb=_peak_memory_mb(timed_step),
    )


def _peak_memory_mb(step: Callable[[], None]) -> float | None:
    step()  # traced
    if not tf.config.list_logical_devices("GPU"):
        return None
    tf.config.experimental.reset_memory_stats("GPU:0")
    step()
    return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20


def _set(layer: Any, policy: Any) -> None:
    # MixedPrecisionSafeHead takes float32 alone, which it has.
    if layer.dtype_policy != policy:
        layer.dtype_policy = policy
