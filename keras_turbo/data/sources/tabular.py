"""Whether a table is kept in memory or read a row group at a time."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np

from keras_turbo.data.example_store import fits_in_memory
from keras_turbo.data.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.loaded_table import LoadedPart, LoadedTableSource
from keras_turbo.data.sources.row_groups import RowGroupSource
from keras_turbo.data.tables.row_groups import RowGroup, bytes_of_groups
from keras_turbo.data.tables.rows import GroupReader, raise_first_flaw, read_rows
from keras_turbo.data.tables.table import Table
from keras_turbo.machine import free_memory_bytes

# Rows of a window of row groups. More shuffle better, and all of them must be in memory, with those of the next one.
_WINDOW_BYTES = 256 << 20
# Twice, since the rows of the next window are read while those of one before are still in use.
_WINDOWS_IN_MEMORY = 2
# Not shuffled, one row group is read, the next one in advance, and one is for who is slow.
_GROUPS_IN_ORDER = 3
# Decoded, a table is there as row groups and as tensors for a moment.
_COPIES_WHILE_LOADING = 2


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
        parts, left_out = [], list(table.left_out)
        for group in groups:
            try:
                part = LoadedPart(read_rows(group, table.columns, table.fills), group.file.name, group.row_numbers)
            except ExampleLoadError as error:
                if not skip:
                    raise
                left_out += [
                    SkippedExample(f"{group.file.name}, row {number}", group.reason_in(error))
                    for number in group.row_numbers
                ]
                continue
            if not skip:
                raise_first_flaw(part.rows, part.name, part.numbers)
            parts.append(part)
        return LoadedTableSource(dataclasses.replace(table, left_out=left_out), parts), settings
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


def _window(table: Table, groups: Sequence[RowGroup], sizes: np.ndarray, settings: Settings, stacklevel: int) -> int:
    """How many row groups are shuffled together, by what the files say alone: the same on every machine."""
    free, largest = free_memory_bytes(), int(np.argmax(sizes))
    window = table.window or max(1, _WINDOW_BYTES // max(1, int(sizes[largest])))
    window = min(window, len(groups))
    needed = (_WINDOWS_IN_MEMORY * window if settings.shuffle else _GROUPS_IN_ORDER) * int(sizes[largest])
    if needed > free:
        raise ValueError(
            f"{groups[largest].name} has {groups[largest].num_rows} rows, about {_gigabytes(int(sizes[largest]))} once "
            f"they are decoded, and {_gigabytes(needed)} are needed to read such row groups, but {_gigabytes(free)} "
            "are free. Write the files with smaller row groups (row_group_size=100_000 of "
            "pyarrow.parquet.write_table), choose `columns`, or give a smaller `shuffle_row_groups`."
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
