"""Questions to drivers, name servers and network disks, which may never answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def answer_within(seconds: float, ask: Callable[[], T], subject: str) -> T:
    """Calls a function on a thread of its own, and does not wait for it any longer than that."""
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((True, ask()))
        except BaseException as error:  # SystemExit, too: otherwise it would look as if it hung
            answers.put((False, error))

    thread = threading.Thread(target=run, name=f"keras_turbo asks {subject}", daemon=True)
    thread.start()
    try:
        answered, value = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"{subject} did not answer within {seconds:g} s.") from None
    thread.join()
    if answered:
        return value
    raise value
