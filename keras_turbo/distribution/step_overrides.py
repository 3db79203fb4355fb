"""What stands in for parts of Keras while the step of an adopted model is traced, and for nobody else.

Each stand-in asks whether the thread that calls it is in such a step, and otherwise calls what it stands for.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import nn as nn_module  # Keras has no public way to say how these are averaged.
from keras.src.losses import loss as loss_module

from keras_turbo.distribution import keras_internals
from keras_turbo.distribution.batch_statistics import masked_moments
from keras_turbo.distribution.optimizer_updates import (
    Phase,
    apply_accumulating,
    apply_over_replicas,
    current_phase,
)
from keras_turbo.distribution.padding import updated_by_rows_only, without_padding
from keras_turbo.distribution.replica_step import current_step

# Gives the stand-in for the function that it is given.
StandIn = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextlib.contextmanager
def step_overrides(model: keras.Model) -> Iterator[None]:
    """Puts the stand-ins in their places.

    Args:
        model: whose step is traced.

    Raises:
        RuntimeError: this Keras lacks what they stand for.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, stand_in in _stand_ins(model):
            stack.enter_context(_replaced(owner, name, stand_in))
        yield


def _stand_ins(model: keras.Model) -> Iterator[tuple[Any, str, StandIn]]:
    yield loss_module, "reduce_values", _reduce_values
    yield loss_module, "apply_mask", _apply_mask
    yield loss_module, "scale_loss_for_distribution", _scale_loss
    yield loss_module, "unscale_loss_for_distribution", _unscale_loss
    for name, stand_in in (("apply", _apply), ("scale_loss", _scale_loss_for_gradients)):
        for optimizer in _optimizer_classes(name):
            yield optimizer, name, stand_in
    yield keras.optimizers.Optimizer, "_backend_apply_gradients", _backend_apply_gradients
    yield keras.optimizers.Optimizer, "_all_reduce_sum_gradients", _all_reduce_sum_gradients
    yield keras.optimizers.Optimizer, "_overwrite_model_variables_with_average_value", _overwrite_with_averages
    if not _activity_losses_are_means():
        for layer in keras_internals.layers_of(model):
            if layer.activity_regularizer is not None:
                yield layer, "activity_regularizer", _regularize_activity
    yield keras.metrics.Mean, "update_state", _mean_of_numbers
    yield nn_module, "_compute_moments_sync", _moments_of_rows
    yield keras.layers.BatchNormalization, "_moments", _masked_moments
    for metric in keras_internals.metrics_of(model):
        yield metric, "update_state", functools.partial(_update_by_rows, metric)
        yield metric, "result", _noted_result


def _optimizer_classes(method: str) -> list[type]:
    """Keras' optimizer, and all of its kin that have this method of their own."""
    classes: list[type] = [keras.optimizers.Optimizer]
    for one in classes:
        # Those of Keras that are only there to be called by another name come twice.
        classes += [other for other in one.__subclasses__() if other not in classes]
    return [one for one in classes if one is keras.optimizers.Optimizer or method in vars(one)]


