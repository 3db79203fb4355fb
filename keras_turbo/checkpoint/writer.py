"""Writing behind training and without holding it up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

# A limit lets through what it saved up in this time: writes come in blocks, and a sleep for each would cost more.
_BURST_SECONDS = 0.1


class BackgroundWriter:
    """Does jobs one after the other, each in a thread that waits for the one before. Two may be pending.

    With more than that, memory would fill with states that nobody has asked for: who submits a third waits.

    The threads are no daemons: Python waits for them when the interpreter ends (before `atexit` functions run), so that
    a pending save is written, whether the script came to its end or raised. A process that is killed or calls
    `os._exit` loses it. In a forked process (a worker of a data loader) nothing is pending: the parent writes it.
    """

    def __init__(
        self, write: Callable[[Any], None], prepare: Callable[[Any], None] = lambda job: None, *, name: str
    ) -> None:
        self._write = write
        self._prepare = prepare
        self._name = name
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._is_closed = False

    @property
    def pending(self) -> int:
        """How many jobs are not done: 0, 1 or 2."""
        return sum(thread.is_alive() for thread in self._threads)

    def submit(self, job: Any) -> None:
        """Leaves a job to a thread. Waits while two are pending."""
        if self._is_closed:
            raise RuntimeError(f"The writer {self._name!r} is closed.")
        while self.pending > 1:
            self._threads[0].join()
            del self._threads[0]
        before = self._threads[-1] if self._threads else None
        # Taken by the thread; or by this one, if Ctrl-C comes while it starts the other.
        jobs = [job]
        thread = threading.Thread(target=self._run, args=(jobs, before), name=f"keras_turbo {self._name}", daemon=False)
        # Before it begins, since it may ask how many there are.
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        try:
            thread.start()
        except BaseException:
            try:
                jobs.pop()
                self._threads.remove(thread)
            except IndexError:
                thread.join()
            raise

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all jobs are done, or for so many seconds; tells whether they are."""
        until = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return self.pending == 0

    def raise_error(self) -> None:
        """Raises the first error of the jobs since the last call, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits for what is pending, and takes no more. Raises no error of a job: see `raise_error`."""
        self._is_closed = True
        self.wait()

    def _run(self, jobs: list[Any], before: threading.Thread | None) -> None:
        # Who has started it waits for Python's lock, and would get it after 5 ms otherwise.
        time.sleep(0.001)
        try:
            job = jobs.pop()
        except IndexError:
            return
        try:
            with contextlib.suppress(Exception):
                self._prepare(job)
            if before is not None:
                before.join()
            self._write(job)
        except BaseException as error:
            self._error = self._error or error


class RateLimit:
    """Holds up whoever writes, so that a disk that others need as well is written to at this rate."""

    def __init__(self, megabytes_per_second: float | None) -> None:
        is_number = isinstance(megabytes_per_second, (int, float)) and not isinstance(megabytes_per_second, bool)
        if megabytes_per_second is not None and not (is_number and megabytes_per_second > 0):
            raise ValueError(
                "A rate must be a positive number of megabytes a second, or None for no limit. "
                f"Received: {megabytes_per_second!r}."
            )
        self.megabytes_per_second = megabytes_per_second
        self._lifted = threading.Event()
        # When what was spent so far has been earned.
        self._earned_at = 0.0

    def spend(self, nbytes: int) -> None:
        """Sleeps for as long as it takes to earn these bytes. Call it for each block, before or after writing it."""
        if self.megabytes_per_second is None or self._lifted.is_set():
            return
        now = time.monotonic()
        self._earned_at = max(self._earned_at, now - _BURST_SECONDS) + nbytes / (self.megabytes_per_second * 1e6)
        if self._earned_at > now:
            self._lifted.wait(self._earned_at - now)

    def lift(self) -> None:
        """Ends the limit for good, now: for the last save of a process that is about to be killed."""
        self._lifted.set()
