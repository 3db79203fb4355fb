"""Parts of a data service, as processes of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

_PROJECT = Path(__file__).parents[2]
_START_SECONDS = 200


@dataclasses.dataclass
class Service:
    """A dispatcher and its workers on loopback."""

    address: str
    dispatcher: subprocess.Popen
    workers: list[subprocess.Popen]
    said: list[str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def start_part(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen]:
    """A context in which a part runs, with `python -m keras_turbo data-service` before its arguments."""
    variables = dict(os.environ if environment is None else environment)
    paths = [str(_PROJECT), variables.get("PYTHONPATH")]
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_turbo", "data-service", *arguments],
        # Another folder than this process', as on another machine.
        cwd="/",
        env=variables | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def first_line(process: subprocess.Popen) -> str:
    """What a part says once it listens."""
    timer = threading.Timer(_START_SECONDS, process.kill)
    timer.start()
    try:
        return process.stdout.readline().strip()
    finally:
        timer.cancel()
        timer.join()


@contextlib.contextmanager
def running_service(folder: Path, workers: int = 2) -> Iterator[Service]:
    """A context in which a dispatcher and its workers run.

    Args:
        folder: for the dispatcher's state.
        workers: how many.
    """
    port = free_port()
    address = f"grpc://localhost:{port}"
    with contextlib.ExitStack() as stack:
        # All at once: workers wait for their dispatcher.
        dispatcher = stack.enter_context(
            start_part("dispatcher", "--port", str(port), "--work-dir", str(folder / "state"))
        )
        parts = [stack.enter_context(start_part("worker", "--dispatcher", address)) for _ in range(workers)]
        yield Service(address, dispatcher, parts, [first_line(part) for part in (dispatcher, *parts)])
