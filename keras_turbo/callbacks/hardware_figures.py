"""What the GPUs did in an epoch, or without GPUs the CPU, from the samples of `keras_turbo.devices.sampler`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from keras_turbo.callbacks.step_times import Reservoir

# Of the reasons for which a clock is held down, those that are heat or power, and how they are told. That somebody set
# a limit, or that a display is attached, is neither.
_THROTTLING = {
    "heat": "heat",
    "power": "power",
    "power_brake": "the machine's power supply",
    "hardware_slowdown": "the hardware's protection",
}
_JOULES_PER_WH = 3600.0


class HardwareFigures:
    """Sums up samples, epoch by epoch, in bounded memory."""

    def __init__(self) -> None:
        self._latest: Any = None
        self._joules: dict[Any, float] = {}
        self._begin()

    def _begin(self) -> None:
        self._samples = 0
        self._means: dict[str, _Mean] = {}
        self._utilizations: dict[Any, _Mean] = {}
        self._distribution = Reservoir()
        self._memory_peak_mb: float | None = None
        self._memory_peak_percent: float | None = None
        self._watts: dict[Any, _Mean] = {}
        self._used_joules: dict[Any, float] = {}
        self._throttled = _Mean()
        self._cpu_share = _Mean()
        self._reasons: Counter[str] = Counter()

    def add(self, samples: Iterable[Any]) -> None:
        """Takes samples, oldest first."""
        for sample in samples:
            self._latest = sample
            self._add(sample)

    @property
    def has_samples(self) -> bool:
        """Whether there has been a sample at all."""
        return self._latest is not None

    @property
    def gpu_utilization_percents(self) -> tuple[float, ...]:
        """The mean of each GPU that has a utilization, in their order."""
        return tuple(mean.value for mean in self._utilizations.values() if mean.value is not None)

    @property
    def throttled_percent(self) -> float | None:
        """The share of the samples in which heat or power held a clock down."""
        return self._throttled.value

    @property
    def cpu_share_percent(self) -> float | None:
        """The mean use of the CPU cores that the process may use."""
        return self._cpu_share.value

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """What held a clock down, the most frequent first."""
        return tuple(_THROTTLING[name] for name, _ in self._reasons.most_common())

    def figures(self, seconds: float) -> dict[str, float]:
        """The figures of the samples since the last `next_epoch`, by names with their units. What is unknown is absent.

        Args:
            seconds: how long that was; power times it is the energy where a GPU does not count that.
        """
        if not self._samples and self._latest is not None:
            # An epoch shorter than the interval: the reading just before it, of which a part is of this epoch.
            self._add(self._latest)
        figures = {
            "gpu_utilization_percent": _mean(self.gpu_utilization_percents),
            "gpu_utilization_p10_percent": self._distribution.percentile(10),
            "gpu_memory_peak_mb": self._memory_peak_mb,
            "gpu_memory_peak_percent": self._memory_peak_percent,
            "gpu_power_watts": sum(one.value or 0.0 for one in self._watts.values()) if self._watts else None,
            "gpu_energy_wh": self._energy_wh(seconds),
            "gpu_throttled_percent": self._throttled.value,
            **{name: mean.value for name, mean in self._means.items()},
        }
        return {name: value for name, value in figures.items() if value is not None}

    def next_epoch(self) -> None:
        """Begins anew."""
        self._begin()

    def _add(self, sample: Any) -> None:
        self._samples += 1
        now = [self._add_gpu(gpu) for gpu in sample.gpus]
        together = _mean([value for value in now if value is not None])
        if together is not None:
            self._distribution.add(together)
        reasons = [gpu.throttle_reasons for gpu in sample.gpus if gpu.throttle_reasons is not None]
        held_down = {name for names in reasons for name in names if name in _THROTTLING}
        if reasons:
            self._throttled.add(100.0 if held_down else 0.0)
            self._reasons.update(held_down)
        if sample.cpu.process_share_percent is not None:
            self._cpu_share.add(sample.cpu.process_share_percent)
        if not sample.gpus:
            self._add_to_mean("cpu_utilization_percent", sample.cpu.process_share_percent)
            self._add_to_mean("cpu_free_percent", sample.cpu.free_share_percent)

    def _add_gpu(self, counters: Any) -> float | None:
        key = counters.gpu.uuid
        if counters.utilization_percent is not None:
            self._utilizations.setdefault(key, _Mean()).add(counters.utilization_percent)
        used_mb, total_mb = counters.memory_used_mb, counters.memory_total_mb
        if used_mb is not None:
            self._memory_peak_mb = max(used_mb, self._memory_peak_mb or 0.0)
            if total_mb:
                self._memory_peak_percent = max(100 * used_mb / total_mb, self._memory_peak_percent or 0.0)
        if counters.power_watts is not None:
            self._watts.setdefault(key, _Mean()).add(counters.power_watts)
        if counters.energy_joules is not None:
            before = self._joules.get(key)
            self._joules[key] = counters.energy_joules
            # Less than before: the driver was loaded anew and counts from 0.
            if before is not None and counters.energy_joules >= before:
                self._used_joules[key] = self._used_joules.get(key, 0.0) + counters.energy_joules - before
        self._add_to_mean("gpu_sm_activity_percent", counters.sm_activity_percent)
        self._add_to_mean("gpu_tensor_activity_percent", counters.tensor_activity_percent)
        return counters.utilization_percent

    def _add_to_mean(self, name: str, value: float | None) -> None:
        if value is not None:
            self._means.setdefault(name, _Mean()).add(value)

    def _energy_wh(self, seconds: float) -> float | None:
        joules = None
        for key in self._watts.keys() | self._used_joules.keys():
            used = self._used_joules.get(key)
            if used is None:
                used = (self._watts[key].value or 0.0) * seconds
            joules = (joules or 0.0) + used
        return None if joules is None else joules / _JOULES_PER_WH


class _Mean:
    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1

    @property
    def value(self) -> float | None:
        return self._sum / self._count if self._count else None


def _mean(values: Any) -> float | None:
    return sum(values) / len(values) if values else None
