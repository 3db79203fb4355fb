"""Reads the GPUs' and the CPU's counters now and then, behind whoever wants to know.

One thread keeps the rhythm and reads the CPU. It asks a second one for the GPUs and hardly waits for it: a driver that
hangs, or takes seconds to open, holds up that one alone, and samples go on without figures of GPUs.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import numbers
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras_turbo.monitor.counters import GpuCounters
from keras_turbo.monitor.cpu import CpuCounters, CpuReader
from keras_turbo.monitor.nvml import NvmlSession

# A driver that has not answered for this long is said to hang. Healthy queries take 20 ms at most; opening the library
# takes 1 to 3 s a GPU where no persistence daemon keeps the driver loaded.
_SILENT_SECONDS = 15.0
# So long a sample waits for the GPUs' part of it.
_ANSWER_SECONDS = 0.1

# Samples that a subscription holds; with more, every second one is dropped. At two a second it is half an hour's worth.
_MOST_SAMPLES = 4096
_SHORTEST_INTERVAL_SECONDS = 0.01
# How long the interpreter's end waits for the threads to close the library.
_EXIT_SECONDS = 0.5

_open: weakref.WeakSet[Subscription] = weakref.WeakSet()


@dataclass(frozen=True)
class Sample:
    """The counters at one moment.

    Attributes:
        time: of the reading, by `time.monotonic()`, in seconds.
        gpus: one for each GPU that this process uses, in the order of their numbers in this process; empty where there
            is none, none that can be read, or the driver has not answered in time.
        cpu: what the CPU did since the reading before.
    """

    time: float
    gpus: tuple[GpuCounters, ...]
    cpu: CpuCounters


class Subscription:
    """Samples at a rate of one's own, from `subscribe`.

    Every method but `wait_for_first` returns at once, whatever the driver does. A subscription that nobody holds any
    longer ends by itself.
    """

    def __init__(self, interval_seconds: float, open_session: Callable[[], Any] = NvmlSession) -> None:
        self.interval_seconds = interval_seconds
        self._samples: list[Sample] = []
        self._keep_every = 1
        self._left_out = 0
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._gpus = _GpuThread.started(open_session)
        self._thread = threading.Thread(
            target=_sample,
            args=(weakref.ref(self), interval_seconds, self._gpus, self._is_closed),
            name="keras_turbo device sampler",
            daemon=True,
        )
        weakref.finalize(self, self._is_closed.set)
        _open.add(self)
        try:
            _start(self._thread, self._gpus)
        except BaseException:
            # Ctrl-C may come here, too, and a notebook keeps the traceback, and with it this object.
            self.close()
            raise

    @property
    def problem(self) -> str | None:
        """Why there are no figures of GPUs, or not all, in one line; None where nothing is known to be wrong.

        It is found out behind the caller, so that it is None right after `subscribe`; and on a machine without a GPU.
        """
        return self._gpus.problem

    def wait_for_first(self, seconds: float) -> None:
        """Waits for a sample, and where there are GPUs for one with their figures, for at most so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._has_first():
            time.sleep(0.005)

    def _has_first(self) -> bool:
        with self._lock:
            newest = self._samples[-1:]
        return bool(newest and self._gpus.is_opened.is_set() and (newest[0].gpus or not self._gpus.has_gpus))

    def take(self) -> list[Sample]:
        """The samples since the last call, oldest first.

        Of more than 4,096 every second one is dropped, and so on: those that are left still cover the whole time.
        """
        with self._lock:
            taken, self._samples = self._samples, []
            self._keep_every, self._left_out = 1, 0
        return taken

    def close(self) -> None:
        """Ends it. What was not taken can still be taken. May be called again."""
        self._is_closed.set()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, sample: Sample) -> None:
        with self._lock:
            self._left_out += 1
            if self._left_out < self._keep_every:
                return
            self._left_out = 0
            self._samples.append(sample)
            if len(self._samples) >= _MOST_SAMPLES:
                del self._samples[::2]
                self._keep_every *= 2


def subscribe(interval_seconds: float = 0.5) -> Subscription:
    """Samples the counters of the GPUs that this process uses, and of the CPU, from now on.

    A sample costs 0.05 to 0.5 ms of CPU time without a GPU (the more the rarer they are: caches are cold then), and
    0.04 ms of Python a GPU besides what the driver takes.
    """
    seconds = math.nan
    # Numbers of NumPy are of this type, too.
    if isinstance(interval_seconds, numbers.Real) and not isinstance(interval_seconds, bool):
        with contextlib.suppress(OverflowError):  # an int of 400 digits
            seconds = float(interval_seconds)
    if not _SHORTEST_INTERVAL_SECONDS <= seconds <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"`interval_seconds` must be a number of at least {_SHORTEST_INTERVAL_SECONDS}. Received: "
            f"{interval_seconds!r}."
        )
    return Subscription(seconds)


