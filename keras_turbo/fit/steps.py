"""The steps that a model has trained, by which checkpoints and figures are counted. On every backend of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def optimizers_of(model: Any) -> list[keras.optimizers.Optimizer]:
    """The optimizers that a model holds itself: as attributes, or in lists and dicts; not those of models in it."""
    found: dict[int, Any] = {}
    waiting = list(vars(model).values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, keras.optimizers.Optimizer):
            found[id(value)] = value
        elif isinstance(value, (list, tuple, set)):
            waiting += list(value)
        elif isinstance(value, dict):
            waiting += list(value.values())
    return list(found.values())


def training_steps(model: Any, *, batches: int) -> int:
    """How many steps a model has trained, by which checkpoints and figures are counted.

    A model with one optimizer counts its updates of the weights: fewer than batches where some were skipped or
    accumulated. One with several, of which each may train at another pace, and one without any count batches.
    """
    optimizers = optimizers_of(model)
    return int(number(optimizers[0].iterations)) if len(optimizers) == 1 else batches


def value_of(variable: Any) -> np.ndarray:
    """The value of a variable or tensor of any backend on the host, also of one that is on several replicas."""
    value: Any = keras.ops.convert_to_tensor(variable)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        # Read first: NumPy 2 warns of a variable that is to become an array by itself.
        value = tf.convert_to_tensor(value)
    return np.asarray(keras.ops.convert_to_numpy(value))


def number(variable: Any) -> Any:
    """The value of a scalar variable or tensor, as a number of Python."""
    return value_of(variable).item()
