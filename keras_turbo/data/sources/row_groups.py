"""Rows of tables that are read a row group at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.failures import ExampleLoadError
from keras_turbo.data.light_operations import light_filter, light_map
from keras_turbo.data.python_calls import call_on
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.data.tables.columns import Column
from keras_turbo.data.tables.row_group_order import RowGroupOrder
from keras_turbo.data.tables.row_groups import RowGroup
from keras_turbo.data.tables.rows import GroupReader
from keras_turbo.data.tables.table import Table

# Rows that are read together: enough that a call of Python is little beside them, few enough to be no memory.
_MOST_AT_ONCE = 8192
_BYTES_AT_ONCE = 4 << 20


class RowGroupSource(Source):
    """Rows that are read a row group at a time.

    Args:
        table: what they are of.
        groups: in the order of positions.
        reader: of the same groups.
        bytes_per_row: about how many.
        window: row groups whose rows are shuffled together; None for a full shuffle, where all are kept.
    """

    can_fail = True
    can_be_measured = False
    makes_rows = True
    loading_is_called = "read"
    why_not_remote = "row groups of tables are read by Python of this one"

    def __init__(
        self, table: Table, groups: Sequence[RowGroup], reader: GroupReader, bytes_per_row: float, window: int | None
    ) -> None:
        self.reader = reader
        self.left_out = table.left_out
        self._table = table
        self._sizes = tuple(group.num_rows for group in groups)
        self._window = window
        # In the order in which TensorFlow gets them.
        self._columns = table.columns
        self._names = [column.name for column in table.columns]
        self._is_ragged = any(column.is_ragged for column in table.columns)
        self._rows_at_once = int(max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(1.0, bytes_per_row))))

    @property
    def num_examples(self) -> int:
        return self.reader.num_rows

    @property
    def rows_at_once(self) -> int | None:
        # Rows of unequal length can't be tensors of several rows.
        return None if self._is_ragged else self._rows_at_once

    def order(self, *, shuffle: bool, seed: int, reshuffle_each_epoch: bool) -> ExampleOrder:
        if self._window is None:
            return super().order(shuffle=shuffle, seed=seed, reshuffle_each_epoch=reshuffle_each_epoch)
        return RowGroupOrder(
            self.num_examples,
            shuffle=shuffle,
            seed=seed,
            reshuffle_each_epoch=reshuffle_each_epoch,
            group_sizes=self._sizes,
            window=self._window,
        )

    def known_failure(self, position: int) -> str:
        return self.reader.problem(position)

    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        kinds = [tf.string, *(column.dtype for column in self._columns)]
        problem, *arrays = call_on(self, RowGroupSource._read_one, [position], kinds)
        # An assertion, since an error in the Python function would bring that function's traceback along.
        with tf.control_dependencies([tf.debugging.Assert(problem == b"", [problem])]):
            tensors = [
                tf.ensure_shape(tf.identity(array), column.shape)
                for array, column in zip(arrays, self._columns, strict=True)
            ]
        return self._element(tensors)

    def read_rows(self, positions: tf.Tensor) -> dict[str, Any]:
        kinds = [tf.bool, *(column.dtype for column in self._columns)]
        are_whole, *arrays = call_on(self, RowGroupSource._read_with_gaps, [positions], kinds)
        return {"is_whole": tf.ensure_shape(are_whole, [None]), "columns": tuple(self._shaped(arrays))}

    def load_row(self, row: dict[str, Any], seed: tf.Tensor) -> Any:
        is_whole = tf.debugging.Assert(row["is_whole"], ["The row can't be read."])
        with tf.control_dependencies([is_whole]):
            return self._element([tf.identity(tensor) for tensor in row["columns"]])

    def make_rows(self, chunks: tf.data.Dataset, parallel_calls: int) -> tf.data.Dataset:
        def rows(chunk: dict[str, tf.Tensor]) -> dict[str, Any]:
            if self._is_ragged:
                # Ragged rows can be neither cut nor joined by what follows, so they are made when all is done.
                are_whole = call_on(self, RowGroupSource._are_whole, [chunk["position"]], tf.bool)
                out = None
            else:
                kinds = [tf.bool, *(column.dtype for column in self._columns)]
                are_whole, *arrays = call_on(self, RowGroupSource._read_whole, [chunk["position"]], kinds)
                out = self._element(self._shaped(arrays))
            are_whole = tf.ensure_shape(are_whole, [None])
            kept = {name: tf.boolean_mask(vector, are_whole) for name, vector in chunk.items()}
            return {**kept, "out": kept["position"] if out is None else out}

        made = light_map(chunks, rows, parallel_calls)
        return light_filter(made, lambda chunk: tf.size(chunk["position"]) > 0)

    def finish(self, batches: tf.data.Dataset, parallel_calls: int) -> tf.data.Dataset:
        if not self._is_ragged:
            return batches
        # Of a ragged column come the values, and the numbers of them in each row.
        kinds = [kind for column in self._columns for kind in self._kinds_in_batches(column)]

        def made(positions: tf.Tensor) -> Any:
            arrays = iter(call_on(self, RowGroupSource._read_batch, [positions], kinds))
            tensors = []
            for column in self._columns:
                values = next(arrays)
                if column.is_ragged:
                    lengths = tf.ensure_shape(next(arrays), positions.shape)
                    values = tf.RaggedTensor.from_row_lengths(tf.ensure_shape(values, [None]), lengths, validate=False)
                else:
                    values = tf.ensure_shape(values, [*positions.shape, *column.shape])
                tensors.append(values)
            return self._element(tensors)

        return batches.map(made, num_parallel_calls=parallel_calls, deterministic=True)

    def describe(self, position: int) -> str:
        return self.reader.describe(position)

    def labels_at(self, positions: np.ndarray) -> np.ndarray | None:
        label = self._table.parts.label
        if label is None:
            return None
        columns, are_whole = self.reader.read(positions, [label])
        if not are_whole.all():
            first = int(positions[~are_whole][0])
            raise ExampleLoadError(f"{self.describe(first)}: {self.reader.problem(first)}")
        return columns[label].array

    def identity(self) -> Identity:
        return self._table.identity()

    def _element(self, tensors: Sequence[Any]) -> Any:
        return self._table.parts.element(dict(zip(self._names, tensors, strict=True)))

    def _shaped(self, arrays: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [
            tf.ensure_shape(array, [None, *column.shape]) for array, column in zip(arrays, self._columns, strict=True)
        ]

    @staticmethod
    def _kinds_in_batches(column: Column) -> list[tf.DType]:
        return [column.dtype, tf.int64] if column.is_ragged else [column.dtype]

    def _read_one(self, position: np.integer) -> list[Any]:
        columns, (is_whole,) = self.reader.read(np.array([position], np.int64), self._names)
        if not is_whole:
            problem = self.reader.problem(int(position)).encode()
            columns = {column.name: column.empty(1) for column in self._columns}
        else:
            problem = b""
        arrays = []
        for column in self._columns:
            values = columns[column.name]
            arrays.append(values.array if column.is_ragged else values.array[0])
        return [problem, *arrays]

    def _read_whole(self, positions: np.ndarray) -> list[np.ndarray]:
        columns, are_whole = self.reader.read(positions, self._names)
        return [are_whole, *(columns[name].array for name in self._names)]

    def _read_with_gaps(self, positions: np.ndarray) -> list[np.ndarray]:
        columns, are_whole = self.reader.read(positions, self._names)
        arrays = [columns[name].array for name in self._names]
        if not are_whole.all():
            filled = []
            for column, array in zip(self._columns, arrays, strict=True):
                full = column.empty(len(positions)).array
                full[are_whole] = array
                filled.append(full)
            arrays = filled
        return [are_whole, *arrays]

    def _are_whole(self, positions: np.ndarray) -> np.ndarray:
        _, are_whole = self.reader.read(positions, [])
        return are_whole

    def _read_batch(self, positions: np.ndarray) -> list[np.ndarray]:
        columns, are_whole = self.reader.read(positions, self._names)
        if not are_whole.all():
            # They were whole a moment ago.
            raise ExampleLoadError(f"{self.describe(int(positions[~are_whole][0]))} can't be read any more.")
        arrays = []
        for column in self._columns:
            values = columns[column.name]
            arrays.append(values.array)
            if values.offsets is not None:
                arrays.append(np.diff(values.offsets))
        return arrays
