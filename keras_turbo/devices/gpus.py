"""What is told of a GPU: which one it is, and its figures at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from keras_turbo.machine import GpuFeatures, gpu_features


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
        power_limit_watts: above which the driver lowers the clocks.
        energy_joules: since the driver was loaded: only differences mean something.
        temperature_celsius: of the chip.
        sm_clock_mhz: of the multiprocessors now.
        max_sm_clock_mhz: the highest they can have.
        throttle_reasons: why the clocks are below their highest: "heat", "power", "power_brake" (the machine's power
            supply asks for it), "hardware_slowdown", "clock_limit" (somebody set one), "sync_boost", "display". Empty
            where nothing holds them down; that nothing runs is no such reason.
        pcie_read_mb_per_s: what the GPU reads from the host. Before Hopper a query of it takes 20 ms, so that it is
            asked of one GPU in each reading, and is None for the others.
        pcie_write_mb_per_s: what it writes to the host.
        nvlink_links_active: NVLink connections that are up. None where the GPU has no NVLink.
        nvlink_read_mb_per_s: over all links, since the reading before.
        nvlink_write_mb_per_s: over all links.
        sm_activity_percent: the mean share of multiprocessors that were busy since the reading before (GPM: Hopper and
            later).
        tensor_activity_percent: how much of that time the Tensor Cores were at work (GPM).
    """

    gpu: Gpu
    utilization_percent: float | None = None
    memory_used_mb: float | None = None
    memory_total_mb: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    pcie_read_mb_per_s: float | None = None
    pcie_write_mb_per_s: float | None = None
    nvlink_links_active: int | None = None
    nvlink_read_mb_per_s: float | None = None
    nvlink_write_mb_per_s: float | None = None
    sm_activity_percent: float | None = None
    tensor_activity_percent: float | None = None
