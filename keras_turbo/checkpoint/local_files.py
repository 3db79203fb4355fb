"""Files of this machine and what it has mounted, by plain os calls."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_turbo.checkpoint.checksums import Checksum
from keras_turbo.checkpoint.layout import FileRecord
from keras_turbo.storage.retrying import TRANSIENT_READING, retried

# One turn of checksum, rate limit and write: what was just read for the checksum is still in the processor's cache when
# it is written (1 MiB fits most second-level caches), and a thread that waits for Python's lock waits a millisecond.
CHUNK_BYTES = 2**20


def in_chunks(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    """Cuts what is large and joins what is small, so that each chunk is worth a system call."""
    small = bytearray()
    for piece in pieces:
        if small and len(small) + len(piece) > CHUNK_BYTES:
            yield memoryview(small)
            small = bytearray()
        if len(piece) < CHUNK_BYTES:
            small += piece
            continue
        for start in range(0, len(piece), CHUNK_BYTES):
            yield piece[start : start + CHUNK_BYTES]
    if small:
        yield memoryview(small)


class LocalFiles:
    """What a checkpoint needs of a local file system. Errors name the path; what passes is tried again."""

    # A folder takes its final name in one step.
    renames = True

    def join(self, folder: str, *names: str) -> str:
        return os.path.join(folder, *names)

    def name_of(self, path: str) -> str:
        return os.path.basename(path)

    def parent_of(self, path: str) -> str:
        return os.path.dirname(path)

    def names(self, folder: str) -> list[str]:
        """Names in a folder."""
        return retried_here(lambda: os.listdir(folder), folder)

    def folder_names(self, folder: str) -> list[str]:
        """Names of the folders in a folder, without a look at each of them."""

        def scan() -> list[str]:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.is_dir()]

        return retried_here(scan, folder)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return retried(lambda: os.stat(path).st_size, TRANSIENT_READING)

    def make_folder(self, path: str) -> None:
        """Makes a folder and those above it, where they are missing."""
        retried_here(lambda: os.makedirs(path, exist_ok=True), path)

    def write(self, path: str, pieces: Sequence[memoryview], limit: Any = None) -> FileRecord:
        """Writes a file from its pieces and sees to it that it is on the disk.

        The checksum is that of the buffers as they go out: one of the file as read back would come from the page
        cache, and would bless whatever went wrong on the way.

        Args:
            path: the file; what is there is overwritten.
            pieces: the content in order. They are gone through again when the write is tried again.
            limit: has `spend(nbytes)`, which waits until so many bytes may be written.

        Raises:
            OSError: with the path.
        """
        return retried_here(lambda: self._write(path, pieces, limit), path)

    def _write(self, path: str, pieces: Sequence[memoryview], limit: Any) -> FileRecord:
        checksum = Checksum()
        nbytes = 0
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            for chunk in in_chunks(pieces):
                if limit is not None:
                    limit.spend(len(chunk))
                checksum.update(chunk)
                nbytes += len(chunk)
                rest = chunk
                while rest:
                    rest = rest[os.write(file, rest) :]
            os.fsync(file)
            if hasattr(os, "posix_fadvise"):
                # Nobody reads it again soon; in the page cache it would push training data out.
                with contextlib.suppress(OSError):
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
        return FileRecord(nbytes, str(checksum))

    def chunks(self, path: str) -> Iterator[bytes]:
        """The content of a file, piece by piece."""
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        return retried(lambda: Path(path).read_bytes(), TRANSIENT_READING)

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[str]:
        """A path by which libraries can open the file."""
        yield path

    def rename(self, path: str, new_path: str) -> None:
        """Gives a folder another name; on the disk, too."""

        def move() -> None:
            try:
                os.rename(path, new_path)
            except FileNotFoundError:
                # A server that had done it and whose answer was lost is asked again by its client.
                if os.path.exists(path) or not os.path.exists(new_path):
                    raise

        retried_here(move, path)
        self.sync_folder(os.path.dirname(new_path))

    def sync_folder(self, path: str) -> None:
        """Sees to it that the names in a folder are on the disk."""

        def sync() -> None:
            folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            except OSError as error:
                # Some file systems (FUSE, CIFS) can't do it for folders; they have no better way either.
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise
            finally:
                os.close(folder)

        retried_here(sync, path)

    def remove_file(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_folder(self, path: str, hidden_prefix: str) -> None:
        """Removes a folder such that nobody meets a part of it: it goes out of sight first.

        Args:
            path: the folder. It may be gone.
            hidden_prefix: what its name begins with when it is out of sight.
        """
        parent, name = os.path.split(path)
        if not name.startswith(hidden_prefix):
            hidden = os.path.join(parent, f"{hidden_prefix}{name.lstrip('.')}-{uuid.uuid4().hex[:8]}")
            try:
                os.rename(path, hidden)
            except FileNotFoundError:
                return
            path = hidden
        shutil.rmtree(path, ignore_errors=True)


def retried_here(action: Any, path: str) -> Any:
    """`retried`, with the path in the error: `os.write` and `os.fsync` know none."""
    try:
        return retried(action)
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, path) from error
        raise
