"""Tables of Parquet or CSV files, each row of which is one example: in memory, or read a row group at a time."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.example_store import fits_in_memory
from keras_turbo.data.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.light_operations import light_filter, light_map
from keras_turbo.data.python_calls import call_on
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.data.tables.columns import Column, Values
from keras_turbo.data.tables.parts import Parts
from keras_turbo.data.tables.row_group_order import RowGroupOrder
from keras_turbo.data.tables.row_groups import RowGroup, bytes_of_groups
from keras_turbo.data.tables.rows import GroupReader, Rows, all_rows, left_out_rows, raise_first_flaw, read_rows
from keras_turbo.devices.free_memory import free_memory_bytes

# Rows of a window of row groups. More shuffle better, and all of them must be in memory, with those of the next one.
_WINDOW_BYTES = 256 << 20
# Twice, since the rows of the next window are read while those of one before are still in use.
_WINDOWS_IN_MEMORY = 2
# Not shuffled, one row group is read, the next one in advance, and one is for who is slow.
_GROUPS_IN_ORDER = 3
# Decoded, a table is there as row groups and as tensors for a moment.
_COPIES_WHILE_LOADING = 2

# Rows that are read together: enough that a call of Python is little beside them, few enough to be no memory.
_MOST_AT_ONCE = 8192
_BYTES_AT_ONCE = 4 << 20


@dataclasses.dataclass(frozen=True)
class Table:
    """What is known of a table before its rows are read.

    Attributes:
        kind: "parquet" or "csv".
        paths: of the files, for the identity.
        columns: what is read.
        parts: what of an element they are.
        fills: what stands for missing values, by column.
        left_out: what can't be read, and is left out.
        window: row groups whose rows are shuffled together, also where the table is in memory; None for all that can be.
    """

    kind: str
    paths: list[str]
    columns: list[Column]
    parts: Parts
    fills: Mapping[str, Any]
    left_out: list[SkippedExample]
    window: int | None = None

    def identity(self) -> Identity:
        content = []
        for path in map(os.path.abspath, self.paths):
            try:
                status = os.stat(path)
                content.append([path, status.st_size, status.st_mtime_ns])
            except OSError:  # gone meanwhile: reading it says so
                content.append([path, -1, -1])
        recipe = {
            "kind": self.kind,
            "files": [path for path, _, _ in content],
            "columns": repr(self.columns),
            "parts": repr(self.parts),
            "missing": repr(sorted(self.fills.items())),
            "left_out": [list(dataclasses.astuple(one)) for one in self.left_out],
        }
        return Identity(recipe=recipe, content={"files": content})


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
        parts: at least one.

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
        self._columns = all_rows([part.rows for part in parts], table.parts.names)
        with tf.device("CPU:0"):
            self._tensors = {name: tf.convert_to_tensor(values.array) for name, values in self._columns.items()}
            self._words = {
                name: tf.convert_to_tensor(values.vocabulary, tf.string)
                for name, values in self._columns.items()
                if values.vocabulary is not None
            }

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
        columns = {}
        for name, tensor in self._tensors.items():
            columns[name] = tf.gather(tensor, positions)
            if name in self._words:
                columns[name] = tf.gather(self._words[name], columns[name])
        return self._table.parts.element(columns)

    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        return self.gather(position)

    def describe(self, position: int) -> str:
        ends = np.cumsum(self._sizes)
        part = int(np.searchsorted(ends, position, "right"))
        row = position - int(ends[part]) + self._sizes[part]
        return f"{self._names[part]}, row {self._numbers[part][row]}"

    def labels_at(self, positions: np.ndarray) -> np.ndarray | None:
        label = self._table.parts.label
        return None if label is None else self._columns[label].take(positions).with_strings().array

    def identity(self) -> Identity:
        return self._table.identity()


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


def source_of_groups(
    table: Table, groups: Sequence[RowGroup], settings: Settings, *, stacklevel: int
) -> tuple[LoadedTableSource | RowGroupSource, Settings]:
    """The source of a table in row groups, and the settings as they apply to it.

    Args:
        table: what is known of it.
        groups: at least one.
        settings: of which `cache`, `shuffle` and `on_error` count.
        stacklevel: how far away the caller is who shall see a warning.

    Raises:
        ExampleLoadError: rows have flaws that are seen when it is built.
        ValueError: it was asked to be kept in memory and is too large, or a row group is.
    """
    sizes = bytes_of_groups(groups, table.columns)
    total = int(sizes.sum())
    skip = settings.on_error == "skip"
    fits = fits_in_memory(_COPIES_WHILE_LOADING * total)
    if settings.cache == "memory" and _COPIES_WHILE_LOADING * total > free_memory_bytes():
        raise ValueError(
            f"cache='memory' needs about {_gigabytes(_COPIES_WHILE_LOADING * total)} to load "
            f"{sum(group.num_rows for group in groups)} rows, but {_gigabytes(free_memory_bytes())} are free. Use "
            "cache='auto' to read them by row groups, or choose `columns`."
        )
    loads = settings.cache == "memory" or (settings.cache == "auto" and fits)
    if loads:
        # The table itself is in memory now. What map_fn makes of it is kept where it can be.
        settings = dataclasses.replace(settings, cache="auto")
    if loads and not any(column.is_ragged for column in table.columns):
        parts = []
        for group in groups:
            part = LoadedPart(read_rows(group, table.columns, table.fills), group.file.name, group.row_numbers)
            if not skip:
                raise_first_flaw(part.rows, part.name, part.numbers)
            parts.append(part)
        return LoadedTableSource(table, parts), settings
    if loads:
        reader = GroupReader(groups, table.columns, table.fills, most_kept=len(groups))
        if not skip:
            reader.check_all()
        return RowGroupSource(table, groups, reader, total / reader.num_rows, table.window), settings
    return row_group_source(table, groups, settings, stacklevel=stacklevel + 1)


def row_group_source(
    table: Table, groups: Sequence[RowGroup], settings: Settings, *, stacklevel: int
) -> tuple[RowGroupSource, Settings]:
    """The source of a table that is read by row groups, and the settings as they apply to it.

    Raises:
        ValueError: a row group is too large.
    """
    sizes = bytes_of_groups(groups, table.columns)
    window = _window(table, groups, sizes, settings, stacklevel + 1)
    most = _WINDOWS_IN_MEMORY * window if settings.shuffle else _GROUPS_IN_ORDER
    reader = GroupReader(groups, table.columns, table.fills, most_kept=most)
    return RowGroupSource(table, groups, reader, float(sizes.sum()) / reader.num_rows, window), settings


def _window(
    table: Table, groups: Sequence[RowGroup], sizes: np.ndarray, settings: Settings, stacklevel: int
) -> int:
    """How many row groups are shuffled together, by what the files say alone: the same on every machine."""
    free, largest = free_memory_bytes(), int(np.argmax(sizes))
    window = table.window or max(1, _WINDOW_BYTES // max(1, int(sizes[largest])))
    window = min(window, len(groups))
    needed = (_WINDOWS_IN_MEMORY * window if settings.shuffle else _GROUPS_IN_ORDER) * int(sizes[largest])
    if needed > free:
        raise ValueError(
            f"{groups[largest].name} has {groups[largest].num_rows} rows, about {_gigabytes(int(sizes[largest]))} once "
            f"they are decoded, and {_gigabytes(needed)} are needed to read such row groups, but {_gigabytes(free)} are "
            "free. Write the files with smaller row groups (row_group_size=100_000 of pyarrow.parquet.write_table), "
            "choose `columns`, or give a smaller `shuffle_row_groups`."
        )
    if settings.shuffle and window < len(groups) and table.window is None:
        why = "it is too large for the memory" if settings.cache == "auto" else f"cache={settings.cache!r}"
        warnings.warn(
            f"The table is read by row groups ({why}), so that its shuffle is not a full one: the row groups come in a "
            f"random order, and rows are shuffled within windows of {window} of the {len(groups)}. Give "
            f"shuffle_row_groups={window} to have the same order wherever it runs, or more for a better shuffle.",
            stacklevel=stacklevel,
        )
    return window


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
