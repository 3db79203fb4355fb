"""CSV files, each row of which is one example: kept in memory; those that do not fit there, as copies in Parquet.

CACHE_DIR/tabular/<digest of path>/<digest of the file's state>-<digest of how it is read>.parquet
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_turbo.data.engine.disk_store import default_cache_dir, digest, remove_abandoned
from keras_turbo.data.engine.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.engine.store import LARGEST_SHARE_OF_FREE
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.tables import (
    COPIES_WHILE_LOADING,
    LoadedTable,
    TableSource,
    source_of_groups,
    warn_of_left_out,
)
from keras_turbo.data.tables.columns import Rows, load_pyarrow
from keras_turbo.data.tables.csv_files import CsvFormat, OtherTypesError, csv_rows, first_types, whole_types
from keras_turbo.data.tables.parquet_files import TableFile, open_file
from keras_turbo.data.tables.table import DisagreementError, Request, Table, each_file, find_table_files, no_row
from keras_turbo.devices.free_memory import free_memory_bytes
from keras_turbo.progress import progress_bar
from keras_turbo.storage import paths as storage

FORMAT_VERSION = 2

# A row group of a copy has so many rows (fewer, if they are so large): reading one is no more than reading, and many
# are shuffled.
_ROWS_IN_GROUP = 65_536
_BYTES_IN_GROUP = 256 << 20

# How the names of copies begin that are not whole.
_UNFINISHED = ".converting-"

# Where a copy keeps which rows it has not.
_LEFT_OUT_KEY = b"keras_turbo.left_out"

# The rows of a file but those that are put into the list.
_Read = Callable[[str, list[SkippedExample]], Iterator[Rows]]


class _TooLargeError(Exception):
    """The rows take more memory than they may."""


def csv_source(pattern: Any, request: Request, form: CsvFormat, settings: Settings) -> tuple[TableSource, Settings]:
    """The source of `FastDataset.from_csv`, and the settings as they apply to it."""
    pa = load_pyarrow("from_csv()")
    skip = settings.on_error == "skip"
    paths = find_table_files(pattern, (".csv", ".tsv"), "CSV")
    files, left_out = each_file(paths, lambda path: first_types(path, form), skip=skip)
    parts = request.parts(files[0][1].names, files[0][0])
    # The types of the first rows, if they are those of all, which is seen when all are read.
    for whole in (False, True):
        if whole:
            known = [path for path, _ in files]
            files, more = each_file(known, lambda path: whole_types(path, form, parts.names), skip=skip)
            left_out = left_out + more
            request = dataclasses.replace(request, columns=parts.x)
        try:
            schema, kinds = request.schema(files, parts, are_text=True)
            wanted = request.names_of_types
            parsed = {name: kind for name, kind in kinds.items() if name not in wanted and kind != pa.string()}
            table = Table(paths, schema, parts, request.fills(schema), left_out, written_as=repr(form))

            def read(
                path: str, left_out: list[SkippedExample], table: Table = table, parsed: Any = parsed
            ) -> Iterator[Rows]:
                for rows in csv_rows(path, form, parsed, table.schema, table.fills):
                    yield rows.whole(left_out, skip=skip)

            source, settings = _source_of(table, [path for path, _ in files], read, settings)
            break
        except (OtherTypesError, DisagreementError) as error:
            if whole:
                raise ValueError(str(error)) from error
    warn_of_left_out(source.left_out, stacklevel=3)
    return source, settings


def _source_of(table: Table, paths: list[str], read: _Read, settings: Settings) -> tuple[TableSource, Settings]:
    skip, must = settings.on_error == "skip", settings.cache == "memory"
    most = free_memory_bytes() * (1 if must else LARGEST_SHARE_OF_FREE) / COPIES_WHILE_LOADING
    size = 0

    def load(path: str) -> tuple[list[Rows], list[SkippedExample]]:
        nonlocal size
        parts: list[Rows] = []
        left_out: list[SkippedExample] = []
        for rows in read(path, left_out):
            parts.append(rows)
            size += rows.batch.nbytes
            if size > most:
                raise _TooLargeError
        return parts, left_out

    try:
        # Columns take about as much as their text.
        if must or sum(status.size for status in storage.statuses_of(paths)) <= most:
            loaded, left_out = each_file(paths, load, skip=skip)
            left_out = [*table.left_out, *left_out, *(one for _, found in loaded for one in found)]
            rows = [one for parts, _ in loaded for one in parts]
            loaded.clear()
            # The table itself is in memory now. What map_fn makes of it is kept where it can be.
            settings = dataclasses.replace(settings, cache="auto" if must else settings.cache)
            return LoadedTable(dataclasses.replace(table, left_out=left_out), _drained(rows)), settings
    except _TooLargeError:
        if must:
            raise ValueError(
                f"cache='memory' needs more than the {COPIES_WHILE_LOADING * most / 1e9:.2f} GB that are free to load "
                "the table. Use cache='auto' to have it converted to Parquet and read a part at a time, or choose "
                "`columns`."
            ) from None
    with progress_bar("Converting CSV files", len(paths)) as advance:

        def copy(path: str) -> tuple[TableFile, list[SkippedExample]]:
            made = _copy_of(path, table, read, settings)
            advance(1)
            return made

        copies, left_out = each_file(paths, copy, skip=skip)
    left_out = [*table.left_out, *left_out, *(one for _, found in copies for one in found)]
    groups = [group for file, _ in copies for group in file.row_groups()]
    if not groups:
        raise no_row(table.paths, left_out)
    table = dataclasses.replace(table, left_out=left_out)
    return source_of_groups(table, groups, settings, may_load=False, stacklevel=5)


def _drained(rows: list[Rows]) -> Iterator[Rows]:
    """The items of a list that nobody holds any longer when the next one is taken."""
    while rows:
        yield rows.pop(0)


def _copy_of(path: str, table: Table, read: _Read, settings: Settings) -> tuple[TableFile, list[SkippedExample]]:
    """The copy of a file, which is made if there is none that is up to date, and what it has not."""
    status = storage.status_of(path)
    state = digest([FORMAT_VERSION, status.size, status.changed_ns])
    how = digest([table.written_as, str(table.schema), repr(sorted(table.fills.items())), settings.on_error])
    folder = settings.cache_dir_or(default_cache_dir()) / "tabular" / digest(os.fsdecode(storage.absolute(path)))
    place = folder / f"{state}-{how}.parquet"
    copy = _opened(place, path)
    if copy is None:
        _write(path, table.schema, read, place)
        # Copies of the same state that are read otherwise may be in use, by this process too.
        for other in folder.glob("*.parquet"):
            if not other.name.startswith(f"{state}-"):
                other.unlink(missing_ok=True)
        copy = _opened(place, path)
    if copy is None:
        raise ExampleLoadError(f"{path}: its copy {str(place)!r} was removed while it was read.")
    return copy


def _opened(place: pathlib.Path, path: str) -> tuple[TableFile, list[SkippedExample]] | None:
    """A copy and what it has not; None where there is none that can be read."""
    try:
        file = open_file(str(place), path)
        reasons = {int(number): str(reason) for number, reason in json.loads(file.metadata.metadata[_LEFT_OUT_KEY])}
    except (ExampleLoadError, KeyError, TypeError, ValueError):
        return None
    file = dataclasses.replace(file, left_out=np.array(sorted(reasons), np.int64))
    return file, [SkippedExample(f"{path}, row {number}", reasons[number]) for number in sorted(reasons)]


def _write(path: str, schema: Any, read: _Read, place: pathlib.Path) -> None:
    pa = load_pyarrow("from_csv()")
    left_out: list[SkippedExample] = []
    temporary = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(place.parent, _UNFINISHED)
        most = LARGEST_SHARE_OF_FREE * shutil.disk_usage(place.parent).free
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=_UNFINISHED)
        with os.fdopen(handle, "wb") as file, pa.parquet.ParquetWriter(file, schema) as writer:
            for group in _in_groups(read(path, left_out), schema):
                writer.write_table(group, row_group_size=_ROWS_IN_GROUP)
                if file.tell() > most:
                    raise OSError(errno.ENOSPC, "it takes more than half of what is free there")  # noqa: TRY301
            # Known only now.
            pairs = [[int(one.path.rpartition(" ")[2]), one.reason] for one in left_out]
            writer.add_key_value_metadata({_LEFT_OUT_KEY: json.dumps(pairs).encode()})
        os.replace(temporary, place)
        temporary = None
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path!r} does not fit in memory, and is converted in {str(place.parent)!r} to be read a part at a time, "
            f"which failed ({error}). Give a folder with more room as `cache_dir`",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _in_groups(parts: Iterator[Rows], schema: Any) -> Iterator[Any]:
    """Tables of whole row groups, and a last one of what is left."""
    pa = load_pyarrow("from_csv()")
    waiting: list[Any] = []
    for rows in parts:
        waiting.append(rows.batch)
        number, size = sum(batch.num_rows for batch in waiting), sum(batch.nbytes for batch in waiting)
        if number >= _ROWS_IN_GROUP or size >= _BYTES_IN_GROUP:
            table = pa.Table.from_batches(waiting, schema)
            full = number // _ROWS_IN_GROUP * _ROWS_IN_GROUP if size < _BYTES_IN_GROUP else number
            yield table.slice(0, full)
            waiting = table.slice(full).to_batches()
    if waiting:
        yield pa.Table.from_batches(waiting, schema)
