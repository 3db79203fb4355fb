"""Messages between two processes: pickles, whose large arrays go by memory that both see."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

# Smaller arrays are quicker in the pickle itself.
_SMALLEST_IN_MEMORY = 1 << 16
# TensorFlow uses memory as it lies there if it is aligned so.
_ALIGNMENT_BYTES = 64


class Memory:
    """Memory without a name: nothing is left of it however its processes end, and no limit of /dev/shm counts.

    Args:
        num_bytes: its size; pages are taken as they are written to.
    """

    def __init__(self, num_bytes: int) -> None:
        self.descriptor = os.memfd_create("keras_turbo", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, num_bytes)
        self.map = mmap.mmap(self.descriptor, num_bytes)


class Pickled:
    """An object as it is sent.

    Args:
        value: the object. Its arrays must not change until it is sent.
        pickler: class that pickles it.
    """

    def __init__(self, value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> None:
        file = io.BytesIO()
        #: The contents of large arrays, which are not in the pickle.
        self.buffers: list[memoryview] = []
        pickler(file, protocol=5, buffer_callback=self._is_small).dump(value)
        self.stream = file.getbuffer()
        self._places: list[tuple[int, int]] = []
        offset = 0
        for buffer in self.buffers:
            self._places.append((offset, offset + buffer.nbytes))
            offset += -(-buffer.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        #: Bytes of memory that the arrays need.
        self.num_bytes = offset

    def _is_small(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _SMALLEST_IN_MEMORY:
            self.buffers.append(raw)
        return raw.nbytes < _SMALLEST_IN_MEMORY

    def write(self, memory: Memory) -> None:
        """Copies the arrays into memory."""
        for buffer, (begin, end) in zip(self.buffers, self._places, strict=True):
            memory.map[begin:end] = buffer

    def send(self, connection: Connection, head: Sequence[Any], memory: Memory | None) -> None:
        """Sends it behind some plain values, with the memory that the arrays were written to; None without arrays.

        Raises:
            OSError: the other end is gone.
        """
        connection.send((*head, bytes(self.stream), self._places))
        if memory is not None:
            send_handle(connection, memory.descriptor, os.getpid())


def mapped(descriptor: int, num_bytes: int, *, private: bool) -> mmap.mmap:
    """Memory that was sent, whose descriptor is closed; private: what is written to it is seen by nobody else."""
    try:
        return mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
    finally:
        os.close(descriptor)
