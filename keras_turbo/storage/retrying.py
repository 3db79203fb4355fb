"""Doing something again that a network file system refused for a moment."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection
from typing import TypeVar

Result = TypeVar("Result")

# A server that was restarted or failed over answers ESTALE; names that another client has just made are ENOENT while
# attributes are cached; locks and soft mounts give EAGAIN; a signal gives EINTR. None of them lasts.
TRANSIENT = frozenset({errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ENOENT})

# While reading, a name that is not there is an answer: a checkpoint may be deleted at any time.
TRANSIENT_READING = TRANSIENT - {errno.ENOENT}

# NFS caches the attributes of folders for 30 s at most, by default for 3 s while they change (acdirmin is 30, acregmin
# 3); waits of 1.6 s in all cover a lookup that was cached wrong without holding up the end of a run.
_WAITS_SECONDS = (0.05, 0.25, 1.3)


def retried(action: Callable[[], Result], transient: Collection[int] = TRANSIENT) -> Result:
    """Does something, and again a few times while it fails by what passes.

    Args:
        action: what is done. It must be right to do it again from its start.
        transient: numbers of the errors that pass.

    Returns:
        What `action` returns.

    Raises:
        OSError: of another kind at once; the last one when it has not passed.
    """
    for seconds in _WAITS_SECONDS:
        try:
            return action()
        except OSError as error:
            if error.errno not in transient:
                raise
        time.sleep(seconds)
    return action()
