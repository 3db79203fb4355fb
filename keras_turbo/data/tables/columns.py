"""Columns of tables in the types of their tensors, and which of their rows have no value to give.

All is Arrow's until rows are taken. Strings are its dictionaries, so that each word is there once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column
from keras_turbo.data.engine.failures import ExampleLoadError, SkippedExample

#: Types that a column can be given, in the names of TensorFlow, NumPy and Arrow alike; and what strings are called.
NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
TEXT = "string"

_TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "fixed_size_binary")
_NAMES_OF_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}

#: What is wrong with a row, and what to do about it.
Flaw = tuple[str, str]


def load_pyarrow(wanted_for: str = "A table") -> Any:
    """The module `pyarrow` with its parts, or an ImportError that says which command brings it."""
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"{wanted_for} reads tables by pyarrow, which can't be imported ({error}). Install it: "
            'pip install "keras_turbo[tabular]" (with NumPy before 2: pip install "pyarrow<22")'
        ) from error
    return pa


def is_list(kind: Any) -> bool:
    """Whether a type is one of lists."""
    return str(kind).startswith(("list<", "large_list<", "fixed_size_list<"))


def is_ragged(kind: Any) -> bool:
    """Whether it is one of lists of unequal lengths."""
    return is_list(kind) and not hasattr(kind, "list_size")


def plain_type(kind: Any) -> Any:
    """What a type is without its lists and its dictionary."""
    kind = kind.value_type if is_list(kind) else kind
    return kind.value_type if load_pyarrow().types.is_dictionary(kind) else kind


def name_of(kind: Any) -> str:
    """TensorFlow's name of the type of such values; Arrow's for what TensorFlow has not."""
    name = str(plain_type(kind))
    return TEXT if name.partition("[")[0] in _TEXT_TYPES else _NAMES_OF_FLOATS.get(name, name)


def arrow_type(name: str) -> Any:
    """Arrow's type of values, by TensorFlow's name."""
    pa = load_pyarrow()
    return pa.large_binary() if name == TEXT else pa.bool_() if name == "bool" else getattr(pa, name)()


def spec_of(field: Any) -> tf.TensorSpec:
    """Of the tensor that a row of a column has."""
    return tf.TensorSpec([getattr(field.type, "list_size", None)] if is_list(field.type) else [], name_of(field.type))


def field_of(field: Any, wanted: str | None, length: int | None, path: str) -> Any:
    """The `pyarrow.Field` of what is made of a column of a file, or a ValueError that no tensor can be made of it.

    `wanted` is the type that the user gave (else it is that of the file, of floats Keras' `floatx`), `length` that of
    lists, where it is the same in all rows.
    """
    pa = load_pyarrow()
    kind, problem = plain_type(field.type), None
    is_float = pa.types.is_decimal(kind) or pa.types.is_floating(kind)
    name = wanted or (keras.config.floatx() if is_float else name_of(kind))
    remedy = f"Give its type as dtypes={{{field.name!r}: ...}}"
    if name == "null":
        problem = f": it has no value in any row. {remedy}, and what stands in its place as `missing`"
    elif pa.types.is_temporal(kind) and not name.startswith((TEXT, "int", "uint")):
        what = "'int64' for its days, or the number of its own units, since 1970-01-01, or 'string' for text"
        problem = f", and a tensor has no times. {remedy}: {what}"
    elif name not in (*NUMBERS, TEXT) or not _can_cast(kind, arrow_type(name)):
        problem = f", which can't be a tensor{f' of {wanted}' if wanted else ''}. {remedy}, if one can be"
    if problem:
        raise ValueError(f"The column {field.name!r} of {path} is {field.type}{problem}; or leave it out by `columns`.")
    made = pa.dictionary(pa.int32(), pa.large_binary()) if name == TEXT else arrow_type(name)
    if is_list(field.type):
        length = getattr(field.type, "list_size", length)
        made = pa.list_(made, length) if length else pa.large_list(made)
    return pa.field(field.name, made)


def _can_cast(kind: Any, wanted: Any) -> bool:
    pa = load_pyarrow()
    with contextlib.suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid):
        cast(pa.nulls(0, pa.large_binary() if name_of(kind) == TEXT else kind), wanted)
        return True
    return False


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows that lie together in a file.

    Attributes:
        name: of their file.
        numbers: of each row in the file.
        batch: `pyarrow.RecordBatch` of them in the types of their tensors; None where none can be read.
        flaws: by number, what is wrong with some of them, and with others that are not in the batch.
    """

    name: str
    numbers: Sequence[int] | np.ndarray
    batch: Any
    flaws: dict[int, Flaw]

    def whole(self, left_out: list[SkippedExample], *, skip: bool) -> Rows:
        """The rows without a flaw; the others are put into the list, or the first of them is an `ExampleLoadError`."""
        if not self.flaws:
            return self
        if not skip:
            first, more = min(self.flaws), len(self.flaws) - 1
            what, remedy = self.flaws[first]
            others = f", as in {more} more of the {len(self.numbers)} rows read with it" if more else ""
            hint = "(on_error='skip' leaves such rows out and lists them.)"
            raise ExampleLoadError(f"{self.name}, row {first}: {what}{others}. {remedy} {hint}")
        for number, (what, remedy) in sorted(self.flaws.items()):
            left_out.append(SkippedExample(f"{self.name}, row {number}", f"{what}. {remedy}".strip()))
        kept = np.flatnonzero(~np.isin(self.numbers, list(self.flaws)))
        batch = None if self.batch is None else self.batch.take(load_pyarrow().array(kept))
        return Rows(self.name, np.asarray(self.numbers)[kept], batch, {})


def decode(
    table: Any, schema: Any, fills: Mapping[str, Any], name: str, numbers: Any, gaps: Sequence[str] | None = None
) -> Rows:
    """The rows of a `pyarrow.Table` (or a batch) in the types of a schema, which has fields of `field_of`.

    They have these numbers in the file of that name. `fills` has, by column, what stands for missing values; `gaps`,
    for files of text, how those of a column of numbers are written.
    """
    pa = load_pyarrow()
    columns, flaws = [], {}
    for field in schema:
        given = table[field.name]
        if isinstance(given, pa.ChunkedArray):
            given = given.unify_dictionaries().combine_chunks()
        decoding = _Decoding(field, fills.get(field.name), gaps)
        columns.append(decoding.lists(given) if is_list(field.type) else decoding.scalars(given))
        for row, flaw in decoding.flaws.items():
            flaws.setdefault(int(numbers[row]), flaw)
    return Rows(name, numbers, pa.RecordBatch.from_arrays(columns, schema=schema), flaws)


class _Decoding:
    """Makes the values of one column; `flaws` tells by place which could not be made."""

    def __init__(self, field: Any, fill: Any, gaps: Sequence[str] | None) -> None:
        self.flaws: dict[int, Flaw] = {}
        self._field, self._fill, self._gaps, self._name = field, fill, gaps, name_of(field.type)
        self._called = f"the column {field.name!r}"

    def lists(self, given: Any) -> Any:
        """Lists of values. What is wrong with a value is wrong with its row."""
        pa = load_pyarrow()
        given = given.cast(pa.large_list(pa.null())) if pa.types.is_null(given.type) else given
        lengths = np.asarray(pa.compute.list_value_length(given).fill_null(-1)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])
        values = self.scalars(pa.compute.list_flatten(given))
        rows = np.searchsorted(offsets, list(self.flaws), "right") - 1
        self.flaws = dict(zip(rows.tolist(), self.flaws.values(), strict=True))
        length = getattr(self._field.type, "list_size", None)
        for row in np.flatnonzero((lengths < 0) | (lengths != (length or lengths))).tolist():
            what = f"has {lengths[row]} values, and {length} in other rows" if lengths[row] >= 0 else "has no list"
            remedy = "Lists are ragged only if those of the first row group are; an empty one is a list."
            self.flaws[row] = f"{self._called} {what}", remedy
        if length is None:
            return pa.LargeListArray.from_arrays(offsets, values)
        places = np.where((lengths == length)[:, None], offsets[:-1, None] + np.arange(length), 0)
        values = values if len(values) else pa.nulls(1, values.type)
        return pa.FixedSizeListArray.from_arrays(values.take(pa.array(places.ravel())), length)

    def scalars(self, given: Any) -> Any:
        """Values of numbers or strings."""
        pa = load_pyarrow()
        kind = arrow_type(self._name)
        if name_of(given.type) == TEXT:
            given, words = self._words(_as_words(given))
            is_made = words.is_valid().take(given.indices)
            values = words.take(given.indices) if self._name != TEXT else given
        else:
            made = _cast_each(given, kind)
            values, is_made = _as_words(made) if self._name == TEXT else made, made.is_valid()
        are_missing, are_null = np.asarray(given.is_null()), ~np.asarray(is_made.fill_null(False))
        if pa.types.is_floating(kind):
            are_nan = np.isnan(values.to_numpy(zero_copy_only=False)) & ~are_null
            are_missing, are_null = are_missing | are_nan, are_null | are_nan
        if self._fill is not None and are_missing.any():
            are_null = are_null & ~are_missing
            if self._name == TEXT:
                words = pa.concat_arrays([values.dictionary, pa.array([self._fill.as_py()], kind)])
                values = pa.DictionaryArray.from_arrays(values.indices.fill_null(len(words) - 1), words)
            else:
                values = pa.compute.if_else(pa.array(are_missing), self._fill, values)
        for place in np.flatnonzero(are_null).tolist():
            self.flaws[place] = self._no_value() if are_missing[place] else self._other(given[place].as_py())
        return values

    def _words(self, given: Any) -> tuple[Any, Any]:
        """A column of strings, with nulls for its gaps, and its words in the type that is made; each word once."""
        pa = load_pyarrow()
        words = given.dictionary
        if self._gaps is not None:
            words = _cast_each(words, pa.large_string())
            words = words if self._name == TEXT else pa.compute.utf8_trim_whitespace(words)
            gaps = self._gaps if self._name != TEXT else [""] if self._fill is not None else []
            are_gaps = pa.compute.is_in(words, pa.array(gaps, words.type)).take(given.indices)
            indices = pa.compute.if_else(are_gaps, pa.scalar(None, pa.int32()), given.indices)
            given = pa.DictionaryArray.from_arrays(indices, given.dictionary)
        return given, _cast_each(words, arrow_type(self._name))

    def _no_value(self) -> Flaw:
        value = "''" if self._name == TEXT else "0"
        remedy = (
            f"Give missing={{{self._field.name!r}: {value}}} to have a value in its place ('nan' for NaN, of floats)."
        )
        return f"{self._called} has no value", remedy

    def _other(self, value: Any) -> Flaw:
        if self._name == TEXT:
            remedy = "Give the encoding of the file as `encoding`."
            return f"{self._called} has bytes that are no text in UTF-8: {shown(value)}", remedy
        remedy = f"Give another type: dtypes={{{self._field.name!r}: 'string'}}, for text."
        return f"{self._called} has {shown(value)}, which is no {self._name}", remedy


