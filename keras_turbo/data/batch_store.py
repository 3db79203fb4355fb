"""Whole batches kept by position, of which some may have fewer rows than others."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_store import ExampleStore
from keras_turbo.data.python_calls import call_on


def stored_spec(batch_spec: Any, most_rows: int) -> Any:
    """What is kept of a batch: the number of its rows, and its tensors filled up to the largest number of rows.

    Args:
        batch_spec: structure of `tf.TensorSpec`s; tensors without an axis are kept as they are.
        most_rows: rows of the largest batch that is known.
    """

    def padded(spec: tf.TensorSpec) -> tf.TensorSpec:
        return tf.TensorSpec([most_rows, *spec.shape[1:]], spec.dtype)

    return {"batch": tf.nest.map_structure(padded, batch_spec), "rows": tf.TensorSpec([], tf.int64)}


class BatchStore:
    """What `Pipeline` needs of an `ExampleStore`, for examples that are batches.

    Args:
        store: has rows as `stored_spec` describes them.
        batch_spec: structure of `tf.TensorSpec`s of a batch.
    """

    def __init__(self, store: ExampleStore, batch_spec: Any) -> None:
        self._store = store
        self.element_spec = batch_spec
        self.filled_view = store.filled_view

    @property
    def kind(self) -> Literal["memory", "disk"]:
        return self._store.kind

    @property
    def num_examples(self) -> int:
        return self._store.num_examples

    @property
    def num_filled(self) -> int:
        return self._store.num_filled

    @property
    def num_bytes(self) -> int:
        """As `ExampleStore.num_bytes`."""
        return self._store.num_bytes

    def are_filled(self, positions: np.ndarray) -> np.ndarray:
        """Which of some batches are there: bool, of the same shape."""
        return self._store.are_filled(positions)

    def gather(self, position: tf.Tensor) -> Any:
        """Graph code: the batch at a position (int64 scalar), which must have been written."""
        row = self._store.row(position)
        batch = tf.nest.map_structure(lambda tensor: tensor[: row["rows"]], row["batch"])
        return tf.nest.map_structure(lambda tensor, spec: tf.ensure_shape(tensor, spec.shape), batch, self.element_spec)

    def write_in_graph(self, positions: tf.Tensor, batches: Any) -> None:
        """Graph code: keeps a batch. `positions` is int64 of shape (1,), and the tensors have an axis of 1 in front."""
        rows = tf.shape(tf.nest.flatten(batches)[0], tf.int64)[1]
        leaves = self._store.to_stored({"batch": batches, "rows": rows})
        call_on(self, BatchStore.write, [positions, *leaves], [])

    def write(self, positions: np.ndarray, *leaves: np.ndarray) -> None:
        """Keeps a batch.

        Raises:
            ValueError: it is larger than the largest that is known, or has another shape.
        """
        *tensors, rows = leaves  # "batch" comes before "rows"
        padded = []
        shapes = [tuple(spec.shape) for spec in tf.nest.flatten(self._store.element_spec)][:-1]
        for tensor, shape in zip(tensors, shapes, strict=True):
            if tensor.shape[2:] != shape[1:] or tensor.shape[1] > shape[0]:
                raise ValueError(
                    f"Batch {int(positions[0])} has a tensor of shape {tensor.shape[1:]}, and the cache was made for "
                    f"batches of up to {shape}, as the first and the last one are. Make all batches of one shape, but "
                    "for those with fewer rows, or use cache=False."
                )
            row = tensor
            if tensor.shape[1] < shape[0]:
                row = np.zeros((1, *shape), tensor.dtype)
                row[:, : tensor.shape[1]] = tensor
            padded.append(row)
        self._store.write(positions, *padded, np.asarray(rows).reshape(1))

    def save(self) -> None:
        """As `ExampleStore.save`."""
        self._store.save()
