"""Which cluster a process belongs to, by the variables of its environment, and whether that can be before it starts."""

from __future__ import annotations

import errno
import socket
import warnings
from collections.abc import Mapping

from keras_turbo.distribution.cluster import (
    MOST_SHOWN,
    UNKNOWN_HOSTS_REMEDY,
    Cluster,
    ClusterError,
    resolve_hosts,
    split_address,
    unknown_hosts_fact,
)
from keras_turbo.distribution.kubernetes import INDEX, SERVICE, WORKERS, completion_index, read_kubernetes
from keras_turbo.distribution.slurm import read_slurm, read_step
from keras_turbo.distribution.tf_config import VARIABLE, read_tf_config
from keras_turbo.report import listed

# Kubernetes sets it in all pods, those of Kubeflow as well.
_IN_A_POD = "KUBERNETES_SERVICE_HOST"


def cluster_of(environ: Mapping[str, str]) -> Cluster | None:
    """The cluster of this process.

    TF_CONFIG comes first, since who writes it means it; then an indexed job of Kubernetes; then a Slurm step.

    Args:
        environ: the environment of the process.

    Returns:
        The cluster; None where there is none, or only this process in it.

    Raises:
        ClusterError: the variables can't be, or describe what is not supported.
    """
    cluster = _described(environ)
    if cluster is None:
        _warn_of_independent_processes(environ)
        return None
    _refuse_unsupported(cluster)
    return cluster if len(cluster.addresses) > 1 else None


def _described(environ: Mapping[str, str]) -> Cluster | None:
    text = environ.get(VARIABLE, "")
    if text.strip():
        # Also where it names one machine: a task of a search over hyperparameters, say, among others in a Slurm step.
        return read_tf_config(text)
    return read_kubernetes(environ) or read_slurm(environ)


def _refuse_unsupported(cluster: Cluster) -> None:
    if cluster.task_type == "ps" or "ps" in cluster.tasks:
        raise ClusterError(
            VARIABLE,
            "the cluster has parameter servers (tasks of type 'ps'), which Keras 3 can't train with.",
            "Start all machines as tasks of type 'worker': they train together and keep equal weights "
            "(MultiWorkerMirroredStrategy). For slow networks, see docs/distribute.md.",
        )
    if cluster.task_type == "evaluator":
        raise ClusterError(
            VARIABLE,
            "this task is an evaluator, which is not supported.",
            "Give `validation_data` to fit, which all workers evaluate together; or evaluate checkpoints in a program "
            "without TF_CONFIG.",
        )


def _warn_of_independent_processes(environ: Mapping[str, str]) -> None:
    """Says so where several processes look like a cluster and are none."""
    if environ.get(VARIABLE, "").strip():
        return
    if completion_index(environ):
        warnings.warn(
            f"This is pod {environ[INDEX]} of an indexed job, and trains on its own: {WORKERS} and {SERVICE} are not "
            "set. If the pods shall train together, set both in the manifest (docs/kubernetes.yaml is one).",
            stacklevel=4,
        )
    step = read_step(environ)
    if step is not None and not step.is_step and (step.tasks or 1) > 1:
        warnings.warn(
            f"Slurm job {step.job} has {step.tasks} tasks, and this process is none of them, so that it trains on its "
            "own. Start the script by srun.",
            stacklevel=4,
        )


def check_cluster(cluster: Cluster, environ: Mapping[str, str]) -> None:
    """Refuses a cluster that can't start: before a hundred machines wait for one that has no address.

    Args:
        cluster: of this process.
        environ: the environment of the process.

    Raises:
        ClusterError: a host has no address, or this worker's port is taken.
    """
    resolved = resolve_hosts(cluster.addresses)
    if resolved.unknown:
        fact = unknown_hosts_fact(resolved.unknown)
        if _IN_A_POD not in environ:
            raise ClusterError(cluster.variable, fact, UNKNOWN_HOSTS_REMEDY)
        # A pod has a name from its start on, and some wait minutes for a machine or for their image.
        warnings.warn(
            f"{cluster.variable}: {fact} Pods that have not started have none: the workers wait for one another. "
            f"{UNKNOWN_HOSTS_REMEDY}",
            stacklevel=4,
        )
    if resolved.silent:
        warnings.warn(
            f"{cluster.variable}: the name server did not answer in time for {listed(resolved.silent, MOST_SHOWN)}: "
            "every worker will be slow to start.",
            stacklevel=4,
        )
    _check_port(cluster)


def _check_port(cluster: Cluster) -> None:
    _, port = split_address(cluster.address) or ("", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As TensorFlow's server does; a port that a process of before has just left is free then.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                fact = f"port {port} of this worker's address {cluster.address} is taken by another process."
            elif error.errno == errno.EACCES:
                fact = f"port {port} of this worker's address {cluster.address} is reserved for root."
            else:
                fact = f"port {port} of this worker's address {cluster.address} can't be opened: {error.strerror}."
            raise ClusterError(
                cluster.variable,
                fact,
                "Give each worker a free port above 1023; see that no worker of an earlier run is left "
                f"(ss -ltnp | grep {port}).",
            ) from None
