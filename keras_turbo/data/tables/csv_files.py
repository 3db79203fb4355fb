"""CSV files: how they are written, of which types their columns are, and their rows."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_turbo import files as storage
from keras_turbo.data.engine.failures import ExampleLoadError, reason_of
from keras_turbo.data.settings import check_count
from keras_turbo.data.tables.columns import Rows, decode, load_pyarrow, shown
from keras_turbo.data.tables.parquet_files import numbers_between

# What is parsed at once. A row must not be longer. Types are taken from less, which is little to read.
_BLOCK_BYTES = 8 << 20
_LOOK_BYTES = 1 << 20

# First bytes of packed files, and Arrow's names of how they are packed.
_FIRST_BYTES = 4096
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}

# What a packed file may unpack to, where the user does not say: so much, and so many times what was read of it.
# (Text of numbers unpacks to three to ten times its size, a table of zeros to a hundred times.)
_UNPACKED_BYTES = 64 << 20
_EXPANSION = 100


class OtherTypesError(Exception):
    """A column has values further down that are not of the type of those before."""


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """How CSV files are to be read, as `FastDataset.from_csv` documents it; raises where an option can't be."""

    delimiter: str
    column_names: Sequence[str] | None
    encoding: str
    max_unpacked_bytes: int | None

    def __post_init__(self) -> None:
        is_one = isinstance(self.delimiter, str) and len(self.delimiter) == 1 and ord(self.delimiter) < 128
        if not is_one or self.delimiter in '"\r\n':
            what = "one character of ASCII, and can't be what quotes or ends a row"
            raise ValueError(f"`delimiter` must be {what}. Received: {self.delimiter!r}.")
        names = self.column_names
        are_names = not isinstance(names, str) and all(isinstance(name, str) for name in names or ())
        if names is not None and not (are_names and 0 < len(names) == len(set(names))):
            what = "`column_names` must be a list of the names of all columns, or None; and must be names that differ"
            raise ValueError(f"{what}. Received: {names!r}.")
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError):
            raise ValueError(f"`encoding` must be one that Python knows. Received: {self.encoding!r}.") from None
        check_count("max_unpacked_bytes", self.max_unpacked_bytes, "None")

    @contextlib.contextmanager
    def opened(
        self, path: str, types: Mapping[str, Any] | None, on_invalid_row: Any = lambda row: "skip"
    ) -> Iterator[Any]:
        """Opens a file, as a `pyarrow.csv.CSVStreamingReader` of columns of these types, or of all, of inferred types.

        Raises `ExampleLoadError` where it can't be read, and `OtherTypesError` where something is not of these types,
        or there is nothing at all. `on_invalid_row` is given rows with another number of fields.
        """
        pa = load_pyarrow("from_csv()")
        names = None if self.column_names is None else list(self.column_names)
        block = _LOOK_BYTES if types is None else _BLOCK_BYTES
        # In one thread, since rows have numbers then.
        read = pa.csv.ReadOptions(use_threads=False, block_size=block, column_names=names, encoding=self.encoding)
        parse = pa.csv.ParseOptions(
            delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=on_invalid_row
        )
        convert = pa.csv.ConvertOptions(column_types=types, include_columns=types and list(types))
        try:
            with storage.opened(path, read_ahead_bytes=block) as (file, _):
                unpacked = pa.PythonFile(_Unpacked(file, path, self), mode="r")
                with pa.csv.open_csv(unpacked, read, parse, convert) as reader:
                    yield reader
        except (OSError, pa.ArrowException, UnicodeError) as error:
            reason = reason_of(error)
            if "Empty CSV file" in reason or "conversion error" in reason:
                raise OtherTypesError(f"{path}: {reason}") from error
            if "straddling" in reason:
                reason = f"a row is longer than {block >> 20} MB, or a quote is not closed."
            if isinstance(error, UnicodeError) or "UTF8" in reason:
                reason += f" It is no {self.encoding}: give another `encoding`, such as 'latin-1'."
            raise ExampleLoadError(f"{path}: it can't be read as CSV: {reason}") from error


