"""What a replica knows of its step: its rows, those of all replicas, and how losses are averaged over them.

On one device a loss is a mean over the rows of the batch. A replica has a part of those rows, and a last batch may give
one replica more than another, or none at all. So what a replica has of any mean is what, weighted by its share of the
rows and summed over replicas, gives the mean over all rows: for a mean over its own rows (a loss function that returns
one number, a regularizer, a loss by hand) that is this mean; a loss that is divided by something else, such as the
weights of all rows, is divided by its share beforehand. Losses look as on one device, and code that was written for one
device stays right.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf


class ReplicaStep:
    """A step as one replica sees it, while it is traced.

    Args:
        rows: of this replica.
        global_rows: of all replicas.
        replicas: how many.
        may_be_empty: whether this replica may have no rows, and one of padding then (see `padding.py`).
        one_of_several: whether an execution has more steps than this one.
    """

    def __init__(
        self,
        rows: tf.Tensor,
        global_rows: tf.Tensor,
        replicas: int,
        *,
        may_be_empty: bool = False,
        one_of_several: bool = False,
    ) -> None:
        self.may_be_empty = may_be_empty
        self.one_of_several = one_of_several
        self.is_empty = tf.equal(rows, 0)
        self.rows = tf.cast(rows, tf.float32)
        self.global_rows = tf.cast(global_rows, tf.float32)
        self.replicas = replicas
        self.share = tf.math.divide_no_nan(self.rows, self.global_rows)
        self._optimizers_with_parts: set[int] = set()
        self._results: list[tuple[Any, Callable[[], Any]]] = []

    def note_result(self, result: Any, read: Callable[[], Any]) -> None:
        """Takes note of what a metric has given in the step, and of how it is read anew."""
        if isinstance(result, dict):
            self._results += [(value, functools.partial(_item_of, read, name)) for name, value in result.items()]
        else:
            self._results.append((result, read))

    def reader_of(self, value: Any) -> Callable[[], Any] | None:
        """How the result of a metric is read anew; None for what is no such result."""
        return next((read for result, read in self._results if result is value), None)

    def of_rows(self, value: Any) -> Any:
        """A value that is made of this replica's rows: 0 where it has none, also for what padding gave."""
        return multiply_no_nan(value, tf.cast(self.rows > 0, tf.float32)) if self.may_be_empty else value

    def as_mean(self, total: Any) -> Any:
        """Gives a sum over this replica's rows the size by which its weighted mean over replicas is that of all."""
        return multiply_no_nan(total, tf.math.divide_no_nan(self.global_rows, self.rows))

    def part_of_loss(self, loss: Any, optimizer: Any) -> Any:
        """This replica's part of the mean loss, of which gradients for an optimizer are about to be taken.

        In float16 the gradients of each row are then as large as on one device, and overflow where they do there.
        """
        self._optimizers_with_parts.add(id(optimizer))
        return multiply_no_nan(loss, self.share)

    def has_part_of(self, optimizer: Any) -> bool:
        """Whether a loss for an optimizer has been made this replica's part of it."""
        return id(optimizer) in self._optimizers_with_parts

    def part_of_gradient(self, gradient: Any, optimizer: Any) -> Any:
        """This replica's part of the mean gradient; the parts of all replicas add up to it."""
        return self.of_rows(gradient) if self.has_part_of(optimizer) else multiply_no_nan(gradient, self.share)

    def reduced_loss(self, values: tf.Tensor, sample_weight: Any, reduction: str | None) -> tf.Tensor:
        """Reduces losses of this replica's rows. It stands for Keras' `reduce_values`, and means what that does.

        Args:
            values: losses, weighted.
            sample_weight: their weights, or None.
            reduction: of the loss, as Keras names it.
        """
        if reduction in (None, "none"):
            return values
        if values.shape.rank == 0:
            return values
        total = self.of_rows(tf.reduce_sum(values))
        share = tf.cast(self.share, total.dtype)
        if reduction == "sum":
            return tf.math.divide_no_nan(total, share)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            weights = self.of_rows(tf.reduce_sum(sample_weight))
            divisor = _sum_over_replicas(tf.cast(weights, total.dtype))
        else:
            # As many values a row in all replicas; the first dimension need not be that of rows.
            values_a_row = tf.math.divide_no_nan(tf.cast(tf.size(values), tf.float32), self.rows)
            divisor = tf.cast(values_a_row * self.global_rows, total.dtype)
        return tf.math.divide_no_nan(total, divisor * share)

    def valid_ratio(self, mask: Any, dtype: Any) -> tf.Tensor:
        """How many values a mask has for each that it lets through, over all replicas."""
        counts = self.of_rows(tf.stack([tf.cast(tf.size(mask), dtype), tf.reduce_sum(tf.cast(mask, dtype))]))
        total, valid = tf.unstack(_sum_over_replicas(counts))
        return tf.math.divide_no_nan(total, valid)

    def weighted_output(self, output: Any) -> Any:
        """This replica's part of a mean that a step gives; the parts add up. What is no number stays."""
        output = tf.convert_to_tensor(output)
        if not (output.dtype.is_floating or output.dtype.is_integer):
            return output
        return multiply_no_nan(output if output.dtype.is_floating else tf.cast(output, tf.float32), self.share)


_state = threading.local()


def current_step() -> ReplicaStep | None:
    """The step that this thread traces or runs; None outside of one of ours."""
    return getattr(_state, "step", None)


@contextlib.contextmanager
def entered(step: ReplicaStep) -> Iterator[ReplicaStep]:
    """Makes it the current step of this thread. TensorFlow runs each replica in a thread of its own."""
    before = current_step()
    _state.step = step
    try:
        yield step
    finally:
        _state.step = before


def _item_of(read: Callable[[], Any], name: str) -> Any:
    return read()[name]


def multiply_no_nan(value: Any, factor: tf.Tensor) -> Any:
    """A product that is 0 where the factor is, also for NaN and infinity, which a mean over no rows gives.

    Args:
        value: a tensor, `tf.IndexedSlices`, or None.
        factor: one number.
    """
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(multiply_no_nan(value.values, factor), value.indices, value.dense_shape)
    value = tf.convert_to_tensor(value)
    return tf.math.multiply_no_nan(value, tf.cast(factor, value.dtype))


def number_of_rows(data: Any) -> tf.Tensor:
    """Rows of a batch: the first dimension of its first tensor.

    Args:
        data: what a step is given: x, or a tuple of x, y and weights.
    """
    first = first_tensor(data)
    if first is None:
        return tf.constant(1, tf.int64)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    shape = first.dense_shape if isinstance(first, tf.SparseTensor) else tf.shape(first, tf.int64)
    return tf.cast(shape[0], tf.int64) if first.shape.rank != 0 else tf.constant(1, tf.int64)


def first_tensor(data: Any) -> Any:
    """The first tensor of x in a batch, or None."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return next((one for one in keras.tree.flatten(x) if one is not None), None)


def _sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    all_reduce: Callable[..., Any] = tf.distribute.get_replica_context().all_reduce
    return all_reduce(tf.distribute.ReduceOp.SUM, value)
