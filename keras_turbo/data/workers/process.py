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
from typing import Any, NamedTuple

import numpy as np

from keras_turbo.data.engine.elements import Column
from keras_turbo.data.workers.items import Form
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
_LONGEST_FAREWELL_SECONDS = 2.0


class WorkerError(RuntimeError):
    """A worker process can't do its work: it could not start, or died."""


class ItemNotMadeError(ValueError):
    """An item could not be made.

    Args:
        reason: the error of the user's code, in a line.
        details: its traceback.
    """

    def __init__(self, reason: str, details: str) -> None:
        super().__init__(reason)
        self.details = details


class Result(NamedTuple):
    """What came of a task.

    Attributes:
        count: number of items.
        columns: for each array of an item those of all items: stacked, or a list where shapes may differ.
        failures: for those that could not be made, by their index in the task.
        ended: whether a generator has no more.
    """

    count: int
    columns: list[Column]
    failures: dict[int, Exception]
    ended: bool


class WorkerProcess:
    """A Python process that is new, never a fork of this one, in which TensorFlow has threads.

    Args:
        title: what an error calls it.
        form: of the items that it makes.
        seed: of which the global random numbers in it are functions; None leaves them alone.
        threads: how many tasks it works on at a time.
    """

    def __init__(self, title: str, form: Form, seed: int | None, threads: int) -> None:
        self._connection, its = multiprocessing.Pipe()
        with its:
            self._process = subprocess.Popen(
                [
                    multiprocessing.spawn.get_executable(),
                    *(["-I"] if sys.flags.isolated else []),
                    "-c",
                    _START,
                    str(pathlib.Path(__file__).with_name("__init__.py")),
                    str(its.fileno()),
                ],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                # The GPU's memory belongs to the training, which is on the cores, too.
                env={"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            )
        self.pid = self._process.pid
        #: Whether it is gone.
        self.has_ended = False
        self._title = f"{title} (process {self.pid})"
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[str, Future[Result]]] = {}
        self._released: collections.deque[int] = collections.deque()
        self._digest = b""
        self._failure: str | None = None
        preparation = {"form": tuple(form), "seed": seed, "threads": threads}
        self._send(("prepare", preparation | {"sys_path": list(sys.path), "sys_argv": list(sys.argv)}))
        threading.Thread(target=self._receive, name=f"keras_turbo {title}", daemon=True).start()

    @property
    def num_asked(self) -> int:
        """How many tasks it has that are not done."""
        return len(self._asked)

    def ask(self, source: TransferredObject, task: tuple, what: str) -> Future[Result]:
        """Lets a task be done.

        Args:
            source: the user's object as it is to be.
            task: as `ItemMaker` knows it.
            what: what the task makes, for errors.

        Raises:
            WorkerError: the arrays of the object can't be copied.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._digest != source.digest:
                self._send_object(source)
            number = next(self._numbers)
            self._asked[number] = what, future
            released = [self._released.popleft() for _ in range(len(self._released))]
            self._send(("run", number, released, task))
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

    def _send_object(self, source: TransferredObject) -> None:
        try:
            _ = source.memory
        except (OSError, MemoryError) as error:
            raise WorkerError(f"The object's arrays can't be copied for the workers: {error}.") from error
        with contextlib.suppress(OSError):
            source.send(self._connection)
        self._digest = source.digest

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone, which who waits for a result will be told
            self._connection.send(message)

    # What follows runs in the thread that receives results.

    def _receive(self) -> None:
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
        self,
        number: int,
        count: int,
        failures: dict[int, tuple[str, str]],
        ended: bool,
        stream: bytes,
        places: Sequence[tuple[int, int]],
    ) -> None:
        buffers: list[np.ndarray] = []
        what, future = self._asked[number]
        try:
            if places:
                memory = np.frombuffer(mapped(recv_handle(self._connection), places[-1][1], private=False), np.uint8)
                # The worker may use it for other results once nobody looks at this one any more.
                weakref.finalize(memory, self._released.append, number).atexit = False
                buffers = [memory[begin:end] for begin, end in places]
            columns = pickle.loads(stream, buffers=buffers)
        except Exception as error:
            future.set_exception(WorkerError(f"There is no memory for {what}: {error}."))
        else:
            errors: dict[int, Exception] = {index: ItemNotMadeError(*failure) for index, failure in failures.items()}
            future.set_result(Result(count, columns, errors, ended))
        del self._asked[number]

    def _tell_of_end(self) -> None:
        code = self.wait()
        with self._lock:
            lost, self._asked = list(self._asked.values()), {}
        for _, future in lost:
            # Tasks are done in the order of asking, so it was at the first.
            future.set_exception(WorkerError(f"{self._title} {self._how_it_ended(code)} {lost[0][0]}."))

    def _how_it_ended(self, code: int | None) -> str:
        if self._failure is not None:
            return f"failed:\n{self._failure}\nIt was to make"
        if code is None:
            return "closed its connection while it made"
        if code >= 0:
            return f"ended with exit code {code} while it made"
        name = signal.Signals(-code).name if -code in signal.valid_signals() else "unknown"
        hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
        return f"was killed by signal {-code} ({name}{hint}) while it made"
