"""When several workers save by the clock, or leave after a signal: at the same step, on which they agree.

Workers end the same executions, each at its own time, and a signal may reach one of them alone. So now and then, after
the same execution, all tell one another who was asked to leave, and the chief whether its clock says that a save is due
and after how many executions they are to talk again. That is three numbers, about once a second.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import tensorflow as tf

from keras_turbo.distribution.agreement import summed

# About so long after one exchange comes the next one. What is sent takes some milliseconds, also over a slow network.
_BETWEEN_SECONDS = 1.0
# Where executions become much slower all at once, the next exchange is that many of them away at most.
_MOST_EXECUTIONS = 256


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What all workers do now.

    Attributes:
        leave: whether one of them was asked to.
        save: whether a save is due by the chief's clock.
    """

    leave: bool = False
    save: bool = False


class AgreedMoments:
    """The moments at which the workers of a strategy talk. All must call its methods after the same executions.

    Args:
        strategy: of several workers.
        is_chief: whether this one's clock counts.
        clock: gives seconds.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, *, is_chief: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._strategy = strategy
        self._is_chief = is_chief
        self._clock = clock
        self._executions = 1
        self._left = 1
        self._last = clock()

    def after_execution(self, *, asked_to_leave: bool, is_due: bool) -> Agreed:
        """What to do at the end of an execution: nothing, unless it is one after which they talk.

        Args:
            asked_to_leave: whether this worker was.
            is_due: whether a save is, by this worker's clock.
        """
        self._left -= 1
        if self._left > 0:
            return Agreed()
        now = self._clock()
        seconds_each = max(1e-9, now - self._last) / self._executions
        wanted = min(_MOST_EXECUTIONS, max(1, int(_BETWEEN_SECONDS / seconds_each)))
        agreed, self._executions = self._exchange(asked_to_leave, is_due, wanted)
        self._left, self._last = self._executions, self._clock()
        return agreed

    def at_once(self, *, asked_to_leave: bool) -> Agreed:
        """The same at a moment at which they talk in any case, such as the end of an epoch."""
        agreed, _ = self._exchange(asked_to_leave, False, 1)
        return agreed

    def _exchange(self, asked_to_leave: bool, is_due: bool, executions: int) -> tuple[Agreed, int]:
        of_chief = (float(is_due), float(executions)) if self._is_chief else (0.0, 0.0)
        leaving, due, chiefs_executions = summed(self._strategy, [float(asked_to_leave), *of_chief])
        return Agreed(leave=leaving > 0, save=due > 0), max(1, round(chiefs_executions))
