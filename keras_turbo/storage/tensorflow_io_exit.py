"""Keeps a process that used `s3://` from being aborted when it ends.

In tensorflow-io 0.37.1, the last version there is, the destructors that run at the end of a process log through what
other destructors have taken down ("pure virtual method called", tensorflow/io issue 1912). The process then ends by
SIGABRT, with exit code 134 whatever its own was, and a scheduler takes a run that has done all its work for a failed
one. Nothing public turns that off, so these destructors are left out: all that is to be done has been done by then.
"""

from __future__ import annotations

import ctypes
import functools


@functools.cache
def end_without_native_destructors() -> None:
    """Lets this process end right after Python has: Python's own exit handlers run, buffers are flushed.

    It must be called after tensorflow-io is loaded, since handlers run in reverse order of their registration.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):
        return  # another C library than glibc, for which there is no tensorflow-io either
    # Handlers get the exit code as their first argument: as libc's own `_exit` expects it. It can't be Python code,
    # which is gone by then. The second one runs first, and closes the streams of C.
    for handler in (libc._exit, libc.fcloseall):
        libc.on_exit(ctypes.cast(handler, ctypes.c_void_p), None)
