"""How long the callbacks of a `fit` take, each by itself, without a change to any of them.

Keras goes through the list of callbacks in each hook. The list that is put in its place is one that looks at the clock
as it is gone through: what lies between one callback and the next is the time of the first. The callbacks are what they
were, and find themselves and each other in it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras

# Names of classes that save. By name, since not every version of Keras has each of them.
_SAVING = {"ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint", "AsyncCheckpoint"}
# What Keras adds itself, once for each execution: part of what returning to Python costs.
_KERAS_OWN = (keras.callbacks.History, keras.callbacks.ProgbarLogger)


def _hook_loops() -> dict[Any, str]:
    """The code of each method of Keras' `CallbackList` that goes through the callbacks, with its name."""
    loops = {}
    for name in dir(keras.callbacks.CallbackList):
        # `_on_train_batch_end` and its like, where hooks may be called on another thread.
        if name.startswith(("on_", "_on_")):
            loops[getattr(keras.callbacks.CallbackList, name).__code__] = name.removeprefix("_")
    return loops


_HOOK_LOOPS = _hook_loops()


class CallbackTimes:
    """Seconds that callbacks have taken on the thread of `fit`.

    Args:
        owner: the callback that wants to know; it is left out.
        on_failure: called when a callback has raised.

    Attributes:
        last_loop_ended: when Keras was through with the callbacks the last time, by `time.perf_counter()`.
        paused: set it while hooks are called that do not count.
    """

    def __init__(self, owner: keras.callbacks.Callback, on_failure: Callable[[], None]) -> None:
        self.owner = owner
        self._on_failure = on_failure
        self._thread = threading.get_ident()
        self._batch_hooks: dict[int, float] = {}
        self._epoch_hooks: dict[int, float] = {}
        self._callbacks: dict[int, keras.callbacks.Callback] = {}
        self.last_loop_ended = time.perf_counter()
        self.paused = False

    def reset(self) -> None:
        """Begins to count anew."""
        self._batch_hooks.clear()
        self._epoch_hooks.clear()

    @property
    def batch_hook_seconds(self) -> float:
        """Of all that were written for this training, in the hooks around an execution."""
        return sum(value for key, value in self._batch_hooks.items() if not self._is_keras_own(key))

    def seconds_by_name(self) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds by the name of the class: of callbacks that do not save, and of those that do."""
        others: dict[str, float] = {}
        saving: dict[str, float] = {}
        for hooks in (self._batch_hooks, self._epoch_hooks):
            for key, value in hooks.items():
                if not self._is_keras_own(key):
                    kind = type(self._callbacks[key])
                    seconds = saving if any(base.__name__ in _SAVING for base in kind.__mro__) else others
                    seconds[kind.__name__] = seconds.get(kind.__name__, 0.0) + value
        return others, saving

    def epoch_hook_seconds_by_name(self) -> dict[str, float]:
        """Of callbacks that do not save, what they took in the hooks around an epoch."""
        seconds: dict[str, float] = {}
        for key, value in self._epoch_hooks.items():
            name = type(self._callbacks[key]).__name__
            seconds[name] = seconds.get(name, 0.0) + value
        others, _ = self.seconds_by_name()
        return {name: value for name, value in seconds.items() if name in others}

    def timed(self, callbacks: Iterable[keras.callbacks.Callback], hook: str) -> Iterator[keras.callbacks.Callback]:
        """Gives the callbacks one by one, and counts how long each is kept."""
        counts = not self.paused and threading.get_ident() == self._thread
        seconds = self._batch_hooks if "_batch_" in hook else self._epoch_hooks
        is_through = False
        try:
            for callback in callbacks:
                begin = time.perf_counter()
                yield callback
                if counts and callback is not self.owner:
                    key = id(callback)
                    seconds[key] = seconds.get(key, 0.0) + time.perf_counter() - begin
                    # Held, so that no other object can have the same id.
                    self._callbacks[key] = callback
            is_through = True
        finally:
            if counts:
                self.last_loop_ended = time.perf_counter()
            if not is_through:
                self._on_failure()

    def _is_keras_own(self, key: int) -> bool:
        return isinstance(self._callbacks[key], _KERAS_OWN)


class TimedCallbacks(list):
    """A list of callbacks that is timed when Keras goes through it to call a hook, and is a list to all others.

    Args:
        callbacks: the callbacks.
        watchers: who times them.
    """

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback], watchers: Sequence[CallbackTimes]) -> None:
        super().__init__(callbacks)
        self.watchers = tuple(watchers)

    def __iter__(self) -> Iterator[keras.callbacks.Callback]:
        hook = _HOOK_LOOPS.get(sys._getframe(1).f_code)
        callbacks = super().__iter__()
        if hook is not None:
            for times in self.watchers:
                callbacks = times.timed(callbacks, hook)
        return callbacks


def watch_callbacks(callback_list: keras.callbacks.CallbackList, times: CallbackTimes) -> None:
    """Times the callbacks of a list from the next hook on, and lets its owner be the first that a hook is called of.

    May be called again: others rebind the list, too.
    """
    callbacks, owner = callback_list.callbacks, times.owner
    watchers = callbacks.watchers if isinstance(callbacks, TimedCallbacks) else ()
    if times not in watchers:
        # A new one: Keras may just be going through the one that there is.
        others = [callback for callback in callbacks if callback is not owner]
        callback_list.callbacks = TimedCallbacks([owner, *others], [*watchers, times])


def unwatch_callbacks(callback_list: keras.callbacks.CallbackList, times: CallbackTimes) -> None:
    """Times them no longer."""
    callbacks = callback_list.callbacks
    if isinstance(callbacks, TimedCallbacks):
        watchers = [other for other in callbacks.watchers if other is not times]
        callback_list.callbacks = TimedCallbacks(callbacks, watchers) if watchers else list(callbacks)
