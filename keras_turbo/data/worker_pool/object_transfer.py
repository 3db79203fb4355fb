"""A user's Python object on its way to the workers."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import io
import mmap
import os
import pickle
import sys
from typing import Any

import numpy as np

from keras_turbo.data.worker_pool.keras_turbo_worker.memory import create_memory

_ALIGNMENT_BYTES = 64


class NotTransferableError(TypeError):
    """An object can't be sent to another process."""


@dataclasses.dataclass(frozen=True)
class TransferredObject:
    """An object as it is sent: a pickle, and beside it the contents of its arrays.

    Attributes:
        stream: the pickle.
        buffers: the arrays' memory, not copied.
        digest: changes when the object does.
    """

    stream: bytes
    buffers: list[memoryview]
    digest: bytes

    def in_shared_memory(self) -> tuple[list[tuple[int, int]], int | None]:
        """Copies the arrays once for all workers: where each is, and the descriptor, which the caller closes."""
        places, offset = [], 0
        for buffer in self.buffers:
            places.append((offset, buffer.nbytes))
            offset += -(-buffer.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if not places:
            return places, None
        descriptor = create_memory(max(offset, 1))
        try:
            with mmap.mmap(descriptor, max(offset, 1)) as memory:
                for buffer, (start, size) in zip(self.buffers, places, strict=True):
                    memory[start : start + size] = buffer
        except BaseException:
            os.close(descriptor)
            raise
        return places, descriptor


def transferred(source: Any, name: str) -> TransferredObject:
    """Pickles a user's object for the workers.

    Args:
        source: the object.
        name: what an error calls it.

    Raises:
        NotTransferableError: it can't be pickled, or a process can't import its class.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    try:
        _Pickler(file, buffers).dump(source)
    except Exception as error:  # pickle raises what the object's own methods raise, too
        raise NotTransferableError(
            f"{name} can't be sent to worker processes: {error}. Functions and classes must stand at the top level of "
            "a module (no lambda), and files, locks and connections must be opened when they are first used. Or give "
            "workers=0, which runs it in this process."
        ) from error
    stream = file.getvalue()
    if b"__main__" in stream:
        _check_main_script(name)
    raw = [buffer.raw() for buffer in buffers]
    hasher = hashlib.blake2b(stream, digest_size=16)
    for buffer in raw:
        hasher.update(buffer)
    return TransferredObject(stream, raw, hasher.digest())


def _check_main_script(name: str) -> None:
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not os.path.isfile(path):
        raise NotTransferableError(
            f"{name} is defined in a notebook or an interactive session, which worker processes can't import. Put "
            "its code into a module (a .py file) and import it from there, or give workers=0, which runs it in this "
            "process."
        )
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    if not _has_main_guard(text):
        raise NotTransferableError(
            f"{name} is defined in the script {path}, which worker processes must run again to find it. So what the "
            "script does must stand below `if __name__ == '__main__':`, and it has no such line. Add it, put the code "
            "of the data into a module of its own, or give workers=0, which runs it in this process."
        )


def _has_main_guard(text: str) -> bool:
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return True  # no script that can be judged, such as one that is compiled
    return any(
        isinstance(statement, ast.If)
        and any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test))
        for statement in statements
    )


class _Pickler(pickle.Pickler):
    """Pickles arrays by their memory, and memory maps of files by their names."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)

    def reducer_override(self, value: Any) -> Any:
        # A view of a memory map has another beginning than its `offset` says, and is sent as an array.
        is_whole_map = type(value) is np.memmap and value.filename is not None and isinstance(value.base, mmap.mmap)
        if not is_whole_map:
            return NotImplemented
        order = "C" if value.flags["C_CONTIGUOUS"] else "F"
        # Copies of pages that are written to: a worker must not change the file.
        mode = "r" if value.mode == "r" else "c"
        return np.memmap, (os.path.abspath(str(value.filename)), value.dtype, mode, value.offset, value.shape, order)
