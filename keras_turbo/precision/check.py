"""What is likely to go wrong with a model in half precision, said before it does."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.precision.compiled_settings import compiled_settings, only_loss, takes_logits
from keras_turbo.precision.fragile_layers import half_layers, is_recurrent
from keras_turbo.precision.layer_calls import ModelTrace, layer_paths, trace
from keras_turbo.precision.warn_once import warn_once

_LARGEST_FLOAT16 = 65504.0

# Tensor Cores multiply blocks whose sides are multiples of 8 half-precision numbers: NVIDIA, "Train With Mixed
# Precision".
_BLOCK = 8

# A longer list tells nobody more.
_MOST_NAMED = 5


def check_precision(model: keras.Model) -> None:
    """Warns of what is likely to cost a model accuracy or speed in half precision, once of each for each model.

    `make_precision_safe` calls it for a compiled model, so that what it has put right is not warned of. It looks for

    - recurrent layers in float16;
    - outputs of a softmax in half precision, under a loss with `from_logits=False`;
    - constants below -65,504, such as the -1e9 of a mask, in float16: they are minus infinity there;
    - sizes of layers that are no multiples of 8;
    - a `train_step` that does not scale its loss under an optimizer that divides by the loss scale, whatever the layers
      compute in; and float16 without loss scaling.

    Args:
        model: a built model.

    Raises:
        ValueError: it is not built.

    Note:
        `keras_turbo.precision.silence_warnings()` turns all of them off.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a Keras model. Received: {model!r} (of type {type(model).__name__}).")
    half = half_layers(model)
    traced = _traced(model) if half else None
    for kind, find in _CHECKS.items():
        message = find(model, half, traced)
        if message:
            warn_once(model, kind, f"Model {model.name!r}: {message}")


def _traced(model: keras.Model) -> ModelTrace | None:
    try:
        return trace(model)
    except ValueError:
        # Without knowing how the model can be called, what needs a call is not checked.
        if not model.built:
            raise
        return None


def _recurrent(model: keras.Model, half: list[Any], _: ModelTrace | None) -> str | None:
    found = [one for one in half if is_recurrent(one) and one.compute_dtype == "float16"]
    # The cells and directions inside recurrent layers are meant with them.
    inner = {id(below) for one in found for below in one._flatten_layers(include_self=False)}
    found = [one for one in found if id(one) not in inner]
    if not found:
        return None
    return (
        f"recurrent layers compute in float16: {_named(model, found)}. Rounding errors add up over time steps, and "
        "long sequences suffer most. Compare the validation loss with a float32 run, or ask "
        "keras_turbo.precision.precision_report(model, data); mixed_bfloat16 can't overflow, and `layer.dtype_policy "
        "= 'float32'` keeps one layer."
    )


def _softmax_output(model: keras.Model, _: list[Any], traced: ModelTrace | None) -> str | None:
    if (
        traced is None
        or not model.compiled
        or takes_logits(only_loss(compiled_settings(model).get("loss"))) is not False
    ):
        return None
    for output in traced.outputs:
        is_softmax = any(
            type(call.layer).__name__ == "Softmax"
            or getattr(getattr(call.layer, "activation", None), "__name__", "") == "softmax"
            for call in traced.producers(output)
        )
        if is_softmax and output.dtype in (tf.float16, tf.bfloat16):
            return (
                f"its output is a softmax in {output.dtype.name}, under a loss with from_logits=False: probabilities "
                "round to 0, whose logarithm is lost. Call keras_turbo.make_precision_safe(model) or "
                "keras_turbo.precision.replace_head(model)."
            )
    return None


def _large_constants(_: keras.Model, __: list[Any], traced: ModelTrace | None) -> str | None:
    names = [] if traced is None else sorted(set(_float16_infinities(traced.graph)))
    if not names:
        return None
    return (
        f"constants below -65504 are minus infinity in float16, as -1e9 is: {', '.join(names[:_MOST_NAMED])}. 0 times "
        "infinity, and a softmax over nothing but it, are NaN. Mask with -3e4, or compute the scores in float32."
    )


def _sizes(_: keras.Model, half: list[Any], __: ModelTrace | None) -> str | None:
    found = []
    for layer in half:
        size = getattr(layer, "units", None) or getattr(layer, "filters", None)
        # A cell inside a recurrent layer has the size of that.
        is_cell = hasattr(layer, "state_size") and not isinstance(layer, keras.layers.RNN)
        if isinstance(size, int) and size % _BLOCK and not is_cell:
            found.append((layer, size))
    if not found:
        return None
    sizes = ", ".join(f"{layer.name} ({size})" for layer, size in found[:_MOST_NAMED])
    return (
        f"{len(found)} half-precision layers have sizes that are no multiples of {_BLOCK}: {sizes}. Tensor Cores "
        f"multiply blocks of {_BLOCK}; round the sizes up."
    )


def _train_step(model: keras.Model, half: list[Any], _: ModelTrace | None) -> str | None:
    if not model.compiled or model.optimizer is None:
        return None
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    is_float16 = any(one.compute_dtype == "float16" for one in half)
    if is_float16 and not scales and model.optimizer.loss_scale_factor is None:
        return (
            "it computes in float16 and its loss is not scaled, so that gradients below 6e-8 are lost. Compile it with "
            "keras_turbo.precision.SafeLossScaleOptimizer(optimizer)."
        )
    own = [cls for cls in type(model).__mro__ if not cls.__module__.startswith("keras.")]
    own_step = next((vars(cls)["train_step"] for cls in own if "train_step" in vars(cls)), None)
    if own_step is None or not scales:
        return None
    names = {name for cls in own for one in vars(cls).values() for name in _names(one)}
    calls_keras = "train_step" in set(_names(own_step))
    if "scale_loss" in names or calls_keras:
        return None
    return (
        f"the train_step of {type(model).__name__} never scales its loss, yet its optimizer divides gradients by the "
        "loss scale: the model would hardly learn. Take gradients of `self.optimizer.scale_loss(loss)`."
    )


_CHECKS: dict[str, Callable[[keras.Model, list[Any], ModelTrace | None], str | None]] = {
    "recurrent": _recurrent,
    "softmax output": _softmax_output,
    "large constant": _large_constants,
    "sizes": _sizes,
    "train step": _train_step,
}


def _named(model: keras.Model, layers: list[Any]) -> str:
    paths = layer_paths(model)
    names = [paths.get(id(layer), str(layer.name)) for layer in layers[:_MOST_NAMED]]
    return ", ".join(names) + (" and others" if len(layers) > _MOST_NAMED else "")


def _names(function: Any) -> Iterator[str]:
    code = getattr(function, "__code__", None)
    waiting = [code] if code is not None else []
    while waiting:
        one = waiting.pop()
        yield from one.co_names
        waiting += [const for const in one.co_consts if isinstance(const, types.CodeType)]


def _float16_infinities(graph: Any) -> Iterator[str]:
    definition = graph.as_graph_def()
    half = tf.float16.as_datatype_enum
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        too_large = {}
        for node in nodes:
            if node.op == "Const" and node.attr["dtype"].type in (half, tf.float32.as_datatype_enum):
                value = np.min(tf.make_ndarray(node.attr["value"].tensor), initial=0.0)
                if value < -_LARGEST_FLOAT16:
                    too_large[node.name] = node.attr["dtype"].type
        yield from (name for name, dtype in too_large.items() if dtype == half)
        for node in nodes:
            # In the graph of a function inside another, tensors are called "node:output:0".
            source = node.input[0].partition(":")[0] if node.input else ""
            if node.op == "Cast" and node.attr["DstT"].type == half and source in too_large:
                yield node.name
