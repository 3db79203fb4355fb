"""An optimizer's step over several replicas: gradients are summed first, then checked, clipped and applied.

Keras clips and checks the gradients of each replica before it sums them, and asks conditions (is this the last of the
accumulated batches? has a gradient overflowed?) inside of a replica, where TensorFlow allows no exchange between
replicas in a branch. Here gradients are summed before all else, and conditions are asked outside of the replicas, of
what is equal in all of them. What an optimizer does within a branch is its own code.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.distribution import keras_internals
from keras_turbo.distribution.gradients import reduce_gradients
from keras_turbo.distribution.replica_step import ReplicaStep

# An optimizer's own `apply`, unbound: it takes the optimizer, gradients and variables.
Apply = Callable[[Any, Sequence[Any], Sequence[Any] | None], None]


class Phase(enum.Enum):
    """What an optimizer is to do with the gradients that it is given within a step."""

    UPDATE = "update with gradients that are summed"
    ACCUMULATE = "keep this replica's gradients"
    UPDATE_ACCUMULATED = "sum the kept gradients and these, and update"


class _Task(threading.local):
    """What the optimizer of this thread is to do. TensorFlow runs each replica in a thread of its own."""

    phase: Phase | None = None


_task = _Task()


def current_phase() -> Phase | None:
    """What this thread's optimizer is to do; None where none has been told."""
    return _task.phase


def apply_over_replicas(
    step: ReplicaStep, optimizer: Any, own_apply: Apply, gradients: Sequence[Any], variables: Sequence[Any] | None
) -> None:
    """Does what the optimizer's `apply` does, for the mean gradients over all replicas. To be called in a replica.

    Args:
        step: of this replica.
        optimizer: of Keras, one that scales the loss or not.
        own_apply: what its class does.
        gradients: this replica's.
        variables: theirs; None for those that the optimizer was built with.
    """
    variables = keras_internals.known_variables(optimizer) if variables is None else list(variables)
    if not optimizer.built:
        optimizer.build(variables)
    gradients = [step.part_of_gradient(one, optimizer) for one in gradients]
    updated = keras_internals.updating_optimizer(optimizer)
    accumulates = bool(updated.gradient_accumulation_steps)
    scales_loss = updated is not optimizer
    if not accumulates:
        gradients = reduce_gradients(gradients, one_of_several=step.one_of_several)
    if not accumulates and not scales_loss:
        with _told(Phase.UPDATE):
            own_apply(optimizer, gradients, variables)
        return
    finite = _all_finite(optimizer, gradients, summed=not accumulates) if scales_loss else None
    update = _Update(optimizer, updated, own_apply, variables)
    tf.distribute.get_replica_context().merge_call(update.across_replicas, args=(gradients, finite))


class _Update:
    """What follows when all replicas have got to their optimizer.

    Args:
        optimizer: given gradients.
        updated: which changes variables: the same, or the one inside an optimizer that scales the loss.
        own_apply: what the class of `optimizer` does.
        variables: of the gradients.
    """

    def __init__(self, optimizer: Any, updated: Any, own_apply: Apply, variables: list[Any]) -> None:
        self._optimizer = optimizer
        self._updated = updated
        self._own_apply = own_apply
        self._variables = variables

    def across_replicas(self, strategy: tf.distribute.Strategy, gradients: Any, finite: Any) -> None:
        """Asks the conditions and runs the branches in each replica.

        Args:
            strategy: of the replicas.
            gradients: of each replica.
            finite: whether all gradients of all replicas are finite, of each replica; None where nobody asks.
        """
        if finite is None:
            self._good(strategy, gradients)
            return
        all_finite = strategy.experimental_local_results(finite)[0]
        tf.cond(
            all_finite,
            lambda: self._good(strategy, gradients),
            lambda: _on_each(strategy, Phase.UPDATE, lambda: keras_internals.handle_overflow(self._optimizer)),
        )

    def _good(self, strategy: tf.distribute.Strategy, gradients: Any) -> None:
        steps = self._updated.gradient_accumulation_steps
        if not steps:
            self._apply(strategy, Phase.UPDATE, gradients)
            return
        is_last = tf.equal((keras_internals.batches_seen(self._updated) + 1) % steps, 0)
        tf.cond(
            is_last,
            lambda: self._apply(strategy, Phase.UPDATE_ACCUMULATED, gradients),
            lambda: self._apply(strategy, Phase.ACCUMULATE, gradients),
        )

    def _apply(self, strategy: tf.distribute.Strategy, phase: Phase, gradients: Any) -> None:
        def in_replica(gradients: Any) -> None:
            if self._updated is self._optimizer:
                self._own_apply(self._optimizer, gradients, self._variables)
            else:
                # Which divides the gradients by the scale and calls the other one's `apply`.
                keras_internals.handle_finite(self._optimizer, gradients, self._variables)

        _on_each(strategy, phase, in_replica, gradients)


def apply_accumulating(phase: Phase, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Stands for what `apply` of an optimizer that accumulates calls, in a branch that is in this phase.

    Args:
        phase: one of the two of an optimizer that accumulates.
        optimizer: of Keras.
        gradients: this replica's, none of them None.
        variables: theirs.
    """
    accumulators = keras_internals.accumulators(optimizer, variables)
    if phase is Phase.ACCUMULATE:
        for gradient, accumulator in zip(gradients, accumulators, strict=True):
            accumulator.assign_add(tf.convert_to_tensor(gradient))
    else:
        steps = optimizer.gradient_accumulation_steps
        means = [
            (tf.convert_to_tensor(gradient) + kept) / steps
            for gradient, kept in zip(gradients, accumulators, strict=True)
        ]
        # Dense, and so of one size in all steps.
        keras_internals.update(optimizer, reduce_gradients(means, one_of_several=False), variables)
        for accumulator in accumulators:
            accumulator.assign(tf.zeros_like(accumulator))
    keras_internals.update_averages(optimizer)


def _on_each(strategy: tf.distribute.Strategy, phase: Phase, function: Callable[..., None], *arguments: Any) -> None:
    @tf.autograph.experimental.do_not_convert
    def in_phase(*arguments: Any) -> None:
        with _told(phase):
            function(*arguments)

    strategy.extended.call_for_each_replica(in_phase, args=arguments)


@contextlib.contextmanager
def _told(phase: Phase) -> Iterator[None]:
    before = _task.phase
    _task.phase = phase
    try:
        yield
    finally:
        _task.phase = before


def _all_finite(optimizer: keras.optimizers.LossScaleOptimizer, gradients: list[Any], summed: bool) -> tf.Tensor:
    finite: Any = optimizer.check_finite(gradients)
    if summed:
        # An overflow of any replica is in the sum.
        return finite
    context = tf.distribute.get_replica_context()
    overflows = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(tf.logical_not(finite), tf.float32))
    return tf.equal(overflows, 0.0)
