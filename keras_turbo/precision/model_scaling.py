"""A compiled model's loss scaling made right, and what can't work with several replicas switched off."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_turbo.fit.train_function import forget_functions
from keras_turbo.precision.check import check_precision
from keras_turbo.precision.loss_scaling import SafeLossScaleOptimizer
from keras_turbo.precision.warn_once import warn_once


def settle_compiled(model: keras.Model) -> None:
    """Does for a compiled model what `make_precision_safe` promises beyond its layers.

    Args:
        model: compiled; changed in place.
    """
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not isinstance(optimizer, SafeLossScaleOptimizer):
        # Its variables must be made where the model's are.
        with model.distribute_strategy.scope():
            _set_optimizer(model, SafeLossScaleOptimizer.adopting(optimizer))
    if model.distribute_strategy.num_replicas_in_sync > 1:
        _switch_off_what_replicas_cannot(model)
    check_precision(model)


def _set_optimizer(model: keras.Model, optimizer: SafeLossScaleOptimizer) -> None:
    model.optimizer = optimizer
    # What `compile` was given is what Keras saves and compiles from when the model is loaded. Compiling once more would
    # make the metrics anew.
    settings = getattr(model, "_compile_config", None)
    if settings is not None and "optimizer" in settings.config:
        settings.config["optimizer"] = optimizer
    forget_functions(model, ("train_function",))


def _switch_off_what_replicas_cannot(model: keras.Model) -> None:
    replicas = model.distribute_strategy.num_replicas_in_sync
    versions = f"TensorFlow {tf.__version__} with Keras {keras.__version__}"
    if model.jit_compile:
        model.jit_compile = False
        forget_functions(model)
        warn_once(
            model,
            "jit over replicas",
            f"jit_compile is switched off for model {model.name!r}: {versions} can't compile a step that sums "
            f"gradients over {replicas} replicas with XLA. Compile it with jit_compile=False to be rid of this "
            "warning.",
        )
    if model.steps_per_execution > 1 and _makes_keras_own_loop(model):
        model.steps_per_execution = 1
        forget_functions(model)
        warn_once(
            model,
            "steps over replicas",
            f"steps_per_execution is set to 1 for model {model.name!r}: {versions} can't loop over batches inside a "
            f"function for {replicas} replicas. Compile it with steps_per_execution=1 to be rid of this warning.",
        )


def _makes_keras_own_loop(model: Any) -> bool:
    """Whether the train function is Keras' own; another one may well loop over batches of several replicas."""
    return (
        "make_train_function" not in vars(model) and type(model).make_train_function is keras.Model.make_train_function
    )
