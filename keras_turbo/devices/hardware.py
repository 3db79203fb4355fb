"""What a processor or GPU can multiply fast: float16, bfloat16, or float32 alone."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Vendor = Literal["nvidia", "amd", "apple", "unknown"]

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


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What one GPU can do.

    Attributes:
        name: as its driver gives it, or "unnamed GPU".
        vendor: who made it.
        compute_capability: NVIDIA's, such as (8, 0); None where there is none.
        tensor_cores: whether it has units that multiply matrices of half precision; None where that is not known.
        bfloat16: whether these units take bfloat16 at the rate of float16; None where that is not known.
    """

    name: str
    vendor: Vendor
    compute_capability: tuple[int, int] | None
    tensor_cores: bool | None
    bfloat16: bool | None

    def __str__(self) -> str:
        if self.compute_capability is None:
            return self.name
        return f"{self.name} (compute capability {self.compute_capability[0]}.{self.compute_capability[1]})"


@dataclasses.dataclass(frozen=True)
class Cpu:
    """What the processor can do.

    Attributes:
        name: the processor's, or the architecture's where it has none.
        bfloat16_instructions: those that multiply bfloat16, as the kernel names them; empty where there are none, or
            where the system does not tell.
    """

    name: str
    bfloat16_instructions: tuple[str, ...]


def gpu_from_details(details: Mapping[str, Any]) -> Gpu:
    """Tells from a driver's details what a GPU can do.

    What no detail decides is None, never a guess: TensorFlow gives compute capabilities for NVIDIA's GPUs only.

    Example:

    ```python
    gpu_from_details({"device_name": "Tesla T4", "compute_capability": (7, 5)}).tensor_cores  # True
    ```

    Args:
        details: `device_name` and `compute_capability`, as `tf.config.experimental.get_device_details` gives them; each
            may be missing.

    Returns:
        The facts.

    Raises:
        ValueError: `compute_capability` is neither None nor two whole numbers.
    """
    name = str(details.get("device_name") or "unnamed GPU")
    capability = _checked_capability(details.get("compute_capability"))
    if capability is not None:
        tensor_cores = capability >= _TENSOR_CORES_SINCE and not _WITHOUT_TENSOR_CORES.search(name)
        return Gpu(name, "nvidia", capability, tensor_cores, tensor_cores and capability >= _BFLOAT16_SINCE)
    instinct = _AMD_INSTINCT.search(name)
    if instinct:
        # MI8, MI25, MI50 and MI60 came before matrix cores; the first digit of MI100, MI210 and MI300X tells the rest.
        has_three_digits = len(re.sub(r"\D", "", instinct.group())) == 3
        return Gpu(name, "amd", None, has_three_digits, has_three_digits and instinct.group(1) != "1")
    if _AMD_NAMES.search(name):
        return Gpu(name, "amd", None, None, None)
    if _APPLE_NAMES.search(name):
        # Apple's GPUs share their arithmetic units among all float types, so that half precision saves memory alone.
        return Gpu(name, "apple", None, False, None)
    return Gpu(name, "unknown", None, None, None)


def cpu_from_cpuinfo(text: str) -> Cpu:
    """Tells from the text of Linux's /proc/cpuinfo what the processor can do.

    Args:
        text: the file's content. On other systems it is empty, and then no instruction is known.

    Returns:
        The facts.
    """
    name, flags = "", set()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        key = key.strip().lower()
        if key in ("model name", "hardware") and not name:
            name = value.strip()
        elif key in ("flags", "features"):
            flags.update(value.split())
    return Cpu(name or platform.machine() or "unnamed CPU", tuple(flag for flag in _BFLOAT16_FLAGS if flag in flags))


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """The processor of this machine.

    Args:
        cpuinfo: the file that the kernel describes it in. Where it can't be read, no instruction is known.

    Returns:
        The facts.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return cpu_from_cpuinfo(text)


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
