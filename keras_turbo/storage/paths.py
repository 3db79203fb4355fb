"""What is asked of a path whether it is one of this machine or has a scheme; paths were resolved before."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple, Protocol

import tensorflow as tf

from keras_turbo.storage import remote
from keras_turbo.storage.remote_file import RemoteFile
from keras_turbo.storage.schemes import is_remote


class Status(NamedTuple):
    """What tells a file from what it was before.

    Attributes:
        size: in bytes.
        changed_ns: time of its last change. Object stores tell it to the second.
    """

    size: int
    changed_ns: int


class Readable(Protocol):
    """A file that is read from its beginning."""

    def read(self, size: int, /) -> bytes:
        """The next bytes; none at the end."""
        ...


def absolute(path: str) -> str:
    """The path from the root of its file system."""
    return path if is_remote(path) else os.path.abspath(path)


def join(folder: str, *names: str) -> str:
    """The path of something in a folder."""
    return "/".join([folder.rstrip("/"), *names]) if is_remote(folder) else os.path.join(folder, *names)


def parent_of(path: str) -> str:
    """The folder of a file."""
    return path.rpartition("/")[0] if is_remote(path) else os.path.dirname(path)


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2] if is_remote(path) else os.path.basename(path)


def relative_to(path: str, folder: str) -> str:
    """The path of something in a folder, from there."""
    return path[len(folder.rstrip("/")) + 1 :] if is_remote(path) else os.path.relpath(path, folder)


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    if not is_remote(path):
        return os.path.exists(path)
    return remote.exists(path)


def is_folder(path: str) -> bool:
    """Whether there is a folder."""
    if not is_remote(path):
        return os.path.isdir(path)
    return remote.is_folder(path)


def is_file(path: str) -> bool:
    """Whether there is a file."""
    if not is_remote(path):
        return os.path.isfile(path)
    try:
        return not remote.stat(path).is_directory
    except FileNotFoundError:
        return False


def names_in(folder: str) -> list[str]:
    """What is in a folder, sorted."""
    if not is_remote(folder):
        return sorted(os.listdir(folder))
    return [entry.name for entry in remote.entries(folder)]


def status_of(path: str) -> Status:
    """Size and time of change of a file.

    Raises:
        OSError: there is none.
    """
    if not is_remote(path):
        status = os.stat(path)
        return Status(status.st_size, status.st_mtime_ns)
    found = remote.stat(path)
    return Status(found.length, found.mtime_nsec)


def statuses_of(paths: Sequence[str]) -> list[Status]:
    """Sizes and times of change of many files; of one that is gone, both are -1: reading it says so."""

    def status(path: str) -> Status:
        try:
            return status_of(path)
        except OSError:
            return Status(-1, -1)

    if not any(map(is_remote, paths)):
        return [status(path) for path in paths]
    return remote.each_of(status, paths)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Readable]:
    """A context with a file that is open for reading from its beginning."""
    if not is_remote(path):
        with open(path, "rb") as file:
            yield file
        return
    with remote.system_errors(path), tf.io.gfile.GFile(path, "rb") as file:
        yield file


@contextlib.contextmanager
def opened_anywhere(path: str, *, read_ahead_bytes: int = 0) -> Iterator[tuple[IO[bytes] | io.RawIOBase, Status]]:
    """A context with a file that is open for reading wherever its reader wants to, and its status.

    Args:
        path: the file.
        read_ahead_bytes: how much is asked for at least behind a scheme, for files that are read from their beginning
            in small pieces.

    Raises:
        OSError: there is no such file, or, behind a scheme, it was another one when the context ended.
    """
    if not is_remote(path):
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            yield file, Status(found.st_size, found.st_mtime_ns)
        return
    status = status_of(path)
    raw = RemoteFile(path, status.size)
    with io.BufferedReader(raw, read_ahead_bytes) if read_ahead_bytes else raw as file:
        yield file, status
    # Each part was asked for by the path, so that parts of two files may have come.
    if status_of(path) != status:
        raise OSError(errno.ESTALE, "It has changed while it was read", path)


def read_at(path: str, offset: int, size: int) -> bytes:
    """A part of a file; less where it ends before."""
    if not is_remote(path):
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)
    return remote.read_at(path, offset, size)


def read_bytes(path: str) -> bytes:
    """The content of a small file."""
    if not is_remote(path):
        return pathlib.Path(path).read_bytes()
    return remote.retried_on(path, lambda: b"".join(remote.chunks(path)))


def make_folder(path: str) -> None:
    """Makes a folder and those above it, where they are missing; a store behind a scheme needs none."""
    if not is_remote(path):
        os.makedirs(path, exist_ok=True)


def write_whole(path: str, content: bytes) -> None:
    """Writes a small file such that its name never stands for half of it.

    On this machine it is written beside its name and renamed; a store keeps the whole object or nothing of it.
    """
    if is_remote(path):
        remote.write(path, [content])
        return
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's files are closed to others, who may share the folder
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def put_in_place(temporary: str, final: str) -> None:
    """Gives a file of this machine that is closed its final name, once its bytes are where they stay."""
    if is_remote(final):
        remote.upload(temporary, final)
        os.unlink(temporary)
        return
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, final)


def remove_folder(path: str) -> None:
    """Removes a folder of ours with what is in it; it may be gone, in part too."""
    if is_remote(path):
        remote.remove_folder(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
