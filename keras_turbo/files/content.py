"""What is done with files, wherever they are: looked at, listed, read, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO, NamedTuple

from keras_turbo.files.attempts import TRANSIENT_READING, each_of, retried, system_errors
from keras_turbo.files.paths import is_remote, join

# How the names of files and folders begin that are not whole yet.
_UNFINISHED = ".writing-"

# What was begun and not finished for so long belongs to a process that died.
_ABANDONED_AFTER_SECONDS = 3600.0

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


class Status(NamedTuple):
    """What tells a file from what it was before.

    Attributes:
        size: in bytes.
        changed_ns: time of its last change. Object stores tell it to the second; 0 where they don't.
    """

    size: int
    changed_ns: int


def _system(path: str) -> tuple[Any, str]:
    from keras_turbo.files.remote import system_of

    return system_of(path)


def _look_at(path: str) -> tuple[Status, str]:
    def look() -> tuple[Status, str]:
        if not is_remote(path):
            return _of_local(os.stat(path))
        system, there = _system(path)
        found = system.info(there)
        kind = "folder" if found["type"] == "directory" else "file"
        seconds = next((found[key] for key in ("LastModified", "mtime", "last_modified") if found.get(key)), 0)
        seconds = seconds.timestamp() if hasattr(seconds, "timestamp") else seconds
        return Status(found["size"] or 0, found.get("changed_ns", int(seconds * 1e9))), kind

    return retried(look, TRANSIENT_READING, path=path)


def _of_local(found: os.stat_result) -> tuple[Status, str]:
    return Status(found.st_size, found.st_mtime_ns), _KINDS.get(stat.S_IFMT(found.st_mode), "device")


def status_of(path: str) -> Status:
    """Size and time of change of a file."""
    return _look_at(path)[0]


def kind_of(path: str) -> str | None:
    """What is there: a "file", a "folder", a "pipe", "socket" or "device" (which have no end to read to), or None."""
    try:
        return _look_at(path)[1]
    except (FileNotFoundError, NotADirectoryError):
        return None


def exists(path: str) -> bool:
    """Whether there is anything; like all questions here, it raises what hinders it to know."""
    return kind_of(path) is not None


def is_folder(path: str) -> bool:
    """Whether there is a folder."""
    return kind_of(path) == "folder"


def is_file(path: str) -> bool:
    """Whether there is a file."""
    return kind_of(path) == "file"


def require_reachable(path: str) -> None:
    """Raises why nothing is found under a remote path: some stores take what they refuse for what is not there."""
    root = "/".join(path.split("/")[:3])
    try:
        _look_at(root)
    except PermissionError as error:
        message = "The store refuses. Are the credentials right, and may they list what is in it?"
        raise PermissionError(errno.EACCES, message, root) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "There is no such bucket, or host", root) from error


def names_in(folder: str) -> list[str]:
    """What is in a folder, sorted."""
    return [name for name, _ in _listed(folder, tells_folders=False)]


def entries(folder: str) -> list[tuple[str, bool]]:
    """As `names_in`, and for each name whether it is a folder's."""
    return _listed(folder, tells_folders=True)


def _listed(folder: str, *, tells_folders: bool) -> list[tuple[str, bool]]:
    def listed() -> dict[str, bool]:
        if not is_remote(folder):
            with os.scandir(folder) as found:
                return {entry.name: tells_folders and entry.is_dir() for entry in found}
        system, there = _system(folder)
        named = {
            (one["name"] if tells_folders else one).rstrip("/"): tells_folders and one["type"] == "directory"
            for one in system.ls(there, detail=tells_folders)
        }
        # A file lists itself, and so does a folder that was made by an object of its name.
        if there.rstrip("/") in named and len(named) == 1 and system.isfile(there):
            raise NotADirectoryError(errno.ENOTDIR, "It is a file", folder)
        named.pop(there.rstrip("/"), None)
        return {name.rpartition("/")[2]: is_one for name, is_one in named.items()}

    return sorted(retried(listed, TRANSIENT_READING, path=folder).items())


