"""Samples of GPUs that are not here, and a subscription that gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keras_turbo.monitor.counters import Gpu, GpuCounters
from keras_turbo.monitor.cpu import CpuCounters
from keras_turbo.monitor.sampler import Sample


def gpu(index: int = 0) -> Gpu:
    return Gpu(index, f"GPU-{index}", f"0000:0{index}:00.0", "NVIDIA H100", 80_000.0, (9, 0))


def counters(index: int = 0, **figures: object) -> GpuCounters:
    return GpuCounters(gpu(index), **figures)


def sample(*gpus: GpuCounters, share: float | None = 50.0, free: float | None = 25.0) -> Sample:
    return Sample(0.0, gpus, CpuCounters(100.0, share, free, 500.0))


class FakeSubscription:
    """Gives the same samples each time it is asked.

    Args:
        samples: what `take` gives.
        problem: why there are no figures.
    """

    def __init__(self, samples: Sequence[Sample], problem: str | None = None) -> None:
        self.samples = samples
        self.problem = problem
        self.is_closed = False

    def take(self) -> list[Sample]:
        return list(self.samples)

    def wait_for_first(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def subscribing(subscription: FakeSubscription) -> Callable[[float], FakeSubscription]:
    """What takes the place of `subscribe`."""
    return lambda interval_seconds: subscription
