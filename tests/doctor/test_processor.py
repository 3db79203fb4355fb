"""Cores, instructions, memory, /dev/shm."""

from __future__ import annotations

import dataclasses
import os

import pytest

from keras_turbo.doctor.processor import Processor, findings, read_processor
from keras_turbo.machine import Cores, CpuFeatures
from tests.doctor.judging import checked, only, worst

GB = 2**30
GOOD = Processor(
    CpuFeatures("EPYC", (), frozenset({"avx", "avx2", "fma"})),
    Cores(16, 16, None),
    64 * GB,
    None,
    60 * GB,
    32 * GB,
    31 * GB,
)


def cpu(*flags, bfloat16=()):
    return {"cpu": CpuFeatures("EPYC", bfloat16, frozenset(flags))}


def judged(environ=None, gpu_number=0, **changes):
    return checked(list(findings(environ or {}, gpu_number, dataclasses.replace(GOOD, **changes))))


def test_a_good_machine():
    found = judged(gpu_number=2)
    assert worst(found) == "ok"
    assert only(found, "16 cores, all that the machine has.")
    assert only(found, "60.0 GB of memory free of 64.0.")
    assert only(found, "/dev/shm: 31.0 GB free of 32.0.")


@pytest.mark.parametrize(
    ("changes", "gpu_number", "level", "part"),
    [
        (cpu("avx"), 0, "warning", "no AVX2"),
        (cpu("fpu"), 0, "warning", "no vector instructions"),
        (cpu("asimd"), 0, "ok", "EPYC: asimd."),
        (cpu(), 0, "ok", "EPYC."),
        (cpu("avx2", bfloat16=("amx_bf16",)), 0, "ok", "multiplies bfloat16"),
        ({"cores": Cores(64, 8, None)}, 0, "ok", "8 cores of the machine's 64"),
        ({"cores": Cores(64, 1, None)}, 0, "warning", "1 core of the machine's 64"),
        ({"cores": Cores(1, 1, None)}, 0, "ok", "1 core, all that the machine has"),
        ({"cores": Cores(64, 64, 2.5)}, 0, "warning", "is worth 2.5 cores; TensorFlow sees 64"),
        ({"cores": Cores(8, 8, 8.0)}, 0, "ok", "8 cores, all"),
        ({"cores": Cores(16, 16, None)}, 8, "warning", "2 cores for each GPU"),
        ({"memory_limit_bytes": 8 * GB, "memory_free_bytes": 6 * GB}, 0, "ok", "the limit is 8.0 of the machine's"),
        ({"memory_limit_bytes": 4 * GB, "memory_free_bytes": GB}, 0, "warning", "1.0 GB of memory free"),
        ({"shm_bytes": 64 * 2**20}, 0, "warning", "too few for worker processes"),
        ({"shm_bytes": 64 * 2**20}, 2, "error", "NCCL fails with it"),
        ({"shm_bytes": None}, 0, "warning", "no /dev/shm"),
        ({"shm_free_bytes": 2**20}, 0, "warning", "/dev/shm: 0.0 GB free of 32.0."),
        ({"memory_bytes": None, "memory_free_bytes": None}, 0, "warning", "does not tell how much memory"),
    ],
)
def test_what_a_machine_may_lack(changes, gpu_number, level, part):
    assert only(judged(gpu_number=gpu_number, **changes), part).level == level


def test_the_quota_says_how_many_threads():
    assert "TF_NUM_INTRAOP_THREADS=2 " in only(judged(cores=Cores(64, 64, 2.4)), "quota").hint
    assert "TF_NUM_INTRAOP_THREADS=1 " in only(judged(cores=Cores(64, 64, 0.3)), "quota").hint


def test_onednn_switched_off():
    assert only(judged({"TF_ENABLE_ONEDNN_OPTS": "0"}), "TF_ENABLE_ONEDNN_OPTS=0").level == "warning"
    assert worst(judged({"TF_ENABLE_ONEDNN_OPTS": "1"})) == "ok"


def test_from_the_kernel_s_files(tmp_path):
    for name, text in {
        "proc/cpuinfo": "model name : Some CPU\nflags : fpu avx avx2 fma avx512f avx512_bf16 rdtscp\n",
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/job/memory.max": f"{3 * GB}\n",
        "sys/fs/cgroup/job/memory.current": f"{GB}\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    processor = read_processor(tmp_path)
    fact = "Some CPU: avx, avx2, fma, avx512f, avx512_bf16; multiplies bfloat16"
    assert only(list(findings({}, 0, processor)), fact).level == "ok"
    assert processor.cores.quota == 0.5
    assert processor.memory_limit_bytes == 3 * GB
    assert processor.memory_free_bytes == 2 * GB
    assert processor.shm_bytes is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert read_processor(tmp_path).shm_bytes > 0


def test_without_proc_the_rest_is_told(tmp_path, monkeypatch):
    def no_meminfo():
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    monkeypatch.setattr("psutil.virtual_memory", no_meminfo)
    found = checked(list(findings({}, 0, read_processor(tmp_path))))
    assert only(found, "does not tell how much memory")
    assert [one for one in found if " core" in one.fact]


def test_no_linux(tmp_path):
    processor = read_processor(tmp_path)
    assert not processor.cpu.flags
    assert processor.cores.machine == os.cpu_count()
