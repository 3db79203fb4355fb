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
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import cloudpickle  # noqa: F401 (needed by what it has pickled, once the user's folders are on the path)

from .item_maker import ItemMaker
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
        sys_path, sys_argv, threads, options = self._messages.get()
        # Nothing was imported from the user's folders up to here.
        sys.path[:], sys.argv[:] = sys_path, sys_argv
        self._maker = ItemMaker(self._object(*self._messages.get()[1:]), **options)
        for _ in range(1, threads):
            threading.Thread(target=self._work, daemon=True).start()
        self._work()

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                has_memory = message[0] == "object" and message[-1]
                self._messages.put((*message, recv_handle(self._connection)) if has_memory else message)
        except (EOFError, OSError):
            # Nobody wants what is being made, however long that would take.
            os._exit(0)

    def _work(self) -> None:
        while True:
            what, *arguments = self._messages.get()
            if what == "object":
                self._maker.source = self._object(*arguments)
            else:
                self._run(*arguments)

    @staticmethod
    def _object(stream: bytes, places: list[tuple[int, int]], descriptor: int | None = None) -> Any:
        """The user's object, whose large arrays are those of all workers until one of them writes to them."""
        if descriptor is None:
            return pickle.loads(stream)
        memory = memoryview(mapped(descriptor, places[-1][1], private=True))
        return pickle.loads(stream, buffers=[memory[begin:end] for begin, end in places])

    def _run(self, number: int, released: list[int], task: tuple) -> None:
        self._free += [self._in_use.pop(one) for one in released]
        del self._free[_MOST_FREE:]
        made = self._maker.run(task)
        items = Pickled(made.items)
        memory = items.written_to(self._free.pop() if items.buffers and self._free else None)
        if memory is not None:
            self._in_use[number] = memory
        with self._sending:
            items.send(self._connection, (number, made.failures, made.ended), memory)


def main(descriptor: int) -> None:
    """Runs a worker on the connection that it has inherited."""
    # Ctrl+C reaches every process of a terminal, and the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    try:
        _Worker(connection).serve()
    except BaseException:
        connection.send((None, traceback.format_exc()))
        raise
