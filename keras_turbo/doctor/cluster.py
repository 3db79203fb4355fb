"""What TF_CONFIG, Slurm and Kubernetes say of the cluster, checked before a hundred GPUs wait for a typing error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras_turbo.distribution.cluster import (
    MOST_SHOWN,
    RESOLVE_SECONDS,
    UNKNOWN_HOSTS_REMEDY,
    Cluster,
    ClusterError,
    resolve_hosts,
    split_address,
    unknown_hosts_fact,
)
from keras_turbo.distribution.kubernetes import completion_index, read_kubernetes
from keras_turbo.distribution.slurm import read_step
from keras_turbo.distribution.tf_config import read_tf_config
from keras_turbo.doctor.findings import Finding
from keras_turbo.machine import cores
from keras_turbo.report import listed

TOPIC = "cluster"

# With fewer cores, one task with a GPU can't decode its images.
_FEW_CORES = 4


@dataclasses.dataclass(frozen=True)
class ClusterFindings:
    """What was found out.

    Attributes:
        findings: about the variables.
        machines: how many hosts they name; 1 where they name none.
    """

    findings: tuple[Finding, ...]
    machines: int = 1


def read_cluster(
    environ: Mapping[str, str],
    resolve: Callable[[str], Any] | None = None,
    resolve_seconds: float = RESOLVE_SECONDS,
    usable_cores: float | None = None,
) -> ClusterFindings:
    """Checks the variables.

    Args:
        environ: the environment of the process.
        resolve: finds a host's address and raises OSError where there is none; the system's by default. It is called
            on several threads.
        resolve_seconds: how long the name server may take for all hosts.
        usable_cores: of this process; the system's answer by default.

    Returns:
        The findings.
    """
    found: list[Finding] = []
    hosts: set[str] = set()
    if environ.get("TF_CONFIG", "").strip():
        found, addresses = _tf_config(environ["TF_CONFIG"])
        hosts = {parts[0] for one in addresses if (parts := split_address(one)) is not None}
        if hosts:
            found += _unresolved(addresses, resolve, resolve_seconds)
    slurm, machines = _slurm(environ, cores().usable if usable_cores is None else usable_cores)
    found += [*slurm, *_kubernetes(environ)]
    if not found:
        found = [Finding(TOPIC, "ok", "No cluster variables: one process.")]
    return ClusterFindings(tuple(found), max(1, len(hosts), machines))


def _wrong(error: ClusterError) -> Finding:
    return Finding(TOPIC, "error", error.text, error.remedy)


def _tf_config(text: str) -> tuple[list[Finding], list[str]]:
    """What is to be said of the variable, and the addresses that it names."""
    try:
        cluster = read_tf_config(text)
    except ClusterError as error:
        return [_wrong(error)], []
    if cluster is None:
        # Launchers write that for a single machine; TensorFlow takes it so, too.
        return [Finding(TOPIC, "ok", "TF_CONFIG names no cluster: one process.")], []
    if cluster.task_type == "evaluator" and "evaluator" not in cluster.tasks:
        return [Finding(TOPIC, "ok", "TF_CONFIG: this is an evaluator, which the cluster does not wait for.")], []
    every = [address for addresses in cluster.tasks.values() for address in addresses]
    return [Finding(TOPIC, "ok", _place(cluster, len(every)))], every


def _place(cluster: Cluster, number: int) -> str:
    tasks = f"{number} task{'' if number == 1 else 's'}"
    return f"TF_CONFIG: this is {cluster.task_type} {cluster.task_index}; {tasks} in all."


def _unresolved(addresses: list[str], resolve: Callable[[str], Any] | None, seconds: float) -> list[Finding]:
    resolved = resolve_hosts(addresses, resolve, seconds)
    found = []
    if resolved.unknown:
        found.append(
            Finding(TOPIC, "error", f"TF_CONFIG: {unknown_hosts_fact(resolved.unknown)}", UNKNOWN_HOSTS_REMEDY)
        )
    if resolved.silent:
        found.append(
            Finding(
                TOPIC,
                "warning",
                f"TF_CONFIG: the name server did not answer within {seconds:g} s; not checked: "
                f"{listed(resolved.silent, MOST_SHOWN)}.",
                "A slow name server delays the start of every worker: see /etc/resolv.conf.",
            )
        )
    return found


def _slurm(environ: Mapping[str, str], usable_cores: float) -> tuple[list[Finding], int]:
    try:
        step = read_step(environ)
    except ClusterError as error:
        return [_wrong(error)], 1
    if step is None:
        return [], 1
    job, nodes = f"Slurm job {step.job}", step.nodes
    if step.tasks is not None and step.tasks > 1 and not step.is_step:
        return [
            Finding(
                TOPIC,
                "warning",
                f"{job} has {step.tasks} tasks, and this process is none of them.",
                "Start the script by srun: otherwise it runs once, on the first machine.",
            )
        ], nodes
    try:
        step.check_number()
    except ClusterError as error:
        return [_wrong(error)], nodes
    tasks = step.tasks or 1
    machines = f"{nodes} machine{'' if nodes == 1 else 's'}"
    if nodes > tasks:
        found = [
            Finding(
                TOPIC,
                "warning",
                f"{job}: {machines}, and fewer tasks ({tasks}): some machines do nothing.",
                "Start as many tasks as machines (srun --ntasks-per-node=1), or ask for fewer machines.",
            )
        ]
    else:
        found = [Finding(TOPIC, "ok", f"{job}: task {step.number} (from 0) of {tasks}, {machines}.")]
    if step.cpus_per_task is None and usable_cores < _FEW_CORES:
        found.append(
            Finding(
                TOPIC,
                "warning",
                f"SLURM_CPUS_PER_TASK is not set, and this process has {usable_cores:g} "
                f"core{'' if usable_cores == 1 else 's'}: Slurm gives each task one unless it is asked for more.",
                "sbatch --cpus-per-task=8, and srun --cpus-per-task=8, which does not take it over since Slurm 22.05.",
            )
        )
    return found, nodes


def _kubernetes(environ: Mapping[str, str]) -> list[Finding]:
    try:
        index = completion_index(environ)
        cluster = read_kubernetes(environ)
    except ClusterError as error:
        return [_wrong(error)]
    if index is None:
        if "KUBERNETES_SERVICE_HOST" in environ:
            return [Finding(TOPIC, "ok", "In a pod of Kubernetes; no index of an indexed job.")]
        return []
    fact = f"Pod {index} (from 0) of an indexed job of Kubernetes"
    if cluster is None:
        return [Finding(TOPIC, "ok", f"{fact}.")]
    return [Finding(TOPIC, "ok", f"{fact}, which {len(cluster.addresses)} workers train in.")]
