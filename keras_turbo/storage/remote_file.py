"""A file behind a scheme, as an object in which other libraries read wherever they want to."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from keras_turbo.storage import remote

# So much is asked for at a time, and again if that fails. TensorFlow makes a request of each half of a megabyte, one
# after the other, so that large reads are made of many parts that come at a time.
_PART_BYTES = 1 << 20


class RemoteFile(io.RawIOBase):
    """A file behind a scheme, open for reading.

    What fails for a moment is tried again. Nothing is read ahead.

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

        def fill(start: int) -> None:
            size = min(_PART_BYTES, wanted - start)
            part = remote.read_at(self._path, self._position + start, size)
            if len(part) < size:
                raise OSError(errno.EIO, f"It has ended before its {self._size} bytes", self._path)
            target[start : start + size] = part

        remote.each_of(fill, range(0, wanted, _PART_BYTES))
        self._position += wanted
        return wanted
