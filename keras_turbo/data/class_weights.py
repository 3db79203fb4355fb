"""`class_weight` that names only some classes, for a dataset as for arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def with_all_classes(map_func: Callable) -> Callable:
    """What `Dataset.map` is given, with the function that Keras makes of `class_weight` completed.

    Keras (3.12 to 3.15, its issue 23071) gathers each example's weight from a tensor that ends with the highest class
    named. With arrays, classes above weigh 1; in a dataset they are an error. This is the one place where that private
    function is looked at. Where it has another form, it is left as it is, and so is every other function.

    Args:
        map_func: any function for `Dataset.map`.
    """
    if getattr(map_func, "__name__", "") != "class_weights_map_fn" or not map_func.__module__.startswith("keras."):
        return map_func
    weights = inspect.getclosurevars(map_func).nonlocals.get("class_weight_tensor")
    if weights is None:
        return map_func

    def weighted(*data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None or not isinstance(y, tf.Tensor) or y.shape.rank is None:
            return map_func(*data)  # which refuses what can't be weighted
        if y.shape.rank < 2:
            classes = _rounded(y)
        elif y.shape[-1] == 1:
            classes = _rounded(tf.squeeze(y, axis=-1))
        elif y.shape[-1] is not None:
            classes = tf.argmax(y, axis=-1, output_type=tf.int32)
        else:
            return map_func(*data)
        others = tf.ones([1], weights.dtype)
        return x, y, tf.gather(tf.concat([weights, others], 0), tf.minimum(classes, tf.size(weights)))

    return weighted


def _rounded(numbers: tf.Tensor) -> tf.Tensor:
    # tf.round takes neither booleans nor unsigned integers.
    return tf.cast(tf.round(numbers) if numbers.dtype.is_floating else numbers, tf.int32)
