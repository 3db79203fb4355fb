"""One thread for each process that reads the GPUs' and the CPU's counters now and then, for whoever subscribes."""

from __future__ import annotations

import atexit
import contextlib
import math
import numbers
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras_turbo.devices.cpu import CpuCounters
from keras_turbo.devices.gpus import GpuCounters
from keras_turbo.devices.readers import MachineReaders, Readers

# A driver that has not answered for this long is asked nothing more. Healthy queries take 20 ms at most; opening the
# library takes 1 to 3 s a GPU where no persistence daemon keeps the driver loaded.
_SILENT_SECONDS = 15.0

# Samples that a subscription holds; with more, every second one is dropped. At two a second it is half an hour's worth.
_MOST_SAMPLES = 4096

_SHORTEST_INTERVAL_SECONDS = 0.01

# The system's clock can't be asked to wait for any number of seconds; after this time the thread looks again.
_LONGEST_WAIT_SECONDS = 3600.0

# How long the interpreter's end waits for the thread to close the library.
_EXIT_SECONDS = 0.5


@dataclass(frozen=True)
class Sample:
    """The counters at one moment.

    Attributes:
        time: of the reading, by `time.monotonic()`, in seconds.
        gpus: one for each GPU that this process uses, in the order of their numbers in this process; empty where there
            is none, or none that can be read.
        cpu: what the CPU did since the reading before.
    """

    time: float
    gpus: tuple[GpuCounters, ...]
    cpu: CpuCounters


class Subscription:
    """Samples at a rate of one's own, from `subscribe`.

    Every method returns at once, whatever the driver does. A subscription that nobody holds any longer ends by itself.
    """

    def __init__(self, sampler: Sampler, interval_seconds: float) -> None:
        self._sampler = sampler
        self._interval_seconds = interval_seconds
        self._samples: list[Sample] = []
        self._due = -math.inf
        self._keep_every = 1
        self._left_out = 0
        self._closed = False
        self._last_problem: str | None = None

    @property
    def interval_seconds(self) -> float:
        """Seconds between two samples."""
        return self._interval_seconds

    @property
    def problem(self) -> str | None:
        """Why there are no figures of GPUs, or not all, in one line; None where nothing is known to be wrong.

        It is found out on the sampler's thread, so that it is None right after `subscribe`.
        """
        if not self._closed:
            self._last_problem = self._sampler.problem()
        return self._last_problem

    def take(self) -> list[Sample]:
        """The samples since the last call, oldest first.

        Of more than 4,096 every second one is dropped, and so on: those that are left still cover the whole time.
        """
        return self._sampler.take(self)

    def close(self) -> None:
        """Ends it. What was not taken can still be taken. May be called again."""
        if not self._closed:
            self._last_problem = self._sampler.known_problem()
            self._closed = True
            self._sampler.wake()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, sample: Sample) -> None:
        self._left_out += 1
        if self._left_out < self._keep_every:
            return
        self._left_out = 0
        self._samples.append(sample)
        if len(self._samples) >= _MOST_SAMPLES:
            del self._samples[::2]
            self._keep_every *= 2

    def _take(self) -> list[Sample]:
        taken, self._samples = self._samples, []
        self._keep_every, self._left_out = 1, 0
        return taken

    def _set_next_due(self, sampled: float, now: float) -> None:
        # Samples that were missed are not made up for; the rhythm is kept.
        start = sampled if self._due == -math.inf else self._due
        missed = max(0, math.floor((now - start) / self._interval_seconds))
        self._due = start + (missed + 1) * self._interval_seconds


class _Life:
    """One run of the thread."""

    def __init__(self, with_gpus: bool) -> None:
        self.with_gpus = with_gpus
        self.given_up = False
        self.busy_since: float | None = None
        self.problem: str | None = None
        self.thread: threading.Thread | None = None
        # A SimpleQueue may be put to from a weak reference's callback, at any point of any thread; an Event may not.
        self.wake: queue.SimpleQueue[None] = queue.SimpleQueue()


