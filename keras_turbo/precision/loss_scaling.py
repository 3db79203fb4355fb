"""Loss scaling that clips what it should, agrees between replicas, and counts what it skips."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_turbo.fit.steps import number
from keras_turbo.precision.replica_updates import accumulate_gradients, inner_that, with_accumulated
from keras_turbo.precision.warn_once import warn_once

# So many skipped in a row are no search for the right scale any more: a run that begins at 2**15 has come down to 32.
MANY_SKIPPED_IN_A_ROW = 10

# Variables of this class that Keras' own has not.
_NUM_COUNTERS = 3


@keras.saving.register_keras_serializable(package="keras_turbo")
class SafeLossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Scales the loss like Keras' `LossScaleOptimizer`, and does right what goes wrong there.

    float16 rounds gradients below 6e-8 to zero. So the loss is multiplied by a scale, and gradients are divided by it
    before they are used. A step whose gradients overflow is skipped, and halves the scale; after
    `dynamic_growth_steps` good steps it is doubled. Beyond Keras 3.12 to 3.15:

    - With several replicas, gradients are added up first, then checked, then clipped. Keras checks the first replica's
      alone, so that an overflow in another one reaches the weights; and clips each replica's before adding.
    - Gradient accumulation works with several replicas. A micro-batch that overflows is left out, and the average is
      over those that count.
    - The scale has a floor and a ceiling. Keras halves it to 0, where every gradient vanishes, and doubles it to
      infinity, from where it never comes back.
    - `skipped_steps` counts what was skipped; `iterations` counts optimizer steps, as ever. The state is saved with the
      model, and what a stock `LossScaleOptimizer` saved is taken.

    Example:

    ```python
    keras_turbo.use_mixed_precision("mixed_float16")
    optimizer = keras_turbo.precision.SafeLossScaleOptimizer(keras.optimizers.Adam(clipnorm=1.0))
    model.compile(optimizer, "mse")
    model.fit(x, y, callbacks=[keras_turbo.precision.LossScaleLogs()])
    ```

    `make_precision_safe` puts it into a model that is compiled. A `train_step` of your own must call
    `optimizer.scale_loss(loss)` before it takes gradients, as with Keras' own.

    Args:
        inner_optimizer: what updates the weights: an optimizer or its name. Its `clipnorm`, `global_clipnorm`,
            `clipvalue` and `gradient_accumulation_steps` act on unscaled gradients, summed over replicas.
        initial_scale: the scale at first. Default: 32,768.
        dynamic_growth_steps: good steps until it is doubled. Default: 2,000.
        static_loss_scale: a scale that never changes, where a good one is known; None, the default, for a dynamic one.
            Steps that overflow are skipped all the same.
        minimum_scale: the floor. Default: 1. A fit that gets there warns.
        maximum_scale: the ceiling. Default: 2**24.
        name: of the optimizer, or None for an automatic one.

    Raises:
        ValueError: an argument is out of its range, or `inner_optimizer` scales the loss itself.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        static_loss_scale: float | None = None,
        minimum_scale: float = 1.0,
        maximum_scale: float = 2.0**24,
        name: str | None = None,
    ) -> None:
        inner_optimizer = _checked_inner(inner_optimizer)
        for argument, value in (
            ("initial_scale", initial_scale),
            ("static_loss_scale", 1.0 if static_loss_scale is None else static_loss_scale),
            ("minimum_scale", minimum_scale),
            ("maximum_scale", maximum_scale),
        ):
            _check_positive(argument, value)
        if (
            isinstance(dynamic_growth_steps, bool)
            or not isinstance(dynamic_growth_steps, int)
            or dynamic_growth_steps < 1
        ):
            raise ValueError(
                f"`dynamic_growth_steps` must be a positive whole number. Received: {dynamic_growth_steps!r}."
            )
        if static_loss_scale is None and not minimum_scale <= initial_scale <= maximum_scale:
            raise ValueError(
                "`initial_scale` must lie between `minimum_scale` and `maximum_scale`. Received: "
                f"initial_scale={initial_scale}, minimum_scale={minimum_scale}, maximum_scale={maximum_scale}."
            )
        scale = initial_scale if static_loss_scale is None else static_loss_scale
        super().__init__(
            inner_optimizer, initial_scale=float(scale), dynamic_growth_steps=dynamic_growth_steps, name=name
        )
        self.static_loss_scale = static_loss_scale
        self.minimum_scale = float(minimum_scale)
        self.maximum_scale = float(maximum_scale)

    @classmethod
    def adopting(cls, optimizer: keras.optimizers.LossScaleOptimizer) -> SafeLossScaleOptimizer:
        """Takes over from a stock loss-scale optimizer: its inner optimizer, with its state, its scale and its counter.

        Args:
            optimizer: Keras' own, built or not. It must not be used afterwards.

        Returns:
            The optimizer to use in its place.
        """
        scale = optimizer.initial_scale
        made = cls(
            optimizer.inner_optimizer,
            initial_scale=scale,
            dynamic_growth_steps=optimizer.dynamic_growth_steps,
            minimum_scale=min(1.0, scale),
            maximum_scale=max(2.0**24, scale),
            name=optimizer.name,
        )
        if optimizer.built:
            made.build(optimizer._trainable_variables)
            made.step_counter.assign(optimizer.step_counter)
            made.dynamic_scale.assign(optimizer.dynamic_scale)
        return made

    @property
    def loss_scale(self) -> float:
        """The scale now."""
        return float(number(self.dynamic_scale)) if self.built else self.initial_scale

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates the state: Keras' own scale and counter, and the counters of skipped steps.

        Args:
            var_list: the trainable variables.
        """
        add = functools.partial(self.add_variable, shape=(), aggregation="none")
        self.step_counter = add(dtype="int", initializer="zeros", name="step_counter")
        scale: Any = keras.initializers.Constant(self.initial_scale)
        self.dynamic_scale = add(dtype="float32", initializer=scale, name="dynamic_scale")
        self._skipped_steps = add(dtype="int", initializer="zeros", name="skipped_steps")
        self._skipped_in_a_row = add(dtype="int", initializer="zeros", name="skipped_in_a_row")
        self._longest_skipped = add(dtype="int", initializer="zeros", name="longest_skipped_in_a_row")
        # An inner optimizer that has been adopted keeps its state.
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(var_list)
        # Past LossScaleOptimizer, which would do all of this once more.
        keras.optimizers.Optimizer.build(self, var_list)

    @property
    def variables(self) -> list[Any]:
        """The state, in the order of a stock LossScaleOptimizer's, whose files are taken; the counters come last."""
        own = list(self._variables)
        return own[:-_NUM_COUNTERS] + self.inner_optimizer.variables + own[-_NUM_COUNTERS:] if self.built else own

    def load_own_variables(self, store: Any) -> None:
        """Takes a state that this class or Keras' LossScaleOptimizer saved.

        Args:
            store: arrays by "0", "1" and so on.
        """
        is_of_stock = self.built and len(store.keys()) == len(self.variables) - _NUM_COUNTERS
        if not is_of_stock:
            super().load_own_variables(store)
            return
        for index, variable in enumerate(self.variables[:-_NUM_COUNTERS]):
            variable.assign(store[str(index)])

    @property
    def skipped_steps(self) -> int:
        """Steps, or micro-batches of an accumulated step, that were skipped since their gradients overflowed."""
        return number(self._skipped_steps) if self.built else 0

    @property
    def skipped_in_a_row(self) -> int:
        """How many were skipped since the last good step."""
        return number(self._skipped_in_a_row) if self.built else 0

    @property
    def good_steps_in_a_row(self) -> int:
        """Good steps since the scale last changed, or since the last skipped one; the scale is doubled by them."""
        return number(self.step_counter) if self.built else 0

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Unscales gradients and updates the weights, or skips the step.

        Args:
            grads: gradients of the scaled loss; with several replicas, this replica's.
            trainable_variables: their variables; None for those that the optimizer was built with.

        Raises:
            ValueError: it is called outside of a replica, or the inner optimizer averages weights (`use_ema`) while it
                accumulates gradients of several replicas.
        """
        if tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy():
            raise ValueError("SafeLossScaleOptimizer.apply must be called in a replica: in what `strategy.run` runs.")
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if not self.built:
            self.build(trainable_variables or [])
        # Keras' own choice between strategies (MirroredStrategy) that need code across replicas and those that do not.
        if tf.__internal__.distribute.strategy_supports_no_merge_call():
            self._common_apply(grads, trainable_variables)
            return
        self._check_accumulation()
        context = tf.distribute.get_replica_context()
        present = [one for one in grads if one is not None]
        summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
        grads = [None if one is None else next(summed) for one in grads]
        context.merge_call(self._apply_across_replicas, args=(grads, trainable_variables))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Ends a fit, which Keras tells optimizers by this call: warns if the loss could not be scaled well.

        Args:
            var_list: the model's trainable variables.
        """
        # Averaged weights are zeros until the first step, of which loss scaling may have left out all.
        if not self.built or number(self.inner_optimizer.iterations) > 0:
            super().finalize_variable_values(var_list)
        if self.built:
            warn_of_scaling(self, number(self._longest_skipped), MANY_SKIPPED_IN_A_ROW)

    def get_config(self) -> dict[str, Any]:
        """Gives what a new optimizer of the same settings is made from.

        Returns:
            The base class' settings and the arguments of this one.
        """
        return {
            **super().get_config(),
            "static_loss_scale": self.static_loss_scale,
            "minimum_scale": self.minimum_scale,
            "maximum_scale": self.maximum_scale,
        }

    def _apply_across_replicas(self, distribution: Any, grads: Any, trainable_variables: Any) -> None:
        # A condition inside a replica must not update variables, so conditions are asked out here, of what is equal on
        # all replicas.
        def on_each(function: Callable[..., Any]) -> None:
            distribution.extended.call_for_each_replica(function, args=(grads, trainable_variables))

        def first(values: Any) -> Any:
            return distribution.experimental_local_results(values)[0]

        inner = self.inner_optimizer
        steps = inner.gradient_accumulation_steps

        def update() -> None:
            with inner_that(inner, with_accumulated if steps else None):
                on_each(self._stateful_handle_finite_grads)
            for accumulator in inner._accumulated_gradients if steps else ():
                distribution.extended.update(accumulator.value, lambda one: one.assign(tf.zeros_like(one)), group=False)

        def accumulate() -> None:
            with inner_that(inner, accumulate_gradients):
                on_each(self._stateful_handle_finite_grads)

        def good_step() -> None:
            if not steps:
                update()
                return
            is_last = first(distribution.extended.call_for_each_replica(lambda: (inner._iterations + 1) % steps == 0))
            ops.cond(is_last, update, accumulate)

        finite = first(distribution.extended.call_for_each_replica(self.check_finite, args=(grads,)))
        ops.cond(finite, good_step, lambda: on_each(lambda *_: self._stateful_handle_non_finite_grads()))

    def _check_accumulation(self) -> None:
        if self.inner_optimizer.gradient_accumulation_steps and self.inner_optimizer.use_ema:
            raise ValueError(
                "Gradient accumulation over several replicas does not go together with `use_ema=True`. Leave one out: "
                f"gradient_accumulation_steps={self.inner_optimizer.gradient_accumulation_steps}, use_ema=True."
            )

    def _stateful_handle_finite_grads(self, grads: Any, trainable_variables: Any) -> None:
        variables = trainable_variables or self._trainable_variables
        scale = self.dynamic_scale
        unscaled = [
            one if one is None or self._overwrite_variable_with_gradient(variable) else ops.divide(one, scale)
            for one, variable in zip(grads, variables, strict=True)
        ]
        self.inner_optimizer.apply(unscaled, trainable_variables=trainable_variables)
        self._skipped_in_a_row.assign(0)
        if self.static_loss_scale is not None:
            self.step_counter.assign_add(1)
            return
        grows = ops.greater_equal(self.step_counter, self.dynamic_growth_steps - 1)
        doubled = ops.minimum(ops.multiply(self.dynamic_scale, 2.0), self.maximum_scale)
        self.dynamic_scale.assign(ops.where(grows, doubled, self.dynamic_scale))
        counted = ops.add(self.step_counter, 1)
        self.step_counter.assign(ops.where(grows, ops.zeros_like(counted), counted))

    def _stateful_handle_non_finite_grads(self) -> None:
        self.step_counter.assign(0)
        if self.static_loss_scale is None:
            self.dynamic_scale.assign(ops.maximum(ops.multiply(self.dynamic_scale, 0.5), self.minimum_scale))
        self._skipped_steps.assign_add(1)
        self._skipped_in_a_row.assign_add(1)
        self._longest_skipped.assign(ops.maximum(self._longest_skipped, self._skipped_in_a_row))


