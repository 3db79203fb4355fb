"""The use of GPUs and CPU while an audit measures, with what was measured when."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator
from typing import Any

from keras_turbo.monitor.figures import HardwareFigures
from keras_turbo.monitor.sampler import Sample, Subscription, subscribe

# The phases in which the training runs as it is.
BASELINE = "fit as it is"
_INTERVAL_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Phase:
    """A span of an audit.

    Attributes:
        name: what was measured.
        begin_seconds: since the audit began.
        end_seconds: since the audit began.
    """

    name: str
    begin_seconds: float
    end_seconds: float


@dataclasses.dataclass(frozen=True)
class Utilization:
    """What the devices did.

    Attributes:
        seconds: of each sample, since the audit began.
        cpu_percent: this process's share of the cores that it may use; None where unknown.
        gpu_names: of the GPUs in use.
        gpu_percent: of each GPU, in each sample; None where unknown.
        phases: what was measured when.
        problem: why there are no figures of GPUs; None where nothing is wrong.
        baseline_cpu_percent: mean while the training ran as it is; None where unknown.
        baseline_gpu_percent: the same of each GPU.
        throttled_percent: share of those samples in which heat or power held a GPU's clock down; None without a GPU.
        throttle_reasons: which of these.
    """

    seconds: tuple[float, ...]
    cpu_percent: tuple[float | None, ...]
    gpu_names: tuple[str, ...]
    gpu_percent: tuple[tuple[float | None, ...], ...]
    phases: tuple[Phase, ...]
    problem: str | None
    baseline_cpu_percent: float | None
    baseline_gpu_percent: tuple[float, ...]
    throttled_percent: float | None
    throttle_reasons: tuple[str, ...]

    def figures(self, share: float = 1.0) -> dict[str, Any]:
        """What of it belongs into the figures that the verdict is told from.

        Args:
            share: of the training's time that was looked at; in the rest it saves, and the GPUs are idle. Default 1.
        """
        gpus = tuple(share * percent for percent in self.baseline_gpu_percent)
        return {
            "utilization_percent": statistics.fmean(gpus) if gpus else None,
            "gpu_utilization_percents": gpus,
            "throttled_percent": self.throttled_percent,
            "throttle_reasons": self.throttle_reasons,
            "cpu_share_percent": self.baseline_cpu_percent,
        }


class Recorder:
    """Records from its construction until `close`."""

    def __init__(self) -> None:
        self._begun_at = time.monotonic()
        self._phases: list[Phase] = []
        self._subscription: Subscription = subscribe(_INTERVAL_SECONDS)
        self._samples: list[Sample] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is measured inside has a name."""
        begin = time.monotonic() - self._begun_at
        try:
            yield
        finally:
            self._phases.append(Phase(name, begin, time.monotonic() - self._begun_at))

    def close(self) -> None:
        """Ends it."""
        self._samples += self._subscription.take()
        self._subscription.close()

    def so_far(self) -> Utilization:
        """What was recorded until now."""
        self._samples += self._subscription.take()
        samples = self._samples
        seconds = [sample.time - self._begun_at for sample in samples]
        spans = [phase for phase in self._phases if phase.name == BASELINE]
        at_work = [
            sample
            for sample, at in zip(samples, seconds, strict=True)
            if any(phase.begin_seconds <= at <= phase.end_seconds for phase in spans)
        ]
        gpus = next((sample.gpus for sample in samples if sample.gpus), ())
        baseline = HardwareFigures()
        baseline.add(at_work)
        return Utilization(
            seconds=tuple(seconds),
            cpu_percent=tuple(sample.cpu.process_share_percent for sample in samples),
            gpu_names=tuple(gpu.gpu.name for gpu in gpus),
            gpu_percent=tuple(
                tuple(sample.gpus[i].utilization_percent if i < len(sample.gpus) else None for sample in samples)
                for i in range(len(gpus))
            ),
            phases=tuple(self._phases),
            problem=self._subscription.problem,
            baseline_cpu_percent=baseline.cpu_share_percent,
            baseline_gpu_percent=baseline.gpu_utilization_percents,
            throttled_percent=baseline.throttled_percent,
            throttle_reasons=baseline.throttle_reasons,
        )
