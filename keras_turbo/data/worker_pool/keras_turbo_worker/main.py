"""The main loop of a worker process."""

from __future__ import annotations

import io
import mmap
import multiprocessing.spawn
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from .channel import Channel
from .item_layout import pack
from .item_maker import ItemMaker
from .memory import Slot

#: True while the user's script is run again for the classes in it, when it must not begin to work by itself.
is_loading_main_script = False


def main(descriptor: int) -> None:
    """Serves one parent until it closes the connection, or is gone.

    Args:
        descriptor: file descriptor of the socket.
    """
    # Ctrl+C reaches every process of a terminal, and the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    messages: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, messages), daemon=True).start()
    (_, preparation), _ = messages.get()
    try:
        _Worker(channel, preparation).serve(messages)
    except BaseException:
        channel.send(("failed", traceback.format_exc()))
        raise


def _read(channel: Channel, messages: queue.SimpleQueue) -> None:
    while True:
        try:
            messages.put(channel.receive())
        except (EOFError, OSError):
            # Nobody wants what is being made, however long that would take.
            os._exit(0)


class _Worker:
    def __init__(self, channel: Channel, preparation: dict[str, Any]) -> None:
        self._channel = channel
        self._preparation = preparation
        self._wanted = preparation["wanted"]
        self._slots = [Slot() for _ in range(preparation["num_slots"])]
        self._maker: ItemMaker | None = None
        sys.path[:] = preparation["sys_path"]
        sys.argv[:] = preparation["sys_argv"]
        os.chdir(preparation["folder"])

    def serve(self, messages: queue.SimpleQueue) -> None:
        while True:
            (what, *arguments), descriptors = messages.get()
            if what == "object":
                stream, places = arguments
                self._load(stream, places, descriptors)
            else:
                ticket, slot_number, task = arguments
                self._run(ticket, slot_number, task)

    def _load(self, stream: bytes, places: list[tuple[int, int]], descriptors: list[int]) -> None:
        """Loads the user's object, whose large arrays all workers share until one of them writes to them."""
        buffers: list[Any] = []
        if descriptors:
            (descriptor,) = descriptors
            memory = memoryview(mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE))
            os.close(descriptor)
            buffers = [memory[offset : offset + size] for offset, size in places]
        source = _Unpickler(io.BytesIO(stream), self._preparation["main"], buffers).load()
        if self._maker is None:
            self._maker = ItemMaker(self._preparation["kind"], source, self._wanted, self._preparation["seed"])
        self._maker.source = source

    def _run(self, ticket: int, slot_number: int, task: tuple) -> None:
        assert self._maker is not None  # noqa: S101 (the object is the first message)
        made = self._maker.run(task)
        slot = self._slots[slot_number]
        places: list[tuple] = []
        if made.items:
            places = pack(made.items, self._wanted[1], self._preparation["stacked"], slot.room)
        descriptor = slot.take_descriptor()
        descriptors = () if descriptor is None else (descriptor,)
        self._channel.send(("done", ticket, len(made.items), places, made.ended, made.failure), descriptors)
        if descriptor is not None:
            os.close(descriptor)


class _Unpickler(pickle.Unpickler):
    """Loads the user's script when something in it is asked for, and only then."""

    def __init__(self, file: io.BytesIO, main_script: dict[str, str], buffers: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._main_script = main_script

    def find_class(self, module: str, name: str) -> Any:
        global is_loading_main_script  # noqa: PLW0603 (a script that is loaded asks for it by its name)
        if module == "__main__":
            is_loading_main_script = True
            try:
                multiprocessing.spawn.prepare(self._main_script)  # once: it knows what it has loaded
            finally:
                is_loading_main_script = False
        return super().find_class(module, name)
