"""The main program of a worker process, which imports neither keras_turbo nor TensorFlow, so that it is up at once.

It knows the package that this file is in as `keras_turbo_worker`.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import cloudpickle  # noqa: F401 (needed by what it has pickled, once the user's folders are on the path)

from .item_maker import ItemMaker
from .items import Form
from .messages import Memory, Pickled, mapped

# Memory of earlier answers that is kept for the next ones: writing to new memory takes three times as long.
_MOST_FREE = 8


class _Worker:
    """Serves one process until that closes the connection, or is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._free: list[Memory] = []
        self._in_use: dict[int, Memory] = {}
        self._messages: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def serve(self) -> None:
        """Does what it is asked to."""
        _, preparation = self._messages.get()
        form, seed = Form(*preparation["form"]), preparation["seed"]
        # Nothing was imported from the user's folders up to here.
        sys.path[:], sys.argv[:] = preparation["sys_path"], preparation["sys_argv"]
        self._form = form
        self._maker = ItemMaker(_object(*self._messages.get()[1:]), form, are_batches=form.are_batches, seed=seed)
        for _ in range(1, preparation["threads"]):
            threading.Thread(target=self._work, daemon=True).start()
        self._work()

    def tell(self, error: str) -> None:
        """Says why nothing will come any more."""
        self._connection.send((None, error))

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if message[0] == "object":
                    message = (*message, recv_handle(self._connection) if message[-1] else None)
                self._messages.put(message)
        except (EOFError, OSError):
            # Nobody wants what is being made, however long that would take.
            os._exit(0)

    def _work(self) -> None:
        while True:
            what, *arguments = self._messages.get()
            if what == "object":
                self._maker.source = _object(*arguments)
            else:
                self._run(*arguments)

    def _run(self, number: int, released: list[int], task: tuple) -> None:
        self._free += [self._in_use.pop(one) for one in released]
        del self._free[_MOST_FREE:]
        made = self._maker.run(task)
        columns = Pickled(self._form.columns(made.items))
        memory = None
        if columns.num_bytes:
            memory = self._free.pop() if self._free else None
            if memory is None or len(memory.map) < columns.num_bytes:
                memory = Memory(columns.num_bytes)
            columns.write(memory)
            self._in_use[number] = memory
        with self._sending:
            columns.send(self._connection, (number, len(made.items), made.failures, made.ended), memory)


def _object(stream: bytes, places: Sequence[tuple[int, int]], descriptor: int | None) -> Any:
    """The user's object, whose large arrays are those of all workers until one of them writes to them."""
    if descriptor is None:
        return pickle.loads(stream)
    memory = memoryview(mapped(descriptor, places[-1][1], private=True))
    return pickle.loads(stream, buffers=[memory[begin:end] for begin, end in places])


def main(descriptor: int) -> None:
    """Runs a worker on the connection that it has inherited."""
    # Ctrl+C reaches every process of a terminal, and the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = _Worker(Connection(descriptor))
    try:
        worker.serve()
    except BaseException:
        worker.tell(traceback.format_exc())
        raise