class _Places:
    """What is replaced now, how often, and what was there before."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users: dict[tuple[int, str], int] = {}


_places = _Places()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, stand_in: StandIn) -> Iterator[None]:
    """Replaces an attribute; where several steps are traced at a time, the first does, and the last puts it back."""
    key = id(owner), name
    is_instance = isinstance(owner, keras.Metric | keras.Layer)
    with _places.lock:
        if not hasattr(owner, name):
            raise keras_internals.missing(owner, name)
        _places.users[key] = _places.users.get(key, 0) + 1
        if _places.users[key] == 1:
            own = getattr(owner, name)
            function = functools.wraps(own)(stand_in(own))
            # An inherited one is put back by removing ours.
            function.keras_turbo_replaced = (name in vars(owner), own)  # type: ignore[attr-defined]
            (object.__setattr__ if is_instance else setattr)(owner, name, function)
    try:
        yield
    finally:
        with _places.lock:
            _places.users[key] -= 1
            if not _places.users[key]:
                del _places.users[key]
                was_own, own = vars(owner)[name].keras_turbo_replaced
                if was_own:
                    (object.__setattr__ if is_instance else setattr)(owner, name, own)
                else:
                    (object.__delattr__ if is_instance else delattr)(owner, name)


def _reduce_values(own: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_values(values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size") -> Any:
        step = current_step()
        if step is None:
            return own(values, sample_weight, reduction)
        return step.reduced_loss(values, sample_weight, reduction)

    return reduce_values


def _apply_mask(own: Callable[..., Any]) -> Callable[..., Any]:
    def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        step = current_step()
        if step is None or mask is None or reduction not in ("mean", "sum_over_batch_size"):
            return own(sample_weight, mask, dtype, reduction)
        # Keras makes up for what the mask leaves out by this replica's count.
        return own(sample_weight, mask, dtype, "sum") * step.valid_ratio(mask, dtype)

    return apply_mask


def _scale_loss(own: Callable[..., Any]) -> Callable[..., Any]:
    def scale_loss_for_distribution(value: Any) -> Any:
        return own(value) if current_step() is None else value

    return scale_loss_for_distribution


def _unscale_loss(own: Callable[..., Any]) -> Callable[..., Any]:
    def unscale_loss_for_distribution(value: Any) -> Any:
        return own(value) if current_step() is None else value

    return unscale_loss_for_distribution


@functools.cache
def _activity_losses_are_means() -> bool:
    """Whether this Keras divides what an activity regularizer gives by the rows of the batch, as later ones do."""
    with tf.init_scope():
        layer = keras.layers.ActivityRegularization(l1=1.0)
        layer(tf.ones((2, 1)))
        return float(layer.losses[0]) == 1.0


def _regularize_activity(own: Callable[..., Any]) -> Callable[..., Any]:
    def activity_regularizer(output: Any) -> Any:
        step = current_step()
        # A sum over rows, to be treated as a mean over them.
        return own(output) if step is None else step.as_mean(own(output))

    return activity_regularizer


def _mean_of_numbers(own: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        if step is None or tf.convert_to_tensor(values).shape.rank != 0:
            return own(self, values, sample_weight)
        # One number for all rows of this replica, as a loss is, or a metric that a function gives as a mean.
        if sample_weight is None:
            weight = step.share * step.replicas
        else:
            weight = step.of_rows(tf.cast(sample_weight, self.dtype))
        return own(self, step.of_rows(tf.cast(values, self.dtype)), weight)

    return update_state


def _update_by_rows(metric: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(*args: Any, **kwargs: Any) -> Any:
        step = current_step()
        if step is None or not step.may_be_empty or not _has_rows((args, kwargs)):
            return own(*args, **kwargs)
        return updated_by_rows_only(lambda: own(*args, **kwargs), metric.variables, step.is_empty)

    return update_state


def _noted_result(own: Callable[..., Any]) -> Callable[..., Any]:
    def result() -> Any:
        given, step = own(), current_step()
        if step is not None:
            step.note_result(given, own)
        return given

    return result


def _has_rows(arguments: Any) -> bool:
    return any(getattr(getattr(one, "shape", None), "rank", 0) != 0 for one in keras.tree.flatten(arguments))


def _moments_of_rows(own: Callable[..., Any]) -> Callable[..., Any]:
    def compute_moments_sync(x: Any, axes: Any, keepdims: Any) -> Any:
        step = current_step()
        return own(x if step is None or not step.may_be_empty else without_padding(x, step.is_empty), axes, keepdims)

    return compute_moments_sync


def _masked_moments(own: Callable[..., Any]) -> Callable[..., Any]:
    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        step = current_step()
        if step is None or mask is None or not self.synchronized:
            return own(self, inputs, mask)
        return masked_moments(self, inputs, mask, step)

    return moments


def _scale_loss_for_gradients(own: Callable[..., Any]) -> Callable[..., Any]:
    def scale_loss(self: Any, loss: Any) -> Any:
        step = current_step()
        # A subclass' may call that of its base.
        if step is None or step.has_part_of(self):
            return own(self, loss)
        return own(self, step.part_of_loss(loss, self))

    return scale_loss


def _apply(own: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        step = current_step()
        if step is None or current_phase() is not None:
            own(self, grads, trainable_variables)
        else:
            apply_over_replicas(step, self, own, list(grads), trainable_variables)

    return apply


def _backend_apply_gradients(own: Callable[..., Any]) -> Callable[..., Any]:
    def backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> None:
        phase = current_phase()
        if phase is None or phase is Phase.UPDATE:
            own(self, grads, trainable_variables)
        else:
            apply_accumulating(phase, self, grads, trainable_variables)

    return backend_apply_gradients


def _all_reduce_sum_gradients(own: Callable[..., Any]) -> Callable[..., Any]:
    def all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        # They are summed before.
        return own(self, grads_and_vars) if current_phase() is None else list(grads_and_vars)

    return all_reduce_sum_gradients


def _overwrite_with_averages(own: Callable[..., Any]) -> Callable[..., Any]:
    def overwrite_model_variables_with_average_value(self: Any, trainable_variables: Any) -> None:
        if current_phase() is None:
            own(self, trainable_variables)
        else:
            keras_internals.overwrite_with_averages(self, trainable_variables)

    return overwrite_model_variables_with_average_value
