"""The types of the columns of CSV files, which say nothing of them: seen in their first rows, and agreed upon."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from keras_turbo import files as storage
from keras_turbo.data.failures import ExampleLoadError, SkippedExample, reason_of
from keras_turbo.data.tables.casting import TEXT, TooManyFailuresError, cast_with_failures
from keras_turbo.data.tables.csv_format import CsvFormat, compression_of, null_values
from keras_turbo.data.tables.files import each_file
from keras_turbo.data.tables.parts import check_once
from keras_turbo.data.tables.pyarrow_library import load_pyarrow

# So much of each file is looked at, which is little to read and tells of thousands of rows.
_LOOK_BYTES = 1 << 20

# A column of which so many cells are numbers is one of numbers, and the others are damage.
_SHARE_OF_NUMBERS = 0.9
_FEW_CELLS = 50

# What is looked at to tell text from other bytes, and what columns are parted by.
_FIRST_BYTES = 4096
_DELIMITERS = (";", "\t", "|", ",")

# What a compressed table is larger when it is not. (Text of numbers shrinks to a third or a tenth.)
_COMPRESSION_RATIO = 10


@dataclasses.dataclass(frozen=True)
class CsvLook:
    """What the beginning of a file tells.

    Attributes:
        path: of the file.
        names: of its columns, in their order.
        types: of its columns: `pyarrow.DataType`s.
        num_rows: how many rows the file has, about.
        text_bytes: of a string of each column, on average.
    """

    path: str
    names: list[str]
    types: dict[str, Any]
    num_rows: float
    text_bytes: dict[str, float]


def look_at(paths: Sequence[str], form: CsvFormat, *, skip: bool) -> tuple[list[CsvLook], list[SkippedExample]]:
    """Looks at the beginnings of all files that are not empty.

    Raises:
        ExampleLoadError: one can't be read and `skip` is False, or none can.
    """
    return each_file(paths, lambda path: _look(path, form), skip=skip)


def _look(path: str, form: CsvFormat) -> CsvLook | None:
    pa = load_pyarrow("from_csv()")
    size = storage.status_of(path).size
    if not size:
        return None
    head = storage.read_at(path, 0, _FIRST_BYTES)
    compression = compression_of(head)
    if compression is None:
        _require_text(path, form, head)
    try:
        with form.opened(path, block_bytes=_LOOK_BYTES, on_invalid_row=lambda row: "skip") as reader:
            batch = next(iter(reader), None)
            schema = reader.schema
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return None  # a header without an end of line, or nothing but such ends
        raise unreadable(path, form, error) from error
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise unreadable(path, form, error) from error
    _require_delimiter(path, form, schema.names)
    types = {field.name: field.type for field in schema}
    text_bytes = {}
    for place, field in enumerate(schema):
        if batch is None or not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            continue
        column = batch.column(place)
        types[field.name] = _numbers_of(column) or pa.string()
        text_bytes[field.name] = column.nbytes / max(1, len(column))
    for name, kind in types.items():
        if pa.types.is_temporal(kind):
            types[name] = pa.string()  # as it is written
    rows = 0 if batch is None else batch.num_rows
    if compression is not None:
        size *= _COMPRESSION_RATIO
    return CsvLook(path, schema.names, types, max(rows, rows * size / _LOOK_BYTES), text_bytes)


def _require_text(path: str, form: CsvFormat, head: bytes) -> None:
    # Of encodings, those of two and four bytes have zeros.
    if b"\0" in head and not codecs.lookup(form.encoding).name.startswith(("utf-16", "utf-32")):
        hint = " It is Parquet, which from_parquet reads." if head.startswith(b"PAR1") else ""
        raise ExampleLoadError(f"{path}: it can't be read as CSV: its first bytes are no text.{hint}")


def _require_delimiter(path: str, form: CsvFormat, names: Sequence[str]) -> None:
    others = [delimiter for delimiter in _DELIMITERS if delimiter in names[0] and delimiter != form.delimiter]
    if len(names) == 1 and others and form.column_names is None:
        raise ValueError(
            f"{path} has one column, {names[0]!r}, if {form.delimiter!r} is its delimiter. Give another, such as "
            f"delimiter={others[0]!r}."
        )


def _numbers_of(column: Any) -> Any:
    """The type of a column of which nearly all cells are numbers; None where they are not."""
    pa = load_pyarrow("from_csv()")
    if not pa.types.is_string(column.type):
        return None
    cells = pa.compute.utf8_trim_whitespace(column)
    cells = cells.filter(pa.compute.invert(pa.compute.is_in(cells, pa.array(null_values()))))
    try:
        # A few of them tell most columns of text.
        some = cells.slice(0, _FEW_CELLS)
        if 2 * len(cast_with_failures(some, pa.float64())[1]) > len(some):
            return None
        numbers, failed = cast_with_failures(cells, pa.float64())
        if len(failed) > (1 - _SHARE_OF_NUMBERS) * len(cells):
            return None
        are_numbers = numbers.is_valid()
        return pa.float64() if len(cast_with_failures(cells.filter(are_numbers), pa.int64())[1]) else pa.int64()
    except TooManyFailuresError:
        return None


def unreadable(path: str, form: CsvFormat, error: Exception) -> ExampleLoadError:
    """The error that a file can't be read at all."""
    if "straddling" in str(error):
        return ExampleLoadError(f"{path}: a row is longer than {_LOOK_BYTES >> 20} MB, or a quote is not closed.")
    hint = " Give its encoding as `encoding`." if isinstance(error, UnicodeError) else ""
    if form.encoding.lower().replace("-", "") == "utf8" and "UTF8" in str(error):
        hint = " It is no UTF-8: give its encoding as `encoding`, such as 'latin-1'."
    return ExampleLoadError(f"{path}: it can't be read as CSV: {reason_of(error)}{hint}")


