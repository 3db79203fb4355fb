"""Arrays some of which have rows of unequal lengths: sequences of tokens, of samples, of events."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.sources.arrays import digest_of
from keras_turbo.data.sources.source import Identity, Source


class SequenceSource(Source):
    """One example for each row of `x`, `y` and `sample_weight`, where rows may differ in their first axis.

    Args:
        x: as for `ArraySource`, in dicts or tuples; and `tf.RaggedTensor`s, lists of sequences and object arrays of
            sequences. A list is one input here, row by row; several inputs are a dict or a tuple.
        y: the same for targets, or None.
        sample_weight: the same for weights, or None; needs `y`.

    Raises:
        ValueError: no rows, unequal numbers of them, or none that vary in length.
        TypeError: something that is no sequence of numbers or strings.
    """

    loads_together = True
    loading_is_called = None

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None) -> None:
        if y is None and sample_weight is not None:
            raise ValueError("`sample_weight` was given without `y`: weights belong to targets. Give `y` too.")
        named = {"x": x, "y": y, "sample_weight": sample_weight}
        parts = {name: _columns(part, name) for name, part in named.items() if part is not None}
        self._structure = tuple(parts.values()) if len(parts) > 1 or isinstance(parts["x"], tuple) else parts["x"]
        self._has_y = y is not None
        self._columns: list[_Column] = keras.tree.flatten(self._structure)
        counts = {column.name: len(column) for column in self._columns}
        if not counts:
            raise ValueError(f"`x` holds no sequences. Received: x={x!r}.")
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise ValueError(f"All inputs must have the same number of examples (rows). Received {listed}.")
        if not next(iter(counts.values())):
            raise ValueError("There is no example: the data have no rows.")
        varying = [column.lengths for column in self._columns if column.lengths is not None]
        if not varying:
            raise ValueError(
                "`bucket_by_length` is for sequences of unequal lengths, and all rows have equal ones here. Give a "
                "tf.RaggedTensor or a list of sequences, or leave `bucket_by_length` out."
            )
        #: int64 vector: of each example the length of its longest sequence.
        self.lengths = np.max(varying, axis=0)
        self.elements = Elements(
            keras.tree.pack_sequence_as(self._structure, [column.row_spec for column in self._columns])
        )

    def __len__(self) -> int:
        return len(self._columns[0])

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column], dict[int, Exception]]:
        return [column.rows(positions) for column in self._columns], {}

    def name(self, position: int) -> str:
        return f"the example at index {position}"

    def labels_at(self, positions: np.ndarray) -> Any:
        if not self._has_y:
            return None
        return keras.tree.map_structure(lambda column: column.rows(positions), self._structure[1])

    def identity(self) -> Identity:
        arrays = [array for column in self._columns for array in column.arrays]
        return Identity(recipe={"kind": "sequences", "data": digest_of(arrays)}, content=None)


class _Column:
    """One input: the rows of all examples one behind the other, and where each begins.

    Attributes:
        lengths: of the rows; None where all rows have one shape and are no sequences to fill up.
    """

    def __init__(self, name: str, values: np.ndarray, lengths: np.ndarray | None) -> None:
        self.name = name
        self.lengths = lengths
        self._values = values.astype(object) if values.dtype.kind in "US" else values
        self._splits = None if lengths is None else np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def __len__(self) -> int:
        return len(self._values) if self.lengths is None else len(self.lengths)

    @property
    def arrays(self) -> list[np.ndarray]:
        """What it consists of."""
        return [self._values] if self._splits is None else [self._values, self._splits]

    @property
    def row_spec(self) -> tf.TensorSpec:
        """The `tf.TensorSpec` of a row."""
        dtype = tf.string if self._values.dtype == object else tf.as_dtype(self._values.dtype)
        inner = self._values.shape[1:]
        return tf.TensorSpec(inner if self._splits is None else (None, *inner), dtype)

    def rows(self, positions: np.ndarray) -> Column:
        """The rows at some positions (int64 vector)."""
        if self._splits is None:
            return self._values[positions]
        return [self._values[self._splits[at] : self._splits[at + 1]] for at in positions.tolist()]


def _columns(part: Any, name: str) -> Any:
    if isinstance(part, dict):
        return {key: _columns(value, f"{name}[{key!r}]") for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(_columns(value, f"{name}[{index}]") for index, value in enumerate(part))
    return _column(part, name)


def _column(leaf: Any, name: str) -> _Column:
    if isinstance(leaf, tf.RaggedTensor):
        if leaf.ragged_rank != 1:
            raise TypeError(
                f"`{name}` is ragged in {leaf.ragged_rank} dimensions, and sequences may be in one. Received shape "
                f"{leaf.shape}."
            )
        return _Column(name, _as_floatx(leaf.flat_values.numpy()), leaf.row_lengths().numpy())
    rows = leaf if isinstance(leaf, list) or _has_objects(leaf) else None
    if rows is None or all(isinstance(row, (str, bytes)) for row in rows):
        array = np.asarray(leaf)
        if array.ndim == 0:
            raise TypeError(f"`{name}` must have one row for each example. Received a scalar: {leaf!r}.")
        return _Column(name, _as_floatx(array), None)
    arrays = [np.asarray(row) for row in rows]
    if all(array.ndim == 0 for array in arrays):  # a list of numbers
        return _Column(name, _as_floatx(np.asarray(arrays)), None)
    inner = {array.shape[1:] for array in arrays if array.size or array.ndim > 1} or {()}
    if any(array.ndim == 0 for array in arrays) or len(inner) > 1 or any(array.dtype == object for array in arrays):
        raise TypeError(
            f"`{name}` must be a list of sequences that differ in their first axis alone, of numbers or strings. "
            f"Received rows of shapes {sorted({array.shape for array in arrays})[:4]}."
        )
    (shape,) = inner
    filled = [array.reshape(len(array), *shape) for array in arrays]
    # An empty list has no type of its own.
    typed = [array for array in filled if len(array)] or filled
    dtype = np.result_type(*{array.dtype for array in typed})
    values = np.concatenate([array.astype(dtype) for array in filled])
    return _Column(name, _as_floatx(values), np.array([len(array) for array in filled], np.int64))


def _has_objects(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.hasobject


def _as_floatx(array: np.ndarray) -> np.ndarray:
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(keras.config.floatx(), copy=False)
    return array