def find(pattern: str) -> list[str]:
    """The files that a glob pattern matches, sorted; `**` crosses folders, hidden names must be named.

    Raises an `OSError` where a pipe or the like matches: it has no end to read to.
    """
    if not is_remote(pattern):
        kinds = [(path, kind_of(path)) for path in sorted(glob.glob(pattern, recursive=True))]
        for path, kind in kinds:
            if kind not in ("file", "folder", None):
                raise OSError(errno.EINVAL, f"It is a {kind}, and no file. Leave it out of the pattern", path)
        return [path for path, kind in kinds if kind == "file"]
    # fsspec's glob leaves out folders that it can't list, and looks into all there are.
    root, parts = "/".join(pattern.split("/")[:3]), pattern.split("/")[3:]
    return [] if glob.has_magic(root) or not parts else sorted(set(_matches(root, parts)))


def _matches(folder: str, parts: list[str]) -> Iterator[str]:
    part, *rest = parts
    crosses = part == "**"
    if crosses and rest:
        yield from _matches(folder, rest)
    if glob.has_magic(part):
        try:
            found = entries(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
    else:
        found = [(part, bool(rest) or not is_file(join(folder, part)))]
    for name, is_one in found:
        if fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith(".")):
            if is_one and (crosses or rest):
                yield from _matches(join(folder, name), parts if crosses else rest)
            elif not is_one and not rest:
                yield join(folder, name)


def read_at(path: str, offset: int, size: int) -> bytes:
    """A part of a file, or with a size of -1 all behind the offset; less where it ends before."""
    if is_remote(path):
        from keras_turbo.files.remote import read_part

        return read_part(path, offset, size)

    def read() -> bytes:
        with _open_local(path) as file:
            file.seek(offset)
            return file.read(size)

    return retried(read, TRANSIENT_READING, path=path)


def read_bytes(path: str) -> bytes:
    """The content of a file."""
    return read_at(path, 0, -1)


def _open_local(path: str) -> BinaryIO:
    # Without O_NONBLOCK, opening a pipe waits for its writer. To a file it means nothing.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    _, kind = _of_local(os.fstat(descriptor))
    if kind == "file":
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EISDIR if kind == "folder" else errno.EINVAL, f"It is a {kind}, and no file", path)


@contextlib.contextmanager
def opened(path: str, *, read_ahead_bytes: int = 0) -> Iterator[tuple[IO[bytes], Status]]:
    """A context with a file that is open for reading wherever its reader wants to, and its status.

    Args:
        path: the file.
        read_ahead_bytes: at least so much is asked for of a remote one, for readers that take small pieces in order.

    Raises:
        OSError: there is no such file, it is a pipe or the like, or a remote one has changed when the context ends.
    """
    if not is_remote(path):
        with _open_local(path) as file:
            yield file, _of_local(os.fstat(file.fileno()))[0]
        return
    from keras_turbo.files.remote import RemoteFile

    status = status_of(path)
    remote: Any = RemoteFile(path, status.size, read_ahead_bytes)
    with remote as file:
        yield file, status
    # Each part was asked for by the path, so that parts of two files may have come.
    if status_of(path) != status:
        raise OSError(errno.ESTALE, "It has changed while it was read", path)


@contextlib.contextmanager
def writing(path: str, *, syncs: bool = True) -> Iterator[BinaryIO]:
    """A context with a new file that takes the path's place when the context ends: whole, or not at all.

    Until then it is a file of this machine under another name (`file.name`), which can be read, too, and which an error
    removes. A remote one is sent at the end, in one step.

    Args:
        path: what is there is replaced; a link itself, and not what it leads to.
        syncs: False for what can be made anew and is checked when it is opened: nobody waits for the disk.
    """
    folder = tempfile.gettempdir() if is_remote(path) else os.path.dirname(path) or "."
    scratch = os.path.join(folder, f"{_UNFINISHED}{uuid.uuid4().hex}")
    try:
        with retried(lambda: open(scratch, "x+b")) as file:
            yield file
        put_in_place(scratch, path, syncs=syncs)
    except OSError as error:
        if error.errno is not None and error.filename in (None, scratch):
            raise OSError(error.errno, error.strerror, path) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(scratch)


