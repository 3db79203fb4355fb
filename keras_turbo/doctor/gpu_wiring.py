"""What the NVIDIA driver says of itself and of how the GPUs are wired: PCIe, NVLink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_turbo.monitor.counters import Gpu, GpuCounters, NvmlQuestions
from keras_turbo.monitor.nvml import NvmlSession


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    """Asks NVML. It may take as long as the driver likes: see `time_limit.answer_within`.

    Args:
        environ: the environment of the process: `os.environ` by default.

    Returns:
        The facts.
    """
    with NvmlSession(environ) as session:
        nvml = session.nvml
        if nvml is None:
            return Driver(problem=session.problem)
        readings = session.read()
        handles = [session.whole_handle(gpu) for gpu in session.gpus]
        return Driver(
            version=_asked(nvml, "nvmlSystemGetDriverVersion"),
            cuda_version=_cuda_version(_asked(nvml, "nvmlSystemGetCudaDriverVersion_v2")),
            gpus=readings,
            pcie=tuple(_pcie_link(NvmlQuestions(nvml, handle)) for handle in handles),
            nvlink_pairs=frozenset(_nvlink_pairs(nvml, session.gpus, handles)),
            problem=session.problem,
        )


def _asked(nvml: Any, name: str) -> Any:
    try:
        return getattr(nvml, name)()
    except (nvml.NVMLError, AttributeError):
        return None


def _cuda_version(number: int | None) -> tuple[int, int] | None:
    return None if not number else (number // 1000, number % 1000 // 10)


def _pcie_link(questions: NvmlQuestions) -> PcieLink:
    return PcieLink(
        generation=questions.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        generation_of_slot=questions.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        generation_of_gpu=questions.ask("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        width=questions.ask("nvmlDeviceGetCurrPcieLinkWidth"),
        width_of_gpu=questions.ask("nvmlDeviceGetMaxPcieLinkWidth"),
    )


def _nvlink_pairs(nvml: Any, gpus: tuple[Gpu, ...], handles: list[Any]) -> list[tuple[int, int]]:
    pairs = []
    for first in range(len(gpus)):
        questions = NvmlQuestions(nvml, handles[first])
        for second in range(first + 1, len(gpus)):
            status = questions.ask("nvmlDeviceGetP2PStatus", handles[second], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if status == nvml.NVML_P2P_STATUS_OK:
                pairs.append((first, second))
    return pairs
