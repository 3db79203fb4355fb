"""How GPUs of several machines reach each other: RDMA devices and NCCL."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from keras_turbo.doctor.findings import Finding

TOPIC = "network"

# Switches that people set to find an error, and forget.
_NCCL_SWITCHES = {
    "NCCL_P2P_DISABLE": "GPUs of one machine don't reach each other directly",
    "NCCL_IB_DISABLE": "RDMA is not used",
    "NCCL_SHM_DISABLE": "shared memory is not used",
}


@dataclasses.dataclass(frozen=True)
class RdmaPort:
    """One port of an InfiniBand or RoCE device.

    Attributes:
        name: such as "mlx5_0/1".
        is_active: whether it is up.
        rate: as the kernel gives it, such as "200 Gb/sec (4X HDR)".
        link_layer: "InfiniBand" or "Ethernet".
    """

    name: str
    is_active: bool
    rate: str
    link_layer: str


@dataclasses.dataclass(frozen=True)
class Network:
    """What there is to talk over.

    Attributes:
        ports: of RDMA devices.
        has_gpu_direct: whether the kernel lets these devices read the GPUs' memory.
    """

    ports: tuple[RdmaPort, ...]
    has_gpu_direct: bool


def read_network(root: Path = Path("/")) -> Network:
    """Reads the kernel's list of RDMA devices.

    Args:
        root: folder in place of the file system's root for `/sys`, for tests.

    Returns:
        The facts.
    """
    ports = []
    for folder in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        state = _text(folder / "state")
        name = f"{folder.parent.parent.name}/{folder.name}"
        ports.append(RdmaPort(name, "ACTIVE" in state, _text(folder / "rate"), _text(folder / "link_layer")))
    modules = root / "sys/module"
    return Network(tuple(ports), any((modules / name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem")))


def findings(
    network: Network, environ: Mapping[str, str], *, gpu_number: int, has_many_machines: bool, nccl: str | None
) -> list[Finding]:
    """What the network means for training.

    Args:
        network: the RDMA devices.
        environ: the environment of the process, for NCCL's variables.
        gpu_number: GPUs of this process.
        has_many_machines: whether the cluster variables describe more than one.
        nccl: the version of the NCCL that pip installed; None where there is none.

    Returns:
        The findings.
    """
    found = []
    if not network.ports:
        found.append(
            Finding(
                TOPIC,
                "warning" if has_many_machines else "ok",
                "No RDMA devices"
                + (": machines talk over TCP." if has_many_machines else "; they matter between machines only."),
                "Larger batches or gradient accumulation make the exchanges rarer. In a container, pass the devices in "
                "(--device=/dev/infiniband)."
                if has_many_machines
                else None,
            )
        )
    for port in network.ports:
        text = f"RDMA port {port.name}: {port.link_layer or 'unknown kind'}, {port.rate or 'unknown rate'}"
        if port.is_active:
            found.append(Finding(TOPIC, "ok", f"{text}."))
        else:
            found.append(Finding(TOPIC, "warning", f"{text}, not up.", "Look at cable, switch and ibstat."))
    if gpu_number and any(port.is_active for port in network.ports) and not network.has_gpu_direct:
        found.append(
            Finding(
                TOPIC,
                "warning",
                "RDMA devices can't read the GPUs' memory: the kernel module nvidia_peermem is not loaded.",
                "sudo modprobe nvidia_peermem (newer kernels do it by dma-buf without the module).",
            )
        )
    if gpu_number > 1:
        found.append(
            Finding(TOPIC, "ok", f"NCCL {nccl} (pip).")
            if nccl is not None
            else Finding(
                TOPIC,
                "warning",
                "NCCL is not among pip's packages; the system's is taken if it is there.",
                'pip install "tensorflow[and-cuda]" brings it.',
            )
        )
    set_switches = [name for name in _NCCL_SWITCHES if environ.get(name, "0") not in ("", "0")]
    found += [
        Finding(TOPIC, "warning", f"{name} is set: {_NCCL_SWITCHES[name]}.", f"unset {name}, unless you mean it.")
        for name in set_switches
    ]
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
