"""Batches that are taken in Python, as on JAX and PyTorch: counted, and how long the train function waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras

from keras_turbo.data.input_wait import Waits


class Watcher(Protocol):
    """Who wants to know of the executions that are of `fit`."""

    @property
    def awaits_execution(self) -> bool: ...

    def watched(self, execution: Callable[[], Any]) -> Any: ...

    def count(self, waits: Waits) -> None: ...


class WatchedTrainFunction:
    """A train function that tells of each of its executions and their batches.

    Its last argument is what Keras gives it: on PyTorch a list of batches, on JAX an iterator over them.

    Args:
        function: the model's own train function.
        watcher: is told.
    """

    def __init__(self, function: Callable[..., Any], watcher: Watcher) -> None:
        self.function = function
        self.watcher = watcher

    def __call__(self, *args: Any) -> Any:
        if not self.watcher.awaits_execution:
            return self.function(*args)
        *others, data = args
        if isinstance(data, list):
            result = self.watcher.watched(lambda: self.function(*args))
            self.watcher.count(Waits(0.0, len(data), sum(_rows_of(batch) for batch in data)))
            return result
        return self.watcher.watched(lambda: self.function(*others, _TimedIterator(data, self.watcher)))


class _TimedIterator:
    def __init__(self, iterator: Iterator[Any], watcher: Watcher) -> None:
        self._iterator = iterator
        self._watcher = watcher

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        begin = time.perf_counter()
        batch = next(self._iterator)
        self._watcher.count(Waits(time.perf_counter() - begin, 1, _rows_of(batch)))
        return batch


def _rows_of(batch: Any) -> int:
    for component in keras.tree.flatten(batch):
        shape = getattr(component, "shape", ())
        if len(shape) > 0:
            return int(shape[0])
    return 0
