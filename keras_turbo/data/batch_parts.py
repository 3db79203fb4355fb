"""The same batches on several workers: each worker makes its rows of every batch, and nothing else."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.light_operations import light_flat_map
from keras_turbo.data.python_calls import call_on
from keras_turbo.data.variant_dataset import VariantDataset


@dataclasses.dataclass(frozen=True)
class BatchParts:
    """Which parts of every batch one of several workers has.

    A batch is cut into as many runs of neighbouring rows as there are replicas. The parts are dealt to the workers in
    turn: with two workers of two replicas each, worker 0 has parts 0 and 2, worker 1 has 1 and 3. That is the order in
    which Keras (3.12 to 3.15) puts together again what several workers predicted.

    Args:
        num_workers: number of workers.
        worker: which of them, from 0.
        replicas_per_worker: parts that each has.
    """

    num_workers: int
    worker: int
    replicas_per_worker: int

    def __post_init__(self) -> None:
        for name in ("num_workers", "worker", "replicas_per_worker"):
            operator.index(getattr(self, name))
        if self.num_workers < 1 or self.replicas_per_worker < 1:
            raise ValueError(
                "There must be at least one worker with at least one replica. Received: "
                f"num_workers={self.num_workers}, replicas_per_worker={self.replicas_per_worker}."
            )
        if not 0 <= self.worker < self.num_workers:
            raise ValueError(
                f"`worker` must lie between 0 and num_workers - 1 = {self.num_workers - 1}. Received: {self.worker}."
            )

    @property
    def num_parts(self) -> int:
        """Parts of a batch, over all workers: one for each replica."""
        return self.num_workers * self.replicas_per_worker

    def sizes(self, batch_size: int) -> list[int]:
        """Rows of each of this worker's parts of a full batch; any two parts differ by one at most."""
        least, more = divmod(batch_size, self.num_parts)
        return [least + (part < more) for part in self._own]

    def rows(self, batch_size: int) -> np.ndarray:
        """The rows of a full batch that this worker has, in rising order: an int64 vector."""
        least, more = divmod(batch_size, self.num_parts)
        runs = [
            np.arange(size, dtype=np.int64) + part * least + min(part, more)
            for part, size in zip(self._own, self.sizes(batch_size), strict=True)
        ]
        return np.concatenate(runs)

    @property
    def _own(self) -> range:
        return range(self.worker, self.num_parts, self.num_workers)


