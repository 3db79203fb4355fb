"""What the process really has of the machine: cores, instructions, memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from keras_turbo.doctor.findings import Finding, error, ok, warning
from keras_turbo.machine import Cores, CpuFeatures, cores, cpu_features, free_memory_bytes, memory_limit_bytes
from keras_turbo.report import listed

_MB, _GB = 2**20, 2**30

# As the kernel names them; what TensorFlow's oneDNN chooses its kernels by.
_VECTOR_INSTRUCTIONS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve")
# Cores that decode for one GPU. One core decodes about 1,400 JPEGs of 500x375 pixels a second and does nothing else
# then (measured); GPUs train image models on some thousands.
_FEW_CORES_A_GPU = 4
# Docker gives a container this much unless it is told otherwise.
_SMALL_SHM_BYTES = 64 * _MB
_LITTLE_MEMORY_BYTES = 2 * _GB


@dataclass(frozen=True)
class Processor:
    """What this process has; None is what there is not, or what the system does not tell."""

    cpu: CpuFeatures
    cores: Cores
    memory_bytes: int | None
    memory_limit_bytes: int | None
    memory_free_bytes: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None


def read_processor(root: Path = Path("/")) -> Processor:
    """Reads what the kernel says; `root` is the folder in place of the file system's root, for tests."""
    import psutil

    try:
        memory, free = psutil.virtual_memory().total, free_memory_bytes(root)
    except (psutil.Error, OSError, ValueError):  # /proc is not mounted, or is not that of Linux
        memory = free = None
    try:
        shm = os.statvfs(root / "dev/shm")
        room = shm.f_frsize * shm.f_blocks, shm.f_frsize * shm.f_bavail
    except (OSError, AttributeError):  # AttributeError: Windows
        room = None, None
    limit = memory_limit_bytes(root)
    return Processor(cpu_features(root / "proc/cpuinfo"), cores(root), memory, limit, free, *room)


def findings(environ: Mapping[str, str], gpu_number: int, processor: Processor | None = None) -> Iterator[Finding]:
    """What it means for training.

    Args:
        environ: the environment of the process.
        gpu_number: GPUs of this process.
        processor: the facts; those of this machine by default.
    """
    processor = read_processor() if processor is None else processor
    yield _instructions(processor.cpu)
    if environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false"):
        yield warning(
            "TF_ENABLE_ONEDNN_OPTS=0 switches TensorFlow's fast CPU operations off.",
            "Unset it, unless results must be those of a machine without them, bit for bit.",
        )
    yield _cores(processor.cores)
    usable = processor.cores.usable
    if gpu_number and usable < _FEW_CORES_A_GPU * gpu_number:
        yield warning(
            f"{usable / gpu_number:g} cores for each GPU: they may not decode images as fast as it trains.",
            'Ask for more (sbatch --cpus-per-task), or decode once: FastDataset(..., cache="auto").',
        )
    yield _memory(processor.memory_limit_bytes, processor.memory_bytes, processor.memory_free_bytes)
    yield _shm(processor.shm_bytes, processor.shm_free_bytes, gpu_number)


def _instructions(cpu: CpuFeatures) -> Finding:
    if not cpu.flags:
        return ok(f"{cpu.name}.")
    fact = (
        f"{cpu.name}: {listed([one for one in _VECTOR_INSTRUCTIONS if one in cpu.flags]) or 'no vector instructions'}"
    )
    if not cpu.flags & {"asimd", "avx2"}:
        return warning(
            f"{fact}; no AVX2: several times slower than processors since 2013.",
            "In a virtual machine, pass the host's processor through (-cpu host).",
        )
    multiplies = "; multiplies bfloat16: kt.use_mixed_precision() measures it" if cpu.bfloat16_instructions else ""
    return ok(f"{fact}{multiplies}.")


def _cores(have: Cores) -> Finding:
    figures = {"cores_of_machine": have.machine, "cores_of_affinity": have.affinity, "cores_usable": have.usable}
    number = f"{have.usable:g} core{'' if have.usable == 1 else 's'}"
    if have.quota is not None and have.quota < have.affinity:
        threads = max(1, round(have.quota))
        return warning(
            f"The container's quota is worth {number}; TensorFlow sees {have.affinity} and starts as many threads, "
            "which are then stopped in turn.",
            f"TF_NUM_INTRAOP_THREADS={threads} TF_NUM_INTEROP_THREADS={threads}, or a larger quota (docker --cpus, "
            "Kubernetes' limits).",
            **figures,
        )
    if have.affinity == 1 < have.machine:
        return warning(
            f"1 core of the machine's {have.machine}: reading, decoding and training take turns on it.",
            "Ask for more: sbatch --cpus-per-task, docker --cpuset-cpus, taskset. An OpenMP setting such as "
            "KMP_AFFINITY may also have bound it.",
            **figures,
        )
    if have.affinity < have.machine:
        return ok(f"{number} of the machine's {have.machine} (affinity: Slurm, taskset or a cpuset).", **figures)
    return ok(f"{number}, all that the machine has.", **figures)


def _memory(limit: int | None, total: int | None, free: int | None) -> Finding:
    if total is None or free is None:
        return warning(
            "The system does not tell how much memory there is.",
            "Mount /proc; without it nothing can tell whether decoded data fits into memory.",
        )
    limit_gb = None if limit is None else limit / _GB
    figures = {"memory_gb": total / _GB, "memory_limit_gb": limit_gb, "free_gb": free / _GB}
    fact = f"{free / _GB:.1f} GB of memory free of {total / _GB:.1f}."
    if limit is not None and limit < total:
        fact = f"{free / _GB:.1f} GB of memory free; the limit is {limit / _GB:.1f} of the machine's {total / _GB:.1f}."
    if free >= _LITTLE_MEMORY_BYTES:
        return ok(fact, **figures)
    return warning(
        fact,
        "Give it more (docker --memory, sbatch --mem), or end what takes it: with less, training is killed without a "
        "word.",
        **figures,
    )


def _shm(size: int | None, free: int | None, gpu_number: int) -> Finding:
    if size is None or free is None:
        return warning(
            "There is no /dev/shm: NCCL needs it, and so do worker processes of Python's multiprocessing.",
            "Mount a tmpfs.",
        )
    figures = {"shm_mb": size / _MB, "shm_free_mb": free / _MB}
    if size <= _SMALL_SHM_BYTES:
        hint = "docker run --shm-size=8g (or --ipc=host); in Kubernetes mount an emptyDir with medium: Memory there."
        if gpu_number > 1:
            return error(f"/dev/shm has {size / _MB:.0f} MB: NCCL fails with it.", hint, **figures)
        few = "too few for worker processes of Python's multiprocessing"
        return warning(f"/dev/shm has {size / _MB:.0f} MB: {few}.", hint, **figures)
    fact = f"/dev/shm: {free / _GB:.1f} GB free of {size / _GB:.1f}."
    if free > _SMALL_SHM_BYTES:
        return ok(fact, **figures)
    return warning(
        f"{fact} NCCL fails when it is full, and so do worker processes of Python's multiprocessing.",
        "Remove what programs that were killed left there (ls -l /dev/shm).",
        **figures,
    )
