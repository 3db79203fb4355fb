"""The graph that workers of a tf.data service run: numbered batches, each a function of its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.light_operations import light_map, light_unbatch

# A row of a batch that is not full: made, as batches are cut from equally many rows, and left out at the end.
_FILLED_UP = -1


def remote_batches(
    numbers: tf.data.Dataset,
    order: ExampleOrder,
    example: Callable[[tf.Tensor, tf.Tensor], Any],
    gather: Callable[[tf.Tensor], Any] | None,
    *,
    batch_size: int,
    batches_per_epoch: int,
    is_full: bool,
    parallel_calls: int,
) -> tf.data.Dataset:
    """The batches of some numbers, which are counted over all epochs: batch b of epoch e has number e * batches + b.

    Nothing in it knows what came before: a worker may get any of the numbers, and it makes the bytes that any other
    would.

    Args:
        numbers: int64 scalars, whose elements tf.data can hand out to workers.
        order: which examples an epoch has.
        example: graph code: the example at a position in an epoch (int64 scalars).
        gather: graph code: the examples at many positions (int64 vector), where nothing is done to a single one.
        batch_size: examples a batch.
        batches_per_epoch: how many.
        is_full: whether all batches have so many examples.
        parallel_calls: examples (with `gather`, batches) made at a time; `tf.data.AUTOTUNE` for the worker's cores.

    Returns:
        A dataset of dicts: "number" (int64 scalar) and "out".
    """

    def placed(number: tf.Tensor) -> dict[str, tf.Tensor]:
        epoch, batch = number // batches_per_epoch, number % batches_per_epoch
        ordinals = batch * batch_size + tf.range(batch_size, dtype=tf.int64)
        is_row = ordinals < order.num_examples
        # What fills up is the first example of the batch.
        ordinals = tf.where(is_row, ordinals, ordinals[0])
        return {
            "number": tf.where(is_row, number, _FILLED_UP),
            "epoch": tf.fill([batch_size], epoch),
            "position": order.at(ordinals, epoch, order.permutation(epoch)),
        }

    rows = light_map(numbers, placed)
    if gather is not None:

        def gathered(row: dict[str, tf.Tensor]) -> dict[str, Any]:
            wanted = tf.boolean_mask(row["position"], row["number"] != _FILLED_UP)
            wanted = tf.ensure_shape(wanted, [batch_size if is_full else None])
            return {"number": row["number"][0], "out": gather(wanted)}

        return light_map(rows, gathered, parallel_calls)

    def made(row: dict[str, tf.Tensor]) -> dict[str, Any]:
        return {"number": row["number"], "out": example(row["position"], row["epoch"])}

    def trimmed(batch: dict[str, Any]) -> dict[str, Any]:
        count = tf.math.count_nonzero(batch["number"] != _FILLED_UP)
        out = batch["out"] if is_full else tf.nest.map_structure(lambda leaf: leaf[:count], batch["out"])
        return {"number": batch["number"][0], "out": out}

    examples = light_unbatch(rows).map(made, num_parallel_calls=parallel_calls, deterministic=True)
    return light_map(examples.batch(batch_size, drop_remainder=True), trimmed)
