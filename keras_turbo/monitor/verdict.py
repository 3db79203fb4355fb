"""What holds a training up, told from the figures of its steps. Needs no deep learning library."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

Kind = Literal[
    "input-bound",
    "dispatch-bound",
    "callback-bound",
    "checkpoint-stalls",
    "waiting-for-workers",
    "throttled",
    "gpu-lagging",
    "compute-bound",
    "balanced",
    "unexplained",
]

# A mean GPU utilization below this share of the time is what the field takes for a warning sign.
WARN_BELOW_PERCENT = 70.0
# A cause that takes less than a fifth of the time is not called the cause: with it gone, a step would be at most 1.25
# times as fast, which is what two runs of the same training may differ by on a shared machine.
MAIN_CAUSE_PERCENT = 20.0
# GPUs that share a step wait for the slowest one in each, so that their utilizations are alike. Single readings differ
# by some points; a quarter of the time does not come from that.
LAGGING_POINTS = 25.0
# A GPU may run into a limit for a moment in each of its bursts. In a fifth of all readings it is a state.
THROTTLED_PERCENT = 20.0


@dataclasses.dataclass(frozen=True)
class StepFigures:
    """Where the time of a training step goes, as means over an epoch.

    A step is one batch. All times are milliseconds a step of the thread that runs `fit`, whatever the number of steps
    in an execution; validation is left out. A figure that was not measured is None, never 0.

    Args:
        step_ms: from one step to the next, all told: the sum of those below and of the computation.
        step_ms_median: median of it.
        step_ms_p95: what 95 % of the steps do not exceed.
        input_wait_ms: waiting for the next batch.
        callbacks_ms: in the hooks of callbacks that do not save, by the names of their classes.
        epoch_hooks_ms: of that, in the hooks around an epoch.
        checkpoint_ms: in the hooks of callbacks that save.
        checkpoint_names: names of their classes.
        workers_wait_ms: waiting for other workers to end an epoch, under `distribute()`.
        dispatch_ms: what an execution costs before and after it computes: Python, the call of the train function, the
            logs. None where it could not be told from the computation; with a GPU's utilization it is then what is left
            of the time in which the GPU did nothing.
        steps_per_execution: steps that run between two returns to Python.
        utilization_percent: mean over the GPUs in use and over time.
        gpu_utilization_percents: mean over time of each GPU.
        throttled_percent: share of the readings in which heat or power held a GPU's clock down.
        throttle_reasons: names of what did.
        cpu_share_percent: the process's use of the CPU cores that it may use.
        reads_fast_dataset: whether the batches come from a FastDataset; None where that is not known.
        why_no_input_wait: why `input_wait_ms` is None, as a clause.
        backend: of Keras; `keras_turbo.tune` sets models on TensorFlow alone.

    Raises:
        ValueError: a time that is negative or no number; a step without a time.
    """

    step_ms: float
    step_ms_median: float | None = None
    step_ms_p95: float | None = None
    input_wait_ms: float | None = None
    callbacks_ms: Mapping[str, float] = dataclasses.field(default_factory=dict)
    epoch_hooks_ms: Mapping[str, float] = dataclasses.field(default_factory=dict)
    checkpoint_ms: float = 0.0
    checkpoint_names: tuple[str, ...] = ()
    workers_wait_ms: float = 0.0
    dispatch_ms: float | None = None
    steps_per_execution: int = 1
    utilization_percent: float | None = None
    gpu_utilization_percents: tuple[float, ...] = ()
    throttled_percent: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    cpu_share_percent: float | None = None
    reads_fast_dataset: bool | None = None
    why_no_input_wait: str | None = None
    backend: str = "tensorflow"

    def __post_init__(self) -> None:
        times = {
            "step_ms": self.step_ms,
            "input_wait_ms": self.input_wait_ms,
            "dispatch_ms": self.dispatch_ms,
            "checkpoint_ms": self.checkpoint_ms,
            "workers_wait_ms": self.workers_wait_ms,
            **{f"callbacks_ms[{name!r}]": value for name, value in self.callbacks_ms.items()},
        }
        for name, value in times.items():
            if value is not None and (not math.isfinite(value) or value < 0):
                raise ValueError(f"`{name}` must be a number of milliseconds from 0. Received: {value!r}.")
        if self.step_ms == 0:
            raise ValueError("`step_ms` must be above 0: a step takes some time. Received: 0.")

    @property
    def slowest_callback(self) -> str | None:
        """The name of the callback that takes most, among those that do not save."""
        return max(self.callbacks_ms, key=lambda name: self.callbacks_ms[name], default=None)

    def shares_percent(self) -> dict[str, float]:
        """The share of a step's time that each cause takes: "input", "dispatch", "callbacks", "checkpoints", "workers".

        A cause that is not known is not there. What is missing to 100 is computation, and what is not known.
        """
        callbacks_ms = sum(self.callbacks_ms.values())
        shares = {"callbacks": callbacks_ms, "checkpoints": self.checkpoint_ms}
        if self.workers_wait_ms:
            shares["workers"] = self.workers_wait_ms
        if self.input_wait_ms is not None:
            shares["input"] = self.input_wait_ms
        if self.dispatch_ms is not None:
            shares["dispatch"] = self.dispatch_ms
        elif self.utilization_percent is not None and self.input_wait_ms is not None:
            idle_ms = self.step_ms * (1 - self.utilization_percent / 100)
            others_ms = callbacks_ms + self.checkpoint_ms + self.workers_wait_ms
            shares["dispatch"] = max(0.0, idle_ms - self.input_wait_ms - others_ms)
        return {name: min(100.0, 100 * value / self.step_ms) for name, value in shares.items()}

    @property
    def busy_percent(self) -> float:
        """The mean utilization of the GPUs; without one, the share of a step's time in which the model computes."""
        if self.utilization_percent is not None:
            return self.utilization_percent
        return max(0.0, 100.0 - sum(self.shares_percent().values()))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What holds a training up most.

    Args:
        kind: the cause, as one word.
        share_percent: how much of a step's time it takes; for "throttled", of the readings; for "gpu-lagging", by how
            many points that GPU is behind.
        text: a sentence with the figures.
        remedy: what to do about it, with the lines of code; empty where none can be promised.
        is_warning: whether it is worth a warning: the hardware is used less than it should be.
    """

    kind: Kind
    share_percent: float
    text: str
    remedy: str
    is_warning: bool

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}{' ' if self.remedy else ''}{self.remedy}"


def judge(figures: StepFigures, warn_below: float = WARN_BELOW_PERCENT) -> Verdict:
    """Tells from the figures what holds a training up most.

    Example:

    ```python
    judge(StepFigures(step_ms=10, input_wait_ms=8, dispatch_ms=0.5)).kind  # "input-bound"
    ```

    Args:
        figures: of an epoch or of a measurement.
        warn_below: share of the time, in per cent, below which the use of the hardware is worth a warning. Default 70.

    Returns:
        The verdict. Hardware that is used enough, for this limit and for the usual one, is "compute-bound" whatever the
        largest of the other shares. A lower limit, or 0, leaves the cause as it is, and no warning.
    """
    special = _of_gpus(figures, warn_below)
    if special is not None:
        return special
    busy = figures.busy_percent
    if busy >= max(warn_below, WARN_BELOW_PERCENT):
        return _used_enough(figures, busy)
    return dataclasses.replace(_idle(figures, busy), is_warning=busy < warn_below)


def _idle(figures: StepFigures, busy: float) -> Verdict:
    """What hardware waits for that is not used enough."""
    shares = figures.shares_percent()
    cause = max(shares, key=lambda name: shares[name])
    if shares[cause] >= MAIN_CAUSE_PERCENT:
        return _VERDICTS[cause](figures, shares[cause])
    known = ", ".join(f"{name} {share:.0f} %" for name, share in sorted(shares.items(), key=lambda item: -item[1]))
    if "dispatch" not in shares or "input" not in shares:
        missing = figures.why_no_input_wait or "the input wait was not measured"
        used = "the model computes" if figures.utilization_percent is None else "the GPUs are busy"
        text = f"{used} only {busy:.0f} % of the time, and {known} do not explain it; {missing}."
        return Verdict("unexplained", 100 - busy, text, _AUDIT, is_warning=True)
    text = f"no single cause: {known} of a step's {figures.step_ms:.3g} ms."
    return Verdict("balanced", 100 - busy, text, _AUDIT, is_warning=True)


def _used_enough(figures: StepFigures, busy: float) -> Verdict:
    if figures.utilization_percent is not None:
        text = f"the GPUs are busy {busy:.0f} % of the time."
    elif figures.input_wait_ms is None:
        reason = figures.why_no_input_wait or "the input wait was not measured"
        text = f"callbacks leave {busy:.0f} % of a step's {figures.step_ms:.3g} ms; {reason}."
        return Verdict("unexplained", busy, text, "", is_warning=False)
    elif figures.dispatch_ms is None:
        text = (
            f"{busy:.0f} % of a step's {figures.step_ms:.3g} ms are neither input nor callbacks; how much of that is "
            "dispatch was not measured."
        )
    else:
        text = f"the model computes in {busy:.0f} % of a step's {figures.step_ms:.3g} ms, and hardly waits."
    return Verdict("compute-bound", busy, text, "", is_warning=False)


_AUDIT = "print(keras_turbo.audit(model, train)) measures what each remedy would gain."


def _of_gpus(figures: StepFigures, warn_below: float) -> Verdict | None:
    """What is wrong with the GPUs themselves, if something is."""
    utilizations = figures.gpu_utilization_percents
    if len(utilizations) > 1:
        slowest = min(range(len(utilizations)), key=lambda index: utilizations[index])
        others = [value for index, value in enumerate(utilizations) if index != slowest]
        behind = sum(others) / len(others) - utilizations[slowest]
        if utilizations[slowest] < max(warn_below, WARN_BELOW_PERCENT) and behind >= LAGGING_POINTS:
            text = (
                f"GPU {slowest} of those in use is busy {utilizations[slowest]:.0f} % of the time, the others "
                f"{sum(others) / len(others):.0f} %."
            )
            remedy = (
                "Train under keras_turbo.distribute(), so that each GPU gets an equal part of a batch, or hide the GPU "
                "that is not needed: CUDA_VISIBLE_DEVICES."
            )
            return Verdict("gpu-lagging", behind, text, remedy, is_warning=utilizations[slowest] < warn_below)
    throttled = figures.throttled_percent
    if throttled is not None and throttled >= THROTTLED_PERCENT and figures.throttle_reasons:
        reasons = " and ".join(figures.throttle_reasons)
        text = f"{reasons} held the clock of a GPU down in {throttled:.0f} % of the readings."
        remedy = (
            "Better cooling, or a higher power limit (`nvidia-smi -q -d PERFORMANCE,POWER` shows both); no line of "
            "code helps."
        )
        # A GPU that is busy at its power limit does what it can, as most do under load.
        return Verdict("throttled", throttled, text, remedy, is_warning=figures.busy_percent < warn_below)
    return None


def _input_bound(figures: StepFigures, share: float) -> Verdict:
    step_ms, wait_ms = figures.step_ms, figures.input_wait_ms
    text = f"fit waits {wait_ms:.3g} of a step's {step_ms:.3g} ms for its next batch ({share:.0f} %)."
    if figures.reads_fast_dataset:
        remedy = (
            'train.report() names the slowest stage; what is deterministic belongs into map_fn with cache="memory" or '
            '"disk", so that later epochs do not do it again.'
        )
    else:
        remedy = (
            "Give fit train = keras_turbo.FastDataset(x, y, batch_size=..., shuffle=True), or "
            "FastDataset.from_image_folder(...) for files: examples are made in parallel and kept once they are made."
        )
    return Verdict("input-bound", share, text, remedy, is_warning=True)


def _dispatch_bound(figures: StepFigures, share: float) -> Verdict:
    if figures.dispatch_ms is None:
        # Told from what is idle: Python between steps, or between the operations of one.
        text = (
            f"the GPUs are idle for {share:.0f} % of a step's {figures.step_ms:.3g} ms that neither input nor "
            "callbacks take: its operations, or the steps themselves, are too short for what starting each costs."
        )
    else:
        steps = f"{figures.steps_per_execution} {'step' if figures.steps_per_execution == 1 else 'steps'}"
        text = (
            f"steps of {figures.step_ms:.3g} ms are too short for Python between them: starting and ending executions "
            f"of {steps} takes {share:.0f} %."
        )
    return Verdict("dispatch-bound", share, text, _longer_executions(figures), is_warning=True)


def _longer_executions(figures: StepFigures) -> str:
    if figures.backend == "jax":
        return "model.compile(..., steps_per_execution=32) returns to Python after each 32nd step alone."
    if figures.backend != "tensorflow":
        return "Larger batches make fewer steps; on Keras' other backends several can be run in one execution."
    if figures.steps_per_execution > 1:
        return "keras_turbo.tune(model, train, find_batch_size=True) tells whether larger batches help."
    return "keras_turbo.TuneExecution() among the callbacks runs many steps in one execution where that is faster."


def _callback_bound(figures: StepFigures, share: float) -> Verdict:
    name = figures.slowest_callback or "callbacks"
    milliseconds = figures.callbacks_ms.get(name, 0.0)
    text = (
        f"callbacks take {share:.0f} % of a step's {figures.step_ms:.3g} ms, most of it {name}: "
        f"{milliseconds:.3g} ms a step."
    )
    if figures.epoch_hooks_ms.get(name, 0.0) > milliseconds / 2:
        remedy = f"Do less in {name}'s on_epoch_end, or do it in each tenth epoch alone: `if epoch % 10 == 0:`."
    else:
        remedy = f"Do less in {name}'s batch hooks, or do it in each 100th batch alone: `if batch % 100 == 0:`."
    return Verdict("callback-bound", share, text, remedy, is_warning=True)


def _checkpoint_stalls(figures: StepFigures, share: float) -> Verdict:
    names = " and ".join(figures.checkpoint_names) or "a checkpoint callback"
    step_ms, saving_ms = figures.step_ms, figures.checkpoint_ms
    holds = "hold" if len(figures.checkpoint_names) > 1 else "holds"
    text = f"{names} {holds} fit up while saving: {saving_ms:.3g} of a step's {step_ms:.3g} ms ({share:.0f} %)."
    others = " and ".join(name for name in figures.checkpoint_names if name != "AsyncCheckpoint")
    if figures.checkpoint_names == ("AsyncCheckpoint",):
        remedy = "Save less often: save_freq counts steps, epochs or minutes."
    elif others != names:
        remedy = f"AsyncCheckpoint without {others} writes in the background; it keeps the best, too (monitor=...)."
    else:
        remedy = f'callbacks=[keras_turbo.AsyncCheckpoint("checkpoints")] in place of {names} writes in the background.'
    return Verdict("checkpoint-stalls", share, text, remedy, is_warning=True)


def _waiting_for_workers(figures: StepFigures, share: float) -> Verdict:
    text = (
        f"at the ends of epochs this worker waits for the others: {figures.workers_wait_ms:.3g} of a step's "
        f"{figures.step_ms:.3g} ms ({share:.0f} %)."
    )
    remedy = (
        "The chief's logs have workers_min_ and workers_max_ of each figure: the slowest worker has a slower input, "
        "another GPU or other work to do. In longer epochs all wait less often: train.repeat() with steps_per_epoch."
    )
    return Verdict("waiting-for-workers", share, text, remedy, is_warning=True)


_VERDICTS = {
    "input": _input_bound,
    "dispatch": _dispatch_bound,
    "callbacks": _callback_bound,
    "checkpoints": _checkpoint_stalls,
    "workers": _waiting_for_workers,
}
