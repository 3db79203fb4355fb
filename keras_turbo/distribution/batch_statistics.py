"""The statistics of BatchNormalization over all replicas and workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.distribution import keras_internals
from keras_turbo.distribution.replica_step import ReplicaStep, multiply_no_nan


def average_batch_statistics(model: keras.Model, step: ReplicaStep) -> None:
    """Averages what each replica has made of the moving averages, weighted by its rows. To be called in a replica.

    Each replica normalizes by the statistics of its own rows, unless the layer has `synchronized=True`; so after a step
    the moving averages differ. Averaged in each step, they are those of all rows.

    Args:
        model: that has just trained on a batch.
        step: of this replica.
    """
    variables = [variable for layer in _layers_with_statistics(model) for variable in _statistics(layer)]
    if not variables or step.replicas == 1:
        return
    # In one exchange: a network has many of these vectors, and each is small.
    parts = [tf.reshape(tf.cast(one.value, tf.float32), [-1]) for one in variables]
    sizes: list[Any] = [part.shape[0] for part in parts]
    together = tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM, multiply_no_nan(tf.concat(parts, 0), step.share)
    )
    for variable, part in zip(variables, tf.split(together, sizes), strict=True):
        variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))


def masked_moments(layer: keras.layers.BatchNormalization, x: tf.Tensor, mask: Any, step: ReplicaStep) -> Any:
    """Mean and variance of what a mask lets through, over all replicas; Keras takes those of each replica.

    In two exchanges, for the variance as one device has it: a mean of squared differences from the mean.

    Args:
        layer: with `synchronized=True`.
        x: this replica's rows, in float32.
        mask: of one dimension less than x.
        step: of this replica.
    """
    axes = keras_internals.private(layer, "_reduction_axes")
    weights = tf.broadcast_to(tf.cast(mask, x.dtype)[..., None], tf.shape(x))

    def sums(*values: tf.Tensor) -> tf.Tensor:
        parts = tf.stack([tf.reduce_sum(tf.math.multiply_no_nan(one, weights), axes, keepdims=True) for one in values])
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, step.of_rows(parts))

    total, count = tf.unstack(sums(x, tf.ones_like(x)))
    count += keras.config.epsilon()
    mean = total / count
    (squares,) = tf.unstack(sums(tf.square(x - mean)))
    return tf.squeeze(mean), tf.squeeze(squares / count)


def _layers_with_statistics(model: keras.Model) -> Iterator[Any]:
    for layer in keras_internals.layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and not layer.synchronized:
            yield layer


def _statistics(layer: keras.layers.BatchNormalization) -> list[Any]:
    return [one for one in layer.non_trainable_weights if one.dtype.startswith(("float", "bfloat"))]
