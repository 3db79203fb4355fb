"""How CSV files are written: their options, and how pyarrow is told of them."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_turbo import files as storage
from keras_turbo.data.tables.pyarrow_library import load_pyarrow

# First bytes of compressed files, and Arrow's names of how they are compressed.
_FIRST_BYTES = 4
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """How CSV files are to be read.

    Args:
        delimiter: one character.
        column_names: of files without a header; None where the first row is one.
        encoding: Python's name of it.

    Raises:
        TypeError, ValueError: an option that can't be.
    """

    delimiter: str = ","
    column_names: Sequence[str] | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or ord(self.delimiter) > 127:
            raise ValueError(
                f"`delimiter` must be one character of ASCII, such as ',', ';' or a tab. Received: {self.delimiter!r}."
            )
        if self.delimiter in '"\r\n':
            raise ValueError(f"`delimiter` can't be what quotes or ends a row. Received: {self.delimiter!r}.")
        names = self.column_names
        if names is not None:
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise TypeError(
                    "`column_names` must be a list of the names of all columns, for files without a header, or None "
                    f"where the first row is one. Received: {names!r}."
                )
            if not len(names) or len(set(names)) < len(names):
                raise ValueError(f"`column_names` must be names that differ. Received: {list(names)}.")
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError):
            raise ValueError(f"`encoding` must be one that Python knows. Received: {self.encoding!r}.") from None

    @property
    def rows_before_data(self) -> int:
        """Rows of a file before those of the table."""
        return 1 if self.column_names is None else 0

    def to_list(self) -> list[Any]:
        """The options, made of JSON's types."""
        return [self.delimiter, None if self.column_names is None else list(self.column_names), self.encoding]

    @contextlib.contextmanager
    def opened(
        self,
        path: str,
        *,
        block_bytes: int,
        on_invalid_row: Callable[[Any], str],
        types: dict[str, Any] | None = None,
        names: Sequence[str] | None = None,
        in_order: bool = False,
    ) -> Iterator[Any]:
        """Opens a file, as a `pyarrow.csv.CSVStreamingReader`.

        Args:
            path: the file; compressed ones are recognised by their first bytes.
            block_bytes: how much is parsed at once.
            on_invalid_row: as `invalid_row_handler` of pyarrow.
            types: of columns; of others they are inferred from the first block.
            names: the columns that are wanted; None for all.
            in_order: whether rows are parsed one after the other, so that their numbers are known.

        Raises:
            OSError, pyarrow.ArrowException, UnicodeError: it can't be read.
        """
        pa = load_pyarrow("from_csv()")
        read = pa.csv.ReadOptions(
            block_size=block_bytes,
            column_names=None if self.column_names is None else list(self.column_names),
            encoding=self.encoding,
            use_threads=not in_order,
        )
        parse = pa.csv.ParseOptions(
            delimiter=self.delimiter,
            # A field in quotes may go on in the next line.
            newlines_in_values=True,
            invalid_row_handler=on_invalid_row,
        )
        convert = pa.csv.ConvertOptions(
            column_types=types, include_columns=None if names is None else list(names), strings_can_be_null=False
        )
        with storage.opened(path, read_ahead_bytes=block_bytes) as (file, _):
            compression = compression_of(file.read(_FIRST_BYTES))
            file.seek(0)
            stream = pa.PythonFile(file, mode="r")
            if compression is not None:
                stream = pa.CompressedInputStream(stream, compression)
            with pa.csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert) as reader:
                yield reader


def compression_of(head: bytes) -> str | None:
    """How a file is compressed, by its first bytes; None where it is not."""
    return next((name for start, name in _COMPRESSIONS.items() if head.startswith(start)), None)


def null_values() -> list[str]:
    """What stands for a missing value in columns of numbers."""
    return list(load_pyarrow("from_csv()").csv.ConvertOptions().null_values)
