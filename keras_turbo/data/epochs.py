"""The epochs of a dataset: as batches or in stacks, how many batches they have, and in which order."""

from __future__ import annotations

import operator

import numpy as np
import tensorflow as tf

from keras_turbo.data.pipeline import Pipeline
from keras_turbo.data.variant_dataset import VariantDataset


class Epochs:
    """What runs over the epochs of one pipeline, and what is known of them.

    Its datasets are built when they are first asked for, and once.

    Args:
        pipeline: the parts of the dataset; None for a stream without positions.
        batches: what the dataset is to everybody else: it decides at the beginning of each epoch whether to load.
    """

    def __init__(self, pipeline: Pipeline | None, batches: tf.data.Dataset) -> None:
        self._pipeline = pipeline
        self._batches = batches
        self._built: dict[tuple[int | None, bool], VariantDataset] = {}

    def stored(self) -> tf.data.Dataset | None:
        """Batches out of a store that has all; None as long as it has not, or where there is none."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.store is None or pipeline.fill_store is not None or not pipeline.only_gathers():
            return None
        return self._dataset(pipeline, None)

    def stacks(self, count: int) -> tf.data.Dataset | None:
        """The same epochs in stacks of `count` batches, as `Pipeline.dataset` describes; None where they can't be.

        Raises:
            TypeError, ValueError: `count` is no positive integer.
        """
        count = operator.index(count)
        if count < 1:
            raise ValueError(f"A stack must hold at least 1 batch. Received: count={count}.")
        pipeline = self._pipeline
        if pipeline is None or pipeline.batch_size is None or not (pipeline.gives_stacks and self._can_be_stacked):
            return None
        return self._dataset(pipeline, count)

    def cardinality(self) -> tf.Tensor:
        """Number of batches in an epoch, int64; `tf.data.UNKNOWN_CARDINALITY` where examples may be left out."""
        if self._pipeline is None:
            return tf.convert_to_tensor(self._batches.cardinality())
        order, failures = self._pipeline.order, self._pipeline.failures
        number = order.num_examples
        if self._pipeline.may_skip:
            positions = np.arange(number) if order.is_whole else order.positions(0)
            # A shard has other examples in each epoch, and with them another number of those that fail.
            varies = not order.is_whole and not order.is_fixed
            if varies or not failures.are_known(positions):
                return tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64)
            number -= int(np.count_nonzero(failures.are_failed(positions)))
        return tf.constant(self._pipeline.num_batches(number), tf.int64)

    def fixed_positions(self, what: str) -> np.ndarray:
        """The positions in the order in which examples are yielded, where all epochs have the same.

        Args:
            what: what an error calls that which was to be had in this order.

        Raises:
            ValueError: the order changes, or it is not known yet what will be skipped.
        """
        if self._pipeline is None:
            raise ValueError(f"`{what}` of a tf.data.Dataset without a store can't be known.")
        order, failures = self._pipeline.order, self._pipeline.failures
        if not order.is_fixed:
            raise ValueError(
                f"`{what}` has no fixed order: shuffle=True gives each epoch another. Use shuffle=False for "
                "evaluation, or reshuffle_each_epoch=False."
            )
        positions = order.positions(0)
        if self._pipeline.may_skip:
            if not failures.are_known(positions):
                raise ValueError(
                    f"`{what}` can't be known before one epoch is through: on_error='skip' may leave examples out. "
                    "Iterate once."
                )
            positions = positions[~failures.are_failed(positions)]
        positions = self._pipeline.examples_at(positions)
        if self._pipeline.drop_remainder and self._pipeline.batch_size is not None:
            positions = positions[: len(positions) // self._pipeline.batch_size * self._pipeline.batch_size]
        return positions

    @property
    def _can_be_stacked(self) -> bool:
        return all(
            isinstance(leaf, tf.TensorSpec) and leaf.shape.rank and leaf.shape[1:].is_fully_defined()
            for leaf in tf.nest.flatten(self._batches.element_spec)
        )

    def _dataset(self, pipeline: Pipeline, stacked: int | None) -> VariantDataset:
        key = stacked, pipeline.only_gathers()
        if key not in self._built:
            with tf.device("CPU:0"):
                graph = pipeline.dataset(stacked=stacked, only_stored=key[1])
            # One spec, whatever a graph happens to know of its shapes: to a train function, iterators of two specs are
            # of two kinds, and it would be traced twice.
            spec = self._batches.element_spec
            if stacked is not None:
                spec = tf.nest.map_structure(lambda batch: tf.TensorSpec([None, *batch.shape], batch.dtype), spec)
            variant = tf.data.experimental.to_variant(graph)
            self._built[key] = VariantDataset(variant, spec, [graph], holds=pipeline)
        return self._built[key]
