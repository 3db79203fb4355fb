"""CSV files that are larger than memory, made into Parquet once: nothing can be read from the middle of them.

CACHE_DIR/tabular/<digest of path>/<digest of the file's state>-<digest of how it is read>.parquet
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.disk_store import digest
from keras_turbo.data.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.tables.csv_rows import CsvRows, left_out_of
from keras_turbo.data.tables.pyarrow_library import load_pyarrow
from keras_turbo.data.tables.row_groups import TableFile, open_file
from keras_turbo.report import progress_bar

FORMAT_VERSION = 1

# Rows of a row group of a copy: enough that reading one is no more than reading, few enough that many are shuffled.
_ROWS_IN_GROUP = 65_536

# Where a copy keeps which rows it has not.
_LEFT_OUT_KEY = b"keras_turbo.left_out"


def copies_of(
    paths: Sequence[str], rows: CsvRows, cache_folder: pathlib.Path
) -> tuple[list[TableFile], list[SkippedExample]]:
    """The copies of some files: those that were kept if they are up to date, else new ones; with a progress bar.

    Args:
        paths: of the files.
        rows: how they are read.
        cache_folder: under which copies are kept.

    Returns:
        The copies, and what was left out.

    Raises:
        ExampleLoadError: a file can't be read, or a row is none, and nothing is to be left out.
        WiderColumnError: the types have to change.
        OSError: the cache folder can't take a copy.
    """
    files, left_out = [], []
    with progress_bar("Converting CSV files", len(paths)) as advance:
        for path in paths:
            try:
                file, reasons = _copy_of(path, rows, cache_folder / "tabular")
                files.append(file)
                left_out += left_out_of(path, reasons)
            except ExampleLoadError as error:
                if not rows.skip:
                    raise
                left_out.append(SkippedExample(path, str(error).removeprefix(f"{path}: ")))
            advance(1)
    return files, left_out


def _copy_of(path: str, rows: CsvRows, folder: pathlib.Path) -> tuple[TableFile, dict[int, str]]:
    status = storage.status_of(path)
    types = [[name, str(kind)] for name, kind in rows.types.items()]
    state = digest([FORMAT_VERSION, status.size, status.changed_ns])
    how = digest([rows.form.to_list(), types, sorted(rows.filled), rows.skip])
    place = folder / digest(os.fsdecode(storage.absolute(path))) / f"{state}-{how}.parquet"
    copy = _opened(place, path)
    if copy is None:
        _write(path, rows, place)
        # Copies of the same state with other columns may be in use, by this process too.
        for other in place.parent.glob("*.parquet"):
            if not other.name.startswith(f"{state}-"):
                other.unlink(missing_ok=True)
        copy = _opened(place, path)
    if copy is None:
        raise ExampleLoadError(f"{path}: its copy {str(place)!r} was removed while it was read.")
    return copy


def _opened(place: pathlib.Path, path: str) -> tuple[TableFile, dict[int, str]] | None:
    """A copy and what it has not; None where there is none that can be read."""
    try:
        file = open_file(str(place), name=path)
        pairs = json.loads(file.metadata.metadata[_LEFT_OUT_KEY])
    except (ExampleLoadError, KeyError, TypeError, ValueError):
        return None
    reasons = {int(number): str(reason) for number, reason in pairs}
    numbers = np.array(sorted(reasons), np.int64)
    return dataclasses.replace(file, left_out=numbers), reasons


def _write(path: str, rows: CsvRows, place: pathlib.Path) -> None:
    pa = load_pyarrow("from_csv()")
    try:
        storage.make_folder(str(place.parent))
        storage.remove_abandoned(str(place.parent))
        with storage.writing(str(place), syncs=False) as file:

            def write(batches: Iterator[Any]) -> Any:
                with _errors_of_the_copy():
                    file.seek(0)
                    file.truncate()
                    writer = pa.parquet.ParquetWriter(file, rows.schema)
                try:
                    for table in _in_groups(batches, rows.schema):
                        with _errors_of_the_copy():
                            writer.write_table(table, row_group_size=_ROWS_IN_GROUP)
                except BaseException:
                    with contextlib.suppress(OSError):
                        writer.close()  # it would close itself later, when there is another one
                    raise
                return writer

            writer, left_out = rows.read(path, write)
            # Known only now.
            writer.add_key_value_metadata({_LEFT_OUT_KEY: json.dumps(sorted(left_out.items())).encode()})
            writer.close()
    except (OSError, _CopyError) as error:
        cause = error if isinstance(error, OSError) else error.cause
        raise OSError(
            cause.errno,
            f"{path!r} does not fit in memory, and is converted in {str(place.parent)!r} to be read a part at a time, "
            f"which failed ({cause}). Give a folder with more room as `cache_dir`",
        ) from cause


class _CopyError(Exception):
    """The copy can't be written. It is no `OSError`, which would be one of reading the file."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextlib.contextmanager
def _errors_of_the_copy() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _CopyError(error) from error


def _in_groups(batches: Iterator[Any], schema: Any) -> Iterator[Any]:
    """Tables of whole row groups, and a last one of what is left."""
    pa = load_pyarrow("from_csv()")
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        number = sum(one.num_rows for one in waiting)
        if number >= _ROWS_IN_GROUP:
            table = pa.Table.from_batches(waiting, schema)
            full = number // _ROWS_IN_GROUP * _ROWS_IN_GROUP
            yield table.slice(0, full)
            waiting = table.slice(full).to_batches()
    if waiting:
        yield pa.Table.from_batches(waiting, schema)
