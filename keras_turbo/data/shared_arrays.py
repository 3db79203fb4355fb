"""Memory that numpy writes and TensorFlow reads, without a copy between them."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

# TensorFlow's kernels use aligned vector loads (EIGEN_MAX_ALIGN_BYTES), and numpy aligns its memory to 16 only.
_ALIGNMENT_BYTES = 64


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    """An array of zeros that TensorFlow can use as it lies in memory; untouched parts take no memory yet."""
    dtype = np.dtype(dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    buffer = np.zeros(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    offset = -buffer.ctypes.data % _ALIGNMENT_BYTES
    return buffer[offset : offset + num_bytes].view(dtype).reshape(shape)


def tensor_view(array: np.ndarray) -> tf.Tensor:
    """A tensor over the same memory as a writable, aligned array: what is written to the one is read from the other."""
    if array.size == 0:
        return tf.zeros(array.shape, array.dtype)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
