"""A `fit` while it runs: when it begins and ends, what stands before and behind all callbacks, and how far it is.

The first callback of ours whose `on_train_begin` is called begins the session, and the others join it. It puts another
list in place of the one that Keras goes through to call hooks. As Keras goes through that list, the session sees each
hook begin, each callback take its time or raise, and each hook end. The callbacks themselves are what they were.

A session ends once, however its `fit` ends: behind the last `on_train_end`; with an error in a callback or in the train
function; when the list is collected, which only `fit` holds. An error elsewhere (in validation, say, or Ctrl-C) whose
traceback is kept, as a notebook does, keeps all of `fit`. Such an orphaned session is noticed by a thread that looks,
once a second, whether `fit` is still on the stack.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras

from keras_turbo.fit import keras_internals
from keras_turbo.fit.call import FitCall
from keras_turbo.fit.timing import FitTimes
from keras_turbo.fit.train_function import Place, Run, WrappedTrainFunction, Wrapper, own_train_function, unwrap

# An interrupted cell of a notebook leaves nothing for longer than this. A look takes 20 µs.
_WATCH_SECONDS = 1.0

# By the ids of code objects, which are never collected: to look one up by itself takes ten times as long.
_HOOK_OF_LOOP = {id(code): hook for code, hook in keras_internals.hook_of_loop().items()}
_sessions: weakref.WeakKeyDictionary[keras.callbacks.CallbackList, FitSession] = weakref.WeakKeyDictionary()


class FitSession:
    """One `fit`, for all that takes part in it. To be had from `FitSession.join`.

    Attributes:
        model: the model that is trained.
        call: what `fit` was called with.
        batch: batches trained on in the epoch that runs.
        batches: batches trained on in this `fit`.
        logs: what the train function gave last.
        iterator: over batches, that `fit` gave last; None where the next epoch begins with another one.
        given: batches that it has given.
        executions: how often the train function was called.
        times: where the time goes; None where nobody has asked for it.
    """

    def __init__(self, callback_list: keras.callbacks.CallbackList, model: Any, frame: Any) -> None:
        self.model = model
        self.call = FitCall.of_frame(frame.f_locals)
        self.batch = self.batches = self.given = self.executions = 0
        self.logs: Any = {}
        self.iterator: Any = None
        self.times: FitTimes | None = None
        self.has_ended = threading.Event()
        self._list = weakref.ref(callback_list)
        self._before = callback_list.callbacks
        self._first: list[keras.callbacks.Callback] = []
        self._last: list[keras.callbacks.Callback] = []
        self._wrappers: list[tuple[Place, Wrapper]] = []
        self._at_end: list[Callable[[], None]] = []
        self._batches_of_iterator: int | None = None
        self._awaits_call = False
        self._on_tensorflow = keras.config.backend() == "tensorflow"
        self._hidden: dict[str, float] = {}
        self._untimed: set[int] = set()
        self._thread, self._frame_id = threading.get_ident(), id(frame)
        self._ending = threading.Lock()
        self._when_collected = weakref.finalize(callback_list, self.end)
        self._when_collected.atexit = False
        watch = (weakref.ref(self), self.has_ended)
        self._watcher = threading.Thread(target=_watch, args=watch, name="keras_turbo fit watch", daemon=True)
        self._watcher.start()

    @classmethod
    def join(
        cls, callback: keras.callbacks.Callback, *, first: keras.callbacks.Callback | None = None
    ) -> FitSession | None:
        """The session of the `fit` that calls this callback. To be called in its `on_train_begin`.

        Args:
            callback: of ours. It is moved behind all others, where it sees what they have done at the end of an epoch;
                or before them, if it is also given as `first`.
            first: a callback to stand before all others. What it adds to logs, the others see.

        Returns:
            The session; None where something else than Keras' `fit` calls the callback.
        """
        model = callback.model
        callback_list, frame = keras_internals.calling_list(callback), keras_internals.calling_fit(model)
        if callback_list is None or frame is None:
            return None
        session = _sessions.get(callback_list)
        if session is None or session.has_ended.is_set():
            for other in list(_sessions.values()):
                if not other.is_running:
                    other.end()
            session = _sessions[callback_list] = cls(callback_list, model, frame)
        if first is not None:
            first.set_model(model)
            session._first.append(first)
        if first is not callback:
            session._last.append(callback)
        session._install()
        return session

    # What those who take part may ask for.

    def wrap(self, place: Place, wrapper: Wrapper) -> None:
        """Puts something around the train function until the session ends; also around one that is made meanwhile."""
        self._wrappers.append((place, wrapper))
        self._install()

    def at_end(self, function: Callable[[], None]) -> None:
        """Has a function called when the session ends, however it does; the last one first. It must not raise."""
        self._at_end.append(function)

    def measure_times(self) -> FitTimes:
        """Times this `fit` from now on, if nobody does so yet."""
        if self.times is None:
            times = self.times = FitTimes(fetches_in_python=not self._on_tensorflow)
            self.wrap(Place.TIMING, lambda run, data: times.run(own_train_function(self.model), run, data))
        return self.times

    def epoch_begins(self) -> None:
        """To be called in `on_epoch_begin`: callbacks may have compiled the model, or changed the list of callbacks."""
        self.batch = 0
        self._hidden.clear()
        self._install()

    def add_figures(self, logs: dict[str, Any], figures: Mapping[str, float], shown: Iterable[str] = ()) -> None:
        """Adds figures to the logs of an epoch, for all callbacks; the progress bar shows some of them alone."""
        logs.update(figures)
        self._hidden.update({name: value for name, value in figures.items() if name not in shown})

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """The callbacks that `fit` was given, those of ours among them."""
        return [one for one in self._before if not isinstance(one, _Hiding)]

    @property
    def others(self) -> list[keras.callbacks.Callback]:
        """The callbacks that `fit` was given, without those of ours that were placed."""
        return [one for one in self._before if not _is_among(one, [*self._first, *self._last])]

    @property
    def batches_left(self) -> int | None:
        """Batches that the iterator still has; None where that can't be known."""
        return None if self._batches_of_iterator is None else max(0, self._batches_of_iterator - self.given)

    @property
    def is_running(self) -> bool:
        """Whether its `fit` runs. The traceback of an error may keep all of a `fit` that does not."""
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if id(frame) == self._frame_id:
                return True
            frame = frame.f_back
        return False

    def end(self) -> None:
        """Puts everything back that was changed for this `fit`. May be called again, and from any thread."""
        with self._ending:
            if self.has_ended.is_set():
                return
            self.has_ended.set()
        self._when_collected.detach()
        unwrap(self.model)
        callback_list = self._list()
        if callback_list is not None:
            _sessions.pop(callback_list, None)
            known = [*self._before, *self._first, *self._last]
            added = [one for one in callback_list.callbacks if not _is_among(one, known)]
            callback_list.callbacks = self._before
            callback_list.callbacks.extend(one for one in added if not isinstance(one, _Hiding))
        for function in reversed(self._at_end):
            function()
        self._at_end.clear()
        self._wrappers.clear()
        if threading.current_thread() is not self._watcher:
            self._watcher.join()

    # What it puts between `fit` and what `fit` calls.

    def _install(self) -> None:
        model, callback_list = self.model, self._list()
        if self.has_ended.is_set() or callback_list is None:
            return
        if model.train_function is not None:
            if not isinstance(model.train_function, WrappedTrainFunction):
                model.train_function = WrappedTrainFunction(model.train_function, self._is_called_by_fit, self._execute)
            for place, wrapper in self._wrappers:
                model.train_function.add(place, wrapper)
        ours = [*self._first, *self._last]
        others: list[keras.callbacks.Callback] = []
        for one in callback_list.callbacks:
            if isinstance(one, keras.callbacks.ProgbarLogger):
                others += [_Hiding(self, hides=True), one, _Hiding(self, hides=False)]
            elif not _is_among(one, ours) and not isinstance(one, _Hiding):
                others.append(one)
        self._untimed = {
            id(one) for one in [*self._first, *others] if _is_among(one, self._first) or type(one) is _Hiding
        }
        # A new list, since Keras may be going through the one that there is.
        callback_list.callbacks = _HookedList([*self._first, *others, *self._last], self)

    def _is_called_by_fit(self) -> bool:
        return self._awaits_call

    def _execute(self, run: Run, iterator: Any) -> Any:
        """One execution of the train function, with all that is wrapped around it."""
        self._awaits_call = False
        # On other backends each execution is given its batches in a new one.
        if self._on_tensorflow and iterator is not self.iterator:
            self.iterator, self.given = iterator, 0
            self._batches_of_iterator = self.call.batches_of_iterator
        own = own_train_function(self.model)
        calls = self.model.train_function.calls
        try:
            logs = run(iterator)
        except BaseException as error:
            # By name, since TensorFlow is of no concern on other backends.
            if isinstance(error, StopIteration) or type(error).__name__ == "OutOfRangeError":
                self.iterator = None
            else:
                self.end()
            raise
        if self.model.train_function.calls != calls:
            batches = len(iterator) if isinstance(iterator, list) else None
            steps = getattr(own, "steps_of_last_call", batches)
            self.executions += steps != 0  # else it has answered for a step that was run before
            self._count(steps)
            self.logs = logs
        return logs

    def _count(self, steps: int | None) -> None:
        if steps is None:
            at_once, left = self.model.steps_per_execution, self.batches_left
            # The last execution over finite data may have fewer.
            steps = at_once if left is None else max(1, min(at_once, left))
        self.batch += steps
        self.batches += steps
        self.given += steps

    def _through(self, callbacks: Iterator[keras.callbacks.Callback], hook: str) -> Iterator[keras.callbacks.Callback]:
        """Gives the callbacks one by one to Keras, which calls a hook of each."""
        is_through = False
        times = self.times if threading.get_ident() == self._thread else None
        if times is not None:
            times.hook_begins(hook)
        try:
            if times is None:
                yield from callbacks
            else:
                for callback in callbacks:
                    begin = time.perf_counter()
                    yield callback
                    if id(callback) not in self._untimed:
                        times.callback_took(callback, time.perf_counter() - begin)
            is_through = True
        finally:
            if times is not None:
                times.hook_ends()
            if is_through:
                self._hook_ended(hook)
            else:
                self.end()

    def _hook_ended(self, hook: str) -> None:
        if hook == "on_train_batch_begin":
            self._awaits_call = True
        elif hook == "on_epoch_begin":
            self.epoch_begins()
        elif hook == "on_train_end":
            self.end()


