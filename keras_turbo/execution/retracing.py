"""Tells when a function of fit() is traced again, why, and how to avoid it; and when it is not traced at all."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.execution.debug_mode import is_debugging
from keras_turbo.execution.input_changes import Change, Kind, Specs, changes, completed, specs_of, unknown_axes
from keras_turbo.execution.patching import replaced_attribute

_REMEDIES: dict[Kind, str] = {
    "batch": "Give all batches one size (`batch(..., drop_remainder=True)`).",
    "axis": (
        "Pad to a fixed length, or to a few lengths with `tf.data.Dataset.bucket_by_sequence_length(..., "
        "pad_to_bucket_boundary=True)`; for a `tf.function` of your own, an `input_signature` with None for this axis "
        "traces it once."
    ),
    "rank": "Give this input the same rank in all batches (`tf.expand_dims`, `tf.reshape`).",
    "dtype": "Cast this input to one dtype where the batches are made.",
    "structure": "Give all batches the same inputs, under the same names.",
    "value": "Pass it as a tensor: each new Python value is a trace of its own (or fix it with an `input_signature`).",
}

# Sizes of a batch that are normal: the full one, and a last one that is smaller.
_NORMAL_BATCH_SIZES = 2


class RetracingWarning(UserWarning):
    """A function of the training loop was traced again because its inputs changed."""


class EagerExecutionWarning(UserWarning):
    """Training runs without a graph, which a forgotten switch may be the reason of."""


class RetraceWatch:
    """Warns once when a function is traced again, with what changed in its inputs and the remedy.

    A trace builds the graph of a step in Python, which takes as long as hundreds of steps, and compiles it under XLA.
    Nothing is done in a step that is not traced.

    Example:

    ```python
    watch = RetraceWatch("train")

    @tf.function(reduce_retracing=True)
    def step(data):
        watch.traced(data)
        return model.train_step(data)

    watch.called_with(batch)  # optional: lets the warning tell sizes that TensorFlow has generalized
    step(batch)
    ```

    Batches of two sizes are normal, as the last one may be smaller. Thread-safe: the replicas of a strategy trace in
    threads.

    Args:
        name: Which function it is, such as "train", "test" or "predict".
        model_name: Name of the model in the warning, or None.
        jit_compile: Whether XLA compiles the function. It then compiles anew for each size of an axis that the trace
            leaves open, of which no trace tells: such an axis is warned of at the first trace.
    """

    def __init__(self, name: str, model_name: str | None = None, *, jit_compile: bool = False) -> None:
        self._title = f"The {name} function" + (f" of {model_name!r}" if model_name else "")
        self._jit_compile = jit_compile
        self._lock = threading.Lock()
        self._called_with: Any = None
        self._has_warned = False
        self._is_new_run = False
        self._traces: list[Specs] = []

    def called_with(self, data: Any) -> None:
        """Notes what the function is called with, which costs a microsecond at most.

        Args:
            data: Batch, or iterator of `tf.data`. It is kept until the next call; None lets it go.
        """
        self._called_with = data

    def new_run(self) -> None:
        """Notes that another fit begins, which may be given other inputs (`class_weight` adds one) on purpose."""
        self._is_new_run = True

    def restart(self) -> None:
        """Forgets earlier traces, for a function that is made anew: its first trace is no retrace."""
        with self._lock:
            self._traces.clear()

    @tf.autograph.experimental.do_not_convert
    def traced(self, data: Any) -> None:
        """Notes a trace; to be called in the body of the traced function.

        Where the function runs eagerly, nothing is traced, and nothing is done.

        Args:
            data: The symbolic batch, in the structure that a `train_step` takes.
        """
        if not tf.inside_function():
            return
        with self._lock:
            specs = specs_of(data)
            if self._called_with is not None:
                specs = completed(specs, specs_of(self._called_with))
            # Replicas, and functions around this one, trace it several times for the same inputs.
            if self._has_warned or specs in self._traces:
                return
            if self._is_new_run and self._traces and specs.keys() != self._traces[0].keys():
                self._traces.clear()
            self._is_new_run = False
            self._traces.append(specs)
            text = self._open_sizes(specs) if len(self._traces) == 1 else self._retrace(specs)
            if not text:
                return
            self._has_warned = True
        warnings.warn(text, RetracingWarning, stacklevel=2)

    def _open_sizes(self, specs: Specs) -> str:
        axes = [f"axis {axis} of {path}" for path, axis in unknown_axes(specs)] if self._jit_compile else []
        if not axes:
            return ""
        return (
            f"{self._title} is compiled by XLA and its inputs have sizes that are not known beforehand: "
            f"{', '.join(axes)}. XLA compiles it anew for each size that comes. {_REMEDIES['axis']} Or turn XLA off "
            "(`jit_compile=False`)."
        )

    def _retrace(self, specs: Specs) -> str:
        found = list(changes(self._traces[0], specs))
        if not self._has_many_batch_sizes():
            found = [change for change in found if change.kind != "batch"]
        if not found:
            return ""
        return (
            f"{self._title} was traced again: {_listed(found)}. Each trace builds the graph of the step anew"
            f"{', and XLA compiles it' if self._jit_compile else ''}, which takes as long as many steps. "
            f"{' '.join(_REMEDIES[kind] for kind in dict.fromkeys(change.kind for change in found))} "
            "Later retraces of this function are not told."
        )

    def _has_many_batch_sizes(self) -> bool:
        sizes: dict[str, set[int]] = {}
        for specs in self._traces:
            for path, spec in specs.items():
                if spec.shape and spec.shape[0] is not None:
                    sizes.setdefault(path, set()).add(spec.shape[0])
        return any(len(seen) > _NORMAL_BATCH_SIZES for seen in sizes.values())


@contextlib.contextmanager
def watch_retracing(model: keras.Model) -> Iterator[None]:
    """Watches the train, test and predict functions of a model while it is open.

    The functions are made anew, with a watch in their traces. Custom `train_step`, `test_step` and `predict_step`, and
    functions that someone else has set on the model, are watched as Keras' own are. Afterwards the model has the
    functions again that it had before, with their traces; those of a model that was compiled meanwhile are made anew
    when they are needed.

    Example:

    ```python
    with watch_retracing(model):
        model.fit(dataset)
    ```

    Args:
        model: Model to train, test or predict with inside.

    Yields:
        Nothing.
    """
    with contextlib.ExitStack() as stack:
        for name in ("train", "test", "predict"):
            stack.enter_context(_watched_function(model, name))
        yield


def warn_if_eager(model: keras.Model) -> None:
    """Warns once of each model whose steps run eagerly, by whichever switch; not inside `debug_mode()`.

    Args:
        model: Compiled model.
    """
    if is_debugging() or model in _WARNED_OF_EAGER:
        return
    found = [
        switch
        for switch, is_on in (
            ("`run_eagerly=True` in `model.compile()` (leave it out)", model.run_eagerly),
            (
                "`tf.config.run_functions_eagerly(True)` (call it with False; it holds for the whole process)",
                tf.config.functions_run_eagerly(),
            ),
        )
        if is_on
    ]
    if found:
        _WARNED_OF_EAGER.add(model)
        warnings.warn(
            f"The model {model.name!r} runs eagerly, operation by operation, which is many times slower than as a "
            f"graph and leaves XLA and `steps_per_execution` without effect. What does it: {' and '.join(found)}. For "
            "debugging, `with keras_turbo.debug_mode():` switches back by itself.",
            EagerExecutionWarning,
            stacklevel=2,
        )


_WARNED_OF_EAGER: weakref.WeakSet[keras.Model] = weakref.WeakSet()


@contextlib.contextmanager
def _watched_function(model: keras.Model, name: str) -> Iterator[None]:
    step_name, make_name, function_name = f"{name}_step", f"make_{name}_function", f"{name}_function"
    step, make, function_before = (getattr(model, attribute) for attribute in (step_name, make_name, function_name))
    watch = RetraceWatch(name, model.name, jit_compile=bool(model.jit_compile))
    made: list[Callable[..., Any]] = []

    @functools.wraps(step)
    def watched_step(data: Any) -> Any:
        watch.traced(data)
        return step(data)

    def watched_make(force: bool = False) -> Any:
        present = getattr(model, function_name)
        if present is not None and made and present is made[-1] and not force:
            return present
        watch.restart()
        make(force=True)
        made.append(_noting_calls(getattr(model, function_name), watch))
        setattr(model, function_name, made[-1])
        return made[-1]

    with replaced_attribute(model, step_name, watched_step), replaced_attribute(model, make_name, watched_make):
        try:
            yield
        finally:
            present = getattr(model, function_name)
            if made and present is made[-1]:
                # More than one was made: the model was compiled meanwhile, and the old function is of no use.
                setattr(model, function_name, function_before if len(made) == 1 else None)


def _noting_calls(function: Callable[..., Any], watch: RetraceWatch) -> Callable[..., Any]:
    """The function, with the watch told what it is called with."""

    def call(data: Any) -> Any:
        if isinstance(data, tf.data.Iterator | tf.distribute.DistributedIterator):
            watch.called_with(data)
        elif isinstance(data, list | tuple):  # predict's batches
            watch.called_with(data[0])
        else:  # train_on_batch and its like give an iterator of one batch
            data = _noting_batches(data, watch)
        try:
            return function(data)
        finally:
            watch.called_with(None)

    return call


def _noting_batches(batches: Iterable[Any], watch: RetraceWatch) -> Iterator[Any]:
    for batch in batches:
        watch.called_with(batch)
        yield batch


def _listed(found: list[Change]) -> str:
    shown = [change.text for change in found[:3]]
    return "; ".join([*shown, *([f"and {len(found) - 3} more"] if len(found) > 3 else [])])
