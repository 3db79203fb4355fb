"""What TF_CONFIG, Slurm and Kubernetes say of the cluster, checked before a hundred GPUs wait for a typing error."""

from __future__ import annotations

import dataclasses
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from keras_turbo.devices.time_limit import answer_within
from keras_turbo.doctor.findings import Finding, listed

TOPIC = "cluster"

# For all hosts together. A name server that is there answers in milliseconds.
_RESOLVE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Cluster:
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
    clock: Callable[[], float] = time.monotonic,
    resolve_seconds: float = _RESOLVE_SECONDS,
) -> Cluster:
    """Checks the variables.

    Args:
        environ: the environment of the process.
        resolve: finds a host's address and raises OSError where there is none; the system's by default.
        clock: in seconds.
        resolve_seconds: how long the name server may take for all hosts.

    Returns:
        The findings.
    """
    resolve = _resolve if resolve is None else resolve
    found: list[Finding] = []
    hosts: set[str] = set()
    if environ.get("TF_CONFIG", "").strip():
        found, hosts = _tf_config(environ["TF_CONFIG"])
        if hosts and not any(one.level == "wrong" for one in found):
            found += _unresolved(sorted(hosts), resolve, clock, resolve_seconds)
    slurm, machines = _slurm(environ)
    found += [*slurm, *_kubernetes(environ)]
    if not found:
        found = [Finding(TOPIC, "fine", "No cluster variables: one process.")]
    return Cluster(tuple(found), max(1, len(hosts), machines))


def _tf_config(text: str) -> tuple[list[Finding], set[str]]:
    """What is wrong with the variable, and the hosts that it names."""

    def wrong(fact: str, to_do: str) -> tuple[list[Finding], set[str]]:
        return [Finding(TOPIC, "wrong", f"TF_CONFIG: {fact}", to_do)], set()

    form = '{"cluster": {"worker": ["host1:12345", "host2:12345"]}, "task": {"type": "worker", "index": 0}}'
    try:
        config = json.loads(text)
    except ValueError as error:
        return wrong(f"no JSON: {error}.", f"It has to read like {form}")
    if not isinstance(config, dict):
        return wrong(f"a JSON object was expected, it is {type(config).__name__}.", f"It has to read like {form}")
    cluster, task = config.get("cluster"), config.get("task")
    if not isinstance(cluster, dict) or not cluster:
        return wrong('it has no "cluster".', f"It has to read like {form}")
    for kind, addresses in cluster.items():
        if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
            return wrong(f'"{kind}" has to be a list of addresses.', f"It has to read like {form}")
    if not isinstance(task, dict):
        return wrong('it has no "task": this process does not know which one it is.', f"It has to read like {form}")
    kind, index = task.get("type"), task.get("index")
    if kind not in cluster:
        return wrong(f"this task is of type {kind!r}, the cluster has {listed(list(cluster))}.", "Correct task.type.")
    if isinstance(index, bool) or not isinstance(index, int):
        return wrong(f"task.index is {index!r}, no whole number.", "Number the tasks of a type from 0.")
    number = len(cluster[kind])
    if not 0 <= index < number:
        return wrong(
            f"task.index is {index}, and there are {number} of type {kind!r}: 0 to {number - 1}.",
            "Number the tasks of a type from 0; see that all machines have the same list.",
        )
    every = [address for addresses in cluster.values() for address in addresses]
    twice = [address for address, count in Counter(every).items() if count > 1]
    if twice:
        return wrong(f"the address {twice[0]} stands there twice.", "Give each task its own host or port.")
    bad = [address for address in every if not _port(address)]
    if bad:
        return wrong(f"the address {bad[0]!r} has no port.", "Write host:port.")
    tasks = f"{len(every)} task{'' if len(every) == 1 else 's'}"
    return [Finding(TOPIC, "fine", f"TF_CONFIG: this is {kind} {index} of {tasks}.")], {_host(one) for one in every}


