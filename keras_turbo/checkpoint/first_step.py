"""Creates what Keras creates at a model's first step: the optimizer's variables, and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


def build_metrics(model: keras.Model, batch_spec: Any) -> None:
    """Creates the metrics that were given to `compile`, which Keras does at the first step. Does nothing if they exist.

    Args:
        model: a built, compiled model.
        batch_spec: shapes and dtypes of one batch as `fit` gets it: `dataset.element_spec`, or a batch.

    Raises:
        ValueError: the model isn't built.
    """
    check_built(model)
    # Keras has no public way to create them without a step. `_symbolic_build` computes nothing and changes no variable.
    try:
        build: Callable[..., None] = model._symbolic_build
    except AttributeError as error:
        raise RuntimeError(f"Keras {keras.__version__} does not build metrics as 3.12 to 3.15 do.") from error
    with model.distribute_strategy.scope():
        build(data_batch=batch_spec)


def build_optimizer(model: keras.Model) -> None:
    """Creates the optimizer's variables, which Keras does at the first step. Does nothing if they exist.

    Args:
        model: a built model, compiled or not.

    Raises:
        ValueError: the model isn't built.
    """
    check_built(model)
    # A model that was never compiled has no such attribute.
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def check_built(model: keras.Model) -> None:
    """Refuses a model without variables.

    Raises:
        ValueError: the model isn't built.
    """
    if model.built:
        return
    raise ValueError(
        f"The model {model.name!r} isn't built: its variables don't exist yet, so there is no state to take or to "
        "restore. Call it once on a batch, call `model.build(input_shape)`, or begin it with `keras.Input(shape)`."
    )
