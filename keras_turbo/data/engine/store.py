"""Examples kept by position once they are made: in memory, or in memory maps on disk (`disk_store.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.engine.slots import aligned_empty
from keras_turbo.machine import free_memory_bytes

# A store never takes more than this share of the free memory, or of the free disk: the model, its activations and
# everybody else's processes want some too. People who cached all that fitted lost more to restarts than they gained.
LARGEST_SHARE_OF_FREE = 0.5


def why_not_storable(elements: Elements) -> str | None:
    """Why such examples can't be kept by position, in words for an error; None where they can."""
    for leaf, form in zip(elements.leaves, elements.forms or ["dense"] * len(elements.leaves), strict=True):
        if form != "dense":
            return f"a tensor of it is {form} in a batch"
        if not leaf.shape.is_fully_defined():
            return f"a tensor of it has the shape {leaf.shape}, which differs from example to example"
        if not _is_kept_in_files(leaf.dtype):
            return f"a tensor of it has the type {leaf.dtype.name}"
    return None


def _is_kept_in_files(dtype: tf.DType) -> bool:
    # Strings are Python objects there; quantized types and 8-bit floats are additions that files do not tell.
    if dtype == tf.bfloat16:
        return True
    if dtype == tf.string or not dtype.is_numpy_compatible:
        return False
    kept = np.dtype(dtype.as_numpy_dtype)
    return kept.kind in "biufc" and kept.isbuiltin == 1


def fits_in_memory(num_bytes: int) -> bool:
    """Whether a store of that size leaves at least half of what is free."""
    return num_bytes <= LARGEST_SHARE_OF_FREE * free_memory_bytes()


class ExampleStore:
    """Examples by position, each written once and then gathered in any order.

    Args:
        leaves: for each tensor of an example an array of shape `(num_examples, ...)`.
        filled: bool, shape `(num_examples,)`: which examples are there already.
    """

    #: Where it is kept.
    kind: Literal["memory", "disk"] = "memory"

    def __init__(self, leaves: Sequence[np.ndarray], filled: np.ndarray) -> None:
        self._leaves = list(leaves)
        self._filled = filled
        self._is_complete = False

    def __len__(self) -> int:
        return len(self._filled)

    @property
    def num_filled(self) -> int:
        """How many examples are there."""
        return int(np.count_nonzero(self._filled))

    @property
    def num_ready(self) -> int:
        """How many examples are there, and are known to be whole."""
        return self.num_filled

    @property
    def num_bytes(self) -> int:
        """Bytes that the store takes when it is full."""
        return sum(leaf.nbytes for leaf in self._leaves)

    @property
    def is_complete(self) -> bool:
        """Whether all examples are there."""
        if not self._is_complete:
            self._is_complete = bool(self._filled.all())
        return self._is_complete

    def has(self, positions: np.ndarray) -> np.ndarray:
        """Which of some examples can be gathered: bool, of the same shape."""
        return self._filled[positions]

    def rows(self, positions: np.ndarray) -> list[list[np.ndarray]]:
        """For each of some examples its arrays where they lie, to be written; `mark` tells that they were."""
        return [[leaf[position, ...] for leaf in self._leaves] for position in positions.tolist()]

    def mark(self, positions: np.ndarray) -> None:
        """Takes note of examples that were written."""
        # Only after the data: who sees the mark reads them.
        self._filled[positions] = True

    def put(self, positions: np.ndarray, columns: Sequence[Column]) -> None:
        """Keeps examples; keeping one again changes nothing, since it is the same example.

        Args:
            positions: int64 vector.
            columns: for each tensor the values of these examples.
        """
        for leaf, column in zip(self._leaves, columns, strict=True):
            leaf[positions] = column
        self.mark(positions)

    def gather(self, positions: np.ndarray, out: list[np.ndarray] | None) -> list[Column]:
        """The columns of examples that are there; the rows of others mean nothing.

        Args:
            positions: int64 vector.
            out: for each tensor an array of as many rows to copy to, which is given back; None for new ones.
        """
        if out is None:
            out = [np.empty((len(positions), *leaf.shape[1:]), leaf.dtype) for leaf in self._leaves]
        for leaf, rows in zip(self._leaves, out, strict=True):
            if leaf.dtype == rows.dtype:
                # With "clip" NumPy writes into `rows` itself, three times as fast; no position is out of range.
                np.take(leaf, positions, axis=0, out=rows, mode="clip")
            else:
                rows[...] = leaf[positions]
        return [*out]

    def save(self) -> None:
        """Makes what was written so far last, where the store has a place to last in."""


def memory_store(elements: Elements, num_examples: int) -> ExampleStore:
    """An empty store in this process's memory, which it takes as it is filled."""
    leaves = [aligned_empty((num_examples, *shape), dtype) for shape, dtype in elements.arrays]
    return ExampleStore(leaves, np.zeros(num_examples, np.bool_))
