"""What every remedy is measured with: the user's own model and data, in turns with the training as it is."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_turbo.auditing.callback_times import UserCallbacks
from keras_turbo.auditing.fit_input import FitInput
from keras_turbo.auditing.fit_runs import FitRuns, RunTimes
from keras_turbo.auditing.parts import StepParts
from keras_turbo.auditing.remedies.remedy import LEAST_GAIN, Remedy, not_measured
from keras_turbo.auditing.utilization import BASELINE, Recorder
from keras_turbo.execution.installation import remove_setting
from keras_turbo.execution.race import Candidate, Race
from keras_turbo.execution.sample import Sample
from keras_turbo.execution.setting import ExecutionSetting

# A turn of fewer steps than asked for still has this many.
LEAST_STEPS = 4
# Short steps are timed for so long, however few were asked for: 50 steps of 0.5 ms say nothing.
LEAST_TURN_SECONDS = 0.3
# A turn may take this share of the budget, so that all remedies have theirs.
_TURN_SHARE = 0.04
# What is so much slower is not run a second time.
_HOPELESS = 1.5


@dataclasses.dataclass
class Bench:
    """The subject of an audit.

    Attributes:
        model: the user's, built and compiled.
        data: what `fit` is given.
        callbacks: the user's.
        runs: runs `fit`.
        sample: batches of the data in memory.
        steps: of one turn.
        deadline: of `time.perf_counter`, after which nothing more is measured.
        budget_seconds: in all.
        recorder: of the devices' use.
        baseline_ms: each turn of the training as it is.
        parts: once they are known.
        race: ways to run the steps, with what is compiled for them.
        current: the way that the model runs its steps now.
        candidates: what came of them; Keras' own first.
        left_out: kinds of ways that could not be tried, and why.
        input_turn: options of `turn` with the input remedy that gained most.
        best_input_ms: milliseconds a step with it.
        setting: the way to run the steps that gained most.
        best_ready_ms: milliseconds a step with it, on batches that are ready.
    """

    model: keras.Model
    data: FitInput
    callbacks: UserCallbacks
    runs: FitRuns
    sample: Sample
    steps: int
    deadline: float
    budget_seconds: float
    race: Race
    current: ExecutionSetting
    recorder: Recorder
    baseline_ms: list[float] = dataclasses.field(default_factory=list)
    parts: StepParts | None = None
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    input_turn: Mapping[str, Any] | None = None
    best_input_ms: float = math.inf
    setting: ExecutionSetting | None = None
    best_ready_ms: float = math.inf

    @property
    def turn_seconds(self) -> float:
        """How long a turn may take."""
        return max(LEAST_TURN_SECONDS, _TURN_SHARE * self.budget_seconds)

    def steps_of(self, step_ms: float) -> int:
        """How many steps of such a length a turn has."""
        wanted = max(self.steps, int(LEAST_TURN_SECONDS * 1e3 / max(step_ms, 1e-3)))
        return max(LEAST_STEPS, min(wanted, int(self.turn_seconds * 1e3 / max(step_ms, 1e-3))))

    def turn(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        setting: ExecutionSetting | None = None,
        model: keras.Model | None = None,
        **options: Any,
    ) -> RunTimes:
        """One run of `fit`.

        Args:
            arguments: what `fit` is given; the data as it is by default.
            setting: how steps run; as they do now by default.
            model: another one, which runs as it was compiled.
            **options: of `FitRuns.run`.
        """
        expected_ms = self.baseline_ms[-1] if self.baseline_ms else self.turn_seconds * 1e3 / self.steps
        options = {"steps": self.steps_of(expected_ms), "num_batches": self.data.num_batches, **options}
        arguments = self.data.arguments() if arguments is None else arguments
        if model is not None and model is not self.model:
            return self.runs.run(model, arguments, seconds=self.turn_seconds, **options)
        chosen = self.current if setting is None else setting
        # With what was traced and compiled for it in the race.
        self.race.keep(chosen)
        # At least two executions, of which the first is not timed.
        options["steps"] += chosen.steps_per_execution - 1
        try:
            return self.runs.run(self.model, arguments, seconds=self.turn_seconds, **options)
        finally:
            remove_setting(self.model)

    def ready_turn(self) -> RunTimes:
        """One run on batches that are ready, without the user's callbacks."""
        steps = self.steps_of(self.candidates[0].step_ms) + self.current.steps_per_execution
        arguments = {"x": self.sample.dataset(2 * steps)}
        return self.turn(arguments, steps=steps, num_batches=None, with_callbacks=False)

    def baseline_turn(self) -> RunTimes:
        """One run of the training as it is."""
        with self.recorder.phase(BASELINE):
            times = self.turn()
        self.baseline_ms.append(times.step_ms)
        return times

    def why_no_time(self) -> str | None:
        """Why nothing more is measured; None as long as there is time."""
        if time.perf_counter() < self.deadline:
            return None
        return f"the budget of {self.budget_seconds:g} s was spent; budget_seconds gives more"

    def compare(
        self,
        name: str,
        run: Callable[[], RunTimes],
        *,
        measured: str,
        code: str,
        changes: str = "",
        reason: str = "",
        per_step: float = 1.0,
        before: Callable[[], RunTimes] | None = None,
    ) -> Remedy:
        """Measures a remedy in turns with the training as it is.

        Args:
            name: of the remedy.
            run: one turn with it.
            measured: what that is.
            code: the lines to add.
            changes: what it changes.
            reason: what else is to be known.
            per_step: steps of now that one step with it is worth.
            before: one turn without it; by default the training as it is.
        """
        reason_no_time = self.why_no_time()
        if reason_no_time is not None:
            return not_measured(name, reason_no_time, code)
        befores = [self.baseline_ms[-1] if before is None else before().step_ms]
        afters = [run().step_ms / per_step]
        # What seems to gain has to do so three times.
        rounds = 0 if afters[0] > befores[0] * _HOPELESS else 1 if afters[0] > befores[0] else 2
        for _ in range(rounds):
            befores.append((before or self.baseline_turn)().step_ms)
            afters.append(run().step_ms / per_step)
        before_ms, after_ms = statistics.median(befores), statistics.median(afters)
        # Its slower turn must be faster than the best that the training as it is has managed.
        gained = max(afters) < min(befores) * (1 - LEAST_GAIN)
        return Remedy(name, "gain" if gained else "no gain", before_ms, after_ms, measured, changes, code, reason)
