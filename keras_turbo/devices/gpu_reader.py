"""Reads one GPU's figures from NVML, and leaves out those that it does not have."""

from __future__ import annotations

import time
from typing import Any

from keras_turbo.devices.gpu_activity import GpuActivity
from keras_turbo.devices.gpus import Gpu, GpuCounters

_MB = 2**20
_ALL_LINKS = 0xFFFFFFFF

# pynvml's constants by the names that keras_turbo gives them. The hardware's own slowdown stands for heat or power
# wherever one of those is set, too.
_THROTTLE_REASONS = (
    ("heat", ("nvmlClocksThrottleReasonSwThermalSlowdown", "nvmlClocksThrottleReasonHwThermalSlowdown")),
    ("power", ("nvmlClocksThrottleReasonSwPowerCap",)),
    ("power_brake", ("nvmlClocksThrottleReasonHwPowerBrakeSlowdown",)),
    ("hardware_slowdown", ("nvmlClocksThrottleReasonHwSlowdown",)),
    ("clock_limit", ("nvmlClocksThrottleReasonApplicationsClocksSetting",)),
    ("sync_boost", ("nvmlClocksThrottleReasonSyncBoost",)),
    ("display", ("nvmlClocksThrottleReasonDisplayClockSetting",)),
)

# Errors that will be the same the next time.
_LASTING_ERRORS = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)


