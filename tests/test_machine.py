"""What this machine has for this process."""

from __future__ import annotations

import os
import types
from pathlib import Path

import psutil
import pytest

from keras_turbo.machine import (
    WholeGpu,
    cores,
    cpu_features,
    free_memory_bytes,
    gpu_features,
    memory_limit_bytes,
    visible_to_cuda,
)
from keras_turbo.monitor.counters import Gpu

MB = 1_000_000
MACHINE_BYTES = 1_000 * MB


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """16 cores, of which this process may run on eight, and 1,000 MB available."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=MACHINE_BYTES))


def write(root: Path, files: dict[str, str | int]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


V2 = {"proc/self/cgroup": "0::/job"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/job"}


@pytest.mark.parametrize(
    ("files", "quota", "usable"),
    [
        ({}, None, 8),
        ({**V2, "sys/fs/cgroup/job/cpu.max": "max 100000"}, None, 8),
        ({**V2, "sys/fs/cgroup/job/cpu.max": "250000 100000"}, 2.5, 2.5),
        ({**V2, "sys/fs/cgroup/job/cpu.max": "1200000 100000"}, 12, 8),
        ({**V2, "sys/fs/cgroup/cpu.max": "100000 100000", "sys/fs/cgroup/job/cpu.max": "300000 100000"}, 1, 1),
        ({**V2, "sys/fs/cgroup/job/cpu.max": "nonsense"}, None, 8),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            4,
            4,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            None,
            8,
        ),
    ],
)
def test_cores(tmp_path, files, quota, usable):
    write(tmp_path, files)
    found = cores(tmp_path)
    assert (found.machine, found.affinity, found.quota, found.usable) == (16, 8, quota, usable)


def test_cores_where_the_scheduler_has_no_affinity(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores(tmp_path).usable == 16


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
    write(tmp_path, {"proc/self/cgroup": "0::/job", **v2_group("job", 300 * MB, 100 * MB)})
    assert free_memory_bytes(tmp_path) == 200 * MB


def test_version_2_without_a_limit(tmp_path):
    write(tmp_path, {"proc/self/cgroup": "0::/job", **v2_group("job", "max", 100 * MB)})
    assert free_memory_bytes(tmp_path) == MACHINE_BYTES


@pytest.mark.parametrize("tightest", ["", "slice", "slice/job", "slice/job/step"])
def test_the_tightest_of_nested_groups_counts(tmp_path, tightest):
    write(tmp_path, {"proc/self/cgroup": "0::/slice/job/step"})
    for path in ("", "slice", "slice/job", "slice/job/step"):
        limit = 150 * MB if path == tightest else 700 * MB
        write(tmp_path, v2_group(path, limit, 100 * MB))
    assert free_memory_bytes(tmp_path) == 50 * MB


def test_a_group_that_is_not_this_process_s_does_not_count(tmp_path):
    write(
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
    write(tmp_path, {"proc/self/cgroup": "0::/kubepods/pod1/container1", **v2_group("", 300 * MB, 100 * MB)})
    assert free_memory_bytes(tmp_path) == 200 * MB


def test_page_cache_of_a_group_counts_as_free(tmp_path):
    stat = f"anon {60 * MB}\nfile {40 * MB}\ninactive_file {30 * MB}\nactive_file {10 * MB}"
    write(tmp_path, {"proc/self/cgroup": "0::/job", **v2_group("job", 300 * MB, 100 * MB, stat)})
    assert free_memory_bytes(tmp_path) == 230 * MB


V1_LINES = "12:cpu,cpuacct:/job\n9:memory:/job\n1:name=systemd:/job"


def test_version_1(tmp_path):
    stat = f"cache {40 * MB}\ninactive_file {1 * MB}\ntotal_inactive_file {30 * MB}"
    write(tmp_path, {"proc/self/cgroup": V1_LINES, **v1_group("job", 300 * MB, 100 * MB, stat)})
    assert free_memory_bytes(tmp_path) == 230 * MB


def test_version_1_parents_count_too(tmp_path):
    lines = "9:memory:/slice/job"
    write(
        tmp_path,
        {
            "proc/self/cgroup": lines,
            **v1_group("slice/job", 900 * MB, 100 * MB),
            **v1_group("slice", 250 * MB, 150 * MB),
        },
    )
    assert free_memory_bytes(tmp_path) == 100 * MB


def test_version_1_s_huge_number_is_no_limit(tmp_path):
    write(tmp_path, {"proc/self/cgroup": V1_LINES, **v1_group("job", 0x7FFFFFFFFFFFF000, 100 * MB)})
    assert free_memory_bytes(tmp_path) == MACHINE_BYTES


def test_both_versions_mounted(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": f"{V1_LINES}\n0::/job",
            **v1_group("job", 300 * MB, 100 * MB),
            **v2_group("job", 260 * MB, 100 * MB),
        },
    )
    assert free_memory_bytes(tmp_path) == 160 * MB


def test_more_used_than_allowed_leaves_nothing(tmp_path):
    write(tmp_path, {"proc/self/cgroup": "0::/job", **v2_group("job", 100 * MB, 130 * MB)})
    assert free_memory_bytes(tmp_path) == 0


@pytest.mark.parametrize("damage", ["", "a limit", "-"])
def test_files_that_cannot_be_understood_are_no_limit(tmp_path, damage):
    write(tmp_path, {"proc/self/cgroup": "0::/job\nnonsense", **v2_group("job", damage, 0)})
    assert free_memory_bytes(tmp_path) == MACHINE_BYTES


def test_this_machine(monkeypatch):
    monkeypatch.undo()
    assert 0 < free_memory_bytes() <= psutil.virtual_memory().total
    assert 0 < cores().usable <= cores().affinity <= cores().machine
    assert cpu_features().name


def test_the_limit_is_the_least_of_the_groups(tmp_path):
    write(tmp_path, {"proc/self/cgroup": "0::/slice/job"})
    assert memory_limit_bytes(tmp_path) is None
    write(tmp_path, {**v2_group("slice", 500 * MB, 1), **v2_group("slice/job", "max", 1)})
    assert memory_limit_bytes(tmp_path) == 500 * MB


def test_version_1_s_huge_number_is_no_limit_to_tell(tmp_path):
    write(tmp_path, {"proc/self/cgroup": V1_LINES, **v1_group("job", 0x7FFFFFFFFFFFF000, 100 * MB)})
    assert memory_limit_bytes(tmp_path) is None


GPUS = {
    # name: (vendor, compute capability, Tensor Cores, bfloat16)
    "NVIDIA GeForce GTX 1080": ("nvidia", (6, 1), False, False),
    "Tesla P100-PCIE-16GB": ("nvidia", (6, 0), False, False),
    "Tesla V100-SXM2-16GB": ("nvidia", (7, 0), True, False),
    "Tesla T4": ("nvidia", (7, 5), True, False),
    "NVIDIA GeForce GTX 1650": ("nvidia", (7, 5), False, False),
    "NVIDIA GeForce GTX 1660 Ti": ("nvidia", (7, 5), False, False),
    "NVIDIA T1000": ("nvidia", (7, 5), False, False),
    "NVIDIA A100-SXM4-40GB": ("nvidia", (8, 0), True, True),
    "NVIDIA GeForce RTX 3060": ("nvidia", (8, 6), True, True),
    "NVIDIA H100 80GB HBM3": ("nvidia", (9, 0), True, True),
    "NVIDIA B200": ("nvidia", (10, 0), True, True),
    "AMD Instinct MI25": ("amd", None, False, False),
    "AMD Instinct MI100": ("amd", None, True, False),
    "AMD Instinct MI250X": ("amd", None, True, True),
    "AMD Instinct MI300X": ("amd", None, True, True),
    "AMD Radeon RX 6800": ("amd", None, None, None),
    "gfx1030": ("amd", None, None, None),
    "Apple M1 Pro": ("apple", None, False, None),
    "METAL": ("apple", None, False, None),
    "Some other GPU": ("unknown", None, None, None),
}


@pytest.mark.parametrize("name", GPUS)
def test_gpus(name):
    vendor, capability, tensor_cores, bfloat16 = GPUS[name]
    details = {"device_name": name} | ({"compute_capability": capability} if capability else {})
    gpu = gpu_features(details)
    assert (gpu.name, gpu.vendor, gpu.compute_capability) == (name, vendor, capability)
    assert (gpu.tensor_cores, gpu.bfloat16) == (tensor_cores, bfloat16)


def test_a_gpu_without_details():
    gpu = gpu_features({})
    assert (gpu.name, gpu.tensor_cores, gpu.bfloat16) == ("unnamed GPU", None, None)


def test_a_gpu_in_words():
    assert str(gpu_features({"device_name": "Tesla T4", "compute_capability": (7, 5)})) == (
        "Tesla T4 (compute capability 7.5)"
    )
    assert str(gpu_features({"device_name": "Apple M1"})) == "Apple M1"


@pytest.mark.parametrize("value", ["8.0", 8.0, (8,), ("eight", "zero"), (8, 0, 1)])
def test_a_capability_that_is_none(value):
    with pytest.raises(ValueError, match=r"must be two whole numbers, such as \(8, 0\), or None. Received"):
        gpu_features({"compute_capability": value})


X86 = "processor\t: 0\nmodel name\t: {name}\nflags\t\t: fpu sse2 avx2 {flags}\n\nprocessor\t: 1\nflags\t\t: fpu\n"


def processor(folder: Path, cpuinfo: str):
    (folder / "cpuinfo").write_text(cpuinfo)
    return cpu_features(folder / "cpuinfo")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx512f avx512_bf16", ("avx512_bf16",)),
        ("avx512f avx512_bf16 amx_tile amx_bf16", ("avx512_bf16", "amx_bf16")),
        ("avx512f avx512_vnni", ()),
        ("avx_ne_convert", ()),
        ("", ()),
    ],
)
def test_x86_processors(tmp_path, flags, expected):
    cpu = processor(tmp_path, X86.format(name="AMD EPYC 9554", flags=flags))
    assert (cpu.name, cpu.bfloat16_instructions) == ("AMD EPYC 9554", expected)


def test_an_arm_processor(tmp_path):
    cpu = processor(tmp_path, "processor : 0\nFeatures : fp asimd sve i8mm bf16\n")
    assert cpu.bfloat16_instructions == ("bf16",)
    assert cpu.name


def test_a_system_that_does_not_tell(tmp_path):
    assert cpu_features(tmp_path / "missing").bfloat16_instructions == ()
    assert processor(tmp_path, "").name


UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")


def gpu(index, uuid=None, **more):
    return Gpu(index, uuid or UUIDS[index], f"0000:0{index + 1}:00.0", "A100", 40_000.0, (8, 0), **more)


def part(index, uuid, instance):
    return gpu(index, uuid, mig_parent_uuid=UUIDS[index], mig_instance=instance)


THREE = [WholeGpu(gpu(0)), WholeGpu(gpu(1)), WholeGpu(gpu(2))]


def chosen(machine, value=None, order=None):
    environ = {"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": order}
    return visible_to_cuda(machine, {name: text for name, text in environ.items() if text is not None})


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("9" * 5000, []),
        ("0" * 5000 + "2", [2]),
        ("1234567890", []),
        ("1,99999999999999999999,0", [1]),
        ("\uff11", []),
        ("0, 1 ,2", [0, 1, 2]),
        ("0,3,1", [0]),
        ("3", []),
        ("0,,1", [0]),
        ("1,", [1]),
        ("NoDevFiles", []),
        ("1x,2y", [1, 2]),
        ("0,1,0", []),
        ("GPU-bb33,GPU-aa11", [2, 0]),
        ("gpu-BB33", [2]),
        ("GPU-b", [2]),
        ("GPU-aa2", [1]),
        ("GPU-aa", []),
        ("GPU-bb33,GPU-cc,GPU-aa11", [2]),
        ("GPU-bb33,0", [2]),
        ("0,GPU-bb33", [0]),
        ("GPU-bb33,GPU-b", []),
        ("MIG-1234", []),
    ],
)
def test_of_three_gpus(value, indices):
    assert [one.index for one in chosen(THREE, value)] == indices


def test_indices_are_matched_by_pci_bus_id_not_by_the_order_of_nvml():
    listed = [THREE[2], THREE[0], THREE[1]]
    assert [one.pci_bus_id for one in chosen(listed, "0,2", "PCI_BUS_ID")] == ["0000:01:00.0", "0000:03:00.0"]


def test_the_fastest_is_first_unless_the_order_is_that_of_the_bus():
    machine = [WholeGpu(gpu(0), speed=1.0), WholeGpu(gpu(1), speed=3.0), WholeGpu(gpu(2), speed=1.0)]
    assert [one.index for one in chosen(machine)] == [1, 0, 2]
    assert [one.index for one in chosen(machine, "0,2")] == [1, 2]
    assert [one.index for one in chosen(machine, "0,2", "FASTEST_FIRST")] == [1, 2]
    assert [one.index for one in chosen(machine, "0,2", "PCI_BUS_ID")] == [0, 2]
    unknown = [machine[0], machine[1], WholeGpu(gpu(2))]
    assert [one.index for one in chosen(unknown)] == [0, 1, 2]


PARTS = (part(1, "MIG-1111", (3, 0)), part(1, "MIG-2222", (4, 0)))
WITH_PARTS = [THREE[0], WholeGpu(gpu(1), PARTS), THREE[2]]


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        (None, ["GPU-aa11", "GPU-bb33"]),
        ("1", ["MIG-1111"]),
        ("1,0", ["MIG-1111"]),
        ("0,1,2", ["GPU-aa11", "GPU-bb33"]),
        ("MIG-2222", ["MIG-2222"]),
        ("MIG-2", ["MIG-2222"]),
        ("MIG-2222,MIG-1111", ["MIG-2222"]),
        ("MIG-GPU-aa22/4/0", ["MIG-2222"]),
        ("MIG-GPU-aa22/9/0", []),
        ("GPU-aa22", []),
    ],
)
def test_with_mig_instances(value, uuids):
    assert [one.uuid for one in chosen(WITH_PARTS, value)] == uuids


def test_a_gpu_that_is_in_mig_mode_without_instances_is_not_there():
    assert chosen([WholeGpu(gpu(0), ())]) == []
    assert [one.index for one in chosen([WholeGpu(gpu(0), ()), THREE[1]], "0")] == [1]
