"""Columns of Arrow tables as arrays that TensorFlow takes: of which type, and which rows have none to give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.failures import ExampleLoadError
from keras_turbo.data.tables.pyarrow_library import load_pyarrow

# Types that a column can be given, in the names of TensorFlow, NumPy and Arrow alike.
_NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
TEXT = "string"

# Of one column of a row group or block. Where more can't be what they should be, it is the type that is wrong.
_MOST_FAILURES = 1000

# More of a value helps nobody.
_LONGEST_SHOWN = 60


class TooManyFailuresError(ValueError):
    """Many values of a column are of another type than that which it is given."""


@dataclasses.dataclass(frozen=True)
class Column:
    """What is read of one column.

    Attributes:
        name: of the column.
        dtype: of its tensor.
        is_list: whether each row has a list of values.
        length: of the lists, where all have the same; None where they are ragged.
    """

    name: str
    dtype: tf.DType
    is_list: bool = False
    length: int | None = None

    @property
    def is_text(self) -> bool:
        """Whether its values are strings."""
        return self.dtype == tf.string

    @property
    def is_ragged(self) -> bool:
        """Whether rows have unequal numbers of values."""
        return self.is_list and self.length is None

    @property
    def shape(self) -> list[int | None]:
        """Shape of one row's tensor."""
        return [self.length] if self.is_list else []

    def empty(self, num_rows: int = 0) -> Values:
        """Rows that say nothing: zeros or empty strings, or lists without a value."""
        kind = object if self.is_text else self.dtype.as_numpy_dtype
        if self.is_ragged:
            return Values(np.empty(0, kind), None, np.zeros(num_rows + 1, np.int64))
        return Values(np.full((num_rows, *self.shape), b"" if self.is_text else 0, kind))


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of some rows of a column.

    Attributes:
        array: a row for each; of ragged lists all values, one list after the other. Of strings their numbers in the
            vocabulary.
        vocabulary: bytes objects, or None where values are no strings.
        offsets: where the lists of ragged rows begin, and where the last one ends; None for others.
    """

    array: np.ndarray
    vocabulary: np.ndarray | None = None
    offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.array) if self.offsets is None else len(self.offsets) - 1

    @property
    def num_bytes(self) -> int:
        """Bytes of memory, a string with its Python object counted in."""
        text = 0 if self.vocabulary is None else sum(map(len, self.vocabulary)) + 48 * len(self.vocabulary)
        return self.array.nbytes + text + (0 if self.offsets is None else self.offsets.nbytes)

    def with_strings(self) -> Values:
        """The same with strings in the place of their numbers."""
        return self if self.vocabulary is None else Values(self.vocabulary[self.array], None, self.offsets)

    def take(self, rows: np.ndarray) -> Values:
        """The values of some of the rows."""
        if self.offsets is None:
            return Values(self.array[rows], self.vocabulary)
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Values(self.array[places], self.vocabulary, offsets)


@dataclasses.dataclass(frozen=True)
class Flaw:
    """Rows that have no value to give, and why.

    Attributes:
        rows: their numbers in what was decoded.
        column: of which the value is.
        reason: for each of them, or one for all; begins with the name of the column.
        remedy: what to do about it.
    """

    rows: np.ndarray
    column: str
    reason: Callable[[int], str]
    remedy: str


def joined(parts: Sequence[Values]) -> Values:
    """The rows of several one after the other."""
    if len(parts) == 1:
        return parts[0]
    array = np.concatenate([part.array for part in parts])
    vocabulary = offsets = None
    if parts[0].vocabulary is not None:
        pa = load_pyarrow("A table")
        words = np.concatenate([part.vocabulary for part in parts])
        encoded = pa.array(words, pa.large_binary()).dictionary_encode()
        numbers = encoded.indices.to_numpy()
        begins = np.repeat(
            np.cumsum([0, *(len(part.vocabulary) for part in parts[:-1])]), [len(part.array) for part in parts]
        )
        shape = (-1, *(1 for _ in array.shape[1:]))
        array = numbers[array + begins.reshape(shape)]
        vocabulary = encoded.dictionary.to_numpy(zero_copy_only=False)
    if parts[0].offsets is not None:
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Values(array, vocabulary, offsets)


def check_dtypes(dtypes: Any) -> dict[str, str]:
    """What was given as `dtypes`, by TensorFlow's names of the types.

    Raises:
        TypeError, ValueError: it is no dict of names and types, or a type that no column can have.
    """
    if dtypes is None:
        return {}
    if not isinstance(dtypes, Mapping):
        raise TypeError(f"`dtypes` must be a dict of names of columns and types. Received: {dtypes!r}.")
    names = {}
    for column, dtype in dtypes.items():
        if not isinstance(column, str):
            raise TypeError(f"`dtypes` must have names of columns (str) as keys. Received: {column!r}.")
        try:
            name = TEXT if dtype in (str, bytes) else tf.as_dtype(dtype).name
        except (TypeError, ValueError):
            name = repr(dtype)
        if name not in (*_NUMBERS, TEXT):
            raise ValueError(f"`dtypes[{column!r}]` must be one of {', '.join(_NUMBERS)}, {TEXT}. Received: {dtype!r}.")
        names[column] = name
    return names


def column_of(field: Any, wanted: str | None, length: int | None, path: str) -> Column:
    """What is read of one column of a file.

    Args:
        field: `pyarrow.Field`.
        wanted: the type that the user gave; None for that of the file, of floats Keras' `floatx`.
        length: of lists, where it is the same in all rows.
        path: of the file, for errors.

    Raises:
        ValueError: the column is of a type that no tensor has, and `wanted` can't help it.
    """
    pa = load_pyarrow("A table")
    kind = value_type(field.type)
    is_list = kind is not None
    if pa.types.is_fixed_size_list(field.type):
        length = field.type.list_size
    kind = plain_type(field.type if kind is None else kind)
    types = pa.types
    where = f"The column {field.name!r} of {path} is {field.type}"
    is_time = types.is_temporal(kind)
    if is_time and (wanted is None or (wanted != TEXT and not wanted.startswith(("int", "uint")))):
        raise ValueError(
            f"{where}, and a tensor has no times. Say what to make of it: dtypes={{{field.name!r}: 'int64'}} (its days, "
            "or the number of its own units, since 1970-01-01) or 'string' (as text), or leave it out by `columns`."
        )
    if types.is_decimal(kind):
        name = wanted or keras.config.floatx()
    elif types.is_boolean(kind) or types.is_integer(kind):
        name = wanted or str(kind)
    elif types.is_floating(kind):
        name = wanted or keras.config.floatx()
    elif is_time:
        name = wanted
    elif _is_text(kind):
        name = wanted or TEXT
    else:
        raise ValueError(
            f"{where}, which can't be a tensor. Leave it out by `columns`, or write it as columns or lists of numbers, "
            "booleans or strings."
        )
    column = Column(field.name, tf.as_dtype(name), is_list, length if is_list else None)
    try:
        _cast(pa.array([], pa.large_binary() if _is_text(kind) else kind), arrow_type(column.dtype.name))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ValueError(f"{where}, of which pyarrow can make no {name}. {error}") from error
    return column


def value_type(kind: Any) -> Any:
    """The type of what is in the lists of a list type; None for one that has no lists."""
    types = load_pyarrow("A table").types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if is_list else None


def plain_type(kind: Any) -> Any:
    """What a type is without its dictionary."""
    return kind.value_type if load_pyarrow("A table").types.is_dictionary(kind) else kind


def decoded(chunked: Any, column: Column, fill: Any) -> tuple[Values, list[Flaw]]:
    """The values of a column.

    Args:
        chunked: `pyarrow.ChunkedArray` of it.
        column: what to make of it.
        fill: what stands for missing values; None where there is nothing that can.

    Returns:
        The values, and what is wrong with some of the rows, whose values then say nothing.
    """
    pa = load_pyarrow("A table")
    if not column.is_list:
        return _decoded_scalars(_one_array(chunked), column, fill)
    arrays = chunked.chunks if chunked.num_chunks else [pa.array([], chunked.type)]
    lengths = np.concatenate([np.asarray(pa.compute.list_value_length(one).fill_null(-1)) for one in arrays])
    flat = pa.chunked_array([pa.compute.list_flatten(one) for one in arrays], value_type(chunked.type))
    flaws = []
    nulls = np.flatnonzero(lengths < 0)
    lengths = np.maximum(lengths, 0).astype(np.int64)
    if len(nulls):
        flaws.append(_missing_flaw(nulls, column, "has no list"))
    # What is wrong with a value is wrong with its row.
    values, of_values = _decoded_scalars(_one_array(flat), column, fill)
    ends = np.cumsum(lengths)
    for flaw in of_values:
        places, firsts = np.unique(np.searchsorted(ends, flaw.rows, "right"), return_index=True)
        first_of = dict(zip(places.tolist(), flaw.rows[firsts].tolist(), strict=True))
        flaws.append(
            dataclasses.replace(flaw, rows=places, reason=lambda row, of=flaw, first=first_of: of.reason(first[row]))
        )
    if column.length is None:
        return dataclasses.replace(values, offsets=np.concatenate([[0], ends])), flaws
    fits = lengths == column.length
    other = np.setdiff1d(np.flatnonzero(~fits), nulls)
    if len(other):
        flaws.append(
            Flaw(
                other,
                column.name,
                lambda row: f"the column {column.name!r} has {lengths[row]} values, and {column.length} in other rows",
                "Write lists of one length. (Where a table is kept in memory, its lists may be ragged.)",
            )
        )
    array = np.zeros((len(lengths), column.length), values.array.dtype)
    array[fits] = values.array[np.repeat(fits, lengths)].reshape(-1, column.length)
    return Values(array, values.vocabulary), flaws


def _one_array(chunked: Any) -> Any:
    """A chunked array of plain values in one piece."""
    pa = load_pyarrow("A table")
    kind = plain_type(chunked.type)
    if _is_text(kind):
        # Whose offsets have room for more than 2 GB.
        kind = pa.large_binary()
    if kind != chunked.type:
        chunked = chunked.cast(kind)
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], kind)


def _is_text(kind: Any) -> bool:
    types = load_pyarrow("A table").types
    tests = ("is_string", "is_large_string", "is_binary", "is_large_binary", "is_fixed_size_binary")
    # Views came with pyarrow 16.
    views = ("is_string_view", "is_binary_view")
    return any(getattr(types, test)(kind) for test in tests) or any(
        getattr(types, test)(kind) for test in views if hasattr(types, test)
    )


def _missing_flaw(rows: np.ndarray, column: Column, what: str) -> Flaw:
    value = '""' if column.is_text else "0"
    nan = "" if column.is_text else ", or missing='nan' to have NaN"
    if not (column.is_text or column.dtype.is_floating):
        nan = f", or dtypes={{{column.name!r}: 'float32'}} and missing='nan' to have NaN"
    return Flaw(
        rows,
        column.name,
        lambda row: f"the column {column.name!r} {what}",  # noqa: ARG005 (the same for all)
        f"Give missing={{{column.name!r}: {value}}} to have a value in its place{nan}.",
    )


def _decoded_scalars(array: Any, column: Column, fill: Any) -> tuple[Values, list[Flaw]]:
    pa = load_pyarrow("A table")
    types = pa.types
    flaws = []
    if types.is_null(array.type):
        array = array.cast(pa.large_binary() if column.is_text else arrow_type(column.dtype.name))
    given_nulls = np.asarray(array.is_null())
    kind = arrow_type(column.dtype.name)
    try:
        cast, failed = cast_with_failures(array, kind)
    except TooManyFailuresError as error:
        raise ExampleLoadError(
            f"the column {column.name!r} is of another type: {error}. Give it: dtypes={{{column.name!r}: ...}}."
        ) from error
    if len(failed):
        flaws.append(
            Flaw(
                failed,
                column.name,
                lambda row: f"the column {column.name!r} has {shown(array[row].as_py())}, which is no {column.dtype.name}",
                f"Give another type: dtypes={{{column.name!r}: ...}}.",
            )
        )
    are_missing = given_nulls
    if types.is_floating(kind):
        are_missing = given_nulls | (np.asarray(cast.is_null(nan_is_null=True)) & ~np.asarray(cast.is_null()))
    missing = np.flatnonzero(are_missing)
    if len(missing) and fill is None:
        flaws.append(_missing_flaw(missing, column, "has no value"))
    if column.is_text:
        encoded = cast.dictionary_encode()
        numbers = np.array(encoded.indices.fill_null(0), np.int32)
        words = encoded.dictionary.to_numpy(zero_copy_only=False)
        if fill is not None and len(missing):
            numbers[missing] = len(words)
            words = np.append(words, np.array([fill], object))
        # Rows that have none need a number all the same.
        return Values(numbers, words if len(words) else np.array([b""], object)), flaws
    plain = np.asarray(cast.fill_null(False if types.is_boolean(kind) else 0))
    if len(missing) and fill is not None:
        plain = plain.copy()
        plain[missing] = fill
    return Values(plain), flaws


def arrow_type(name: str) -> Any:
    """Arrow's type of the values of a column, by TensorFlow's name."""
    pa = load_pyarrow("A table")
    return pa.large_binary() if name == TEXT else {"bool": pa.bool_()}.get(name) or getattr(pa, name)()


def cast_with_failures(array: Any, kind: Any) -> tuple[Any, np.ndarray]:
    """Casts an array value by value.

    Args:
        array: `pyarrow.Array`.
        kind: `pyarrow.DataType`.

    Returns:
        The array, with nulls in the place of those that can't be cast, and the places of those.

    Raises:
        TooManyFailuresError: so many can't that they are no damage.
        pyarrow.ArrowNotImplementedError: none can.
    """
    pa = load_pyarrow("A table")
    pieces: list[Any] = []
    failed: list[int] = []
    to_do = [(0, len(array))]
    while to_do:
        start, length = to_do.pop()
        try:
            pieces.append(_cast(array.slice(start, length), kind))
        except pa.ArrowInvalid:
            if length == 1:
                pieces.append(pa.nulls(1, kind))
                failed.append(start)
                if len(failed) > _MOST_FAILURES:
                    raise TooManyFailuresError(
                        f"{len(failed)} values of the first {start + 1} are no {kind}, {shown(array[failed[0]].as_py())} "
                        "among them"
                    ) from None
                continue
            half = length // 2
            to_do += [(start + half, length - half), (start, half)]
    return pa.concat_arrays(pieces), np.array(failed, np.int64)


def _cast(array: Any, kind: Any) -> Any:
    """One array in another type: floats round, all else must be held exactly."""
    pa = load_pyarrow("A table")
    types = pa.types
    if array.type == kind:
        return array
    if types.is_large_binary(array.type):
        # Bytes become numbers by way of text.
        array = array.cast(pa.large_string())
    if types.is_large_binary(kind):
        return array.cast(pa.large_string()).cast(kind)
    if types.is_temporal(array.type):
        width = pa.int32() if types.is_date(array.type) or types.is_time32(array.type) else pa.int64()
        array = (array.cast(pa.date32()) if types.is_date64(array.type) else array).cast(width)
    if types.is_decimal(array.type):
        array = array.cast(pa.float64(), safe=False) if types.is_floating(kind) else array
    # A float of another width rounds, as does an integer that is made one.
    is_rounded = types.is_floating(kind) and (types.is_integer(array.type) or types.is_floating(array.type))
    return array.cast(kind, safe=not is_rounded)


def shown(value: Any) -> str:
    """A value as an error shows it."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
