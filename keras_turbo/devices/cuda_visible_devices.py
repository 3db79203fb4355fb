"""Which GPUs CUDA gives to a process, and in which order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

What the variables mean is in the CUDA C++ Programming Guide ("CUDA Environment Variables") and, for MIG, in NVIDIA's
"MIG User Guide" ("CUDA Visible Devices").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keras_turbo.devices.gpus import Gpu

# With more digits it is no GPU's number, and Python refuses to read thousands of them.
_NUMBER = re.compile(r"\s*([+-]?)0*([0-9]{1,9})")
_OLD_MIG_NAME = re.compile(r"mig-(gpu-[^/]+)/(\d+)/(\d+)", re.IGNORECASE)


class WholeGpu(NamedTuple):
    """A GPU as NVML lists it.

    Attributes:
        gpu: the whole of it.
        mig_instances: its parts; None where it is not cut into parts (MIG is off), empty where it will be.
        speed: to be compared with others of the machine; None where it is not known.
    """

    gpu: Gpu
    mig_instances: tuple[Gpu, ...] | None = None
    speed: float | None = None


def visible(machine: Sequence[WholeGpu], environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs of a process in the order of their numbers in it.

    The list in CUDA_VISIBLE_DEVICES ends at the first entry that is no GPU (-1 among others); an entry that stands in
    it twice means that there is none. UUIDs may be cut short as long as they fit one GPU only.

    Indices count in CUDA's order: by PCI bus id where CUDA_DEVICE_ORDER is PCI_BUS_ID, otherwise the fastest first.
    CUDA does not say how it compares speeds: here it is cores times the highest clock, and GPUs that are equal stay in
    PCI order, as CUDA leaves them. So on machines with GPUs of several kinds PCI_BUS_ID or UUIDs are safer.

    A GPU that is cut into MIG instances stands for the first of them. CUDA gives a process one MIG instance and nothing
    besides it.

    Args:
        machine: all GPUs.
        environ: the environment of the process.

    Returns:
        The GPUs and MIG instances.
    """
    enumerated = _enumerated(machine, environ.get("CUDA_DEVICE_ORDER", ""))
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return _one_mig_instance(enumerated)
    instances = [part for whole in machine for part in whole.mig_instances or ()]
    chosen: list[Gpu] = []
    kind = _kind(value)
    for entry in value.split(","):
        if _kind(entry) != kind:
            break
        found = (
            _by_number(entry, enumerated)
            if kind == "number"
            else _by_uuid(entry.strip(), [one for one in enumerated if not one.is_mig] if kind == "gpu" else instances)
        )
        if found is None:
            break
        if found in chosen:
            return []
        chosen.append(found)
    return _one_mig_instance(chosen)


def _enumerated(machine: Sequence[WholeGpu], order: str) -> list[Gpu]:
    by_bus = sorted(machine, key=lambda whole: whole.gpu.pci_bus_id)
    speeds = [whole.speed for whole in by_bus if whole.speed is not None]
    if order.strip().upper() != "PCI_BUS_ID" and len(speeds) == len(by_bus):
        by_bus.sort(key=lambda whole: -(whole.speed or 0))
    return [
        whole.gpu if whole.mig_instances is None else whole.mig_instances[0]
        for whole in by_bus
        if whole.mig_instances is None or whole.mig_instances
    ]


def _one_mig_instance(gpus: list[Gpu]) -> list[Gpu]:
    if gpus and gpus[0].is_mig:
        return gpus[:1]
    return [gpu for gpu in gpus if not gpu.is_mig]


def _kind(entries: str) -> str:
    start = entries.strip().lower()
    return "gpu" if start.startswith("gpu-") else "mig" if start.startswith("mig-") else "number"


def _by_number(entry: str, enumerated: Sequence[Gpu]) -> Gpu | None:
    # CUDA reads a number as C does: what stands behind it is ignored.
    number = _NUMBER.match(entry)
    index = -1 if number is None else int("".join(number.groups()))
    return enumerated[index] if 0 <= index < len(enumerated) else None


def _by_uuid(entry: str, candidates: Sequence[Gpu]) -> Gpu | None:
    old_name = _OLD_MIG_NAME.fullmatch(entry)
    if old_name is not None:
        parent, *instance = old_name.groups()
        matches = [
            one
            for one in candidates
            if (one.mig_parent_uuid or "").lower() == parent.lower() and one.mig_instance == tuple(map(int, instance))
        ]
    else:
        # The beginning is enough where it fits one GPU only.
        matches = [one for one in candidates if one.uuid.lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None
