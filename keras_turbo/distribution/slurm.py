"""Slurm: the tasks of a step that `srun` has started."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import NoReturn

from keras_turbo.distribution.cluster import Cluster, ClusterError, check_addresses, whole_number
from keras_turbo.distribution.kubernetes import given_port
from keras_turbo.report import quoted

NODES = "SLURM_STEP_NODELIST"
TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"

# Slurm's variables that are numbers, and the least that each can be.
_NUMBERS = {
    "SLURM_NTASKS": 1,
    "SLURM_STEP_NUM_TASKS": 1,
    "SLURM_PROCID": 0,
    "SLURM_NNODES": 1,
    "SLURM_CPUS_PER_TASK": 1,
    "SLURM_NODEID": 0,
    "SLURM_LOCALID": 0,
}
_SET_BY_SLURM = "Slurm sets it itself: take out of the script what changes it."
_START_BY_SRUN = "Variables of another job step were passed on, or taken away: start it by srun."

# Ports from which programs draw begin at 32768 on Linux. So many jobs in a row, and so many tasks of each on one
# machine, have ports of their own.
_FIRST_PORT, _JOBS, _TASKS = 12000, 1000, 20

# A name with any number of ranges in it, and several of these.
_HOSTS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_LIST_OF_HOSTS = re.compile(rf"{_HOSTS.pattern}(?:,{_HOSTS.pattern})*")

# More machines than any cluster has: a list of more is a typing error that would fill the memory.
_MOST_HOSTS = 100_000


@dataclasses.dataclass(frozen=True)
class Step:
    """What Slurm tells one process.

    Attributes:
        job: the job's id.
        tasks: how many there are in the step, or in the job; None where Slurm does not say.
        number: of this one, from 0.
        nodes: machines of the job.
        cpus_per_task: as asked for; None where it was not.
        is_step: whether `srun` has started this process; the script given to sbatch is in none.
        node: which machine of the step this is; None where Slurm does not say.
        local: which of the tasks on this machine this is; None where Slurm does not say.
    """

    job: str
    tasks: int | None
    number: int
    nodes: int
    cpus_per_task: int | None
    is_step: bool
    node: int | None
    local: int | None

    def check_number(self) -> None:
        """Refuses a task beyond the last.

        Raises:
            ClusterError: it is one.
        """
        if self.number >= (self.tasks or 1):
            raise ClusterError(
                "SLURM_PROCID",
                f"SLURM_PROCID={self.number}, and "
                + (
                    "there is no SLURM_NTASKS."
                    if self.tasks is None
                    else f"the step has {self.tasks}: 0 to {self.tasks - 1} can be."
                ),
                _START_BY_SRUN,
            )


def read_step(environ: Mapping[str, str]) -> Step | None:
    """What Slurm's variables say.

    Args:
        environ: the environment of the process.

    Returns:
        The step; None outside a job.

    Raises:
        ClusterError: one of them is no number.
    """
    if "SLURM_JOB_ID" not in environ:
        return None
    numbers = {name: whole_number(environ, name, least=least, remedy=_SET_BY_SLURM) for name, least in _NUMBERS.items()}
    return Step(
        job=environ["SLURM_JOB_ID"],
        # In a step, the step's own number comes first: it may have fewer tasks than the job.
        tasks=numbers["SLURM_STEP_NUM_TASKS"] or numbers["SLURM_NTASKS"],
        number=numbers["SLURM_PROCID"] or 0,
        nodes=numbers["SLURM_NNODES"] or 1,
        cpus_per_task=numbers["SLURM_CPUS_PER_TASK"],
        is_step="SLURM_STEP_ID" in environ or "SLURM_STEPID" in environ,
        node=numbers["SLURM_NODEID"],
        local=numbers["SLURM_LOCALID"],
    )


def read_slurm(environ: Mapping[str, str]) -> Cluster | None:
    """The cluster that the tasks of a Slurm step are.

    Their order is that of the machines, and on each that of the tasks on it, however `srun --distribution` has dealt
    their numbers out.

    Args:
        environ: the environment of the process.

    Returns:
        The cluster; None outside a step.

    Raises:
        ClusterError: the variables can't be.
    """
    step = read_step(environ)
    if step is None or not step.is_step:
        return None
    step.check_number()
    if (step.tasks or 1) == 1:
        return None
    for name in (NODES, TASKS_PER_NODE):
        if name not in environ:
            raise ClusterError(name, "it is not set.", _START_BY_SRUN)
    hosts = expand_hosts(environ[NODES])
    tasks = expand_tasks(environ[TASKS_PER_NODE])
    if len(hosts) != len(tasks) or sum(tasks) != step.tasks:
        raise ClusterError(
            TASKS_PER_NODE,
            f"{TASKS_PER_NODE}={quoted(environ[TASKS_PER_NODE])} tells of {sum(tasks)} tasks on {len(tasks)} machines, "
            f"{NODES} of {len(hosts)} machines and SLURM_STEP_NUM_TASKS of {step.tasks} tasks.",
            _START_BY_SRUN,
        )
    node, local = step.node, step.local
    if node is None or local is None or node >= len(tasks) or local >= tasks[node]:
        raise ClusterError(
            "SLURM_NODEID",
            f"SLURM_NODEID={node} and SLURM_LOCALID={local} are no task of {TASKS_PER_NODE}="
            f"{quoted(environ[TASKS_PER_NODE])}.",
            _START_BY_SRUN,
        )
    first = _first_port(environ, step.job, max(tasks))
    addresses = [f"{host}:{first + one}" for host, number in zip(hosts, tasks, strict=True) for one in range(number)]
    check_addresses(NODES, addresses)
    return Cluster(
        source="Slurm",
        variable=NODES,
        tasks={"worker": tuple(addresses)},
        task_type="worker",
        task_index=sum(tasks[:node]) + local,
        local_index=local,
        local_count=tasks[node],
    )


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list as Slurm writes it: "n[1-2,07],m5" are n1, n2, n07 and m5.

    Raises:
        ClusterError: it is no such list.
    """
    if not _LIST_OF_HOSTS.fullmatch(text):
        _refuse_hosts(text)
    hosts: list[str] = []
    for part in _HOSTS.findall(text):
        # What stands in brackets has the odd places.
        pieces = enumerate(re.split(r"\[([^\[\]]*)\]", part))
        choices = [list(_range_of(piece, text)) if place % 2 else [piece] for place, piece in pieces]
        if len(hosts) + math.prod(map(len, choices)) > _MOST_HOSTS:
            _refuse_hosts(text)
        hosts += map("".join, itertools.product(*choices))
    return hosts


