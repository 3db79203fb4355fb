"""How long a `fit` waits for its batches, whoever takes them from the iterator."""

from __future__ import annotations

from typing import Any

from keras_turbo.data.input_wait import InputWait, Waits, why_not_timeable


class FitInputWaits:
    """Measures the waits for all iterators that `fit` on TensorFlow gives to its train function.

    Keras' train functions and our graph loop take each batch inside a graph, and are given an iterator that measures
    there. Those of a tuned model that run stacks of batches take them in Python, and measure themselves.

    Attributes:
        why_not: why the waits for an iterator could not be measured, as a clause; None where all could.
        reads_fast_dataset: whether the last iterator was a FastDataset's; None where that can't be seen.
    """

    def __init__(self) -> None:
        self.why_not: str | None = None
        self.reads_fast_dataset: bool | None = None
        self._in_graph: InputWait | None = None
        self._in_python: Any = None
        self._in_python_before = Waits()
        self._in_python_earlier = Waits()
        self._given: Any = None
        self._replacement: Any = None

    def is_new(self, iterator: Any) -> bool:
        """Whether `measured` has something to prepare for this iterator."""
        return iterator is not self._given

    def measured(self, train_function: Any, iterator: Any) -> Any:
        """The iterator to give to the train function in place of this one: over the same batches, or the same."""
        if iterator is not self._given:
            self._given = iterator
            self._replacement = self._prepare(train_function, iterator)
        return self._replacement

    def forget_iterator(self) -> None:
        """Lets go of the iterator, at an epoch's end."""
        self._given = self._replacement = None

    def read(self) -> Waits | None:
        """The sums so far; None where they could not be measured."""
        if self.why_not is not None:
            return None
        waits = Waits() if self._in_graph is None else self._in_graph.read()
        return waits + self._waits_in_python()

    def _prepare(self, train_function: Any, iterator: Any) -> Any:
        takes_stacks_of = getattr(train_function, "takes_stacks_of", None)
        if takes_stacks_of is not None and takes_stacks_of(iterator):
            self.reads_fast_dataset = hasattr(iterator, "stacks") or None
            if train_function is not self._in_python:
                # It has counted since it was made; what it counted before this fit is not of this fit.
                self._in_python_earlier = self._waits_in_python()
                self._in_python = train_function
                self._in_python_before = Waits(*train_function.waits)
            return iterator
        self.reads_fast_dataset = hasattr(iterator, "stacks")
        reason = why_not_timeable(iterator)
        if reason is not None:
            self.why_not = reason
            return iterator
        if self._in_graph is None:
            self._in_graph = InputWait()
        return self._in_graph.timed(iterator)

    def _waits_in_python(self) -> Waits:
        if self._in_python is None:
            return Waits()
        return self._in_python_earlier + (Waits(*self._in_python.waits) - self._in_python_before)
