"""Sparse gradients whose number of rows differs from step to step of one execution.

TensorFlow (2.17 to 2.21) fails where an exchange has another size in a later step of an execution ("Shape mismatch in
the collective instance"), as that of an embedding's rows has in a last batch of fewer examples. Dense gradients would
always be of one size, but are not what one device has: of a row that comes twice in a batch, Keras' optimizers square
and clip each part by itself. So rows are padded to one of a few sizes, each with an exchange of its own, and the
padding is taken out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_turbo.distribution.communication import sum_over_replicas

# Rows of a gradient that are sent. More sizes would be less padding, at a longer time to trace a step: each has code of
# its own for every gradient and replica.
_SIZES = tuple(4**power for power in range(4, 14))
_PADDING = -1


def has_any_length(gradient: Any) -> bool:
    """Whether it is a sparse gradient whose number of rows is not known while a step is traced."""
    return isinstance(gradient, tf.IndexedSlices) and not gradient.indices.shape.is_fully_defined()


def sum_of_any_length(gradients: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """Sums gradients over replicas, in steps whose numbers of rows differ. To be called in a replica.

    Args:
        gradients: this replica's.

    Raises:
        tf.errors.InvalidArgumentError: when it runs, a gradient has more rows than the largest size.
    """
    context = tf.distribute.get_replica_context()
    lengths = tf.stack([tf.shape(one.indices)[0] for one in gradients])
    fits = tf.cast(lengths[:, None] <= tf.constant(_SIZES), tf.float32)
    # By the replica that has most rows: sizes count where those of all replicas fit.
    fit_everywhere = context.all_reduce(tf.distribute.ReduceOp.SUM, fits) >= context.num_replicas_in_sync
    few_enough = tf.debugging.assert_less_equal(
        lengths, _SIZES[-1], "A sparse gradient has too many rows for several steps per execution; take one."
    )
    with tf.control_dependencies([few_enough]):
        choices = tf.argmax(fit_everywhere, axis=1, output_type=tf.int32)
    summed: Any = context.merge_call(_summed_across_replicas, args=(list(gradients), choices))
    return [_without_padding(one) for one in summed]


def _summed_across_replicas(strategy: tf.distribute.Strategy, gradients: list[Any], choices: Any) -> list[Any]:
    # TensorFlow allows no exchange in a branch that is taken within a replica.
    chosen = tf.unstack(strategy.experimental_local_results(choices)[0], len(gradients))
    return [_summed(strategy, one, choice) for one, choice in zip(gradients, chosen, strict=True)]


def _summed(strategy: tf.distribute.Strategy, gradient: Any, choice: tf.Tensor) -> Any:
    def sent_with(size: int) -> Callable[[], Any]:
        @tf.autograph.experimental.do_not_convert
        def in_replica(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
            (total,) = sum_over_replicas([_padded(gradient, size)])
            return total

        return lambda: strategy.extended.call_for_each_replica(in_replica, args=(gradient,))

    return tf.switch_case(choice, [sent_with(size) for size in _SIZES])


def _padded(gradient: tf.IndexedSlices, size: int) -> tf.IndexedSlices:
    missing: Any = size - tf.shape(gradient.indices)[0]
    indices = tf.pad(gradient.indices, [[0, missing]], constant_values=_PADDING)
    values = tf.pad(gradient.values, [[0, missing], *[[0, 0]] * (gradient.values.shape.rank - 1)])
    return tf.IndexedSlices(
        tf.ensure_shape(values, [size, *gradient.values.shape[1:]]),
        tf.ensure_shape(indices, [size]),
        gradient.dense_shape,
    )


def _without_padding(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    rows = tf.reshape(tf.where(gradient.indices != _PADDING), [-1])
    return tf.IndexedSlices(tf.gather(gradient.values, rows), tf.gather(gradient.indices, rows), gradient.dense_shape)
