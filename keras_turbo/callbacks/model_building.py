"""Builds a model, and its metrics, for the data that `fit` is about to give it."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_turbo.callbacks.fit_call import FitCall
from keras_turbo.checkpoint.model_state import build_metrics


def build_for(model: keras.Model, call: FitCall | None) -> None:
    """Creates the variables of a model and of its metrics, which Keras does at the first step.

    Args:
        model: a compiled model.
        call: the `fit` that runs.

    Raises:
        ValueError: it is not built, and the data don't tell with which shapes it is to be.
    """
    spec = None if call is None else call.batch_spec
    if spec is None:
        if not model.built:
            raise ValueError(
                f"The model {model.name!r} isn't built, so that no checkpoint can be restored into it, and the data "
                "don't tell its input's shape before they are read. Call it once on a batch before fit, or call "
                "`model.build(input_shape)`."
            )
        return
    with model.distribute_strategy.scope():
        if not model.built:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
            # Keras builds a model that is called with symbolic tensors, and computes nothing.
            model(tf.nest.map_structure(lambda one: keras.KerasTensor(one.shape, one.dtype.name), x))
        build_metrics(model, spec)
