"""Everything that training changes in a model, kept and put back."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class TrainingState:
    """The state of a model at one moment, on the host.

    Weights, the optimizer's variables, metrics, the seeds of random layers, other `tf.Variable`s that the model holds,
    the states of Python's and NumPy's random numbers, and what `fit` leaves on a model (`history`, `stop_training`).
    The model must be built: a variable that does not exist yet is not in it.

    Args:
        model: a built model.
        others: variables that its steps change, whoever holds them: a loss, a second optimizer, Keras' global seed.
    """

    def __init__(self, model: keras.Model, others: Iterable[tf.Variable] = ()) -> None:
        self._model = model
        variables = {id(variable): variable for variable in [*_variables(model), *others]}
        self._variables = [(variable, variable.numpy()) for variable in variables.values()]
        self._attributes = {name: model.__dict__[name] for name in ("history", "stop_training") if name in vars(model)}
        self._random = (random.getstate(), np.random.get_state())  # noqa: NPY002 (the global state is the legacy one)

    def restore(self) -> None:
        """Puts it back, as often as one likes."""
        for variable, value in self._variables:
            variable.assign(value)
        for name in ("history", "stop_training"):
            vars(self._model).pop(name, None)
        vars(self._model).update(self._attributes)
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])  # noqa: NPY002 (see above)


def _variables(model: keras.Model) -> list[tf.Variable]:
    owners: list[Any] = [*model.variables, *model.metrics_variables]
    if model.optimizer is not None:
        owners += model.optimizer.variables
    found = [owner.value if isinstance(owner, keras.Variable) else owner for owner in owners]
    # A subclassed model may hold variables that Keras does not know of.
    found += [each for each in tf.train.TrackableView(model).descendants() if isinstance(each, tf.Variable)]
    return found
