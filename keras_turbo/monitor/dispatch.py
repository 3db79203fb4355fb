"""What an execution costs that computes nothing: calling a train function, and giving its logs back.

Steps per execution share this cost, and nothing else makes it smaller, so that it tells what `tune` can gain. It is
measured with a function of the same kind: as many variables, the same number of logs, one batch taken.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import keras

from keras_turbo.fit.steps import optimizers_of

# The median of so many calls: 10 to 20 ms in all.
_CALLS = 20


def empty_execution_seconds(model: keras.Model, logs: Any) -> float | None:
    """Measures how long a call of a train function takes that does nothing."""
    if keras.config.backend() != "tensorflow":
        return None
    import tensorflow as tf

    eager = model.run_eagerly or tf.config.functions_run_eagerly()
    if eager or model.distribute_strategy is not tf.distribute.get_strategy() or tf.distribute.has_strategy():
        return None
    function, iterator = _empty_function(model, list(logs) if isinstance(logs, dict) else ["loss"])
    function(iterator)
    durations = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        function(iterator)
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations)


def _empty_function(model: keras.Model, names: list[str]) -> tuple[Any, Any]:
    """A function made as Keras makes train functions, and an iterator for it."""
    import tensorflow as tf

    variables = [*model.variables, *model.metrics_variables]
    for optimizer in optimizers_of(model):
        variables += optimizer.variables
    handles = list({id(variable): variable.value.handle for variable in variables}.values())

    def step(batch: Any) -> dict[str, Any]:
        # Each variable is an argument of the call, as in a step, and is neither read nor changed.
        touched = [tf.raw_ops.VarIsInitializedOp(resource=handle) for handle in handles]
        with tf.control_dependencies([batch, *touched]):
            return {name: tf.constant(0.0) for name in names}

    step_in_graph: Any = tf.function(step, autograph=False)

    def execution(iterator: Any) -> Any:
        return tf.experimental.Optional.from_value(step_in_graph(iterator.get_next()))

    execution_in_graph: Any = tf.function(execution, autograph=False)

    def function(iterator: Any) -> Any:
        logs = execution_in_graph(iterator)
        return logs.get_value() if logs.has_value() else None

    return function, iter(tf.data.Dataset.from_tensors(0.0).repeat())
