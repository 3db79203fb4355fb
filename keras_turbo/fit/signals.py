"""Signals by which a cluster says that a job must go: SIGTERM, and SIGUSR1 as Slurm sends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# As of a process that SIGTERM ends (128 + 15), by which Slurm, Kubernetes and shells tell it from a crash.
PREEMPTED_EXIT_CODE = 143

_NAMES = ("SIGTERM", "SIGUSR1")


class PreemptionSignals:
    """Handlers that take note of a signal, until they are put back.

    What was there before is kept, and called after the checkpoint is on disk (`call_previous`): it may end the process.

    Args:
        on_signal: called in the main thread, between two of its instructions: it may set something, and no more.
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._previous: dict[int, Any] = {}
        self._received: int | None = None

    def install(self) -> None:
        """Installs them, where Python lets them be installed: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in _NAMES:
            number = getattr(signal, name, None)  # Windows has no SIGUSR1
            # None: not set from Python, so that it can't be put back from there.
            if number is None or number in self._previous or signal.getsignal(number) is None:
                continue
            self._previous[number] = signal.signal(number, self._handle)

    def put_back(self) -> None:
        """Puts back what was there, unless somebody else has replaced it meanwhile. Doing it twice does nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, previous)
        self._previous.clear()

    def pass_on(self) -> None:
        """Sends the signal that came once more, to what handles it now. For who did not end the process for it."""
        number, self._received = self._received, None
        if number is not None:
            signal.raise_signal(number)

    def previous_handler(self) -> Callable[[], Any] | None:
        """Calls the handler that was there for the signal that came; None if none came or none was there."""
        number = self._received
        previous = None if number is None else self._previous.get(number)
        # SIG_DFL and SIG_IGN are numbers that can be called, and must not be.
        if number is None or not callable(previous) or isinstance(previous, signal.Handlers):
            return None
        return lambda: previous(number, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        self._on_signal()