def _range_of(text: str, whole: str) -> Iterator[str]:
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part, re.ASCII)
        if match is None:
            _refuse_hosts(whole)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= _MOST_HOSTS:
            _refuse_hosts(whole)
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _refuse_hosts(text: str) -> NoReturn:
    raise ClusterError(
        NODES,
        f"{NODES}={quoted(text)} is no list of machines as Slurm writes it, such as node[1-4,07],other.",
        _SET_BY_SLURM,
    )


def expand_tasks(text: str) -> list[int]:
    """The numbers of a list as Slurm writes it: "2(x3),1" are 2, 2, 2 and 1.

    Raises:
        ClusterError: it is no such list.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part, re.ASCII)
        if match is None:
            raise ClusterError(
                TASKS_PER_NODE,
                f"{TASKS_PER_NODE}={quoted(text)} is no list of numbers as Slurm writes it, such as 2(x3),1.",
                _SET_BY_SLURM,
            )
        numbers += [int(match[1])] * int(match[2] or 1)
    return numbers


def _first_port(environ: Mapping[str, str], job: str, most_tasks: int) -> int:
    """The port of the first task on each machine: another one for each job, since jobs may share a machine."""
    given = given_port(environ, most_tasks)
    if given is not None:
        return given
    digits = re.sub(r"[^0-9]", "", job)[-9:] or "0"
    return _FIRST_PORT + int(digits) % _JOBS * _TASKS