class _Unpacked(io.RawIOBase):
    """What is in a file, unpacked if it is packed, as far as that is no more than it may be."""

    def __init__(self, file: Any, path: str, form: CsvFormat) -> None:
        super().__init__()
        self._packed, self._path, self._most, self._given = file, path, form.max_unpacked_bytes, 0
        head = file.read(_FIRST_BYTES)
        file.seek(0)
        kind = next((name for start, name in _PACKED.items() if head.startswith(start)), None)
        # Of encodings, those of two and four bytes have zeros.
        if b"\0" in head and not (kind or codecs.lookup(form.encoding).name.startswith(("utf-16", "utf-32"))):
            hint = " It is Parquet, which from_parquet reads." if head.startswith(b"PAR1") else ""
            raise ExampleLoadError(f"{path}: it can't be read as CSV: its first bytes are no text.{hint}")
        pa = load_pyarrow()
        self._file = file if kind is None else pa.CompressedInputStream(pa.PythonFile(file, mode="r"), kind)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._given += len(data)
        most = self._most or _UNPACKED_BYTES + _EXPANSION * self._packed.tell()
        if self._given > most and self._file is not self._packed:
            why = f"it unpacks to more than {most / 1e6:,.0f} MB, which is a lot for its size. If you trust it, give a"
            raise ExampleLoadError(f"{self._path}: {why} larger `max_unpacked_bytes`.")
        return data


def first_types(path: str, form: CsvFormat) -> tuple[str, Any] | None:
    """The path and the `pyarrow.Schema` of a file, as far as its first block tells; None for one without a row."""
    try:
        with form.opened(path, None) as reader:
            # Names that are no text fail here, and not when they are read.
            schema, names = reader.schema, reader.schema.names
    except OtherTypesError:
        return None  # a header without an end of line, or nothing but such ends
    first = names[0]
    others = [other for other in ";\t|," if other in first and other != form.delimiter]
    if len(schema) == 1 and others and form.column_names is None:
        why = f"{path} has one column, {first!r}, if {form.delimiter!r} is its delimiter."
        raise ValueError(f"{why} Give another, such as delimiter={others[0]!r}.")
    return path, _simple(names, schema.types)


def whole_types(path: str, form: CsvFormat, names: Sequence[str]) -> tuple[str, Any]:
    """The path and the types of some columns, by all of their values."""
    kinds = [load_pyarrow().null()] * len(names)
    with form.opened(path, dict.fromkeys(names, _cells())) as reader:
        for batch in reader:
            kinds = [_wider(kind, cells.dictionary) for kind, cells in zip(kinds, batch.columns, strict=True)]
    return path, _simple(names, kinds)


def _simple(names: Sequence[str], kinds: Sequence[Any]) -> Any:
    """A schema in which what is neither numbers nor booleans (dates, too) is text, as it is written."""
    pa = load_pyarrow()
    known = (pa.null(), pa.int64(), pa.float64(), pa.bool_())
    return pa.schema([(name, kind if kind in known else pa.string()) for name, kind in zip(names, kinds, strict=True)])


def _wider(kind: Any, words: Any) -> Any:
    """The type of values that are of a type and of others that are written so, as pyarrow infers it."""
    pa = load_pyarrow()
    try:
        words = pa.compute.utf8_trim_whitespace(words.cast(pa.string()))
    except pa.ArrowInvalid:
        return pa.string()
    words = words.filter(pa.compute.invert(pa.compute.is_in(words, pa.array(_gaps()))))
    if not len(words):
        return kind
    for found in (pa.int64(), pa.bool_(), pa.float64(), pa.string()):
        with contextlib.suppress(pa.ArrowInvalid):
            # The first ones tell most, and each that can't be costs the text of an error.
            words.slice(0, 10).cast(found)
            words.cast(found)
            break
    if kind in (found, pa.null()):
        return found
    return pa.float64() if {kind, found} == {pa.int64(), pa.float64()} else pa.string()


def _cells() -> Any:
    """As what cells are read that are not parsed."""
    pa = load_pyarrow()
    return pa.dictionary(pa.int32(), pa.binary())


def _gaps() -> list[str]:
    """How a missing value of a column of numbers is written."""
    return load_pyarrow().csv.ConvertOptions().null_values


def csv_rows(path: str, form: CsvFormat, parsed: Mapping[str, Any], schema: Any, fills: Any) -> Iterator[Rows]:
    """The rows of a file, a block at a time, as `decode` makes them.

    Columns whose types are `parsed` are read as such; others as cells, so that those that are something else can be
    named.
    """
    pa = load_pyarrow()
    invalid: dict[int, tuple[str, str]] = {}
    told = read = 0

    def note(row: Any) -> str:
        what = f"it has {row.actual_columns} fields, and not {row.expected_columns}: {shown(row.text)}"
        invalid[row.number - 1 - (form.column_names is None)] = what, ""
        return "skip"

    with form.opened(path, {name: parsed.get(name, _cells()) for name in schema.names}, note) as reader:
        for batch in reader:
            first, read = read, read + batch.num_rows
            rows = decode(batch, schema, fills, path, numbers_between([*invalid], first, read), _gaps())
            rows.flaws.update([*invalid.items()][told:])
            told = len(invalid)
            yield rows
    if told < len(invalid):
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
        yield Rows(path, [], nothing, dict([*invalid.items()][told:]))
