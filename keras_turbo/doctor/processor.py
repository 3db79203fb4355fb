"""What the process really has of the machine: cores, instructions, memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from keras_turbo.doctor.findings import Finding
from keras_turbo.machine import Cores, cores, cpu_features, free_memory_bytes, memory_limit_bytes
from keras_turbo.report import listed

TOPIC = "CPU and memory"

_GB = 2**30

# As the kernel names them; what TensorFlow's oneDNN chooses its kernels by.
_VECTOR_INSTRUCTIONS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve")

# Cores that decode for one GPU. One core decodes about 1,400 JPEGs of 500x375 pixels a second and does nothing else
# then (measured); GPUs train image models on some thousands.
_FEW_CORES_A_GPU = 4

# Docker gives a container this much unless it is told otherwise.
_SMALL_SHM_BYTES = 64 * 2**20

_LITTLE_MEMORY_BYTES = 2 * _GB


@dataclasses.dataclass(frozen=True)
class Processor:
    """What this process has.

    Attributes:
        name: of the processor.
        instructions: of `_VECTOR_INSTRUCTIONS`, those that it has; None where the system does not tell.
        bfloat16_instructions: those that multiply bfloat16.
        cores: how many.
        memory_bytes: of the machine; None where the system does not tell.
        memory_limit_bytes: of the container; None where it has none.
        memory_free_bytes: that can still be taken; None where the system does not tell.
        shm_bytes: size of /dev/shm; None where there is none.
        shm_free_bytes: what is left of it.
    """

    name: str
    instructions: tuple[str, ...] | None
    bfloat16_instructions: tuple[str, ...]
    cores: Cores
    memory_bytes: int | None
    memory_limit_bytes: int | None
    memory_free_bytes: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None


def read_processor(root: Path = Path("/")) -> Processor:
    """Reads what the kernel says.

    Args:
        root: folder in place of the file system's root, for tests.

    Returns:
        The facts.
    """
    import psutil

    cpu = cpu_features(root / "proc/cpuinfo")
    try:
        memory, free = psutil.virtual_memory().total, free_memory_bytes(root)
    except (psutil.Error, OSError, ValueError):  # /proc is not mounted, or is not that of Linux
        memory = free = None
    shm, shm_free = _room_in(root / "dev/shm")
    return Processor(
        name=cpu.name,
        instructions=tuple(one for one in _VECTOR_INSTRUCTIONS if one in cpu.flags) if cpu.flags else None,
        bfloat16_instructions=cpu.bfloat16_instructions,
        cores=cores(root),
        memory_bytes=memory,
        memory_limit_bytes=memory_limit_bytes(root),
        memory_free_bytes=free,
        shm_bytes=shm,
        shm_free_bytes=shm_free,
    )


def findings(processor: Processor, environ: Mapping[str, str], gpu_number: int) -> list[Finding]:
    """What they mean for training.

    Args:
        processor: the facts.
        environ: the environment of the process.
        gpu_number: GPUs of this process.

    Returns:
        The findings.
    """
    return [
        *_instructions(processor, environ),
        *_cores(processor.cores, gpu_number),
        *_memory(processor),
        *_shm(processor.shm_bytes, processor.shm_free_bytes, gpu_number),
    ]


def _instructions(processor: Processor, environ: Mapping[str, str]) -> list[Finding]:
    if processor.instructions is None:
        found = [Finding(TOPIC, "ok", f"{processor.name}.")]
    else:
        fact = f"{processor.name}: {listed(processor.instructions) or 'no vector instructions'}"
        if "asimd" not in processor.instructions and "avx2" not in processor.instructions:
            found = [
                Finding(
                    TOPIC,
                    "warning",
                    f"{fact}; no AVX2: several times slower than processors since 2013.",
                    "In a virtual machine, pass the host's processor through (-cpu host).",
                )
            ]
        elif processor.bfloat16_instructions:
            found = [Finding(TOPIC, "ok", f"{fact}; multiplies bfloat16: kt.use_mixed_precision() measures it.")]
        else:
            found = [Finding(TOPIC, "ok", f"{fact}.")]
    if environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false"):
        found.append(
            Finding(
                TOPIC,
                "warning",
                "TF_ENABLE_ONEDNN_OPTS=0 switches TensorFlow's fast CPU operations off.",
                "Unset it, unless results must be those of a machine without them, bit for bit.",
            )
        )
    return found


def _cores(have: Cores, gpu_number: int) -> list[Finding]:
    figures = {"cores_of_machine": have.machine, "cores_of_affinity": have.affinity, "cores_usable": have.usable}
    number = f"{have.usable:g} core{'' if have.usable == 1 else 's'}"
    if have.quota is not None and have.quota < have.affinity:
        threads = max(1, round(have.quota))
        found = [
            Finding(
                TOPIC,
                "warning",
                f"The container's quota is worth {number}; TensorFlow sees {have.affinity} and starts as "
                "many threads, which are then stopped in turn.",
                f"TF_NUM_INTRAOP_THREADS={threads} TF_NUM_INTEROP_THREADS={threads}, or a larger quota (docker --cpus, "
                "Kubernetes' limits).",
                figures,
            )
        ]
    elif have.affinity == 1 < have.machine:
        found = [
            Finding(
                TOPIC,
                "warning",
                f"1 core of the machine's {have.machine}: reading, decoding and training take turns on it.",
                "Ask for more: sbatch --cpus-per-task, docker --cpuset-cpus, taskset. An OpenMP setting such as "
                "KMP_AFFINITY may also have bound it.",
                figures,
            )
        ]
    elif have.affinity < have.machine:
        found = [
            Finding(
                TOPIC,
                "ok",
                f"{number} of the machine's {have.machine} (affinity: Slurm, taskset or a cpuset).",
                figures=figures,
            )
        ]
    else:
        found = [Finding(TOPIC, "ok", f"{number}, all that the machine has.", figures=figures)]
    if gpu_number and have.usable < _FEW_CORES_A_GPU * gpu_number:
        found.append(
            Finding(
                TOPIC,
                "warning",
                f"{have.usable / gpu_number:g} cores for each GPU: they may not decode images as fast as it trains.",
                'Ask for more (sbatch --cpus-per-task), or decode once: FastDataset(..., cache="auto").',
            )
        )
    return found


def _memory(processor: Processor) -> list[Finding]:
    limit, total, free = processor.memory_limit_bytes, processor.memory_bytes, processor.memory_free_bytes
    if total is None or free is None:
        return [
            Finding(
                TOPIC,
                "warning",
                "The system does not tell how much memory there is.",
                "Mount /proc; without it nothing can tell whether decoded data fits into memory.",
            )
        ]
    figures = {
        "memory_gb": total / _GB,
        "memory_limit_gb": None if limit is None else limit / _GB,
        "free_gb": free / _GB,
    }
    fact = f"{free / _GB:.1f} GB of memory free of {total / _GB:.1f}"
    if limit is not None and limit < total:
        fact = f"{free / _GB:.1f} GB of memory free; the limit is {limit / _GB:.1f} of the machine's {total / _GB:.1f}"
    if free < _LITTLE_MEMORY_BYTES:
        return [
            Finding(
                TOPIC,
                "warning",
                f"{fact}.",
                "Give it more (docker --memory, sbatch --mem), or end what takes it: with less, training is killed "
                "without a word.",
                figures,
            )
        ]
    return [Finding(TOPIC, "ok", f"{fact}.", figures=figures)]


def _shm(size: int | None, free: int | None, gpu_number: int) -> list[Finding]:
    if size is None or free is None:
        return [
            Finding(
                TOPIC,
                "warning",
                "There is no /dev/shm: NCCL needs it, and so do worker processes of Python's multiprocessing.",
                "Mount a tmpfs.",
            )
        ]
    figures = {"shm_mb": size / 2**20, "shm_free_mb": free / 2**20}
    if size > _SMALL_SHM_BYTES:
        fact = f"/dev/shm: {free / _GB:.1f} GB free of {size / _GB:.1f}."
        if free > _SMALL_SHM_BYTES:
            return [Finding(TOPIC, "ok", fact, figures=figures)]
        return [
            Finding(
                TOPIC,
                "warning",
                f"{fact} NCCL fails when it is full, and so do worker processes of Python's multiprocessing.",
                "Remove what programs that were killed left there (ls -l /dev/shm).",
                figures,
            )
        ]
    many = gpu_number > 1
    return [
        Finding(
            TOPIC,
            "error" if many else "warning",
            f"/dev/shm has {size / 2**20:.0f} MB: "
            + ("NCCL fails with it" if many else "too few for worker processes of Python's multiprocessing")
            + ".",
            "docker run --shm-size=8g (or --ipc=host); in Kubernetes mount an emptyDir with medium: Memory there.",
            figures,
        )
    ]


def _room_in(folder: Path) -> tuple[int | None, int | None]:
    """The size of a file system and what is free in it; None and None where there is none."""
    try:
        status = os.statvfs(folder)
    except (OSError, AttributeError):  # AttributeError: Windows
        return None, None
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail
