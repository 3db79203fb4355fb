"""Builds a model, and its metrics, for the data that `fit` is about to give it."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_turbo.callbacks.fit_call import FitCall
from keras_turbo.checkpoint.first_step import build_metrics


def build_for(model: keras.Model, call: FitCall | None) -> None:
    """Creates the variables of a model that is not built, which Keras does at the first step.

    Args:
        model: a compiled model.
        call: the `fit` that runs.

    Raises:
        ValueError: it is not built, and the data don't tell with which shapes it is to be.
    """
    if model.built:
        return
    spec = None if call is None else call.batch_spec
    if spec is None:
        raise ValueError(
            f"The model {model.name!r} isn't built, so that no checkpoint can be restored into it, and the data don't "
            "tell its input's shape before they are read. Call it once on a batch before fit, or call "
            "`model.build(input_shape)`."
        )
    with model.distribute_strategy.scope():
        x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
        # Keras builds a model that is called with symbolic tensors, and computes nothing.
        model(tf.nest.map_structure(lambda one: keras.KerasTensor(one.shape, one.dtype.name), x))


def build_metrics_for(model: keras.Model, call: FitCall | None) -> bool:
    """Creates the metrics of a model, if the data tell for which shapes.

    Args:
        model: a compiled model.
        call: the `fit` that runs.

    Returns:
        Whether they exist.
    """
    spec = None if call is None else call.batch_spec
    if spec is None:
        return False
    try:
        build_for(model, call)
        with model.distribute_strategy.scope():
            build_metrics(model, spec)
    except Exception:
        # Somebody's loss or metric may not like symbolic tensors. `fit` gives it none, and builds it at the first step.
        return False
    return True
