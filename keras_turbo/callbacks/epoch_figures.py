"""From the times of an epoch to the figures of a step."""

from __future__ import annotations

from keras_turbo.callbacks.fit_times import EpochTimes
from keras_turbo.callbacks.hardware_figures import HardwareFigures
from keras_turbo.callbacks.verdict import StepFigures

# The callback that distribute() gives to a fit on several workers. All its time is waiting for the slowest of them. By
# name, since Keras may have a backend without it.
_WAITS_FOR_WORKERS = "SameOnAllWorkers"


def steps_in(times: EpochTimes, steps_per_execution: int) -> int:
    """How many batches the executions had, counted where batches are; else as many as they could hold."""
    counted = 0 if times.waits is None else times.waits.batches
    return counted or times.executions * steps_per_execution


def step_figures(
    times: EpochTimes,
    hardware: HardwareFigures,
    *,
    steps_per_execution: int,
    empty_execution_seconds: float | None,
    reads_fast_dataset: bool | None = None,
    why_no_input_wait: str | None = None,
    backend: str = "tensorflow",
) -> StepFigures:
    """The figures of a step, as `judge` takes them.

    Args:
        times: sums over an epoch.
        hardware: what the GPUs did in it.
        steps_per_execution: of the model.
        empty_execution_seconds: what an execution costs that computes nothing; None if that is not known.
        reads_fast_dataset: see `StepFigures`.
        why_no_input_wait: see `StepFigures`.
        backend: see `StepFigures`.

    Returns:
        The figures.
    """
    steps = steps_in(times, steps_per_execution)
    per_step_ms = 1000.0 / steps
    callback_seconds, saving_seconds = sum(times.callback_seconds.values()), sum(times.saving_seconds.values())
    total = total_seconds(times)
    wait = input_wait_seconds(times)
    utilizations = hardware.gpu_utilization_percents
    dispatch = None
    if empty_execution_seconds is not None and not utilizations:
        in_python = times.execution_seconds - times.function_seconds - times.batch_hook_seconds - times.fetch_seconds
        rest = total - (wait or 0.0) - callback_seconds - saving_seconds
        # On a machine that has other work to do, the empty executions may have been slower than the steps.
        dispatch = max(0.0, min(rest, in_python + times.executions * empty_execution_seconds))
    workers_wait = times.callback_seconds.get(_WAITS_FOR_WORKERS, 0.0)
    steps_each = steps if times.executions == 1 else steps_per_execution
    return StepFigures(
        step_ms=total * per_step_ms,
        step_ms_median=None if times.median_seconds is None else 1000.0 * times.median_seconds / steps_each,
        step_ms_p95=None if times.p95_seconds is None else 1000.0 * times.p95_seconds / steps_each,
        input_wait_ms=None if wait is None else wait * per_step_ms,
        callbacks_ms=_of_callbacks(times.callback_seconds, per_step_ms),
        epoch_hooks_ms=_of_callbacks(times.epoch_hook_seconds, per_step_ms),
        checkpoint_ms=saving_seconds * per_step_ms,
        checkpoint_names=tuple(times.saving_seconds),
        workers_wait_ms=workers_wait * per_step_ms,
        dispatch_ms=None if dispatch is None else dispatch * per_step_ms,
        steps_per_execution=steps_per_execution,
        utilization_percent=sum(utilizations) / len(utilizations) if utilizations else None,
        gpu_utilization_percents=utilizations,
        throttled_percent=hardware.throttled_percent,
        throttle_reasons=hardware.throttle_reasons,
        cpu_share_percent=hardware.cpu_share_percent,
        reads_fast_dataset=reads_fast_dataset,
        why_no_input_wait=why_no_input_wait,
        backend=backend,
    )


def _of_callbacks(seconds_by_name: dict[str, float], per_step_ms: float) -> dict[str, float]:
    return {name: value * per_step_ms for name, value in seconds_by_name.items() if name != _WAITS_FOR_WORKERS}


def total_seconds(times: EpochTimes) -> float:
    """What an epoch's training took: its executions, its beginning, and the callbacks' hooks around it."""
    in_hooks = sum(times.callback_seconds.values()) + sum(times.saving_seconds.values())
    return times.execution_seconds + times.begin_seconds + in_hooks - times.batch_hook_seconds


def input_wait_seconds(times: EpochTimes) -> float | None:
    """What `fit` waited for its iterator and its batches; None where not all of it was measured."""
    if times.waits is None:
        return None
    # In a graph there is the time of day alone, which may be set anew, also to an earlier one.
    return min(max(0.0, times.waits.seconds) + times.begin_seconds + times.fetch_seconds, total_seconds(times))


def figures_for_logs(times: EpochTimes, figures: StepFigures) -> dict[str, float]:
    """The figures of the steps for `logs`, by names with their units. What is not known is absent."""
    total = total_seconds(times)
    examples = 0 if times.waits is None else times.waits.examples
    wait_ms = figures.input_wait_ms
    entries = {
        "step_ms_median": figures.step_ms_median,
        "step_ms_p95": figures.step_ms_p95,
        "examples_per_second": examples / total if examples else None,
        "input_wait_ms": wait_ms,
        "input_wait_percent": None if wait_ms is None else min(100.0, 100.0 * wait_ms / figures.step_ms),
    }
    return {name: value for name, value in entries.items() if value is not None}
