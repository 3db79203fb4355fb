"""Pickles between processes, whose large arrays go by memory that both see."""

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
    """Memory without a name: nothing is left of it however its processes end, and no limit of /dev/shm counts."""

    def __init__(self, num_bytes: int) -> None:
        self.descriptor = os.memfd_create("keras_turbo", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, num_bytes)
        self.map = mmap.mmap(self.descriptor, num_bytes)


class Pickled:
    """An object as it is sent. Its arrays must not change until then."""

    def __init__(self, value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> None:
        #: The contents of large arrays, which are not in the pickle.
        self.buffers: list[memoryview] = []
        self._num_bytes = 0
        self._places: list[tuple[int, int]] = []
        file = io.BytesIO()
        pickler(file, protocol=5, buffer_callback=self._stays).dump(value)
        self.stream = file.getvalue()

    def _stays(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _SMALLEST_IN_MEMORY:
            return True
        self.buffers.append(raw)
        self._places.append((self._num_bytes, self._num_bytes + raw.nbytes))
        self._num_bytes += -(-raw.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return False

    def written_to(self, memory: Memory | None) -> Memory | None:
        """The large arrays, copied into memory, or into new one where that is too small; None if there are none."""
        if not self._places:
            return None
        if memory is None or len(memory.map) < self._num_bytes:
            memory = Memory(self._num_bytes)
        for buffer, (begin, end) in zip(self.buffers, self._places, strict=True):
            memory.map[begin:end] = buffer
        return memory

    def send(self, connection: Connection, head: Sequence[Any], memory: Memory | None) -> None:
        """Sends it behind some plain values, with the memory that it was written to."""
        connection.send((*head, self.stream, self._places))
        if memory is not None:
            send_handle(connection, memory.descriptor, os.getpid())


def mapped(descriptor: int, num_bytes: int, *, private: bool) -> mmap.mmap:
    """Memory that was sent, whose descriptor is closed; private: what is written to it is seen by nobody else."""
    try:
        return mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
    finally:
        os.close(descriptor)
