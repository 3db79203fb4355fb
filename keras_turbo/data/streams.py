"""The graph of a dataset over a stream without a store: in its own order, or shuffled through a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.node import PREFETCHED_BATCHES, call_on, claim_cardinality, data_options
from keras_turbo.data.engine.order import EpochCounter
from keras_turbo.data.engine.stream_buckets import StreamBuckets
from keras_turbo.data.functions import ElementFunction, RandomFunction
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.streams import Stream


def stream_dataset(
    stream: Stream,
    settings: Settings,
    map_fn: ElementFunction | None,
    augment_fn: RandomFunction | None,
    counter: EpochCounter,
) -> tf.data.Dataset:
    """The elements of a stream mapped, augmented and batched, a new epoch each time it is iterated."""
    seed, batch_size = settings.settled_seed, settings.batch_size
    buckets = None if settings.bucket_by_length is None else StreamBuckets.of(settings)

    def epoch_of(_: tf.Tensor) -> tf.data.Dataset:
        epoch, first_batch = call_on(counter, _begun, [], [tf.int64, tf.int64])
        epoch, first_batch = tf.ensure_shape(epoch, []), tf.ensure_shape(first_batch, [])
        # What comes before is read, since nothing else tells where it ends, and neither mapped nor augmented.
        num_skipped = first_batch * (batch_size or 1)
        if buckets is not None:
            # Which elements are in the batches before is known only once these are made.
            num_skipped = tf.zeros_like(first_batch)
        seed_of_epoch = tf.stack(
            [tf.constant(seed, tf.int64), epoch if settings.reshuffle_each_epoch else tf.zeros_like(epoch)]
        )
        shuffle_seed = None
        if settings.shuffle:
            shuffle_seed = tf.random.stateless_uniform(
                [], seed_of_epoch, minval=1, maxval=tf.int64.max, dtype=tf.int64, alg="philox"
            )
        elements = stream.elements(epoch, shuffle_seed, num_skipped, seed)
        if map_fn is None and augment_fn is None:
            return elements if buckets is None else buckets.batches(elements).skip(first_batch)

        def one(ordinal: tf.Tensor, element: Any) -> Any:
            if map_fn is not None:
                element = map_fn(element)
            if augment_fn is not None:
                example_seed = tf.stack([tf.constant(seed, tf.int64), epoch])
                element = augment_fn(element, tf.random.experimental.stateless_fold_in(example_seed, ordinal))
            return element

        made = elements.enumerate(num_skipped).map(one, num_parallel_calls=settings.parallel_calls, deterministic=True)
        return made if buckets is None else buckets.batches(made).skip(first_batch)

    elements = tf.data.Dataset.from_tensors(0).flat_map(epoch_of)
    if buckets is not None:
        return elements.prefetch(PREFETCHED_BATCHES).with_options(data_options())
    if stream.number != tf.data.UNKNOWN_CARDINALITY:
        elements = claim_cardinality(elements, stream.number)
    if batch_size is not None:
        elements = elements.batch(batch_size, drop_remainder=settings.drop_remainder)
    return elements.prefetch(PREFETCHED_BATCHES).with_options(data_options())


def _begun(counter: EpochCounter) -> tuple[np.int64, np.int64]:
    epoch, first_batch = counter.begin_epoch()
    return np.int64(epoch), np.int64(first_batch)
