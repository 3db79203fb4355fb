"""A tf.data service on loopback, each part in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
START_SECONDS = 200


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@dataclasses.dataclass
class Service:
    """A dispatcher and its workers on loopback."""

    address: str
    dispatcher: subprocess.Popen
    workers: list[subprocess.Popen]
    said: list[str]


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "keras_turbo", "data-service", *arguments],
        # Another folder than this process', as on another machine.
        cwd="/",
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def first_line(process: subprocess.Popen) -> str:
    """What a part says once it listens."""
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        return process.stdout.readline().strip()
    finally:
        timer.cancel()
        timer.join()


@contextlib.contextmanager
def running_service(folder: Path, workers: int = 2) -> Iterator[Service]:
    """Starts a dispatcher and its workers; kills them in the end.

    Args:
        folder: for the dispatcher's state.
        workers: how many.
    """
    port = free_port()
    address = f"grpc://localhost:{port}"
    # All at once: workers wait for their dispatcher.
    processes = [start("dispatcher", "--port", str(port), "--work-dir", str(folder / "state"))]
    try:
        processes += [start("worker", "--dispatcher", address) for _ in range(workers)]
        yield Service(address, processes[0], processes[1:], [first_line(process) for process in processes])
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            process.stdout.close()
