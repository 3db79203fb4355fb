"""What TF_CONFIG, Slurm and Kubernetes say of the cluster, checked before a hundred GPUs wait for a typing error."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from keras_turbo.devices.cpu import cores
from keras_turbo.devices.time_limit import answer_within
from keras_turbo.doctor.findings import Finding, listed, quoted

TOPIC = "cluster"

# What TensorFlow's strategies take.
_TASK_TYPES = ("chief", "worker", "ps", "evaluator")

# A name or an address of version 4, or one of version 6 in brackets; then the port.
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Za-z:.%]+)\]|(?P<name>[^\s:/\[\]\x00-\x1f\x7f]+)):(?P<port>[0-9]{1,5})")

# Of a thousand hosts or so the first few tell what is wrong.
_MOST_SHOWN = 5

# With fewer cores, one task with a GPU can't decode its images.
_FEW_CORES = 4

# Slurm's variables that are numbers, and the least that each can be.
_SLURM_NUMBERS = {
    "SLURM_NTASKS": 1,
    "SLURM_STEP_NUM_TASKS": 1,
    "SLURM_PROCID": 0,
    "SLURM_NNODES": 1,
    "SLURM_CPUS_PER_TASK": 1,
}

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
    usable_cores: float | None = None,
) -> Cluster:
    """Checks the variables.

    Args:
        environ: the environment of the process.
        resolve: finds a host's address and raises OSError where there is none; the system's by default.
        clock: in seconds.
        resolve_seconds: how long the name server may take for all hosts.
        usable_cores: of this process; the system's answer by default.

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
    slurm, machines = _slurm(environ, cores().usable if usable_cores is None else usable_cores)
    found += [*slurm, *_kubernetes(environ)]
    if not found:
        found = [Finding(TOPIC, "fine", "No cluster variables: one process.")]
    return Cluster(tuple(found), max(1, len(hosts), machines))