def write_whole(path: str, content: bytes | Callable[[], Iterable[Any]], *, syncs: bool = True) -> None:
    """As `writing`, for bytes or the pieces that a function gives; once more where it fails by what passes."""

    def write() -> None:
        with writing(path, syncs=syncs) as file:
            file.writelines(content() if callable(content) else [content])

    retried(write)


def put_in_place(scratch: str, path: str, *, syncs: bool = True) -> None:
    """Gives a closed file of this machine its final path in one step, once its bytes are where they stay."""
    if is_remote(path):
        system, there = _system(path)
        retried(lambda: system.put_file(scratch, there), path=path)
        os.unlink(scratch)
        return
    if syncs:
        sync(scratch)
    retried(lambda: os.replace(scratch, path))
    if syncs:
        sync(os.path.dirname(path) or ".")


def sync(path: str) -> None:
    """Sees to it that a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems (FUSE, CIFS) can't do it for folders; they have no better way either.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing_folder(path: str) -> Iterator[str]:
    """As `writing`, with a new folder of this machine; a folder that is there already must be empty."""
    path = os.path.abspath(path)
    scratch = os.path.join(os.path.dirname(path), f"{_UNFINISHED}{uuid.uuid4().hex}")
    os.makedirs(scratch)
    try:
        yield scratch
        os.rename(scratch, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def remove_abandoned(folder: str, *, after_seconds: float = _ABANDONED_AFTER_SECONDS) -> None:
    """Removes what processes that were killed have begun to write in a folder of this machine.

    Args:
        folder: the folder.
        after_seconds: since when it has not been written to; 0 where nobody else can be writing there.
    """
    for path in glob.glob(os.path.join(glob.escape(folder), f"{_UNFINISHED}*")):
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path).st_mtime > after_seconds:
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def make_folder(path: str) -> None:
    """Makes a folder and those above it, where they are missing."""
    if not is_remote(path):
        try:
            retried(lambda: os.makedirs(path, exist_ok=True))
        except FileExistsError:
            # Python takes a folder for a file where a server does not tell what it is, for a moment.
            if not is_folder(path):
                raise
        return
    from keras_turbo.files.remote import make_remote_folder

    retried(lambda: make_remote_folder(path), path=path)


def require_writable(folder: str) -> None:
    """Makes a folder and finds out whether something can be written there: before the work, and not after it."""
    make_folder(folder)
    probe = join(folder, f"{_UNFINISHED}{uuid.uuid4().hex}")
    try:
        write_whole(probe, b"", syncs=False)
        remove_file(probe)
    except OSError as error:
        raise OSError(error.errno, f"Nothing can be written there: {error.strerror}", folder) from error


def remove_file(path: str) -> None:
    """Removes a file; it may be gone."""
    with contextlib.suppress(FileNotFoundError), system_errors(path):
        if not is_remote(path):
            os.unlink(path)
        else:
            system, there = _system(path)
            system.rm_file(there)


def remove_folder(path: str) -> None:
    """Removes a folder with what is in it; it may be gone, in part too."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    system, there = _system(path)
    with contextlib.suppress(FileNotFoundError), system_errors(path):
        # Not by system.rm(), to which a bracket in a name begins a pattern.
        found = system.find(there, withdirs=True, detail=True)
        folders = {there, *(name for name, one in found.items() if one.get("type") == "directory")}
        each_of(system.rm_file, found.keys() - folders)
        for folder in sorted(folders, reverse=True):
            with contextlib.suppress(OSError):  # most stores have no folders
                system.rmdir(folder)


def each_path(action: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
    """What an action gives for each of some paths; where one is remote, with many under way at a time."""
    return each_of(action, paths) if any(map(is_remote, paths)) else [action(path) for path in paths]
