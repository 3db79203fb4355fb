"""Files in memory, in which records that lie apart are put together for TensorFlow's reader."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import tempfile
import weakref
from collections.abc import Iterator

from keras_turbo.data.records.open_files import OpenFiles, Places


class ScratchFiles:
    """Files in memory, each for one thread at a time."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[ScratchFile] = queue.SimpleQueue()

    @contextlib.contextmanager
    def lent(self) -> Iterator[ScratchFile]:
        """A context in which a file is the caller's alone."""
        try:
            scratch = self._free.get_nowait()
        except queue.Empty:
            scratch = ScratchFile()
        try:
            yield scratch
        finally:
            self._free.put(scratch)


class ScratchFile:
    """A file in memory.

    Attributes:
        path: where others can read it.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("keras_turbo_records")
            self.path, to_remove = f"/proc/self/fd/{descriptor}", None
        else:
            descriptor, self.path = tempfile.mkstemp(prefix="keras_turbo_records_")
            to_remove = self.path
        self._descriptor = descriptor
        self._view = memoryview(b"")
        weakref.finalize(self, _close_scratch, descriptor, to_remove)

    def fill(self, files: OpenFiles, places: Places) -> bool:
        """Copies records into it, one after the other; gives whether none of their files was shorter."""
        size = int(places.sizes.sum())
        if size > len(self._view):
            # Larger than asked, since the next ones may be a little larger. What is not touched takes no memory.
            capacity = size + size // 2
            os.ftruncate(self._descriptor, capacity)
            self._view = memoryview(mmap.mmap(self._descriptor, capacity))
        os.ftruncate(self._descriptor, size)
        begin = 0
        if not files.are_near:
            for block, asked_for in files.read_runs(places):
                if len(block) < asked_for:
                    return False
                self._view[begin : begin + asked_for] = block
                begin += asked_for
            return True
        for file, offset, length in zip(
            places.files.tolist(), places.begins.tolist(), places.sizes.tolist(), strict=True
        ):
            if files.read_into(file, self._view[begin : begin + length], offset) < length:
                return False
            begin += length
        return True


def _close_scratch(descriptor: int, to_remove: str | None) -> None:
    os.close(descriptor)
    if to_remove is not None:
        os.unlink(to_remove)
