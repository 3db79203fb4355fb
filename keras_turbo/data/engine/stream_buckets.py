"""Sequences that come one after another, put together by length as they come."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from keras_turbo.data.engine.batches import is_sequence
from keras_turbo.data.engine.buckets import check_boundaries, too_long_error
from keras_turbo.data.settings import Settings


@dataclasses.dataclass(frozen=True)
class StreamBuckets:
    """Makes batches of the elements of a dataset, each of elements of one bucket.

    A batch is given as soon as its bucket is full, and at the end what is left: a bucket holds less than a batch.

    Args:
        boundaries: ascending lengths.
        batch_size: examples a batch.
        drop_remainder: whether batches that are not full are left out at the end.
        truncates: whether longer sequences are cut.
    """

    boundaries: tuple[int, ...]
    batch_size: int
    drop_remainder: bool
    truncates: bool

    @classmethod
    def of(cls, settings: Settings) -> StreamBuckets:
        """Those that settings ask for."""
        return cls(
            check_boundaries(settings.bucket_by_length),
            settings.batch_size or 1,
            settings.drop_remainder,
            settings.too_long == "truncate",
        )

    def batches(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Graph code: the elements in batches.

        Raises:
            ValueError: no tensor of an element has a first axis of unknown length.
        """
        spec = elements.element_spec
        leaves = tf.nest.flatten(spec)
        if not all(isinstance(leaf, tf.TensorSpec) for leaf in leaves):
            raise ValueError(f"`bucket_by_length` puts dense tensors together. Received elements of {spec}.")
        if not any(map(is_sequence, leaves)):
            raise ValueError(
                "`bucket_by_length` is for elements that have a tensor whose first axis is of unknown length. Received "
                f"elements of {spec}."
            )

        def bucket_length(element: Any) -> tf.Tensor:
            length = _length_of(element)
            boundaries = tf.constant(self.boundaries, tf.int64)
            if not self.truncates:
                text = too_long_error("an element", None, self.boundaries[-1], 1)
                fits = tf.debugging.Assert(length <= boundaries[-1], [text, "Its length is", length])
                with tf.control_dependencies([fits]):
                    length = tf.identity(length)
            place = tf.searchsorted(boundaries, tf.minimum(length, boundaries[-1])[None])[0]
            return tf.gather(boundaries, place)

        def filled_up(*element: Any) -> tuple[tf.Tensor, Any]:
            whole = element[0] if len(element) == 1 else element
            length = bucket_length(whole)
            return length, padded(whole, length, truncates=self.truncates)

        def without_length(_: tf.Tensor, batch: Any) -> Any:
            return batch

        def key(length: tf.Tensor, *_: Any) -> tf.Tensor:
            return length

        def batch(_: tf.Tensor, group: tf.data.Dataset) -> tf.data.Dataset:
            return group.batch(self.batch_size, drop_remainder=self.drop_remainder)

        lengths: Any = elements.map(filled_up)
        grouped = lengths.group_by_window(key_func=key, reduce_func=batch, window_size=self.batch_size)
        return grouped.map(without_length)


def padded(example: Any, length: tf.Tensor, *, truncates: bool) -> Any:
    """Graph code: an example whose sequences have that length, filled up with zeros.

    Args:
        example: structure of tensors.
        length: int64 scalar.
        truncates: whether longer ones are cut; else they fail.
    """

    def one(leaf: tf.Tensor) -> tf.Tensor:
        if not is_sequence(tf.TensorSpec(leaf.shape, leaf.dtype)):
            return leaf
        if truncates:
            leaf = leaf[:length]
        missing = length - tf.shape(leaf, tf.int64)[0]
        text = (
            "A sequence is longer than its bucket: `map_fn` or `augment_fn` may not lengthen what they get by so much."
        )
        with tf.control_dependencies([tf.debugging.Assert(missing >= 0, [text, "Too long by", -missing])]):
            rest = [[0, 0]] * (leaf.shape.rank - 1)
            return tf.pad(leaf, tf.concat([[[0, missing]], tf.constant(rest, tf.int64, [len(rest), 2])], 0))

    return tf.nest.map_structure(one, example)


def _length_of(element: Any) -> tf.Tensor:
    lengths = [
        tf.shape(leaf, tf.int64)[0]
        for leaf in tf.nest.flatten(element)
        if is_sequence(tf.TensorSpec(leaf.shape, leaf.dtype))
    ]
    return tf.reduce_max(tf.stack(lengths))
