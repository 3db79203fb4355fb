"""NVML's C functions, for machines without a GPU: what the real module pynvml calls in place of libnvidia-ml.so.1.

Names are those in C. Calls come as pynvml makes them, through its own structures, so that a wrong name or argument
fails as it would there.
"""

# ruff: noqa: N802, N815

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pynvml

_ADDRESSES_A_GPU = 0x1000
_GPM_FIRST_SAMPLE = 0x900000


@dataclasses.dataclass
class FakeMig:
    uuid: str
    gpu_instance: int = 1
    compute_instance: int = 0
    memory_total_mb: int = 10_000
    # What the real library says of a MIG handle.
    refused: dict[str, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(
            ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperatureV"),
            pynvml.NVML_ERROR_NOT_SUPPORTED,
        )
    )


@dataclasses.dataclass
class FakeGpu:
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    bus: str = "00000000:01:00.0"
    name: str = "NVIDIA A100-SXM4-40GB"
    capability: tuple[int, int] = (8, 0)
    cores: int = 6912
    max_clock_mhz: int = 1410
    clock_mhz: int = 1200
    utilization_percent: int | Callable[[], int] = 75
    memory_total_mb: int = 40_000
    memory_used_mb: int = 12_000
    memory_reserved_mb: int = 500
    power_milliwatts: int = 250_500
    energy_millijoules: int = 9_000_000
    temperature: int = 64
    throttle_bits: int = 0
    pcie_received_kb_per_s: int = 2048
    pcie_sent_kb_per_s: int = 1024
    pcie_generations: tuple[int, int, int] = (4, 4, 4)
    pcie_widths: tuple[int, int] = (16, 16)
    links: tuple[bool, ...] = ()
    link_traffic_kib: tuple[int, int] = (0, 0)
    linked_to: tuple[int, ...] = ()
    gpm: dict[str, float] | None = None
    mig: list[FakeMig] | None = None
    # Error codes of functions, by their names in C.
    refused: dict[str, int] = dataclasses.field(default_factory=dict)


