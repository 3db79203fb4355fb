"""Median and tail of any number of durations, in bounded memory."""

from __future__ import annotations

import random

import numpy as np

# The 95th percentile of so many durations drawn from all is off by less than half a percentile, as a rule.
_MOST_KEPT = 4096


class Reservoir:
    """Values of which a random selection is kept, each with the same chance.

    Args:
        most: how many are kept at most; as long as there are no more, all of them.
    """

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._most = most
        self._kept: list[float] = []
        self._seen = 0
        # Of its own: nobody's random numbers change.
        self._random = random.Random(0)

    def add(self, value: float) -> None:
        """Takes a value."""
        self._seen += 1
        if self._seen <= self._most:
            self._kept.append(value)
            return
        place = int(self._random.random() * self._seen)
        if place < self._most:
            self._kept[place] = value

    def percentile(self, percent: float) -> float | None:
        """The value that so many per cent do not exceed; None where there is none."""
        return float(np.percentile(self._kept, percent)) if self._kept else None

    def __len__(self) -> int:
        """How many values there were."""
        return self._seen
