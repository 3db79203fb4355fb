"""Which callbacks must be called for each batch, so that steps can't run several at a time without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def callbacks_of_every_batch(callbacks: Any) -> list[str]:
    """Names of the callbacks that must be called for each batch: they may set the learning rate, or end training.

    A callback says so itself by an attribute `needs_every_batch`. Of those without it, Keras' own need only the last
    batch of each execution, as with `steps_per_execution` of `compile`; any other one with a hook for batches gets all.

    Args:
        callbacks: as `fit` takes them.
    """
    return list(dict.fromkeys(type(one).__name__ for one in each_callback(callbacks) if _needs_every_batch(one)))


def needs_every_batch(callbacks: Any) -> bool:
    """Whether one of the callbacks must be called for each batch; see `callbacks_of_every_batch`."""
    return bool(callbacks_of_every_batch(callbacks))


def save_frequencies(callbacks: Any) -> list[int]:
    """After how many batches each callback that counts them saves."""
    frequencies = (getattr(callback, "save_freq", None) for callback in each_callback(callbacks))
    return [frequency for frequency in frequencies if isinstance(frequency, int) and frequency > 0]


def _needs_every_batch(callback: Any) -> bool:
    declared = getattr(callback, "needs_every_batch", None)
    if declared is not None:
        return bool(declared)
    if isinstance(callback, keras.callbacks.TensorBoard):
        return callback.update_freq != "epoch"  # it writes a point for each
    # LambdaCallback takes its hooks as arguments and keeps them on the instance.
    return any(_is_users(type(callback), name) or _is_given(callback, name) for name in _BATCH_HOOKS)


def each_callback(callbacks: Any) -> Iterator[Any]:
    """The callbacks one by one, of all that `fit` takes."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    if callbacks is None:
        return iter(())
    return iter(callbacks if isinstance(callbacks, Sequence) else [callbacks])


def _is_users(kind: type, name: str) -> bool:
    module = getattr(getattr(kind, name, None), "__module__", "keras.")
    return not module.startswith("keras.")


def _is_given(callback: Any, name: str) -> bool:
    given = callback.__dict__.get(name) if isinstance(callback, keras.callbacks.LambdaCallback) else None
    # Where nothing was given, Keras puts a function of its own.
    return given is not None and not getattr(given, "__module__", "").startswith("keras.")