class NvmlQuestions:
    """Asks NVML about one device; a figure that it does not have is None, and is not asked for again.

    Args:
        nvml: the module pynvml.
        handle: of the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.problem: str | None = None
        self._absent: set[tuple[Any, ...]] = set()
        self._lasting = {getattr(nvml, name) for name in _LASTING_ERRORS if hasattr(nvml, name)}

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer of a function of pynvml that takes the device first, or None."""
        key = (name, *arguments)
        function = getattr(self.nvml, name, None)
        if function is None or key in self._absent:
            return None
        try:
            return function(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            if error.value in self._lasting:
                self._absent.add(key)
            else:
                self.problem = str(error)
            return None

    def first_of(self, *questions: tuple[Any, ...]) -> Any:
        """The first answer that is not None: functions of newer drivers stand before the older ones."""
        for question in questions:
            answer = self.ask(*question)
            if answer is not None:
                return answer
        return None


class GpuReader:
    """Reads the figures of a GPU or MIG instance.

    Args:
        nvml: the module pynvml.
        gpu: which one.
        handle: NVML's of it.
        whole_handle: of the whole GPU; the same where it is no MIG instance.
    """

    def __init__(self, nvml: Any, gpu: Gpu, handle: Any, whole_handle: Any) -> None:
        self.gpu = gpu
        self._nvml = nvml
        self._device = NvmlQuestions(nvml, handle)
        # What an instance shares with the others of its GPU: clocks, heat, and why it is slowed down.
        self._whole = NvmlQuestions(nvml, whole_handle) if gpu.is_mig else self._device
        self._activity = GpuActivity(nvml, self._whole, gpu.mig_instance)
        self._max_sm_clock_mhz = self._whole.ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
        limit = None if gpu.is_mig else self._device.ask("nvmlDeviceGetEnforcedPowerLimit")
        self._power_limit_watts = _scaled(limit, 1 / 1000)
        self._links = [] if gpu.is_mig else self._links_there()
        self._links_active = self._count_active_links()
        self._traffic_before: tuple[float, float, float] | None = None

    @property
    def problem(self) -> str | None:
        """What went wrong in the last reading, such as "GPU is lost"."""
        return self._device.problem or self._whole.problem

    def read(self, in_turn: bool) -> GpuCounters:
        """Reads the figures.

        Args:
            in_turn: whether figures that take long are asked for.

        Returns:
            The figures. Where the GPU is lost, all of them are None.
        """
        self._device.problem = self._whole.problem = None
        gpu, device, whole, nvml = self.gpu, self._device, self._whole, self._nvml
        utilization = None if gpu.is_mig else device.ask("nvmlDeviceGetUtilizationRates")
        memory = device.first_of(
            ("nvmlDeviceGetMemoryInfo", getattr(nvml, "nvmlMemory_v2", None)), ("nvmlDeviceGetMemoryInfo",)
        )
        activity = self._activity.read()
        if in_turn:
            self._links_active = self._count_active_links()
        pcie_read, pcie_write = self._pcie(activity.pcie_read_mb_per_s, activity.pcie_write_mb_per_s, in_turn)
        nvlink_read, nvlink_write = self._nvlink(activity.nvlink_read_mb_per_s, activity.nvlink_write_mb_per_s)
        return GpuCounters(
            gpu=gpu,
            utilization_percent=None if utilization is None else float(utilization.gpu),
            memory_used_mb=None if memory is None else memory.used / _MB,
            memory_total_mb=None if memory is None else memory.total / _MB,
            power_watts=None if gpu.is_mig else _scaled(device.ask("nvmlDeviceGetPowerUsage"), 1 / 1000),
            power_limit_watts=self._power_limit_watts,
            energy_joules=None if gpu.is_mig else _scaled(device.ask("nvmlDeviceGetTotalEnergyConsumption"), 1 / 1000),
            temperature_celsius=_scaled(
                whole.first_of(
                    ("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU),
                    ("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
                )
            ),
            sm_clock_mhz=_scaled(whole.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)),
            max_sm_clock_mhz=_scaled(self._max_sm_clock_mhz),
            throttle_reasons=self._throttle_reasons(),
            pcie_read_mb_per_s=pcie_read,
            pcie_write_mb_per_s=pcie_write,
            nvlink_links_active=self._links_active,
            nvlink_read_mb_per_s=nvlink_read,
            nvlink_write_mb_per_s=nvlink_write,
            sm_activity_percent=activity.sm_percent,
            tensor_activity_percent=activity.tensor_percent,
        )

    def close(self) -> None:
        """Gives back what NVML holds for it."""
        self._activity.close()

    def _throttle_reasons(self) -> tuple[str, ...] | None:
        bits = self._whole.first_of(
            ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)
        )
        if bits is None:
            return None
        found = [
            name
            for name, constants in _THROTTLE_REASONS
            if any(bits & getattr(self._nvml, constant, 0) for constant in constants)
        ]
        if "hardware_slowdown" in found and {"heat", "power_brake"} & set(found):
            found.remove("hardware_slowdown")
        return tuple(found)

    def _pcie(self, read: float | None, write: float | None, in_turn: bool) -> tuple[float | None, float | None]:
        if read is not None or write is not None or not in_turn or self.gpu.is_mig:
            return read, write
        # In KB/s; the driver counts for 20 ms. What the GPU receives it reads.
        received = self._device.ask("nvmlDeviceGetPcieThroughput", self._nvml.NVML_PCIE_UTIL_RX_BYTES)
        sent = self._device.ask("nvmlDeviceGetPcieThroughput", self._nvml.NVML_PCIE_UTIL_TX_BYTES)
        return _scaled(received, 1 / 1024), _scaled(sent, 1 / 1024)

    def _links_there(self) -> list[int]:
        links = range(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 0))
        return [link for link in links if self._device.ask("nvmlDeviceGetNvLinkState", link) is not None]

    def _count_active_links(self) -> int | None:
        states = [self._device.ask("nvmlDeviceGetNvLinkState", link) for link in self._links]
        known = [state for state in states if state is not None]
        return sum(map(bool, known)) if known else None

    def _nvlink(self, read: float | None, write: float | None) -> tuple[float | None, float | None]:
        if read is not None or write is not None or not self._links_active:
            return (read, write) if self._links_active else (None, None)
        now = self._traffic_kib()
        before, self._traffic_before = self._traffic_before, now
        if before is None or now is None or now[0] <= before[0] or now[1] < before[1] or now[2] < before[2]:
            return None, None
        seconds = now[0] - before[0]
        return (now[1] - before[1]) / 1024 / seconds, (now[2] - before[2]) / 1024 / seconds

    def _traffic_kib(self) -> tuple[float, float, float] | None:
        """The time in seconds, and what all links received and sent since the driver was loaded."""
        nvml = self._nvml
        received_and_sent = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
        fields = self._device.ask("nvmlDeviceGetFieldValues", tuple((field, _ALL_LINKS) for field in received_and_sent))
        if fields is None or any(field.nvmlReturn != nvml.NVML_SUCCESS for field in fields):
            return None
        received, sent = (field_value(nvml, field) for field in fields)
        return None if received is None or sent is None else (time.monotonic(), received, sent)


def field_value(nvml: Any, field: Any) -> float | None:
    """The number in one of the answers of `nvmlDeviceGetFieldValues`, which say themselves of which type they are."""
    members = {
        "NVML_VALUE_TYPE_DOUBLE": "dVal",
        "NVML_VALUE_TYPE_UNSIGNED_INT": "uiVal",
        "NVML_VALUE_TYPE_UNSIGNED_LONG": "ulVal",
        "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG": "ullVal",
        "NVML_VALUE_TYPE_SIGNED_LONG_LONG": "sllVal",
        "NVML_VALUE_TYPE_SIGNED_INT": "siVal",
    }
    for constant, member in members.items():
        if field.valueType == getattr(nvml, constant, None):
            return float(getattr(field.value, member))
    return None


def _scaled(value: float | None, factor: float = 1.0) -> float | None:
    return None if value is None else value * factor
