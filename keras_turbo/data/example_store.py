"""Decoded examples kept by position: in memory, or in `.npy` memory maps on disk.

Both kinds are the same thing to their reader: arrays of shape `(num_examples, ...)` that TensorFlow sees as tensors
without a copy, so that a shuffled batch is one `tf.gather`. How the disk kind is laid out is in `disk_store.py`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_turbo.data.python_calls import call_on
from keras_turbo.data.shared_arrays import aligned_zeros, tensor_view
from keras_turbo.machine import free_memory_bytes

# A store never takes more than this share of the free memory, or of the free disk: the model, its activations and
# everybody else's processes want some too. People who cached all that fitted lost more to restarts than they gained.
LARGEST_SHARE_OF_FREE = 0.5


@dataclasses.dataclass(frozen=True)
class LeafFormat:
    """How one tensor of an example is kept: its shape without the batch, its type in TensorFlow and in numpy."""

    shape: tuple[int, ...]
    dtype: tf.DType
    stored_dtype: np.dtype

    def are_filled(self, positions: np.ndarray) -> np.ndarray:
        """Which of some examples are there: bool, of the same shape."""
        return self._filled[positions]

    @property
    def num_bytes(self) -> int:
        """Bytes of one example's tensor."""
        return math.prod(self.shape) * self.stored_dtype.itemsize


def why_not_storable(element_spec: Any) -> str | None:
    """Why examples of this spec can't be kept by position, in words for an error; None where they can."""
    for spec in tf.nest.flatten(element_spec):
        if not isinstance(spec, tf.TensorSpec):
            return f"it holds a {type(spec).__name__}"
        if not spec.shape.is_fully_defined():
            return f"a tensor of it has the shape {spec.shape}, which differs from example to example"
        if spec.dtype != tf.bfloat16 and not _is_numpys_own(spec.dtype):
            return f"a tensor of it has the type {spec.dtype.name}"
    return None


def _is_numpys_own(dtype: tf.DType) -> bool:
    # Strings are Python objects there; quantized types and 8-bit floats are additions that files do not tell.
    if not dtype.is_numpy_compatible:
        return False
    numpy_dtype = np.dtype(dtype.as_numpy_dtype)
    return numpy_dtype.kind in "biufc" and numpy_dtype.isbuiltin == 1


def leaf_formats(element_spec: Any) -> list[LeafFormat]:
    """The formats of the flattened tensors of one example."""
    formats = []
    for spec in tf.nest.flatten(element_spec):
        # numpy files know no bfloat16, so its bits are kept.
        stored = np.uint16 if spec.dtype == tf.bfloat16 else spec.dtype.as_numpy_dtype
        formats.append(LeafFormat(tuple(spec.shape), spec.dtype, np.dtype(stored)))
    return formats


def bytes_per_example(element_spec: Any) -> int:
    """Bytes that a store needs for each example of this spec."""
    return sum(leaf.num_bytes for leaf in leaf_formats(element_spec))


def fits_in_memory(num_bytes: int) -> bool:
    """Whether a store of that size leaves at least half of what is free."""
    return num_bytes <= LARGEST_SHARE_OF_FREE * free_memory_bytes()


class ExampleStore:
    """Examples by position, each written once and then gathered in any order.

    Args:
        element_spec: structure of `tf.TensorSpec`s of one example, all shapes known.
        arrays: for each flattened tensor an array of shape `(num_examples, *shape)`, aligned and writable.
        filled: bool, shape `(num_examples,)`: which examples are there already. Kept up to date by `write`.
    """

    #: Where it is kept.
    kind: Literal["memory", "disk"] = "memory"

    def __init__(self, element_spec: Any, arrays: list[np.ndarray], filled: np.ndarray) -> None:
        self.element_spec = element_spec
        self._formats = leaf_formats(element_spec)
        self._arrays = arrays
        self._filled = filled
        with tf.device("CPU:0"):
            self._views = [tensor_view(array) for array in arrays]
            self.filled_view = tensor_view(filled)

    @property
    def num_examples(self) -> int:
        return len(self._filled)

    def are_filled(self, positions: np.ndarray) -> np.ndarray:
        """Which of some examples are there: bool, of the same shape."""
        return self._filled[positions]

    @property
    def num_filled(self) -> int:
        """How many examples are there."""
        return int(np.count_nonzero(self._filled))

    @property
    def num_bytes(self) -> int:
        """Bytes that the store takes when it is full."""
        return sum(array.nbytes for array in self._arrays)

    def gather(self, positions: tf.Tensor) -> Any:
        """Graph code: the examples at some positions, which must have been written.

        Args:
            positions: int64, any shape.

        Returns:
            The structure of `element_spec`, each tensor with the shape of `positions` put before its own.
        """
        leaves = []
        for view, leaf in zip(self._views, self._formats, strict=True):
            tensor = tf.gather(view, positions)
            leaves.append(tf.bitcast(tensor, leaf.dtype) if leaf.dtype == tf.bfloat16 else tensor)
        return tf.nest.pack_sequence_as(self.element_spec, leaves)

    def row(self, position: tf.Tensor) -> Any:
        """Graph code: one example, as `gather` gives it, but where it lies: rows of some size need no copy."""
        leaves = []
        for view, leaf in zip(self._views, self._formats, strict=True):
            tensor = view[position]  # a slice along the first axis shares memory, if rows are aligned
            leaves.append(tf.bitcast(tensor, leaf.dtype) if leaf.dtype == tf.bfloat16 else tensor)
        return tf.nest.pack_sequence_as(self.element_spec, leaves)

    def write_in_graph(self, positions: tf.Tensor, batch: Any) -> None:
        """Graph code: keeps a batch of examples. `positions` is int64 of shape `(batch,)`."""
        call_on(self, type(self).write, [positions, *self.to_stored(batch)], [])

    def to_stored(self, batch: Any) -> list[tf.Tensor]:
        """The flattened tensors of a batch, with the types under which they are kept."""
        return [
            tf.bitcast(tensor, tf.uint16) if leaf.dtype == tf.bfloat16 else tensor
            for tensor, leaf in zip(tf.nest.flatten(batch), self._formats, strict=True)
        ]

    def write(self, positions: np.ndarray, *leaves: np.ndarray) -> None:
        """Keeps a batch of examples; writing one again changes nothing, since it is the same example."""
        for array, leaf in zip(self._arrays, leaves, strict=True):
            array[positions] = leaf
        # Only now: who sees the mark reads the data.
        self._filled[positions] = True

    def save(self) -> None:
        """Makes what was written so far last, where the store has a place to last in."""


def memory_store(element_spec: Any, num_examples: int) -> ExampleStore:
    """An empty store in this process's memory, which it takes as it is filled."""
    arrays = [aligned_zeros((num_examples, *leaf.shape), leaf.stored_dtype) for leaf in leaf_formats(element_spec)]
    return ExampleStore(element_spec, arrays, aligned_zeros((num_examples,), np.bool_))
