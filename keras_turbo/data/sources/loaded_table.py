"""Rows of tables whose columns are in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.failures import ExampleLoadError
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.data.tables.row_group_order import RowGroupOrder
from keras_turbo.data.tables.rows import Rows, all_rows, left_out_rows
from keras_turbo.data.tables.table import Table


@dataclasses.dataclass(frozen=True)
class LoadedPart:
    """Rows that were stored together and are in memory.

    Attributes:
        rows: of them.
        name: of their file.
        numbers: of all of its rows that were decoded, in the file.
    """

    rows: Rows
    name: str
    numbers: Sequence[int] | np.ndarray


class LoadedTableSource(Source):
    """Rows of columns that are in memory.

    Args:
        table: what they are of.
        parts: of which those that can't be read are left out.

    Raises:
        ExampleLoadError: no row is whole.
    """

    in_memory = True

    def __init__(self, table: Table, parts: Sequence[LoadedPart]) -> None:
        self._table = table
        self.left_out = [
            *table.left_out,
            *(one for part in parts for one in left_out_rows(part.rows, part.name, part.numbers)),
        ]
        whole = [np.flatnonzero(part.rows.are_whole) if part.rows.flaws else None for part in parts]
        self._sizes = [
            part.rows.num_rows if kept is None else len(kept) for part, kept in zip(parts, whole, strict=True)
        ]
        if not sum(self._sizes):
            first = self.left_out[0]
            raise ExampleLoadError(
                f"None of {len(self.left_out)} rows can be used. The first: {first.path}: {first.reason}"
            )
        self._names = [part.name for part in parts]
        self._numbers = [
            part.numbers if kept is None else np.asarray(part.numbers)[kept]
            for part, kept in zip(parts, whole, strict=True)
        ]
        self._tensors: dict[str, tf.Tensor] = {}
        self._words: dict[str, tf.Tensor] = {}
        self.bytes_in_graph = 0
        for name in table.parts.names:
            # One after the other, so that no more than one is there a third time.
            values = all_rows([part.rows for part in parts], name)
            with tf.device("CPU:0"):
                self._tensors[name] = tf.convert_to_tensor(values.array)
                if values.vocabulary is not None:
                    self._words[name] = tf.convert_to_tensor(values.vocabulary, tf.string)
            self.bytes_in_graph += values.num_bytes
        if table.window is not None:
            self.why_not_remote = "the order of row groups (`shuffle_row_groups`) is computed by Python of this one"

    @property
    def num_examples(self) -> int:
        return sum(self._sizes)

    def order(self, *, shuffle: bool, seed: int, reshuffle_each_epoch: bool) -> ExampleOrder:
        if self._table.window is None:
            return super().order(shuffle=shuffle, seed=seed, reshuffle_each_epoch=reshuffle_each_epoch)
        return RowGroupOrder(
            self.num_examples,
            shuffle=shuffle,
            seed=seed,
            reshuffle_each_epoch=reshuffle_each_epoch,
            group_sizes=tuple(self._sizes),
            window=self._table.window,
        )

    def gather(self, positions: tf.Tensor) -> Any:
        return self._table.parts.element({name: self._rows_of(name, positions) for name in self._tensors})

    def _rows_of(self, name: str, positions: tf.Tensor | np.ndarray) -> tf.Tensor:
        rows = tf.gather(self._tensors[name], positions)
        return tf.gather(self._words[name], rows) if name in self._words else rows

    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        return self.gather(position)

    def describe(self, position: int) -> str:
        ends = np.cumsum(self._sizes)
        part = int(np.searchsorted(ends, position, "right"))
        row = position - int(ends[part]) + self._sizes[part]
        return f"{self._names[part]}, row {self._numbers[part][row]}"

    def labels_at(self, positions: np.ndarray) -> np.ndarray | None:
        label = self._table.parts.label
        if label is None:
            return None
        with tf.device("CPU:0"):
            return self._rows_of(label, positions).numpy()

    def identity(self) -> Identity:
        return self._table.identity()
