"""The figures of one GPU at one moment, read from NVML; those that it does not have are left out."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from keras_turbo.machine import GpuFeatures, gpu_features

_MB = 2**20

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

# How busy multiprocessors and Tensor Cores are: performance counters of Hopper and later.
_ACTIVITIES = ("NVML_GPM_METRIC_SM_UTIL", "NVML_GPM_METRIC_ANY_TENSOR_UTIL")


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU, or one MIG instance of it, that this process may use.

    Attributes:
        index: NVML's, which nvidia-smi shows; that of the whole GPU for a MIG instance.
        uuid: "GPU-..." or "MIG-...".
        pci_bus_id: such as "0000:65:00.0", written as TensorFlow and CUDA write it.
        name: as the driver gives it.
        memory_total_mb: in MB of 2**20 bytes; None where the driver does not tell.
        compute_capability: such as (8, 0); None where the driver does not tell.
        mig_parent_uuid: of the GPU that a MIG instance is a part of; None for a whole GPU.
        mig_instance: the numbers of the GPU instance and the compute instance; None for a whole GPU.
    """

    index: int
    uuid: str
    pci_bus_id: str
    name: str
    memory_total_mb: float | None
    compute_capability: tuple[int, int] | None
    mig_parent_uuid: str | None = None
    mig_instance: tuple[int, int] | None = None

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG instance: a part of a GPU."""
        return self.mig_parent_uuid is not None

    @property
    def hardware(self) -> GpuFeatures:
        """What it can do."""
        return gpu_features({"device_name": self.name, "compute_capability": self.compute_capability})


@dataclass(frozen=True)
class GpuCounters:
    """The figures of one GPU at one moment. A figure that does not exist is None, never 0.

    Memory is that of the whole GPU, of all processes. TensorFlow takes nearly all of it at its start unless it is told
    to grow; what a model needs is in `tf.config.experimental.get_memory_info`. MB are of 2**20 bytes.

    Attributes:
        gpu: which one.
        utilization_percent: how much of the driver's last period (1/6 to 1 s) some kernel ran on the GPU. A MIG
            instance has none.
        memory_used_mb: without what the driver reserves for itself, where it tells them apart.
        memory_total_mb: of the GPU, or of the MIG instance.
        power_watts: drawn now (on Ampere and later: the mean of the last second). A MIG instance has none of its own.
        energy_joules: since the driver was loaded: only differences mean something.
        throttle_reasons: why clocks are held down now: "heat", "power", "power_brake", "hardware_slowdown",
            "clock_limit", "sync_boost", "display"; empty where nothing does. None where that is not known.
        nvlink_links_active: number of NVLink links that are up; None where the GPU has none.
        sm_activity_percent: how many of the multiprocessors were at work, since the reading before.
        tensor_activity_percent: how busy the Tensor Cores were, since the reading before.
    """

    gpu: Gpu
    utilization_percent: float | None = None
    memory_used_mb: float | None = None
    memory_total_mb: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    nvlink_links_active: int | None = None
    sm_activity_percent: float | None = None
    tensor_activity_percent: float | None = None


class NvmlQuestions:
    """Asks NVML about one device; a figure that it does not have is None, and is not asked for again.

    Attributes:
        problem: what went wrong last, and may not the next time, such as "GPU is lost".
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.problem: str | None = None
        self._absent: set[tuple[Any, ...]] = set()
        self._lasting = {getattr(nvml, name) for name in _LASTING_ERRORS if hasattr(nvml, name)}

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer of a function of pynvml that takes the device first, or None."""
        # Structures can't be told apart: what is absent for one of them is so for all.
        key = (name, *(one for one in arguments if isinstance(one, (int, tuple))))
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
        return next((answer for answer in (self.ask(*one) for one in questions) if answer is not None), None)


class GpuReader:
    """Reads the figures of a GPU or MIG instance."""

    def __init__(self, nvml: Any, gpu: Gpu, handle: Any, whole_handle: Any) -> None:
        self.gpu = gpu
        self._nvml = nvml
        self._device = NvmlQuestions(nvml, handle)
        # What an instance shares with the others of its GPU: why it is slowed down, and the counters of its work.
        self._whole = NvmlQuestions(nvml, whole_handle) if gpu.is_mig else self._device
        self._activity = _Activity(nvml, self._whole, gpu.mig_instance)
        self._links = [] if gpu.is_mig else range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 0))

    @property
    def problem(self) -> str | None:
        """What went wrong in the last reading, such as "GPU is lost"."""
        return self._device.problem or self._whole.problem

    def read(self) -> GpuCounters:
        """Reads the figures. Where the GPU is lost, all of them are None."""
        self._device.problem = self._whole.problem = None
        device, is_mig = self._device, self.gpu.is_mig
        utilization = None if is_mig else device.ask("nvmlDeviceGetUtilizationRates")
        memory = device.first_of(
            ("nvmlDeviceGetMemoryInfo", getattr(self._nvml, "nvmlMemory_v2", None)), ("nvmlDeviceGetMemoryInfo",)
        )
        power = None if is_mig else device.ask("nvmlDeviceGetPowerUsage")
        energy = None if is_mig else device.ask("nvmlDeviceGetTotalEnergyConsumption")
        sm_percent, tensor_percent = self._activity.read()
        return GpuCounters(
            gpu=self.gpu,
            utilization_percent=None if utilization is None else float(utilization.gpu),
            memory_used_mb=None if memory is None else memory.used / _MB,
            memory_total_mb=None if memory is None else memory.total / _MB,
            power_watts=None if power is None else power / 1000,
            energy_joules=None if energy is None else energy / 1000,
            throttle_reasons=self._throttle_reasons(),
            nvlink_links_active=self._links_active(),
            sm_activity_percent=sm_percent,
            tensor_activity_percent=tensor_percent,
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

    def _links_active(self) -> int | None:
        # Links that are not there are not asked for again.
        states = [self._device.ask("nvmlDeviceGetNvLinkState", link) for link in self._links]
        known = [state for state in states if state is not None]
        return sum(map(bool, known)) if known else None


class _Activity:
    """Compares samples that NVML takes of a GPU's performance counters."""

    def __init__(self, nvml: Any, whole: NvmlQuestions, mig_instance: tuple[int, int] | None) -> None:
        self._nvml = nvml
        self._whole = whole
        self._mig_instance = mig_instance
        self._samples: list[Any] = []
        self._has_before = False
        self._request: Any = None
        support = whole.ask("nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            return
        try:
            # Made once: the structure has room for all metrics, and takes 20 KB.
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = len(_ACTIVITIES)
            for place, name in enumerate(_ACTIVITIES):
                request.metrics[place].metricId = getattr(nvml, name)
            self._samples = [nvml.nvmlGpmSampleAlloc()]
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        except (nvml.NVMLError, AttributeError):
            self.close()
            return
        self._request = request

    def read(self) -> tuple[float | None, float | None]:
        """The means since the last call, of multiprocessors and Tensor Cores; None in the first, and where unknown."""
        if self._request is None:
            return None, None
        self._samples.reverse()
        before, now = self._samples
        if self._mig_instance is None:
            taken = self._whole.ask("nvmlGpmSampleGet", now)
        else:
            taken = self._whole.ask("nvmlGpmMigSampleGet", self._mig_instance[0], now)
        had_before, self._has_before = self._has_before, taken is not None
        if taken is None or not had_before:
            return None, None
        self._request.sample1, self._request.sample2 = before, now
        try:
            self._nvml.nvmlGpmMetricsGet(self._request)
        except self._nvml.NVMLError:  # too short a time between them, for one
            return None, None
        sm, tensor = (self._request.metrics[place] for place in range(len(_ACTIVITIES)))
        success = self._nvml.NVML_SUCCESS
        return sm.value if sm.nvmlReturn == success else None, tensor.value if tensor.nvmlReturn == success else None

    def close(self) -> None:
        """Frees the samples."""
        samples, self._samples, self._request = self._samples, [], None
        for sample in samples:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
