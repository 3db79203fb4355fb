"""The moving averages of BatchNormalization, equal on all replicas and workers."""

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


def _layers_with_statistics(model: keras.Model) -> Iterator[Any]:
    for layer in keras_internals.layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and not layer.synchronized:
            yield layer


def _statistics(layer: keras.layers.BatchNormalization) -> list[Any]:
    return [one for one in layer.non_trainable_weights if one.dtype.startswith(("float", "bfloat"))]
