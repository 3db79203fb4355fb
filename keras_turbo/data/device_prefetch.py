"""Batches that wait on the GPU: copied there while the step before still runs.

A train function that is given a batch in host memory copies it first, and the GPU waits for the copy. What is read here
is copied ahead, by TensorFlow's own `prefetch_to_device`, which must come last: all that follows runs on the GPU. So it
is put on where an iterator is made, behind everything, `class_weight` included.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

logger = logging.getLogger(__name__)

# Batches on the GPU ahead of the step. One would do where all take the same time.
_BATCHES_ON_DEVICE = 2

_PROBED_BATCHES = 2


def device_iterator(dataset: tf.data.Dataset, host_iterator: Callable[[], tf.data.Iterator]) -> tf.data.Iterator:
    """An iterator whose batches are on the GPU, where there is one; else, and where that can't be, one of the host.

    Args:
        dataset: what is iterated.
        host_iterator: makes the iterator of the host.

    Returns:
        An iterator. One of the GPU has an attribute `host_iterator`, for whoever reads it inside of a graph that runs
        on the host, before it has given anything: the function that makes one in its place.
    """
    device = accelerator() if tf.executing_eagerly() else None
    if device is None or not _can_be_on_device(dataset.element_spec):
        return host_iterator()
    dtypes = tuple(leaf.dtype for leaf in tf.nest.flatten(dataset.element_spec))
    if not _works(device, dtypes):
        return host_iterator()
    try:
        iterator = iter(dataset.apply(_prefetched_to(device)))
    except Exception as error:  # whatever TensorFlow raises where something can't be placed
        logger.debug("Batches are not prefetched to %s: %s", device, error)
        return host_iterator()
    iterator.host_iterator = host_iterator
    return iterator


def accelerator() -> str | None:
    """The GPU that the next operation would run on; None under a strategy, which places batches itself, or without."""
    if tf.distribute.has_strategy() or not tf.config.list_logical_devices("GPU"):
        return None
    # Where tf.device scopes send it.
    device = tf.zeros([]).device
    return device if tf.DeviceSpec.from_string(device).device_type == "GPU" else None


def _prefetched_to(device: str) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    return tf.data.experimental.prefetch_to_device(device, _BATCHES_ON_DEVICE)


def _can_be_on_device(element_spec: Any) -> bool:
    """Whether there is a form of all tensors on a GPU: there is none for strings, and ragged ones come as variants."""
    return all(
        isinstance(leaf, tf.TensorSpec) and (leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool)
        for leaf in tf.nest.flatten(element_spec)
    )


@functools.cache
def _works(device: str, dtypes: tuple[tf.DType, ...]) -> bool:
    """Tries it once with batches of zeros, read in all ways in which train functions read theirs."""
    try:
        with tf.device("CPU:0"):
            zeros = tuple(tf.zeros([1], dtype) for dtype in dtypes)
            batches = tf.data.Dataset.from_tensors(zeros).repeat(_PROBED_BATCHES + 1)
        iterator = iter(batches.apply(_prefetched_to(device)))
        next(iterator)
        return int(_number_read(iterator)) == _PROBED_BATCHES
    except Exception as error:  # whatever TensorFlow raises
        logger.debug("Batches are not prefetched to %s: %s", device, error)
        return False


@tf.function(autograph=False)
def _number_read(iterator: tf.data.Iterator) -> tf.Tensor:
    """Reads an iterator to its end inside of a graph, where the end must not be an error."""

    def read_on(count: tf.Tensor, batch: Any) -> tuple[tf.Tensor, Any]:
        with tf.control_dependencies(tf.nest.flatten(batch.get_value())):
            count += 1
        return count, tf.cond(batch.has_value(), iterator.get_next_as_optional, lambda: batch)

    first = iterator.get_next_as_optional()
    return tf.while_loop(lambda count, batch: batch.has_value(), read_on, (tf.constant(0), first))[0]
