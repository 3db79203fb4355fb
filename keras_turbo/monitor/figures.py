"""The figures of an epoch: what the hardware did, and where the time of a step went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_turbo.fit.timing import Durations, EpochTimes
from keras_turbo.monitor.verdict import StepFigures

# Of the reasons for which a clock is held down, those that are heat or power, and how they are told. That somebody set
# a limit, or that a display is attached, is neither.
_THROTTLING = {
    "heat": "heat",
    "power": "power",
    "power_brake": "the machine's power supply",
    "hardware_slowdown": "the hardware's protection",
}
_JOULES_PER_WH = 3600.0

# The callback that distribute() gives to a fit on several workers. All its time is waiting for the slowest of them. By
# name, since Keras may have a backend without it.
_WAITS_FOR_WORKERS = "SameOnAllWorkers"

# In this order each worker gives its figures, so that all give equally many. What one has not is NaN. A sum over
# workers (energy) is the mean times their number.
_GATHERED = (
    "gpu_utilization_percent",
    "gpu_memory_peak_percent",
    "gpu_power_watts",
    "gpu_energy_wh",
    "gpu_throttled_percent",
    "cpu_utilization_percent",
    "step_ms_median",
    "step_ms_p95",
    "examples_per_second",
    "input_wait_ms",
    "input_wait_percent",
)


class HardwareFigures:
    """Sums up samples, epoch by epoch, in bounded memory."""

    def __init__(self) -> None:
        self._latest: Any = None
        self._joules: dict[Any, float] = {}
        self.next_epoch()

    def next_epoch(self) -> None:
        """Begins anew."""
        self._samples = 0
        self._means: dict[Any, _Mean] = {}
        self._peaks: dict[str, float] = {}
        self._distribution = Durations()
        self._used_joules: dict[Any, float] = {}
        self._reasons: Counter[str] = Counter()

    def add(self, samples: Iterable[Any]) -> None:
        """Takes samples, oldest first."""
        for sample in samples:
            self._latest = sample
            self._add(sample)

    @property
    def gpu_utilization_percents(self) -> tuple[float, ...]:
        """The mean of each GPU that has a utilization, in their order."""
        return tuple(mean.value for key, mean in self._means.items() if key[0] == "utilization")

    @property
    def throttled_percent(self) -> float | None:
        """The share of the samples in which heat or power held a clock down."""
        return self._mean("throttled")

    @property
    def cpu_share_percent(self) -> float | None:
        """The mean use of the CPU cores that the process may use."""
        return self._mean("cpu share")

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """What held a clock down, the most frequent first."""
        return tuple(_THROTTLING[name] for name, _ in self._reasons.most_common())

    def figures(self, seconds: float) -> dict[str, float]:
        """The figures of samples since the last `next_epoch`, by names with their units. What is unknown is absent."""
        if not self._samples and self._latest is not None:
            # An epoch shorter than the interval: the reading just before it, of which a part is of this epoch.
            self._add(self._latest)
        watts = {key[1]: mean.value for key, mean in self._means.items() if key[0] == "watts"}
        joules = {
            key: self._used_joules.get(key, watts.get(key, 0.0) * seconds) for key in {*watts, *self._used_joules}
        }
        figures = {
            "gpu_utilization_percent": float(np.mean(self.gpu_utilization_percents))
            if self.gpu_utilization_percents
            else None,
            "gpu_utilization_p10_percent": self._distribution.percentile(10),
            "gpu_memory_peak_mb": self._peaks.get("mb"),
            "gpu_memory_peak_percent": self._peaks.get("percent"),
            "gpu_power_watts": sum(watts.values()) if watts else None,
            "gpu_energy_wh": sum(joules.values()) / _JOULES_PER_WH if joules else None,
            "gpu_throttled_percent": self.throttled_percent,
            "gpu_sm_activity_percent": self._mean("sm"),
            "gpu_tensor_activity_percent": self._mean("tensor"),
            "cpu_utilization_percent": self._mean("cpu"),
            "cpu_free_percent": self._mean("cpu free"),
        }
        return {name: value for name, value in figures.items() if value is not None}

    def _add(self, sample: Any) -> None:
        self._samples += 1
        cpu, counters = sample.cpu, sample.gpus
        self._add_to("cpu share", cpu.process_share_percent)
        if not counters:
            self._add_to("cpu", cpu.process_share_percent)
            self._add_to("cpu free", cpu.free_share_percent)
        for one in counters:
            self._add_gpu(one)
        busy = [one.utilization_percent for one in counters if one.utilization_percent is not None]
        if busy:
            self._distribution.add(sum(busy) / len(busy))
        reasons = [one.throttle_reasons for one in counters if one.throttle_reasons is not None]
        if reasons:
            held_down = {name for names in reasons for name in names if name in _THROTTLING}
            self._add_to("throttled", 100.0 if held_down else 0.0)
            self._reasons.update(held_down)

    def _add_gpu(self, counters: Any) -> None:
        key = counters.gpu.uuid
        self._add_to("utilization", counters.utilization_percent, key)
        self._add_to("watts", counters.power_watts, key)
        self._add_to("sm", counters.sm_activity_percent)
        self._add_to("tensor", counters.tensor_activity_percent)
        used_mb, total_mb = counters.memory_used_mb, counters.memory_total_mb
        if used_mb is not None:
            self._peaks["mb"] = max(used_mb, self._peaks.get("mb", 0.0))
            if total_mb:
                self._peaks["percent"] = max(100 * used_mb / total_mb, self._peaks.get("percent", 0.0))
        if counters.energy_joules is not None:
            before = self._joules.get(key)
            self._joules[key] = counters.energy_joules
            # Less than before: the driver was loaded anew and counts from 0.
            if before is not None and counters.energy_joules >= before:
                self._used_joules[key] = self._used_joules.get(key, 0.0) + counters.energy_joules - before

    def _add_to(self, name: str, value: float | None, key: Any = None) -> None:
        if value is not None:
            self._means.setdefault((name, key), _Mean()).add(value)

    def _mean(self, name: str) -> float | None:
        mean = self._means.get((name, None))
        return None if mean is None else mean.value


class _Mean:
    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1

    @property
    def value(self) -> float:
        return self._sum / self._count


def step_figures(
    times: EpochTimes,
    waits: Any,
    hardware: HardwareFigures,
    *,
    steps_per_execution: int,
    empty_execution_seconds: float | None,
    backend: str = "tensorflow",
) -> StepFigures:
    """The figures of a step, as `judge` takes them."""
    steps = times.steps(steps_per_execution)
    per_step_ms = 1000.0 / steps
    others, saving = times.seconds_by_name(saving=False), times.seconds_by_name(saving=True)
    total, wait = times.total_seconds, times.input_wait_seconds
    utilizations = hardware.gpu_utilization_percents
    dispatch = None
    if empty_execution_seconds is not None and not utilizations:
        hooks = sum(times.batch_hooks.values())
        in_python = times.execution_seconds - times.function_seconds - hooks - times.fetch_seconds
        rest = total - (wait or 0.0) - sum(others.values()) - sum(saving.values())
        # On a machine that has other work to do, the empty executions may have been slower than the steps.
        dispatch = max(0.0, min(rest, in_python + times.executions * empty_execution_seconds))
    # One that was shorter than the others is no example of them.
    steps_each = steps if times.executions == 1 else steps_per_execution
    median, p95 = times.durations.percentile(50), times.durations.percentile(95)

    def per_step(seconds: dict[str, float]) -> dict[str, float]:
        return {name: value * per_step_ms for name, value in seconds.items() if name != _WAITS_FOR_WORKERS}

    return StepFigures(
        step_ms=total * per_step_ms,
        step_ms_median=None if median is None else 1000.0 * median / steps_each,
        step_ms_p95=None if p95 is None else 1000.0 * p95 / steps_each,
        input_wait_ms=None if wait is None else wait * per_step_ms,
        callbacks_ms=per_step(others),
        epoch_hooks_ms=per_step(times.seconds_by_name(saving=False, epoch_hooks_only=True)),
        checkpoint_ms=sum(saving.values()) * per_step_ms,
        checkpoint_names=tuple(saving),
        workers_wait_ms=others.get(_WAITS_FOR_WORKERS, 0.0) * per_step_ms,
        dispatch_ms=None if dispatch is None else dispatch * per_step_ms,
        steps_per_execution=steps_per_execution,
        utilization_percent=sum(utilizations) / len(utilizations) if utilizations else None,
        gpu_utilization_percents=utilizations,
        throttled_percent=hardware.throttled_percent,
        throttle_reasons=hardware.throttle_reasons,
        cpu_share_percent=hardware.cpu_share_percent,
        reads_fast_dataset=waits.reads_fast_dataset,
        why_no_input_wait=waits.why_not,
        backend=backend,
    )


def figures_for_logs(times: EpochTimes, figures: StepFigures) -> dict[str, float]:
    """The figures of the steps for `logs`, by names with their units. What is not known is absent."""
    examples = 0 if times.waits is None else times.waits.examples
    wait_ms = figures.input_wait_ms
    entries = {
        "step_ms_median": figures.step_ms_median,
        "step_ms_p95": figures.step_ms_p95,
        "examples_per_second": examples / times.total_seconds if examples else None,
        "input_wait_ms": wait_ms,
        "input_wait_percent": None if wait_ms is None else min(100.0, 100.0 * wait_ms / figures.step_ms),
    }
    return {name: value for name, value in entries.items() if value is not None}


def gather_over_workers(strategy: Any, figures: Mapping[str, float]) -> np.ndarray:
    """Every worker's figures, as an array (workers, figures), NaN for what a worker has not.

    Each worker has to call it, and waits for the others.
    """
    import tensorflow as tf

    mine = [[figures.get(name, math.nan) for name in _GATHERED]]
    with tf.init_scope():
        return np.asarray(strategy.gather(tf.constant(mine, tf.float32), axis=0))


def over_workers(gathered: Any, names: Sequence[str] = _GATHERED) -> dict[str, float]:
    """Minimum, mean and maximum of each figure over the workers that have it, as `workers_min_` and its name."""
    result = {}
    for name, values in zip(names, np.asarray(gathered, float).T, strict=True):
        known = values[~np.isnan(values)]
        if len(known):
            result[f"workers_min_{name}"] = float(known.min())
            result[f"workers_mean_{name}"] = float(known.mean())
            result[f"workers_max_{name}"] = float(known.max())
    return result