@dataclasses.dataclass(frozen=True)
class OrderOfParts(ExampleOrder):
    """The positions that one worker visits: those of its rows of each batch of the whole order.

    Args:
        batch_size: rows of a batch of the whole; at least as many as there are parts.
        drop_remainder: whether a last batch that is not full is left out.
        parts: which rows are the worker's.
    """

    batch_size: int = 1
    drop_remainder: bool = False
    parts: BatchParts = dataclasses.field(default_factory=lambda: BatchParts(1, 0, 1))

    @classmethod
    def of(cls, order: ExampleOrder, batch_size: int, drop_remainder: bool, parts: BatchParts) -> OrderOfParts:
        """The part of an order."""
        return cls(**vars(order), batch_size=batch_size, drop_remainder=drop_remainder, parts=parts)

    @property
    def own_batch_size(self) -> int:
        """Rows of a full batch that are the worker's."""
        return len(self._rows)

    @property
    def own_rows_in_last(self) -> int | None:
        """Rows of the last batch that are the worker's; None where all batches are full."""
        num_left = super().num_examples % self.batch_size
        if num_left == 0 or self.drop_remainder:
            return None
        # A last batch fills the parts one after the other.
        return int(np.count_nonzero(self._rows < num_left))

    @property
    def num_examples(self) -> int:
        full = super().num_examples // self.batch_size
        return full * self.own_batch_size + (self.own_rows_in_last or 0)

    @property
    def num_full_batches(self) -> int:
        """Number of batches that are full."""
        return super().num_examples // self.batch_size

    @property
    def is_whole(self) -> bool:
        return False

    def at(self, ordinals: tf.Tensor, epoch: tf.Tensor, permutation: tf.Tensor) -> tf.Tensor:
        own = self.own_batch_size
        rows = tf.gather(tf.constant(self._rows), ordinals % own)
        return super().at(ordinals // own * self.batch_size + rows, epoch, permutation)

    @property
    def _rows(self) -> np.ndarray:
        return self.parts.rows(self.batch_size)


def parts_of_own_batches(own: tf.data.Dataset, pipeline: Any, order: OrderOfParts) -> tf.data.Dataset:
    """A worker's rows of each batch as one element for each of its replicas, the same number on all workers.

    Where the last batch has no rows for a replica, that gets an element without rows, so that no worker is through
    before the others, which would wait for it.

    Args:
        own: gives the worker's rows of each batch, in batches of `order.own_batch_size`.
        pipeline: the parts of that dataset.
        order: which rows they are.
    """
    sizes = order.parts.sizes(order.batch_size)
    batches = own
    is_static = order.drop_remainder and order.batch_size % order.parts.num_parts == 0
    if len(sizes) > 1:
        of_each = sizes[0] if is_static else tf.constant(sizes, tf.int64)
        batches = batches.rebatch(of_each, drop_remainder=is_static)
    rows_in_last = order.own_rows_in_last
    if rows_in_last is not None:
        starts = np.cumsum([0, *sizes[:-1]])
        num_empty = int(np.count_nonzero(starts >= rows_in_last))
        if num_empty:
            batches = batches.concatenate(_empty_batches(pipeline, order, num_empty, batches.element_spec))
    spec = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([sizes[0] if is_static else None, *leaf.shape[1:]], leaf.dtype),
        batches.element_spec,
    )
    batches = batches.prefetch(len(sizes))
    return VariantDataset(tf.data.experimental.to_variant(batches), spec, [batches], holds=own)


def _empty_batches(pipeline: Any, order: OrderOfParts, number: int, element_spec: Any) -> tf.data.Dataset:
    """So many batches without rows, or none in an epoch that began behind its last batch."""

    def has_last_batch(begun: Any) -> np.int64:
        return np.int64(begun.first_batch <= order.num_full_batches)

    def empty(_: tf.Tensor) -> tf.data.Dataset:
        count = tf.ensure_shape(call_on(pipeline, has_last_batch, [], tf.int64), []) * number
        rows = tf.nest.map_structure(
            lambda leaf: tf.zeros([0, *(size or 0 for size in leaf.shape[1:])], leaf.dtype), element_spec
        )
        return tf.data.Dataset.from_tensors(rows).repeat(count)

    return light_flat_map(tf.data.Dataset.from_tensors(0), empty)


def parts_of_whole_batches(whole: tf.data.Dataset, parts: BatchParts) -> tf.data.Dataset:
    """The same of batches of which only the whole can be made: all of them are made, and cut.

    Args:
        whole: elements are structures of dense tensors with the same first axis.
        parts: which are the worker's.

    Raises:
        ValueError: elements are single numbers, which can't be cut.
    """
    for leaf in tf.nest.flatten(whole.element_spec):
        if leaf.shape.rank == 0:
            raise ValueError(
                "Each batch is divided among the workers, and here elements have no batch axis (batch_size=None). Give "
                f"batch_size, that of all workers together. Received elements of {whole.element_spec}."
            )
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), whole.element_spec)
    leaves = tf.nest.flatten(spec)
    # What tf.distribute cuts batches with, into as many parts as it is told, the last ones without rows if need be.
    variant = tf.raw_ops.RebatchDataset(
        input_dataset=tf.data.experimental.to_variant(whole),
        num_replicas=parts.num_parts,
        output_types=[leaf.dtype for leaf in leaves],
        output_shapes=[leaf.shape for leaf in leaves],
    )
    cut = VariantDataset(variant, spec, [whole], holds=whole)
    own = cut.shard(parts.num_workers, parts.worker).prefetch(parts.replicas_per_worker)
    return VariantDataset(tf.data.experimental.to_variant(own), spec, [own], holds=whole)