def _unresolved(
    hosts: list[str], resolve: Callable[[str], Any], clock: Callable[[], float], seconds: float
) -> list[Finding]:
    end, unknown, silent = clock() + seconds, [], []
    for host in hosts:
        left = end - clock()
        if left <= 0:
            silent.append(host)
            continue
        try:
            answer_within(left, lambda host=host: resolve(host), "The name server")
        except TimeoutError:
            silent.append(host)
        except (OSError, UnicodeError):
            unknown.append(host)
    found = []
    if unknown:
        found.append(
            Finding(
                TOPIC,
                "wrong",
                f"TF_CONFIG: no address for {listed(unknown)}.",
                "See the spelling, /etc/hosts and the name server; in Kubernetes use the headless service's names.",
            )
        )
    if silent:
        found.append(
            Finding(
                TOPIC,
                "could be better",
                f"TF_CONFIG: the name server did not answer within {seconds:g} s; not checked: {listed(silent)}.",
                "A slow name server delays the start of every worker: see /etc/resolv.conf.",
            )
        )
    return found


def _slurm(environ: Mapping[str, str]) -> tuple[list[Finding], int]:
    if "SLURM_JOB_ID" not in environ:
        return [], 1
    numbers: dict[str, int] = {}
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_NNODES", "SLURM_CPUS_PER_TASK"):
        if name in environ:
            try:
                numbers[name] = int(environ[name])
            except ValueError:
                return [
                    Finding(
                        TOPIC,
                        "wrong",
                        f"{name}={environ[name]!r} is no whole number.",
                        "Slurm sets it itself: take out of the script what changes it.",
                    )
                ], 1
    job, nodes = f"Slurm job {environ['SLURM_JOB_ID']}", numbers.get("SLURM_NNODES", 1)
    tasks, number = numbers.get("SLURM_NTASKS", 1), numbers.get("SLURM_PROCID", 0)
    # The script given to sbatch has a SLURM_PROCID, too, but is no step.
    if tasks > 1 and "SLURM_STEP_ID" not in environ and "SLURM_STEPID" not in environ:
        return [
            Finding(
                TOPIC,
                "could be better",
                f"{job} has {tasks} tasks, and this process is none of them.",
                "Start the script by srun: otherwise it runs once, on the first machine.",
            )
        ], nodes
    if not 0 <= number < tasks:
        return [
            Finding(
                TOPIC,
                "wrong",
                f"SLURM_PROCID={number}, and SLURM_NTASKS={tasks}: 0 to {tasks - 1}.",
                "Variables of another job step were passed on: start it by srun.",
            )
        ], nodes
    found = [Finding(TOPIC, "fine", f"{job}: task {number} of {tasks}, {nodes} machine{'' if nodes == 1 else 's'}.")]
    if "SLURM_CPUS_PER_TASK" not in numbers:
        found.append(
            Finding(
                TOPIC,
                "could be better",
                "SLURM_CPUS_PER_TASK is not set: Slurm gives each task one core unless it is asked for more.",
                "sbatch --cpus-per-task=8, and srun --cpus-per-task=8, which does not take it over since Slurm 22.05.",
            )
        )
    return found, nodes


def _kubernetes(environ: Mapping[str, str]) -> list[Finding]:
    value = environ.get("JOB_COMPLETION_INDEX")
    if value is None:
        if "KUBERNETES_SERVICE_HOST" in environ:
            return [Finding(TOPIC, "fine", "In a pod of Kubernetes; no index of an indexed job.")]
        return []
    if not (value.isascii() and value.isdigit()):
        return [
            Finding(
                TOPIC,
                "wrong",
                f"JOB_COMPLETION_INDEX={value!r} is no whole number from 0.",
                "Kubernetes sets it in jobs with completionMode: Indexed: take out of the pod what changes it.",
            )
        ]
    return [Finding(TOPIC, "fine", f"Pod {int(value)} of an indexed job of Kubernetes.")]


def _port(address: str) -> bool:
    return address.rpartition(":")[2].isdigit() and bool(_host(address))


def _host(address: str) -> str:
    # An IPv6 address stands in brackets.
    return address.rpartition(":")[0].strip("[]")


def _resolve(host: str) -> None:
    socket.getaddrinfo(host, None)
