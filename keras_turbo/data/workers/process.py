"""One worker process: how it is started, what it is asked, and how it ended."""

from __future__ import annotations

import collections
import contextlib
import itertools
import multiprocessing
import multiprocessing.spawn
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np

from keras_turbo.data.workers.item_maker import Made
from keras_turbo.data.workers.messages import mapped
from keras_turbo.data.workers.transfer import TransferredObject

# Without the current folder, where a file may be named as a module of Python's, and without importing keras_turbo.
_START = """
import sys
sys.path[:] = filter(None, sys.path)
import importlib.util
package = importlib.util.spec_from_file_location("keras_turbo_worker", sys.argv[1])
sys.modules[package.name] = importlib.util.module_from_spec(package)
from keras_turbo_worker.serving import main
main(int(sys.argv[2]))
"""
_PACKAGE = str(pathlib.Path(__file__).with_name("__init__.py"))
_LONGEST_FAREWELL_SECONDS = 2.0


class WorkerError(RuntimeError):
    """A worker process can't do its work: it could not start, or died."""


class WorkerProcess:
    """A Python process that is new, never a fork of this one, in which TensorFlow has threads."""

    def __init__(self, title: str, threads: int, options: dict[str, Any]) -> None:
        self._connection, its = multiprocessing.Pipe()
        flags = ["-I"] if sys.flags.isolated else []
        with its:
            self._process = subprocess.Popen(
                [multiprocessing.spawn.get_executable(), *flags, "-c", _START, _PACKAGE, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                # The GPU's memory belongs to the training, which wants cores, too.
                env={"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            )
        #: Whether it is gone.
        self.has_ended = False
        self._title = f"{title} (process {self._process.pid})"
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[str, Future[Made]]] = {}
        # Results that nobody looks at any more, so that their memory can be used for others.
        self._released: collections.deque[int] = collections.deque()
        self._digest = b""
        self._failure: str | None = None
        with contextlib.suppress(OSError):  # it is gone, which who waits for a result will be told
            self._connection.send((sys.path, sys.argv, threads, options))
        threading.Thread(target=self._receive, name=f"keras_turbo {title}", daemon=True).start()

    @property
    def num_asked(self) -> int:
        """How many tasks it has that are not done."""
        return len(self._asked)

    def ask(self, source: TransferredObject, task: tuple, what: str) -> Future[Made]:
        """Lets a task of `ItemMaker` be done by an object; raises WorkerError where its arrays can't be copied."""
        try:
            memory = source.memory
        except (OSError, MemoryError) as error:
            raise WorkerError(f"The object's arrays can't be copied for the workers: {error}.") from error
        future: Future[Made] = Future()
        with self._lock, contextlib.suppress(OSError):  # as above
            number = next(self._numbers)
            self._asked[number] = what, future
            if self._digest != source.digest:
                source.send(self._connection, ("object",), memory)
                self._digest = source.digest
            self._connection.send(("run", number, [self._released.popleft() for _ in range(len(self._released))], task))
        if self.has_ended:
            self._tell_of_end()
        return future

    def kill(self) -> None:
        """Ends it at once; whoever waits for a result is told so."""
        self._process.kill()

    def wait(self) -> int | None:
        """Waits until it is gone, and gives its exit code; None if it does not go by itself."""
        try:
            return self._process.wait(_LONGEST_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def _receive(self) -> None:
        """Takes results in, in a thread of its own."""
        try:
            while True:
                number, *answer = self._connection.recv()
                if number is None:
                    (self._failure,) = answer
                else:
                    self._take_in(number, *answer)
        except (EOFError, OSError):
            self.has_ended = True
            self._tell_of_end()

    def _take_in(
        self, number: int, failures: dict, ended: bool, stream: bytes, places: Sequence[tuple[int, int]]
    ) -> None:
        buffers: list[np.ndarray] = []
        what, future = self._asked[number]
        try:
            if places:
                memory = np.frombuffer(mapped(recv_handle(self._connection), places[-1][1], private=False), np.uint8)
                # Arrays over it keep it alive.
                weakref.finalize(memory, self._released.append, number).atexit = False
                buffers = [memory[begin:end] for begin, end in places]
            future.set_result(Made(pickle.loads(stream, buffers=buffers), failures, ended))
        except EOFError:  # it was killed in between
            raise
        except Exception as error:
            future.set_exception(WorkerError(f"There is no memory for {what}: {error}."))
        del self._asked[number]

    def _tell_of_end(self) -> None:
        code = self.wait()
        if self._failure is not None:
            how = f"failed:\n{self._failure}\nIt was to make"
        elif code is None or code >= 0:
            how = ("closed its connection" if code is None else f"ended with exit code {code}") + " while it made"
        else:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else "unknown"
            hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
            how = f"was killed by signal {-code} ({name}{hint}) while it made"
        with self._lock:
            lost, self._asked = list(self._asked.values()), {}
        for _, future in lost:
            # Tasks are done in the order of asking, so it was at the first.
            future.set_exception(WorkerError(f"{self._title} {how} {lost[0][0]}."))
