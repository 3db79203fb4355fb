"""Elements of a dataset as rows of arrays, and each row as a serialized `tf.train.Example`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.records.manifest import Leaf, leaf_of, leaves_of

_PARTS = ("x", "y", "sample_weight")


def element_of(element_spec: Any, is_batched: bool) -> Any:
    """The structure of one example, of `Leaf`s.

    Args:
        element_spec: of the dataset.
        is_batched: whether its tensors have an axis for the examples, before their own.

    Raises:
        TypeError: a tensor that can't be written.
        ValueError: two tensors that would have one name.
    """
    if isinstance(element_spec, tuple) and len(element_spec) <= len(_PARTS):
        element = tuple(_leaves(spec, name, is_batched) for spec, name in zip(element_spec, _PARTS, strict=False))
    else:
        element = _leaves(element_spec, "x", is_batched)
    names = [name for leaf in leaves_of(element) for name in leaf.features()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Two tensors of an element would have the name {twice[0]!r} in a record. Rename its keys.")
    return element


def rows_of(element: Any, leaves: list[Leaf], is_batched: bool) -> Iterator[bytes]:
    """The examples of an element of a dataset, serialized.

    Args:
        element: tensors.
        leaves: how each is stored, in the order of `tf.nest.flatten`.
        is_batched: whether they have a first axis of examples.
    """
    columns = [_rows(tensor, is_batched) for tensor in tf.nest.flatten(element)]
    for row in zip(*columns, strict=True):
        features: dict[str, tf.train.Feature] = {}
        for leaf, array in zip(leaves, row, strict=True):
            features.update(leaf.encoded(array))
        example = tf.train.Example(features=tf.train.Features(feature=features))
        # In one order of names: equal examples are equal bytes.
        yield example.SerializeToString(deterministic=True)


def _leaves(spec: Any, name: str, is_batched: bool) -> Any:
    if isinstance(spec, dict):
        if not all(isinstance(key, str) for key in spec):
            raise TypeError(f"Names of tensors must be strings to be written. Received: {list(spec)}.")
        return {key: _leaves(inner, f"{name}/{key}", is_batched) for key, inner in spec.items()}
    if isinstance(spec, (tuple, list)):
        return tuple(_leaves(inner, f"{name}/{index}", is_batched) for index, inner in enumerate(spec))
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
        return leaf_of(name, tf.TensorSpec(spec.shape[1:] if is_batched else spec.shape, spec.dtype))
    is_of_vectors = isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)) and spec.shape.rank == 2
    if is_of_vectors and is_batched:
        return leaf_of(name, tf.TensorSpec([None], spec.dtype))
    raise TypeError(
        f"{name!r} can't be written to a TFRecord: {spec}. Tensors of known rank can, and batches of ragged or sparse "
        "vectors."
    )


def _rows(tensor: Any, is_batched: bool) -> list[np.ndarray]:
    if isinstance(tensor, tf.SparseTensor):
        tensor = tf.RaggedTensor.from_sparse(tensor)
    if isinstance(tensor, tf.RaggedTensor):
        return np.split(tensor.values.numpy(), tensor.row_splits.numpy()[1:-1])
    array = np.asarray(tensor)
    return [np.asarray(row) for row in array] if is_batched else [array]