def _as_words(array: Any) -> Any:
    """An array of strings as a dictionary of `large_binary`, whose offsets have room for more than 2 GB."""
    pa = load_pyarrow()
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.large_binary()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.large_binary()))


def _cast_each(array: Any, kind: Any) -> Any:
    """Casts an array value by value: with nulls in the place of those that can't be."""
    pa = load_pyarrow()
    with contextlib.suppress(pa.ArrowInvalid):
        return cast(array, kind)
    half = len(array) // 2
    if not half:
        return pa.nulls(1, kind)
    return pa.concat_arrays([_cast_each(array.slice(0, half), kind), _cast_each(array.slice(half), kind)])


def cast(array: Any, kind: Any) -> Any:
    """One array in another type: floats round, all else must be held exactly."""
    pa = load_pyarrow()
    types = pa.types
    if array.type == kind:
        return array
    if pa.large_binary() in (array.type, kind):
        # Bytes become numbers by way of text, and numbers bytes.
        return array.cast(pa.large_string()).cast(kind)
    if types.is_temporal(array.type):
        array = array.cast(pa.date32()) if types.is_date64(array.type) else array
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if types.is_decimal(array.type) and types.is_floating(kind):
        array = array.cast(pa.float64())
    return array.cast(kind, safe=not types.is_floating(kind))


