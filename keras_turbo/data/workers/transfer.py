"""A user's object on its way to the workers."""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
from typing import Any

import cloudpickle
import numpy as np

from keras_turbo.data.workers.messages import Memory, Pickled


class NotTransferableError(TypeError):
    """An object can't be sent to another process."""


class TransferredObject(Pickled):
    """An object as it is now, pickled with what a notebook or a script defines; raises NotTransferableError."""

    def __init__(self, source: Any, name: str) -> None:
        try:
            super().__init__(source, _Pickler)
        except Exception as error:  # pickle raises what the object's own methods raise, too
            raise NotTransferableError(
                f"{name} can't be sent to worker processes: {error}. What holds files, locks, connections or running "
                "generators must open them when they are first used. Or give workers=0, which runs it in this process."
            ) from error

    @functools.cached_property
    def digest(self) -> bytes:
        """Changes when the object does."""
        hasher = hashlib.blake2b(self.stream, digest_size=16)
        for buffer in self.buffers:
            hasher.update(buffer)
        return hasher.digest()

    @functools.cached_property
    def memory(self) -> Memory | None:
        """Its large arrays, copied once for all workers; raises OSError where there is no room."""
        return self.written_to(None)


class _Pickler(cloudpickle.Pickler):
    """Pickles memory maps of files by their names."""

    def reducer_override(self, obj: Any) -> Any:
        # A view of a memory map has another beginning than its `offset` says, and is sent as an array.
        is_whole_map = type(obj) is np.memmap and obj.filename is not None and isinstance(obj.base, mmap.mmap)
        if not is_whole_map:
            return super().reducer_override(obj)
        # Copies of pages that are written to: a worker must not change the file.
        mode, order = "r" if obj.mode == "r" else "c", "C" if obj.flags["C_CONTIGUOUS"] else "F"
        return np.memmap, (os.path.abspath(str(obj.filename)), obj.dtype, mode, obj.offset, obj.shape, order)
