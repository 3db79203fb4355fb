"""Which GPU one is."""

from __future__ import annotations

from dataclasses import dataclass

from keras_turbo.devices import hardware


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
    def hardware(self) -> hardware.Gpu:
        """What it can do."""
        return hardware.gpu_from_details({"device_name": self.name, "compute_capability": self.compute_capability})
