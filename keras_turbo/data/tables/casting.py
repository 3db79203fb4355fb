"""Types of Arrow: what they are made of, and values cast from one to another, one by one where some can't be."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_turbo.data.tables.pyarrow_library import load_pyarrow

#: What columns of strings are called.
TEXT = "string"

# Of one column of a row group or block. Where more can't be what they should be, it is the type that is wrong.
_MOST_FAILURES = 1000

# More of a value helps nobody.
_LONGEST_SHOWN = 60


class TooManyFailuresError(ValueError):
    """Many values of a column are of another type than that which it is given."""


def value_type(kind: Any) -> Any:
    """The type of what is in the lists of a list type; None for one that has no lists."""
    types = load_pyarrow("A table").types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if is_list else None


def plain_type(kind: Any) -> Any:
    """What a type is without its dictionary."""
    return kind.value_type if load_pyarrow("A table").types.is_dictionary(kind) else kind


def is_text(kind: Any) -> bool:
    """Whether a type is one of strings, of text or of bytes."""
    types = load_pyarrow("A table").types
    tests = (
        *(types.is_string, types.is_large_string, types.is_string_view),
        *(types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
    )
    return any(test(kind) for test in tests)


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
            pieces.append(cast(array.slice(start, length), kind))
        except pa.ArrowInvalid:
            if length == 1:
                pieces.append(pa.nulls(1, kind))
                failed.append(start)
                if len(failed) > _MOST_FAILURES:
                    raise TooManyFailuresError(
                        f"{len(failed)} values of the first {start + 1} are no {kind}, "
                        f"{shown(array[failed[0]].as_py())} among them"
                    ) from None
                continue
            half = length // 2
            to_do += [(start + half, length - half), (start, half)]
    return pa.concat_arrays(pieces), np.array(failed, np.int64)


def cast(array: Any, kind: Any) -> Any:
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
