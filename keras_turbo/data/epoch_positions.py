"""The positions of an epoch as datasets, a new epoch each time one is iterated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.light_operations import light_flat_map, light_map

# The number of the piece, and what is the same for all of an epoch: its number, its first ordinal, its permutation.
_Piece = tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class EpochPositions:
    """The order of an epoch in pieces, so that it need not be whole in memory.

    Args:
        order: which positions an epoch visits, and in which order.
        begin: graph code, called once when an epoch begins, which is when its first element is pulled: gives the
            epoch's number (int64 scalar), the ordinal with which it is to begin (int64 scalar, 0 for a whole epoch),
            and its permutation, as `ExampleOrder.permutation` does.
        from_first: whether the positions before that ordinal are left out here. Without, they are all given, and
            whoever takes them leaves some out.
    """

    order: ExampleOrder
    begin: Callable[[], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]
    from_first: bool = True

    def chunks(self, size: int) -> tf.data.Dataset:
        """Up to `size` examples at a time.

        Elements are dicts of int64 vectors: "epoch", "first" (the ordinal with which the epoch begins), "ordinal" (the
        place in the epoch) and "position".
        """
        count = self.order.num_examples

        def number(first: tf.Tensor) -> tf.Tensor:
            return (count - first + size - 1) // size

        def chunk(piece: _Piece) -> dict[str, tf.Tensor]:
            index, (epoch, first, permutation) = piece
            begin = index * size + self._begin(first)
            ordinals = tf.range(begin, tf.minimum(begin + size, count))
            positions = self.order.at(ordinals, epoch, permutation)
            shape = tf.shape(ordinals)
            return {
                "epoch": tf.fill(shape, epoch),
                "first": tf.fill(shape, first),
                "ordinal": ordinals,
                "position": positions,
            }

        return light_map(self._pieces(number), chunk)

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
        end = num_full * batch_size
        has_last = num_left > 0 and not drop_remainder
        static_size = batch_size if drop_remainder else None

        def number_of_full(first: tf.Tensor) -> tf.Tensor:
            return (end - tf.minimum(first, end) + at_once - 1) // at_once

        def number(first: tf.Tensor) -> tf.Tensor:
            return number_of_full(first) + tf.cast(first <= end, tf.int64) if has_last else number_of_full(first)

        def gathered(piece: _Piece) -> Any:
            index, (epoch, first, permutation) = piece
            first = self._begin(first)
            begin = tf.minimum(index * at_once + first, end)
            stop = tf.minimum(begin + at_once, end)
            size = tf.constant(batch_size, tf.int64)
            if has_last:
                is_last = index == number_of_full(first)
                stop = tf.where(is_last, tf.constant(end + num_left, tf.int64), stop)
                size = tf.where(is_last, tf.constant(num_left, tf.int64), size)
            positions = self.order.at(tf.range(begin, stop), epoch, permutation)
            if stacked is None:
                return gather(tf.ensure_shape(positions, [static_size]))
            return gather(tf.ensure_shape(tf.reshape(positions, [-1, size]), [None, static_size]))

        return light_map(self._pieces(number), gathered, num_parallel_calls)

    def _begin(self, first: tf.Tensor) -> tf.Tensor:
        return first if self.from_first else tf.zeros_like(first)

    def _pieces(self, number: Callable[[tf.Tensor], tf.Tensor]) -> tf.data.Dataset:
        """Elements `(index, (epoch, first, permutation))`, of which only the index differs.

        Args:
            number: graph code: how many there are where an epoch begins with a certain ordinal.
        """

        def begun(_: tf.Tensor) -> tf.data.Dataset:
            epoch, first, permutation = self.begin()
            return tf.data.Dataset.zip(
                (
                    tf.data.Dataset.range(number(self._begin(first))),
                    tf.data.Dataset.from_tensors((epoch, first, permutation)).repeat(),
                )
            )

        return light_flat_map(tf.data.Dataset.from_tensors(0), begun)
