"""One thread that writes, behind training and without holding it up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

# A limit lets through what it saved up in this time: writes come in blocks, and a sleep for each would cost more.
_BURST_SECONDS = 0.1


class BackgroundWriter:
    """Runs one job at a time in a thread; one more may wait.

    With more than that, memory would fill with states that nobody has asked for: who submits a third waits.

    The thread ends when there is nothing to do. It is not a daemon: Python waits for it when the interpreter ends
    (before `atexit` functions run), so that a pending save is written, whether the script came to its end or raised. A
    process that is killed or calls `os._exit` loses it. Python lets no new thread start by then, so a job must not need
    one.

    In a forked process (a worker of a data loader) there is nothing pending: the parent writes it.

    Example:

    ```python
    writer = BackgroundWriter(write_to_disk, name="checkpoints")
    writer.submit(snapshot)
    ...
    writer.wait()
    writer.raise_error()
    ```

    Args:
        write: does a job: called in the thread with what was submitted, in that order.
        name: of the thread, for debuggers.
    """

    def __init__(self, write: Callable[[Any], None], *, name: str) -> None:
        self._write = write
        self._name = name
        self._forget_all()

    def _forget_all(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # The first is being written while it is here.
        self._jobs: list[Any] = []
        self._error: BaseException | None = None
        self._is_closed = False

    def _forget_after_fork(self) -> None:
        # The lock may have been held by a thread that this process has not.
        if os.getpid() != self._process:
            self._forget_all()

    @property
    def pending(self) -> int:
        """How many jobs are not done: 0, 1 or 2."""
        self._forget_after_fork()
        return len(self._jobs)

    def submit(self, job: Any) -> None:
        """Leaves a job to the thread. Waits while another one is waiting.

        Args:
            job: what `write` gets.

        Raises:
            RuntimeError: after `close`.
        """
        self._forget_after_fork()
        with self._changed:
            self._changed.wait_for(lambda: len(self._jobs) < 2 or self._is_closed)
            if self._is_closed:
                raise RuntimeError(f"The writer {self._name!r} is closed.")
            self._jobs.append(job)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"keras_turbo {self._name}", daemon=False)
                try:
                    thread.start()
                except BaseException:
                    self._jobs.remove(job)
                    raise
                self._thread = thread

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all jobs are done.

        Args:
            timeout: seconds at most; None, the default, for no limit.

        Returns:
            Whether they are.
        """
        self._forget_after_fork()
        with self._changed:
            done = self._changed.wait_for(lambda: not self._jobs, timeout)
            thread = self._thread
        if done and thread is not None and thread is not threading.current_thread():
            # It has nothing more to do, so that this takes no time: nobody finds a thread afterwards.
            thread.join()
        return done

    def raise_error(self) -> None:
        """Raises the first error of the jobs since the last call, once.

        Raises:
            Exception: what `write` raised.
        """
        self._forget_after_fork()
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits for what is pending, and takes no more. Raises no error of a job: see `raise_error`."""
        self._forget_after_fork()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.wait()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs[0]
            error = None
            try:
                self._write(job)
            except BaseException as raised:
                error = raised
            # What a job holds (memory for a snapshot) is let go of before anybody hears that it is done.
            del job
            with self._changed:
                del self._jobs[0]
                self._error = self._error or error
                del error
                self._changed.notify_all()


class RateLimit:
    """Holds up whoever writes, so that a disk that others need as well is written to at this rate.

    Args:
        megabytes_per_second: millions of bytes a second; None for no limit.

    Raises:
        ValueError: it is not positive.
    """

    def __init__(self, megabytes_per_second: float | None) -> None:
        if megabytes_per_second is not None and (
            isinstance(megabytes_per_second, bool)
            or not isinstance(megabytes_per_second, (int, float))
            or not megabytes_per_second > 0
        ):
            raise ValueError(
                "A rate must be a positive number of megabytes a second, or None for no limit. "
                f"Received: {megabytes_per_second!r}."
            )
        self.megabytes_per_second = megabytes_per_second
        self._lock = threading.Lock()
        self._lifted = threading.Event()
        # When what was spent so far has been earned.
        self._earned_at = 0.0

    def spend(self, nbytes: int) -> None:
        """Sleeps for as long as it takes to earn these bytes. Call it for each block, before or after writing it.

        Args:
            nbytes: the size of a block.
        """
        if self.megabytes_per_second is None or self._lifted.is_set():
            return
        with self._lock:
            now = time.monotonic()
            self._earned_at = max(self._earned_at, now - _BURST_SECONDS) + nbytes / (self.megabytes_per_second * 1e6)
            seconds = self._earned_at - now
        if seconds > 0:
            self._lifted.wait(seconds)

    def lift(self) -> None:
        """Ends the limit for good, now: for the last save of a process that is about to be killed."""
        self._lifted.set()
