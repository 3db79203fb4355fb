"""One run at a time in a directory of checkpoints: the second is told, and leftovers of dead runs are known as such."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from keras_turbo.checkpoint.local_files import LocalFiles, retried_here
from keras_turbo.checkpoint.location import Directory, Location, locate
from keras_turbo.checkpoint.names import LOCK

# A run behind a scheme renews its lock at each save. One of another machine that is older is taken for dead; it must
# not be long, since a job that was moved to another machine would be warned about itself.
_FRESH_SECONDS = 600.0

# Who holds which directory in this process: record locks don't hold a process off itself.
_held: weakref.WeakValueDictionary[str, DirectoryLock] = weakref.WeakValueDictionary()
_held_guard = threading.Lock()


class DirectoryInUseError(RuntimeError):
    """Another run saves into the same directory."""


class DirectoryLock:
    """The right to save into a directory, held by one run.

    On local and network file systems it is a record lock on `.lock`, which the system takes back from a process that
    dies, however it dies, and which a forked child doesn't inherit. An object store has no locks: there, an object
    tells who saves, and a run that finds a fresh one of another machine warns.

    Example:

    ```python
    with DirectoryLock("checkpoints"):
        ...  # only this run saves here
    ```

    Args:
        directory: the directory; it is made if it is missing.

    Attributes:
        contested: whether, in an object store, another run may be saving there.

    Raises:
        ValueError: no file system has the scheme of the path.
    """

    def __init__(self, directory: Directory) -> None:
        self._location = locate(directory)
        self._path = self._location.child(LOCK)
        self._pid: int | None = None
        # Closes the lock's file, at the latest when this object is dropped.
        self._close: weakref.finalize | None = None
        self.contested = False

    def acquire(self) -> DirectoryLock:
        """Takes the lock, and so finds out whether the directory can be written at all.

        Raises:
            DirectoryInUseError: another run has it.
            OSError: the directory can't be made or written.
        """
        with _held_guard:
            if _holder(self._path) is not None:
                raise DirectoryInUseError(
                    f"{self._location.path} is already used by another callback of this process. Give each run a "
                    "directory of its own."
                )
            self._location.files.make_folder(self._location.path)
            if isinstance(self._location.files, LocalFiles):
                self._acquire_local()
            else:
                self._acquire_remote()
            self._pid = os.getpid()
            _held[self._path] = self
        return self

    def _acquire_local(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        file = retried_here(lambda: os.open(self._path, flags, 0o666), self._path)
        try:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise DirectoryInUseError(_in_use(self._location, _owner(os.pread(file, 4096, 0)))) from error
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                    raise
                warnings.warn(
                    f"{self._location.path} is on a file system without locks, so two runs that save there are not "
                    "told of each other.",
                    stacklevel=4,
                )
            os.ftruncate(file, 0)
            os.pwrite(file, self._description(), 0)
        except BaseException:
            os.close(file)
            raise
        self._close = weakref.finalize(self, _close, file, os.getpid())

    def _acquire_remote(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            owner = _owner(self._location.files.read(self._path))
            if owner.get("host") == socket.gethostname():
                if _runs(owner.get("pid")):
                    raise DirectoryInUseError(_in_use(self._location, owner))
            elif _is_fresh(owner.get("time")):
                self.contested = True
                warnings.warn(
                    f"{_in_use(self._location, owner)} It may have ended since; if it has not, both will spoil each "
                    "other's retention.",
                    stacklevel=4,
                )
        self.renew()

    def renew(self) -> None:
        """Says that the run is alive. Needed behind a scheme only, where the system can't know."""
        if not isinstance(self._location.files, LocalFiles):
            self._location.files.write(self._path, [memoryview(self._description())])

    def release(self) -> None:
        """Gives the lock back. Doing it twice does nothing."""
        with _held_guard:
            # A forked child has nothing to give back.
            if _holder(self._path) is not self:
                return
            del _held[self._path]
            self._pid = None
            if self._close is not None:
                # The file stays: removed, it would let in both who has it open and who makes it anew.
                self._close()
            else:
                with contextlib.suppress(OSError):
                    self._location.files.remove_file(self._path)

    def _description(self) -> bytes:
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
        return json.dumps(owner).encode()

    def __enter__(self) -> DirectoryLock:
        return self if _holder(self._path) is self else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextlib.contextmanager
def locked(location: Location, directory: Directory) -> Iterator[None]:
    """Holds the lock of a directory, unless this process has it already."""
    lock = _holder(location.child(LOCK))
    if lock is not None:
        lock.renew()
        yield
        return
    with DirectoryLock(directory):
        yield


def _holder(path: str) -> DirectoryLock | None:
    """Who holds a lock in this process. A forked child inherits what says so, and not the lock."""
    lock = _held.get(path)
    return lock if lock is not None and lock._pid == os.getpid() else None


def _close(file: int, pid: int) -> None:
    # In a forked child the number may stand for another file by now.
    if os.getpid() == pid:
        os.close(file)


def _owner(content: bytes) -> dict[str, Any]:
    try:
        owner = json.loads(content)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _in_use(location: Location, owner: dict[str, Any]) -> str:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', 'another machine')}"
    return f"{location.path} is used by another run: {who}. Give each run a directory of its own, or end that one."


def _is_fresh(renewed: Any) -> bool:
    """Whether a lock was renewed a short while ago. What is no time, or far in the future, vouches for no run."""
    is_number = isinstance(renewed, (int, float)) and not isinstance(renewed, bool)
    # Clocks of two machines differ a little, in either direction.
    return is_number and abs(time.time() - renewed) < _FRESH_SECONDS


def _runs(pid: Any) -> bool:
    import psutil

    return isinstance(pid, int) and pid != os.getpid() and psutil.pid_exists(pid)
