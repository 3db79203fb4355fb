"""The workers meet before TensorFlow starts, and see whether they fit together.

Whoever has another version, another list of addresses or another number of GPUs makes TensorFlow hang, or fail much
later by something else. So each worker connects to the chief, on the chief's own port, before TensorFlow's server takes
it, and says what it is. The chief compares, and tells all of them the same: to begin, or what is wrong.

One line of JSON each way; nothing of it is executed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any

from keras_turbo.distribution.cluster import MOST_SHOWN, Cluster, ClusterError, split_address
from keras_turbo.report import listed, quoted

# What a worker says is some hundred bytes; a list of 10,000 addresses has 300,000. Whoever sends more is no worker.
_MOST_BYTES = 4_000_000

# Between two attempts to reach a chief that has not come yet.
_PAUSE_SECONDS = 0.2

# The chief tells at its deadline who is missing; the others wait for that a little longer.
_LONGER_SECONDS = 10.0

_KIND = "keras_turbo worker"


def meet(cluster: Cluster, facts: Mapping[str, str], timeout_seconds: float, fault: ClusterError | None = None) -> None:
    """Waits until all workers have come and said the same. All have to call it.

    Args:
        cluster: of this process.
        facts: what has to be equal on all workers, by name: versions, number of devices.
        timeout_seconds: how long to wait for the others.
        fault: why this worker can't start, which the others are told then, as far as they have come.

    Raises:
        ClusterError: some have not come; they differ; two say that they are the same worker; one can't start.
    """
    mine: dict[str, Any] = {"kind": _KIND, "index": cluster.index, "addresses": list(cluster.addresses)}
    mine["facts"] = dict(facts)
    if fault is not None:
        # Where the chief can't take its port, it has no place to tell the others at.
        if cluster.index:
            mine["fault"] = _refusal(cluster, f"worker {cluster.index} can't start: {fault.fact}", fault.remedy)
            with contextlib.suppress(ClusterError):
                _follow(cluster, mine, time.monotonic() + _LONGER_SECONDS, _LONGER_SECONDS)
        raise fault
    deadline = time.monotonic() + timeout_seconds
    if cluster.index == 0:
        _Chief(cluster, mine, deadline, timeout_seconds).run()
    else:
        _follow(cluster, mine, deadline, timeout_seconds)


def _refusal(cluster: Cluster, fact: str, remedy: str) -> dict[str, str]:
    return {"variable": cluster.variable, "fact": fact, "remedy": remedy}


def _error(refusal: Mapping[str, str]) -> ClusterError:
    return ClusterError(refusal["variable"], refusal["fact"], refusal["remedy"])


@dataclasses.dataclass
class _Guest:
    """A connection to the chief, and what has come over it."""

    connection: socket.socket
    received: bytes = b""
    says: dict[str, Any] | None = None

    @property
    def index(self) -> int | None:
        return None if self.says is None else self.says["index"]


class _Chief:
    def __init__(self, cluster: Cluster, mine: dict[str, Any], deadline: float, timeout_seconds: float) -> None:
        self._cluster = cluster
        self._mine = mine
        self._deadline = deadline
        self._timeout_seconds = timeout_seconds
        self._number = len(cluster.addresses)
        self._guests: dict[socket.socket, _Guest] = {}

    def run(self) -> None:
        host, port = split_address(self._cluster.address) or ("", 0)
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            server = stack.enter_context(_server(host, port))
            server.setblocking(False)
            selector.register(server, selectors.EVENT_READ)
            stack.callback(self._close)
            refusal = self._wait(selector, server)
            self._answer(refusal)
        if refusal is not None:
            raise _error(refusal)

    def _wait(self, selector: selectors.BaseSelector, server: socket.socket) -> dict[str, str] | None:
        """Until all have come, or until it is clear that they can't begin: then why."""
        while len(self._come()) < self._number - 1:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return self._who_is_missing()
            for key, _ in selector.select(left):
                if key.fileobj is server:
                    with contextlib.suppress(OSError):
                        connection, _ = server.accept()
                        connection.setblocking(False)
                        self._guests[connection] = _Guest(connection)
                        selector.register(connection, selectors.EVENT_READ)
                    continue
                guest = self._guests[key.fileobj]  # type: ignore[index]
                if not self._listen(guest):
                    selector.unregister(guest.connection)
                    guest.connection.close()
                    del self._guests[guest.connection]
                elif guest.says is not None and (refusal := self._judge(guest)) is not None:
                    return refusal
        return None

    def _listen(self, guest: _Guest) -> bool:
        """Reads what has come; False where the connection is of no use any longer."""
        try:
            part = guest.connection.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        guest.received += part
        if not part or len(guest.received) > _MOST_BYTES:
            return False
        if guest.says is None and guest.received.endswith(b"\n"):
            guest.says = _understood(guest.received)
            # Whoever looks for open ports, or speaks HTTP, comes here, too.
            return guest.says is not None
        return True

    def _come(self) -> set[int]:
        return {guest.index for guest in self._guests.values() if guest.index is not None}

    def _judge(self, guest: _Guest) -> dict[str, str] | None:
        says, cluster = guest.says or {}, self._cluster
        index = says["index"]
        if says["addresses"] != list(cluster.addresses):
            return _refusal(
                cluster,
                f"worker {index} has another list of workers than worker 0: {quoted(says['addresses'])}, worker 0 "
                f"{quoted(list(cluster.addresses))}.",
                "All workers need the same list, in the same order.",
            )
        if not 0 < index < self._number or any(
            other is not guest and other.index == index for other in self._guests.values()
        ):
            return _refusal(
                cluster,
                f"two processes say that they are worker {index}.",
                "Give each worker an index of its own; see that no worker of an earlier run is left.",
            )
        if says.get("fault") is not None:
            return says["fault"]
        mine, theirs = self._mine["facts"], says["facts"]
        differing = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        if differing:
            told = "; ".join(
                f"{name}: worker 0 has {mine.get(name, 'none')}, worker {index} ({cluster.addresses[index]}) has "
                f"{theirs.get(name, 'none')}"
                for name in differing
            )
            return _refusal(cluster, f"the workers differ. {told}.", "Make them equal on all workers.")
        return None

    def _who_is_missing(self) -> dict[str, str]:
        come = self._come()
        missing = [
            f"worker {index} ({address})"
            for index, address in enumerate(self._cluster.addresses)
            if index and index not in come
        ]
        return _refusal(
            self._cluster,
            f"within {self._timeout_seconds:g} s {listed(missing, MOST_SHOWN)} did not come to worker 0 "
            f"({self._cluster.address}).",
            "See whether they have started, and why not; whether a firewall is between them; or give them more time by "
            "`timeout_seconds`.",
        )

    def _answer(self, refusal: dict[str, str] | None) -> None:
        line = json.dumps({"kind": _KIND, "refusal": refusal}).encode() + b"\n"
        for guest in self._guests.values():
            if guest.says is not None:
                with contextlib.suppress(OSError):
                    guest.connection.settimeout(_LONGER_SECONDS)
                    guest.connection.sendall(line)

    def _close(self) -> None:
        for guest in self._guests.values():
            guest.connection.close()