def _tf_config(text: str) -> tuple[list[Finding], set[str]]:
    """What is wrong with the variable, and the hosts that it names."""

    def wrong(fact: str, to_do: str) -> tuple[list[Finding], set[str]]:
        return [Finding(TOPIC, "wrong", f"TF_CONFIG: {fact}", to_do)], set()

    form = (
        'It has to read like {"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    try:
        config = json.loads(text)
    except RecursionError:
        return wrong("it is nested too deep.", form)
    except ValueError as error:
        return wrong(f"no JSON: {error}.", form)
    if not isinstance(config, dict):
        return wrong(f"a JSON object was expected. Received: {quoted(config)}.", form)
    cluster, task = config.get("cluster", {}), config.get("task")
    if not isinstance(cluster, dict):
        return wrong(f'"cluster" has to be an object. Received: {quoted(cluster)}.', form)
    if not cluster:
        # Launchers write that for a single machine; TensorFlow takes it so, too.
        return [Finding(TOPIC, "fine", "TF_CONFIG names no cluster: one process.")], set()
    for kind, addresses in cluster.items():
        if kind not in _TASK_TYPES:
            return wrong(f"tasks of type {quoted(kind)} are unknown to TensorFlow.", f"It has {listed(_TASK_TYPES)}.")
        if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
            return wrong(f'"{kind}" has to be a list of addresses. Received: {quoted(addresses)}.', form)
        if kind in ("chief", "evaluator") and len(addresses) > 1:
            return wrong(f"there are {len(addresses)} of type {kind!r}.", f"Leave one {kind}; the others are workers.")
    if not isinstance(task, dict):
        return wrong('it has no "task": this process does not know which one it is.', form)
    every = [address for addresses in cluster.values() for address in addresses]
    twice = [address for address, count in Counter(every).items() if count > 1]
    if twice:
        return wrong(f"the address {quoted(twice[0])} stands there twice.", "Give each task its own host or port.")
    bad = [address for address in every if _host(address) is None]
    if bad:
        return wrong(
            f"{quoted(bad[0])} is no address.",
            "Write host:port, the port from 1 to 65535, without http://; an IPv6 address stands in brackets.",
        )
    kind, index = task.get("type"), _index(task.get("index"))
    if kind == "evaluator" and kind not in cluster:
        return [Finding(TOPIC, "fine", "TF_CONFIG: this is an evaluator, which the cluster does not wait for.")], set()
    if not isinstance(kind, str) or kind not in cluster:
        return wrong(
            f"this task is of type {quoted(kind)}, the cluster has {listed(list(cluster))}.", "Correct task.type."
        )
    if index is None:
        return wrong(
            f"task.index is {quoted(task.get('index'))}, no whole number.", "Number the tasks of a type from 0."
        )
    number = len(cluster[kind])
    if not 0 <= index < number:
        return wrong(
            f"task.index is {quoted(index)}, and the cluster's list of type {kind!r} has {number}"
            + (f": 0 to {number - 1} can be." if number > 1 else ": 0 can be." if number else "."),
            "Number the tasks of a type from 0; see that all machines have the same list.",
        )
    tasks = f"{len(every)} task{'' if len(every) == 1 else 's'}"
    hosts = {host for one in every if (host := _host(one)) is not None}
    return [Finding(TOPIC, "fine", f"TF_CONFIG: this is {kind} {index}; {tasks} in all.")], hosts


def _index(value: Any) -> int | None:
    """A whole number, also in quotes: TensorFlow takes both."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"[+-]?[0-9]{1,9}", value.strip()) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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
                f"TF_CONFIG: no address for {listed(unknown, _MOST_SHOWN)}.",
                "See the spelling, /etc/hosts and the name server; in Kubernetes use the headless service's names.",
            )
        )
    if silent:
        found.append(
            Finding(
                TOPIC,
                "could be better",
                f"TF_CONFIG: the name server did not answer within {seconds:g} s; not checked: "
                f"{listed(silent, _MOST_SHOWN)}.",
                "A slow name server delays the start of every worker: see /etc/resolv.conf.",
            )
        )
    return found


def _slurm(environ: Mapping[str, str], usable_cores: float) -> tuple[list[Finding], int]:
    if "SLURM_JOB_ID" not in environ:
        return [], 1
    numbers: dict[str, int] = {}
    for name, least in _SLURM_NUMBERS.items():
        value = environ.get(name)
        if value is None:
            continue
        if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
            return [
                Finding(
                    TOPIC,
                    "wrong",
                    f"{name}={quoted(value)} is no whole number from {least}.",
                    "Slurm sets it itself: take out of the script what changes it.",
                )
            ], 1
        numbers[name] = int(value)
    job, nodes = f"Slurm job {environ['SLURM_JOB_ID']}", numbers.get("SLURM_NNODES", 1)
    # In a step, the step's own number comes first: it may have fewer tasks than the job.
    tasks = numbers.get("SLURM_STEP_NUM_TASKS") or numbers.get("SLURM_NTASKS")
    number = numbers.get("SLURM_PROCID", 0)
    # The script given to sbatch has a SLURM_PROCID, too, but is no step.
    is_step = "SLURM_STEP_ID" in environ or "SLURM_STEPID" in environ
    if tasks is not None and tasks > 1 and not is_step:
        return [
            Finding(
                TOPIC,
                "could be better",
                f"{job} has {tasks} tasks, and this process is none of them.",
                "Start the script by srun: otherwise it runs once, on the first machine.",
            )
        ], nodes
    if number >= (tasks or 1):
        return [
            Finding(
                TOPIC,
                "wrong",
                f"SLURM_PROCID={number}, and "
                + ("there is no SLURM_NTASKS." if tasks is None else f"the step has {tasks}: 0 to {tasks - 1} can be."),
                "Variables of another job step were passed on, or taken away: start it by srun.",
            )
        ], nodes
    machines = f"{nodes} machine{'' if nodes == 1 else 's'}"
    if nodes > (tasks or 1):
        found = [
            Finding(
                TOPIC,
                "could be better",
                f"{job}: {machines}, and fewer tasks ({tasks or 1}): some machines do nothing.",
                "Start as many tasks as machines (srun --ntasks-per-node=1), or ask for fewer machines.",
            )
        ]
    else:
        found = [Finding(TOPIC, "fine", f"{job}: task {number} (from 0) of {tasks or 1}, {machines}.")]
    if "SLURM_CPUS_PER_TASK" not in numbers and usable_cores < _FEW_CORES:
        found.append(
            Finding(
                TOPIC,
                "could be better",
                f"SLURM_CPUS_PER_TASK is not set, and this process has {usable_cores:g} "
                f"core{'' if usable_cores == 1 else 's'}: Slurm gives each task one unless it is asked for more.",
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
    if not re.fullmatch(r"[0-9]{1,9}", value):
        return [
            Finding(
                TOPIC,
                "wrong",
                f"JOB_COMPLETION_INDEX={quoted(value)} is no whole number from 0.",
                "Kubernetes sets it in jobs with completionMode: Indexed: take out of the pod what changes it.",
            )
        ]
    return [Finding(TOPIC, "fine", f"Pod {int(value)} (from 0) of an indexed job of Kubernetes.")]


def _host(address: str) -> str | None:
    """The host of `host:port`; None where it is no such thing."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None or not 1 <= int(parts["port"]) <= 65535:
        return None
    return parts["v6"] or parts["name"]


def _resolve(host: str) -> None:
    socket.getaddrinfo(host, None)
