"""Whole batches kept by position, of which some may have fewer rows than others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.engine.store import ExampleStore


def stored_elements(batches: Elements, most_rows: int) -> Elements:
    """What is kept of a batch: its tensors filled up to the largest number of rows, and the number of its rows."""
    if any(not leaf.shape.rank for leaf in batches.leaves):
        raise ValueError("`cache` keeps rows of batches, and map_fn gives something without rows. Use cache=False.")
    padded = [tf.TensorSpec([most_rows, *leaf.shape[1:]], leaf.dtype) for leaf in batches.leaves]
    return Elements((*padded, tf.TensorSpec([], tf.int64)))


class BatchStore:
    """What the engine needs of an `ExampleStore`, for batches, which it has as `stored_elements` says."""

    def __init__(self, store: ExampleStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def rows(self, positions: np.ndarray) -> None:
        """Nothing that could be written as it is."""

    def put(self, positions: np.ndarray, columns: Sequence[Column]) -> None:
        """Keeps batches; raises ValueError where one is larger than the largest that is known, or of another shape."""
        for index, (position, kept) in enumerate(zip(positions.tolist(), self._store.rows(positions), strict=True)):
            *leaves, rows = kept
            for leaf, column in zip(leaves, columns, strict=True):
                batch = column[index]
                if batch.shape[1:] != leaf.shape[1:] or len(batch) > len(leaf):
                    raise ValueError(
                        f"Batch {position} has a tensor of shape {batch.shape}, and the cache was made for batches of "
                        f"up to {leaf.shape}, as the first and the last one are. Make all batches of one shape, but "
                        "for those with fewer rows, or use cache=False."
                    )
                leaf[: len(batch)] = batch
                rows[...] = len(batch)
        self._store.mark(positions)

    def gather(self, positions: np.ndarray, out: list[np.ndarray] | None) -> list[Column]:
        """The batches where they lie, so that nothing is copied: TensorFlow writes to no memory of NumPy's."""
        *leaves, rows = map(list, zip(*self._store.rows(positions), strict=True))
        return [[batch[: int(number)] for batch, number in zip(leaf, rows, strict=True)] for leaf in leaves]