def _server(host: str, port: int) -> socket.socket:
    """On all of this machine's addresses, as TensorFlow's server after it; for workers of one machine on loopback."""
    with contextlib.suppress(ValueError):  # a name, which others may resolve to another address than this machine does
        if ipaddress.ip_address(host).is_loopback:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=1024)
    if host == "localhost":
        return socket.create_server((host, port), backlog=1024)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", port), backlog=1024)


def _follow(cluster: Cluster, mine: dict[str, Any], deadline: float, timeout_seconds: float) -> None:
    host, port = split_address(cluster.addresses[0]) or ("", 0)
    line, problem = json.dumps(mine).encode() + b"\n", "it did not answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as connection:
                connection.settimeout(left + _LONGER_SECONDS)
                connection.sendall(line)
                says = _received(connection)
        except OSError as error:
            problem = error.strerror or str(error) or type(error).__name__
        else:
            if says is not None:
                if says["refusal"] is not None:
                    raise _error(says["refusal"])
                return
            # It has ended meanwhile, or another program listens there.
            problem = "what listens there does not answer as worker 0 does"
        time.sleep(_PAUSE_SECONDS)
    raise ClusterError(
        cluster.variable,
        f"worker {cluster.index} could not reach worker 0 ({cluster.addresses[0]}) within {timeout_seconds:g} s: "
        f"{problem}.",
        "See whether worker 0 has started, and why not; whether a firewall is between them; or give it more time by "
        "`timeout_seconds`.",
    )


def _received(connection: socket.socket) -> dict[str, Any] | None:
    received = b""
    while not received.endswith(b"\n"):
        part = connection.recv(65536)
        received += part
        if not part or len(received) > _MOST_BYTES:
            return None
    try:
        says = json.loads(received)
        is_ours = says["kind"] == _KIND and _is_refusal(says["refusal"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return says if is_ours else None


def _is_refusal(given: Any) -> bool:
    return given is None or {type(given[name]) for name in ("variable", "fact", "remedy")} == {str}


def _understood(line: bytes) -> dict[str, Any] | None:
    """What a worker says; None where it is no worker."""
    try:
        says = json.loads(line)
        is_ours = (
            says["kind"] == _KIND
            and type(says["index"]) is int
            and isinstance(says["addresses"], list)
            and all(isinstance(part, str) for pair in says["facts"].items() for part in pair)
            and _is_refusal(says.get("fault"))
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return says if is_ours else None