def _is_among(one: Any, others: Iterable[Any]) -> bool:
    # Callbacks of users may be equal without being the same.
    return any(one is other for other in others)


class _HookedList(list):
    """The callbacks of a `fit`: a list to all but Keras, as it goes through it to call a hook."""

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback], session: FitSession) -> None:
        super().__init__(callbacks)
        self._session = session

    def __iter__(self) -> Iterator[keras.callbacks.Callback]:
        hook = _HOOK_OF_LOOP.get(id(sys._getframe(1).f_code))
        return super().__iter__() if hook is None else self._session._through(super().__iter__(), hook)


class _Hiding(keras.callbacks.Callback):
    """Stands on either side of the progress bar, and keeps figures from it that are for files."""

    needs_every_batch = False

    def __init__(self, session: FitSession, *, hides: bool) -> None:
        super().__init__()
        self._session = weakref.ref(session)
        self._hides = hides

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        session = self._session()
        for name, value in session._hidden.items() if session is not None and logs is not None else ():
            if not self._hides:
                logs.setdefault(name, value)  # pyright: ignore[reportOptionalMemberAccess] (they are there)
            # What another callback has put under the same name is shown.
            elif logs.get(name) is value:  # pyright: ignore[reportOptionalMemberAccess] (likewise)
                del logs[name]  # pyright: ignore[reportOptionalSubscript] (likewise)


def _watch(session: weakref.ref[FitSession], has_ended: threading.Event) -> None:
    """Ends a session whose `fit` is over and has told nobody."""
    while not has_ended.wait(_WATCH_SECONDS):
        watched = session()
        if watched is None:
            return
        if not watched.is_running:
            watched.end()
        del watched
