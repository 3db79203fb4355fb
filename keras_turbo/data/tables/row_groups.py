"""The row groups of Parquet files: which there are, whether their files agree, and how one is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.failures import ExampleLoadError, SkippedExample, reason_of
from keras_turbo.data.tables.casting import plain_type, value_type
from keras_turbo.data.tables.columns import Column, column_of
from keras_turbo.data.tables.files import each_file
from keras_turbo.data.tables.parts import check_once
from keras_turbo.data.tables.pyarrow_library import load_pyarrow
from keras_turbo.files import Status, is_remote

# What a bytes object takes beside its bytes, and the reference to it.
_OBJECT_BYTES = 48


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A Parquet file.

    Attributes:
        path: what is read, from the root, since this process may change its folder.
        name: what an error calls it: the path as it was found, or for the copy of a CSV file, that file.
        status: its size and time of change.
        metadata: `pyarrow.parquet.FileMetaData`.
        schema: `pyarrow.Schema`.
        left_out: of a copy: the numbers of the rows of the file that it has not, sorted.
    """

    path: str
    name: str
    status: Status
    metadata: Any
    schema: Any
    left_out: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """A part of a file that can be read by itself.

    Attributes:
        file: of which it is.
        number: in the file.
        first_row: number of its first row in the file.
        num_rows: how many it has.
    """

    file: TableFile
    number: int
    first_row: int
    num_rows: int

    @property
    def name(self) -> str:
        """What an error calls it."""
        return f"{self.file.name}, row group {self.number}"

    @property
    def row_numbers(self) -> Sequence[int] | np.ndarray:
        """The numbers of its rows in the file; of a copy, in the file that it is of."""
        rows = range(self.first_row, self.first_row + self.num_rows)
        left_out = self.file.left_out
        return numbers_without(left_out, np.arange(rows.start, rows.stop)) if len(left_out) else rows

    def reason_in(self, error: ExampleLoadError) -> str:
        """What an error says of it, without the path that stands beside."""
        return str(error).removeprefix(f"{self.file.name}, ")

    def read(self, names: Sequence[str]) -> Any:
        """Reads columns, as a `pyarrow.Table`.

        Raises:
            ExampleLoadError: it can't be read, or the file has changed.
        """
        pa = load_pyarrow("from_parquet()")
        try:
            with storage.opened(self.file.path) as (file, status):
                if status != self.file.status:
                    raise ExampleLoadError(f"{self.file.name} has changed since the dataset was built. Build it anew.")
                parquet = pa.parquet.ParquetFile(
                    file,
                    metadata=self.file.metadata,
                    # Checksums are optional in Parquet, and pyarrow looks at them only if told to.
                    page_checksum_verification=True,
                    # Columns that lie behind one another come by one request.
                    pre_buffer=is_remote(self.file.path),
                )
                return parquet.read_row_group(self.number, columns=list(names)).select(list(names))
        except (OSError, pa.ArrowException) as error:
            raise ExampleLoadError(f"{self.name} can't be read: {reason_of(error)}") from error


