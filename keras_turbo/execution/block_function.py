"""What `fit` calls in place of Keras' train function, execution by execution."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.execution.programs import GraphLoop, XlaLoop
from keras_turbo.execution.retracing import RetraceWatch
from keras_turbo.execution.stacks import StackIterator, why_not_stackable


class BlockFunction:
    """What `fit` calls in place of Keras' train function: runs the steps of one execution.

    Attributes:
        steps_of_last_call: how many steps the last execution had.
    """

    def __init__(self, model: keras.Model, loop: GraphLoop | XlaLoop, watch: RetraceWatch, one_step: Callable) -> None:
        self._model = model
        self._loop = loop
        self._watch = watch
        self._one_step = one_step
        self._steps_asked: int | None = None
        self._steps_done = 0
        self._iterator: Any = None
        self.steps_of_last_call = 0

    def measures_waits_of(self, iterator: Any) -> bool:
        """Whether it reads this iterator in stacks, in Python, and so knows itself how long it waits; see `waits`."""
        return isinstance(self._loop, XlaLoop) and why_not_stackable(iterator.element_spec) is None

    @property
    def waits(self) -> tuple[float, int, int]:
        """Of all stacks so far: the seconds that they were waited for, their batches and their examples."""
        if isinstance(self._loop, XlaLoop):
            return self._loop.waited_seconds, self._loop.batches, self._loop.examples
        return 0.0, 0, 0

    @contextlib.contextmanager
    def asked_for(self, steps: int | None) -> Iterator[None]:
        """A context in which each epoch has so many steps; None: as many as there are batches."""
        before = self._steps_asked, self._steps_done, self._iterator
        self._steps_asked, self._steps_done, self._iterator = steps, 0, None
        try:
            yield
        finally:
            self._steps_asked, self._steps_done, self._iterator = before
            self._loop.forget()
            self._watch.called_with(None)

    def __call__(self, iterator: Any) -> Any:
        """Runs one execution; raises StopIteration where no batch is left."""
        most = self._model.steps_per_execution
        if not isinstance(iterator, (tf.data.Iterator, StackIterator)):
            # What train_on_batch gives.
            outputs = None
            for batch in itertools.islice(iterator, most):
                outputs = self._one_step(batch)
            self.steps_of_last_call = most
            return outputs
        if iterator is not self._iterator:
            self._begin(iterator)
        if self._steps_asked is not None:
            # Keras counts executions, and would go past the epoch's last step where it is no multiple.
            most = min(most, self._steps_asked - self._steps_done)
        loop: Any = self._loop  # A graph loop never meets stacks.
        done, outputs = loop(iterator, most)
        if done == 0:
            raise StopIteration
        self.steps_of_last_call = done
        self._steps_done += done
        if self._steps_done == self._steps_asked:
            self._steps_done = 0
        return outputs

    def resume(self, iterator: Any, steps_done: int) -> None:
        """Takes note that an epoch begins in its middle: so many of its steps are done, and the iterator has the rest.

        Args:
            iterator: what the next call will be given.
            steps_done: steps of this epoch that need not be run.
        """
        self._begin(iterator)
        self._steps_done = steps_done if self._steps_asked is None else steps_done % self._steps_asked

    def _begin(self, iterator: Any) -> None:
        self._iterator, self._steps_done = iterator, 0
        # What a stack iterator declares is all that its steps are traced for.
        self._watch.called_with(iterator if isinstance(iterator, tf.data.Iterator) else None)
