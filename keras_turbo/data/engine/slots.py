"""Memory for batches that TensorFlow reads where it lies, used again when nobody holds it."""

from __future__ import annotations

import collections
import math
import weakref
from collections.abc import Sequence

import numpy as np

# TensorFlow takes an array as it is if it is aligned so (EIGEN_MAX_ALIGN_BYTES), and copies it else. NumPy aligns to
# 16.
_ALIGNMENT_BYTES = 64

# Buffers that are kept free for the next batch. More are only lent at a time if somebody keeps many batches.
_MOST_FREE = 8


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    """An array that TensorFlow can use where it lies, with arbitrary content; untouched parts take no memory yet.

    It is `numpy.empty` underneath, which asks for huge pages: memory that is written for the first time comes three
    times as fast in those.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        return np.empty(shape, dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    buffer = np.empty(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    offset = -buffer.ctypes.data % _ALIGNMENT_BYTES
    return buffer[offset : offset + num_bytes].view(dtype).reshape(shape)


class Slots:
    """Buffers for one tensor of a batch, of up to so many rows.

    What is lent is an array of its own over a buffer. When that array is gone, and with it TensorFlow's tensor over it
    and whatever was made of that without a copy, the buffer is lent again.

    Args:
        rows: of a buffer.
        shape: of a row.
        dtype: of the numbers.
    """

    def __init__(self, rows: int, shape: Sequence[int], dtype: np.dtype) -> None:
        self._shape = tuple(shape)
        self._rows = rows
        self._dtype = dtype
        self._free: collections.deque[np.ndarray] = collections.deque(maxlen=_MOST_FREE)
        self._lent: dict[int, tuple[weakref.ref, np.ndarray]] = {}

    def lend(self, leading: tuple[int, ...]) -> np.ndarray:
        """An array of shape `(*leading, *shape)`, of at most `rows` rows, with arbitrary content.

        Nothing may keep an array made of it longer than the array itself: NumPy's views hold the buffer, not the view
        that they were made of.
        """
        if self._dtype.hasobject:  # TensorFlow copies strings
            return np.empty((*leading, *self._shape), self._dtype)
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = aligned_empty((self._rows, *self._shape), self._dtype)
        lent = buffer[: math.prod(leading)].reshape((*leading, *self._shape))
        key = id(lent)
        # A callback runs wherever the last reference goes, in any thread; each of these steps is one of Python's own.
        free, all_lent = self._free, self._lent

        def is_gone(_: weakref.ref) -> None:
            _, returned = all_lent.pop(key)
            free.append(returned)

        all_lent[key] = weakref.ref(lent, is_gone), buffer
        return lent
