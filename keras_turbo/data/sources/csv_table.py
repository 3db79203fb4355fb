"""CSV files, each row of which is one example."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_turbo.data.example_store import fits_in_memory
from keras_turbo.data.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.loaded_table import LoadedPart, LoadedTableSource
from keras_turbo.data.sources.parquet import warn_of_left_out
from keras_turbo.data.sources.row_groups import RowGroupSource
from keras_turbo.data.sources.tabular import row_group_source
from keras_turbo.data.tables.columns import Column, check_dtypes, column_of
from keras_turbo.data.tables.csv_copies import copies_of
from keras_turbo.data.tables.csv_format import CsvFormat
from keras_turbo.data.tables.csv_rows import CsvRows, WiderColumnError, left_out_of
from keras_turbo.data.tables.csv_types import CsvLook, agreed_types, look_at
from keras_turbo.data.tables.files import find_table_files
from keras_turbo.data.tables.missing import Missing
from keras_turbo.data.tables.parts import check_known, check_names, parts_of
from keras_turbo.data.tables.pyarrow_library import load_pyarrow
from keras_turbo.data.tables.row_groups import numbers_without, row_groups_of
from keras_turbo.data.tables.rows import decode_rows, raise_first_flaw
from keras_turbo.data.tables.table import Table
from keras_turbo.files import default_cache_dir
from keras_turbo.machine import free_memory_bytes

_IN_NAMES = (".csv", ".tsv")

# A table that is loaded is there as Arrow has it, as rows of a file and as tensors, for a moment.
_COPIES_WHILE_LOADING = 3
# Python's object of a string, and its number.
_TEXT_OVERHEAD_BYTES = 52


def csv_source(
    pattern: str | os.PathLike | Sequence[str | os.PathLike],
    columns: str | Sequence[str] | None,
    *,
    label: str | None,
    sample_weight: str | None,
    form: CsvFormat,
    dtypes: Any,
    missing: Any,
    settings: Settings,
) -> tuple[LoadedTableSource | RowGroupSource, Settings]:
    """The source of `FastDataset.from_csv`, and the settings as they apply to it."""
    check_names(columns, label, sample_weight)
    wanted = check_dtypes(dtypes)
    option = Missing(missing)
    pa = load_pyarrow("from_csv()")
    paths = find_table_files(pattern, _IN_NAMES, "CSV")
    skip = settings.on_error == "skip"
    looks, left_out = look_at(paths, form, skip=skip)
    if not looks:
        raise ValueError(f"The {len(paths)} files that match {pattern!r} hold no row.")
    parts = parts_of(columns, label, sample_weight, looks[0].names, looks[0].path)
    check_known("`dtypes`", wanted, looks[0].names, looks[0].path)
    types = agreed_types(looks, wanted, None if columns is None else parts.names)
    types = {name: types[name] for name in parts.names}
    while True:
        read = [column_of(pa.field(name, kind), wanted.get(name), None, looks[0].path) for name, kind in types.items()]
        fills = option.values_for(read)
        filled = [column.name for column in read if column.is_text and column.name in fills]
        rows = CsvRows(form, types, types.keys() - wanted.keys(), filled, skip)
        table = Table("csv", paths, read, parts, fills, left_out, written_as=form.to_list())
        try:
            source, applied = _source(table, looks, rows, settings)
            break
        except WiderColumnError as error:
            types = types | {error.name: pa.float64()}
    warn_of_left_out(source.left_out, stacklevel=3)
    return source, applied


def _source(
    table: Table, looks: Sequence[CsvLook], rows: CsvRows, settings: Settings
) -> tuple[LoadedTableSource | RowGroupSource, Settings]:
    needed = _COPIES_WHILE_LOADING * sum(_bytes_of(look, table.columns) for look in looks)
    if settings.cache == "memory" and needed > free_memory_bytes():
        raise ValueError(
            f"cache='memory' needs about {needed / 1e9:.2f} GB to load the table, but {free_memory_bytes() / 1e9:.2f} "
            "GB are free. Use cache='auto' to have it converted to Parquet and read a part at a time, or choose "
            "`columns`."
        )
    if settings.cache == "memory" or fits_in_memory(int(needed)):
        # The table itself is in memory now. What map_fn makes of it is kept where it can be.
        kept = settings.cache if settings.cache != "memory" else "auto"
        return _loaded(table, looks, rows), dataclasses.replace(settings, cache=kept)
    files, left_out = copies_of([look.path for look in looks], rows, settings.cache_dir_or(default_cache_dir()))
    table = dataclasses.replace(table, left_out=[*table.left_out, *left_out])
    groups = row_groups_of(files)
    if not groups:
        raise no_row(table.paths, table.left_out)
    return row_group_source(table, groups, settings, stacklevel=5)


def _loaded(table: Table, looks: Sequence[CsvLook], rows: CsvRows) -> LoadedTableSource:
    pa = load_pyarrow("from_csv()")
    left_out = list(table.left_out)
    parts = []
    for look in looks:
        try:
            read, reasons = rows.read(look.path, lambda batches: pa.Table.from_batches(batches, rows.schema))
        except ExampleLoadError as error:
            if not rows.skip:
                raise
            left_out.append(SkippedExample(look.path, str(error).removeprefix(f"{look.path}: ")))
            continue
        left_out += left_out_of(look.path, reasons)
        numbers = numbers_without(np.array(sorted(reasons), np.int64), np.arange(read.num_rows))
        part = LoadedPart(decode_rows(read, table.columns, table.fills), look.path, numbers)
        if not rows.skip:
            raise_first_flaw(part.rows, part.name, part.numbers)
        parts.append(part)
    if not any(part.rows.num_rows for part in parts):
        raise no_row(table.paths, left_out)
    return LoadedTableSource(dataclasses.replace(table, left_out=left_out), parts)


def no_row(paths: Sequence[str], left_out: Sequence[SkippedExample]) -> Exception:
    """The error that there is nothing to train on."""
    if not left_out:
        return ValueError(f"The {len(paths)} files hold no row, {paths[0]!r} among them.")
    return ExampleLoadError(
        f"No row of {len(paths)} files can be used. The first: {left_out[0].path}: {left_out[0].reason}"
    )


def _bytes_of(look: CsvLook, columns: Sequence[Column]) -> float:
    """About how much memory a file takes, once it is decoded."""
    per_row = 0.0
    for column in columns:
        text = _TEXT_OVERHEAD_BYTES + look.text_bytes.get(column.name, 0.0)
        per_row += text if column.is_text else column.dtype.size
    return look.num_rows * per_row
