"""Memory that processes share and that has no name, so that nothing is left when they end, however they end.

`multiprocessing.shared_memory` has names in `/dev/shm`, which stay there after a kill, and which a container limits to
64 MB by default.
"""

from __future__ import annotations

import mmap
import os
import tempfile


def create_memory(num_bytes: int) -> int:
    """A file descriptor of new shared memory, of which pages are taken as they are written to."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("keras_turbo", os.MFD_CLOEXEC)
    else:  # a Unix that is no Linux: a file without a name
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


class Slot:
    """A place for one result of a worker, which becomes larger when a result needs it."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._size = 0
        self._new_descriptor: int | None = None

    def room(self, num_bytes: int) -> mmap.mmap:
        """Memory of at least that size, for writing."""
        if self._memory is None or self._size < num_bytes:
            descriptor = create_memory(num_bytes)
            self._memory, self._size = mmap.mmap(descriptor, num_bytes), num_bytes
            self._new_descriptor = descriptor
        return self._memory

    def take_descriptor(self) -> int | None:
        """The descriptor of memory that the other process has not got yet; the caller closes it."""
        descriptor, self._new_descriptor = self._new_descriptor, None
        return descriptor
