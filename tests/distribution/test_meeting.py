"""Workers meet before TensorFlow starts: over real sockets, each worker a thread."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from keras_turbo.distribution.cluster import Cluster, ClusterError
from keras_turbo.distribution.meeting import meet
from tests.distribution.workers import free_ports

FACTS = {"Keras": "3.15.1", "GPUs": "0"}


def cluster(index, ports, **changes):
    addresses = tuple(f"localhost:{port}" for port in ports)
    return Cluster("TF_CONFIG", "TF_CONFIG", {"worker": addresses, **changes}, "worker", index)


def outcomes(workers, timeout_seconds=20.0):
    """What meeting gave each worker: None, or the error's text."""
    found = [None] * len(workers)

    def one(place, where, facts, fault=None):
        try:
            meet(where, facts, timeout_seconds, fault)
        except ClusterError as error:
            found[place] = str(error)

    threads = [threading.Thread(target=one, args=(place, *worker)) for place, worker in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def test_workers_that_fit_together():
    ports = free_ports(4)
    assert outcomes([(cluster(index, ports), FACTS) for index in range(4)]) == [None] * 4


def test_another_version_is_told_to_all():
    ports = free_ports(3)
    found = outcomes(
        [(cluster(0, ports), FACTS), (cluster(1, ports), FACTS), (cluster(2, ports), {**FACTS, "Keras": "3.12.0"})], 3.0
    )
    expected = (
        f"TF_CONFIG: the workers differ. Keras: worker 0 has 3.15.1, worker 2 (localhost:{ports[2]}) has 3.12.0. Make "
        "them equal on all workers."
    )
    assert found[0] == found[2] == expected
    # Who came later finds nobody.
    assert found[1] == expected or "could not reach worker 0" in found[1]


def test_another_list_of_workers():
    ports = free_ports(2)
    found = outcomes([(cluster(0, ports), FACTS), (cluster(1, [*ports, 9]), FACTS)])
    assert found[0] == found[1]
    assert "worker 1 has another list of workers than worker 0" in found[0]


def test_two_processes_with_one_index():
    ports = free_ports(3)
    found = outcomes([(cluster(index, ports), FACTS) for index in (0, 1, 1)], 3.0)
    assert "two processes say that they are worker 1. Give each" in found[0]


def test_a_port_that_is_taken_is_told_to_all_at_once():
    ports = free_ports(3)
    fault = ClusterError("TF_CONFIG", "port 7 is taken.", "Give it another.")
    begin = time.monotonic()
    workers = [(cluster(0, ports), FACTS), (cluster(1, ports), FACTS), (cluster(2, ports), FACTS, fault)]
    found = outcomes(workers, 5.0)
    assert time.monotonic() - begin < 20
    assert found[2] == str(fault)
    expected = "TF_CONFIG: worker 2 can't start: port 7 is taken. Give it another."
    assert found[0] == expected
    # Who came later finds nobody.
    assert found[1] == expected or "could not reach worker 0" in found[1]


def test_who_does_not_come_is_named():
    ports = free_ports(3)
    found = outcomes([(cluster(0, ports), FACTS), (cluster(1, ports), FACTS)], 1.0)
    assert found[0] == found[1]
    assert f"within 1 s worker 2 (localhost:{ports[2]}) did not come to worker 0 (localhost:{ports[0]})." in found[0]


def test_a_chief_that_does_not_come():
    ports = free_ports(2)
    (found,) = outcomes([(cluster(1, ports), FACTS)], 0.5)
    assert f"worker 1 could not reach worker 0 (localhost:{ports[0]}) within 0.5 s: Connection refused." in found


def test_strangers_do_not_disturb():
    ports = free_ports(2)
    sent = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"kind": "keras_turbo worker"}\n',
        b'{"kind": "keras_turbo worker", "index": "1", "addresses": [], "facts": {}}\n',
        b"[" * 100_000 + b"\n",
        b"",
    ]

    def visit(chief_is_there):
        for text in sent:
            with contextlib.suppress(OSError), socket.create_connection(("localhost", ports[0]), timeout=5) as one:
                one.sendall(text)
        with socket.create_connection(("localhost", ports[0]), timeout=5):
            chief_is_there.set()

    def stranger():
        for _ in range(100):
            with contextlib.suppress(OSError):
                visit(came)
                return
            came.wait(0.05)

    came = threading.Event()
    thread = threading.Thread(target=stranger)
    found = []

    def chief():
        found.extend(outcomes([(cluster(0, ports), FACTS)]))

    server = threading.Thread(target=chief)
    server.start()
    thread.start()
    thread.join(30)
    assert came.is_set()
    found += outcomes([(cluster(1, ports), FACTS)])
    server.join(30)
    assert found == [None, None]


def test_a_chief_that_answers_nonsense():
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(json.dumps({"kind": "x", "refusal": {}}).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        (found,) = outcomes([(cluster(1, [port, 1]), FACTS)], 0.6)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert "what listens there does not answer as worker 0 does" in found


def test_chief_as_a_task_of_its_own():
    ports = free_ports(2)
    tasks = {"chief": (f"localhost:{ports[0]}",), "worker": (f"localhost:{ports[1]}",)}
    members = [Cluster("TF_CONFIG", "TF_CONFIG", tasks, kind, 0) for kind in ("chief", "worker")]
    assert outcomes([(member, FACTS) for member in members]) == [None, None]


@pytest.mark.parametrize("number", [40])
def test_many_workers(number):
    ports = free_ports(number)
    assert outcomes([(cluster(index, ports), FACTS) for index in range(number)]) == [None] * number


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_on_one_machine_nobody_else_can_come(host):
    (port, other) = free_ports(2)
    alone = Cluster("TF_CONFIG", "TF_CONFIG", {"worker": (f"{host}:{port}", f"{host}:{other}")}, "worker", 0)
    waiting = threading.Thread(target=outcomes, args=([(alone, FACTS)], 3.0))
    waiting.start()
    try:
        assert is_open(host, port)
        # Of Linux's loopback, too, and not bound to.
        assert not is_open("127.0.0.2", port, tries=1)
    finally:
        waiting.join(30)


def is_open(host, port, tries=100):
    for _ in range(tries):
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return True
        time.sleep(0.02)
    return False
