"""Kubernetes: the pods of an indexed job behind a headless service.

Kubernetes sets JOB_COMPLETION_INDEX in each pod of such a job, and gives pod i of the job `train` the host name
`train-i`; with the service's name as its subdomain it is reached as `train-i.SERVICE`. How many pods there are and what
the service is called it tells nobody, so the manifest has to say it in KERAS_TURBO_WORKERS and KERAS_TURBO_SERVICE.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from keras_turbo.distribution.cluster import Cluster, ClusterError, check_addresses, whole_number
from keras_turbo.report import quoted

INDEX = "JOB_COMPLETION_INDEX"
WORKERS = "KERAS_TURBO_WORKERS"
SERVICE = "KERAS_TURBO_SERVICE"
JOB = "KERAS_TURBO_JOB"
PORT = "KERAS_TURBO_PORT"
DEFAULT_PORT = 2222

# Names of services and jobs, with the namespace and the cluster's domain behind them.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def completion_index(environ: Mapping[str, str]) -> int | None:
    """The index of this pod in an indexed job; None where it is in none.

    Raises:
        ClusterError: the variable is no whole number.
    """
    return whole_number(
        environ,
        INDEX,
        least=0,
        remedy="Kubernetes sets it in jobs with completionMode: Indexed: take out of the pod what changes it.",
    )


def given_port(environ: Mapping[str, str], number: int = 1) -> int | None:
    """The port that KERAS_TURBO_PORT names; None where it is not set.

    Args:
        environ: the environment of the process.
        number: how many in a row are needed from there on.

    Raises:
        ClusterError: there are no such ports.
    """
    return whole_number(
        environ, PORT, least=1, most=65536 - number, remedy="Set a port that is free on all machines, or leave it out."
    )


def read_kubernetes(environ: Mapping[str, str], hostname: str | None = None) -> Cluster | None:
    """The cluster that an indexed job's variables describe.

    Args:
        environ: the environment of the process.
        hostname: of this pod; the system's answer by default.

    Returns:
        The cluster; None outside an indexed job, and in one whose manifest names neither KERAS_TURBO_WORKERS nor
        KERAS_TURBO_SERVICE: its pods have nothing to do with one another.

    Raises:
        ClusterError: the variables can't be.
    """
    index = completion_index(environ)
    if index is None or not (WORKERS in environ or SERVICE in environ):
        return None
    number = whole_number(environ, WORKERS, least=1, remedy="Set it to the job's `completions`.")
    if number is None:
        raise ClusterError(
            WORKERS, f"it is not set, and {SERVICE} is.", "Set it in the manifest to the job's `completions`."
        )
    service = environ.get(SERVICE, "")
    if not _NAME.fullmatch(service):
        raise ClusterError(
            SERVICE,
            f"{SERVICE}={quoted(service)} is no name of a service.",
            "Set it in the manifest to the headless service's name, which is also the pods' `subdomain`.",
        )
    if index >= number:
        raise ClusterError(
            INDEX,
            f"{INDEX}={index}, and {WORKERS}={number}: 0 to {number - 1} can be.",
            f"Set {WORKERS} to the job's `completions`; `parallelism` has to be the same number.",
        )
    port = given_port(environ)
    job = environ.get(JOB) or _job_of(socket.gethostname() if hostname is None else hostname, index)
    addresses = [f"{job}-{one}.{service}:{DEFAULT_PORT if port is None else port}" for one in range(number)]
    check_addresses(SERVICE, addresses)
    return Cluster("Kubernetes", SERVICE, {"worker": tuple(addresses)}, "worker", index)


def _job_of(hostname: str, index: int) -> str:
    name, dash, ending = hostname.partition(".")[0].rpartition("-")
    if not dash or ending != str(index):
        raise ClusterError(
            JOB,
            f"it is not set, and the host name {quoted(hostname)} does not end in -{index}, by which Kubernetes tells "
            "the job's name.",
            f"Set {JOB} in the manifest to the job's name.",
        )
    return name
