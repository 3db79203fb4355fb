"""The input of a `fit` without its steps: batches come from the very iterator that Keras makes of the data."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.auditing.fit_input import FitInput
from keras_turbo.auditing.fit_runs import quiet_fit
from keras_turbo.execution.pulling import batch_puller
from keras_turbo.fit.train_function import Run

# Batches taken in one call, and looked at the clock after.
_PULLED_AT_A_TIME = 8
_MOST_BYTES = 64 << 20  # as much as the sample of tune() holds


class _PulledError(Exception):
    """Ends a fit that has given its batches."""


def first_batches(model: keras.Model, data: FitInput, most: int) -> tuple[list[Any], Any]:
    """The first batches as the train function would be given them.

    Nothing is trained, and a model that is not built stays so.

    Args:
        model: a compiled model.
        data: what `fit` is given.
        most: batches to take, if the data has as many and they take little memory.

    Returns:
        The batches, and the structure of `tf.TypeSpec`s of one.

    Raises:
        ValueError: the data has none.
    """
    taken: list[Any] = []
    found: dict[str, Any] = {}

    def take(_: Run, iterator: Any) -> Any:
        found["element_spec"] = iterator.element_spec
        taken_bytes = 0
        for batch in iterator:
            taken.append(batch)
            taken_bytes += _bytes_of(batch)
            if len(taken) == most or taken_bytes > _MOST_BYTES:
                break
        raise _PulledError

    try:
        quiet_fit(model, data.with_one_worker(), [], take)
    except _PulledError:
        pass
    finally:
        data.put_back()
    if not taken:
        raise ValueError("`data` has no batches. Expected at least one batch to measure the model with.")
    return taken, found["element_spec"]


def input_ms(model: keras.Model, data: FitInput, *, steps: int, seconds: float) -> float | None:
    """Milliseconds that the data takes for a batch where nothing else runs; None for a single batch.

    Args:
        model: a built, compiled model; none of its steps runs.
        data: what `fit` is given.
        steps: how many batches to take, about.
        seconds: after which no more are taken.
    """
    state: dict[str, Any] = {"pull": None, "count": 0, "start": 0.0, "end": 0.0, "empty": 0}

    def pull_only(_: Run, iterator: Any) -> Any:
        if state["pull"] is None:
            state["pull"] = batch_puller(iterator)
            # Buffers fill before the first.
            state["pull"](iterator, 1)
            state["start"] = time.perf_counter()
        pulled = state["pull"](iterator, _PULLED_AT_A_TIME)
        state["count"] += pulled
        state["empty"] = 0 if pulled else state["empty"] + 1
        state["end"] = time.perf_counter()
        if state["count"] >= steps or state["end"] - state["start"] > seconds or state["empty"] > 1:
            model.stop_training = True
            raise StopIteration
        if pulled < _PULLED_AT_A_TIME:
            raise StopIteration
        return {}

    try:
        quiet_fit(model, data.arguments(), [], pull_only)
    finally:
        data.put_back()
    return (state["end"] - state["start"]) / state["count"] * 1e3 if state["count"] else None


def _bytes_of(batch: Any) -> int:
    leaves = [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if isinstance(leaf, tf.Tensor)]
    return sum(int(tf.size(leaf)) * leaf.dtype.size for leaf in leaves if leaf.dtype.is_numpy_compatible)
