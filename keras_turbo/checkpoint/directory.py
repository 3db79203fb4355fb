"""A directory of checkpoints: one run at a time in it, which checkpoints there are, and what dead runs have left.

The second run is told of the first, and leftovers are known as such: nobody else is writing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import filelock

from keras_turbo.checkpoint.layout import (
    DELETED,
    EXTRA,
    LOCK,
    MARKER,
    SHARDED_WEIGHTS,
    SHARE,
    SHARING,
    STATE,
    WRITING,
    TrainingState,
    check_name,
    is_ours,
    step_in,
)
from keras_turbo.checkpoint.location import Directory, Location, locate

# Before every real key: a checkpoint whose state can't be read may be the newest, so it is not passed over in silence.
_UNKNOWN = (float("inf"), float("inf"), float("inf"))

# A run behind a scheme renews its lock at each save. One of another machine that is older is taken for dead; it must
# not be long, since a job that was moved to another machine would be warned about itself.
_FRESH_SECONDS = 600.0

# What file systems without locks answer.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}

# Who holds which directory in this process, by what the directory is and not by one of its names.
_held: weakref.WeakValueDictionary[Any, DirectoryLock] = weakref.WeakValueDictionary()
_held_guard = threading.Lock()


class DirectoryInUseError(RuntimeError):
    """Another run saves into the same directory."""


class DirectoryLock:
    """The right to save into a directory, held by one run.

    On local and network file systems it is a lock of `filelock`, which the system takes back from a process that dies,
    however it dies. An object store has no locks: there, an object tells who saves, and a run that finds a fresh one of
    another machine warns.

    Attributes:
        contested: whether, in an object store, another run may be saving there.
    """

    def __init__(self, directory: Directory) -> None:
        self._location = locate(directory)
        self._path = self._location.child(LOCK)
        self._pid: int | None = None
        self._lock: Any = None
        # What the directory is; as long as it is open, no other one can have its number.
        self._key: Any = None
        self._close: Any = None
        self.contested = False

    def acquire(self) -> DirectoryLock:
        """Takes the lock, and so finds out whether the directory can be written at all."""
        with _held_guard:
            self._location.files.make_folder(self._location.path)
            self._key = identity_of(self._location)
            if _holder(self._location) is not None:
                raise DirectoryInUseError(
                    f"{self._location.path} is already used by another callback of this process. Give each run a "
                    "directory of its own."
                )
            if self._location.files.renames:
                self._acquire_local()
                folder = os.open(self._location.path, os.O_RDONLY | os.O_CLOEXEC)
                self._close = weakref.finalize(self, _close, folder, os.getpid())
            else:
                self._acquire_remote()
            self._pid = os.getpid()
            _held[self._key] = self
        return self

    def _acquire_local(self) -> None:
        # Of its own and for all threads: it is released by whichever thread ends the run. It follows no link.
        lock = filelock.FileLock(self._path, blocking=False, thread_local=False, on_acquired=self._describe)
        try:
            lock.acquire()
            self._lock = lock
        except filelock.Timeout as error:
            raise DirectoryInUseError(_in_use(self._location, self._owner())) from error
        except NotImplementedError:
            self._warn_of_no_locks()
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise OSError(error.errno, error.strerror, self._path) from error
            self._warn_of_no_locks()

    def _warn_of_no_locks(self) -> None:
        warnings.warn(
            f"{self._location.path} is on a file system without locks, so two runs that save there are not told of "
            "each other.",
            stacklevel=5,
        )

    def _acquire_remote(self) -> None:
        owner = self._owner()
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
        self._tell_owner()

    def check(self) -> None:
        """To be called before each save: makes sure that the lock is held still, and says that the run is alive."""
        if not self._location.files.renames:
            self._tell_owner()
            return
        if identity_of(self._location) != self._key:
            raise OSError(
                errno.ENOENT, "The directory was removed while the run was going on, or replaced", self._location.path
            )
        if self._lock is not None and not os.path.lexists(self._path):
            self._lock.release()
            self._acquire_local()

    def release(self) -> None:
        """Gives the lock back. Doing it twice does nothing."""
        with _held_guard:
            # A forked child has nothing to give back.
            if self._pid != os.getpid():
                return
            self._pid = None
            if _held.get(self._key) is self:
                del _held[self._key]
            if self._close is not None:
                self._close()
            if self._lock is not None:
                # The file stays: removed, it would let in both who has it open and who makes it anew.
                self._lock.release()
            elif not self._location.files.renames:
                with contextlib.suppress(OSError):
                    self._location.files.remove_file(self._path)

    def _describe(self, file: int) -> None:
        """Writes into an open lock who has it. A full disk is for the first save to meet: it has a way to tell."""
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, _this_process(), 0)

    def _tell_owner(self) -> None:
        self._location.files.write(self._path, [memoryview(_this_process())])

    def _owner(self) -> dict[str, Any]:
        try:
            owner = json.loads(self._location.files.read(self._path))
        except (OSError, ValueError, RecursionError):
            return {}
        return owner if isinstance(owner, dict) else {}

    def __enter__(self) -> DirectoryLock:
        return self if self._pid == os.getpid() else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextlib.contextmanager
def locked(location: Location) -> Iterator[None]:
    """Holds the lock of a directory, unless this process has it already."""
    lock = _holder(location)
    if lock is not None:
        lock.check()
        yield
        return
    with DirectoryLock(location.path):
        yield


def identity_of(location: Location) -> Any:
    """What a directory is, by whatever path one comes to it: device and inode, or its address; None if missing."""
    if not location.files.renames:
        return location.path
    try:
        found = os.stat(location.path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _holder(location: Location) -> DirectoryLock | None:
    """Who holds a lock in this process. A forked child inherits what says so, and not the lock."""
    lock = _held.get(identity_of(location))
    return lock if lock is not None and lock._pid == os.getpid() else None


def _this_process() -> bytes:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}).encode()


def _close(file: int, pid: int) -> None:
    # In a forked child the number may stand for another file by now.
    if os.getpid() == pid:
        os.close(file)


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


def claim(directory: Directory) -> DirectoryLock:
    """Takes a directory for a run: makes it, finds out that it can be written, and sweeps what dead runs left."""
    lock = DirectoryLock(directory).acquire()
    try:
        if not lock.contested:
            sweep(directory)
    except BaseException:
        lock.release()
        raise
    return lock


def sweep(directory: Directory) -> list[str]:
    """Removes half-written and half-deleted checkpoints of runs that died, and gives their names.

    Only who holds the directory's `DirectoryLock` may do it, so that nothing of a living run is taken for a leftover.
    """
    location = locate(directory)
    files = location.files
    leftovers = {name for name in files.names(location.path) if name.startswith((WRITING, SHARING, DELETED))}
    if not files.renames:
        begun = files.names_with(location.path, ("*.weights.h5", SHARDED_WEIGHTS, EXTRA, STATE, f"{SHARE}*"))
        leftovers |= begun - files.names_with(location.path, (MARKER,))
    for name in sorted(leftovers):
        files.remove_folder(location.child(name), DELETED)
    return sorted(leftovers)


def delete_checkpoint(directory: Directory, name: str) -> None:
    """Deletes a checkpoint, which may be gone, such that nobody meets a part of it.

    Locally it is renamed out of sight first; in an object store it loses its commit marker first.
    """
    location = locate(directory)
    check_name(name)
    path = location.child(name)
    if not location.files.renames:
        location.files.remove_file(location.files.join(path, MARKER))
    location.files.remove_folder(path, DELETED)


# Which there are.


def checkpoint_names(location: Location) -> list[str]:
    """Names of what are checkpoints, whole or not, in order; folders of others are left out."""
    return [name for name in _candidate_names(location) if _has_ours(location, location.child(name))]


def _candidate_names(location: Location) -> list[str]:
    """Names of the folders that are not hidden, without a look into them; none where there is no directory."""
    if not location.files.is_folder(location.path):
        return []
    return sorted(name for name in location.files.folder_names(location.path) if not name.startswith("."))


def holds_checkpoint(location: Location, path: str) -> bool:
    """Whether a folder is itself a checkpoint, rather than a directory of some."""
    files = location.files
    return files.exists(files.join(path, MARKER)) or files.exists(files.join(path, STATE))


def newest_first(location: Location) -> Iterator[str]:
    """Names of the checkpoints, the newest first: the one with most optimizer steps.

    Steps only grow in a run, while clocks are set back; the clock decides only between checkpoints of one step. The
    step is read from the name where it tells one, so that of 10,000 checkpoints only the states of the first are read;
    a state that tells another step than its name is a reason to read all of them.
    """
    steps = {name: step_in(name) for name in _candidate_names(location)}
    unnamed = [name for name, step in steps.items() if step is None]
    keys = {name: key for name in unnamed if (key := _key(location, name)) is not None}
    told = {name: step for name, step in steps.items() if step is not None}
    ranks = {**told, **{name: key[0] for name, key in keys.items()}}
    order = sorted(ranks, key=lambda name: ranks[name], reverse=True)
    given: set[str] = set()
    for step, names in groupby(order, key=lambda name: ranks[name]):
        same = {}
        for name in names:
            key = keys.get(name) or _key(location, name)
            if key is not None:
                same[name] = key
        if any(key[0] != step for name, key in same.items() if name in told and key != _UNKNOWN):
            yield from (name for name in _by_states(location, list(steps)) if name not in given)
            return
        given.update(same)
        yield from sorted(same, key=lambda name: (same[name], name), reverse=True)


def _by_states(location: Location, names: list[str]) -> list[str]:
    keys = {name: key for name in names if (key := _key(location, name)) is not None}
    return sorted(keys, key=lambda name: (keys[name], name), reverse=True)


def _key(location: Location, name: str) -> tuple[float, float, float] | None:
    """What orders a checkpoint in time; None if the folder is none."""
    path = location.child(name)
    try:
        state = read_state(location, path)
    except (OSError, ValueError):
        return _UNKNOWN if _has_ours(location, path) else None
    return (state.optimizer_step, state.steps, state.wall_time)


def read_state(location: Location, path: str) -> TrainingState:
    """The training state of a checkpoint, as it stands there; OSError or ValueError if it can't be read or is none."""
    return TrainingState.from_json(location.files.read(location.files.join(path, STATE)).decode())


def _has_ours(location: Location, path: str) -> bool:
    try:
        return any(is_ours(name) for name in location.files.names(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def foreign_names(location: Location, name: str) -> list[str]:
    """What is in a folder of a directory and never was part of a checkpoint: such a folder is somebody else's."""
    return [one for one in location.files.names(location.child(name)) if not is_ours(one)]
