"""What the GPUs can do, how they are wired, and what holds them back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from keras_turbo.doctor.findings import Finding
from keras_turbo.doctor.gpu_wiring import Driver, PcieLink
from keras_turbo.monitor.counters import GpuCounters
from keras_turbo.report import listed, quoted

TOPIC = "GPUs"

# Of a GPU's memory that others hold, before anything of ours is on it.
_MUCH_MEMORY_SHARE = 0.2


def findings(
    driver: Driver, environ: Mapping[str, str], gpus_of_tensorflow: int | None = None, root: Path = Path("/")
) -> list[Finding]:
    """What the GPUs' facts mean.

    Args:
        driver: what NVML says.
        environ: the environment of the process, for CUDA_VISIBLE_DEVICES.
        gpus_of_tensorflow: how many GPUs TensorFlow lists; None where it was not asked.
        root: folder in place of the file system's root for `/dev`, for tests.

    Returns:
        The findings.
    """
    if not driver.gpus:
        return [_no_gpu(driver, gpus_of_tensorflow or 0, root)]
    found = _ignored_entries(driver, environ)
    links = driver.pcie or (PcieLink(),) * len(driver.gpus)
    for counters, link in zip(driver.gpus, links, strict=True):
        of_one = [_abilities(counters), *_pcie(link), *_held_back(counters)]
        found += [dataclasses.replace(one, subject=f"GPU {counters.gpu.index}") for one in of_one]
    found += _nvlink(driver)
    if driver.problem is not None:
        found.append(Finding(TOPIC, "warning", driver.problem, "See nvidia-smi and the kernel's log (dmesg)."))
    return found


def _no_gpu(driver: Driver, gpus_of_tensorflow: int, root: Path) -> Finding:
    # What went wrong is one sentence; what to do is in the ones behind it, if there are any.
    reason, _, remedy = (driver.problem or "The driver lists none.").partition(". ")
    reason = f"{reason.removesuffix('.')}."
    if gpus_of_tensorflow:
        number = f"{gpus_of_tensorflow} GPU{'' if gpus_of_tensorflow == 1 else 's'}"
        return Finding(
            TOPIC,
            "warning",
            f"TensorFlow lists {number}, of which there are no figures here. {reason}",
            remedy or "Training is not touched by it.",
        )
    if "hides every GPU" in reason:
        return Finding(
            TOPIC,
            "warning",
            f"No GPU: {reason}",
            "Unset it, unless you mean it. nvidia-smi -L lists the numbers and UUIDs that it takes, each once.",
        )
    if any((root / "dev").glob("nvidia[0-9]*")):
        return Finding(
            TOPIC, "error", f"An NVIDIA GPU is there and can't be used. {reason}", remedy or "See nvidia-smi."
        )
    return Finding(
        TOPIC,
        "warning",
        f"No GPU, so training runs on the CPU. {reason}",
        remedy or "Nothing, if training on the CPU is meant.",
    )


def _ignored_entries(driver: Driver, environ: Mapping[str, str]) -> list[Finding]:
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None or any(counters.gpu.is_mig for counters in driver.gpus):
        return []
    entries, number = value.split(","), len(driver.gpus)
    if number >= len(entries) or entries[number].strip() in ("", "-1"):
        return []
    return [
        Finding(
            TOPIC,
            "warning",
            f"CUDA_VISIBLE_DEVICES={quoted(value)} names {len(entries)} GPUs, and this process has {number}: CUDA "
            f"stops at the first that is not there, {quoted(entries[number].strip())}.",
            "Correct it: nvidia-smi -L lists the numbers and UUIDs that there are.",
        )
    ]


def _abilities(counters: GpuCounters) -> Finding:
    gpu, hardware = counters.gpu, counters.gpu.hardware
    memory = "" if gpu.memory_total_mb is None else f", {gpu.memory_total_mb / 1024:.0f} GB"
    figures = {"index": gpu.index, "memory_total_mb": gpu.memory_total_mb, "pci_bus_id": gpu.pci_bus_id}
    fact = f"{hardware}{memory}"
    if hardware.tensor_cores is False:
        return Finding(
            TOPIC,
            "warning",
            f"{fact}, no Tensor Cores.",
            "Mixed precision saves memory here, not time: train in float32.",
            figures,
        )
    if hardware.tensor_cores:
        types = "float16 and bfloat16" if hardware.bfloat16 else "float16"
        fact += f", Tensor Cores for {types}: kt.use_mixed_precision() uses them"
    if gpu.is_mig:
        fact += "; a MIG instance: it has no utilization figure"
    return Finding(TOPIC, "ok", f"{fact}.", figures=figures)


def _pcie(link: PcieLink) -> list[Finding]:
    if link.width is None or link.generation_of_slot is None:
        return []
    figures = {
        "pcie_generation": link.generation,
        "pcie_generation_possible": link.generation_of_slot,
        "pcie_width": link.width,
        "pcie_width_possible": link.width_of_gpu,
    }
    if link.width_of_gpu is not None and link.width < link.width_of_gpu:
        return [
            Finding(
                TOPIC,
                "warning",
                f"PCIe x{link.width} of x{link.width_of_gpu}: batches get to the GPU at {link.width}/"
                f"{link.width_of_gpu} of the rate.",
                "Put it into a slot with all lanes; reseat it, and look at riser and bifurcation in the firmware.",
                figures,
            )
        ]
    if link.generation_of_gpu is not None and link.generation_of_slot < link.generation_of_gpu:
        return [
            Finding(
                TOPIC,
                "warning",
                f"PCIe generation {link.generation_of_slot} of {link.generation_of_gpu}: the slot or the processor "
                "has no more.",
                "Look at the slot's setting in the firmware; keep images uint8 until they are on the GPU.",
                figures,
            )
        ]
    idle = link.generation is not None and link.generation < link.generation_of_slot
    now = f" (now {link.generation}, as long as it has nothing to do)" if idle else ""
    return [Finding(TOPIC, "ok", f"PCIe generation {link.generation_of_slot} x{link.width}{now}.", figures=figures)]


def _held_back(counters: GpuCounters) -> list[Finding]:
    found = []
    gpu = counters.gpu
    reasons = set(counters.throttle_reasons or ()) & {"heat", "power_brake", "hardware_slowdown", "clock_limit"}
    if reasons:
        found.append(
            Finding(
                TOPIC,
                "warning",
                f"Held below its clocks by: {listed(sorted(reasons))}.",
                "Heat: look at fans and air. clock_limit: nvidia-smi -rgc; nvidia-smi -rac. The others: the power "
                "supply.",
            )
        )
    used, total = counters.memory_used_mb, counters.memory_total_mb
    if used is not None and total and used > _MUCH_MEMORY_SHARE * total:
        found.append(
            Finding(
                TOPIC,
                "warning",
                f"{used / 1024:.1f} of {total / 1024:.0f} GB are taken by other processes.",
                "nvidia-smi names them. TensorFlow takes all that is left unless it is told to grow "
                "(TF_FORCE_GPU_ALLOW_GROWTH=true).",
                {"index": gpu.index, "memory_used_mb": used},
            )
        )
    return found


def _nvlink(driver: Driver) -> list[Finding]:
    number = len(driver.gpus)
    if number < 2 or any(counters.gpu.is_mig for counters in driver.gpus):
        return []
    pairs, possible = driver.nvlink_pairs, number * (number - 1) // 2
    links = [counters.nvlink_links_active for counters in driver.gpus]
    figures = {"nvlink_pairs": len(pairs), "pairs": possible}
    slow = "Gradients travel over PCIe: larger batches or gradient accumulation make them rarer."
    if len(pairs) == possible:
        active = sorted({count for count in links if count})
        number_of_links = f", {listed(active)} links each" if active else ""
        return [Finding(TOPIC, "ok", f"NVLink between all {number} GPUs{number_of_links}.", figures=figures)]
    if any(count == 0 for count in links):
        down = [counters.gpu.index for counters, count in zip(driver.gpus, links, strict=True) if count == 0]
        return [
            Finding(
                TOPIC,
                "warning",
                f"NVLink is there and not up on GPU {listed(down)}.",
                "On machines with NVSwitch: systemctl start nvidia-fabricmanager. Otherwise look at the bridge.",
                figures,
            )
        ]
    if pairs:
        text = listed([f"{driver.gpus[a].gpu.index}-{driver.gpus[b].gpu.index}" for a, b in sorted(pairs)])
        return [Finding(TOPIC, "warning", f"NVLink between GPUs {text} only.", slow, figures)]
    return [Finding(TOPIC, "warning", f"No NVLink between the {number} GPUs.", slow, figures)]
