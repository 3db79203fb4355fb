"""Waiting for what nobody holds any more to go."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

import pytest

TIMEOUT_SECONDS = 20


def goes(is_gone: Callable[[], bool]) -> bool:
    """Collects garbage until something is gone, and tells whether it is.

    Once is not always enough: while another thread collects, `gc.collect()` does nothing.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    gc.collect()
    while not is_gone() and time.monotonic() < deadline:
        time.sleep(0.05)
        gc.collect()
    return is_gone()


def keep_no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops TensorFlow's log for a test.

    Where AutoGraph can't convert a function (for which Python 3.11 has a fault of its own), it logs the error; pytest
    keeps what is logged, and the error keeps all frames that it came through.
    """
    monkeypatch.setattr(logging.getLogger("tensorflow"), "disabled", True)
