"""What is overridden in Keras, for models that are made under one of our strategies and for nobody else.

Two things, and both as narrow as they can be:

- `install` makes models adopt our train and test functions when they are made. Only `keras.Model.__init__` is wrapped,
  only inside the context, and only for models of that strategy. An adopted model has `make_train_function` and the
  like, which Keras documents for overriding, as attributes of its own; so it keeps working when the context has been
  left, and all others never change. A class that overrides one of them keeps its own.
- While the step of an adopted model is traced, `step_overrides.py` stands in for what in Keras averages losses and
  applies gradients. Each stand-in asks whether the thread that calls it is in such a step, and otherwise calls what it
  stands for; when the step is traced, it is gone.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.distribution import keras_internals
from keras_turbo.distribution.distributed_data import positions_kept
from keras_turbo.distribution.seeds import share_random_state
from keras_turbo.distribution.train_functions import StepFunction, predict_step, settle
from keras_turbo.fit.first_step import build_by_tracing, trains_as_keras_does
from keras_turbo.fit.steps import optimizers_of
from keras_turbo.fit.train_function import replace_makers

_lock = threading.RLock()


@contextlib.contextmanager
def install(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Lets models that are made within, under the strategy, train right with a stock `fit`, also after it is left.

    With several workers, all of them have to enter it: they get the chief's random state.

    Args:
        strategy: one of `keras_turbo.distribution.strategies`.
    """
    share_random_state(strategy)
    with _lock:
        own = keras.Model.__init__

        @functools.wraps(own)
        def init(self: keras.Model, *args: Any, **kwargs: Any) -> None:
            own(self, *args, **kwargs)
            if self.distribute_strategy is strategy:
                adopt(self)

        keras.Model.__init__ = init
    try:
        yield
    finally:
        with _lock:
            keras.Model.__init__ = own


def adopt(model: keras.Model) -> None:
    """Gives one model our train, test and predict functions. `install` does so for models that are made within.

    Args:
        model: made under one of `keras_turbo.distribution.strategies`.
    """
    kept = [name for name in _MAKERS if getattr(type(model), name) is getattr(keras.Model, name)]
    makers = {name: functools.partial(_MAKERS[name], model) for name in kept}
    replace_makers(model, {**makers, "predict_step": functools.partial(_predict_step, model)})


def _make_train_function(model: keras.Model, force: bool = False) -> Any:
    if model.train_function is None or force:
        settle(model)
        model.train_function = StepFunction(model, model.train_step, is_training=True)
    return model.train_function


def _make_test_function(model: keras.Model, force: bool = False) -> Any:
    if model.test_function is None or force:
        settle(model)
        model.test_function = StepFunction(model, model.test_step, is_training=False)
    return model.test_function


def _make_predict_function(model: keras.Model, force: bool = False) -> Any:
    settle(model)
    return type(model).make_predict_function(model, force)


def _predict_step(model: keras.Model, data: Any) -> Any:
    return predict_step(model, functools.partial(type(model).predict_step, model), data)


def _symbolic_build(model: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
    if keras_internals.knows_its_shapes(model):
        # Else each validation would begin an epoch of its data more, for its first batch.
        iterator = None

    if iterator is not None:
        # Keras would average a batch over replicas to learn its shapes, which it can't for a nested one of several
        # workers, nor where the parts are uneven.
        local_results = model.distribute_strategy.experimental_local_results
        # On one device it reads none, so the epoch that begins here must begin again.
        with positions_kept(keras_internals.private(iterator, "_distributed_dataset")):
            try:
                _, _, batches = next(iter(iterator))
                batch = next(batches)
            except StopIteration:
                raise ValueError(
                    f"The model {model.name!r} was given data without a batch: its shapes can't be known, and there is "
                    "nothing to train or evaluate on. Give it data with at least one batch."
                ) from None
        data_batch = keras.tree.map_structure(lambda one: local_results(one)[0], batch)
    own_step = not trains_as_keras_does(model) and data_batch is not None
    is_called = type(model).call is not keras.Model.call
    if own_step and not is_called:
        _build_by_own_step(model, data_batch)
        # Keras would call it, which nobody can.
        model.built = True
    keras_internals.private(type(model), "_maybe_symbolic_build")(model, data_batch=data_batch)
    if own_step and is_called and not all(optimizer.built for optimizer in optimizers_of(model)):
        _build_by_own_step(model, data_batch)


def _build_by_own_step(model: keras.Model, data_batch: Any) -> None:
    """Variables that a step of the model's own creates can't be created in a loop over replicas."""
    spec = keras.tree.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), data_batch)
    build_by_tracing(model, spec)


_MAKERS: dict[str, Callable[..., Any]] = {
    "make_train_function": _make_train_function,
    "make_test_function": _make_test_function,
    "make_predict_function": _make_predict_function,
    "_maybe_symbolic_build": _symbolic_build,
}
