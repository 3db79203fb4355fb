"""How much this process and others use of its cores."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from keras_turbo.machine import ControlGroup, control_groups, core_numbers, cores, cpu_quota

_MB = 2**20


@dataclass(frozen=True)
class CpuCounters:
    """What the CPU did since the reading before.

    A figure that does not exist is None: those of a span of time are, in the first reading.

    Attributes:
        process_percent: time of all threads of this process, in per cent of one core: 800 is eight cores' worth. Child
            processes are not counted.
        process_share_percent: the same in per cent of the cores that this process may use.
        free_share_percent: how much of the cores that this process may use nobody used.
        memory_rss_mb: memory of this process that is in RAM, in MB of 2**20 bytes.
    """

    process_percent: float | None
    process_share_percent: float | None
    free_share_percent: float | None
    memory_rss_mb: float | None


class _Reading(NamedTuple):
    wall_seconds: float
    process_seconds: float
    idle_seconds: float | None
    group_seconds: float | None


class CpuReader:
    """Reads what the CPU did between one reading and the next."""

    def __init__(
        self,
        root: str | pathlib.Path = "/",
        wall_seconds: Callable[[], float] = time.monotonic,
        process_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        import psutil

        try:
            self._process = psutil.Process()
        except (psutil.Error, OSError):  # /proc is not mounted
            self._process = None
        self._wall_seconds = wall_seconds
        self._process_seconds = process_seconds
        self._cores = cores(root)
        self._affinity = core_numbers()
        # The group whose quota binds: what others use in it is not there for this process.
        limited = [group for group in control_groups("cpu", root) if cpu_quota(group) == self._cores.quota]
        self._group = limited[0] if limited and self._cores.quota is not None else None
        self._before: _Reading | None = None

    def read(self) -> CpuCounters:
        """What the CPU did since the last call."""
        before, now = self._before, self._now()
        self._before = now
        memory = self._memory_rss_mb()
        if before is None or now.wall_seconds <= before.wall_seconds:
            return CpuCounters(None, None, None, memory)
        wall = now.wall_seconds - before.wall_seconds
        usable = self._cores.usable
        percent = 100 * max(0.0, now.process_seconds - before.process_seconds) / wall
        return CpuCounters(percent, min(100.0, percent / usable), self._free_percent(before, now, wall), memory)

    def _now(self) -> _Reading:
        return _Reading(self._wall_seconds(), self._process_seconds(), self._idle_seconds(), _used_seconds(self._group))

    def _free_percent(self, before: _Reading, now: _Reading, wall: float) -> float | None:
        if before.idle_seconds is None or now.idle_seconds is None:
            return None
        free_cores = (now.idle_seconds - before.idle_seconds) / wall
        if before.group_seconds is not None and now.group_seconds is not None:
            used = (now.group_seconds - before.group_seconds) / wall
            free_cores = min(free_cores, self._cores.usable - used)
        return min(100.0, max(0.0, 100 * free_cores / self._cores.usable))

    def _idle_seconds(self) -> float | None:
        import psutil

        try:
            times = psutil.cpu_times(percpu=True)
            # Cores are numbered as the affinity numbers them as long as none is offline.
            mine = times if len(times) <= max(self._affinity) else [times[core] for core in self._affinity]
            return sum(one.idle + getattr(one, "iowait", 0.0) for one in mine)
        except (OSError, RuntimeError):  # /proc/stat is hidden in some sandboxes
            return None

    def _memory_rss_mb(self) -> float | None:
        import psutil

        if self._process is None:
            return None
        try:
            return self._process.memory_info().rss / _MB
        except (psutil.Error, OSError):
            return None


def _used_seconds(group: ControlGroup | None) -> float | None:
    if group is None:
        return None
    if group.version == 2:
        microseconds = group.read_int("cpu.stat", "usage_usec")
        return None if microseconds is None else microseconds / 1e6
    # Version 1 counts in a controller of its own, which is nearly always mounted in the same place.
    nanoseconds = group.read_int("cpuacct.usage")
    return None if nanoseconds is None else nanoseconds / 1e9
