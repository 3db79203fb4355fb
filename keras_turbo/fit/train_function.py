"""What stands between `fit` and the function that trains: who makes the function, and what is wrapped around it.

There are two ways to change how a model trains, and both go through here:

- `replace_makers` gives one model other functions than Keras' for training, testing or predicting. It goes by
  `make_train_function` and the like, which Keras documents for overriding.
- `wrap` puts something around the train function while a `fit` runs, in the order that `Place` states.

A train function of ours may have `steps_of_last_call`, how many batches its last call trained on;
`resume(iterator, steps)`, which is told that so many steps of an epoch are done; and `measures_waits_of(iterator)` with
`waits`, where it knows itself how long it waits for its batches.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MAKERS = {
    "train_function": "make_train_function",
    "test_function": "make_test_function",
    "predict_function": "make_predict_function",
}

# Trains on the batches of an iterator, and gives logs.
Run = Callable[[Any], Any]
# Runs one execution in place of `run`: may call `run` with this iterator, with another one, or not at all. It must
# raise what `run` raises: StopIteration and `tf.errors.OutOfRangeError` end an epoch.
Wrapper = Callable[[Run, Any], Any]


class Place(enum.IntEnum):
    """Where a wrapper stands, from `fit` inwards. Of two in one place, the later one stands further in."""

    # Answers for steps that an earlier run has done: those within see only what is trained.
    RESUME = 0
    # Ends a fit after so many steps or seconds.
    LIMIT = 1
    # Times what is left.
    TIMING = 2


class WrappedTrainFunction:
    """A train function with wrappers around it.

    Args:
        own: what `fit` would call. Its last argument is an iterator over batches, or on PyTorch a list of them.
        is_called_by_fit: tells whether a call is one of `fit` itself. Callbacks may train on batches of their own
            (`train_on_batch`), of which no wrapper knows.
        outermost: the wrapper around all others.

    Attributes:
        calls: how often its own function was called through the wrappers.
    """

    def __init__(self, own: Callable[..., Any], is_called_by_fit: Callable[[], bool], outermost: Wrapper) -> None:
        self.own = own
        self.calls = 0
        self._is_called_by_fit = is_called_by_fit
        self._outermost = outermost
        self._wrappers: list[tuple[Place, Wrapper]] = []

    def __call__(self, *args: Any) -> Any:
        if not self._is_called_by_fit():
            return self.own(*args)
        *others, data = args

        def call(index: int, data: Any) -> Any:
            if index < len(self._wrappers):
                return self._wrappers[index][1](lambda other: call(index + 1, other), data)
            self.calls += 1
            return self.own(*others, data)

        return self._outermost(lambda other: call(0, other), data)

    def add(self, place: Place, wrapper: Wrapper) -> None:
        """Puts a wrapper in its place, if it is not there."""
        if all(one != wrapper for _, one in self._wrappers):
            self._wrappers.append((place, wrapper))
            self._wrappers.sort(key=lambda one: one[0])


def own_train_function(model: Any) -> Any:
    """The train function of a model without what is wrapped around it; None where it has none."""
    function = model.train_function
    return function.own if isinstance(function, WrappedTrainFunction) else function


def unwrap(model: Any) -> None:
    """Gives a model its own train function. Does nothing where nothing is around it (it was compiled again)."""
    if isinstance(model.train_function, WrappedTrainFunction):
        model.train_function = model.train_function.own


def replace_makers(model: Any, makers: dict[str, Callable[..., Any]]) -> None:
    """Lets other functions make what a model trains, tests or predicts with. What it has now is made anew.

    Args:
        model: any model. Nothing of it is saved with the model.
        makers: "make_train_function" and the like, to what is called in its place: takes `force`, and sets
            `model.train_function` and the like. Also other methods that take part in a step.
    """
    for name, make in makers.items():
        # Past Keras' __setattr__, which would keep account of it as a part of the model.
        object.__setattr__(model, name, make)
    forget_functions(model)


def restore_makers(model: Any, names: Iterable[str] = tuple(MAKERS.values())) -> None:
    """Lets the model's class make its functions again."""
    for name in names:
        model.__dict__.pop(name, None)
    forget_functions(model)


def forget_functions(model: Any, attributes: Iterable[str] = tuple(MAKERS)) -> None:
    """Has functions made anew when they are needed: None is how Keras says that one is out of date."""
    for attribute in attributes:
        setattr(model, attribute, None)


@contextlib.contextmanager
def functions_set_aside(model: Any) -> Iterator[None]:
    """A context without the model's functions, which has them again afterwards, with all that is traced for them.

    Where the model was compiled meanwhile, they are out of date, and made anew.
    """
    functions = {name: getattr(model, name) for name in MAKERS}
    optimizer = _optimizer_of(model)
    forget_functions(model)
    try:
        yield
    finally:
        for name, function in functions.items():
            # They hold the optimizer that they were traced with.
            setattr(model, name, function if optimizer is _optimizer_of(model) else None)


def _optimizer_of(model: Any) -> Any:
    return model.optimizer if model.compiled else None
