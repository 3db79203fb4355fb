"""Runs a function in several real worker processes on loopback, and gives what each returned.

Run as a module, it is one of those workers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).parents[2]
# How long those that are left may take to end by themselves when one has failed.
GRACE_SECONDS = 5.0
_ARRAY = "__array__"


@dataclass(frozen=True)
class Worker:
    """A worker process.

    Args:
        index: its task index.
        process: what was started; it leads a process group of its own.
        output_path: where its output goes, errors included.
    """

    index: int
    process: subprocess.Popen[bytes]
    output_path: Path

    def output(self) -> str:
        """What it has written so far."""
        return self.output_path.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Ends it, and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listened on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def tf_config(ports: Sequence[int], index: int) -> str:
    """The TF_CONFIG of one of the workers that listen on these ports of this machine."""
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})


@contextlib.contextmanager
def started_workers(
    command: Sequence[str],
    workers: int = 2,
    *,
    environment: Mapping[str, str] | None = None,
    worker_arguments: Callable[[int], Sequence[str]] = lambda _: (),
) -> Iterator[list[Worker]]:
    """Starts a command once for each worker, with its TF_CONFIG; kills all of them in the end.

    Args:
        command: what to run, in the project's folder; the project can be imported.
        workers: how many.
        environment: further variables.
        worker_arguments: gives what is appended to the command of one worker.
    """
    ports = free_ports(workers)
    common = os.environ | {"PYTHONPATH": str(PROJECT), "TF_CPP_MIN_LOG_LEVEL": "3"} | dict(environment or {})
    started: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="keras_turbo_workers_") as folder:
        try:
            for index in range(workers):
                path = Path(folder) / f"worker{index}.txt"
                with path.open("wb") as output:
                    process = subprocess.Popen(
                        [*command, *worker_arguments(index)],
                        cwd=PROJECT,
                        env=common | {"TF_CONFIG": tf_config(ports, index)},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                started.append(Worker(index, process, path))
            yield started
        finally:
            for worker in started:
                worker.kill()


def wait_for_all(workers: Sequence[Worker], timeout_seconds: float) -> None:
    """Waits until all have ended well.

    Raises:
        AssertionError: one has failed, or the time is over; with the end of each worker's output.
    """
    deadline = time.monotonic() + timeout_seconds
    while any(one.process.poll() is None for one in workers):
        now = time.monotonic()
        if any(one.process.poll() for one in workers):
            deadline = min(deadline, now + GRACE_SECONDS)
        if now > deadline:
            break
        time.sleep(0.05)
    codes = [one.process.poll() for one in workers]
    if any(codes) or None in codes:
        ends = [f"worker {one.index}: exit code {one.process.poll()}\n{one.output()[-4000:]}" for one in workers]
        raise AssertionError(f"not all workers ended well within {timeout_seconds} s\n" + "\n".join(ends))


def run_workers(
    function: Callable[..., Any],
    *arguments: Any,
    workers: int = 2,
    timeout_seconds: float = 240.0,
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """Calls a function once in each of several worker processes.

    Args:
        function: of a module under `tests` that can be imported in a fresh process. It makes the strategy itself.
        arguments: what JSON can express.
        workers: how many.
        timeout_seconds: until all are killed.
        environment: further variables.

    Returns:
        What each call returned, by worker: dicts, lists, numbers, strings and NumPy arrays, nested.
    """
    with tempfile.TemporaryDirectory(prefix="keras_turbo_results_") as folder:
        command = [sys.executable, "-m", __name__, function.__module__, function.__qualname__, json.dumps(arguments)]
        paths = [Path(folder) / f"worker{index}" for index in range(workers)]
        with started_workers(
            command, workers, environment=environment, worker_arguments=lambda index: [str(paths[index])]
        ) as started:
            wait_for_all(started, timeout_seconds)
        return [_read(path) for path in paths]


def _write(path: Path, result: Any) -> None:
    arrays: dict[str, np.ndarray] = {}

    def encoded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: encoded(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [encoded(one) for one in value]
        if isinstance(value, np.ndarray):
            arrays[f"array{len(arrays)}"] = value
            return {_ARRAY: f"array{len(arrays) - 1}"}
        return value.item() if isinstance(value, np.generic) else value

    text = json.dumps(encoded(result))
    np.savez(path.with_suffix(".npz"), **arrays)
    path.with_suffix(".json").write_text(text, encoding="utf-8")


def _read(path: Path) -> Any:
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:

        def decoded(value: dict[str, Any]) -> Any:
            return arrays[value[_ARRAY]] if _ARRAY in value else value

        return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"), object_hook=decoded)


def main() -> None:
    """Calls the function that the arguments name, and writes what it returns."""
    module, name, arguments, path = sys.argv[1:]
    function = getattr(importlib.import_module(module), name)
    _write(Path(path), function(*json.loads(arguments)))


if __name__ == "__main__":
    main()
