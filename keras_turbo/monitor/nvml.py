"""NVIDIA's GPUs as NVML knows them: which this process uses, their figures, and why there are none.

NVML is the library behind nvidia-smi; it comes with the driver. It is called through nvidia-ml-py (module `pynvml`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_turbo.machine import WholeGpu, visible_to_cuda
from keras_turbo.monitor.counters import Gpu, GpuCounters, GpuReader, NvmlQuestions
from keras_turbo.monitor.time_limit import answer_within

_MB = 2**20

# How long `visible_gpus` waits for the driver. To wake a GPU that nobody uses takes 1 to 3 s.
_ANSWER_SECONDS = 15.0

# As PCI numbers them.
_NVIDIA_VENDOR, _AMD_VENDOR = "0x10de", "0x1002"
_DISPLAY_CLASS = "0x03"

# A variable may hold anything.
_SHORTENED = reprlib.Repr()
_SHORTENED.maxstring = 80


class NvmlSession:
    """NVML, opened, with the GPUs that this process uses.

    Everything in it may take as long as the driver likes: use it on a thread that nobody waits for.

    Attributes:
        gpus: in the order of their numbers in this process.
        may_have_gpus: whether the machine has a GPU, as far as the system tells.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, root: str | os.PathLike[str] = "/") -> None:
        environ = os.environ if environ is None else environ
        self.gpus: tuple[Gpu, ...] = ()
        self._readers: list[GpuReader] = []
        self._handles: dict[str, tuple[Any, Any]] = {}
        self._nvml, self._problem = _opened(Path(root))
        self.may_have_gpus = self._nvml is not None or _may_have_gpus(Path(root))
        if self._nvml is None:
            return
        try:
            self._find_gpus(environ)
        except self._nvml.NVMLError as error:
            self._problem = f"NVML does not list the GPUs: {error}."
            self.close()
        except BaseException:
            self.close()
            raise

    @property
    def problem(self) -> str | None:
        """Why there are no figures, or not all, in one line; None where all is well."""
        lost = [f"GPU {one.gpu.index} ({one.gpu.name}): {one.problem}." for one in self._readers if one.problem]
        return " ".join([*([] if self._problem is None else [self._problem]), *lost]) or None

    def read(self) -> tuple[GpuCounters, ...]:
        """The figures of all GPUs now, in the order of `gpus`."""
        return tuple(reader.read() for reader in self._readers)

    @property
    def nvml(self) -> Any:
        """The module pynvml while it is open; None where it is not."""
        return self._nvml

    def whole_handle(self, gpu: Gpu) -> Any:
        """NVML's handle of a GPU, or of the GPU that a MIG instance is a part of."""
        return self._handles[gpu.uuid][1]

    def close(self) -> None:
        """Gives back all handles and shuts NVML down. May be called again."""
        nvml, self._nvml = self._nvml, None
        readers, self._readers = self._readers, []
        if nvml is None:
            return
        for reader in readers:
            reader.close()
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    def __enter__(self) -> NvmlSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find_gpus(self, environ: Mapping[str, str]) -> None:
        nvml: Any = self._nvml
        handles = self._handles
        machine, unread, lost = [], [], []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                machine.append(_whole_gpu(nvml, index, handles))
            except nvml.NVMLError as error:
                # A GPU that has fallen off the bus, or one that a container may not open; CUDA does not list it either.
                unread.append(f"GPU {index}: {error}")
                # That a job may not open the GPUs of others is as it should be.
                if error.value != nvml.NVML_ERROR_NO_PERMISSION:
                    lost.append(unread[-1])
        self.gpus = tuple(visible_to_cuda(machine, environ))
        self._readers = [GpuReader(nvml, gpu, *handles[gpu.uuid]) for gpu in self.gpus]
        if self.gpus:
            if lost:
                self._problem = f"NVML can't open every GPU: {'; '.join(lost)}."
            return
        value = environ.get("CUDA_VISIBLE_DEVICES")
        if unread:
            self._problem = f"NVML can't open any GPU: {'; '.join(unread)}."
        elif not machine:
            self._problem = "The NVIDIA driver is there and finds no GPU."
        elif value is not None:
            shown = _SHORTENED.repr(value)
            self._problem = f"CUDA_VISIBLE_DEVICES={shown} hides every GPU from this process."
        else:
            self._problem = "The GPUs are in MIG mode and have no instances: create one (nvidia-smi mig -cgi ... -C)."


def visible_gpus(environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """The NVIDIA GPUs that this process uses, in the order of their numbers in it."""

    def ask() -> list[Gpu]:
        with NvmlSession(environ) as session:
            return list(session.gpus)

    try:
        return answer_within(_ANSWER_SECONDS, ask, "The NVIDIA driver")
    except TimeoutError:
        return []


def pci_bus_id(text: str) -> str:
    """A PCI bus id as TensorFlow and CUDA write it: "0000:65:00.0" of NVML's "00000000:65:00.0"."""
    domain, separator, rest = text.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}{separator}{rest}"
    except ValueError:
        return text.strip().lower()


