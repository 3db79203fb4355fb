"""What the user's callbacks take of a step; they run as in training, but for what belongs to an epoch's end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_turbo.auditing.contents import Contents
from keras_turbo.execution.patching import replaced_attribute

# These save (or measure) and say so by their names. One that saves during an audit could take the place of a good
# checkpoint, and one that restores would change the model.
# CSVLogger empties its file when a training begins.
_NOT_RUN = {"ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint", "CSVLogger", "AsyncCheckpoint", "GpuUtilization"}
# Keras adds these itself, to the list that the script made.
_OF_FIT = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
_TIMED_HOOKS = ("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end")


def each_callback(callbacks: Any) -> list[keras.callbacks.Callback]:
    """The callbacks one by one.

    Args:
        callbacks: as `fit` takes them: None, one, a list, or a `CallbackList`.

    Raises:
        TypeError: something else among them.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return [each for each in callbacks.callbacks if not isinstance(each, _OF_FIT)]
    if callbacks is None:
        return []
    given = list(keras.tree.flatten(callbacks)) if isinstance(callbacks, (list, tuple)) else [callbacks]
    for callback in given:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"`callbacks` must be those that fit() takes. Received: {callback!r}.")
    return given


class UserCallbacks:
    """The user's callbacks in the runs of an audit.

    Their hooks at the end of an epoch are left out: they are no part of a step, and may validate, save or stop.

    Args:
        callbacks: as `fit` takes them.

    Attributes:
        run: those that run.
        left_out: those that don't, since they save, restore or measure.
    """

    def __init__(self, callbacks: Any) -> None:
        given = each_callback(callbacks)
        self.run = [each for each in given if not _is_left_out(each)]
        self.left_out = [each for each in given if _is_left_out(each)]
        self._before = [dict(vars(each)) for each in self.run]
        self._contents = Contents(self._before)

    def put_back(self) -> None:
        """Gives the callbacks the attributes that they had."""
        for callback, attributes in zip(self.run, self._before, strict=True):
            vars(callback).clear()
            vars(callback).update(attributes)
        self._contents.put_back()

    @contextlib.contextmanager
    def timed(self, but: Sequence[str] = ()) -> Iterator[tuple[list[keras.callbacks.Callback], dict[str, float]]]:
        """Times their hooks.

        Args:
            but: names of classes that do not run.

        Yields:
            The callbacks for `fit`, and the seconds that each class has taken so far.
        """
        running = [each for each in self.run if type(each).__name__ not in but]
        seconds = {type(each).__name__: 0.0 for each in running}
        with contextlib.ExitStack() as replaced:
            for callback in running:
                for hook in _TIMED_HOOKS:
                    timed = _timed(getattr(callback, hook), type(callback).__name__, seconds)
                    replaced.enter_context(replaced_attribute(callback, hook, timed))
                replaced.enter_context(replaced_attribute(callback, "on_epoch_end", lambda epoch, logs=None: None))
            yield running, seconds


def _timed(hook: Callable, name: str, seconds: dict[str, float]) -> Callable:
    def method(number: int, logs: Any = None) -> None:
        start = time.perf_counter()
        hook(number, logs)
        seconds[name] += time.perf_counter() - start

    return method


def _is_left_out(callback: keras.callbacks.Callback) -> bool:
    return any(kind.__name__ in _NOT_RUN for kind in type(callback).__mro__)