def agreed_types(looks: Sequence[CsvLook], wanted: Mapping[str, str], names: Sequence[str] | None) -> dict[str, Any]:
    """The types of the columns of all files together, as they are parsed.

    Integers in one file and other numbers in another are numbers. What is empty in one file is what it is in others.

    Args:
        looks: at least one.
        wanted: types that the user gave.
        names: the columns that count; None for all.

    Raises:
        ValueError: two files do not agree; the message names both, and the column.
    """
    pa = load_pyarrow("from_csv()")
    first = looks[0]
    for look in looks[1:]:
        differ = set(look.types) ^ set(first.types)
        for name in sorted(differ) if names is None else [name for name in names if name not in look.types]:
            has, lacks = (look, first) if name in look.types else (first, look)
            raise ValueError(
                f"{lacks.path} has no column {name!r}, which {has.path} has. Files of one table have the same columns. "
                "Give `column_names` if the files have no header, or read the files apart."
            )
        check_once(first.types if names is None else names, look.names, look.path)
    types = {}
    for name in first.types if names is None else names:
        kind, where = pa.null(), first
        for look in looks:
            other = look.types[name]
            both = {str(kind), str(other)}
            if name in wanted or pa.types.is_null(other) or kind == other:
                continue
            if pa.types.is_null(kind):
                kind, where = other, look
            elif both == {"int64", "double"}:
                kind = pa.float64()
            else:
                raise ValueError(
                    f"The column {name!r} is {kind} in {where.path} and {other} in {look.path}. Say which it shall be: "
                    f"dtypes={{{name!r}: ...}}."
                )
        types[name] = parsed_type(wanted[name]) if name in wanted else pa.float64() if pa.types.is_null(kind) else kind
    return types


def parsed_type(name: str) -> Any:
    """As what cells are parsed that shall be of a type, by TensorFlow's name."""
    pa = load_pyarrow("from_csv()")
    if name == TEXT:
        return pa.string()
    if name.startswith("float"):
        return pa.float64()
    return pa.bool_() if name == "bool" else getattr(pa, name)()
