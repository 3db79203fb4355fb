"""What becomes of values that are missing: nulls, and what is not a number."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

from keras_turbo.data.tables.columns import Column

RAISE, NAN = "raise", "nan"


@dataclasses.dataclass(frozen=True)
class Missing:
    """The option `missing` of `FastDataset.from_parquet`.

    Args:
        option: "raise", "nan", a number for all columns of numbers, or a dict of columns and values.

    Raises:
        TypeError, ValueError: it is something else.
    """

    option: Any = RAISE

    def __post_init__(self) -> None:
        option = self.option
        if isinstance(option, str):
            if option not in (RAISE, NAN):
                raise ValueError(
                    "`missing` must be 'raise', 'nan', a number, or a dict of columns and values, such as "
                    f"{{'age': 0, 'city': ''}}. Received: {option!r}."
                )
        elif isinstance(option, Mapping):
            for name, value in option.items():
                if not isinstance(name, str) or not isinstance(value, (str, bytes, bool, numbers.Real)):
                    raise TypeError(
                        "`missing` must be a dict of names of columns and numbers or strings. Received: "
                        f"{name!r}: {value!r}."
                    )
        elif isinstance(option, bool) or not isinstance(option, numbers.Real):
            raise TypeError(
                f"`missing` must be 'raise', 'nan', a number, or a dict of columns and values. Received: {option!r}."
            )

    def values_for(self, columns: list[Column]) -> dict[str, Any]:
        """The value for each column that may have missing ones.

        Raises:
            ValueError: a value that its column can't hold, or of a column that is not read.
        """
        if isinstance(self.option, Mapping):
            known = {column.name: column for column in columns}
            unknown = [name for name in self.option if name not in known]
            if unknown:
                raise ValueError(
                    f"`missing` names {', '.join(map(repr, unknown))}, which is none of the columns that are read: "
                    f"{list(known)}."
                )
            return {name: _held_by(known[name], value) for name, value in self.option.items()}
        if self.option == RAISE:
            return {}
        if self.option == NAN:
            return {column.name: math.nan for column in columns if column.dtype.is_floating}
        return {column.name: self.option for column in columns if _can_hold(column, self.option)}


def _held_by(column: Column, value: Any) -> Any:
    if value == NAN and column.dtype.is_floating:
        return math.nan
    if not _can_hold(column, value):
        raise ValueError(
            f"`missing` gives {value!r} for the column {column.name!r}, which is {column.dtype.name} and can't hold "
            f"it. Give another value, or another type: dtypes={{{column.name!r}: ...}}."
        )
    return value.encode() if isinstance(value, str) else value


def _can_hold(column: Column, value: Any) -> bool:
    if column.is_text or isinstance(value, (str, bytes)):
        return column.is_text and isinstance(value, (str, bytes))
    if column.dtype.is_floating:
        return True
    if column.dtype.is_bool:
        return value in (0, 1)
    return math.isfinite(value) and value == int(value) and column.dtype.min <= int(value) <= column.dtype.max
