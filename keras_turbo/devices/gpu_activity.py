"""NVML's GPM figures: how busy the multiprocessors and the Tensor Cores are, on Hopper and later."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from keras_turbo.devices.gpu_reader import NvmlQuestions


class Activity(NamedTuple):
    """Means over the time since the reading before; None where there is no such figure. MB are of 2**20 bytes."""

    sm_percent: float | None = None
    tensor_percent: float | None = None
    pcie_read_mb_per_s: float | None = None
    pcie_write_mb_per_s: float | None = None
    nvlink_read_mb_per_s: float | None = None
    nvlink_write_mb_per_s: float | None = None


# In the order of Activity's fields. "Rx" is what the GPU receives.
_METRICS = (
    "NVML_GPM_METRIC_SM_UTIL",
    "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
    "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
)
# Traffic is not counted for each MIG instance.
_METRICS_OF_INSTANCES = _METRICS[:2]


class GpuActivity:
    """Compares samples that NVML takes of a GPU's performance counters.

    Args:
        nvml: the module pynvml.
        whole: asks about the whole GPU.
        mig_instance: the numbers of GPU instance and compute instance; None where the whole GPU is meant.
    """

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
        names = _METRICS if mig_instance is None else _METRICS_OF_INSTANCES
        try:
            # Made once: the structure has room for all metrics, and takes 20 KB.
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = len(names)
            for place, name in enumerate(names):
                request.metrics[place].metricId = getattr(nvml, name)
            self._samples = [nvml.nvmlGpmSampleAlloc()]
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        except (nvml.NVMLError, AttributeError):
            self.close()
            return
        self._request = request

    def read(self) -> Activity:
        """The means since the last call; all None in the first."""
        if self._request is None:
            return Activity()
        self._samples.reverse()
        before, now = self._samples
        if self._mig_instance is None:
            taken = self._whole.ask("nvmlGpmSampleGet", now)
        else:
            taken = self._whole.ask("nvmlGpmMigSampleGet", self._mig_instance[0], now)
        had_before, self._has_before = self._has_before, taken is not None
        if taken is None or not had_before:
            return Activity()
        self._request.sample1, self._request.sample2 = before, now
        try:
            self._nvml.nvmlGpmMetricsGet(self._request)
        except self._nvml.NVMLError:  # too short a time between them, for one
            return Activity()
        metrics = [self._request.metrics[place] for place in range(self._request.numMetrics)]
        return Activity(*(one.value if one.nvmlReturn == self._nvml.NVML_SUCCESS else None for one in metrics))

    def close(self) -> None:
        """Frees the samples."""
        samples, self._samples, self._request = self._samples, [], None
        for sample in samples:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
