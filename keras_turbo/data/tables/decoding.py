"""Columns of Arrow tables as arrays that TensorFlow takes, and which of their rows have none to give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_turbo.data.failures import ExampleLoadError
from keras_turbo.data.tables.casting import (
    TooManyFailuresError,
    arrow_type,
    cast_with_failures,
    is_text,
    plain_type,
    shown,
    value_type,
)
from keras_turbo.data.tables.columns import Column, Values
from keras_turbo.data.tables.pyarrow_library import load_pyarrow


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
    if column.is_list and pa.types.is_null(chunked.type):
        chunked = chunked.cast(pa.large_list(arrow_type(column.dtype.name)))
    if not column.is_list:
        return _decoded_scalars(_one_array(chunked), column, fill)
    arrays = chunked.chunks if chunked.num_chunks else [pa.array([], chunked.type)]
    lengths = np.concatenate([np.asarray(pa.compute.list_value_length(one).fill_null(-1)) for one in arrays])
    flat = pa.chunked_array([pa.compute.list_flatten(one) for one in arrays], value_type(chunked.type))
    flaws = []
    nulls = np.flatnonzero(lengths < 0)
    lengths = np.maximum(lengths, 0).astype(np.int64)
    if len(nulls):
        remedy = "Write an empty list, or one of values."
        flaws.append(Flaw(nulls, column.name, lambda row: f"the column {column.name!r} has no list", remedy))
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
                "Write lists of one length; they are ragged only if those of the first row group are.",
            )
        )
    array = np.zeros((len(lengths), column.length), values.array.dtype)
    array[fits] = values.array[np.repeat(fits, lengths)].reshape(-1, column.length)
    return Values(array, values.vocabulary), flaws


def _one_array(chunked: Any) -> Any:
    """A chunked array of plain values in one piece."""
    pa = load_pyarrow("A table")
    kind = plain_type(chunked.type)
    if is_text(kind):
        # Whose offsets have room for more than 2 GB.
        kind = pa.large_binary()
    if kind != chunked.type:
        chunked = chunked.cast(kind)
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], kind)


def _missing_flaw(rows: np.ndarray, column: Column) -> Flaw:
    value = '""' if column.is_text else "0"
    nan = "" if column.is_text else ", or missing='nan' to have NaN"
    if not (column.is_text or column.dtype.is_floating):
        nan = f", or dtypes={{{column.name!r}: 'float32'}} and missing='nan' to have NaN"
    return Flaw(
        rows,
        column.name,
        lambda row: f"the column {column.name!r} has no value",
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
                lambda row: (
                    f"the column {column.name!r} has {shown(array[row].as_py())}, which is no {column.dtype.name}"
                ),
                f"Give another type: dtypes={{{column.name!r}: ...}}.",
            )
        )
    are_missing = given_nulls
    if types.is_floating(kind):
        are_missing = given_nulls | (np.asarray(cast.is_null(nan_is_null=True)) & ~np.asarray(cast.is_null()))
    missing = np.flatnonzero(are_missing)
    if len(missing) and fill is None:
        flaws.append(_missing_flaw(missing, column))
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
