"""The epochs of a recipe as `tf.data.Dataset`s: batches, or stacks of batches."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.batches import PartsOfBatches, WholeBatches
from keras_turbo.data.engine.epoch import Epoch
from keras_turbo.data.engine.node import (
    PREFETCHED_BATCHES,
    Sessions,
    VariantDataset,
    claim_cardinality,
    data_options,
    unbatched,
)
from keras_turbo.data.engine.recipe import Recipe

# Small batches come many at a time and are cut: a call of Python costs about as much as copying so much. Where all is
# in memory, nobody waits long for the last of them, and more pays (half the time of a batch of 0.5 MB, two cores).
_BYTES_A_CALL, _BYTES_A_CALL_FROM_MEMORY = 1 << 18, 1 << 22
_MOST_BATCHES_A_CALL = 64


class EpochDatasets:
    """Datasets of the epochs of a recipe: each iteration of any of them is the next epoch.

    Args:
        recipe: what the epochs are made by.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._elements = recipe.elements
        self._stacks: dict[int, VariantDataset] = {}
        self._grouped = Sessions(self._epoch_in_groups)
        self._group = self._batches_a_call()

    @property
    def sessions(self) -> Sessions:
        """Those that are open."""
        return self._grouped

    def batches(self) -> VariantDataset:
        """The elements of epochs one by one."""
        if self._group is None:
            specs = self._component_specs()
        else:
            specs = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in self._component_specs()]
        with tf.device("CPU:0"):
            dataset = self._grouped.dataset([], specs)
            if self._group is not None:
                dataset = unbatched(dataset)
            if not self._elements.is_stacked and self._batch_size is not None:
                dataset = dataset.map(lambda *tensors: self._elements.composed(tensors))
            if not self.recipe.may_skip:
                dataset = claim_cardinality(dataset, self.recipe.batches.number)
            dataset = dataset.prefetch(PREFETCHED_BATCHES).with_options(data_options(rewrites=False))
            return VariantDataset(tf.data.experimental.to_variant(dataset), self._spec(), [dataset], holds=self)

    def stacks(self, count: int) -> VariantDataset | None:
        """The same epochs in stacks of `count` batches, each tensor of shape `(count, batch, ...)`.

        The last full batches may be fewer, and a last batch that is not full comes alone, as `(1, rows, ...)`. Two
        stacks are ready ahead of the step and some more are being made: choose a number with which six stacks are
        little memory. None where batches can't be stacked.

        Raises:
            TypeError, ValueError: `count` is no positive integer.
        """
        count = operator.index(count)
        if count < 1:
            raise ValueError(f"A stack must hold at least 1 batch. Received: count={count}.")
        is_whole = isinstance(self.recipe.batches, WholeBatches) and self._batch_size is not None
        if not (is_whole and self._elements.is_fixed and self._elements.is_stacked):
            return None
        if count not in self._stacks:
            spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), self._spec())
            with tf.device("CPU:0"):
                sessions = Sessions(lambda: self._epoch(count))
                dataset = sessions.dataset([], tf.nest.flatten(spec)).prefetch(PREFETCHED_BATCHES)
                dataset = dataset.with_options(data_options(rewrites=False))
                variant = tf.data.experimental.to_variant(dataset)
                self._stacks[count] = VariantDataset(variant, spec, [dataset], holds=(self, sessions))
        return self._stacks[count]

    def cardinality(self) -> int:
        """Number of elements in an epoch; `tf.data.UNKNOWN_CARDINALITY` where examples may be left out."""
        recipe = self.recipe
        if not recipe.may_skip or not isinstance(recipe.batches, WholeBatches):
            return recipe.batches.number
        positions = recipe.order.positions(0)
        # A shard has other examples in each epoch, and with them another number of those that fail.
        varies = not recipe.order.is_whole and not recipe.order.is_fixed
        if varies or not recipe.failures.are_known(positions):
            return tf.data.UNKNOWN_CARDINALITY
        return recipe.batches.number_of(int(np.count_nonzero(~recipe.failures.have_failed(positions))))

    @property
    def _batch_size(self) -> int | None:
        return self.recipe.batches.batch_size

    def _epoch_in_groups(self) -> Epoch:
        # Python code may take seconds for the examples of a group.
        is_slow = self.recipe.source.processes is not None and not self.recipe.is_ready
        return self._epoch(1 if self._group and is_slow else self._group)

    def _epoch(self, group: int | None) -> Epoch:
        number, first = self.recipe.counter.begin_epoch()
        if isinstance(self.recipe.batches, WholeBatches):
            return Epoch(self.recipe, number, first, group)
        return Epoch(self.recipe, number, first, None)

    def _spec(self) -> Any:
        return self._elements.spec if self._batch_size is None else self._elements.batch_spec(self._static_rows)

    def _component_specs(self) -> list[tf.TensorSpec]:
        if self._batch_size is None:
            return self._elements.leaves
        return self._elements.component_specs(self._static_rows)

    @property
    def _static_rows(self) -> int | None:
        batches = self.recipe.batches
        if isinstance(batches, PartsOfBatches):
            return batches.static_rows
        return batches.batch_size if batches.drop_remainder else None

    def _batches_a_call(self) -> int | None:
        """How many elements come in one call of Python, if these are put together; None for one."""
        batches = self.recipe.batches
        if not (isinstance(batches, WholeBatches) and self._elements.is_fixed and self._elements.is_stacked):
            return None
        # Unbatching ends the process (TensorFlow 2.21) where an element is empty.
        if any(not math.prod(shape) for shape, _ in self._elements.arrays):
            return None
        size = batches.batch_size or 1
        is_quick = self.recipe.is_ready and self.recipe.augment_fn is None
        fitting = (_BYTES_A_CALL_FROM_MEMORY if is_quick else _BYTES_A_CALL) // (
            size * max(1, self._elements.row_bytes)
        )
        group = min(_MOST_BATCHES_A_CALL, fitting, batches.number // 4)
        return group if group > 1 else None
