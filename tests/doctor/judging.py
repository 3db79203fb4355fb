"""What tests of findings look at."""

from __future__ import annotations

from keras_turbo.doctor.gpus import Driver, PcieLink
from keras_turbo.monitor.counters import Gpu, GpuCounters


def worst(findings):
    """The worst level of some findings."""
    levels = ["ok", "warning", "error"]
    return max((one.level for one in findings), key=levels.index, default="ok")


def only(findings, part):
    """The one finding whose fact has this part."""
    found = [one for one in findings if part in one.fact]
    assert len(found) == 1, [one.fact for one in findings]
    return found[0]


def checked(findings):
    """Findings as they all have to be: what is not fine says what to do, what is fine does not."""
    assert findings
    for one in findings:
        assert (one.hint is None) == (one.level == "ok"), one
        assert "\n" not in one.fact
    return findings


def counters(index=0, name="NVIDIA A100-SXM4-40GB", capability=(8, 0), mig=False, **figures):
    gpu = Gpu(
        index,
        f"GPU-{index}",
        f"0000:0{index}:00.0",
        name,
        40_960.0,
        capability,
        "GPU-whole" if mig else None,
        (1, 0) if mig else None,
    )
    return GpuCounters(gpu, **{"memory_total_mb": 40_960.0, "memory_used_mb": 500.0, **figures})


def driver(*gpus, pcie=None, **more):
    gpus = gpus or (counters(),)
    links = (PcieLink(4, 4, 4, 16, 16),) * len(gpus) if pcie is None else pcie
    return Driver("570.86.15", **{"cuda_version": (12, 8), "gpus": tuple(gpus), "pcie": tuple(links), **more})


NO_GPU = Driver(problem="No NVIDIA driver on this machine.")
