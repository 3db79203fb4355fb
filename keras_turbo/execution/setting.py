"""A way to run the steps of a model, as a value."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Loop = Literal["keras", "graph", "xla"]


@dataclasses.dataclass(frozen=True)
class ExecutionSetting:
    """How `fit`, `evaluate` and `predict` run a model's steps.

    Args:
        loop: what runs the steps of one execution. "keras" (default): Keras' own function, as `compile` set it up.
            "graph": a loop in a TensorFlow graph, which takes its batches one by one. "xla": one XLA program that runs
            over a stack of batches.
        steps_per_execution: steps in one call from Python, from 1; default 1. Callbacks are called once for each
            execution.
        jit_compile: whether XLA compiles each step of a graph loop. Always True with "xla".

    Raises:
        ValueError: another value; steps or `jit_compile` with "keras", where `compile` sets them.
    """

    loop: Loop = "keras"
    steps_per_execution: int = 1
    jit_compile: bool = False

    def __post_init__(self) -> None:
        if self.loop not in ("keras", "graph", "xla"):
            raise ValueError(f"`loop` must be 'keras', 'graph' or 'xla'. Received: {self.loop!r}.")
        steps = self.steps_per_execution
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"`steps_per_execution` must be an integer from 1. Received: {steps!r}.")
        if self.loop == "keras" and (steps != 1 or self.jit_compile):
            raise ValueError(
                "loop='keras' runs steps as compile() set them up. Give steps_per_execution and jit_compile to "
                f"compile(), or take loop='graph'. Received: {self}."
            )
        if self.loop == "xla":
            object.__setattr__(self, "jit_compile", True)

    @property
    def name(self) -> str:
        """A short name for tables."""
        if self.loop == "keras":
            return "Keras' own"
        steps = "1 step" if self.steps_per_execution == 1 else f"{self.steps_per_execution} steps"
        if self.loop == "xla":
            return f"{steps} in one XLA program"
        return f"{steps} in a graph loop{', each XLA' if self.jit_compile else ''}"

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return dataclasses.asdict(self)
