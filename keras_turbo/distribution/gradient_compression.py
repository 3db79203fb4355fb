"""Gradients that are sent in half precision.

What is sent is rounded to 11 significant bits (float16) or 8 (bfloat16), and so are the sums on the way. For n
replicas with gradients g_1 ... g_n, each element of the sum is wrong by at most

    n * u * (|g_1| + ... + |g_n|)        u = 2**-11 for float16, 2**-8 for bfloat16

to first order: one rounding when a gradient is cast, and one for each of the n - 1 additions of a ring. The roundings
are to nearest, and so mostly cancel: measured errors are far below (`docs/scaling.md`).

float16 has few exponents as well: its largest number is 65,504. So each tensor is multiplied by a power of two, the
same on all replicas, chosen so that no sum of what is sent can overflow: the largest magnitude of each replica goes
before, in float32, and their sum bounds every sum of elements. That bound becomes 2**14 to 2**15, and an element is as
exact as said unless it is below 2**-28 of it; smaller ones are rounded to multiples of at most 2**-38 of it. That
exchange is one number a tensor: it costs a latency, and hardly a byte. bfloat16 has the exponents of float32 and needs
none of this.

An infinity or NaN on any replica is one in the sum, so that loss scaling sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import tensorflow as tf

Compression = Literal["float16", "bfloat16"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)

# Sums of what is sent stay below this: half of float16's 65,504, so that roundings upwards don't matter.
_LARGEST_EXPONENT = 15
# Powers of two that float32 has, and their inverses, too.
_MOST_EXPONENT = 126.0

#: Unit roundoff: the largest relative error of rounding a number to nearest.
UNIT_ROUNDOFF: dict[Compression, float] = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def compressed_sum(
    values: list[Any], compression: Compression, all_reduce: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """The sums of tensors over replicas, sent in half precision.

    Args:
        values: tensors or `tf.IndexedSlices`. What is not float32 or float64 is sent as it is.
        compression: "float16" or "bfloat16".
        all_reduce: sums lists of them over replicas, of several dtypes.

    Returns:
        The sums, of the dtypes of the values.
    """
    chosen = [index for index, value in enumerate(values) if value.dtype in (tf.float32, tf.float64)]
    if not chosen:
        return all_reduce(values)
    dtype = tf.as_dtype(compression)
    scales = _scales([_dense(values[index]) for index in chosen], all_reduce) if dtype == tf.float16 else None
    sent = list(values)
    for place, index in enumerate(chosen):
        sent[index] = _packed(values[index], dtype, None if scales is None else scales[place])
    received = all_reduce(sent)
    for place, index in enumerate(chosen):
        scale = None if scales is None else scales[place]
        received[index] = _unpacked(received[index], dtype, scale, values[index].dtype)
    return received


def _scales(tensors: list[tf.Tensor], all_reduce: Callable[[list[Any]], list[Any]]) -> tf.Tensor:
    """A power of two for each tensor, the same on all replicas, with which no sum of its elements overflows."""
    magnitudes = [
        tf.cast(tf.reduce_max(tf.abs(tensor)), tf.float32) if tensor.shape.num_elements() != 0 else tf.constant(0.0)
        for tensor in tensors
    ]
    # A tensor without rows, as of a replica without examples, has the smallest of all numbers as its largest.
    (bounds,) = all_reduce([tf.maximum(tf.stack(magnitudes), 0.0)])
    exponents = _LARGEST_EXPONENT - tf.math.ceil(tf.math.log(bounds) / tf.math.log(2.0))
    # Zeros need no scale, and infinities have none.
    exponents = tf.where(tf.math.is_finite(exponents), exponents, tf.zeros_like(exponents))
    return tf.pow(2.0, tf.clip_by_value(exponents, -_MOST_EXPONENT, _MOST_EXPONENT))


def _packed(value: Any, dtype: tf.DType, scale: tf.Tensor | None) -> Any:
    """A gradient as it is sent."""
    tensor = _dense(value)
    if scale is not None:
        tensor = tensor * tf.cast(scale, tensor.dtype)
    tensor = tf.cast(tensor, dtype)
    if not isinstance(value, tf.IndexedSlices):
        return tensor
    # Rows are gathered and not summed on the way, for which TensorFlow (2.17 to 2.21) does not take bfloat16. So its
    # bits go under another name.
    return tf.IndexedSlices(tf.bitcast(tensor, tf.float16), value.indices, value.dense_shape)


def _unpacked(value: Any, dtype: tf.DType, scale: tf.Tensor | None, original: tf.DType) -> Any:
    """A gradient as it was before it was sent."""
    is_sparse = isinstance(value, tf.IndexedSlices)
    tensor = tf.cast(tf.bitcast(value.values, dtype) if is_sparse else value, original)
    if scale is not None:
        tensor = tensor / tf.cast(scale, original)
    return tf.IndexedSlices(tensor, value.indices, value.dense_shape) if is_sparse else tensor


def _dense(value: Any) -> tf.Tensor:
    return value.values if isinstance(value, tf.IndexedSlices) else value
