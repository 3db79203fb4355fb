"""The positions of an epoch as datasets, a new epoch each time one is iterated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.light_operations import light_flat_map, light_map


@dataclasses.dataclass(frozen=True)
class EpochPositions:
    """The order of an epoch in pieces, so that it need not be whole in memory.

    Args:
        order: which positions an epoch visits, and in which order.
        begin: graph code, called once when an epoch begins, which is when its first element is pulled: gives the
            epoch's number (int64 scalar) and its permutation, as `ExampleOrder.permutation` does.
    """

    order: ExampleOrder
    begin: Callable[[], tuple[tf.Tensor, tf.Tensor]]

    def chunks(self, size: int) -> tf.data.Dataset:
        """Up to `size` examples at a time.

        Elements are dicts of int64 vectors: "epoch", "ordinal" (the place in the epoch) and "position".
        """
        count = self.order.num_examples

        def chunk(piece: tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]) -> dict[str, tf.Tensor]:
            index, (epoch, permutation) = piece
            ordinals = tf.range(index * size, tf.minimum((index + 1) * size, count))
            positions = self.order.at(ordinals, epoch, permutation)
            return {"epoch": tf.fill(tf.shape(ordinals), epoch), "ordinal": ordinals, "position": positions}

        return light_map(self._pieces(math.ceil(count / size)), chunk)

    def batches(
        self,
        gather: Callable[[tf.Tensor], Any],
        *,
        batch_size: int,
        drop_remainder: bool,
        stacked: int | None,
        num_parallel_calls: int,
    ) -> tf.data.Dataset:
        """What `gather` makes of the positions of each batch, or of several at a time.

        Args:
            gather: graph code: takes int64 positions of any shape.
            batch_size: positions a batch.
            drop_remainder: whether a last batch that is not full is left out.
            stacked: how many batches to gather together, from positions of shape `(stacked, batch_size)`. The last full
                ones may be fewer, and a batch that is not full comes alone, as `(1, rows)`. None: one by one, from
                vectors.
            num_parallel_calls: how many are gathered at a time.
        """
        num_full, num_left = divmod(self.order.num_examples, batch_size)
        at_once = (stacked or 1) * batch_size
        num_elements = math.ceil(num_full * batch_size / at_once)
        end = tf.constant(num_full * batch_size, tf.int64)
        has_last = num_left > 0 and not drop_remainder
        static_size = batch_size if drop_remainder else None

        def gathered(piece: tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]) -> Any:
            index, (epoch, permutation) = piece
            begin = tf.minimum(index * at_once, end)
            stop = tf.minimum(begin + at_once, end)
            size = tf.constant(batch_size, tf.int64)
            if has_last:
                is_last = index == num_elements
                stop = tf.where(is_last, end + num_left, stop)
                size = tf.where(is_last, tf.constant(num_left, tf.int64), size)
            positions = self.order.at(tf.range(begin, stop), epoch, permutation)
            if stacked is None:
                return gather(tf.ensure_shape(positions, [static_size]))
            return gather(tf.ensure_shape(tf.reshape(positions, [-1, size]), [None, static_size]))

        return light_map(self._pieces(num_elements + has_last), gathered, num_parallel_calls)

    def _pieces(self, number: int) -> tf.data.Dataset:
        """So many elements `(index, (epoch, permutation))`, of which only the index differs."""

        def begun(_: tf.Tensor) -> tf.data.Dataset:
            return tf.data.Dataset.zip(
                (tf.data.Dataset.range(number), tf.data.Dataset.from_tensors(self.begin()).repeat())
            )

        return light_flat_map(tf.data.Dataset.from_tensors(0), begun)
