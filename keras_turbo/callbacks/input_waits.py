"""How long a `fit` waits for its batches, whoever takes them from the iterator."""

from __future__ import annotations

import random
from typing import Any

from keras_turbo.data.input_wait import InputWait, Waits, why_not_timeable

# Between two steps of a fit, a measurement in the graph takes 20 to 40 us a batch (in a loop within one graph, 5). That
# is too much for executions shorter than this; of those, a share is measured, once there are enough for a mean.
_SHORT_SECONDS = 0.008
_SHARE_OF_SHORT = 0.2
_MEASURED_AT_FIRST = 200


class FitInputWaits:
    """Measures the waits for all iterators that `fit` on TensorFlow gives to its train function.

    Keras' train functions and our graph loop take each batch inside a graph, and are given an iterator that measures
    there. Those of a tuned model that run stacks of batches take them in Python, and those under `distribute()` from
    iterators that can't be wrapped: these measure themselves.

    Where executions are short, one in five is measured, drawn at random, since waits may come in a rhythm; the sums are
    then those of the measured ones, times how many more there were.

    Attributes:
        why_not: why the waits for an iterator could not be measured, as a clause; None where all could.
        reads_fast_dataset: whether the last iterator was a FastDataset's; None where that can't be seen.
    """

    def __init__(self) -> None:
        self.why_not: str | None = None
        self.reads_fast_dataset: bool | None = None
        self._in_graph: InputWait | None = None
        self._by_itself: Any = None
        self._by_itself_before = Waits()
        self._by_itself_earlier = Waits()
        self._given: Any = None
        self._replacement: Any = None
        # Whether some executions are drawn of which the waits are measured; else all are.
        self._draws = False
        # Of the executions since the last look at the sums, how many were measured in the graph, and how many not.
        self._measured = self._skipped = 0
        # The sums up to that look: as they were read, and with those of the executions that were not measured.
        self._read = Waits()
        self._estimated = (0.0, 0.0, 0.0)
        # Of its own: nobody's random numbers change.
        self._random = random.Random(0)

    def is_new(self, iterator: Any) -> bool:
        """Whether this iterator must be prepared."""
        return iterator is not self._given

    def prepare(self, train_function: Any, iterator: Any) -> None:
        """Gets ready to measure the executions of an iterator, of which `chosen` is asked next."""
        self._given = iterator
        self._replacement = self._prepare(train_function, iterator)

    def chosen(self, iterator: Any, mean_seconds: float, executions: int) -> Any:
        """The iterator to give for one more execution on the iterator that was prepared last.

        Args:
            iterator: that one.
            mean_seconds: how long executions of this epoch took up to now.
            executions: how many there were.

        Returns:
            One that measures, over the same batches, or the same.
        """
        if self._replacement is iterator:
            return iterator
        draws = executions >= _MEASURED_AT_FIRST and mean_seconds < _SHORT_SECONDS
        if draws is not self._draws:
            # Those before count for themselves: the first batch of an epoch, say, is no example of others.
            self._waits_in_graph()
            self._draws = draws
        if draws and self._measured and self._random.random() >= _SHARE_OF_SHORT:
            self._skipped += 1
            return iterator
        self._measured += 1
        return self._replacement

    def forget_iterator(self) -> None:
        """Lets go of the iterator, at an epoch's end."""
        self._given = self._replacement = None

    def read(self) -> Waits | None:
        """The sums so far; None where they could not be measured."""
        if self.why_not is not None:
            return None
        return self._waits_in_graph() + self._waits_by_itself()

    def _prepare(self, train_function: Any, iterator: Any) -> Any:
        measures_waits_of = getattr(train_function, "measures_waits_of", None)
        if measures_waits_of is not None and measures_waits_of(iterator):
            self.reads_fast_dataset = hasattr(iterator, "stacks") or None
            if train_function is not self._by_itself:
                # It has counted since it was made; what it counted before this fit is not of this fit.
                self._by_itself_earlier = self._waits_by_itself()
                self._by_itself = train_function
                self._by_itself_before = Waits(*train_function.waits)
            return iterator
        self.reads_fast_dataset = hasattr(iterator, "stacks")
        reason = why_not_timeable(iterator)
        if reason is not None:
            self.why_not = reason
            return iterator
        if self._in_graph is None:
            self._in_graph = InputWait()
        return self._in_graph.timed(iterator)

    def _waits_in_graph(self) -> Waits:
        if self._in_graph is None:
            return Waits()
        read = self._in_graph.read()
        news = read - self._read
        # The first execution after each look is measured.
        times = 1.0 + self._skipped / self._measured if self._measured else 1.0
        seconds, batches, examples = self._estimated
        self._estimated = (
            seconds + times * news.seconds,
            batches + times * news.batches,
            examples + times * news.examples,
        )
        self._read = read
        self._measured = self._skipped = 0
        return Waits(self._estimated[0], round(self._estimated[1]), round(self._estimated[2]))

    def _waits_by_itself(self) -> Waits:
        if self._by_itself is None:
            return Waits()
        return self._by_itself_earlier + (Waits(*self._by_itself.waits) - self._by_itself_before)
