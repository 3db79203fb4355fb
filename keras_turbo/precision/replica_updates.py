"""An optimizer's update in a step whose gradients have been summed over replicas before."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras


@contextlib.contextmanager
def inner_that(inner: Any, update: Callable[..., None] | None) -> Iterator[None]:
    """Lets an optimizer, while a step is traced, leave out its own sum over replicas, and update in another way.

    Keras has no way to tell an optimizer that gradients are summed already. Only this object is changed, for as long as
    the step is traced.

    Args:
        inner: the optimizer.
        update: one of the functions below; None for its own way.

    Raises:
        RuntimeError: this Keras has other private methods.
    """
    for name in ("_all_reduce_sum_gradients", "_backend_apply_gradients"):
        if not hasattr(inner, name):
            raise RuntimeError(
                f"{type(inner).__name__} of Keras {keras.__version__} has no `{name}`, by which gradients are summed "
                "and applied over replicas in Keras 3.12 to 3.15. SafeLossScaleOptimizer can't be used with several "
                "replicas."
            )
    ways: dict[str, Any] = {"_all_reduce_sum_gradients": list}
    if update is not None:
        # Keras asks the condition of accumulation inside the replica, where it can't be.
        ways["_backend_apply_gradients"] = functools.partial(update, inner)
    kept = {name: inner.__dict__[name] for name in ways if name in inner.__dict__}
    inner.__dict__.update(ways)
    try:
        yield
    finally:
        for name in ways:
            del inner.__dict__[name]
        inner.__dict__.update(kept)


def with_accumulated(inner: Any, grads: list[Any], variables: list[Any]) -> None:
    """Updates with the mean of these gradients and those kept before, as Keras does in the last micro-batch of a step.

    Args:
        inner: the optimizer, which counts steps of several micro-batches: Adam corrects its bias by their number.
        grads: of the last micro-batch.
        variables: theirs.
    """
    steps = inner.gradient_accumulation_steps
    mean = [(one + kept.value) / steps for one, kept in zip(grads, _accumulators(inner, variables), strict=True)]
    mean = inner._clip_gradients(mean)
    inner._apply_weight_decay(variables)
    inner._backend_update_step(mean, variables, inner.learning_rate)


def accumulate_gradients(inner: Any, grads: list[Any], variables: list[Any]) -> None:
    """Keeps gradients, and updates nothing.

    Args:
        inner: the optimizer.
        grads: of a micro-batch.
        variables: theirs.
    """
    inner._backend_increment_gradient_accumulators(grads, _accumulators(inner, variables))


def _accumulators(inner: Any, variables: Sequence[Any]) -> list[Any]:
    return [inner._accumulated_gradients[inner._get_variable_index(one)] for one in variables]
