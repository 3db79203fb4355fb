"""A cluster as one of its workers sees it, and what is wrong with a description of one."""

from __future__ import annotations

import dataclasses
import json
import queue
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from keras_turbo.report import listed, quoted

# A name or an address of version 4, or one of version 6 in brackets; then the port.
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Za-z:.%]+)\]|(?P<name>[^\s:/\[\]\x00-\x1f\x7f]+)):(?P<port>[0-9]{1,5})")

# Of a thousand hosts or so the first few tell what is wrong.
MOST_SHOWN = 5

# For all hosts together. A name server that is there answers in milliseconds.
RESOLVE_SECONDS = 5.0

# A name that is not there takes a slow name server a second or more.
_ASKED_AT_ONCE = 16

# With more digits it is no number of tasks, and Python refuses to read thousands of them.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


class ClusterError(ValueError):
    """A description of a cluster that can't be.

    Args:
        variable: where it stands, such as "TF_CONFIG".
        fact: what is wrong, with the value.
        remedy: what to do.
    """

    def __init__(self, variable: str, fact: str, remedy: str) -> None:
        super().__init__(variable, fact, remedy)
        self.variable = variable
        self.fact = fact
        self.remedy = remedy

    @property
    def text(self) -> str:
        """What is wrong, with the variable's name."""
        return self.fact if self.fact.startswith(self.variable) else f"{self.variable}: {self.fact}"

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers that train one model together, and which of them this process is.

    Attributes:
        source: the variable, or the program, that says so: "TF_CONFIG", "Slurm", "Kubernetes".
        variable: what to correct where the addresses are wrong.
        tasks: addresses (`host:port`) by type of task, "chief" and "worker".
        task_type: of this process.
        task_index: of this process among those of its type, from 0.
        local_index: which of the processes on this machine that share its GPUs, from 0.
        local_count: how many of them there are.
    """

    source: str
    variable: str
    tasks: Mapping[str, tuple[str, ...]]
    task_type: str
    task_index: int
    local_index: int = 0
    local_count: int = 1

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all workers; the first is the chief's."""
        return (*self.tasks.get("chief", ()), *self.tasks.get("worker", ()))

    @property
    def index(self) -> int:
        """Of this worker in `addresses`; 0 is the chief."""
        return self.task_index + (len(self.tasks.get("chief", ())) if self.task_type == "worker" else 0)

    @property
    def address(self) -> str:
        """Of this worker."""
        return self.addresses[self.index]

    @property
    def tf_config(self) -> str:
        """The same as a value of TF_CONFIG."""
        return json.dumps(
            {
                "cluster": {kind: list(addresses) for kind, addresses in self.tasks.items()},
                "task": {"type": self.task_type, "index": self.task_index},
            }
        )


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of `host:port`; None where it is no such thing."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None or not 1 <= int(parts["port"]) <= 65535:
        return None
    return parts["v6"] or parts["name"], int(parts["port"])


def check_addresses(variable: str, addresses: list[str]) -> None:
    """Refuses addresses that can't be.

    Args:
        variable: where they stand.
        addresses: of all tasks.

    Raises:
        ClusterError: one stands there twice, or is none.
    """
    twice = [address for address, count in Counter(addresses).items() if count > 1]
    if twice:
        raise ClusterError(
            variable, f"the address {quoted(twice[0])} stands there twice.", "Give each task its own host or port."
        )
    bad = [address for address in addresses if split_address(address) is None]
    if bad:
        raise ClusterError(
            variable,
            f"{quoted(bad[0])} is no address.",
            "Write host:port, the port from 1 to 65535, without http://; an IPv6 address stands in brackets.",
        )


def whole_number(
    environ: Mapping[str, str], variable: str, *, least: int, remedy: str, most: int | None = None
) -> int | None:
    """The value of a variable; None where it is not set.

    Args:
        environ: the environment of the process.
        variable: its name.
        least: the smallest number that it can be.
        remedy: what to do where it is no such number.
        most: the largest number that it can be, if there is one.

    Raises:
        ClusterError: it is no whole number, too small or too large.
    """
    value = environ.get(variable)
    if value is None:
        return None
    number = int(value) if value.isascii() and _WHOLE_NUMBER.fullmatch(value) else None
    if number is None or number < least or (most is not None and number > most):
        to = "" if most is None else f" to {most}"
        raise ClusterError(variable, f"{variable}={quoted(value)} is no whole number from {least}{to}.", remedy)
    return number


@dataclasses.dataclass(frozen=True)
class Resolved:
    """What the name server said.

    Attributes:
        unknown: hosts without an address.
        silent: hosts of which it said nothing in time.
    """

    unknown: tuple[str, ...]
    silent: tuple[str, ...]


def resolve_hosts(
    addresses: tuple[str, ...] | list[str],
    resolve: Callable[[str], Any] | None = None,
    seconds: float = RESOLVE_SECONDS,
) -> Resolved:
    """Asks for the address of each host, of some at the same time.

    Args:
        addresses: `host:port` of all tasks.
        resolve: finds a host's address and raises OSError where there is none; the system's by default. It is called on
            several threads.
        seconds: how long it may take for all together.

    Returns:
        Those without one.
    """
    resolve = _resolve if resolve is None else resolve
    hosts = sorted({parts[0] for one in addresses if (parts := split_address(one)) is not None})
    waiting, known = queue.SimpleQueue[str](), dict[str, bool]()
    for host in hosts:
        waiting.put(host)

    def ask() -> None:
        while True:
            try:
                host = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                resolve(host)
                known[host] = True
            except (OSError, UnicodeError):
                known[host] = False

    # Daemons: the interpreter's end does not wait for those that a silent name server holds.
    threads = [
        threading.Thread(target=ask, name="keras_turbo asks the name server", daemon=True)
        for _ in range(min(_ASKED_AT_ONCE, len(hosts)))
    ]
    end = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    answers = dict(known)
    return Resolved(
        unknown=tuple(host for host in hosts if answers.get(host) is False),
        silent=tuple(host for host in hosts if host not in answers),
    )


UNKNOWN_HOSTS_REMEDY = (
    "See the spelling, /etc/hosts and the name server; in Kubernetes use the headless service's names."
)


def unknown_hosts_fact(hosts: tuple[str, ...]) -> str:
    """That these hosts have no address."""
    return f"no address for {listed(hosts, MOST_SHOWN)}."


def _resolve(host: str) -> None:
    socket.getaddrinfo(host, None)
