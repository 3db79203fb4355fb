"""What the sampler reads: this machine's counters."""

from __future__ import annotations

from typing import Protocol

from keras_turbo.devices.cpu import CpuCounters, CpuReader
from keras_turbo.devices.gpus import GpuCounters
from keras_turbo.devices.nvml import NvmlSession


class Readers(Protocol):
    """What the thread reads; made, used and closed on that thread alone."""

    @property
    def problem(self) -> str | None:
        """Why there are no figures of GPUs, or not all."""
        ...

    def read_gpus(self) -> tuple[GpuCounters, ...]: ...

    def read_cpu(self) -> CpuCounters: ...

    def close(self) -> None: ...


class MachineReaders:
    """Reads this machine's counters.

    Args:
        with_gpus: whether NVML is opened.
    """

    def __init__(self, with_gpus: bool) -> None:
        self._cpu = CpuReader()
        self._nvml = NvmlSession() if with_gpus else None

    @property
    def problem(self) -> str | None:
        return None if self._nvml is None else self._nvml.problem

    def read_gpus(self) -> tuple[GpuCounters, ...]:
        return () if self._nvml is None else self._nvml.read()

    def read_cpu(self) -> CpuCounters:
        return self._cpu.read()

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()
