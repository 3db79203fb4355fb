"""When to save: at each epoch's end, after so many optimizer steps, or after so much time."""

from __future__ import annotations

import numbers
import re
import time
from collections.abc import Callable

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds?|m|min|minutes?|h|hours?)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class SaveSchedule:
    """The rhythm of saves.

    Args:
        save_freq: "epoch"; a number of optimizer steps; or a duration such as "30s", "10min", "2h".

    Attributes:
        steps: every so many optimizer steps, None if it goes by something else.
        seconds: every so many seconds, None if it goes by something else.

    Raises:
        TypeError, ValueError: it is none of these.
    """

    def __init__(self, save_freq: str | int) -> None:
        self.steps: int | None = None
        self.seconds: float | None = None
        if isinstance(save_freq, bool) or not isinstance(save_freq, (str, numbers.Integral)):
            raise TypeError(_refusal(save_freq))
        if isinstance(save_freq, numbers.Integral):  # NumPy's, too
            if save_freq < 1:
                raise ValueError(_refusal(save_freq))
            self.steps = int(save_freq)
        elif save_freq != "epoch":
            match = _DURATION.fullmatch(save_freq.strip())
            if match is None or float(match[1]) == 0:
                raise ValueError(_refusal(save_freq))
            self.seconds = float(match[1]) * _SECONDS[match[2][0]]
        self._step = 0
        self._batches_to_look = 0
        self._time = 0.0

    def begin(self, step: int) -> None:
        """Starts to count from an optimizer step, and from now."""
        self._step = step
        self._batches_to_look = 0
        # Clocks are set back; this one is not.
        self._time = time.monotonic()

    @property
    def is_every_epoch(self) -> bool:
        """Whether it goes by epochs."""
        return self.steps is None and self.seconds is None

    def is_due(self, batches: int, step: Callable[[], int]) -> bool:
        """Whether a save is due at the end of an execution. To be asked at each.

        Args:
            batches: how many it had.
            step: tells the optimizer's step; asked only when it may matter, since it must be fetched from the device.
        """
        if self.seconds is not None:
            return time.monotonic() - self._time >= self.seconds
        if self.steps is None:
            return False
        # No batch makes more than one step.
        self._batches_to_look -= batches
        if self._batches_to_look > 0:
            return False
        before, self._step = self._step, step()
        self._batches_to_look = self.steps - self._step % self.steps
        # An execution may go past a multiple, or past several.
        return self._step // self.steps > before // self.steps

    def saved(self) -> None:
        """Counts time from here on."""
        self._time = time.monotonic()


def _refusal(save_freq: object) -> str:
    return (
        '`save_freq` must be "epoch", a positive number of optimizer steps, or a duration such as "30s", "10min" or '
        f'"2h". Received: {save_freq!r}.'
    )
