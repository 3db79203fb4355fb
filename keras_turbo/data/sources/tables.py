"""Rows of tables: columns in memory, or read a row group at a time; and Parquet files as such."""

from __future__ import annotations

import abc
import dataclasses
import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.engine.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.engine.order import ExampleOrder
from keras_turbo.data.engine.store import ExampleStore, fits_in_memory
from keras_turbo.data.settings import Settings, check_count
from keras_turbo.data.sources.files import files_content
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.data.tables.columns import (
    TEXT,
    Flaw,
    Rows,
    decode,
    held,
    is_ragged,
    joined,
    load_pyarrow,
    name_of,
    spec_of,
    taken,
    text_bytes,
)
from keras_turbo.data.tables.parquet_files import RowGroup, common_length, open_file
from keras_turbo.data.tables.row_group_order import RowGroupOrder
from keras_turbo.data.tables.table import Request, Table, each_file, find_table_files, no_row
from keras_turbo.machine import free_memory_bytes

# Rows of a window of row groups. More shuffle better, and all of them must be in memory, with those of the next one.
_WINDOW_BYTES = 256 << 20
# Twice, since the rows of the next window are read while those of one before are still in use.
_WINDOWS_IN_MEMORY = 2
# Not shuffled, one row group is read, the next one in advance, and one is for who is slow.
_GROUPS_IN_ORDER = 3
# So much is kept in any case: where row groups are small, threads are ahead by several of them.
_LITTLE_BYTES = 64 << 20
# In less text than this no word is so long that two thousand rows with it, as come in one call, are much memory.
_LONG_WORDS_BYTES = 1 << 18
# A table that is loaded may be there in parts and in one piece for a moment.
COPIES_WHILE_LOADING = 2

_Made = tuple[list[Column], dict[int, Exception]]


