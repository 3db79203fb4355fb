"""The same script on several workers: the chief alone writes files, prints and shows the progress bar.

Keras has no idea of a chief. So `fit`, `evaluate` and `predict` of models on several workers are called with other
callbacks, and on all workers but the chief without a progress bar. For every other model they are what they were.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.distribution.lost_workers import explained_loss
from keras_turbo.distribution.same_on_all_workers import SameOnAllWorkers
from keras_turbo.distribution.scopes import outside
from keras_turbo.distribution.workers import worker_of

# Callbacks that write files, show or send something, and change nothing of a training.
_CHIEF_ONLY: tuple[type, ...] = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,  # what it restores reaches the others through SameOnAllWorkers
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.ProgbarLogger,
    # Not in all versions of Keras.
    *(getattr(keras.callbacks, name) for name in ("OrbaxCheckpoint",) if hasattr(keras.callbacks, name)),
)


def install() -> None:
    """Has `fit`, `evaluate` and `predict` heed workers, and lets the chief save alone. Doing it twice does nothing.

    It stays for the life of the process, as does the server that TensorFlow starts for its workers: models that are
    built under the strategy are trained after the context, too. A model under another strategy notices nothing of it.
    """
    for name in ("fit", "evaluate", "predict"):
        original = getattr(keras.Model, name)
        if not hasattr(original, "_heeds_workers"):
            setattr(keras.Model, name, _heeding_workers(original, trains=name == "fit"))
    for name in ("save", "save_weights", "load_weights", "export"):
        original = getattr(keras.Model, name)
        if not hasattr(original, "_heeds_workers"):
            setattr(keras.Model, name, _outside_of_scopes(original))


def _outside_of_scopes(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(model: Any, *args: Any, **kwargs: Any) -> Any:
        with outside() if worker_of(model.distribute_strategy)[1] > 1 else contextlib.nullcontext():
            return original(model, *args, **kwargs)

    method._heeds_workers = True  # type: ignore[attr-defined]
    return method


def _heeding_workers(original: Callable[..., Any], *, trains: bool) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = model.distribute_strategy
        index, number = worker_of(strategy)
        if number == 1:
            return original(model, *args, **kwargs)
        bound = signature.bind(model, *args, **kwargs)
        given = bound.arguments.get("callbacks")
        own = [SameOnAllWorkers(strategy, index == 0)] if trains else []
        if index:
            bound.arguments["verbose"] = 0
        if not isinstance(given, keras.callbacks.CallbackList):
            bound.arguments["callbacks"] = [*_for_worker(_flat(given), index), *own]
            others: Any = contextlib.nullcontext()
        else:
            # That of the fit that evaluates, which has been seen to already; or one that the user has made.
            others = _other_callbacks(given, own, index) if trains else contextlib.nullcontext()
        with others, explained_loss(strategy), outside():
            return original(*bound.args, **bound.kwargs)

    method._heeds_workers = True  # type: ignore[attr-defined]
    return method


def _flat(callbacks: Any) -> list[Any]:
    return [] if callbacks is None else tf.nest.flatten(callbacks)


def _for_worker(callbacks: list[Any], index: int) -> list[Any]:
    return [_stand_in(one) if index and isinstance(one, _CHIEF_ONLY) else one for one in callbacks]


def _stand_in(callback: keras.callbacks.Callback) -> keras.callbacks.Callback:
    """One that does nothing, by the same name: AsyncCheckpoint keeps what callbacks have learned by name."""
    return type(type(callback).__name__, (keras.callbacks.Callback,), {"needs_every_batch": False})()


@contextlib.contextmanager
def _other_callbacks(given: keras.callbacks.CallbackList, own: list[Any], index: int) -> Iterator[None]:
    before = given.callbacks
    given.callbacks = [*_for_worker(before, index), *own]
    for one in own:
        one.set_model(given.model)
    try:
        yield
    finally:
        given.callbacks = before
