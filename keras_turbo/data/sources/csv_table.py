"""CSV files, each row of which is one example: kept in memory; those that do not fit there, as copies in Parquet.

CACHE_DIR/tabular/<digest of path>/<digest of the file's state>-<digest of how it is read>.parquet
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from keras_turbo import files as storage
from keras_turbo.data.engine.disk_store import digest
from keras_turbo.data.engine.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.engine.store import LARGEST_SHARE_OF_FREE
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources import tables
from keras_turbo.data.tables.columns import Rows, load_pyarrow
from keras_turbo.data.tables.csv_files import CsvFormat, OtherTypesError, csv_rows, first_types, whole_types
from keras_turbo.data.tables.parquet_files import TableFile, open_file
from keras_turbo.data.tables.table import DisagreementError, Request, Table, each_file, find_table_files, no_row
from keras_turbo.machine import free_memory_bytes
from keras_turbo.report import progress_bar

FORMAT_VERSION = 2

# A row group of a copy has so many rows (fewer, if they are so large): reading one is no more than reading, and many
# are shuffled.
_ROWS_IN_GROUP = 65_536
_BYTES_IN_GROUP = 256 << 20

# Where a copy keeps which rows it has not.
_LEFT_OUT_KEY = b"keras_turbo.left_out"

# Gives the rows of a file but those that it puts into the list.
_Read = Callable[[str, list[SkippedExample]], Iterator[Rows]]


class _TooLargeError(Exception):
    """The rows take more memory than they may."""


def csv_source(
    pattern: Any, request: Request, form: CsvFormat, settings: Settings
) -> tuple[tables.TableSource, Settings]:
    """The source of `FastDataset.from_csv`, and the settings as they apply to it."""
    skip = settings.on_error == "skip"
    paths = find_table_files(pattern, (".csv", ".tsv"), "CSV")
    files, left_out = each_file(paths, lambda path: first_types(path, form), skip=skip)
    parts = request.parts(files[0][1].names, files[0][0])
    known = [path for path, _ in files]
    try:
        source, settings = _source_of(request, files, parts, form, settings, paths=paths, left_out=left_out)
    except (OtherTypesError, DisagreementError):
        # Types were those of the first rows.
        files, more = each_file(known, lambda path: whole_types(path, form, parts.names), skip=skip)
        request, left_out = dataclasses.replace(request, columns=parts.x), left_out + more
        source, settings = _source_of(request, files, parts, form, settings, paths=paths, left_out=left_out)
    tables.warn_of_left_out(source.left_out, stacklevel=3)
    return source, settings


def _source_of(
    request: Request, files: list[tuple[str, Any]], parts: Any, form: CsvFormat, settings: Settings, **known: Any
) -> tuple[tables.TableSource, Settings]:
    """As `csv_source`, of files of which the types are known."""
    pa = load_pyarrow()
    table, kinds = request.table(files, parts, written_as=repr(form), **known)
    parsed = {name: kind for name, kind in kinds.items() if name not in request.types and kind != pa.string()}
    paths, skip, must = [path for path, _ in files], settings.on_error == "skip", settings.cache == "memory"

    def read(path: str, left_out: list[SkippedExample]) -> Iterator[Rows]:
        for rows in csv_rows(path, form, parsed, table.schema, table.fills):
            yield rows.whole(left_out, skip=skip)

    most = free_memory_bytes() * (1 if must else LARGEST_SHARE_OF_FREE) / tables.COPIES_WHILE_LOADING
    # Columns take about as much as their text.
    if must or sum(status.size for status in storage.each_path(storage.status_of, paths)) <= most:
        loaded = _loaded(table, paths, read, most, skip=skip)
        if loaded is not None:
            # The table itself is in memory now. What map_fn makes of it is kept where it can be.
            return loaded, dataclasses.replace(settings, cache="auto" if must else settings.cache)
        if must:
            free = tables.COPIES_WHILE_LOADING * most / 1e9
            raise ValueError(
                f"cache='memory' needs more than the {free:.2f} GB that are free to load the table. Use cache='auto' "
                "to have it converted to Parquet and read a part at a time, or choose `columns`."
            )
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
    return tables.source_of_groups(table, groups, settings, may_load=False, stacklevel=5)


def _loaded(table: Table, paths: list[str], read: _Read, most: float, *, skip: bool) -> tables.LoadedTable | None:
    """All rows in memory; None where they take more than `most` bytes."""
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
        loaded, left_out = each_file(paths, load, skip=skip)
    except _TooLargeError:
        return None
    left_out = [*table.left_out, *left_out, *(one for _, found in loaded for one in found)]
    # Nothing else holds them, so that each is gone when the next one is taken.
    rows = (parts.pop(0) for parts, _ in loaded for _ in range(len(parts)))
    return tables.LoadedTable(dataclasses.replace(table, left_out=left_out), rows)


def _copy_of(path: str, table: Table, read: _Read, settings: Settings) -> tuple[TableFile, list[SkippedExample]]:
    """The copy of a file, which is made if there is none that is up to date, and what it has not."""
    status = storage.status_of(path)
    state, how = digest([FORMAT_VERSION, *status]), digest([*table.how, settings.on_error])
    root = settings.cache_dir_or(storage.default_cache_dir()) / "tabular"
    folder = root / digest(os.fsdecode(storage.absolute(path)))
    place = folder / f"{state}-{how}.parquet"
    copy = _opened(str(place), path)
    if copy is None:
        _write(path, table.schema, read, str(place))
        # Copies of the same state that are read otherwise may be in use, by this process too.
        for other in folder.glob("*.parquet"):
            if not other.name.startswith(f"{state}-"):
                other.unlink(missing_ok=True)
        copy = _opened(str(place), path)
    if copy is None:
        raise ExampleLoadError(f"{path}: its copy {str(place)!r} was removed while it was read.")
    return copy


def _opened(place: str, path: str) -> tuple[TableFile, list[SkippedExample]] | None:
    """A copy and what it has not; None where there is none that can be read."""
    try:
        file = open_file(place, path)
        pairs = [(int(number), str(why)) for number, why in json.loads(file.metadata.metadata[_LEFT_OUT_KEY])]
    except (ExampleLoadError, KeyError, TypeError, ValueError):
        return None
    left_out = [SkippedExample(f"{path}, row {number}", why) for number, why in pairs]
    return dataclasses.replace(file, left_out=sorted(number for number, _ in pairs)), left_out


def _write(path: str, schema: Any, read: _Read, place: str) -> None:
    pa = load_pyarrow()
    folder, left_out = os.path.dirname(place), []
    try:
        storage.make_folder(folder)
        storage.remove_abandoned(folder)
        most = LARGEST_SHARE_OF_FREE * shutil.disk_usage(folder).free
        with storage.writing(place, syncs=False) as file, pa.parquet.ParquetWriter(file, schema) as writer:
            for group in _in_groups(read(path, left_out), schema):
                writer.write_table(group, row_group_size=_ROWS_IN_GROUP)
                if file.tell() > most:
                    raise OSError(errno.ENOSPC, "It takes more than half of what is free there")  # noqa: TRY301
            # Known only now.
            pairs = [[int(one.path.rpartition(" ")[2]), one.reason] for one in left_out]
            writer.add_key_value_metadata({_LEFT_OUT_KEY: json.dumps(pairs).encode()})
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path!r} does not fit in memory, and is converted in {folder!r} to be read a part at a time, which "
            f"failed ({error}). Give a folder with more room as `cache_dir`",
        ) from error


def _in_groups(parts: Iterator[Rows], schema: Any) -> Iterator[Any]:
    """Tables of whole row groups, and a last one of what is left."""
    pa = load_pyarrow()
    waiting = schema.empty_table()
    for rows in parts:
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([rows.batch])])
        is_large = waiting.nbytes >= _BYTES_IN_GROUP
        full = len(waiting) if is_large else len(waiting) // _ROWS_IN_GROUP * _ROWS_IN_GROUP
        if full:
            yield waiting.slice(0, full)
            waiting = waiting.slice(full)
    if len(waiting):
        yield waiting