def numbers_without(left_out: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The numbers that rows have where others (sorted) were left out, and they are those that remain."""
    return rows + np.searchsorted(left_out - np.arange(len(left_out)), rows, "right")


def open_file(path: str, name: str | None = None) -> TableFile:
    """Reads what a Parquet file says of itself.

    Args:
        path: the file.
        name: what an error calls it; by default its path.

    Raises:
        ExampleLoadError: it is no Parquet file, or a damaged one.
    """
    pa = load_pyarrow("from_parquet()")
    name = path if name is None else name
    try:
        with storage.opened(path) as (file, status):
            parquet = pa.parquet.ParquetFile(file)
            return TableFile(storage.absolute(path), name, status, parquet.metadata, parquet.schema_arrow)
    except (OSError, pa.ArrowException) as error:
        raise ExampleLoadError(f"{name}: it can't be read as Parquet: {reason_of(error)}") from error


def open_files(paths: Sequence[str], *, skip: bool) -> tuple[list[TableFile], list[SkippedExample]]:
    """Opens files, of which those that are damaged may be left out.

    Raises:
        ExampleLoadError: one is damaged and `skip` is False, or all are.
    """

    def opened(path: str) -> TableFile | None:
        # One that was made and not written to holds no row.
        return open_file(path) if storage.status_of(path).size else None

    return each_file(paths, opened, skip=skip)


def check_agreement(files: Sequence[TableFile], names: Sequence[str] | None, *, given: Container[str] = ()) -> None:
    """Checks that all files have the same columns, of the same types.

    Args:
        files: at least one.
        names: the columns that count; None for all.
        given: columns whose type is given, so that what the files say of it is of no account.

    Raises:
        ValueError: two do not agree; the message names both, and the column.
    """
    first = files[0]
    for file in files[1:]:
        if file.schema.equals(first.schema):
            continue
        here, there = set(file.schema.names), set(first.schema.names)
        for name in sorted(here ^ there) if names is None else [name for name in names if name not in here]:
            has, lacks = (file, first) if name in here else (first, file)
            raise ValueError(
                f"{lacks.name} has no column {name!r}, which {has.name} has. Files of one table have the same columns; "
                "name those that all have as `columns`, or read the files apart."
            )
        check_once(first.schema.names if names is None else names, file.schema.names, file.name)
        for name in first.schema.names if names is None else names:
            one, other = (_comparable(each.schema.field(name).type) for each in (first, file))
            if one != other and None not in (one, other) and name not in given:
                raise ValueError(
                    f"The column {name!r} is {first.schema.field(name).type} in {first.name} and "
                    f"{file.schema.field(name).type} in {file.name}. Say which it shall be: dtypes={{{name!r}: ...}}, "
                    "or write the files with one type."
                )


def _comparable(kind: Any) -> Any:
    """A type as it is compared: how strings are kept, and whether lists have long offsets, makes no difference.

    None is that of a column that has nothing but nulls.
    """
    pa = load_pyarrow("from_parquet()")
    inner = value_type(kind)
    if inner is not None:
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        return "list", size, _comparable(inner)
    kind = plain_type(kind)
    if pa.types.is_null(kind):
        return None  # without a value it has none
    text = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return "text" if str(kind) in text or pa.types.is_fixed_size_binary(kind) else kind


def index_columns(file: TableFile) -> list[str]:
    """The columns that pandas wrote of a frame's index, and gives back as one."""
    written = (file.schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in written if isinstance(name, str)]


def row_groups_of(files: Sequence[TableFile]) -> list[RowGroup]:
    """The row groups of all files that have rows."""
    groups = []
    for file in files:
        first = 0
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if rows:
                groups.append(RowGroup(file, number, first, rows))
            first += rows
    return groups


def columns_of(
    files: Sequence[TableFile], groups: Sequence[RowGroup], names: Sequence[str], dtypes: dict[str, str], *, skip: bool
) -> list[Column]:
    """What is read of some columns, by what the files say and, for lists, by their lengths.

    Lists that are not of a fixed size by type have one if those of the first row group have (with `skip` the first that
    can be read), and if the number of values that every row group says it has agrees with it.

    Raises:
        ValueError: a column that can't be a tensor.
        ExampleLoadError: the first row group has lists and can't be read.
    """
    columns = []
    for name in names:
        with_values = [file for file in files if _comparable(file.schema.field(name).type) is not None]
        first = with_values[0] if with_values else files[0]
        field = first.schema.field(name)
        length = None
        is_list = value_type(field.type) is not None
        if is_list:
            length = _common_length([group for group in groups if group.file in with_values], name, skip=skip)
        columns.append(column_of(field, dtypes.get(name), length, first.name))
    return columns


def _common_length(groups: Sequence[RowGroup], name: str, *, skip: bool) -> int | None:
    pa = load_pyarrow("from_parquet()")
    table = None
    for group in groups:
        try:
            table = group.read([name])
            break
        except ExampleLoadError:
            if not skip:
                raise
    if table is None:
        return None
    lengths = np.unique(
        np.concatenate([np.asarray(pa.compute.list_value_length(chunk).drop_null()) for chunk in table[name].chunks])
    )
    if len(lengths) != 1 or lengths[0] == 0:
        return None
    length = int(lengths[0])
    for group in groups:
        if any(of == name and chunk.num_values != length * group.num_rows for of, chunk in _chunks_of(group)):
            return None
    return length


def _chunks_of(group: RowGroup) -> Iterator[tuple[str, Any]]:
    """What is said of each column that is stored, with the name of that of the table of which it is a part."""
    metadata = group.file.metadata.row_group(group.number)
    index = 0
    # A name may have a dot, as a path has, so that it can't be told from the path.
    for field in group.file.schema:
        for _ in range(_num_leaves(field.type)):
            yield field.name, metadata.column(index)
            index += 1


def _num_leaves(kind: Any) -> int:
    """In how many columns a type is stored."""
    types = load_pyarrow("from_parquet()").types
    if types.is_struct(kind):
        return sum(_num_leaves(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_map(kind):
        return _num_leaves(kind.key_type) + _num_leaves(kind.item_type)
    inner = value_type(kind)
    return 1 if inner is None else _num_leaves(inner)


def bytes_of_groups(groups: Sequence[RowGroup], columns: Sequence[Column]) -> np.ndarray:
    """About how much memory each row group takes once its columns are decoded, by what its file says of it alone."""
    sizes = np.zeros(len(groups), np.int64)
    wanted = {column.name: column for column in columns}
    for place, group in enumerate(groups):
        for name, chunk in _chunks_of(group):
            column = wanted.get(name)
            if column is None:
                continue
            if column.is_text:
                # Numbers, and a Python object for each string of the dictionary. How many these are the file does not
                # say, but each of them takes four bytes there for its length.
                words = min(chunk.num_values, chunk.total_uncompressed_size // 4)
                sizes[place] += chunk.num_values * 4 + words * _OBJECT_BYTES + chunk.total_uncompressed_size
            else:
                sizes[place] += chunk.num_values * column.dtype.size
            if column.is_ragged:
                sizes[place] += 8 * group.num_rows
    return sizes
