"""Candidates run in turns on the same batches, from the same weights."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_turbo.execution.installation import Installation, remove_setting
from keras_turbo.execution.memory import PeakMemory
from keras_turbo.execution.sample import Sample
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.fit.training_state import KeptState

# After a first turn, what is so much slower than the best gets no more turns.
_HOPELESS = 1.5
ROUNDS = 5
_LONGEST_TURN_SECONDS = 1.0
_LONGEST_REASON = 300


@dataclasses.dataclass
class Candidate:
    """A setting and what was measured of it.

    Attributes:
        setting: how steps run.
        turns_ms: milliseconds a step, one figure a turn, as `fit` takes them, callbacks included.
        compile_seconds: what its first execution took beyond the steps in it: tracing and compiling.
        memory_mb: see `PeakMemory`; None where unknown.
        failed: why it can't run; None if it can.
    """

    setting: ExecutionSetting
    turns_ms: list[float] = dataclasses.field(default_factory=list)
    compile_seconds: float = 0.0
    memory_mb: float | None = None
    failed: str | None = None

    @property
    def step_ms(self) -> float:
        """The median of the turns; infinite where there were none."""
        return statistics.median(self.turns_ms) if self.turns_ms else math.inf


class Race:
    """Measures settings of one model on one sample.

    Args:
        model: a built, compiled model, as `compile` set it up.
        sample: the batches.
        state: what is put back after each run.
    """

    def __init__(self, model: keras.Model, sample: Sample, state: KeptState) -> None:
        self._model = model
        self._sample = sample
        self._state = state
        self._installations: dict[ExecutionSetting, Installation] = {}
        self._keras_functions: dict[str, Any] = {}

    def enter(self, setting: ExecutionSetting) -> Candidate:
        """Compiles a setting and measures it for a moment.

        Raises:
            Exception: what `fit` raises with Keras' own loop. Where another setting fails, the candidate says why.
        """
        candidate = Candidate(setting)
        memory = PeakMemory()
        start = time.perf_counter()
        try:
            with contextlib.nullcontext() if setting.loop == "keras" else _native_messages_dropped():
                ms, first_seconds, steps = self._run(candidate, executions=3)
        except Exception as error:  # whatever a user's model and TensorFlow raise is a reason not to take the setting
            if setting.loop == "keras":
                raise
            candidate.failed = short_reason(error)
            candidate.compile_seconds = time.perf_counter() - start
            return candidate
        candidate.compile_seconds = max(0.0, first_seconds - ms * steps / 1e3)
        candidate.memory_mb = memory.peak_mb()
        candidate.turns_ms.append(ms)
        return candidate

    def run(self, candidates: list[Candidate], deadline: float, advance: Callable[[int], None]) -> None:
        """Gives those that can win turns of equal time until the deadline (of `time.perf_counter`).

        Args:
            candidates: those that can run, Keras' own first.
            deadline: when to end.
            advance: called with 1 for each of `ROUNDS` rounds.
        """
        for round_number in range(ROUNDS):
            advance(1)
            best = min(candidate.step_ms for candidate in candidates)
            racing = [
                candidate
                for candidate in candidates
                if candidate.step_ms <= _HOPELESS * best or (candidate is candidates[0] and round_number < 3)
            ]
            turn_seconds = (deadline - time.perf_counter()) / ((ROUNDS - round_number) * len(racing))
            for candidate in racing:
                seconds = min(turn_seconds, _LONGEST_TURN_SECONDS)
                execution_seconds = candidate.step_ms * candidate.setting.steps_per_execution / 1e3
                if time.perf_counter() + 3 * execution_seconds > deadline:
                    return
                executions = max(3, int(seconds / max(execution_seconds, 1e-6)))
                candidate.turns_ms.append(self._run(candidate, executions)[0])

    def _run(self, candidate: Candidate, executions: int) -> tuple[float, float, int]:
        """Milliseconds a step, seconds to the end of the first execution, steps in it."""
        model, setting = self._model, candidate.setting
        self._put_in(setting)
        steps = model.steps_per_execution
        clock = StepClock()
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                # What fit warns of is for the user's own fit to say.
                warnings.simplefilter("ignore")
                fit: Any = model.fit  # whose `verbose` is declared as a text, by its default
                fit(self._sample.dataset(steps * executions), epochs=1, verbose=0, shuffle=False, callbacks=[clock])
        finally:
            self._take_out(setting)
            self._state.restore()
        return clock.step_ms(steps), clock.ends[0] - start, steps

    def _put_in(self, setting: ExecutionSetting) -> None:
        if setting.loop == "keras":
            for name, function in self._keras_functions.items():
                setattr(self._model, name, function)
            return
        if setting not in self._installations:
            self._installations[setting] = Installation(self._model, setting)
        self._installations[setting].install()

    def _take_out(self, setting: ExecutionSetting) -> None:
        if setting.loop == "keras":
            self._keras_functions["train_function"] = self._model.train_function
        remove_setting(self._model)

    def keep(self, setting: ExecutionSetting) -> None:
        """Leaves the model with a setting, and with what is compiled for it."""
        self._put_in(setting)


@contextlib.contextmanager
def _native_messages_dropped() -> Iterator[None]:
    """Drops what native code writes to stderr: XLA logs a page of what it can't compile, which the report tells."""
    sys.stderr.flush()
    with open(os.devnull, "w") as nowhere:
        kept = os.dup(2)
        try:
            os.dup2(nowhere.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class StepClock(keras.callbacks.Callback):
    """The time at the end of each execution.

    Attributes:
        ends: seconds of `time.perf_counter`.
    """

    needs_every_batch = False

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())

    def step_ms(self, steps_per_execution: int) -> float:
        """Milliseconds a step, without the first execution, which compiles."""
        return (self.ends[-1] - self.ends[0]) / ((len(self.ends) - 1) * steps_per_execution) * 1e3


def short_reason(error: Exception) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TensorFlow puts where in a graph it happened before what happened.
    told = [
        line for line in lines if not line.startswith(("Graph execution error", "Detected at node", "File ", "at "))
    ]
    text = (told or lines or [""])[0]
    return f"{type(error).__name__}: {text}"[:_LONGEST_REASON]
