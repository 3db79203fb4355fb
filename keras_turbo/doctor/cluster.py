"""What TF_CONFIG, Slurm and Kubernetes say of the cluster, and what its machines talk over.

It is checked before a hundred GPUs wait for a typing error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_turbo.distribution.cluster import (
    MOST_SHOWN,
    RESOLVE_SECONDS,
    UNKNOWN_HOSTS_REMEDY,
    ClusterError,
    resolve_hosts,
    split_address,
    unknown_hosts_fact,
)
from keras_turbo.distribution.kubernetes import completion_index, read_kubernetes
from keras_turbo.distribution.slurm import read_step
from keras_turbo.distribution.tf_config import read_tf_config
from keras_turbo.doctor.findings import Finding, error, ok, warning
from keras_turbo.machine import cores
from keras_turbo.report import listed

# With fewer cores, one task with a GPU can't decode its images.
_FEW_CORES = 4

# Switches that people set to find an error, and forget.
_NCCL_SWITCHES = {
    "NCCL_P2P_DISABLE": "GPUs of one machine don't reach each other directly",
    "NCCL_IB_DISABLE": "RDMA is not used",
    "NCCL_SHM_DISABLE": "shared memory is not used",
}


def findings(
    environ: Mapping[str, str],
    resolve: Callable[[str], Any] | None = None,
    resolve_seconds: float = RESOLVE_SECONDS,
    usable_cores: float | None = None,
) -> list[Finding]:
    """Checks the cluster's variables; the figure "machines" says how many hosts they name.

    Args:
        environ: the environment of the process.
        resolve: finds a host's address and raises OSError where there is none; the system's by default. It is called
            on several threads.
        resolve_seconds: how long the name server may take for all hosts.
        usable_cores: of this process; the system's answer by default.
    """
    found: list[Finding] = []
    for of_one in (
        _tf_config(environ.get("TF_CONFIG", ""), resolve, resolve_seconds),
        _slurm(environ, cores().usable if usable_cores is None else usable_cores),
        _kubernetes(environ),
    ):
        try:
            found.extend(of_one)
        except ClusterError as failure:
            found.append(error(failure.text, failure.remedy))
    return found or [ok("No cluster variables: one process.")]


def _tf_config(text: str, resolve: Callable[[str], Any] | None, seconds: float) -> Iterator[Finding]:
    if not text.strip():
        return
    cluster = read_tf_config(text)
    if cluster is None:
        # Launchers write that for a single machine; TensorFlow takes it so, too.
        yield ok("TF_CONFIG names no cluster: one process.")
        return
    if cluster.task_type == "evaluator" and "evaluator" not in cluster.tasks:
        yield ok("TF_CONFIG: this is an evaluator, which the cluster does not wait for.")
        return
    every = [address for addresses in cluster.tasks.values() for address in addresses]
    machines = len({parts[0] for one in every if (parts := split_address(one)) is not None})
    tasks = f"{len(every)} task{'' if len(every) == 1 else 's'}"
    yield ok(f"TF_CONFIG: this is {cluster.task_type} {cluster.task_index}; {tasks} in all.", machines=machines)
    resolved = resolve_hosts(every, resolve, seconds)
    if resolved.unknown:
        yield error(f"TF_CONFIG: {unknown_hosts_fact(resolved.unknown)}", UNKNOWN_HOSTS_REMEDY)
    if resolved.silent:
        silent = listed(resolved.silent, MOST_SHOWN)
        yield warning(
            f"TF_CONFIG: the name server did not answer within {seconds:g} s; not checked: {silent}.",
            "A slow name server delays the start of every worker: see /etc/resolv.conf.",
        )


def _slurm(environ: Mapping[str, str], usable_cores: float) -> Iterator[Finding]:
    step = read_step(environ)
    if step is None:
        return
    job, nodes, tasks = f"Slurm job {step.job}", step.nodes, step.tasks or 1
    if tasks > 1 and not step.is_step:
        yield warning(
            f"{job} has {tasks} tasks, and this process is none of them.",
            "Start the script by srun: otherwise it runs once, on the first machine.",
            machines=nodes,
        )
        return
    step.check_number()
    machines = f"{nodes} machine{'' if nodes == 1 else 's'}"
    if nodes > tasks:
        yield warning(
            f"{job}: {machines}, and fewer tasks ({tasks}): some machines do nothing.",
            "Start as many tasks as machines (srun --ntasks-per-node=1), or ask for fewer machines.",
            machines=nodes,
        )
    else:
        yield ok(f"{job}: task {step.number} (from 0) of {tasks}, {machines}.", machines=nodes)
    if step.cpus_per_task is None and usable_cores < _FEW_CORES:
        yield warning(
            f"SLURM_CPUS_PER_TASK is not set, and this process has {usable_cores:g} "
            f"core{'' if usable_cores == 1 else 's'}: Slurm gives each task one unless it is asked for more.",
            "sbatch --cpus-per-task=8, and srun --cpus-per-task=8, which does not take it over since Slurm 22.05.",
        )


def _kubernetes(environ: Mapping[str, str]) -> Iterator[Finding]:
    index, cluster = completion_index(environ), read_kubernetes(environ)
    if index is not None:
        workers = "" if cluster is None else f", which {len(cluster.addresses)} workers train in"
        machines = {} if cluster is None else {"machines": len(cluster.addresses)}
        yield ok(f"Pod {index} (from 0) of an indexed job of Kubernetes{workers}.", **machines)
    elif "KUBERNETES_SERVICE_HOST" in environ:
        yield ok("In a pod of Kubernetes; no index of an indexed job.")


def network(
    environ: Mapping[str, str], gpu_number: int, machines: int, nccl: str | None, root: Path = Path("/")
) -> Iterator[Finding]:
    """How GPUs of several machines reach each other: RDMA devices and NCCL.

    Args:
        environ: the environment of the process, for NCCL's variables.
        gpu_number: GPUs of this process.
        machines: how many the cluster's variables name.
        nccl: the version of the NCCL that pip installed; None where there is none.
        root: folder in place of the file system's root for `/sys`, for tests.
    """
    ports = sorted(root.glob("sys/class/infiniband/*/ports/*"))
    if not ports and machines > 1:
        yield warning(
            "No RDMA devices: machines talk over TCP.",
            "Larger batches or gradient accumulation make the exchanges rarer. In a container, pass the devices in "
            "(--device=/dev/infiniband).",
        )
    elif not ports:
        yield ok("No RDMA devices; they matter between machines only.")
    is_up = False
    for port in ports:
        state, rate, kind = (_text(port / name) for name in ("state", "rate", "link_layer"))
        fact = f"RDMA port {port.parent.parent.name}/{port.name}: {kind or 'unknown kind'}, {rate or 'unknown rate'}"
        if "ACTIVE" in state:
            is_up = True
            yield ok(f"{fact}.")
        else:
            yield warning(f"{fact}, not up.", "Look at cable, switch and ibstat.")
    modules = root / "sys/module"
    if gpu_number and is_up and not any((modules / name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem")):
        yield warning(
            "RDMA devices can't read the GPUs' memory: the kernel module nvidia_peermem is not loaded.",
            "sudo modprobe nvidia_peermem (newer kernels do it by dma-buf without the module).",
        )
    if gpu_number > 1 and nccl is None:
        yield warning(
            "NCCL is not among pip's packages; the system's is taken if it is there.",
            'pip install "tensorflow[and-cuda]" brings it.',
        )
    elif gpu_number > 1:
        yield ok(f"NCCL {nccl} (pip).")
    for name, effect in _NCCL_SWITCHES.items():
        if environ.get(name, "0") not in ("", "0"):
            yield warning(f"{name} is set: {effect}.", f"unset {name}, unless you mean it.")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
