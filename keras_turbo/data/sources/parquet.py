"""Parquet files, each row of which is one example."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from keras_turbo.data.failures import SkippedExample
from keras_turbo.data.settings import Settings, check_count
from keras_turbo.data.sources.loaded_table import LoadedTableSource
from keras_turbo.data.sources.row_groups import RowGroupSource
from keras_turbo.data.sources.tabular import source_of_groups
from keras_turbo.data.tables.columns import check_dtypes
from keras_turbo.data.tables.files import find_table_files
from keras_turbo.data.tables.missing import Missing
from keras_turbo.data.tables.parts import check_known, check_names, parts_of
from keras_turbo.data.tables.pyarrow_library import load_pyarrow
from keras_turbo.data.tables.row_groups import check_agreement, columns_of, index_columns, open_files, row_groups_of
from keras_turbo.data.tables.table import Table

_IN_NAMES = (".parquet", ".pq")


def parquet_source(
    pattern: str | os.PathLike | Sequence[str | os.PathLike],
    columns: str | Sequence[str] | None,
    *,
    label: str | None,
    sample_weight: str | None,
    dtypes: Any,
    missing: Any,
    shuffle_row_groups: int | None,
    settings: Settings,
) -> tuple[LoadedTableSource | RowGroupSource, Settings]:
    """The source of `FastDataset.from_parquet`, and the settings as they apply to it."""
    check_names(columns, label, sample_weight)
    wanted = check_dtypes(dtypes)
    option = Missing(missing)
    check_count("shuffle_row_groups", shuffle_row_groups, "None, for as many as are little memory")
    load_pyarrow("from_parquet()")
    paths = find_table_files(pattern, _IN_NAMES, "Parquet")
    files, left_out = open_files(paths, skip=settings.on_error == "skip")
    groups = row_groups_of(files)
    if not groups:
        raise ValueError(f"The {len(paths)} files that match {pattern!r} hold no row.")
    files = list({id(group.file): group.file for group in groups}.values())
    parts = parts_of(
        columns,
        label,
        sample_weight,
        files[0].schema.names,
        files[0].name,
        hidden=index_columns(files[0]),
    )
    check_known("`dtypes`", wanted, files[0].schema.names, files[0].name)
    check_agreement(files, None if columns is None else parts.names, given=wanted)
    read = columns_of(files, groups, parts.names, wanted, skip=settings.on_error == "skip")
    fills = option.values_for(read)
    table = Table("parquet", paths, read, parts, fills, left_out, shuffle_row_groups)
    source, settings = source_of_groups(table, groups, settings, stacklevel=4)
    warn_of_left_out(source.left_out, stacklevel=3)
    return source, settings


def warn_of_left_out(left_out: Sequence[SkippedExample], *, stacklevel: int) -> None:
    """Warns once of what was left out when a source was built.

    Args:
        left_out: all of it.
        stacklevel: how far away the caller is who shall see the warning.
    """
    if left_out:
        first = left_out[0]
        others = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        warnings.warn(
            f"Left out, since it can't be used: {first.path}: {first.reason} `skipped` of the dataset lists this one"
            f"{others}.",
            stacklevel=stacklevel + 1,
        )
