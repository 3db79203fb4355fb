"""Free memory is the least of what the machine has and what each control group leaves."""

from __future__ import annotations

import types
from pathlib import Path

import psutil
import pytest

from keras_turbo.data.example_store import fits_in_memory
from keras_turbo.devices.free_memory import free_memory_bytes, memory_limit_bytes

MB = 1_000_000
MACHINE_BYTES = 1_000 * MB


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with 1,000 MB available."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=MACHINE_BYTES))


def write_tree(root: Path, files: dict[str, str | int]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def v2_group(path: str, limit: int | str, usage: int, stat: str = "") -> dict[str, str | int]:
    folder = f"sys/fs/cgroup/{path}".rstrip("/")
    return {f"{folder}/memory.max": limit, f"{folder}/memory.current": usage, f"{folder}/memory.stat": stat}


def v1_group(path: str, limit: int, usage: int, stat: str = "") -> dict[str, str | int]:
    folder = f"sys/fs/cgroup/memory/{path}".rstrip("/")
    return {
        f"{folder}/memory.limit_in_bytes": limit,
        f"{folder}/memory.usage_in_bytes": usage,
        f"{folder}/memory.stat": stat,
    }


def test_no_control_groups(tmp_path):
    assert free_memory_bytes(tmp_path) == MACHINE_BYTES


def test_version_2(tmp_path):
    write_tree(tmp_path, {"proc/self/cgroup": "0::/job", **v2_group("job", 300 * MB, 100 * MB)})
    assert free_memory_bytes(tmp_path) == 200 * MB


def test_version_2_without_a_limit(tmp_path):
    write_tree(tmp_path, {"proc/self/cgroup": "0::/job", **v2_group("job", "max", 100 * MB)})
    assert free_memory_bytes(tmp_path) == MACHINE_BYTES


@pytest.mark.parametrize("tightest", ["", "slice", "slice/job", "slice/job/step"])
def test_the_tightest_of_nested_groups_counts(tmp_path, tightest):
    write_tree(tmp_path, {"proc/self/cgroup": "0::/slice/job/step"})
    for path in ("", "slice", "slice/job", "slice/job/step"):
        limit = 150 * MB if path == tightest else 700 * MB
        write_tree(tmp_path, v2_group(path, limit, 100 * MB))
    assert free_memory_bytes(tmp_path) == 50 * MB


def test_a_group_that_is_not_this_process_s_does_not_count(tmp_path):
    write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/mine",
            **v2_group("mine", 500 * MB, 100 * MB),
            **v2_group("other", 50 * MB, 10 * MB),
        },
    )
    assert free_memory_bytes(tmp_path) == 400 * MB


def test_inside_a_container_the_path_is_the_host_s(tmp_path):
    """Only the mount's own top can be seen there."""
    write_tree(tmp_path, {"proc/self/cgroup": "0::/kubepods/pod1/container1", **v2_group("", 300 * MB, 100 * MB)})
    assert free_memory_bytes(tmp_path) == 200 * MB


def test_page_cache_of_a_group_counts_as_free(tmp_path):
    stat = f"anon {60 * MB}\nfile {40 * MB}\ninactive_file {30 * MB}\nactive_file {10 * MB}"
    write_tree(tmp_path, {"proc/self/cgroup": "0::/job", **v2_group("job", 300 * MB, 100 * MB, stat)})
    assert free_memory_bytes(tmp_path) == 230 * MB


V1_LINES = "12:cpu,cpuacct:/job\n9:memory:/job\n1:name=systemd:/job"


def test_version_1(tmp_path):
    stat = f"cache {40 * MB}\ninactive_file {1 * MB}\ntotal_inactive_file {30 * MB}"
    write_tree(tmp_path, {"proc/self/cgroup": V1_LINES, **v1_group("job", 300 * MB, 100 * MB, stat)})
    assert free_memory_bytes(tmp_path) == 230 * MB


def test_version_1_parents_count_too(tmp_path):
    lines = "9:memory:/slice/job"
    write_tree(
        tmp_path,
        {
            "proc/self/cgroup": lines,
            **v1_group("slice/job", 900 * MB, 100 * MB),
            **v1_group("slice", 250 * MB, 150 * MB),
        },
    )
    assert free_memory_bytes(tmp_path) == 100 * MB


def test_version_1_s_huge_number_is_no_limit(tmp_path):
    write_tree(tmp_path, {"proc/self/cgroup": V1_LINES, **v1_group("job", 0x7FFFFFFFFFFFF000, 100 * MB)})
    assert free_memory_bytes(tmp_path) == MACHINE_BYTES


def test_both_versions_mounted(tmp_path):
    write_tree(
        tmp_path,
        {
            "proc/self/cgroup": f"{V1_LINES}\n0::/job",
            **v1_group("job", 300 * MB, 100 * MB),
            **v2_group("job", 260 * MB, 100 * MB),
        },
    )
    assert free_memory_bytes(tmp_path) == 160 * MB


def test_more_used_than_allowed_leaves_nothing(tmp_path):
    write_tree(tmp_path, {"proc/self/cgroup": "0::/job", **v2_group("job", 100 * MB, 130 * MB)})
    assert free_memory_bytes(tmp_path) == 0


@pytest.mark.parametrize("damage", ["", "a limit", "-"])
def test_files_that_cannot_be_understood_are_no_limit(tmp_path, damage):
    write_tree(tmp_path, {"proc/self/cgroup": "0::/job\nnonsense", **v2_group("job", damage, 0)})
    assert free_memory_bytes(tmp_path) == MACHINE_BYTES


def test_this_machine(monkeypatch):
    monkeypatch.undo()
    assert 0 < free_memory_bytes() <= psutil.virtual_memory().total


def test_a_store_may_take_half_of_what_is_free(monkeypatch):
    monkeypatch.setattr("keras_turbo.data.example_store.free_memory_bytes", lambda: 100 * MB)
    assert fits_in_memory(50 * MB)
    assert not fits_in_memory(50 * MB + 1)


def test_the_limit_is_the_least_of_the_groups(tmp_path):
    write_tree(tmp_path, {"proc/self/cgroup": "0::/slice/job"})
    assert memory_limit_bytes(tmp_path) is None
    write_tree(tmp_path, {**v2_group("slice", 500 * MB, 1), **v2_group("slice/job", "max", 1)})
    assert memory_limit_bytes(tmp_path) == 500 * MB


def test_version_1_s_huge_number_is_no_limit_to_tell(tmp_path):
    write_tree(tmp_path, {"proc/self/cgroup": V1_LINES, **v1_group("job", 0x7FFFFFFFFFFFF000, 100 * MB)})
    assert memory_limit_bytes(tmp_path) is None
