"""A replica without rows is given one of padding, which counts for nothing.

A last batch of fewer rows than there are replicas leaves some without any. TensorFlow gives those a batch of no rows,
which not every layer can compute (a convolution fails on a CPU), and zeros for sizes that are unknown beforehand. All
replicas must take part in a step's exchanges, so none can leave it out. So such a replica computes on one row of zeros,
as large as the rows of the others, and what it makes of it has no weight: in losses and gradients (`replica_step.py`),
in metrics, in the statistics of BatchNormalization, and in what `predict` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.distribution.replica_step import first_tensor, number_of_rows


def may_be_empty(data: Any) -> bool:
    """Whether a replica's part of a batch can be without rows, as far as is known while a step is traced.

    All replicas answer alike, since they exchange sizes where it can.

    Args:
        data: what a step is given: x, or a tuple of x, y and weights.
    """
    first = first_tensor(data)
    return first is not None and first.shape.rank != 0 and not _is_fixed(first.shape[:1])


def padded(data: Any) -> Any:
    """The rows of this replica, or one row of zeros where it has none. To be called in a replica, by all of them.

    Args:
        data: as `may_be_empty` takes it, and it may be.

    Returns:
        The same structure.
    """
    is_empty = tf.equal(number_of_rows(data), 0)
    leaves = keras.tree.flatten(data)
    sizes = iter(_sizes_elsewhere([one for one in leaves if _has_unknown_sizes(one)], is_empty))
    return keras.tree.pack_sequence_as(
        data, [_padded_leaf(one, is_empty, next(sizes) if _has_unknown_sizes(one) else None) for one in leaves]
    )


def without_padding(output: Any, is_empty: tf.Tensor) -> Any:
    """What a replica made of its rows: nothing, where they were padding.

    Args:
        output: a tensor whose first axis is that of rows. One number, and what is no dense tensor, stays.
        is_empty: whether the replica has no rows.
    """
    if not isinstance(output, tf.Tensor) or output.shape.rank == 0:
        return output
    return output[: tf.where(is_empty, 0, tf.shape(output)[0])]


def updated_by_rows_only(update: Callable[[], Any], variables: list[Any], is_empty: tf.Tensor) -> Any:
    """Runs what updates variables by a replica's rows, and puts back what they were where those are padding.

    Args:
        update: is run in any case.
        variables: of Keras, each replica with its own value.
        is_empty: whether the replica has no rows.
    """
    before = [tf.identity(one.value) for one in variables]
    result = update()
    for variable, value in zip(variables, before, strict=True):
        variable.assign(tf.where(is_empty, value, tf.convert_to_tensor(variable.value)))
    return result


def _has_unknown_sizes(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and bool(leaf.shape.rank) and not _is_fixed(leaf.shape[1:])


def _is_fixed(shape: tf.TensorShape) -> bool:
    """Whether it is the same in all replicas. A step that is not traced sees the shapes of one."""
    return shape.rank == 0 or (shape.is_fully_defined() and not tf.executing_eagerly())


def _sizes_elsewhere(leaves: list[tf.Tensor], is_empty: tf.Tensor) -> list[tf.Tensor]:
    """The shape of a row of each tensor in the replicas that have some, where they are alike."""
    context = tf.distribute.get_replica_context()
    if not leaves or context is None:
        return [tf.shape(one)[1:] for one in leaves]
    ranks = [one.shape.rank - 1 for one in leaves]
    has_rows = tf.cast(tf.logical_not(is_empty), tf.float32)
    sizes = tf.concat([tf.cast(tf.shape(one)[1:], tf.float32) for one in leaves] + [[1.0]], 0) * has_rows
    # Parts of one batch have the same sizes, so that the mean is that size.
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, sizes)
    means = tf.cast(tf.round(tf.math.divide_no_nan(total[:-1], total[-1])), tf.int32)
    return tf.split(means, ranks)


def _padded_leaf(leaf: Any, is_empty: tf.Tensor, sizes: tf.Tensor | None) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        # The last row ends where it begins.
        splits = tf.cond(
            is_empty, lambda: tf.concat([leaf.row_splits, leaf.row_splits[-1:]], 0), lambda: leaf.row_splits
        )
        return tf.RaggedTensor.from_row_splits(leaf.values, splits, validate=False)
    if isinstance(leaf, tf.SparseTensor):
        more = tf.one_hot(0, leaf.shape.rank, dtype=tf.int64) * tf.cast(is_empty, tf.int64)
        return tf.SparseTensor(leaf.indices, leaf.values, leaf.dense_shape + more)
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
        return leaf
    row = tf.shape(leaf)[1:] if sizes is None else sizes
    # In a branch of its own, so that rows that are there are not copied.
    chosen = tf.cond(is_empty, lambda: tf.zeros(tf.concat([[1], row], 0), leaf.dtype), lambda: leaf)
    return chosen if tf.executing_eagerly() else tf.ensure_shape(chosen, [None, *leaf.shape[1:]])