def shown(value: Any) -> str:
    """A value as an error shows it: more than its beginning helps nobody."""
    text = repr(value.decode(errors="backslashreplace") if isinstance(value, bytes) else value)
    return text if len(text) <= 60 else text[:60] + "..."


def held(array: Any) -> Any:
    """A column as rows are taken from it: an array of NumPy's; where rows have lists of unequal lengths, as it is."""
    if is_ragged(array.type):
        return array
    plain = array.values if is_list(array.type) else array
    if name_of(array.type) == TEXT:
        # Rows share the objects of their words; those that have none get the last one.
        values = np.append(plain.dictionary.to_numpy(zero_copy_only=False), [b""])[plain.indices.fill_null(-1)]
    else:
        zero = False if name_of(array.type) == "bool" else 0
        values = (plain.fill_null(zero) if plain.null_count else plain).to_numpy(zero_copy_only=False)
    return values.reshape(len(array), -1) if is_list(array.type) else values


def text_bytes(array: Any) -> int:
    """What the words of all rows of a column would take, each by itself; 0 of numbers."""
    plain = array.flatten() if is_list(array.type) else array
    if name_of(plain.type) != TEXT or not len(plain.dictionary):
        return 0
    lengths = load_pyarrow().compute.binary_length(plain.dictionary).to_numpy()
    return int(lengths.take(plain.indices.drop_null().to_numpy()).sum(dtype=np.int64))


def joined(columns: list[Any]) -> Any:
    """The rows of several columns one after the other, `held`."""
    if name_of(columns[0].type) == TEXT and not is_ragged(columns[0].type):
        # Not by way of one dictionary, which takes longer than it saves.
        return np.concatenate([held(column) for column in columns])
    return held(load_pyarrow().concat_arrays(columns))


def taken(column: Any, rows: np.ndarray) -> Column:
    """The tensors of some rows of a column that is `held`."""
    if isinstance(column, np.ndarray):
        return column[rows]
    lists = column.take(load_pyarrow().array(rows))
    values = lists.flatten()
    values = (values.dictionary_decode() if name_of(values.type) == TEXT else values).to_numpy(zero_copy_only=False)
    return [values[begin:end] for begin, end in itertools.pairwise(lists.offsets.to_pylist())]
