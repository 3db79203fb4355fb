"""The largest batch that fits, and the one with which the most examples a second are trained on."""

from __future__ import annotations

import dataclasses
import time
import warnings
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.execution.memory import PeakMemory
from keras_turbo.execution.race import StepClock, short_reason
from keras_turbo.execution.sample import RepeatedStack
from keras_turbo.fit.training_state import KeptState
from keras_turbo.machine import free_memory_bytes

# Of what was found to fit: memory is fragmented after some hours, and other programs come and go.
_MARGIN = 0.9
# Between the largest that fit and the smallest that did not.
_BISECTED_TO = 1 / 16
# On a CPU, what does not fit kills the process, so that nothing is tried that would come near.
_MOST_OF_FREE_MEMORY = 0.5
_TIMED_STEPS = 3
_MEMORY_ERRORS = (tf.errors.ResourceExhaustedError, MemoryError)
_MOST_ROWS = 1 << 20


@dataclasses.dataclass(frozen=True)
class BatchSizeFigures:
    """One batch size.

    Attributes:
        batch_size: examples a batch.
        step_ms: milliseconds a step with Keras' own loop; None if it did not fit.
        examples_per_second: its rate; None if it did not fit.
        memory_mb: see `PeakMemory`; None where unknown.
        failed: why it did not fit; None if it did.
    """

    batch_size: int
    step_ms: float | None
    examples_per_second: float | None
    memory_mb: float | None
    failed: str | None


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """What was found about batch sizes.

    Attributes:
        sizes: all that were tried, in that order.
        largest: the largest that fits, with a margin of a tenth.
        fastest: the one with the most examples a second among those tried.
        ended_by: why no larger one was tried.
    """

    sizes: tuple[BatchSizeFigures, ...]
    largest: int
    fastest: int
    ended_by: str

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> BatchSizes:
        """What `dataclasses.asdict` made a dict of."""
        return cls(**{**values, "sizes": tuple(BatchSizeFigures(**size) for size in values["sizes"])})

    def lines(self) -> list[str]:
        """What was found, in words."""
        found = [
            f"Batch of {size.batch_size}: "
            + (
                f"did not fit: {size.failed}"
                if size.step_ms is None
                else f"{size.step_ms:.2f} ms a step, {size.examples_per_second:,.0f} examples/s"
                + ("" if size.memory_mb is None else f", {size.memory_mb:,.0f} MB")
            )
            for size in self.sizes
        ]
        told = (
            f"The largest batch found to fit has {self.largest} examples, the fastest {self.fastest}; ended by: "
            f"{self.ended_by}. Nothing was changed: neither the batches of the data nor the learning rate, which "
            "another batch size asks for."
        )
        return [*found, told]


def find_batch_sizes(
    model: keras.Model, batch: Any, element_spec: Any, state: KeptState, budget_seconds: float
) -> BatchSizes:
    """Doubles the batch until it does not fit, then bisects; trains a few steps with each size and takes them back.

    An error of TensorFlow that memory is exhausted is survived. On a CPU a size is not tried if, going by the growth so
    far, it would take more than half of the free memory.

    Args:
        model: a built, compiled model that Keras' own loop runs.
        batch: structure of tensors; larger ones are made of its examples, repeated.
        element_spec: structure of `tf.TypeSpec`s of a batch, whose batch axis is left open here.
        state: what is put back after each size.
        budget_seconds: no size is tried after it.

    Raises:
        Exception: what `fit` raises for the batch as it is.
    """
    rows = int(tf.nest.flatten(batch)[0].shape[0])
    open_spec = tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape[1:]], spec.dtype), element_spec)
    trial = _Trial(model, batch, open_spec, state)
    deadline = time.perf_counter() + budget_seconds
    tried = [trial.run(rows)]
    if tried[0].failed is not None:
        raise RuntimeError(f"The batch of {rows} examples that `data` has does not fit: {tried[0].failed}")
    good, bad, ended_by = rows, None, ""
    while not ended_by:
        size = 2 * good if bad is None else (good + bad) // 2
        if bad is not None and bad - good <= max(1, good * _BISECTED_TO):
            ended_by = f"{bad} did not fit: {next(each.failed for each in tried if each.batch_size == bad)}"
        elif size > _MOST_ROWS:
            ended_by = f"no batch above {_MOST_ROWS} examples is tried"
        elif time.perf_counter() + 3 * trial.longest_seconds > deadline:
            ended_by = f"the budget of {budget_seconds:g} s; budget_seconds gives more"
        else:
            tried.append(trial.run(size))
            if tried[-1].failed is None:
                good = size
            else:
                bad = size
    able = [each for each in tried if each.examples_per_second is not None]
    return BatchSizes(
        sizes=tuple(tried),
        largest=good if bad is None else max(rows, int(good * _MARGIN)),
        fastest=max(able, key=lambda each: each.examples_per_second or 0.0).batch_size,
        ended_by=ended_by,
    )


class _Trial:
    def __init__(self, model: keras.Model, batch: Any, element_spec: Any, state: KeptState) -> None:
        self._model = model
        self._batch = batch
        self._element_spec = element_spec
        self._state = state
        self._mb_of_rows: list[tuple[int, float]] = []
        self.longest_seconds = 0.0

    def run(self, rows: int) -> BatchSizeFigures:
        reason = self._why_it_would_not_fit(rows)
        if reason is not None:
            return BatchSizeFigures(rows, None, None, None, reason)
        start = time.perf_counter()
        memory, clock = PeakMemory(), StepClock()
        steps = self._model.steps_per_execution * (1 + _TIMED_STEPS)
        try:
            stack = tf.nest.map_structure(lambda component: self._tiled(component, rows)[tf.newaxis], self._batch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what fit warns of is for the user's own fit to say
                data = RepeatedStack(stack, self._element_spec, steps)
                fit: Any = self._model.fit  # whose `verbose` is declared as a text, by its default
                fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[clock])
        except _MEMORY_ERRORS as error:
            return BatchSizeFigures(rows, None, None, None, short_reason(error))
        finally:
            self._state.restore()
        self.longest_seconds = max(self.longest_seconds, time.perf_counter() - start)
        peak_mb = memory.peak_mb()
        if peak_mb is not None:
            self._mb_of_rows.append((rows, peak_mb))
        ms = clock.step_ms(self._model.steps_per_execution)
        return BatchSizeFigures(rows, ms, rows / ms * 1e3, peak_mb, None)

    def _why_it_would_not_fit(self, rows: int) -> str | None:
        # The first size also pays for what does not depend on the size.
        later = self._mb_of_rows[1:]
        if not later or tf.config.list_physical_devices("GPU"):
            return None
        # Memory that was freed counts as grown by nothing the next time, so the most for an example so far counts.
        needed_mb = rows * max(mb / size for size, mb in later)
        free_mb = free_memory_bytes() / 1e6
        if needed_mb <= _MOST_OF_FREE_MEMORY * free_mb:
            return None
        return f"it would take about {needed_mb:,.0f} MB, more than half of the {free_mb:,.0f} MB that are free"

    @staticmethod
    def _tiled(component: tf.Tensor, rows: int) -> tf.Tensor:
        return tf.gather(component, tf.range(rows) % component.shape[0])
