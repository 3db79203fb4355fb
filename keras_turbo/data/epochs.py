"""The datasets that a FastDataset iterates over: batches or stacks of them, with or without what loads examples."""

from __future__ import annotations

import operator

import tensorflow as tf

from keras_turbo.data.pipeline import Pipeline
from keras_turbo.data.variant_dataset import VariantDataset


class Epochs:
    """The epochs of one pipeline as datasets, each of which is built when it is first asked for, and once.

    Args:
        pipeline: the parts of the dataset; None for a stream without positions.
        batches: what the dataset is to everybody else: it decides at the beginning of each epoch whether to load.
    """

    def __init__(self, pipeline: Pipeline | None, batches: tf.data.Dataset) -> None:
        self._pipeline = pipeline
        self._element_spec = batches.element_spec
        self._built: dict[tuple[int | None, bool], VariantDataset] = {}

    def stored(self) -> tf.data.Dataset | None:
        """Batches out of a store that has all; None as long as it has not, or where there is none."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.store is None or pipeline.fill_store is not None or not pipeline.only_gathers():
            return None
        return self._dataset(pipeline, None)

    def stacks(self, count: int) -> tf.data.Dataset | None:
        """The same epochs in stacks of `count` batches, as `Pipeline.dataset` describes; None where they can't be."""
        count = operator.index(count)
        if count < 1:
            raise ValueError(f"A stack must hold at least 1 batch. Received: count={count}.")
        if self._pipeline is None or self._pipeline.batch_size is None or not self._can_be_stacked:
            return None
        return self._dataset(self._pipeline, count)

    @property
    def _can_be_stacked(self) -> bool:
        return all(
            isinstance(leaf, tf.TensorSpec) and leaf.shape.rank and leaf.shape[1:].is_fully_defined()
            for leaf in tf.nest.flatten(self._element_spec)
        )

    def _dataset(self, pipeline: Pipeline, stacked: int | None) -> VariantDataset:
        key = stacked, pipeline.only_gathers()
        if key not in self._built:
            batch_spec = self._element_spec
            with tf.device("CPU:0"):
                graph = pipeline.dataset(stacked=stacked, only_stored=key[1])
            # One spec, whatever a graph happens to know of its shapes: to a train function, iterators of two specs are
            # of two kinds, and it would be traced twice.
            spec = batch_spec if stacked is None else tf.nest.map_structure(_stack_spec, batch_spec)
            self._built[key] = VariantDataset(tf.data.experimental.to_variant(graph), spec, [graph], holds=pipeline)
        return self._built[key]


def _stack_spec(batch: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *batch.shape], batch.dtype)