def _sample(
    reference: weakref.ref[Subscription], interval_seconds: float, gpus: _GpuThread, is_closed: threading.Event
) -> None:
    """The thread that keeps the rhythm."""
    cpu = CpuReader()
    due = time.monotonic()
    while not is_closed.wait(max(0.0, due - time.monotonic())):
        gpus.ask()
        now, counters = time.monotonic(), cpu.read()
        answer = gpus.answer(min(_ANSWER_SECONDS, interval_seconds / 2))
        subscription = reference()
        if subscription is None:
            break
        subscription._add(Sample(now, answer, counters))
        del subscription
        # Samples that were missed are not made up for; the rhythm is kept.
        missed = max(0, math.floor((time.monotonic() - due) / interval_seconds))
        due += (missed + 1) * interval_seconds
    gpus.close()


@atexit.register
def _end_all() -> None:
    """Has libraries closed before the interpreter's end cuts their threads off."""
    ending = list(_open)
    for subscription in ending:
        subscription.close()
    for subscription in ending:
        subscription._thread.join(_EXIT_SECONDS)
        if subscription._gpus.thread.ident is not None:
            subscription._gpus.thread.join(_EXIT_SECONDS)


def _start(thread: threading.Thread, gpus: _GpuThread) -> None:
    try:
        thread.start()
    except RuntimeError as error:  # the interpreter is about to end, or the system's limit of threads is reached
        gpus.fails(error)


class _GpuThread:
    """The thread that asks the driver, when it is asked itself.

    Attributes:
        is_opened: whether it is known which GPUs there are.
        has_gpus: whether there are some.
    """

    _last: _GpuThread | None = None

    def __init__(self, open_session: Callable[[], Any]) -> None:
        self.is_opened = threading.Event()
        self.has_gpus = False
        self._problem: str | None = None
        self._open_session = open_session
        self._busy_since: float | None = time.monotonic()
        # What wakes it: True to read, False to end.
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[GpuCounters, ...]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="keras_turbo GPU reader", daemon=True)

    @classmethod
    def started(cls, open_session: Callable[[], Any]) -> _GpuThread:
        """A new one; or one that never asks, where an earlier one waits for the driver still."""
        earlier = cls._last
        made = cls(open_session)
        if earlier is not None and earlier.thread.is_alive() and earlier.is_silent:
            made._problem, made._busy_since = earlier.problem, None
            made.is_opened.set()
            return made
        cls._last = made
        _start(made.thread, made)
        return made

    @property
    def is_silent(self) -> bool:
        """Whether the driver owes an answer for longer than it takes to open it."""
        busy_since = self._busy_since
        return busy_since is not None and time.monotonic() - busy_since > _SILENT_SECONDS

    @property
    def problem(self) -> str | None:
        """Why there are no figures, or not all; None on a machine without a GPU."""
        if self.is_silent:
            return (
                f"The NVIDIA driver has not answered for more than {_SILENT_SECONDS:g} s: figures of GPUs are left "
                "out. nvidia-smi hangs too where the driver does."
            )
        return self._problem

    def fails(self, error: Exception) -> None:
        """Takes note that there will be no figures any more."""
        self._problem = f"Counters of devices can't be read: {type(error).__name__}: {error}."
        self.has_gpus, self._busy_since = False, None
        self.is_opened.set()

    def ask(self) -> None:
        """Asks for a reading, unless one is under way."""
        if self._busy_since is None and self.has_gpus:
            self._busy_since = time.monotonic()
            self._requests.put(True)

    def answer(self, seconds: float) -> tuple[GpuCounters, ...]:
        """The newest reading since the last call, for which it waits so long; empty where there is none."""
        answer: tuple[GpuCounters, ...] = ()
        with contextlib.suppress(queue.Empty):
            answer = self._answers.get(timeout=seconds if self.has_gpus else 0.0)
        with contextlib.suppress(queue.Empty):
            while True:
                answer = self._answers.get_nowait()
        return answer

    def close(self) -> None:
        """Lets it close the library, as soon as the driver answers."""
        self._requests.put(False)

    def _run(self) -> None:
        try:
            with self._open_session() as session:
                self._problem = session.problem if session.may_have_gpus else None
                self.has_gpus = bool(session.gpus)
                self._busy_since = None
                self.is_opened.set()
                while self.has_gpus and self._requests.get():
                    self._answers.put(session.read())
                    self._problem = session.problem or self._problem
                    self._busy_since = None
        except Exception as error:
            self.fails(error)
        finally:
            self.has_gpus, self._busy_since = False, None
            self.is_opened.set()
