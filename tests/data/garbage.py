"""Waiting for what nobody holds any more to go."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

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
