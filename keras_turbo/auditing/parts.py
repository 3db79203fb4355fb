"""Where the time of a step goes, told apart by running the step without one part after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keras_turbo.monitor.verdict import StepFigures


@dataclasses.dataclass(frozen=True)
class StepParts:
    """Milliseconds a step, of the best of several turns each.

    Attributes:
        step_ms: in `fit` on the data, with the user's callbacks, without those that save.
        input_alone_ms: what the data takes for a batch where nothing else runs; None where it was not measured.
        ready_ms: a step on batches that are ready, without the user's callbacks.
        graph_ms: the same where many steps run in one graph; None where the model's steps can't.
        callbacks_ms: in the hooks of the user's callbacks, by class name.
        checkpoints_ms: what saving adds to it, by the class name of the callback that does.
    """

    step_ms: float
    input_alone_ms: float | None
    ready_ms: float
    graph_ms: float | None
    callbacks_ms: Mapping[str, float]
    checkpoints_ms: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def whole_ms(self) -> float:
        """A step with what saving adds to it."""
        return self.step_ms + sum(self.checkpoints_ms.values())

    @property
    def input_wait_ms(self) -> float:
        """What `fit` waits for its next batch: how much longer a step takes than on batches that are ready."""
        return max(0.0, self.step_ms - sum(self.callbacks_ms.values()) - self.ready_ms)

    @property
    def dispatch_ms(self) -> float | None:
        """What it costs to come back to Python for each step; None where it was not measured."""
        if self.graph_ms is None:
            return None
        return max(0.0, self._in_loop_ms - self.graph_ms)

    @property
    def compute_ms(self) -> float:
        """The rest: the model's own work."""
        return max(0.0, self._in_loop_ms - (self.dispatch_ms or 0.0))

    @property
    def _in_loop_ms(self) -> float:
        # The parts are parts of one step: two runs differ by more than nothing.
        return min(self.ready_ms, max(0.0, self.step_ms - sum(self.callbacks_ms.values())))

    def timeline(self) -> dict[str, float]:
        """The parts of one step in their order, in milliseconds; together they are the step."""
        parts = {"input wait": self.input_wait_ms}
        if self.dispatch_ms is not None:
            parts["dispatch"] = self.dispatch_ms
        parts["compute" if self.dispatch_ms is not None else "dispatch and compute"] = self.compute_ms
        parts["callbacks"] = sum(self.callbacks_ms.values())
        if self.checkpoints_ms:
            parts["checkpoints"] = sum(self.checkpoints_ms.values())
        return parts

    def figures(self, *, steps_per_execution: int, reads_fast_dataset: bool, **of_devices: object) -> StepFigures:
        """What the verdict is told from."""
        return StepFigures(
            step_ms=self.whole_ms,
            input_wait_ms=self.input_wait_ms,
            dispatch_ms=self.dispatch_ms,
            callbacks_ms=dict(self.callbacks_ms),
            checkpoint_ms=sum(self.checkpoints_ms.values()),
            checkpoint_names=tuple(self.checkpoints_ms),
            steps_per_execution=steps_per_execution,
            reads_fast_dataset=reads_fast_dataset,
            **of_devices,  # pyright: ignore[reportArgumentType] (each by its name)
        )