def _opened(root: Path) -> tuple[Any, str | None]:
    """The module pynvml with the library initialized, or None and why not."""
    try:
        import pynvml
    except ImportError:
        return None, 'No figures of GPUs: nvidia-ml-py is not installed. Install it: pip install "nvidia-ml-py".'
    if not hasattr(pynvml, "nvmlInit") or not hasattr(pynvml, "NVMLError"):
        return None, (
            f"No figures of GPUs: {getattr(pynvml, '__file__', 'pynvml')} is not NVIDIA's module of this name. Install "
            'it: pip uninstall pynvml; pip install --force-reinstall "nvidia-ml-py".'
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, _why_not_opened(pynvml, error, root)
    return pynvml, None


def _why_not_opened(nvml: Any, error: Any, root: Path) -> str:
    code = error.value
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return _other_gpus(root) or (
            "No NVIDIA driver on this machine (no libnvidia-ml.so.1): figures of the CPU only. In a container, start "
            "it with the GPUs: docker run --gpus all."
        )
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return (
            "No figures of GPUs: the NVIDIA driver in the kernel and its library are of different versions, as after "
            "an update. Reboot, or start the container anew."
        )
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "No figures of GPUs: the NVIDIA driver is installed and not loaded. Load it: sudo modprobe nvidia."
    if code == nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
        return "No figures of GPUs: the NVIDIA driver is too old for nvidia-ml-py. Install a newer driver."
    if code == nvml.NVML_ERROR_NO_PERMISSION:
        return "No figures of GPUs: this user may not open /dev/nvidiactl. See the rights of /dev/nvidia*."
    return f"No figures of GPUs: NVML does not start: {error}."


def _may_have_gpus(root: Path) -> bool:
    """Whether the machine has a GPU, by its PCI devices or by the driver's own."""
    if any((root / "dev").glob("nvidia[0-9]*")) or (root / "dev/dxg").exists() or (root / "dev/kfd").exists():
        return True
    for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
        with contextlib.suppress(OSError):
            is_display = (vendor.parent / "class").read_text().startswith(_DISPLAY_CLASS)
            if is_display and vendor.read_text().strip().lower() in (_NVIDIA_VENDOR, _AMD_VENDOR):
                return True
    return sys.platform == "darwin"


def _other_gpus(root: Path) -> str | None:
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "Apple's GPU gives no figures: those of the CPU only."
    for vendor in sorted(root.glob("sys/class/drm/card*/device/vendor")):
        with contextlib.suppress(OSError):
            if vendor.read_text().strip().lower() == _AMD_VENDOR:
                return "AMD GPUs give no figures here (rocm-smi shows them): those of the CPU only."
    return None


def _whole_gpu(nvml: Any, index: int, handles: dict[str, tuple[Any, Any]]) -> WholeGpu:
    """Describes a GPU and its MIG instances, and keeps their handles and their whole GPU's by UUID."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    questions = NvmlQuestions(nvml, handle)
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    bus = pci_bus_id(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    capability = questions.ask("nvmlDeviceGetCudaComputeCapability")
    capability = None if capability is None else (int(capability[0]), int(capability[1]))
    gpu = Gpu(index, uuid, bus, name, _memory_mb(questions), capability)
    handles[uuid] = handle, handle
    parts = _mig_instances(nvml, gpu, questions, handles)
    core_number = questions.ask("nvmlDeviceGetNumGpuCores")
    clock = questions.ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
    return WholeGpu(gpu, parts, None if core_number is None or clock is None else core_number * clock)


def _mig_instances(
    nvml: Any, gpu: Gpu, whole: NvmlQuestions, handles: dict[str, tuple[Any, Any]]
) -> tuple[Gpu, ...] | None:
    mode = whole.ask("nvmlDeviceGetMigMode")
    if mode is None or not mode[0]:
        return None
    parts = []
    for place in range(whole.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        handle = whole.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
        if handle is None:  # there may be fewer than the most
            continue
        questions = NvmlQuestions(nvml, handle)
        uuid = questions.ask("nvmlDeviceGetUUID")
        numbers = questions.ask("nvmlDeviceGetGpuInstanceId"), questions.ask("nvmlDeviceGetComputeInstanceId")
        if uuid is None or None in numbers:
            continue
        parts.append(
            Gpu(
                index=gpu.index,
                uuid=uuid,
                pci_bus_id=gpu.pci_bus_id,
                name=questions.ask("nvmlDeviceGetName") or gpu.name,
                memory_total_mb=_memory_mb(questions),
                compute_capability=gpu.compute_capability,
                mig_parent_uuid=gpu.uuid,
                mig_instance=numbers,
            )
        )
        handles[uuid] = handle, whole.handle
    return tuple(parts)


def _memory_mb(questions: NvmlQuestions) -> float | None:
    memory = questions.ask("nvmlDeviceGetMemoryInfo")
    return None if memory is None else memory.total / _MB


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
