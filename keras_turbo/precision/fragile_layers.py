"""Which layers lose accuracy, or overflow, when they compute in half precision, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

from keras_turbo.precision.layer_calls import LayerCall, all_layers

# A float16 sum of 256 values below 256 stays below 65,504, the largest float16; a mean is a sum that is then divided.
# Of more values, sums overflow for usual activations, and in bfloat16, with 8 bits, they stop growing after 256 equal
# terms.
LARGE_REDUCTION = 256

_HALF = ("float16", "bfloat16")

# Names of functions in keras.activations. Their exponentials overflow above 11 in float16, or they round to 0 and 1
# where a loss takes the logarithm.
_FRAGILE_ACTIVATIONS = ("softmax", "log_softmax", "sigmoid", "log_sigmoid", "exponential", "sparsemax")

_FRAGILE_OPERATIONS = (
    *("Softmax", "LogSoftmax", "Sigmoid", "LogSigmoid", "Exp", "Sparsemax", "Logsumexp"),
    *("BatchNorm", "LayerNorm", "RMSNorm", "Normalize", "Norm", "Moments", "Var", "Std"),
)
_REDUCTIONS = ("Mean", "Sum", "Prod", "Cumsum", "Cumprod", "Average", "Nanmean", "Nansum")

# Not in every Keras from 3.12 on.
_NORMALIZATIONS = tuple(
    getattr(keras.layers, name)
    for name in (
        *("BatchNormalization", "LayerNormalization", "GroupNormalization", "UnitNormalization", "RMSNormalization"),
        *("SpectralNormalization", "Normalization", "Rescaling"),
    )
    if hasattr(keras.layers, name)
)
_GLOBAL_AVERAGES = (
    keras.layers.GlobalAveragePooling1D,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.GlobalAveragePooling3D,
)
_AVERAGES = (keras.layers.AveragePooling1D, keras.layers.AveragePooling2D, keras.layers.AveragePooling3D)


def is_half(layer: Any) -> bool:
    """Whether a layer computes in float16 or bfloat16; a quantized one, whose policy says more than that, does not.

    Args:
        layer: any layer.
    """
    return layer.compute_dtype in _HALF and layer.quantization_mode is None


def half_layers(model: keras.Model) -> list[Any]:
    """The layers of a model that compute in half precision; no models inside, and no inputs, which compute nothing.

    Args:
        model: any model.
    """
    kinds = keras.Model | keras.layers.InputLayer
    return [layer for layer in all_layers(model) if is_half(layer) and not isinstance(layer, kinds)]


def why_fragile(layer: Any, calls: Sequence[LayerCall]) -> str | None:
    """Why a layer, or an operation of a functional model, should compute in float32.

    Gates of recurrent layers are sigmoids too, and stay: they saturate harmlessly, and cuDNN's fast code has them
    inside.

    Args:
        layer: a layer or operation.
        calls: of it, for the sizes of what it reduces.

    Returns:
        The reason in a few words, or None where it may stay as it is.
    """
    if not isinstance(layer, keras.layers.Layer):
        return _why_operation(layer, calls)
    if isinstance(layer, _NORMALIZATIONS):
        return "normalization"
    if isinstance(layer, keras.layers.Softmax | keras.layers.Attention):
        return "softmax"
    if layer.activity_regularizer is not None:
        return "adds a loss: activity regularizer"
    if "add_loss" in _names_in_call(layer):
        return "adds a loss in its call"
    if not is_recurrent(layer):
        # Of an Activation the whole layer, of a Dense or convolution its product too: logits are kept as they are.
        activation = getattr(getattr(layer, "activation", None), "__name__", None)
        if activation in _FRAGILE_ACTIVATIONS:
            return f"{activation} activation"
    return _why_pooling(layer, calls)


def is_recurrent(layer: Any) -> bool:
    """Whether a layer is recurrent, or the cell of a recurrent one.

    Args:
        layer: any layer.
    """
    return isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional) or hasattr(layer, "state_size")


def _names_in_call(layer: Any) -> tuple[str, ...]:
    # Layers of Keras that add losses do so by what they are given, which the check before has seen.
    if type(layer).__module__.startswith("keras."):
        return ()
    code = getattr(type(layer).call, "__code__", None)
    return code.co_names if code is not None else ()


def _why_pooling(layer: Any, calls: Sequence[LayerCall]) -> str | None:
    if isinstance(layer, _GLOBAL_AVERAGES):
        is_first = layer.data_format == "channels_first"
        sizes = [call.inputs[0].shape[2:] if is_first else call.inputs[0].shape[1:-1] for call in calls]
    elif isinstance(layer, _AVERAGES):
        sizes = [(layer.pool_size,) if isinstance(layer.pool_size, int) else layer.pool_size]
    else:
        return None
    return _why_reduction("average", sizes)


def _why_operation(operation: Any, calls: Sequence[LayerCall]) -> str | None:
    kind = type(operation).__name__
    if kind in _FRAGILE_OPERATIONS:
        return f"{kind.lower()} operation"
    if kind not in _REDUCTIONS:
        return None
    axis = getattr(operation, "axis", None)
    axes = (axis,) if isinstance(axis, int) else axis
    sizes = []
    for call in calls:
        shape = call.inputs[0].shape
        sizes.append(tuple(shape) if axes is None else tuple(shape[one] for one in axes))
    return _why_reduction(kind.lower(), sizes)


def _why_reduction(what: str, sizes: Sequence[Sequence[int | None]]) -> str | None:
    known = [[size for size in call if size is not None] for call in sizes]
    if known != [list(call) for call in sizes]:
        return f"{what} over a number of elements that is not known"
    largest = max((math.prod(call) for call in known), default=0)
    return f"{what} over {largest} elements" if largest > LARGE_REDUCTION else None
