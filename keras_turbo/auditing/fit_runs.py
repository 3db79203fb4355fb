"""Stock `fit`s of some steps, timed, after which everything is as before."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_turbo.auditing.callback_times import UserCallbacks
from keras_turbo.fit.session import FitSession
from keras_turbo.fit.train_function import Place, Run, Wrapper
from keras_turbo.fit.training_state import KeptState

# Epochs without end: a run ends by its steps.
_EPOCHS = 1_000_000
# Of a run's executions these come first and are not timed: buffers that were filled meanwhile are emptied.
_WARM_UP_SHARE = 0.1
# In a short run of few executions the first one must not count either: it may trace.
_LEAST_TIMED = 2


@dataclasses.dataclass(frozen=True)
class RunTimes:
    """What the steps of one run took.

    Attributes:
        step_ms: milliseconds from one step to the next, as a mean.
        callbacks_ms: of that, in the hooks of the user's callbacks, by class name.
        steps: that were timed.
    """

    step_ms: float
    callbacks_ms: Mapping[str, float]
    steps: int


class FitRuns:
    """Runs `fit` for some steps.

    Args:
        callbacks: the user's.
        put_back: what is called after each run.
    """

    def __init__(self, callbacks: UserCallbacks, put_back: Callable[[], None]) -> None:
        self._callbacks = callbacks
        self.put_back = put_back

    def run(
        self,
        model: keras.Model,
        arguments: Mapping[str, Any],
        *,
        steps: int,
        seconds: float,
        num_batches: int | None = None,
        with_callbacks: bool = True,
        without: Sequence[str] = (),
    ) -> RunTimes:
        """Runs it and puts everything back.

        Args:
            model: a compiled model.
            arguments: what `fit` is given.
            steps: how many to time, about.
            seconds: after which no further step is begun, once there are a few.
            num_batches: in an epoch, where that is known: the last execution of an epoch may hold fewer steps.
            with_callbacks: whether the user's callbacks run.
            without: class names of those that don't.

        Raises:
            RuntimeError: the data ended before there was anything to time.
        """
        try:
            with self._callbacks.timed(but=without) as (running, spent):
                clock = _Clock(steps, seconds, num_batches, spent)
                quiet_fit(model, arguments, [*(running if with_callbacks else ()), clock], clock.let_through)
        finally:
            self.put_back()
            self._callbacks.put_back()
        return clock.times()


def quiet_fit(model: keras.Model, arguments: Mapping[str, Any], callbacks: list, wrapper: Wrapper) -> None:
    """A `fit` that says nothing, with a wrapper that ends it: it sets `stop_training` and raises StopIteration."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what fit warns of is for the user's own fit to say
        fit: Any = model.fit  # whose `verbose` is declared as a text, by its default
        fit(**arguments, epochs=_EPOCHS, verbose=0, callbacks=[_Starter(wrapper), *callbacks])


class _Starter(keras.callbacks.Callback):
    """Puts the wrapper around the train function once there is one."""

    needs_every_batch = False

    def __init__(self, wrapper: Wrapper) -> None:
        super().__init__()
        self._wrapper = wrapper

    def on_train_begin(self, logs: Any = None) -> None:
        session = FitSession.join(self, first=self)
        if session is not None:
            session.wrap(Place.LIMIT, self._wrapper)


class _Clock(keras.callbacks.Callback):
    needs_every_batch = False

    def __init__(self, steps: int, seconds: float, num_batches: int | None, spent: Mapping[str, float]) -> None:
        super().__init__()
        self._warm_up = 1 + int(_WARM_UP_SHARE * steps)
        self._most = self._warm_up + steps
        self._seconds = seconds
        self._num_batches = num_batches
        self._spent = spent
        self._done = self._done_in_epoch = self._timed = 0
        self._started_at = self._first_end = self._last_end = 0.0
        self._spent_before: dict[str, float] | None = None
        self._spent_after: dict[str, float] = {}

    def let_through(self, run: Run, iterator: Any) -> Any:
        """The wrapper: runs an execution, or ends the fit."""
        model: Any = self.model
        if self._started_at == 0.0:
            self._started_at = time.perf_counter()
        late = time.perf_counter() - self._started_at > self._seconds
        if self._done >= self._most or (late and self._timed >= _LEAST_TIMED):
            # Ends the epoch as data that ends does, so that Keras lets go of workers and iterators.
            model.stop_training = True
            raise StopIteration
        return run(iterator)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._done_in_epoch = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._done_in_epoch == 0:
            # A generator is used up, and every further epoch would be as empty.
            model: Any = self.model
            model.stop_training = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        model: Any = self.model
        steps = model.steps_per_execution
        if self._num_batches is not None:
            steps = max(1, min(steps, self._num_batches - self._done_in_epoch))
        self._done += steps
        self._done_in_epoch += steps
        if self._spent_before is None:
            # A run that is late counts what it has.
            if self._done >= self._warm_up or now - self._started_at > self._seconds / 2:
                self._first_end, self._spent_before = now, dict(self._spent)
            return
        self._timed += steps
        self._last_end, self._spent_after = now, dict(self._spent)

    def times(self) -> RunTimes:
        if self._spent_before is None or self._timed == 0:
            raise RuntimeError(
                f"The data ended after {self._done} steps, too few to time one. Give audit() at least 3 batches."
            )
        callbacks = {
            name: (self._spent_after[name] - before) / self._timed * 1e3 for name, before in self._spent_before.items()
        }
        return RunTimes((self._last_end - self._first_end) / self._timed * 1e3, callbacks, self._timed)


class Reset:
    """Puts the model and its data back after a run.

    Args:
        state: of the model.
        put_data_back: of the data.
    """

    def __init__(self, state: KeptState, put_data_back: Callable[[], None]) -> None:
        self._state = state
        self._put_data_back = put_data_back

    def __call__(self) -> None:
        self._state.restore()
        self._put_data_back()
