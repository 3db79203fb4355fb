"""What the GPUs can do, how they are wired (PCIe, NVLink), and what holds them back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from keras_turbo.doctor.findings import Finding, error, ok, warning
from keras_turbo.monitor.counters import GpuCounters, NvmlQuestions
from keras_turbo.monitor.nvml import NvmlSession
from keras_turbo.report import listed, quoted

# Of a GPU's memory that others hold, before anything of ours is on it.
_MUCH_MEMORY_SHARE = 0.2
# What is not usual. That the power cap holds a GPU's clock is.
_HELD_BY = {"heat", "power_brake", "hardware_slowdown", "clock_limit"}


@dataclasses.dataclass(frozen=True)
class PcieLink:
    """How a GPU is connected to the host; a number that the driver does not tell is None.

    Attributes:
        generation: now. A GPU that has nothing to do lowers it to save power.
        generation_of_slot: the highest that GPU and machine can have together.
        generation_of_gpu: the highest that the GPU could have in another machine.
        width: lanes in use.
        width_of_gpu: lanes that the GPU has.
    """

    generation: int | None = None
    generation_of_slot: int | None = None
    generation_of_gpu: int | None = None
    width: int | None = None
    width_of_gpu: int | None = None


@dataclasses.dataclass(frozen=True)
class Driver:
    """The NVIDIA driver and the GPUs that this process uses.

    Attributes:
        version: of the driver, such as "570.86.15"; None where it does not tell.
        cuda_version: the newest CUDA that it runs, such as (12, 8).
        gpus: one reading of each GPU.
        pcie: one link for each GPU.
        nvlink_pairs: places in `gpus` of those that reach each other by NVLink.
        problem: why there are no figures, or not all, in one line.
    """

    version: str | None = None
    cuda_version: tuple[int, int] | None = None
    gpus: tuple[GpuCounters, ...] = ()
    pcie: tuple[PcieLink, ...] = ()
    nvlink_pairs: frozenset[tuple[int, int]] = frozenset()
    problem: str | None = None


def read_driver(environ: Mapping[str, str] | None = None) -> Driver:
    """Asks NVML. It may take as long as the driver likes: see `time_limit.answer_within`."""
    with NvmlSession(environ) as session:
        nvml = session.nvml
        if nvml is None:
            return Driver(problem=session.problem)

        def asked(name: str) -> Any:
            try:
                return getattr(nvml, name)()
            except (nvml.NVMLError, AttributeError):
                return None

        readings = session.read()
        handles = [session.whole_handle(gpu) for gpu in session.gpus]
        questions = [NvmlQuestions(nvml, handle) for handle in handles]
        pcie = (
            "nvmlDeviceGetCurrPcieLinkGeneration",
            "nvmlDeviceGetMaxPcieLinkGeneration",
            "nvmlDeviceGetGpuMaxPcieLinkGeneration",
            "nvmlDeviceGetCurrPcieLinkWidth",
            "nvmlDeviceGetMaxPcieLinkWidth",
        )
        cuda = asked("nvmlSystemGetCudaDriverVersion_v2")
        return Driver(
            version=asked("nvmlSystemGetDriverVersion"),
            cuda_version=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
            gpus=readings,
            pcie=tuple(PcieLink(*map(each.ask, pcie)) for each in questions),
            nvlink_pairs=frozenset(
                (a, b)
                for a, b in combinations(range(len(handles)), 2)
                if questions[a].ask("nvmlDeviceGetP2PStatus", handles[b], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
                == nvml.NVML_P2P_STATUS_OK
            ),
            problem=session.problem,
        )


def findings(
    driver: Driver, environ: Mapping[str, str], gpus_of_tensorflow: int | None = None, root: Path = Path("/")
) -> Iterator[Finding]:
    """What the GPUs' facts mean.

    Args:
        driver: what NVML says.
        environ: the environment of the process, for CUDA_VISIBLE_DEVICES.
        gpus_of_tensorflow: how many GPUs TensorFlow lists; None where it was not asked.
        root: folder in place of the file system's root for `/dev`, for tests.
    """
    if not driver.gpus:
        yield _no_gpu(driver, gpus_of_tensorflow or 0, root)
        return
    has_mig = any(counters.gpu.is_mig for counters in driver.gpus)
    if not has_mig:
        yield from _ignored_entries(environ.get("CUDA_VISIBLE_DEVICES", ""), len(driver.gpus))
    for counters, link in zip(driver.gpus, driver.pcie or (PcieLink(),) * len(driver.gpus), strict=True):
        for one in (_abilities(counters), *_pcie(link), *_held_back(counters)):
            yield dataclasses.replace(one, subject=f"GPU {counters.gpu.index}")
    if len(driver.gpus) > 1 and not has_mig:
        yield _nvlink(driver)
    if driver.problem is not None:
        yield warning(driver.problem, "See nvidia-smi and the kernel's log (dmesg).")


def _no_gpu(driver: Driver, gpus_of_tensorflow: int, root: Path) -> Finding:
    # What went wrong is one sentence; what to do is in the ones behind it, if there are any.
    reason, _, hint = (driver.problem or "The driver lists none.").partition(". ")
    reason = f"{reason.removesuffix('.')}."
    if gpus_of_tensorflow:
        number = f"{gpus_of_tensorflow} GPU{'' if gpus_of_tensorflow == 1 else 's'}"
        return warning(
            f"TensorFlow lists {number}, of which there are no figures here. {reason}",
            hint or "Training is not touched by it.",
        )
    if "hides every GPU" in reason:
        return warning(
            f"No GPU: {reason}",
            "Unset it, unless you mean it. nvidia-smi -L lists the numbers and UUIDs that it takes, each once.",
        )
    if any((root / "dev").glob("nvidia[0-9]*")):
        return error(f"An NVIDIA GPU is there and can't be used. {reason}", hint or "See nvidia-smi.")
    hint = hint or "Nothing, if training on the CPU is meant."
    return warning(f"No GPU, so training runs on the CPU. {reason}", hint)


def _ignored_entries(value: str, number: int) -> Iterator[Finding]:
    entries = value.split(",")
    if number < len(entries) and entries[number].strip() not in ("", "-1"):
        yield warning(
            f"CUDA_VISIBLE_DEVICES={quoted(value)} names {len(entries)} GPUs, and this process has {number}: CUDA "
            f"stops at the first that is not there, {quoted(entries[number].strip())}.",
            "Correct it: nvidia-smi -L lists the numbers and UUIDs that there are.",
        )


def _abilities(counters: GpuCounters) -> Finding:
    gpu, hardware = counters.gpu, counters.gpu.hardware
    memory = "" if gpu.memory_total_mb is None else f", {gpu.memory_total_mb / 1024:.0f} GB"
    figures = {"index": gpu.index, "memory_total_mb": gpu.memory_total_mb, "pci_bus_id": gpu.pci_bus_id}
    fact = f"{hardware}{memory}"
    if hardware.tensor_cores is False:
        hint = "Mixed precision saves memory here, not time: train in float32."
        return warning(f"{fact}, no Tensor Cores.", hint, **figures)
    if hardware.tensor_cores:
        types = "float16 and bfloat16" if hardware.bfloat16 else "float16"
        fact += f", Tensor Cores for {types}: kt.use_mixed_precision() uses them"
    return ok(f"{fact}{'; a MIG instance: it has no utilization figure' if gpu.is_mig else ''}.", **figures)


def _pcie(link: PcieLink) -> Iterator[Finding]:
    width, full_width = link.width, link.width_of_gpu
    generation, full_generation = link.generation_of_slot, link.generation_of_gpu
    if width is None or generation is None:
        return
    figures = {
        "pcie_generation": link.generation,
        "pcie_generation_possible": generation,
        "pcie_width": width,
        "pcie_width_possible": full_width,
    }
    if full_width is not None and width < full_width:
        yield warning(
            f"PCIe x{width} of x{full_width}: batches get to the GPU at {width}/{full_width} of the rate.",
            "Put it into a slot with all lanes; reseat it, and look at riser and bifurcation in the firmware.",
            **figures,
        )
    elif full_generation is not None and generation < full_generation:
        yield warning(
            f"PCIe generation {generation} of {full_generation}: the slot or the processor has no more.",
            "Look at the slot's setting in the firmware; keep images uint8 until they are on the GPU.",
            **figures,
        )
    else:
        idle = link.generation is not None and link.generation < generation
        now = f" (now {link.generation}, as long as it has nothing to do)" if idle else ""
        yield ok(f"PCIe generation {generation} x{width}{now}.", **figures)


def _held_back(counters: GpuCounters) -> Iterator[Finding]:
    reasons = sorted(_HELD_BY & set(counters.throttle_reasons or ()))
    if reasons:
        yield warning(
            f"Held below its clocks by: {listed(reasons)}.",
            "Heat: look at fans and air. clock_limit: nvidia-smi -rgc; nvidia-smi -rac. The others: the power supply.",
        )
    used, total = counters.memory_used_mb, counters.memory_total_mb
    if used is not None and total and used > _MUCH_MEMORY_SHARE * total:
        yield warning(
            f"{used / 1024:.1f} of {total / 1024:.0f} GB are taken by other processes.",
            "nvidia-smi names them. TensorFlow takes all that is left unless it is told to grow "
            "(TF_FORCE_GPU_ALLOW_GROWTH=true).",
            index=counters.gpu.index,
            memory_used_mb=used,
        )


def _nvlink(driver: Driver) -> Finding:
    number, pairs = len(driver.gpus), driver.nvlink_pairs
    figures = {"nvlink_pairs": len(pairs), "pairs": number * (number - 1) // 2}
    if len(pairs) == figures["pairs"]:
        active = sorted({one.nvlink_links_active for one in driver.gpus if one.nvlink_links_active})
        return ok(f"NVLink between all {number} GPUs{f', {listed(active)} links each' if active else ''}.", **figures)
    down = [one.gpu.index for one in driver.gpus if one.nvlink_links_active == 0]
    if down:
        return warning(
            f"NVLink is there and not up on GPU {listed(down)}.",
            "On machines with NVSwitch: systemctl start nvidia-fabricmanager. Otherwise look at the bridge.",
            **figures,
        )
    linked = [f"{driver.gpus[a].gpu.index}-{driver.gpus[b].gpu.index}" for a, b in sorted(pairs)]
    return warning(
        f"NVLink between GPUs {listed(linked)} only." if linked else f"No NVLink between the {number} GPUs.",
        "Gradients travel over PCIe: larger batches or gradient accumulation make them rarer.",
        **figures,
    )