def _wait_for(wake: queue.SimpleQueue[None], seconds: float) -> None:
    with contextlib.suppress(queue.Empty):
        wake.get(timeout=min(seconds, threading.TIMEOUT_MAX))


class Sampler:
    """The thread, which lives as long as there are subscriptions.

    Args:
        open_readers: makes what is read; called on the thread, with whether GPUs are to be read.
        clock: in seconds.
        wait: waits for a number of seconds, or until something is put into the queue.
        silent_seconds: how long the driver may take to answer before it is asked nothing more.
    """

    def __init__(
        self,
        open_readers: Callable[[bool], Readers] = MachineReaders,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[queue.SimpleQueue[None], float], None] = _wait_for,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        self._open_readers = open_readers
        self._clock = clock
        self._wait = wait
        self._silent_seconds = silent_seconds
        self._hung: threading.Thread | None = None
        self._subscriptions: list[weakref.ref[Subscription]] = []
        self._forget_thread()

    def _forget_thread(self) -> None:
        self._lock = threading.Lock()
        self._life: _Life | None = None

    def subscribe(self, interval_seconds: float) -> Subscription:
        """See the function of this name."""
        subscription = Subscription(self, interval_seconds)
        with self._lock:
            if self._life is not None and not (self._life.thread and self._life.thread.is_alive()):
                self._life = None  # an error ended it
            self._subscriptions.append(weakref.ref(subscription, self.wake))
            self._ensure_thread()
        self.wake()
        return subscription

    def take(self, subscription: Subscription) -> list[Sample]:
        """The samples of a subscription since it was asked last."""
        with self._lock:
            self._ensure_thread()
            return subscription._take()

    def problem(self) -> str | None:
        """Why there are no figures of GPUs, or not all."""
        with self._lock:
            self._ensure_thread()
            return self.known_problem()

    # What closes a subscription takes no lock: the garbage collector may do it, at any point of any thread.

    def known_problem(self) -> str | None:
        """The problem as it is known now."""
        life = self._life
        return None if life is None else life.problem

    def wake(self, _: Any = None) -> None:
        """Lets the thread look again at what it has to do."""
        life = self._life
        if life is not None:
            life.wake.put(None)

    def stop(self, wait_seconds: float) -> None:
        """Ends the thread whatever the subscriptions, and waits a little for it; the next call starts another."""
        with self._lock:
            life, self._life = self._life, None
            if life is not None:
                life.given_up = True
        if life is not None and life.thread is not None:
            life.wake.put(None)
            life.thread.join(wait_seconds)

    def forget_parent(self) -> None:
        """Makes a forked child's copy usable: the parent's thread is not in it, and its lock may be held for good."""
        self._forget_thread()
        self._hung = None
        for reference in self._subscriptions:
            subscription = reference()
            if subscription is not None:
                subscription._take()

    def _open_subscriptions(self) -> list[Subscription]:
        there = [reference() for reference in self._subscriptions]
        return [one for one in there if one is not None and not one._closed]

    def _ensure_thread(self) -> None:
        """Starts the thread where one is needed, and another one in place of one that does not come back."""
        life = self._life
        # Read once: the thread sets it back at any time.
        busy_since = None if life is None else life.busy_since
        if life is not None and busy_since is not None and self._clock() - busy_since > self._silent_seconds:
            life.given_up = True
            self._hung, self._life = life.thread, None
        if self._life is not None or not self._open_subscriptions():
            return
        life = self._life = _Life(with_gpus=self._hung is None or not self._hung.is_alive())
        if not life.with_gpus:
            life.problem = (
                f"The NVIDIA driver has not answered for more than {self._silent_seconds:g} s and is asked nothing "
                "more: figures of GPUs are left out. nvidia-smi hangs too where the driver does."
            )
        life.thread = threading.Thread(target=self._run, args=(life,), name="keras_turbo device sampler", daemon=True)
        try:
            life.thread.start()
        except RuntimeError as error:  # the interpreter is about to end, or the system's limit of threads is reached
            life.problem = f"Counters of devices can't be read: {error}."

    def _run(self, life: _Life) -> None:
        readers = None
        try:
            life.busy_since = self._clock()
            readers = self._open_readers(life.with_gpus)
            life.busy_since = None
            self._note(life, readers.problem)
            while True:
                wait_seconds = self._seconds_to_next(life)
                if wait_seconds is None:
                    break
                if wait_seconds > 0:
                    self._wait(life.wake, min(wait_seconds, _LONGEST_WAIT_SECONDS))
                    continue
                self._deliver(life, self._read(life, readers))
        except Exception as error:
            self._note(life, f"Counters of devices can't be read: {type(error).__name__}: {error}")
            # The life stays, without a thread, so that its problem can be asked and no other thread fails likewise.
        finally:
            life.busy_since = None
            if readers is not None:
                with contextlib.suppress(Exception):
                    readers.close()

    def _read(self, life: _Life, readers: Readers) -> Sample:
        started, gpus, cpu = self._clock(), (), CpuCounters(None, None, None, None)
        try:
            cpu = readers.read_cpu()
            life.busy_since = started
            gpus = readers.read_gpus()
            self._note(life, readers.problem)
        except Exception as error:
            self._note(life, f"Counters of devices can't be read: {type(error).__name__}: {error}")
        finally:
            life.busy_since = None
        return Sample(started, gpus, cpu)

    def _note(self, life: _Life, problem: str | None) -> None:
        if problem is not None:
            life.problem = problem

    def _seconds_to_next(self, life: _Life) -> float | None:
        """How long nothing is due; None where the thread has to end."""
        with self._lock:
            if life.given_up:
                return None
            alive = self._open_subscriptions()
            self._subscriptions = [one for one in self._subscriptions if one() in alive]
            if not alive:
                self._life = None
                return None
            return min(one._due for one in alive) - self._clock()

    def _deliver(self, life: _Life, sample: Sample) -> None:
        with self._lock:
            if life.given_up:
                return
            alive = self._open_subscriptions()
            # One reading serves all that are due about now, so that none covers a moment only.
            soon = sample.time + min((one._interval_seconds for one in alive), default=0.0) / 2
            for one in alive:
                if one._due <= soon:
                    one._add(sample)
                    one._set_next_due(sample.time, self._clock())


