"""What a process and the others use of its cores."""

from __future__ import annotations

import os
import types
from pathlib import Path

import psutil
import pytest

from keras_turbo.monitor.cpu import CpuReader

AFFINITY = 8


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """16 cores, of which this process may run on eight."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(AFFINITY)), raising=False)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


V2 = {"proc/self/cgroup": "0::/job"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/job"}


class Times:
    """Clocks that a test sets."""

    def __init__(self, monkeypatch):
        self.wall = 100.0
        self.process = 0.0
        self.idle = [0.0] * 16
        monkeypatch.setattr(
            psutil,
            "cpu_times",
            lambda percpu: [types.SimpleNamespace(idle=idle, iowait=0.0) for idle in self.idle],
        )

    def reader(self, root):
        return CpuReader(root, lambda: self.wall, lambda: self.process)

    def pass_time(self, seconds, process, idle_cores):
        self.wall += seconds
        self.process += process
        for core in range(16):
            self.idle[core] += seconds * (core in idle_cores)


def test_the_first_reading_has_no_figures_of_a_span(tmp_path, monkeypatch):
    counters = Times(monkeypatch).reader(tmp_path).read()
    assert counters.process_percent is None
    assert counters.process_share_percent is None
    assert counters.free_share_percent is None
    assert counters.memory_rss_mb > 50


def test_shares_are_of_the_cores_that_the_process_may_use(tmp_path, monkeypatch):
    times = Times(monkeypatch)
    reader = times.reader(tmp_path)
    reader.read()
    # Two cores' worth of its own work; three of its eight cores idle, and all that are not its own.
    times.pass_time(0.5, process=1.0, idle_cores={0, 1, 2, *range(8, 16)})
    counters = reader.read()
    assert counters.process_percent == pytest.approx(200)
    assert counters.process_share_percent == pytest.approx(25)
    assert counters.free_share_percent == pytest.approx(37.5)
    # Each reading covers the time since the one before.
    times.pass_time(1.0, process=0.0, idle_cores=range(16))
    counters = reader.read()
    assert counters.process_percent == 0
    assert counters.free_share_percent == pytest.approx(100)


@pytest.mark.parametrize("version", [1, 2])
def test_under_a_quota_what_is_free_is_what_the_quota_leaves(tmp_path, monkeypatch, version):
    def use_seconds(seconds):
        if version == 2:
            write(tmp_path, {"sys/fs/cgroup/job/cpu.stat": f"usage_usec {int(seconds * 1e6)}\nuser_usec 3"})
        else:
            write(tmp_path, {"sys/fs/cgroup/cpu/job/cpuacct.usage": str(int(seconds * 1e9))})

    if version == 2:
        write(tmp_path, {**V2, "sys/fs/cgroup/job/cpu.max": "200000 100000"})
    else:
        folder = "sys/fs/cgroup/cpu/job"
        write(tmp_path, {**V1, f"{folder}/cpu.cfs_quota_us": "200000", f"{folder}/cpu.cfs_period_us": "100000"})
    use_seconds(50)
    times = Times(monkeypatch)
    reader = times.reader(tmp_path)
    reader.read()
    # Seven cores are idle, but of its two cores' worth of time the container has used one and a half.
    times.pass_time(1.0, process=1.0, idle_cores=range(7))
    use_seconds(51.5)
    counters = reader.read()
    assert counters.process_share_percent == pytest.approx(50)
    assert counters.free_share_percent == pytest.approx(25)


def test_figures_that_are_hidden_are_absent(tmp_path, monkeypatch):
    times = Times(monkeypatch)

    def hidden(percpu):
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", hidden)
    reader = times.reader(tmp_path)
    reader.read()
    times.pass_time(1.0, process=0.5, idle_cores=())
    counters = reader.read()
    assert counters.free_share_percent is None
    assert counters.process_percent == pytest.approx(50)


def test_without_proc_the_memory_is_absent(tmp_path, monkeypatch):
    def not_there():
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(psutil, "Process", not_there)
    times = Times(monkeypatch)
    reader = times.reader(tmp_path)
    reader.read()
    times.pass_time(1.0, process=0.5, idle_cores=())
    counters = reader.read()
    assert counters.memory_rss_mb is None
    assert counters.process_percent == pytest.approx(50)


def test_two_readings_at_the_same_time(tmp_path, monkeypatch):
    times = Times(monkeypatch)
    reader = times.reader(tmp_path)
    reader.read()
    assert reader.read().process_percent is None


def test_this_machine(monkeypatch):
    monkeypatch.undo()
    reader = CpuReader()
    reader.read()
    sum(range(2_000_000))
    counters = reader.read()
    assert counters.process_percent > 0
    assert 0 < counters.process_share_percent <= 100
    assert 0 <= counters.free_share_percent <= 100
