"""How file systems are asked: again where that helps, several times at once, and with errors that are all alike."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# A server that was restarted or failed over answers ESTALE; names that another client has just made are ENOENT while
# attributes are cached; locks and soft mounts give EAGAIN; a signal gives EINTR. None of them lasts.
TRANSIENT = frozenset({errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ENOENT})

# While reading, a name that is not there is an answer: a checkpoint may be deleted at any time.
TRANSIENT_READING = TRANSIENT - {errno.ENOENT}

# NFS caches the attributes of folders for 30 s at most, by default for 3 s while they change (acdirmin is 30, acregmin
# 3); waits of 1.6 s in all cover a lookup that was cached wrong without holding up the end of a run.
_WAITS_SECONDS = (0.05, 0.25, 1.3)

# They wait for the store, not for this machine. More of them make stores ask to slow down.
_REQUESTS_AT_ONCE = 32

# What errors of TensorFlow, fsspec and botocore are among those of a system, by the names of their classes: none of
# these libraries need be there.
_ERRORS = {
    errno.ENOENT: {"NotFoundError", "FileNotFoundError"},
    errno.EEXIST: {"AlreadyExistsError", "FileExistsError"},
    errno.EACCES: {"PermissionDeniedError", "UnauthenticatedError", "PermissionError", "NoCredentialsError"},
    errno.EISDIR: {"IsADirectoryError"},
    errno.ENOTDIR: {"NotADirectoryError"},
    errno.ENOSPC: {"ResourceExhaustedError"},
    errno.EAGAIN: {"UnavailableError", "DeadlineExceededError", "AbortedError"}
    | {"TimeoutError", "ConnectionError", "HTTPClientError"},
}


@contextlib.contextmanager
def system_errors(path: str) -> Iterator[None]:
    """A context in which whatever fails is an `OSError` with a path: its own, or else this one."""
    try:
        yield
    except Exception as error:
        is_fault = type(error).__module__ == "builtins" and not isinstance(error, OSError)  # of the code
        if is_fault or getattr(error, "filename", None) is not None:
            raise
        names = {one.__name__ for one in type(error).__mro__}
        number = next((number for number, known in _ERRORS.items() if names & known), errno.EIO)
        text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
        raise OSError(getattr(error, "errno", None) or number, text, path) from error


def retried(action: Callable[[], Result], transient: Collection[int] = TRANSIENT, *, path: str = "") -> Result:
    """Does something, and again from its start a few times while it fails by what passes.

    Args:
        action: what is done.
        transient: numbers of the errors that pass.
        path: what errors name; without one they are as `action` raises them.
    """
    waits = iter(_WAITS_SECONDS)
    while True:
        try:
            with system_errors(path) if path else contextlib.nullcontext():
                return action()
        except OSError as error:
            seconds = next(waits, None)
            if seconds is None or error.errno not in transient:
                raise
        time.sleep(seconds)


def each_of(action: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """What an action gives for each of some items, with many of them under way at a time."""
    items = list(items)
    if len(items) < 2:
        return [action(item) for item in items]
    pool = concurrent.futures.ThreadPoolExecutor(min(_REQUESTS_AT_ONCE, len(items)))
    try:
        return list(pool.map(action, items))
    finally:
        # Of an error in one of them, and of Ctrl-C, the rest need not be waited for.
        pool.shutdown(wait=True, cancel_futures=True)