def warn_of_scaling(optimizer: SafeLossScaleOptimizer, skipped_in_a_row: int, many: int) -> None:
    """Warns, once of each, of a scale at its floor and of many steps skipped in a row.

    Args:
        optimizer: whose scale it is.
        skipped_in_a_row: the most that were.
        many: from how many on to warn.
    """
    if optimizer.static_loss_scale is None and optimizer.loss_scale <= optimizer.minimum_scale:
        warn_once(
            optimizer,
            "floor",
            f"The loss scale has fallen to its floor, {optimizer.minimum_scale:g}: gradients overflow at any scale, so "
            "something else gives infinity or NaN. Look for the layer with "
            "keras_turbo.precision.precision_report(model, "
            "data), or train in mixed_bfloat16.",
        )
    if skipped_in_a_row >= many:
        warn_once(
            optimizer,
            "skipped",
            f"{skipped_in_a_row} steps in a row were skipped, since their gradients overflowed, and "
            f"{optimizer.skipped_steps} in all; the loss scale is {optimizer.loss_scale:g}. The model learnt nothing "
            "from those batches. Lower the learning rate, look for the layer with "
            "keras_turbo.precision.precision_report(model, data), or train in mixed_bfloat16.",
        )


def _checked_inner(optimizer: Any) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "`inner_optimizer` of SafeLossScaleOptimizer must not scale the loss itself. Received: a "
            f"{type(optimizer).__name__}. Pass its `inner_optimizer`, or use "
            "SafeLossScaleOptimizer.adopting(optimizer)."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"`inner_optimizer` must be a Keras optimizer or the name of one. Received: {optimizer!r} (of type "
            f"{type(optimizer).__name__})."
        )
    return optimizer


def _check_positive(argument: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise ValueError(f"`{argument}` must be a positive number. Received: {argument}={value!r}.")
