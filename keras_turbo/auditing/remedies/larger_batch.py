"""The remedy for steps that are too small for the hardware: more examples in each."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_turbo.auditing.bench import Bench
from keras_turbo.auditing.remedies.remedy import Remedy, does_not_apply, not_measured
from keras_turbo.execution.memory import PeakMemory
from keras_turbo.execution.race import short_reason
from keras_turbo.execution.stacks import why_not_stackable
from keras_turbo.machine import free_memory_bytes

_TIMES = 4
# On a CPU, what does not fit kills the process.
_MOST_OF_FREE_MEMORY = 0.5


def larger_batch(bench: Bench) -> Remedy:
    """Four batches as one."""
    name, data, rows = "larger batch", bench.data, bench.sample.batch_rows
    batches = data.num_batches
    if batches is not None and batches < 2 * _TIMES:
        return does_not_apply(name, f"an epoch has {batches} batches")
    memory = PeakMemory()
    bench.baseline_turn()
    peak_mb = memory.peak_mb() or 0.0
    free_mb = free_memory_bytes() / 1e6
    code = f"batch_size={_TIMES * rows}  # in place of {rows}; keras_turbo.tune(..., find_batch_size=True) tries more"
    if not tf.config.list_physical_devices("GPU") and _TIMES * peak_mb > _MOST_OF_FREE_MEMORY * free_mb:
        return not_measured(
            name, f"it would take about {_TIMES * peak_mb:,.0f} of {free_mb:,.0f} MB that are free", code
        )
    options: dict[str, Any] = {"num_batches": None if batches is None else -(-batches // _TIMES)}
    if data.kind == "arrays":
        arguments = data.arguments(batch_size=_TIMES * rows)
    elif isinstance(data.arguments()["x"], tf.data.Dataset):
        reason = why_not_stackable(bench.sample.element_spec)
        if reason is not None:
            return not_measured(name, f"larger batches can't be made of these: {reason}", code)
        arguments = data.of_dataset(_joined)
    else:
        return not_measured(name, f"a {data.kind} makes batches of its own size", code)
    try:
        return bench.compare(
            name,
            lambda: bench.turn(arguments, **options),
            measured=f"fit with batches of {_TIMES * rows} examples, milliseconds for each {rows}",
            changes="another training run: fewer and smoother updates an epoch, which ask for another learning rate",
            code=code,
            per_step=_TIMES,
        )
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        return not_measured(name, f"it did not fit: {short_reason(error)}", code)


def _joined(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Full batches joined, `_TIMES` at a time."""

    def join(*stacks: Any) -> Any:
        joined = tf.nest.map_structure(lambda stack: tf.reshape(stack, [-1, *stack.shape[2:]]), stacks)
        return joined[0] if len(stacks) == 1 else joined

    # A last batch that is not full does not stack with the others.
    return dataset.batch(_TIMES, drop_remainder=True).map(join).ignore_errors(log_warning=False)
