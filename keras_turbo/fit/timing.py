"""Where the time of a `fit` goes, from the moments at which it calls hooks and its train function."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_turbo.fit.input_wait import FitInputWaits, Waits
from keras_turbo.fit.train_function import Run

# Names of classes that save. By name, since not every version of Keras has each of them.
_SAVING = {"ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint", "AsyncCheckpoint"}
# What Keras adds itself, once for each execution: part of what returning to Python costs.
_KERAS_OWN = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
# The 95th percentile of so many durations drawn from all is off by less than half a percentile, as a rule.
_MOST_DURATIONS = 4096


class Durations:
    """Median and tail of any number of durations, in bounded memory: of many, a random selection is kept."""

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._seen = 0
        # Of its own: nobody's random numbers change.
        self._random = random.Random(0)

    def add(self, seconds: float) -> None:
        """Takes one more."""
        self._seen += 1
        if self._seen <= _MOST_DURATIONS:
            self._kept.append(seconds)
        elif (place := int(self._random.random() * self._seen)) < _MOST_DURATIONS:
            self._kept[place] = seconds

    def percentile(self, percent: float) -> float | None:
        """The duration that so many per cent do not exceed; None where there is none."""
        return float(np.percentile(self._kept, percent)) if self._kept else None


@dataclasses.dataclass
class EpochTimes:
    """Sums over the executions of an epoch, in seconds.

    An execution lasts from the first callback's on_train_batch_begin to that of the next one, or to the end of the last
    callback's on_train_batch_end in the epoch. All else is left out: validation, making iterators, the model's own
    bookkeeping.

    Args:
        executions: how many there were.
        execution_seconds: they lasted, in all.
        function_seconds: of that, in the train function.
        begin_seconds: from the callbacks' on_epoch_begin to the first execution, where `fit` takes the first batches in
            Python; 0 on TensorFlow.
        fetch_seconds: between executions, where `fit` takes batches in Python; 0 on TensorFlow.
        batch_hooks: seconds in batch hooks, by the class of the callback.
        epoch_hooks: seconds in epoch hooks, by the class of the callback.
        durations: seconds of executions.
        waits: for batches, inside the train function; None where they were not measured there.
        logs: what the train function gave last.
    """

    executions: int = 0
    execution_seconds: float = 0.0
    function_seconds: float = 0.0
    begin_seconds: float = 0.0
    fetch_seconds: float = 0.0
    batch_hooks: dict[type, float] = dataclasses.field(default_factory=dict)
    epoch_hooks: dict[type, float] = dataclasses.field(default_factory=dict)
    durations: Durations = dataclasses.field(default_factory=Durations)
    waits: Waits | None = None
    logs: Any = None

    def seconds_by_name(self, *, saving: bool, epoch_hooks_only: bool = False) -> dict[str, float]:
        """Seconds in hooks by the class of the callback: of those that save, or of those that don't."""
        seconds: dict[str, float] = {}
        for hooks in (self.epoch_hooks,) if epoch_hooks_only else (self.batch_hooks, self.epoch_hooks):
            for kind, value in hooks.items():
                if any(base.__name__ in _SAVING for base in kind.__mro__) is saving:
                    seconds[kind.__name__] = seconds.get(kind.__name__, 0.0) + value
        return seconds

    @property
    def total_seconds(self) -> float:
        """What the training of the epoch took: its executions, its beginning, and the callbacks' hooks around it."""
        return self.execution_seconds + self.begin_seconds + sum(self.epoch_hooks.values())

    @property
    def input_wait_seconds(self) -> float | None:
        """What `fit` waited for its iterator and its batches; None where not all of it was measured."""
        if self.waits is None:
            return None
        # In a graph there is the time of day alone, which may be set anew, also to an earlier one.
        return min(max(0.0, self.waits.seconds) + self.begin_seconds + self.fetch_seconds, self.total_seconds)

    def steps(self, steps_per_execution: int) -> int:
        """How many batches the executions had, counted where batches are; else as many as they could hold."""
        return int(self.waits.batches if self.waits else 0) or self.executions * steps_per_execution


