"""Datasets that tell how many elements an epoch has, and may give fewer in one that begins in its middle."""

from __future__ import annotations

import tensorflow as tf

from keras_turbo.data.light_operations import light_map


def claim_cardinality(dataset: tf.data.Dataset, number: int, *, read_to_end: bool) -> tf.data.Dataset:
    """The same elements, as a dataset whose cardinality is `number`.

    `tf.data.experimental.assert_cardinality` fails where an epoch has fewer. Here nobody fails: tf.data works the
    number out, from parts that could give so many.

    Args:
        dataset: gives at most `number` elements, whatever tf.data knows of it.
        number: elements of a whole epoch; `tf.data.INFINITE_CARDINALITY` is one, too.
        read_to_end: whether who reads the last element and asks for more shall reach the end of `dataset`, at the cost
            of a function call (15 us) for each element. Without, it is left as soon as it has given so many.
    """

    def nothing_of_it(_: tf.Tensor) -> tf.data.Dataset:
        return dataset.take(0)

    # No element for ever: to tf.data it is infinite, as it does not look into functions, and so is what it ends.
    nothing = tf.data.Dataset.from_tensors(0).flat_map(tf.autograph.experimental.do_not_convert(nothing_of_it)).repeat()
    endless = dataset.concatenate(nothing)
    if number == tf.data.INFINITE_CARDINALITY:
        return endless
    if not read_to_end:
        return endless.take(number)
    numbered = tf.data.Dataset.zip((endless, tf.data.Dataset.range(number)))
    return light_map(numbered, lambda pair: pair[0])
