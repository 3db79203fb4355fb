"""What callbacks put between `fit` and the train function of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

# Calls the train function, or what stands before it, with an iterator over batches.
Run = Callable[[Any], Any]
# Runs one execution in place of `run`: may call `run` with this iterator, with another one, or not at all. Gives logs.
Interceptor = Callable[[Run, Any], Any]


class InterceptedTrainFunction:
    """A train function with interceptors before it, in the order in which they were put there.

    Args:
        train_function: what `fit` would call: it takes an iterator over batches and gives logs.
    """

    def __init__(self, train_function: Callable[[Any], Any]) -> None:
        self.train_function = train_function
        self.interceptors: list[Interceptor] = []

    def __call__(self, iterator: Any) -> Any:
        return self._call(0, iterator)

    def _call(self, index: int, iterator: Any) -> Any:
        if index == len(self.interceptors):
            return self.train_function(iterator)
        return self.interceptors[index](lambda other: self._call(index + 1, other), iterator)


def intercept_train_function(model: keras.Model, interceptor: Interceptor, *, first: bool = False) -> None:
    """Puts an interceptor before the train function of a model, until it is removed or the model is compiled again.

    To be called where `fit` has its train function: in `on_train_begin` or later.

    Args:
        model: a model that `fit` runs.
        interceptor: takes `run` and the iterator that `fit` gives, and returns logs. It must raise what `run` raises:
            StopIteration and `tf.errors.OutOfRangeError` end an epoch.
        first: whether it comes before those that are there, so that they see only what it lets through.

    Raises:
        ValueError: the model has no train function yet.
    """
    train_function = model.train_function
    if train_function is None:
        raise ValueError(f"The model {model.name!r} has no train function yet: intercept it in on_train_begin.")
    if not isinstance(train_function, InterceptedTrainFunction):
        train_function = InterceptedTrainFunction(train_function)
        model.train_function = train_function
    if first:
        train_function.interceptors.insert(0, interceptor)
    else:
        train_function.interceptors.append(interceptor)


def own_train_function(model: keras.Model) -> Any:
    """The train function of a model without what stands before it; None where it has none."""
    function: Any = model.train_function
    return function.train_function if isinstance(function, InterceptedTrainFunction) else function


def restore_train_function(model: keras.Model, interceptor: Interceptor) -> None:
    """Takes an interceptor away; with the last one, the model has its own train function again.

    Does nothing where it is not there (the model was compiled again).
    """
    intercepted: Any = model.train_function
    if not isinstance(intercepted, InterceptedTrainFunction):
        return
    intercepted.interceptors[:] = [other for other in intercepted.interceptors if other != interceptor]
    if not intercepted.interceptors:
        model.train_function = intercepted.train_function
