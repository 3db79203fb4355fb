"""What this machine has for this process: cores and memory within the limits of its container, processor, GPUs.

psutil tells what the machine has; it does not look at control groups, whose limits are those of a container or a job.
Nothing here imports TensorFlow.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

# Control groups whose limit is above this are not limited: version 1 writes a huge number in place of "max".
_UNLIMITED_BYTES = 1 << 60

# First compute capabilities of NVIDIA's GPUs that have Tensor Cores (Volta), and whose Tensor Cores take bfloat16
# (Ampere): CUDA C++ Programming Guide, "Compute Capabilities".
_TENSOR_CORES_SINCE = (7, 0)
_BFLOAT16_SINCE = (8, 0)

# Turing's small chips (TU116 and TU117) have capability 7.5 and no Tensor Cores all the same.
_WITHOUT_TENSOR_CORES = re.compile(
    r"\bGTX 16\d\d|\b(T400|T500|T550|T600|T1000|T1200|T2000|MX450|MX550)\b", re.IGNORECASE
)

# AMD's Instinct: matrix cores from MI100 on. MI100 multiplies bfloat16 at half the rate of float16, later ones at the
# same.
_AMD_INSTINCT = re.compile(r"\bMI(\d)\d{1,2}[A-Z]?\b", re.IGNORECASE)
_AMD_NAMES = re.compile(r"\b(AMD|Radeon|Instinct|gfx\d+)", re.IGNORECASE)
_APPLE_NAMES = re.compile(r"\b(Apple|METAL)\b", re.IGNORECASE)

# As the kernel of Linux names them: on x86 in the line "flags", on ARM in the line "Features".
_BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16", "svebf16")

# With more digits it is no GPU's number, and Python refuses to read thousands of them.
_NUMBER = re.compile(r"\s*([+-]?)0*([0-9]{1,9})")
_OLD_MIG_NAME = re.compile(r"mig-(gpu-[^/]+)/(\d+)/(\d+)", re.IGNORECASE)


class ControlGroup(NamedTuple):
    """A control group of Linux that holds this process.

    Attributes:
        folder: the group's files are there.
        version: of the hierarchy: 1 or 2. Their files have other names.
    """

    folder: Path
    version: int

    def read(self, name: str) -> str:
        """The text of one of its files; empty where it is not there or can't be read."""
        try:
            return (self.folder / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def read_int(self, name: str, key: str | None = None) -> int | None:
        """The number in a file, or behind a key in a file of lines `key number`; None where there is none ("max")."""
        lines = (line.rpartition(" ") for line in self.read(name).splitlines())
        text = next((value for found, _, value in lines if found == (key or "")), "")
        return int(text) if re.fullmatch("-?[0-9]+", text) else None


def control_groups(controller: Literal["cpu", "memory"], root: str | Path = "/") -> list[ControlGroup]:
    """The groups of this process, and all their parents, in which a controller may limit it; each before its parents.

    Args:
        controller: as version 1 names it.
        root: in place of the root that has `/proc` and `/sys`, for tests.
    """
    try:
        # A group's name may be any bytes, as those of files.
        lines = Path(root, "proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # no Linux, or /proc is not mounted
        return []
    groups = []
    for line in lines:
        hierarchy, _, path = line.partition(":")
        controllers, _, path = path.partition(":")
        if hierarchy == "0" and not controllers:
            mount, version = Path(root, "sys/fs/cgroup"), 2
        elif controller in controllers.split(","):
            mount, version = Path(root, "sys/fs/cgroup", controller), 1
        else:
            continue
        parts = PurePosixPath(path).parts[1:]
        # Inside a container the path may be that of the host, of which only the mount's own top is to be seen.
        groups += [ControlGroup(mount.joinpath(*parts[:depth]), version) for depth in range(len(parts), -1, -1)]
    return groups


class Cores(NamedTuple):
    """How many cores this process may use.

    Attributes:
        machine: all that the machine has, as `os.cpu_count()` says.
        affinity: those on which the scheduler may run it (taskset, Slurm, `docker --cpuset-cpus`).
        quota: how many cores' worth of time its control groups grant it (`docker --cpus`, Kubernetes' limits); None
            where they grant all.
    """

    machine: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> float:
        """Cores' worth of time that this process can get, such as 2.5."""
        return float(self.affinity) if self.quota is None else min(float(self.affinity), self.quota)


def cores(root: str | Path = "/") -> Cores:
    """How many cores this process may use; `root` as in `control_groups`."""
    quotas = [cpu_quota(group) for group in control_groups("cpu", root)]
    quota = min((one for one in quotas if one is not None), default=None)
    return Cores(os.cpu_count() or 1, len(core_numbers()), quota)


def core_numbers() -> list[int]:
    """The cores on which the scheduler may run this process."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_quota(group: ControlGroup) -> float | None:
    """How many cores' worth of time a group grants; None where it grants all."""
    if group.version == 2:
        granted, _, period = group.read("cpu.max").partition(" ")
    else:
        granted, period = group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")
    try:
        # Where nothing limits it, version 2 says "max" and version 1 says -1.
        return int(granted) / int(period) if int(granted) > 0 and int(period) > 0 else None
    except ValueError:
        return None


def free_memory_bytes(root: str | Path = "/") -> int:
    """Bytes that can still be allocated before something is killed or swapped; `root` as in `control_groups`.

    The least of what the machine has available and what is left below the limit of each control group. Page cache that
    belongs to a control group counts as free, since the kernel drops it first.
    """
    import psutil

    free = psutil.virtual_memory().available
    for group in control_groups("memory", root):
        is_new = group.version == 2
        limit = _memory_limit(group)
        usage = group.read_int("memory.current" if is_new else "memory.usage_in_bytes")
        if limit is not None and usage is not None:
            cache = group.read_int("memory.stat", "inactive_file" if is_new else "total_inactive_file") or 0
            free = min(free, limit - usage + cache)
    return max(free, 0)


def memory_limit_bytes(root: str | Path = "/") -> int | None:
    """The least limit of this process's control groups, None where there is none; `root` as in `control_groups`."""
    limits = [_memory_limit(group) for group in control_groups("memory", root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _memory_limit(group: ControlGroup) -> int | None:
    limit = group.read_int("memory.max" if group.version == 2 else "memory.limit_in_bytes")
    return None if limit is None or limit >= _UNLIMITED_BYTES else limit


@dataclass(frozen=True)
class CpuFeatures:
    """What a processor can do.

    Attributes:
        name: the processor's, or the architecture's where it has none.
        bfloat16_instructions: those that multiply bfloat16, as the kernel names them; empty where there are none, or
            where the system does not tell.
        flags: all that the kernel names.
    """

    name: str
    bfloat16_instructions: tuple[str, ...]
    flags: frozenset[str] = frozenset()


def cpu_features(cpuinfo: str | Path = "/proc/cpuinfo") -> CpuFeatures:
    """What the processor of this machine can do, as the kernel says in a file; without it no instruction is known."""
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name, flags = "", set()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        key = key.strip().lower()
        if key in ("model name", "hardware") and not name:
            name = value.strip()
        elif key in ("flags", "features"):
            flags.update(value.split())
    found = tuple(flag for flag in _BFLOAT16_FLAGS if flag in flags)
    return CpuFeatures(name or platform.machine() or "unnamed CPU", found, frozenset(flags))


@dataclass(frozen=True)
class GpuFeatures:
    """What one GPU can do. What no detail decides is None, never a guess.

    Attributes:
        name: as its driver gives it, or "unnamed GPU".
        vendor: who made it.
        compute_capability: NVIDIA's, such as (8, 0).
        tensor_cores: whether it has units that multiply matrices of half precision.
        bfloat16: whether these units take bfloat16 at the rate of float16.
    """

    name: str
    vendor: Literal["nvidia", "amd", "apple", "unknown"]
    compute_capability: tuple[int, int] | None
    tensor_cores: bool | None
    bfloat16: bool | None

    def __str__(self) -> str:
        if self.compute_capability is None:
            return self.name
        return f"{self.name} (compute capability {self.compute_capability[0]}.{self.compute_capability[1]})"


def gpu_features(details: Mapping[str, Any]) -> GpuFeatures:
    """Tells from a driver's details what a GPU can do.

    Example:

    ```python
    gpu_features({"device_name": "Tesla T4", "compute_capability": (7, 5)}).tensor_cores  # True
    ```

    Args:
        details: `device_name` and `compute_capability`, as `tf.config.experimental.get_device_details` gives them, the
            latter for NVIDIA's GPUs only; each may be missing.

    Raises:
        ValueError: `compute_capability` is neither None nor two whole numbers.
    """
    name = str(details.get("device_name") or "unnamed GPU")
    capability = _checked_capability(details.get("compute_capability"))
    if capability is not None:
        tensor_cores = capability >= _TENSOR_CORES_SINCE and not _WITHOUT_TENSOR_CORES.search(name)
        return GpuFeatures(name, "nvidia", capability, tensor_cores, tensor_cores and capability >= _BFLOAT16_SINCE)
    instinct = _AMD_INSTINCT.search(name)
    if instinct:
        # MI8, MI25, MI50 and MI60 came before matrix cores; the first digit of MI100, MI210 and MI300X tells the rest.
        has_three_digits = len(re.sub(r"\D", "", instinct.group())) == 3
        return GpuFeatures(name, "amd", None, has_three_digits, has_three_digits and instinct.group(1) != "1")
    if _AMD_NAMES.search(name):
        return GpuFeatures(name, "amd", None, None, None)
    if _APPLE_NAMES.search(name):
        # Apple's GPUs share their arithmetic units among all float types, so that half precision saves memory alone.
        return GpuFeatures(name, "apple", None, False, None)
    return GpuFeatures(name, "unknown", None, None, None)


def _checked_capability(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    try:
        major, minor = value
        return int(major), int(minor)
    except (TypeError, ValueError):
        raise ValueError(
            f"`compute_capability` must be two whole numbers, such as (8, 0), or None. Received: {value!r} (of type "
            f"{type(value).__name__})."
        ) from None


class ListedGpu(Protocol):
    """What CUDA tells GPUs apart by; for a MIG instance also its GPU and its two numbers there."""

    @property
    def uuid(self) -> str: ...
    @property
    def pci_bus_id(self) -> str: ...
    @property
    def mig_parent_uuid(self) -> str | None: ...
    @property
    def mig_instance(self) -> tuple[int, int] | None: ...


OneGpu = TypeVar("OneGpu", bound=ListedGpu)


@dataclass(frozen=True)
class WholeGpu(Generic[OneGpu]):
    """A GPU as NVML lists it.

    Attributes:
        gpu: the whole of it.
        mig_instances: its parts; None where it is not cut into parts (MIG is off), empty where it will be.
        speed: to be compared with others of the machine; None where it is not known.
    """

    gpu: OneGpu
    mig_instances: tuple[OneGpu, ...] | None = None
    speed: float | None = None


def visible_to_cuda(machine: Sequence[WholeGpu[OneGpu]], environ: Mapping[str, str]) -> list[OneGpu]:
    """The GPUs and MIG instances that CUDA gives to a process, in the order of their numbers in it.

    What CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER mean is in the CUDA C++ Programming Guide ("CUDA Environment
    Variables") and, for MIG, in NVIDIA's "MIG User Guide". The list ends at the first entry that is no GPU (-1 among
    others); an entry that stands in it twice means that there is none. UUIDs may be cut short as long as they fit one
    GPU only. A GPU that is cut into MIG instances stands for the first of them, and a process is given one MIG instance
    and nothing besides it.

    Indices count by PCI bus id where CUDA_DEVICE_ORDER is PCI_BUS_ID, otherwise the fastest first. CUDA does not say
    how it compares speeds: here it is by `speed`, and equal ones stay in PCI order, as CUDA leaves them. So on machines
    with GPUs of several kinds PCI_BUS_ID or UUIDs are safer.

    Args:
        machine: all GPUs.
        environ: the environment of the process.
    """
    numbered = _numbered(machine, environ.get("CUDA_DEVICE_ORDER", ""))
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return _one_mig_instance(numbered)
    candidates = {
        "number": numbered,
        "gpu": [one for one in numbered if one.mig_parent_uuid is None],
        "mig": [part for whole in machine for part in whole.mig_instances or ()],
    }
    chosen: list[OneGpu] = []
    kind = _kind(value)
    for entry in value.split(","):
        find = _by_number if kind == "number" else _by_uuid
        found = find(entry, candidates[kind]) if _kind(entry) == kind else None
        if found is None:
            break
        if found in chosen:
            return []
        chosen.append(found)
    return _one_mig_instance(chosen)


def _numbered(machine: Sequence[WholeGpu[OneGpu]], order: str) -> list[OneGpu]:
    by_bus = sorted(machine, key=lambda whole: whole.gpu.pci_bus_id)
    if order.strip().upper() != "PCI_BUS_ID" and all(whole.speed is not None for whole in by_bus):
        by_bus.sort(key=lambda whole: -(whole.speed or 0))
    return [
        whole.gpu if whole.mig_instances is None else whole.mig_instances[0]
        for whole in by_bus
        if whole.mig_instances is None or whole.mig_instances
    ]


def _one_mig_instance(gpus: list[OneGpu]) -> list[OneGpu]:
    if gpus and gpus[0].mig_parent_uuid is not None:
        return gpus[:1]
    return [gpu for gpu in gpus if gpu.mig_parent_uuid is None]


def _kind(entries: str) -> str:
    start = entries.strip().lower()
    return "gpu" if start.startswith("gpu-") else "mig" if start.startswith("mig-") else "number"


def _by_number(entry: str, numbered: Sequence[OneGpu]) -> OneGpu | None:
    # CUDA reads a number as C does: what stands behind it is ignored.
    number = _NUMBER.match(entry)
    index = -1 if number is None else int("".join(number.groups()))
    return numbered[index] if 0 <= index < len(numbered) else None


def _by_uuid(entry: str, candidates: Sequence[OneGpu]) -> OneGpu | None:
    entry = entry.strip().lower()
    old_name = _OLD_MIG_NAME.fullmatch(entry)
    if old_name is not None:
        parent, *instance = old_name.groups()
        numbers = tuple(map(int, instance))
        matches = [
            one for one in candidates if (one.mig_parent_uuid or "").lower() == parent and one.mig_instance == numbers
        ]
    else:
        # The beginning is enough where it fits one GPU only.
        matches = [one for one in candidates if one.uuid.lower().startswith(entry)]
    return matches[0] if len(matches) == 1 else None