class FitTimes:
    """Collects `EpochTimes`. All methods are called on the thread of `fit`, and cost a microsecond or less.

    The first execution of a fit, which traces and compiles the train function, is left out, unless there is no other in
    its epoch.

    Attributes:
        waits: for batches.
        last_epoch: the times of the epoch that is over, with all of its callbacks' hooks; None where nothing was
            executed in it. It is known from the next `on_epoch_begin`, or `on_train_end`, on.
    """

    def __init__(self, fetches_in_python: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self.waits = FitInputWaits()
        self.last_epoch: EpochTimes | None = None
        self._fetches_in_python = fetches_in_python
        self._clock = clock
        self._first: EpochTimes | None = None
        self._is_first = True
        self._begun: float | None = None
        self._called = self._returned = self._own_seconds = 0.0
        self._loop_ended = clock()
        self._hook = ""
        self._is_validating = self._at_epoch_begin = False
        self._reset()

    def _reset(self) -> None:
        self._now = EpochTimes()
        self._waits_before = self.waits.read()

    # What the session tells.

    def hook_begins(self, hook: str) -> None:
        """To be told that `fit` is about to call a hook of all callbacks."""
        self._hook = hook
        if hook == "on_train_batch_begin":
            self._step_begins()
        elif hook in ("on_test_begin", "on_epoch_end"):
            self._steps_end()
            self._is_validating = hook == "on_test_begin"
        elif hook in ("on_epoch_begin", "on_train_end"):
            self.last_epoch = self.so_far()
            self._first = None
            self._reset()
            self._begun, self._at_epoch_begin = None, True

    def callback_took(self, callback: keras.callbacks.Callback, seconds: float) -> None:
        """To be told how long a callback took in the hook that was told last."""
        if not self._is_validating and not isinstance(callback, _KERAS_OWN):
            hooks = self._now.batch_hooks if "_batch_" in self._hook else self._now.epoch_hooks
            kind = type(callback)
            hooks[kind] = hooks.get(kind, 0.0) + seconds

    def hook_ends(self) -> None:
        """To be told that the hook of the last callback has returned."""
        if self._hook == "on_test_end":
            self._is_validating = False
        elif not self._is_validating:
            self._loop_ended = self._clock()

    def run(self, own_train_function: Any, run: Run, data: Any) -> Any:
        """An execution of the train function, timed."""
        begin = self._clock()
        if self.waits.prepare(own_train_function, data):
            # What measuring itself takes is left out.
            self._own_seconds += self._clock() - begin
        executions = self._now.executions
        mean = self._now.execution_seconds / executions if executions else 0.0
        chosen = self.waits.chosen(data, mean, executions)
        self._called = self._clock()
        try:
            logs = run(chosen)
        except BaseException:
            # No batch was left, or `fit` is over.
            self._called = 0.0
            raise
        self._returned = self._clock()
        self._now.logs = logs
        return logs

    def so_far(self) -> EpochTimes | None:
        """The times of the epoch up to now; None where nothing was executed."""
        if not self._now.executions:
            return self._first
        self._now.waits = self._waits_so_far()
        return self._now

    def _waits_so_far(self) -> Waits | None:
        waits = self.waits.read()
        return None if waits is None or self._waits_before is None else waits.plus(self._waits_before, -1.0)

    def _step_begins(self) -> None:
        now = self._clock()
        if self._begun is not None:
            if self._fetches_in_python:
                # Since the function's return or the callbacks' end, whichever was later.
                self._now.fetch_seconds += now - max(self._returned, self._loop_ended, self._begun)
            self._end_execution(now)
        elif self._at_epoch_begin and self._fetches_in_python:
            self._now.begin_seconds += max(0.0, now - self._loop_ended)
        self._at_epoch_begin = False
        self._begun, self._called, self._returned, self._own_seconds = now, 0.0, 0.0, 0.0

    def _steps_end(self) -> None:
        if self._begun is not None:
            self._end_execution(max(self._returned, self._loop_ended, self._begun))
            self._begun = None
        self._at_epoch_begin = False
        self.waits.forget_iterator()

    def _end_execution(self, now: float) -> None:
        if not self._called:
            # Another callback has answered it, or there was no batch.
            return
        seconds = now - (self._begun or now) - self._own_seconds
        self._now.executions += 1
        self._now.execution_seconds += seconds
        self._now.function_seconds += self._returned - self._called
        self._now.durations.add(seconds)
        if self._is_first:
            self._is_first = False
            self._first = self.so_far()
            self._reset()
