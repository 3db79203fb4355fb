"""What one example looks like, and how several of them become the tensors of a batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

#: What a tensor of an example is in a batch: stacked; or rows of unequal length as a ragged or a sparse tensor, or
#: padded with zeros to the longest of them.
BatchForm = Literal["dense", "ragged", "sparse", "padded"]

# What a string takes where it is not known: about its handle.
_STRING_BYTES = 16

#: The values of one tensor for several examples: stacked, or one by one where shapes differ.
Column = np.ndarray | list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Elements:
    """The form of one example.

    Attributes:
        spec: structure of `tf.TensorSpec`s; sizes that differ from example to example are None.
        forms: for each tensor what it becomes in a batch; empty where all are stacked.
        string_bytes: what a string takes, about.
    """

    spec: Any
    forms: tuple[BatchForm, ...] = ()
    string_bytes: int = _STRING_BYTES

    @property
    def leaves(self) -> list[tf.TensorSpec]:
        """The specs of the tensors, in the order of `tf.nest`."""
        return tf.nest.flatten(self.spec)

    @property
    def is_fixed(self) -> bool:
        """Whether all examples have the same shapes."""
        return all(leaf.shape.is_fully_defined() for leaf in self.leaves)

    @property
    def is_stacked(self) -> bool:
        """Whether all tensors of a batch are dense."""
        return all(form == "dense" for form in self.forms)

    @property
    def row_bytes(self) -> int:
        """Bytes of an example, about where there are strings in it; unknown sizes count as 1."""
        return sum(
            math.prod(size or 1 for size in leaf.shape or ())
            * (self.string_bytes if leaf.dtype == tf.string else leaf.dtype.size)
            for leaf in self.leaves
        )

    @property
    def arrays(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and type of the arrays of an example; unknown sizes are 0."""
        return [(tuple(size or 0 for size in leaf.shape or ()), numpy_dtype(leaf.dtype)) for leaf in self.leaves]

    def zeros(self, count: int) -> list[Column]:
        """Columns of so many examples of zeros; unknown sizes are 0."""
        return [
            np.full((count, *shape), b"", dtype) if dtype.hasobject else np.zeros((count, *shape), dtype)
            for shape, dtype in self.arrays
        ]

    def batch_spec(self, batch_size: int | None) -> Any:
        """The structure of `tf.TypeSpec`s of a batch of so many rows; None for any number."""

        def of(leaf: tf.TensorSpec, form: BatchForm) -> tf.TypeSpec:
            shape = _behind(batch_size, leaf.shape)
            if form == "ragged":
                return tf.RaggedTensorSpec(shape, leaf.dtype, ragged_rank=1, row_splits_dtype=tf.int64)
            if form == "sparse":
                return tf.SparseTensorSpec(shape, leaf.dtype)
            return tf.TensorSpec(shape, leaf.dtype)

        dense: list[BatchForm] = ["dense"] * len(self.leaves)
        forms = self.forms or dense
        return tf.nest.pack_sequence_as(self.spec, [of(*pair) for pair in zip(self.leaves, forms, strict=True)])

    def component_specs(self, batch_size: int | None) -> list[tf.TensorSpec]:
        """The specs of the dense tensors of which `components` gives the values."""
        specs = []
        for leaf, form in zip(self.leaves, self.forms or ["dense"] * len(self.leaves), strict=True):
            if form == "dense":
                specs.append(tf.TensorSpec(_behind(batch_size, leaf.shape), leaf.dtype))
            else:
                specs += [tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), tf.TensorSpec([None], tf.int64)]
        return specs

    def components(self, columns: Sequence[Column]) -> list[np.ndarray]:
        """The dense arrays of a batch: of each tensor its rows; of one that is not dense its values and row splits.

        Raises:
            ValueError: rows of unequal shapes where they are to be stacked.
        """
        arrays = []
        for column, leaf, form in zip(columns, self.leaves, self.forms or ["dense"] * len(columns), strict=True):
            if form == "dense":
                arrays.append(column if isinstance(column, np.ndarray) else _stacked(column, leaf))
                continue
            rows = list(column)
            splits = np.cumsum([0, *map(len, rows)]).astype(np.int64)
            dtype = numpy_dtype(leaf.dtype)
            nothing = np.empty((0, *[size or 0 for size in leaf.shape[1:]]), dtype)
            arrays += [np.concatenate([*rows, nothing]).astype(dtype, copy=False), splits]
        return arrays

    def composed(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Graph code: a batch of the tensors that `components` gave."""
        remaining = iter(tensors)
        batch = []
        for leaf, form in zip(self.leaves, self.forms or ["dense"] * len(self.leaves), strict=True):
            tensor = next(remaining)
            if form != "dense":
                tensor = tf.RaggedTensor.from_row_splits(tensor, next(remaining), validate=False)
                if form == "padded":
                    tensor = tensor.to_tensor()
                if form == "sparse":
                    tensor = tensor.to_sparse()
                    tensor.set_shape([None, *leaf.shape])
            batch.append(tensor)
        return tf.nest.pack_sequence_as(self.spec, batch)


def _behind(batch_size: int | None, shape: tf.TensorShape) -> tf.TensorShape:
    """The shape of a batch of rows of this shape."""
    return tf.TensorShape([batch_size]).concatenate(shape)


def numpy_dtype(dtype: tf.DType) -> np.dtype:
    """The type of the arrays that hold a tensor's values; strings are Python objects."""
    return np.dtype(object if dtype == tf.string else dtype.as_numpy_dtype)


def _stacked(rows: list[np.ndarray], leaf: tf.TensorSpec) -> np.ndarray:
    shapes = {np.shape(row) for row in rows}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise ValueError(
            f"Examples of different shapes can't be batched: {first} and {second}, for instance. Pad them to one shape "
            "in map_fn, or give batch_size=None."
        )
    if not rows:
        return np.empty((0, *[size or 0 for size in leaf.shape or ()]), numpy_dtype(leaf.dtype))
    return np.stack(rows)


def concatenated(parts: Sequence[Sequence[Column]]) -> list[Column]:
    """The columns of examples that come in several parts."""
    if len(parts) == 1:
        return list(parts[0])
    joined: list[Column] = []
    for columns in zip(*parts, strict=True):
        if all(isinstance(column, np.ndarray) for column in columns):
            joined.append(np.concatenate(columns))
        else:
            joined.append([row for column in columns for row in column])
    return joined


def taken(columns: Sequence[Column], indices: np.ndarray) -> list[Column]:
    """Some examples of columns, copied."""
    return [
        column[indices] if isinstance(column, np.ndarray) else [column[index] for index in indices.tolist()]
        for column in columns
    ]


def scattered(columns: Sequence[Column], indices: np.ndarray, count: int, elements: Elements) -> list[Column]:
    """Columns of so many examples, of zeros but for those at some indices."""
    everything = elements.zeros(count)
    for index, column in enumerate(columns):
        whole = everything[index] if isinstance(column, np.ndarray) else list(everything[index])
        for place, value in zip(indices.tolist(), column, strict=True):
            whole[place] = value
        everything[index] = whole
    return everything
