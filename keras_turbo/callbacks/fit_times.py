"""Where the time of a `fit` goes, from the moments at which it begins a step and calls its train function."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from keras_turbo.callbacks.callback_times import CallbackTimes
from keras_turbo.callbacks.step_times import Reservoir
from keras_turbo.data.input_wait import Waits


@dataclasses.dataclass(frozen=True)
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
        callback_seconds: in batch and epoch hooks, by the class of the callback, of those that do not save.
        epoch_hook_seconds: of that, in epoch hooks.
        saving_seconds: of those that save.
        batch_hook_seconds: of those that do not save and those that do, what is within `execution_seconds`.
        median_seconds: of an execution.
        p95_seconds: what 95 % of the executions do not exceed.
        waits: for batches, inside the train function; None where they were not measured there.
    """

    executions: int
    execution_seconds: float
    function_seconds: float
    begin_seconds: float
    fetch_seconds: float
    callback_seconds: dict[str, float]
    epoch_hook_seconds: dict[str, float]
    saving_seconds: dict[str, float]
    batch_hook_seconds: float
    median_seconds: float | None
    p95_seconds: float | None
    waits: Waits | None


class FitTimes:
    """Collects `EpochTimes`. All methods are called on the thread of `fit`, and cost a microsecond or less.

    The first execution of a fit, which traces and compiles the train function, is left out, unless there is no other in
    its epoch.

    Args:
        callbacks: times of the other callbacks.
        read_waits: gives the waits for batches so far.
        calls_are_seen: gives whether `calls` and `returned` are called for each execution that is one. Executions in
            which they are not called do not count: another callback has skipped them.
        fetches_in_python: whether `fit` takes the batches itself, between executions, and not its train function.
        clock: gives seconds.
    """

    def __init__(
        self,
        callbacks: CallbackTimes,
        read_waits: Callable[[], Waits | None],
        calls_are_seen: Callable[[], bool],
        fetches_in_python: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._callbacks = callbacks
        self._read_waits = read_waits
        self._calls_are_seen = calls_are_seen
        self._fetches_in_python = fetches_in_python
        self._clock = clock
        self._first: EpochTimes | None = None
        self._is_first = True
        self._begun: float | None = None
        self._called = self._returned = 0.0
        self._own_seconds = 0.0
        self._at_epoch_begin = False
        self._reset()

    def _reset(self) -> None:
        self._executions = 0
        self._execution_seconds = self._function_seconds = self._begin_seconds = self._fetch_seconds = 0.0
        self._durations = Reservoir()
        self._waits_before = self._read_waits()
        self._callbacks.reset()

    def epoch_begins(self) -> None:
        """To be called in on_epoch_begin."""
        self._begun = None
        self._at_epoch_begin = True

    def step_begins(self) -> None:
        """To be called in on_train_batch_begin, before other callbacks are."""
        now = self._clock()
        if self._begun is not None:
            if self._fetches_in_python:
                # Since the function's return or the callbacks' end, whichever was later.
                self._fetch_seconds += now - max(self._returned, self._callbacks.last_loop_ended, self._begun)
            self._end_execution(now)
        elif self._at_epoch_begin and self._fetches_in_python:
            self._begin_seconds += max(0.0, now - self._callbacks.last_loop_ended)
        self._at_epoch_begin = False
        self._begun, self._called, self._returned, self._own_seconds = now, 0.0, 0.0, 0.0

    @property
    def awaits_call(self) -> bool:
        """Whether the train function is still to be called in this execution: it is by `fit`, and else by others."""
        return self._begun is not None and not self._returned

    @property
    def executions(self) -> int:
        """How many executions of the epoch are over."""
        return self._executions

    @property
    def mean_seconds(self) -> float:
        """How long they took, on average; 0 where there are none."""
        return self._execution_seconds / self._executions if self._executions else 0.0

    def own(self, seconds: float) -> None:
        """To be told what measuring itself took in this execution, so that it is left out."""
        self._own_seconds += seconds

    def calls(self) -> None:
        """To be called right before the train function."""
        self._called = self._clock()

    def returned(self) -> None:
        """To be called right after it."""
        self._returned = self._clock()

    def found_nothing(self) -> None:
        """To be called in place of `returned` where no batch was left."""
        self._called = 0.0

    def steps_end(self) -> None:
        """To be called in the first hook after the epoch's last execution. May be called again."""
        if self._begun is not None:
            self._end_execution(max(self._returned, self._callbacks.last_loop_ended, self._begun))
            self._begun = None
        self._at_epoch_begin = False

    def so_far(self) -> EpochTimes | None:
        """The times since the last `take`; None where nothing was executed."""
        return self._sums() if self._executions else self._first

    def take(self) -> EpochTimes | None:
        """As `so_far`, and begins anew."""
        times = self.so_far()
        self._first = None
        self._reset()
        return times

    def _end_execution(self, now: float) -> None:
        if self._calls_are_seen() and not self._called:
            return
        seconds = now - self._begun - self._own_seconds  # pyright: ignore[reportOptionalOperand] (it has begun)
        self._executions += 1
        self._execution_seconds += seconds
        self._function_seconds += self._returned - self._called
        self._durations.add(seconds)
        if self._is_first:
            self._is_first = False
            self._first = self._sums()
            self._reset()

    def _sums(self) -> EpochTimes:
        callback_seconds, saving_seconds = self._callbacks.seconds_by_name()
        waits = self._read_waits()
        return EpochTimes(
            executions=self._executions,
            execution_seconds=self._execution_seconds,
            function_seconds=self._function_seconds,
            begin_seconds=self._begin_seconds,
            fetch_seconds=self._fetch_seconds,
            callback_seconds=callback_seconds,
            epoch_hook_seconds=self._callbacks.epoch_hook_seconds_by_name(),
            saving_seconds=saving_seconds,
            batch_hook_seconds=self._callbacks.batch_hook_seconds,
            median_seconds=self._durations.percentile(50),
            p95_seconds=self._durations.percentile(95),
            waits=None if waits is None or self._waits_before is None else waits - self._waits_before,
        )