_SAMPLER = Sampler()
atexit.register(_SAMPLER.stop, _EXIT_SECONDS)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SAMPLER.forget_parent)


def subscribe(interval_seconds: float = 0.5) -> Subscription:
    """Samples the counters of the GPUs that this process uses, and of the CPU, from now on.

    One thread serves all subscriptions of the process, and ends with the last one. After a fork the child has a thread
    of its own, from its first `take()` on. A sample costs 0.05 to 0.5 ms of CPU time without a GPU (the more the rarer
    they are: caches are cold then), and 0.04 ms of Python a GPU besides what the driver takes.

    Example:

    ```python
    with subscribe(interval_seconds=0.1) as samples:
        model.fit(x, y)
        busy = [sample.gpus[0].utilization_percent for sample in samples.take() if sample.gpus]
    ```

    Args:
        interval_seconds: between two samples, at least 0.01. A GPU's utilization is a mean that the driver renews each
            1/6 to 1 s.

    Returns:
        The subscription; close it.

    Raises:
        ValueError: `interval_seconds` is no number of at least 0.01.
    """
    seconds = math.nan
    # Numbers of NumPy are of this type, too.
    if isinstance(interval_seconds, numbers.Real) and not isinstance(interval_seconds, bool):
        with contextlib.suppress(OverflowError):  # an int of 400 digits
            seconds = float(interval_seconds)
    if not _SHORTEST_INTERVAL_SECONDS <= seconds < math.inf:
        raise ValueError(
            f"`interval_seconds` must be a number of at least {_SHORTEST_INTERVAL_SECONDS}. Received: "
            f"{interval_seconds!r}."
        )
    return _SAMPLER.subscribe(seconds)
