"""One worker process: how it is started, what it is told, and how it ended."""

from __future__ import annotations

import multiprocessing.spawn
import os
import pathlib
import signal
import socket
import subprocess
import sys
from typing import Any

from keras_turbo.data.worker_pool.keras_turbo_worker.channel import Channel

# The worker's package is found in this folder under its own name, since importing keras_turbo imports TensorFlow.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from keras_turbo_worker.main import main; main({descriptor})"
_LONGEST_FAREWELL_SECONDS = 2.0
# What a script is found by when it is run again; the rest of what multiprocessing prepares is not needed.
_MAIN_SCRIPT_KEYS = ("init_main_from_name", "init_main_from_path")


class WorkerProcess:
    """A Python process that is new, never a fork of this one, in which TensorFlow has threads.

    Args:
        number: of the worker, from 1.
        preparation: what it must know before anything else, but for what is the same for every use.
    """

    def __init__(self, number: int, preparation: dict[str, Any]) -> None:
        self.number = number
        ours, its = socket.socketpair()
        environment = dict(os.environ)
        # Workers make batches on the CPU: the GPU's memory belongs to the training. They share the cores, too.
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        with its:
            self._process = subprocess.Popen(
                [
                    multiprocessing.spawn.get_executable(),
                    "-c",
                    _START.format(descriptor=its.fileno()),
                    str(pathlib.Path(__file__).parent),
                ],
                pass_fds=(its.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self.channel = Channel(ours)
        script = multiprocessing.spawn.get_preparation_data("worker")
        self.channel.send(
            (
                "prepare",
                preparation
                | {
                    "sys_path": list(sys.path),
                    "sys_argv": list(sys.argv),
                    "folder": os.getcwd(),
                    "main": {key: script[key] for key in _MAIN_SCRIPT_KEYS if key in script},
                },
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """Ends the process: it leaves as soon as the connection is closed, or is killed."""
        self.channel.shut_down()
        try:
            self._process.wait(_LONGEST_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.channel.close()

    def how_it_ended(self) -> str:
        """How a process ended that should not have, in words."""
        try:
            code = self._process.wait(_LONGEST_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
        return f"was killed by signal {-code} ({name}{hint})"
