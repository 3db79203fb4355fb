"""A file behind a scheme, as an object in which other libraries read wherever they want to."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from keras_turbo.storage import remote

# So much is tried again if it fails. A library may ask for hundreds of MB at once.
_PART_BYTES = 8 << 20


class RemoteFile(io.RawIOBase):
    """A file behind a scheme, open for reading.

    Each read is a request or several, which are tried again where that helps, and nothing is read ahead.

    Args:
        path: with a scheme.
        size: of the file, in bytes.
    """

    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if origin + offset < 0:
            raise OSError(errno.EINVAL, "There is nothing before the beginning of a file", self._path)
        self._position = origin + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fills the buffer; less only where the file ends.

        Raises:
            OSError: it can't be read, or ends before its size.
        """
        if self.closed:
            raise ValueError(f"{self._path} is closed.")
        target = memoryview(buffer).cast("B")
        wanted = max(0, min(len(target), self._size - self._position))
        for start in range(0, wanted, _PART_BYTES):
            size = min(_PART_BYTES, wanted - start)
            part = remote.read_at(self._path, self._position, size)
            if len(part) < size:
                raise OSError(errno.EIO, f"It has ended before its {self._size} bytes", self._path)
            target[start : start + size] = part
            self._position += size
        return wanted