class FakeNvml:
    """The loaded library.

    Args:
        gpus: of the machine.
        init_error: what `nvmlInit` returns.
        missing: functions that this version of the driver does not have yet.
    """

    def __init__(self, gpus: list[FakeGpu], init_error: int = 0, missing: tuple[str, ...] = ()) -> None:
        self.gpus = gpus
        self.init_error = init_error
        self.missing = missing
        self.calls: Counter[str] = Counter()
        self.open_sessions = 0
        self.gpm_samples: set[int] = set()
        self.hang_in: str | None = None
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self), f"c_{name}", None)
        if method is None or name in self.missing:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            if name == self.hang_in:
                self.hangs.set()
                self.let_go.wait(60)
            if arguments and isinstance(arguments[0], pynvml.c_nvmlDevice_t):
                device = self.device(arguments[0])
                if name in device.refused:
                    return device.refused[name]
                return method(self, device, *arguments[1:])
            return method(self, *arguments)

        return call

    def device(self, handle: Any) -> Any:
        place, part = divmod(ctypes.cast(handle, ctypes.c_void_p).value or 0, _ADDRESSES_A_GPU)
        gpu = self.gpus[place - 1]
        return gpu if part == 0 else (gpu.mig or [])[part - 1]

    # The library itself

    def c_nvmlInitWithFlags(self, flags):
        if self.init_error == 0:
            self.open_sessions += 1
        return self.init_error

    def c_nvmlShutdown(self):
        self.open_sessions -= 1
        return 0

    def c_nvmlErrorString(self, code):
        return b"Some error"

    def c_nvmlSystemGetDriverVersion(self, text, length):
        text.value = b"570.86.15"
        return 0

    def c_nvmlSystemGetCudaDriverVersion_v2(self, version):
        version._obj.value = 12080
        return 0

    # Which devices

    def c_nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.gpus)
        return 0

    def c_nvmlDeviceGetHandleByIndex_v2(self, index, device):
        refused = self.gpus[index.value].refused.get("nvmlDeviceGetHandleByIndex_v2")
        return refused or _point(device, (index.value + 1) * _ADDRESSES_A_GPU)

    def c_nvmlDeviceGetUUID(self, device, text, length):
        text.value = device.uuid.encode()
        return 0

    def c_nvmlDeviceGetName(self, device, text, length):
        text.value = getattr(device, "name", "NVIDIA A100-SXM4-40GB MIG 1g.10gb").encode()
        return 0

    def c_nvmlDeviceGetPciInfo_v3(self, device, info):
        info._obj.busId = device.bus.encode()
        return 0

    def c_nvmlDeviceGetCudaComputeCapability(self, device, major, minor):
        major._obj.value, minor._obj.value = device.capability
        return 0

    def c_nvmlDeviceGetNumGpuCores(self, device, cores):
        return _set(cores, device.cores)

    def c_nvmlDeviceGetMigMode(self, device, current, pending):
        current._obj.value = pending._obj.value = int(device.mig is not None)
        return 0

    def c_nvmlDeviceGetMaxMigDeviceCount(self, device, count):
        return _set(count, 7)

    def c_nvmlDeviceGetMigDeviceHandleByIndex(self, device, index, part):
        if index.value >= len(device.mig):
            return pynvml.NVML_ERROR_NOT_FOUND
        return _point(part, (self.gpus.index(device) + 1) * _ADDRESSES_A_GPU + index.value + 1)

    def c_nvmlDeviceGetGpuInstanceId(self, device, number):
        return _set(number, device.gpu_instance)

    def c_nvmlDeviceGetComputeInstanceId(self, device, number):
        return _set(number, device.compute_instance)

    # Figures

    def c_nvmlDeviceGetMemoryInfo(self, device, memory):
        memory._obj.total = device.memory_total_mb * 2**20
        # The older function counts what the driver keeps for itself as used.
        used = getattr(device, "memory_used_mb", 100) + getattr(device, "memory_reserved_mb", 0)
        memory._obj.used = used * 2**20
        return 0

    def c_nvmlDeviceGetMemoryInfo_v2(self, device, memory):
        if memory._obj.version != pynvml.nvmlMemory_v2:
            return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        memory._obj.total = device.memory_total_mb * 2**20
        memory._obj.used = getattr(device, "memory_used_mb", 100) * 2**20
        return 0

    def c_nvmlDeviceGetUtilizationRates(self, device, rates):
        share = device.utilization_percent
        rates._obj.gpu = share() if callable(share) else share
        return 0

    def c_nvmlDeviceGetPowerUsage(self, device, power):
        return _set(power, device.power_milliwatts)

    def c_nvmlDeviceGetEnforcedPowerLimit(self, device, limit):
        return _set(limit, 400_000)

    def c_nvmlDeviceGetTotalEnergyConsumption(self, device, energy):
        return _set(energy, device.energy_millijoules)

    def c_nvmlDeviceGetTemperatureV(self, device, temperature):
        if temperature._obj.version != pynvml.nvmlTemperature_v1:
            return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        temperature._obj.temperature = device.temperature
        return 0

    def c_nvmlDeviceGetTemperature(self, device, sensor, temperature):
        return _set(temperature, device.temperature)

    def c_nvmlDeviceGetClockInfo(self, device, kind, clock):
        return _set(clock, device.clock_mhz)

    def c_nvmlDeviceGetMaxClockInfo(self, device, kind, clock):
        return _set(clock, device.max_clock_mhz)

    def c_nvmlDeviceGetCurrentClocksEventReasons(self, device, bits):
        return _set(bits, device.throttle_bits)

    c_nvmlDeviceGetCurrentClocksThrottleReasons = c_nvmlDeviceGetCurrentClocksEventReasons

    def c_nvmlDeviceGetPcieThroughput(self, device, counter, rate):
        received = counter.value == pynvml.NVML_PCIE_UTIL_RX_BYTES
        return _set(rate, device.pcie_received_kb_per_s if received else device.pcie_sent_kb_per_s)

    def c_nvmlDeviceGetNvLinkState(self, device, link, active):
        if link >= len(device.links):
            return pynvml.NVML_ERROR_INVALID_ARGUMENT if device.links else pynvml.NVML_ERROR_NOT_SUPPORTED
        return _set(active, int(device.links[link]))

    def c_nvmlDeviceGetFieldValues(self, device, number, fields):
        traffic = dict(
            zip(
                (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
                device.link_traffic_kib,
                strict=True,
            )
        )
        for field in fields._obj:
            if not device.links or field.scopeId != 0xFFFFFFFF:
                field.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
                continue
            field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            field.value.ullVal = traffic[field.fieldId]
        return 0

    # GPM

    def c_nvmlGpmQueryDeviceSupport(self, device, support):
        support._obj.isSupportedDevice = int(device.gpm is not None)
        return 0

    def c_nvmlGpmSampleAlloc(self, sample):
        address = _GPM_FIRST_SAMPLE + len(self.gpm_samples)
        self.gpm_samples.add(address)
        return _point(sample, address)

    def c_nvmlGpmSampleFree(self, sample):
        self.gpm_samples.remove(ctypes.cast(sample, ctypes.c_void_p).value)
        return 0

    def c_nvmlGpmSampleGet(self, device, sample):
        self.gpm_device = device
        return 0

    def c_nvmlGpmMigSampleGet(self, device, gpu_instance, sample):
        self.gpm_device = device
        return 0 if any(part.gpu_instance == gpu_instance for part in device.mig) else pynvml.NVML_ERROR_NOT_FOUND

    def c_nvmlGpmMetricsGet(self, request):
        request = request._obj
        addresses = {ctypes.cast(one, ctypes.c_void_p).value for one in (request.sample1, request.sample2)}
        if request.version != pynvml.NVML_GPM_METRICS_GET_VERSION or not addresses <= self.gpm_samples:
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
        values = {getattr(pynvml, name): value for name, value in self.gpm_device.gpm.items()}
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in values else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = values.get(metric.metricId, 0.0)
        return 0

    # How it is wired

    def c_nvmlDeviceGetCurrPcieLinkGeneration(self, device, generation):
        return _set(generation, device.pcie_generations[0])

    def c_nvmlDeviceGetMaxPcieLinkGeneration(self, device, generation):
        return _set(generation, device.pcie_generations[1])

    def c_nvmlDeviceGetGpuMaxPcieLinkGeneration(self, device, generation):
        return _set(generation, device.pcie_generations[2])

    def c_nvmlDeviceGetCurrPcieLinkWidth(self, device, width):
        return _set(width, device.pcie_widths[0])

    def c_nvmlDeviceGetMaxPcieLinkWidth(self, device, width):
        return _set(width, device.pcie_widths[1])

    def c_nvmlDeviceGetP2PStatus(self, device, other, kind, status):
        linked = self.gpus.index(self.device(other)) in device.linked_to
        return _set(status, pynvml.NVML_P2P_STATUS_OK if linked else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)

    def c_nvmlDeviceGetTopologyCommonAncestor(self, device, other, level):
        return _set(level, pynvml.NVML_TOPOLOGY_SYSTEM)


def _set(reference, value) -> int:
    reference._obj.value = value
    return 0


def _point(reference, address) -> int:
    ctypes.cast(reference, ctypes.POINTER(ctypes.c_void_p))[0] = address
    return 0


def use(monkeypatch, library: FakeNvml | None) -> None:
    """Gives pynvml a library, or none, in place of that of this machine, if it has one."""

    def not_there(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", not_there)


def gpus(number: int, **settings: Any) -> list[FakeGpu]:
    """Some GPUs of one kind, each with its UUID and PCI bus id."""
    return [
        FakeGpu(
            uuid=f"GPU-{index}{index}aa0000-0000-0000-0000-000000000000",
            bus=f"00000000:{index + 1:02X}:00.0",
            **settings,
        )
        for index in range(number)
    ]
