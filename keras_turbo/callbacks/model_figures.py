"""Single numbers of a model and of its logs, on the host."""

from __future__ import annotations

import contextlib
from typing import Any

import keras

from keras_turbo.precision.loss_scaling import number


def optimizer_step(model: keras.Model, *, otherwise: int) -> int:
    """The optimizer's iterations: updates of the weights, fewer than batches where some were skipped or accumulated.

    Args:
        model: the model.
        otherwise: what to count by where the model has no optimizer of Keras.
    """
    return otherwise if model.optimizer is None else int(number(model.optimizer.iterations))


def loss_scale(model: keras.Model) -> float | None:
    """What the loss is multiplied by under mixed_float16; None where it is not scaled."""
    scale = getattr(model.optimizer, "dynamic_scale", None)
    return None if scale is None else float(number(scale))


def numbers(logs: Any) -> dict[str, float]:
    """The logs that are single numbers, on the host."""
    found = {}
    for name, value in logs.items() if isinstance(logs, dict) else ():
        with contextlib.suppress(TypeError, ValueError):
            found[name] = float(value)
    return found
