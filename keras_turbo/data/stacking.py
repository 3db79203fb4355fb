"""Batches in stacks: several in one element, along a new first axis, as a step over all of them wants them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_turbo.data.light_operations import light_flat_map


def stacks_of_rows(rows: tf.data.Dataset, batch_size: int, drop_remainder: bool) -> tf.data.Dataset:
    """Cuts elements of many rows into stacks of batches, without copying them.

    Args:
        rows: structures of tensors with the same first axis. Only the last element may hold rows that do not fill a
            batch, and any may hold none.
        batch_size: rows a batch.
        drop_remainder: whether rows that do not fill a batch are left out.

    Returns:
        A dataset of stacks `(batches, batch_size, ...)`, then those rows as `(1, rows, ...)`.
    """

    def stacks(element: Any) -> tf.data.Dataset:
        number_of_rows = tf.shape(tf.nest.flatten(element)[0])[0]
        full = number_of_rows // batch_size * batch_size
        stacked = _slice_as_one(element, tf.constant(0), full, batch_size)
        if drop_remainder:
            return stacked
        return stacked.concatenate(_slice_as_one(element, full, number_of_rows, number_of_rows - full))

    return light_flat_map(rows, stacks)


def _slice_as_one(element: Any, begin: tf.Tensor, end: tf.Tensor, batch_size: int | tf.Tensor) -> tf.data.Dataset:
    """A dataset of one stack, or of none where there is no row."""
    number_of_stacks = tf.minimum(end - begin, 1)
    batches = (end - begin) // tf.maximum(batch_size, 1)

    def stack(leaf: tf.Tensor) -> tf.Tensor:
        inner = leaf.shape[1:].as_list()
        static_size = batch_size if isinstance(batch_size, int) else None
        stacks = tf.reshape(leaf[begin:end], [number_of_stacks, batches, batch_size, *inner])
        return tf.ensure_shape(stacks, [None, None, static_size, *inner])

    return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(stack, element))
