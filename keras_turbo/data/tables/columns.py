"""Columns of Arrow tables as arrays that TensorFlow takes: of which type, and which rows have none to give."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.tables.casting import TEXT, arrow_type, cast, is_text, plain_type, value_type
from keras_turbo.data.tables.pyarrow_library import load_pyarrow

# Types that a column can be given, in the names of TensorFlow, NumPy and Arrow alike.
_NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)


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
        inner = () if self.length is None else (self.length,)
        return Values(np.full((num_rows, *inner), b"" if self.is_text else 0, kind))


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


def joined(parts: Sequence[Values]) -> Values:
    """The rows of several one after the other."""
    if len(parts) == 1:
        return parts[0]
    array = np.concatenate([part.array for part in parts])
    vocabulary = offsets = None
    vocabularies = [part.vocabulary for part in parts if part.vocabulary is not None]
    if vocabularies:
        pa = load_pyarrow("A table")
        encoded = pa.array(np.concatenate(vocabularies), pa.large_binary()).dictionary_encode()
        begins = np.cumsum([0, *map(len, vocabularies[:-1])])
        begin = np.repeat(begins, [len(part.array) for part in parts]).reshape(-1, *(1 for _ in array.shape[1:]))
        array = encoded.indices.to_numpy()[array + begin]
        vocabulary = encoded.dictionary.to_numpy(zero_copy_only=False)
    lengths = [np.diff(part.offsets) for part in parts if part.offsets is not None]
    if lengths:
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
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
    if types.is_null(kind) and wanted is None:
        raise ValueError(
            f"{where}: it has no value in any row. Leave it out by `columns`, or give its type as "
            f"dtypes={{{field.name!r}: ...}} and what shall stand in its place as `missing`."
        )
    is_time = types.is_temporal(kind)
    if is_time and (wanted is None or (wanted != TEXT and not wanted.startswith(("int", "uint")))):
        raise ValueError(
            f"{where}, and a tensor has no times. Say what to make of it: dtypes={{{field.name!r}: 'int64'}} (its "
            "days, or the number of its own units, since 1970-01-01) or 'string' (as text), or leave it out by "
            "`columns`."
        )
    if types.is_decimal(kind):
        name = wanted or keras.config.floatx()
    elif types.is_boolean(kind) or types.is_integer(kind):
        name = wanted or str(kind)
    elif types.is_floating(kind):
        name = wanted or keras.config.floatx()
    elif is_time or types.is_null(kind):
        name = str(wanted)
    elif is_text(kind):
        name = wanted or TEXT
    else:
        raise ValueError(
            f"{where}, which can't be a tensor. Leave it out by `columns`, or write it as columns or lists of numbers, "
            "booleans or strings."
        )
    column = Column(field.name, tf.as_dtype(name), is_list, length if is_list else None)
    try:
        cast(pa.array([], pa.large_binary() if is_text(kind) else kind), arrow_type(column.dtype.name))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ValueError(f"{where}, of which pyarrow can make no {name}. {error}") from error
    return column
