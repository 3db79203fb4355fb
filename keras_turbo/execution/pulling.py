"""Batches taken from an iterator inside a graph, where no Python stands between one and the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def batch_puller(iterator: tf.data.Iterator) -> Callable[[tf.data.Iterator, int], int]:
    """Makes a function that takes batches from an iterator and drops them.

    A batch that is handed to Python costs as much as many a pipeline takes to make it.

    Args:
        iterator: one of those that the function will be called with; all must have its element_spec.

    Returns:
        A function of an iterator and the most batches to take; it returns how many there were.
    """

    def pull(iterator: tf.data.Iterator, most: tf.Tensor) -> tf.Tensor:
        def body(count: tf.Tensor, batch: Any) -> tuple[tf.Tensor, Any]:
            with tf.control_dependencies(tf.nest.flatten(batch.get_value(), expand_composites=True)):
                count += 1
            return count, tf.cond(count < most, iterator.get_next_as_optional, lambda: batch)

        return tf.while_loop(
            lambda count, batch: tf.logical_and(count < most, batch.has_value()),
            body,
            (tf.constant(0), iterator.get_next_as_optional()),
        )[0]

    pulled_by = tf.function(pull, autograph=False).get_concrete_function(iterator, tf.TensorSpec([], tf.int32))
    return lambda iterator, most: int(pulled_by(iterator, tf.constant(most)))
