"""Parquet files: which row groups they have, how much memory one takes, and how it is read."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.engine.failures import ExampleLoadError, reason_of
from keras_turbo.data.tables.columns import TEXT, is_list, is_ragged, load_pyarrow, name_of, plain_type
from keras_turbo.machine import free_memory_bytes

# What a word of a vocabulary takes beside its bytes, at most.
_WORD_BYTES = 48

# Rows that are read at once where the file does not tell how much they become.
_FEW_ROWS = 128


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A Parquet file.

    Attributes:
        path: what is read, from the root, since this process may change its folder.
        name: what an error calls it: the path as it was found, or for the copy of a CSV file, that file.
        status: its size and time of change.
        metadata: `pyarrow.parquet.FileMetaData`.
        schema: `pyarrow.Schema`.
        left_out: of a copy: the numbers of the rows of the file that it has not.
    """

    path: str
    name: str
    status: storage.Status
    metadata: Any
    schema: Any
    left_out: Sequence[int] = ()

    @functools.cached_property
    def stored_at(self) -> dict[str, int]:
        """By column, the number of the first one stored of it: paths of parts can't be told from names with dots."""
        begins = itertools.accumulate((_num_stored(field.type) for field in self.schema), initial=0)
        return dict(zip(self.schema.names, begins, strict=False))

    def row_groups(self) -> Iterator[RowGroup]:
        """Its row groups that have rows."""
        stop = 0
        for number in range(self.metadata.num_row_groups):
            first, stop = stop, stop + self.metadata.row_group(number).num_rows
            if stop > first:
                yield RowGroup(self, number, numbers_between(self.left_out, first, stop))


def _num_stored(kind: Any) -> int:
    return sum(_num_stored(kind.field(number).type) for number in range(kind.num_fields)) or 1


def numbers_between(left_out: Sequence[int], first: int, stop: int) -> Sequence[int] | np.ndarray:
    """The numbers of rows in a file, from the `first` to the one before `stop` of those that were not left out."""
    if not left_out:
        return range(first, stop)
    rows = np.arange(first, stop)
    return rows + np.searchsorted(np.array(left_out) - np.arange(len(left_out)), rows, "right")


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """A part of a file that can be read by itself; `numbers` are those of its rows in the file."""

    file: TableFile
    number: int
    numbers: Sequence[int] | np.ndarray

    @property
    def name(self) -> str:
        """What an error calls it."""
        return f"{self.file.name}, row group {self.number}"

    def stored(self, names: Sequence[str]) -> Iterator[tuple[Any, Any]]:
        """The type of each column, and what the file says of its values (`pyarrow.parquet.ColumnChunkMetaData`)."""
        metadata = self.file.metadata.row_group(self.number)
        for name in names:
            yield self.file.schema.field(name).type, metadata.column(self.file.stored_at[name])

    def num_bytes(self, schema: Any) -> tuple[int, int]:
        """About how much memory it takes as columns of a schema, and as it is read, by what the file says of it."""
        decoded = read = 0
        for (kind, chunk), field in zip(self.stored(schema.names), schema, strict=True):
            # Each word takes four bytes in the file for its length.
            words = min(chunk.num_values, chunk.total_uncompressed_size // 4)
            text = words * _WORD_BYTES + chunk.total_uncompressed_size if name_of(field.type) == TEXT else 0
            decoded += chunk.num_values * _width(field.type) + text + 8 * len(self.numbers) * is_ragged(field.type)
            read += chunk.num_values * _width(kind) + text + chunk.total_uncompressed_size
        return decoded, read

    def read(self, names: Sequence[str]) -> Any:
        """Reads columns, as a `pyarrow.Table`, strings as dictionaries; raises an `ExampleLoadError` if it can't."""
        pa = load_pyarrow("from_parquet()")
        chunks = [chunk for kind, chunk in self.stored(names) if name_of(kind) == TEXT]
        text = [chunk for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"]
        # Strings as prefixes of others have no vocabulary, and become no one knows how much.
        is_delta = any("DELTA" in encoding for chunk in text for encoding in chunk.encodings)
        try:
            with storage.opened(self.file.path) as (file, status):
                if status != self.file.status:
                    raise ExampleLoadError(f"{self.file.name} has changed since the dataset was built. Build it anew.")
                parquet = pa.parquet.ParquetFile(
                    file,
                    metadata=self.file.metadata,
                    read_dictionary=None if is_delta else [chunk.path_in_schema for chunk in text],
                    # Checksums are optional in Parquet, and pyarrow looks at them only if told to.
                    page_checksum_verification=True,
                    # Columns that lie behind one another come by one request.
                    pre_buffer=storage.is_remote(self.file.path),
                )
                rows = _FEW_ROWS if is_delta else len(self.numbers)
                batches = parquet.iter_batches(rows, row_groups=[self.number], columns=list(names))
                table = pa.Table.from_batches(self._bounded(batches))
        except (OSError, pa.ArrowException) as error:
            raise ExampleLoadError(f"{self.name} can't be read: {reason_of(error)}") from error
        if len(table) != len(self.numbers):
            raise ExampleLoadError(f"{self.name} can't be read: it has {len(table)} of its {len(self.numbers)} rows.")
        return table.select(list(names))

    def _bounded(self, batches: Iterator[Any]) -> Iterator[Any]:
        size, most = 0, free_memory_bytes() / 2
        for batch in batches:
            size += batch.nbytes
            if size > most:
                remedy = "Write the file with smaller row groups, or choose `columns`."
                raise ExampleLoadError(f"{self.name} takes more than half of the free memory. {remedy}")
            yield batch


def _width(kind: Any) -> int:
    """Bytes of a value; of a string those of its number."""
    kind = plain_type(kind)
    return 4 if name_of(kind) == TEXT else 0 if str(kind) == "null" else max(1, kind.bit_width // 8)


def open_file(path: str, name: str | None = None) -> TableFile:
    """Reads what a Parquet file says of itself; raises an `ExampleLoadError` if it is none, or a damaged one."""
    pa = load_pyarrow("from_parquet()")
    try:
        with storage.opened(path) as (file, status):
            parquet = pa.parquet.ParquetFile(file)
            return TableFile(storage.absolute(path), name or path, status, parquet.metadata, parquet.schema_arrow)
    except (OSError, pa.ArrowException) as error:
        raise ExampleLoadError(f"{name or path}: it can't be read as Parquet: {reason_of(error)}") from error


def common_length(groups: Sequence[RowGroup], name: str, *, skip: bool) -> int | None:
    """How many values all lists of a column have; None where they differ, or it has no lists.

    Those of the first row group (that can be read) tell, if all agree with it by the number of their values.
    """
    groups = [group for group in groups if is_list(group.file.schema.field(name).type)]
    for group in groups:
        try:
            lists = group.read([name])[name]
        except ExampleLoadError:
            if not skip:
                raise
            continue
        lengths = load_pyarrow().compute.list_value_length(lists).drop_null().unique().to_pylist()
        sizes = [(len(one.numbers), chunk.num_values) for one in groups for _, chunk in one.stored([name])]
        agree = len(lengths) == 1 and all(values == lengths[0] * rows for rows, values in sizes)
        return lengths[0] or None if agree else None
    return None
