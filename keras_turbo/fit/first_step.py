"""Creates, before the first step of `fit`, what the first step creates: variables of models, optimizers and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.fit import keras_internals
from keras_turbo.fit.steps import optimizers_of
from keras_turbo.fit.training_state import NotBuiltError, build_optimizer, find_state


def trains_as_keras_does(model: Any) -> bool:
    """Whether a step is Keras' own: it calls the model and updates its weights by `model.optimizer`."""
    return type(model).train_step is keras.Model.train_step and "train_step" not in vars(model)


def build_metrics(model: keras.Model, batch_spec: Any) -> bool:
    """Creates the model, if it is not built, and its metrics. Nothing is computed."""
    if batch_spec is None:
        return False
    try:
        build_layers(model, batch_spec)
        keras_internals.build_metrics(model, batch_spec)
    except Exception:
        # Somebody's loss or metric may not like symbolic tensors. `fit` gives it none, and builds it at the first step.
        return False
    return True


def build_layers(model: keras.Model, batch_spec: Any) -> None:
    """Creates the variables of a model that is called: it is, with symbolic tensors. Does nothing if it is built."""
    if not model.built:
        with model.distribute_strategy.scope():
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch_spec)
            model(tf.nest.map_structure(lambda one: keras.KerasTensor(one.shape, one.dtype.name), x))


def build_by_tracing(model: Any, batch_spec: Any) -> None:
    """Creates what a train step of a model's own creates: it is traced for a batch, and not run.

    Meanwhile its optimizers do nothing but take note of the variables that they are given. Then each is built for them,
    where variables can be created: outside of all functions, in the scope of the model's strategy.
    """
    given: dict[Any, list[Any]] = {}

    def noting(optimizer: Any) -> Any:
        def apply(grads: Any, trainable_variables: Any = None) -> None:  # noqa: ARG001 (by the names that Keras gives)
            given.setdefault(optimizer, list(trainable_variables or ()))

        return apply

    def step(data: Any) -> Any:
        return model.distribute_strategy.run(model.train_step, args=(data,))

    optimizers = optimizers_of(model)
    try:
        for optimizer in optimizers:
            # Past Keras' __setattr__, which would keep account of it.
            optimizer.__dict__["apply"] = noting(optimizer)
        function: Any = tf.function(step, autograph=False)
        function.get_concrete_function(batch_spec)
    finally:
        for optimizer in optimizers:
            vars(optimizer).pop("apply", None)
    with model.distribute_strategy.scope():
        for optimizer, variables in given.items():
            if not optimizer.built:
                optimizer.build(variables)


def build_for(model: Any, batch_spec: Any, paths: Iterable[str]) -> None:
    """Creates what a state with these paths needs, as far as it does not exist.

    In the ways that Keras has where it trains the model, else by tracing the model's own step: the layers of models
    without `call`, and any number of optimizers.
    """
    paths = set(paths)
    if _has(model, paths):
        return
    reason = "the data don't tell the shapes of a batch before one is read"
    if batch_spec is not None:
        try:
            if trains_as_keras_does(model):
                build_layers(model, batch_spec)
            else:
                build_by_tracing(model, batch_spec)
        except Exception as error:  # whatever a user's model raises
            reason = f"its train step can't be traced before the first batch ({type(error).__name__}: {error})"
    if model.built and trains_as_keras_does(model):
        build_optimizer(model)
    if not _has(model, paths) and not (model.built and trains_as_keras_does(model)):
        raise ValueError(
            f"The model {model.name!r} isn't built, so that no checkpoint can be restored into it: {reason}. Create "
            "its variables before fit: call each model in it once on a batch, or `model.build(input_shape)`, and each "
            "optimizer's `build(variables)`."
        )


def _has(model: Any, paths: set[str]) -> bool:
    try:
        return paths <= find_state(model).weights.keys()
    except NotBuiltError:
        return False
