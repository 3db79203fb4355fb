"""Layers that compute in float32 for a while, whatever mixed policy they were made under."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_turbo.execution.patching import replaced_method

_HALF = ("float16", "bfloat16")


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Sets the global dtype policy to float32, and that of each mixed layer when it is first called.

    A layer is found when it is called, so that none needs to be passed, and none is missed that a model keeps where
    Keras does not look. Weights stay as they are: a mixed policy has them in float32 already. Layers whose weights
    themselves are half precision (`float16`, `bfloat16`) are left alone, and so are quantized ones.

    Yields:
        Nothing. Afterwards the global policy and those of all layers are what they were.
    """
    float32 = keras.dtype_policies.get("float32")
    global_policy = keras.config.dtype_policy()
    switched: dict[int, tuple[keras.Layer, Any]] = {}
    lock = threading.Lock()

    def call(original: Callable[..., Any], layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        if layer.compute_dtype in _HALF and layer.variable_dtype == "float32" and layer.quantization_mode is None:
            with lock:
                if id(layer) not in switched:
                    switched[id(layer)] = (layer, _own_policy(layer))
                    layer.dtype_policy = float32
        return original(layer, *args, **kwargs)

    with replaced_method(keras.Layer, "__call__", call):
        keras.config.set_dtype_policy(float32)
        try:
            yield
        finally:
            keras.config.set_dtype_policy(global_policy)
            for layer, policy in switched.values():
                # Whoever gave the layer another policy meanwhile meant it.
                if _own_policy(layer) is float32:
                    layer.dtype_policy = policy


def _own_policy(layer: keras.Layer) -> Any:
    policy = layer.dtype_policy
    return policy[layer.path] if isinstance(policy, keras.dtype_policies.DTypePolicyMap) else policy
