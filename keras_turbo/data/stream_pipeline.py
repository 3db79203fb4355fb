"""Builds the graph of a dataset over a `tf.data.Dataset` without a store: its own order, or a buffered shuffle."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_turbo.data.claimed_cardinality import claim_cardinality
from keras_turbo.data.example_order import EpochCounter
from keras_turbo.data.pipeline import PREFETCHED_BATCHES, data_options
from keras_turbo.data.python_calls import call_on
from keras_turbo.data.sources.tf_dataset import TfDatasetSource
from keras_turbo.data.stream_buckets import StreamBuckets
from keras_turbo.data.user_functions import ElementFunction, RandomFunction


def stream_dataset(
    source: TfDatasetSource,
    *,
    shuffle: bool,
    reshuffle_each_epoch: bool,
    seed: int,
    batch_size: int | None,
    drop_remainder: bool,
    map_fn: ElementFunction | None,
    augment_fn: RandomFunction | None,
    parallel_calls: int,
    counter: EpochCounter,
    buckets: StreamBuckets | None = None,
) -> tf.data.Dataset:
    """The elements of a dataset mapped, augmented and batched, a new epoch each time it is iterated."""

    def epoch_of(_: tf.Tensor) -> tf.data.Dataset:
        epoch, first_batch = call_on(counter, EpochCounter.begin_epoch, [], [tf.int64, tf.int64])
        epoch, first_batch = tf.ensure_shape(epoch, []), tf.ensure_shape(first_batch, [])
        # What comes before is read, since nothing else tells where it ends, and neither mapped nor augmented.
        num_skipped = first_batch * (batch_size or 1)
        if buckets is not None:
            # Which elements are in the batches before is known only once these are made.
            num_skipped = tf.zeros_like(first_batch)
        seed_of_epoch = tf.stack([tf.constant(seed, tf.int64), epoch if reshuffle_each_epoch else tf.zeros_like(epoch)])
        shuffle_seed = None
        if shuffle:
            shuffle_seed = tf.random.stateless_uniform(
                [], seed_of_epoch, minval=1, maxval=tf.int64.max, dtype=tf.int64, alg="philox"
            )
        elements = source.epoch_elements(epoch, shuffle_seed, num_skipped, seed)
        if map_fn is None and augment_fn is None:
            return elements if buckets is None else buckets.batches(elements).skip(first_batch)

        def one(ordinal: tf.Tensor, element: Any) -> Any:
            if map_fn is not None:
                element = map_fn(element)
            if augment_fn is not None:
                example_seed = tf.stack([tf.constant(seed, tf.int64), epoch])
                element = augment_fn(element, tf.random.experimental.stateless_fold_in(example_seed, ordinal))
            return element

        made = elements.enumerate(num_skipped).map(one, num_parallel_calls=parallel_calls, deterministic=True)
        return made if buckets is None else buckets.batches(made).skip(first_batch)

    elements = tf.data.Dataset.from_tensors(0).flat_map(epoch_of)
    if buckets is not None:
        return elements.prefetch(PREFETCHED_BATCHES).with_options(data_options())
    if source.num_examples != tf.data.UNKNOWN_CARDINALITY:
        elements = claim_cardinality(elements, source.num_examples, read_to_end=False)
    if batch_size is not None:
        elements = elements.batch(batch_size, drop_remainder=drop_remainder)
    return elements.prefetch(PREFETCHED_BATCHES).with_options(data_options())
