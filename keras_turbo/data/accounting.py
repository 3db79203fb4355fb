"""Sees the examples of an epoch go by: finds those that are missing, keeps the others, and hands them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from keras_turbo.data.example_store import ExampleStore
from keras_turbo.data.light_operations import light_scan
from keras_turbo.data.python_calls import call_on

if TYPE_CHECKING:
    from keras_turbo.data.pipeline import Pipeline


def accounted_for(pipeline: Pipeline, rows: tf.data.Dataset, store: ExampleStore | None) -> tf.data.Dataset:
    """What the user wants of elements of many rows, and at last an element without any."""
    rows = rows.concatenate(_end_marker(rows.element_spec))
    # The next ordinal, from the first of the epoch on, the epoch's number, and how many rows have been left out.
    state = (tf.constant(0 if pipeline.may_skip else -1, tf.int64), tf.constant(-1, tf.int64), tf.constant(0, tf.int64))
    return light_scan(rows, state, _accounting_for(pipeline, store))


def _accounting_for(pipeline: Pipeline, store: ExampleStore | None) -> Callable:
    """The function that sees each batch go by: finds gaps, fills the store, and hands on what the user wants."""
    count = pipeline.order.num_examples

    def account(state: tuple[tf.Tensor, tf.Tensor, tf.Tensor], batch: dict[str, Any]) -> tuple[Any, Any]:
        expected, epoch, left_out = state
        ordinals = batch["ordinal"]
        is_end = tf.size(batch["position"]) == 0
        epoch = tf.where(is_end, epoch, batch["epoch"][0])
        expected = tf.where((expected < 0) & ~is_end, batch["first"][0], expected)
        stop = tf.where(is_end, tf.constant(count, tf.int64), ordinals[-1] + 1)
        has_gap = stop - expected != tf.size(batch["position"], tf.int64)

        def report() -> int:
            call_on(pipeline, type(pipeline).report_gap, [expected, stop, ordinals, epoch], [])
            return 0

        def end_pass() -> int:
            call_on(pipeline, type(pipeline).end_pass, [epoch], [])
            return 0

        def write() -> int:
            if store is not None:
                store.write_in_graph(batch["position"], batch.get("stored", batch["out"]))
            return 0

        tf.cond(has_gap, report, lambda: 0)
        if pipeline.may_skip:
            tf.cond(is_end, end_pass, lambda: 0)
        if store is not None:
            tf.cond(is_end, lambda: 0, write)
        if not pipeline.may_skip:
            return (stop, epoch, left_out), batch["out"]
        left_out, kept = without_rows_before_first(left_out, batch)
        return (stop, epoch, left_out), kept["out"]

    return account


def without_rows_before_first(left_out: tf.Tensor, rows: dict[str, Any]) -> tuple[tf.Tensor, dict[str, Any]]:
    """Graph code of a scan over elements of many rows: leaves out as many in all as "first" says."""
    count = tf.size(rows["position"], tf.int64)
    # Elements without a row have nothing to say.
    first = tf.reduce_max(tf.concat([rows["first"], [0]], 0))
    leaving_out = tf.clip_by_value(first - left_out, 0, count)
    return left_out + leaving_out, tf.nest.map_structure(lambda column: column[leaving_out:], rows)


def _end_marker(element_spec: Any) -> tf.data.Dataset:
    """A last, empty batch, whose ordinal is no example's."""

    def empty(spec: tf.TensorSpec) -> tf.Tensor:
        inner = spec.shape[1:] if spec.shape.rank is not None else []
        return tf.zeros([0, *(size or 0 for size in inner)], spec.dtype)

    marker = tf.nest.map_structure(empty, element_spec)
    marker["ordinal"] = marker["epoch"] = marker["first"] = tf.constant([-1], tf.int64)
    return tf.data.Dataset.from_tensors(marker)
