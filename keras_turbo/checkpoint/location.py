"""Where checkpoints are kept: a local folder, or one behind a scheme; and what they need of the files there."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from keras_turbo import files
from keras_turbo.checkpoint.layout import FileRecord

Directory = Union[str, "os.PathLike[str]"]

# One turn of checksum, rate limit and write: what was just read for the checksum is still in the processor's cache when
# it is written (1 MiB fits most second-level caches), and a thread that waits for Python's lock waits a millisecond.
CHUNK_BYTES = 2**20

# CRC-32 finds every flipped bit and every damaged run of up to 32 bits, misses other damage once in four billion times,
# runs at 3 GB/s (SHA-256: 1.6, BLAKE2: 0.9, measured on one core) and releases Python's lock meanwhile. It is
# no protection against who changes a file on purpose, and isn't meant to be.
ALGORITHM = "crc32"


@dataclass(frozen=True)
class Location:
    """A folder, and how to work in it."""

    files: LocalFiles
    path: str

    def child(self, *names: str) -> str:
        """The path of something in the folder."""
        return files.join(self.path, *names)

    def public(self, path: str) -> Path | str:
        """A path as users get it: a `Path` where that can stand for it."""
        return Path(path) if self.files.renames else path


def locate(directory: Directory) -> Location:
    """Finds out what a path stands for. Nothing is made or read."""
    path = files.resolved(directory, "directory", writes=True)
    if not path.strip():
        raise ValueError(f"directory must be the path of a folder. Received: {path!r}.")
    if not files.is_remote(path):
        return Location(LocalFiles(), os.path.abspath(os.path.expanduser(path)))
    if not path.partition("://")[2].strip("/"):
        raise ValueError(f"directory must name a bucket or folder behind its scheme. Received: {path!r}.")
    return Location(RemoteFiles(), path.rstrip("/"))


class LocalFiles:
    """What a checkpoint needs of a local file system. Errors name the path; what passes is tried again."""

    # A folder takes its final name in one step.
    renames = True

    join = staticmethod(files.join)
    name_of = staticmethod(files.name_of)
    parent_of = staticmethod(files.parent_of)

    def names(self, folder: str) -> list[str]:
        """Names in a folder."""
        return files.names_in(folder)

    def folder_names(self, folder: str) -> list[str]:
        """Names of the folders in a folder, without a look at each of them."""
        return [name for name, is_folder in files.entries(folder) if is_folder]

    def exists(self, path: str) -> bool:
        return files.exists(path)

    def is_folder(self, path: str) -> bool:
        return files.is_folder(path)

    def size(self, path: str) -> int:
        return files.status_of(path).size

    def make_folder(self, path: str) -> None:
        """Makes a folder and those above it, where they are missing."""
        files.make_folder(path)

    def write(self, path: str, pieces: Sequence[memoryview], limit: Any = None) -> FileRecord:
        """Writes a file from its pieces and sees to it that it is on the disk.

        The checksum is that of the buffers as they go out: one of the file as read back would come from the page
        cache, and would bless whatever went wrong on the way.
        """
        return files.retried(lambda: self._write(path, _Chunks(pieces, limit)), path=path)

    def _write(self, path: str, chunks: _Chunks) -> FileRecord:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            for chunk in chunks:
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
        return chunks.record

    def chunks(self, path: str) -> Iterator[bytes]:
        """The content of a file, piece by piece."""
        with files.opened(path, read_ahead_bytes=8 * CHUNK_BYTES) as (file, _):
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        return files.read_bytes(path)

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

        files.retried(move, path=path)
        self.sync_folder(os.path.dirname(new_path))

    def sync_folder(self, path: str) -> None:
        """Sees to it that the names in a folder are on the disk."""
        files.retried(lambda: files.sync(path), path=path)

    def remove_file(self, path: str) -> None:
        """Removes a file; it may be gone."""
        files.remove_file(path)

    def remove_folder(self, path: str, hidden_prefix: str) -> None:
        """Removes a folder, which may be gone, such that nobody meets a part of it: it goes out of sight first."""
        parent, name = os.path.split(path)
        with contextlib.suppress(FileNotFoundError):
            if not name.startswith(hidden_prefix):
                hidden = os.path.join(parent, f"{hidden_prefix}{name.lstrip('.')}-{uuid.uuid4().hex[:8]}")
                os.rename(path, hidden)
                path = hidden
            shutil.rmtree(path)

    def names_with(self, folder: str, patterns: Sequence[str]) -> set[str]:
        """Names of the folders in which there is a file of one of the patterns."""
        found = [path for pattern in patterns for path in files.find(self.join(folder, "*", pattern))]
        return {self.name_of(self.parent_of(path)) for path in found}


class RemoteFiles(LocalFiles):
    """The same of an object store; paths keep their scheme."""

    # A store copies and deletes instead, which can break off in between.
    renames = False

    def folder_names(self, folder: str) -> list[str]:
        # Whether each is a folder may be a request each; what is no folder turns out to be no checkpoint.
        return files.names_in(folder)

    def write(self, path: str, pieces: Sequence[memoryview], limit: Any = None) -> FileRecord:
        """As that of local files; a store keeps the whole object or nothing of it."""
        made: list[_Chunks] = []

        def chunks() -> Iterable[memoryview]:
            made.append(_Chunks(pieces, limit))
            return made[-1]

        files.write_whole(path, chunks)
        return made[-1].record

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="keras_turbo-") as folder:
            copy = os.path.join(folder, self.name_of(path))
            with open(copy, "wb") as file:
                file.writelines(self.chunks(path))
            yield copy

    def rename(self, path: str, new_path: str) -> None:
        raise OSError(errno.ENOTSUP, "An object store renames nothing in one step", path, None, new_path)

    def sync_folder(self, path: str) -> None:
        """Nothing to do: what a store has confirmed, it keeps."""

    def remove_folder(self, path: str, hidden_prefix: str) -> None:
        files.remove_folder(path)


class _Chunks:
    """Pieces cut and joined so that each chunk is worth a system call; counted as they go out, within a limit."""

    def __init__(self, pieces: Sequence[memoryview], limit: Any) -> None:
        self._pieces = pieces
        self._limit = limit
        self._nbytes = self._checksum = 0

    @property
    def record(self) -> FileRecord:
        """Of what has gone out."""
        return FileRecord(self._nbytes, f"{ALGORITHM}:{self._checksum:08x}")

    def __iter__(self) -> Iterator[memoryview]:
        for chunk in _in_chunks(self._pieces):
            if self._limit is not None:
                self._limit.spend(len(chunk))
            self._checksum = zlib.crc32(chunk, self._checksum)
            self._nbytes += len(chunk)
            yield chunk


def _in_chunks(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
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


def checksum_of(chunks: Iterable[bytes]) -> str:
    """The checksum of all chunks together."""
    value = 0
    for chunk in chunks:
        value = zlib.crc32(chunk, value)
    return f"{ALGORITHM}:{value:08x}"
