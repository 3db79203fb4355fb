"""Arrays some of which have rows of unequal lengths: sequences of tokens, of samples, of events."""

from __future__ import annotations

import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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

    can_be_measured = False

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
        self.bytes_in_graph = sum(column.num_bytes for column in self._columns)

    @property
    def num_examples(self) -> int:
        return len(self._columns[0])

    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        return self._packed([column.row(position) for column in self._columns])

    def gather_padded(self, positions: tf.Tensor, length: tf.Tensor) -> Any:
        """Graph code: the examples at some positions (int64 vector), with sequences filled up to a length (scalar)."""
        return self._packed([column.rows(positions, length) for column in self._columns])

    def _packed(self, leaves: list[tf.Tensor]) -> Any:
        return keras.tree.pack_sequence_as(self._structure, leaves)

    def describe(self, position: int) -> str:
        return f"the example at index {position}"

    def labels_at(self, positions: np.ndarray) -> Any:
        if not self._has_y:
            return None
        return keras.tree.map_structure(lambda column: column.labels(positions), self._structure[1])

    def identity(self) -> Identity:
        hasher = hashlib.blake2b(digest_size=16)
        for column in self._columns:
            column.update(hasher)
        return Identity(recipe={"kind": "sequences", "data": hasher.hexdigest()}, content=None)


class _Column:
    """One input: the rows of all examples one behind the other, and where each begins.

    Attributes:
        lengths: of the rows; None where all rows have one shape and are no sequences to fill up.
    """

    def __init__(self, name: str, values: np.ndarray, lengths: np.ndarray | None) -> None:
        self.name = name
        self.lengths = lengths
        self._values = values
        self._splits = None if lengths is None else np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        with tf.device("CPU:0"):
            self._tensor = tf.convert_to_tensor(values)

    @property
    def num_bytes(self) -> int:
        return self._values.nbytes

    def __len__(self) -> int:
        return len(self._values) if self.lengths is None else len(self.lengths)

    def row(self, position: tf.Tensor) -> tf.Tensor:
        if self._splits is None:
            return tf.gather(self._tensor, position)
        return self._tensor[tf.gather(self._splits, position) : tf.gather(self._splits, position + 1)]

    def rows(self, positions: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        if self._splits is None:
            return tf.gather(self._tensor, positions)
        begins, ends = tf.gather(self._splits, positions), tf.gather(self._splits, positions + 1)
        places = begins[:, None] + tf.range(length)[None, :]
        is_value = places < ends[:, None]
        rows = tf.gather(self._tensor, tf.where(is_value, places, 0))
        for _ in self._values.shape[1:]:
            is_value = is_value[..., None]
        return tf.where(is_value, rows, tf.zeros([], rows.dtype))

    def labels(self, positions: np.ndarray) -> Any:
        if self._splits is None:
            return self._values[positions]
        return [self._values[self._splits[at] : self._splits[at + 1]] for at in positions]

    def update(self, hasher: Any) -> None:
        for array in (self._values, self._splits):
            if array is None:
                continue
            hasher.update(f"{array.shape}{array.dtype}".encode())
            hasher.update("\0".join(map(repr, array.ravel())).encode() if array.dtype == object else array.tobytes())


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
