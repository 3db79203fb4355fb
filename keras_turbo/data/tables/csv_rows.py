"""The rows of a CSV file, and those among them that are none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from keras_turbo.data.failures import ExampleLoadError, SkippedExample
from keras_turbo.data.tables.casting import TooManyFailuresError, cast_with_failures, shown
from keras_turbo.data.tables.csv_format import CsvFormat, null_values
from keras_turbo.data.tables.csv_types import unreadable
from keras_turbo.data.tables.pyarrow_library import load_pyarrow
from keras_turbo.data.tables.row_groups import numbers_without

# What is parsed at once. A row must not be longer.
_BLOCK_BYTES = 8 << 20

_SKIP_HINT = "(on_error='skip' leaves such rows out and lists them.)"

_Result = TypeVar("_Result")


class WiderColumnError(Exception):
    """A column that began with integers has other numbers, too."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclasses.dataclass(frozen=True)
class CsvRows:
    """How the rows of CSV files are read.

    Attributes:
        form: of the files.
        types: of the columns that are wanted: `pyarrow.DataType`s.
        inferred: the columns whose types were inferred, and may become wider.
        filled: the columns of strings whose empty cells are missing values.
        skip: whether rows that are none are left out, and not an error.
    """

    form: CsvFormat
    types: Mapping[str, Any]
    inferred: Collection[str]
    filled: Collection[str]
    skip: bool

    @property
    def schema(self) -> Any:
        """`pyarrow.Schema` of what is read."""
        return load_pyarrow("from_csv()").schema(list(self.types.items()))

    def read(self, path: str, take: Callable[[Iterator[Any]], _Result]) -> tuple[_Result, dict[int, str]]:
        """Reads a file.

        Nearly all files are in order, and are read as fast as can be. One that is not is read once more, cell by cell.

        Args:
            path: the file.
            take: gets `pyarrow.RecordBatch`es, and is called again if the file has to be read once more.

        Returns:
            What that returned, and for the number of each row that was left out (from 0) the reason.

        Raises:
            ExampleLoadError: the file can't be read; a row is none and is not to be left out.
            WiderColumnError: the types have to change.
        """
        pa = load_pyarrow("from_csv()")
        try:
            with self.form.opened(
                path,
                block_bytes=_BLOCK_BYTES,
                on_invalid_row=lambda row: "error",
                types=dict(self.types),
                names=list(self.types),
            ) as reader:
                return take(self._with_missing(batch) for batch in reader), {}
        except (pa.ArrowInvalid, UnicodeError) as error:
            if "Empty CSV file" in str(error):
                return take(iter(())), {}
        except (OSError, pa.ArrowException) as error:
            raise unreadable(path, self.form, error) from error
        careful = _CarefulReading(self, path)
        try:
            return take(self._with_missing(batch) for batch in careful), careful.left_out
        except (OSError, pa.ArrowException, UnicodeError) as error:
            raise unreadable(path, self.form, error) from error

    def _with_missing(self, batch: Any) -> Any:
        pa = load_pyarrow("from_csv()")
        for name in self.filled:
            place = batch.schema.get_field_index(name)
            column = batch.column(place)
            column = pa.compute.if_else(pa.compute.equal(column, ""), pa.scalar(None, column.type), column)
            columns = [*batch.columns[:place], column, *batch.columns[place + 1 :]]
            batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        return batch


class _CarefulReading:
    """The batches of a file in which something is wrong: cells are text first, and each is looked at.

    Attributes:
        left_out: rows without a place in the batches so far, and why.
    """

    def __init__(self, rows: CsvRows, path: str) -> None:
        self.left_out: dict[int, str] = {}
        self._rows = rows
        self._path = path

    def __iter__(self) -> Iterator[Any]:
        pa = load_pyarrow("from_csv()")
        rows, form = self._rows, self._rows.form
        # Of rows that have another number of fields, which pyarrow itself leaves out.
        invalid: dict[int, str] = {}

        def note(row: Any) -> str:
            number = row.number - 1 - form.rows_before_data
            invalid[number] = f"it has {row.actual_columns} fields, and not {row.expected_columns}: {shown(row.text)}"
            return "skip"

        read = 0
        names = list(rows.types)
        with form.opened(
            self._path,
            block_bytes=_BLOCK_BYTES,
            on_invalid_row=note,
            types=dict.fromkeys(names, pa.large_binary()),
            names=names,
            in_order=True,
        ) as reader:
            for batch in reader:
                numbers = numbers_without(np.array(sorted(invalid), np.int64), np.arange(read, read + batch.num_rows))
                read += batch.num_rows
                columns, flaws = self._parsed(batch, names)
                found = {int(numbers[place]): reason for place, reason in flaws.items()}
                self._account(found | {number: why for number, why in invalid.items() if number not in self.left_out})
                whole = np.ones(batch.num_rows, np.bool_)
                whole[list(flaws)] = False
                parsed = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
                yield parsed if whole.all() else parsed.filter(pa.array(whole))
        self._account({number: why for number, why in invalid.items() if number not in self.left_out})

    def _account(self, found: dict[int, str]) -> None:
        if found and not self._rows.skip:
            first = min(found)
            others = f" ({len(found)} of the rows read with it are not in order.)" if len(found) > 1 else ""
            raise ExampleLoadError(f"{self._path}, row {first}: {found[first]}.{others} {_SKIP_HINT}")
        self.left_out.update(found)

    def _parsed(self, batch: Any, names: Sequence[str]) -> tuple[list[Any], dict[int, str]]:
        """The columns of a batch of text, and for rows that have a cell that is not what it should be the reason."""
        pa = load_pyarrow("from_csv()")
        columns, flaws = [], {}
        for name, text in zip(names, batch.columns, strict=True):
            kind = self._rows.types[name]
            try:
                cells, failed = cast_with_failures(text, pa.large_string())
                if not pa.types.is_string(kind):
                    cells = pa.compute.utf8_trim_whitespace(cells)
                    is_null = pa.compute.is_in(cells, pa.array(null_values(), pa.large_string()))
                    cells = pa.compute.if_else(is_null, pa.scalar(None, pa.large_string()), cells)
                column, unparsed = cast_with_failures(cells, kind)
            except TooManyFailuresError as error:
                raise ExampleLoadError(
                    f"{self._path}: the column {name!r} is of another type: {error}. Give it: "
                    f"dtypes={{{name!r}: 'string'}}, or another."
                ) from error
            if pa.types.is_int64(kind) and name in self._rows.inferred and len(unparsed):
                _, no_number = cast_with_failures(cells.take(pa.array(unparsed)), pa.float64())
                if len(no_number) < len(unparsed):
                    raise WiderColumnError(name)
            for place in failed.tolist():
                flaws.setdefault(
                    place, f"the column {name!r} has bytes that are no text in UTF-8: {shown(text[place].as_py())}"
                )
            for place in unparsed.tolist():
                flaws.setdefault(
                    place,
                    f"the column {name!r} has {shown(cells[place].as_py())}, which is no {kind} (if it is text, give "
                    f"dtypes={{{name!r}: 'string'}})",
                )
            columns.append(column)
        return columns, flaws


def left_out_of(path: str, reasons: Mapping[int, str]) -> list[SkippedExample]:
    """Rows that were left out, to be listed."""
    return [SkippedExample(f"{path}, row {number}", f"{reason}.") for number, reason in sorted(reasons.items())]
