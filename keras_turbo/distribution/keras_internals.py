"""What Keras keeps private and its optimizers need over several replicas, by name, in one place.

Each of these is there in Keras 3.12 to 3.15; in another version, the error says which is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


def updating_optimizer(optimizer: Any) -> Any:
    """The optimizer that changes variables: the one inside of an optimizer that scales the loss, or itself."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def known_variables(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built with."""
    return list(private(optimizer, "_trainable_variables"))


def batches_seen(optimizer: Any) -> tf.Tensor:
    """Batches whose gradients an optimizer was given; `iterations` counts updates."""
    return tf.convert_to_tensor(private(optimizer, "_iterations"))


def handle_finite(optimizer: keras.optimizers.LossScaleOptimizer, gradients: Any, variables: Any) -> None:
    """Divides gradients by the loss scale, applies them, and lets the scale grow."""
    private(optimizer, "_stateful_handle_finite_grads")(gradients, variables)


def handle_overflow(optimizer: keras.optimizers.LossScaleOptimizer) -> None:
    """Lowers the loss scale after gradients that overflowed."""
    private(optimizer, "_stateful_handle_non_finite_grads")()


def accumulators(optimizer: Any, variables: Sequence[Any]) -> list[tf.Variable]:
    """Where an optimizer accumulates the gradients of these variables."""
    kept = private(optimizer, "_accumulated_gradients")
    index_of = private(optimizer, "_get_variable_index")
    return [kept[index_of(one)].value for one in variables]


def update(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Clips gradients and updates variables, as an optimizer that accumulates does in its last batch."""
    gradients = private(optimizer, "_clip_gradients")(gradients)
    private(optimizer, "_apply_weight_decay")(variables)
    private(optimizer, "_backend_update_step")(gradients, variables, optimizer.learning_rate)


def update_averages(optimizer: Any) -> None:
    """Updates the moving averages of weights, and the weights by them, where an optimizer is asked to (`use_ema`)."""
    if not optimizer.use_ema:
        return
    variables = known_variables(optimizer)
    private(optimizer, "_update_model_variables_moving_average")(variables)
    if optimizer.ema_overwrite_frequency:
        tf.cond(
            tf.equal((tf.convert_to_tensor(optimizer.iterations) + 1) % optimizer.ema_overwrite_frequency, 0),
            lambda: overwrite_with_averages(optimizer, variables),
            lambda: None,
        )


def overwrite_with_averages(optimizer: Any, variables: Sequence[Any]) -> None:
    """Gives variables their moving averages, in this replica; Keras' own way exchanges values between replicas."""
    averages = private(optimizer, "_model_variables_moving_average")
    for variable, average in zip(variables, averages, strict=True):
        if average is not None:
            variable.assign(average)


def layers_of(model: keras.Model) -> list[Any]:
    """All layers of a model, those within others too."""
    return list(private(model, "_flatten_layers")())


def metrics_of(model: keras.Model) -> list[Any]:
    """All metrics that a model updates: those of `compile` too, which a model that names its own may leave out."""
    metrics = [*model.metrics, *private(model, "_metrics"), private(model, "_compile_metrics")]
    return list({id(one): one for one in metrics if one is not None}.values())


def knows_its_shapes(model: keras.Model) -> bool:
    """Whether all that Keras builds by the shapes of a batch is built: layers, metrics and losses."""
    compiled = [private(model, "_compile_metrics"), private(model, "_compile_loss")]
    return all(one.built for one in [*layers_of(model), *compiled] if one is not None)


def private(owner: Any, name: str) -> Any:
    """A private attribute of Keras.

    Raises:
        RuntimeError: this Keras has none of that name.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        raise missing(owner, name) from None


def missing(owner: Any, name: str) -> RuntimeError:
    """The error for something that another Keras lacks."""
    described = owner.__name__ if hasattr(owner, "__name__") else type(owner).__name__
    return RuntimeError(
        f"{described} of Keras {keras.__version__} has no `{name}`, which keras_turbo.distribution needs to train over "
        "several replicas. Keras 3.12 to 3.15 have it: install one of them, or train on one device."
    )