class TableSource(Source):
    """Rows of a table, in parts that lie together: the name of a file, and the numbers of rows in it."""

    loads_together = True

    def __init__(
        self, table: Table, parts: Sequence[tuple[str, Sequence[int] | np.ndarray]], row_text_bytes: int = 0
    ) -> None:
        self._table = table
        self._parts = parts
        self._sizes = tuple(len(numbers) for _, numbers in parts)
        self._ends = np.cumsum(self._sizes)
        self.left_out = table.left_out
        elements = Elements(
            table.parts.element(lambda name: spec_of(table.schema.field(name))),
            tuple("ragged" if is_ragged(kind) else "dense" for kind in table.schema.types),
        )
        words = sum(leaf.shape.num_elements() or 1 for leaf in elements.leaves if leaf.dtype == "string")
        mean = max(elements.string_bytes, row_text_bytes // max(1, words))
        self.elements = dataclasses.replace(elements, string_bytes=mean)

    def __len__(self) -> int:
        return sum(self._sizes)

    def order(self, *, shuffle: bool, seed: int, reshuffle_each_epoch: bool) -> ExampleOrder:
        window = self._table.window
        if window is None:
            return super().order(shuffle=shuffle, seed=seed, reshuffle_each_epoch=reshuffle_each_epoch)
        return RowGroupOrder(len(self), shuffle, seed, reshuffle_each_epoch, group_sizes=self._sizes, window=window)

    def name(self, position: int) -> str:
        part = int(np.searchsorted(self._ends, position, "right"))
        file, numbers = self._parts[part]
        return f"{file}, row {numbers[position - int(self._ends[part])]}"

    @abc.abstractmethod
    def _columns_at(self, positions: np.ndarray, indices: Sequence[int]) -> _Made:
        """As `load`, some of the columns."""

    def load(self, positions: np.ndarray, seeds: Any, in_place: Any) -> _Made:
        return self._columns_at(positions, range(len(self._table.schema)))

    def labels_at(self, positions: np.ndarray) -> Any:
        targets = self._table.parts.targets
        if not targets:
            return None
        (labels,), failed = self._columns_at(positions, [self._table.schema.get_field_index(targets[0])])
        if failed:
            raise ExampleLoadError(f"{self.name(int(positions[min(failed)]))}: {failed[min(failed)]}")
        return labels

    def identity(self) -> Identity:
        table = self._table
        content = files_content(table.paths)
        left_out = [list(dataclasses.astuple(one)) for one in table.left_out]
        how = [*table.how, repr(table.parts), left_out]
        return Identity({"kind": "table", "files": [path for path, *_ in content], "how": how}, {"files": content})


class LoadedTable(TableSource):
    """Rows of columns that are in memory; `rows` are those of the files, all without a flaw."""

    loading_is_called = "gather"

    def __init__(self, table: Table, rows: Iterable[Rows]) -> None:
        parts: list[tuple[str, Any]] = []
        chunks: list[list[Any]] = [[] for _ in table.schema]
        num_rows = num_bytes = 0
        for part in rows:
            if part.batch is not None:
                parts.append((part.name, part.numbers))
                for column, values in zip(chunks, part.batch.columns, strict=True):
                    column.append(values)
                    num_bytes += text_bytes(values)
                num_rows += len(part.batch)
        super().__init__(table, parts, num_bytes // max(1, num_rows))
        if not len(self):
            raise no_row(table.paths, table.left_out)
        # One after the other, so that no more than one column is there twice.
        self._columns = [joined(chunks.pop(0)) for _ in table.schema]
        load_pyarrow().default_memory_pool().release_unused()
        is_plain = all(isinstance(column, np.ndarray) for column in self._columns)
        self._store = ExampleStore(self._columns, np.ones(len(self), np.bool_)) if is_plain else None

    def as_store(self) -> ExampleStore | None:
        return self._store

    def _columns_at(self, positions: np.ndarray, indices: Sequence[int]) -> _Made:
        return [taken(self._columns[index], positions) for index in indices], {}


class RowGroupSource(TableSource):
    """Rows that are read a row group at a time, in the order of positions; the latest ones are kept decoded."""

    can_fail = True
    loading_is_called = None

    def __init__(self, table: Table, groups: Sequence[RowGroup], most_kept: int) -> None:
        parts = [(group.file.name, group.numbers) for group in groups]
        super().__init__(table, parts, _row_text_bytes(table, groups))
        self._groups = groups
        self._most_kept = most_kept
        self._kept: dict[int, tuple[list[Any], dict[int, Flaw]]] = {}
        self._lock = threading.Lock()

    def _columns_at(self, positions: np.ndarray, indices: Sequence[int]) -> _Made:
        zeros, forms = self.elements.zeros(len(positions)), self.elements.forms
        columns = [list(zeros[at]) if forms[at] == "ragged" else zeros[at] for at in indices]
        failed: dict[int, Exception] = {}
        parts = np.searchsorted(self._ends, positions, "right")
        for part in np.unique(parts).tolist():
            kept, flaws = self._decoded(part)
            places = np.flatnonzero(parts == part)
            rows = positions[places] - self._ends[part] + self._sizes[part]
            for column, at in zip(columns if kept else [], indices, strict=False):
                values = taken(kept[at], rows)
                if isinstance(column, np.ndarray):
                    column[places] = values
                else:
                    for place, value in zip(places.tolist(), values, strict=True):
                        column[place] = value
            for place, row in zip(places.tolist(), rows.tolist(), strict=True) if flaws else ():
                flaw = flaws.get(int(self._parts[part][1][row]))
                if flaw is not None:
                    failed[place] = ExampleLoadError(". ".join(flaw))
        return columns, failed

    def _decoded(self, part: int) -> tuple[list[Any], dict[int, Flaw]]:
        """The columns of a row group (none, if it can't be read), and what is wrong with which of its rows."""
        kept = self._kept.get(part)
        if kept is None:
            # Others that want a new one wait; those that want one that is there do not.
            with self._lock:
                kept = self._kept.get(part)
                if kept is None:
                    rows = read_rows(self._table, self._groups[part])
                    columns = [] if rows.batch is None else [held(column) for column in rows.batch.columns]
                    kept = self._kept[part] = columns, rows.flaws
                while len(self._kept) > self._most_kept:
                    del self._kept[next(iter(self._kept))]
        return kept


def _row_text_bytes(table: Table, groups: Sequence[RowGroup]) -> int:
    """What the words of a row take, by the row group that has most text; 0 where none can be long."""
    names = [field.name for field in table.schema if name_of(field.type) == TEXT]
    most, group = max(
        ((sum(chunk.total_uncompressed_size for _, chunk in one.stored(names)), one) for one in groups),
        key=lambda pair: pair[0],
    )
    if most < _LONG_WORDS_BYTES:
        return 0
    batch = read_rows(table, group).batch
    return 0 if batch is None else sum(map(text_bytes, batch.columns)) // max(1, len(batch))


def read_rows(table: Table, group: RowGroup) -> Rows:
    """Reads and decodes a row group, of which no row may be there."""
    name, numbers = group.file.name, group.numbers
    try:
        given = group.read(table.schema.names)
    except ExampleLoadError as error:
        what = str(error).removeprefix(f"{name}, ").removesuffix(".")
        return Rows(name, numbers, None, dict.fromkeys(numbers, (what, "")))
    return decode(given, table.schema, table.fills, name, numbers)


def parquet_source(
    pattern: Any, request: Request, shuffle_row_groups: int | None, settings: Settings
) -> tuple[TableSource, Settings]:
    """The source of `FastDataset.from_parquet`, and the settings as they apply to it."""
    load_pyarrow("from_parquet()")
    check_count("shuffle_row_groups", shuffle_row_groups, "None, for as many as are little memory")
    skip = settings.on_error == "skip"
    paths = find_table_files(pattern, (".parquet", ".pq"), "Parquet")
    files, left_out = each_file(paths, open_file, skip=skip)
    files = [file for file in files if file.metadata.num_rows]
    if not files:
        raise no_row(paths, left_out)
    groups = [group for file in files for group in file.row_groups()]
    # What pandas wrote of a frame's index, and gives back as one.
    index = (files[0].schema.pandas_metadata or {}).get("index_columns", [])
    table, _ = request.table(
        [(file.name, file.schema) for file in files],
        request.parts(files[0].schema.names, files[0].name, hidden=index),
        lambda name: common_length(groups, name, skip=skip),
        paths=paths,
        left_out=left_out,
        window=shuffle_row_groups,
    )
    source, settings = source_of_groups(table, groups, settings, may_load=True, stacklevel=4)
    warn_of_left_out(source.left_out, stacklevel=3)
    return source, settings


def source_of_groups(
    table: Table, groups: Sequence[RowGroup], settings: Settings, *, may_load: bool, stacklevel: int
) -> tuple[TableSource, Settings]:
    """The source of a table in row groups, and the settings as they apply to it.

    Raises where rows that are loaded are not in order, and where what is to be in memory is too large. `stacklevel`
    tells who shall see a warning.
    """
    sizes, read = zip(*(group.num_bytes(table.schema) for group in groups), strict=True)
    needed, free = COPIES_WHILE_LOADING * (sum(sizes) + max(read)), free_memory_bytes()
    if may_load and settings.cache == "memory" and needed > free:
        raise ValueError(
            f"cache='memory' needs about {needed / 1e9:.2f} GB to load {sum(len(one.numbers) for one in groups)} rows, "
            f"but {free / 1e9:.2f} GB are free. Use cache='auto' to read them by row groups, or choose `columns`."
        )
    if may_load and (settings.cache == "memory" or (settings.cache == "auto" and fits_in_memory(needed))):
        left_out = list(table.left_out)
        skip = settings.on_error == "skip"
        rows = (read_rows(table, group).whole(left_out, skip=skip) for group in groups)
        # The table itself is in memory then. What map_fn makes of it is kept where it can be.
        settings = dataclasses.replace(settings, cache="auto")
        return LoadedTable(dataclasses.replace(table, left_out=left_out), rows), settings
    # By what the files say alone, so that the order is the same on every machine.
    largest = int(np.argmax(sizes))
    window = min(table.window or max(1, _WINDOW_BYTES // max(1, sizes[largest])), len(groups))
    most_kept = _WINDOWS_IN_MEMORY * window if settings.shuffle else _GROUPS_IN_ORDER
    needed = most_kept * sizes[largest] + max(read)
    if needed > free:
        raise ValueError(
            f"{groups[largest].name} has {len(groups[largest].numbers)} rows, about {sizes[largest] / 1e9:.2f} GB in "
            f"memory, and {needed / 1e9:.2f} GB are needed to read such row groups, but {free / 1e9:.2f} GB are free. "
            "Write the files with smaller row groups (row_group_size=100_000 of pyarrow.parquet.write_table), choose "
            "`columns`, or give a smaller `shuffle_row_groups`."
        )
    if settings.shuffle and window < len(groups) and table.window is None:
        why = "it is too large for the memory" if settings.cache == "auto" else f"cache={settings.cache!r}"
        warnings.warn(
            f"The table is read by row groups ({why}), so that its shuffle is not a full one: the row groups come in a "
            f"random order, and rows are shuffled within windows of {window} of the {len(groups)}. Give "
            f"shuffle_row_groups={window} to have the same order wherever it runs, or more for a better shuffle.",
            stacklevel=stacklevel,
        )
    most_kept = max(most_kept, _LITTLE_BYTES // max(1, sizes[largest]))
    return RowGroupSource(dataclasses.replace(table, window=window), groups, most_kept), settings


def warn_of_left_out(left_out: Sequence[SkippedExample], *, stacklevel: int) -> None:
    """Warns once of what was left out when a source was built; `stacklevel` tells who shall see it."""
    if left_out:
        first, others = left_out[0], f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        warnings.warn(
            f"Left out, since it can't be used: {first.path}: {first.reason} `skipped` of the dataset lists this one"
            f"{others}.",
            stacklevel=stacklevel + 1,
        )
