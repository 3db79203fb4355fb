"""What callbacks see when several steps run in one execution."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def needs_every_batch(callbacks: Any) -> bool:
    """Whether one of the callbacks declares that it must be called for each batch.

    It does so by an attribute `needs_every_batch = True`. False declares that being called once for each execution is
    enough.

    Args:
        callbacks: as `fit` takes them.
    """
    return any(getattr(callback, "needs_every_batch", False) for callback in _each(callbacks))


def warn_of_missed_batches(callbacks: Any, steps_per_execution: int, warned: set[str]) -> None:
    """Warns once of each callback with batch hooks that does not declare which batches it needs.

    Keras' own callbacks are written for several steps in an execution.

    Args:
        callbacks: as `fit` takes them.
        steps_per_execution: how many batches go by between two calls.
        warned: names of those warned of before; added to.
    """
    for callback in _each(callbacks):
        kind = type(callback)
        if hasattr(callback, "needs_every_batch") or kind.__name__ in warned:
            continue
        frequency = getattr(callback, "save_freq", None)
        if isinstance(frequency, int) and frequency % steps_per_execution:
            warned.add(kind.__name__)
            warnings.warn(
                f"{kind.__name__}(save_freq={frequency}) is asked once for {steps_per_execution} batches, and saves at "
                f"the end of the execution that reaches batch {frequency}. A multiple of {steps_per_execution} saves "
                "where it says.",
                stacklevel=2,
            )
            continue
        # LambdaCallback takes its hooks as arguments and keeps them on the instance.
        hooks = [name for name in _BATCH_HOOKS if _is_users(kind, name) or _is_given(callback, name)]
        if hooks:
            warned.add(kind.__name__)
            warnings.warn(
                f"{kind.__name__}.{hooks[-1]} is called once for {steps_per_execution} batches, with the index and the "
                "logs of the last one. If it needs every batch, give the callback the attribute needs_every_batch = "
                "True: fit then runs one step at a time. needs_every_batch = False ends this warning.",
                stacklevel=2,
            )


def _each(callbacks: Any) -> Iterator[Any]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    if callbacks is None:
        return iter(())
    return iter(callbacks if isinstance(callbacks, Sequence) else [callbacks])


def _is_users(kind: type, name: str) -> bool:
    module = getattr(getattr(kind, name), "__module__", "")
    return not module.startswith("keras.")


def _is_given(callback: Any, name: str) -> bool:
    given = callback.__dict__.get(name) if isinstance(callback, keras.callbacks.LambdaCallback) else None
    # Where nothing was given, Keras puts a function of its own.
    return given is not None and not getattr(given, "__module__", "").startswith("keras.")
