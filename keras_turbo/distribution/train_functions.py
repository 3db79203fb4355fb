"""What `fit` and `evaluate` call for a model under one of our strategies: steps on batches of all replicas."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.distribution import padding
from keras_turbo.distribution.batch_statistics import average_batch_statistics
from keras_turbo.distribution.input_clock import InputClock
from keras_turbo.distribution.replica_step import ReplicaStep, entered, first_tensor, number_of_rows
from keras_turbo.distribution.step_overrides import step_overrides


class StepFunction:
    """Runs `steps_per_execution` steps on the batches of an iterator, or as many as are left, and gives logs.

    Args:
        model: whose steps they are.
        step: its `train_step` or `test_step`.
        is_training: whether it changes the weights.
    """

    def __init__(self, model: keras.Model, step: Callable[[Any], Any], *, is_training: bool) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._step = step
        self._is_training = is_training
        self._steps = model.steps_per_execution
        self._clock: InputClock | None = None
        self._results: dict[str, Callable[[], Any]] = {}
        # As in Keras, what TensorFlow traces is not rewritten by AutoGraph.
        self._on_data: Any = tf.autograph.experimental.do_not_convert(self._logs_of_data)
        if not model.run_eagerly:
            self._on_data = tf.function(self._on_data, reduce_retracing=True)
        self._on_iterator = self._traced_on_iterator()

    def measures_waits_of(self, iterator: Any) -> bool:
        """Whether it knows itself how long it waits for this iterator, from this call on; see `waits`."""
        if not isinstance(iterator, tf.distribute.DistributedIterator):
            return False
        if self._clock is None:
            self._clock = InputClock()
            # What is traced already has no clock.
            self._on_iterator = self._traced_on_iterator()
        return True

    @property
    def waits(self) -> tuple[float, int, int]:
        """Of all batches since it measures: the seconds that they were waited for, their number and their rows here."""
        return (0.0, 0, 0) if self._clock is None else self._clock.read()

    def __call__(self, iterator: Any) -> Any:
        """Runs an execution.

        Args:
            iterator: of a distributed dataset, or any iterable over batches that each replica is to get whole.

        Returns:
            What a step gives: for the model's metrics, what they are now over all replicas, and otherwise the mean over
            replicas of the last step's.

        Raises:
            tf.errors.OutOfRangeError, StopIteration: the iterator has no batch left.
        """
        if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            if self._model.run_eagerly:
                return self._run_eagerly(iterator)
            done, logs = self._on_iterator(iterator)
            if not done:
                raise StopIteration
            return logs
        logs = None
        for _, data in zip(range(self._steps), iterator, strict=False):
            logs = self._on_data(data)
        return logs

    def _traced_on_iterator(self) -> Any:
        function = tf.autograph.experimental.do_not_convert(self._logs_of_iterator)
        return function if self._model.run_eagerly else tf.function(function, reduce_retracing=True)

    def _run_eagerly(self, iterator: Any) -> Any:
        outputs = self._step_on_next(iterator)
        for _ in range(self._steps - 1):
            optional = self._next_as_optional(iterator)
            if not optional.has_value():
                break
            outputs = self._step_on_fetched(optional.get_value())
        return self._logs(outputs)

    def _logs_of_data(self, data: Any) -> Any:
        return self._logs(self._step_on_all(data))

    def _logs_of_iterator(self, iterator: Any) -> tuple[tf.Tensor, Any]:
        if self._steps == 1:
            return tf.constant(1), self._logs(self._step_on_next(iterator))
        # What a step gives must be known before the loop. Keras' own steps give metrics; others are traced once more.
        gives_metrics = _is_keras_own(self._model, self._step)
        first: Any = () if gives_metrics else self._step_on_next(iterator)
        done = tf.constant(0 if gives_metrics else 1)

        def is_left(done: tf.Tensor, has_value: tf.Tensor, _: Any) -> tf.Tensor:
            return tf.logical_and(has_value, done < self._steps)

        def another(done: tf.Tensor, _: tf.Tensor, outputs: Any) -> tuple[Any, ...]:
            optional = self._next_as_optional(iterator)
            has_value = optional.has_value()
            # Not a call of a traced function: TensorFlow loses the arguments of one that is called in a branch.
            outputs = tf.cond(has_value, lambda: self._step_on_fetched(optional.get_value()), lambda: outputs)
            return done + tf.cast(has_value, tf.int32), has_value, outputs

        done, _, outputs = tf.while_loop(is_left, another, (done, tf.constant(True), first))
        return done, self._logs(outputs)

    def _logs(self, outputs: Any) -> Any:
        """The logs after the last step; its outputs are empty where metrics stand for them."""
        if outputs == ():
            return self._model.get_metrics_result()
        return {**{name: read() for name, read in self._results.items()}, **outputs} if self._results else outputs

    def _step_on_next(self, iterator: Any) -> Any:
        fetch = iterator.get_next
        return self._step_on_fetched(fetch() if self._clock is None else self._clock.timed(fetch, lambda data: data))

    def _next_as_optional(self, iterator: Any) -> Any:
        fetch = iterator.get_next_as_optional
        return fetch() if self._clock is None else self._clock.timed(fetch, lambda optional: optional.has_value())

    def _step_on_fetched(self, data: Any) -> Any:
        data = keras.tree.map_structure(lambda one: None if isinstance(one, tf.experimental.Optional) else one, data)
        if self._clock is not None:
            first = first_tensor(data)
            self._clock.count(tf.constant(0) if first is None else self._local_rows(first))
        return self._step_on_all(data)

    def _step_on_all(self, data: Any) -> Any:
        global_rows = self._global_rows(data)

        def on_replica(data: Any, global_rows: tf.Tensor) -> Any:
            replicas = self._strategy.num_replicas_in_sync
            may_be_empty = replicas > 1 and padding.may_be_empty(data)
            rows = number_of_rows(data)
            replica_step = ReplicaStep(
                rows, global_rows, replicas, may_be_empty=may_be_empty, one_of_several=self._steps > 1
            )
            # Data of unknown length end in an error of the batch that is not there. What needs none of the batch, such
            # as `optimizer.iterations`, would be counted up all the same, as it is in Keras.
            leaves = tf.nest.flatten(data, expand_composites=True)
            arrived = [one for one in leaves if tf.is_tensor(one)][:1]
            with tf.control_dependencies(arrived), entered(replica_step) as step:
                outputs = self._step(padding.padded(data) if may_be_empty else data)
                if self._is_training:
                    average_batch_statistics(self._model, step)
                if self._gives_metrics(outputs):
                    return ()
                outputs = self._without_results(outputs, step)
                return keras.tree.map_structure(step.weighted_output, outputs)

        with step_overrides(self._model):
            outputs = self._strategy.run(on_replica, args=(data, global_rows))
        return keras.tree.map_structure(self._sum_over_replicas, outputs)

    def _gives_metrics(self, outputs: Any) -> bool:
        """Whether a step gives its model's metrics and no more; they are then read once, over all replicas."""
        return isinstance(outputs, dict) and outputs.keys() == self._model.get_metrics_result().keys()

    def _without_results(self, outputs: Any, step: ReplicaStep) -> Any:
        """Sets aside what metrics gave among a step's outputs: each replica's own, to be read over all in `_logs`."""
        if not isinstance(outputs, dict):
            return outputs
        readers = {name: step.reader_of(value) for name, value in outputs.items()}
        self._results = {name: read for name, read in readers.items() if read is not None}
        return {name: value for name, value in outputs.items() if name not in self._results}

    def _sum_over_replicas(self, parts: Any) -> Any:
        local = self._strategy.experimental_local_results(parts)[0]
        if not local.dtype.is_floating:
            return local
        return self._strategy.reduce("SUM", parts, axis=None)

    def _global_rows(self, data: Any) -> tf.Tensor:
        """Rows of all replicas."""
        first = first_tensor(data)
        if first is None:
            return tf.constant(self._strategy.num_replicas_in_sync, tf.int64)
        rows = self._local_rows(first)
        if self._strategy.num_replicas_in_sync == len(self._strategy.extended.worker_devices):
            return rows
        return self._strategy.reduce("SUM", rows, axis=None)

    def _local_rows(self, first: Any) -> tf.Tensor:
        """Rows of the replicas of this process.

        Args:
            first: the first tensor of the data, or its parts on the replicas.
        """
        if isinstance(first, tf.distribute.DistributedValues):
            return tf.add_n([number_of_rows(part) for part in self._strategy.experimental_local_results(first)])
        # Each replica is given the whole of it.
        return number_of_rows(first) * len(self._strategy.extended.worker_devices)


def _is_keras_own(model: keras.Model, step: Callable[[Any], Any]) -> bool:
    own = getattr(step, "__func__", None) in (keras.Model.train_step, keras.Model.test_step)
    return own and type(model).compute_metrics is keras.Model.compute_metrics


def settle(model: keras.Model) -> None:
    """Refuses what has no meaning over several replicas, and switches XLA off, with a warning.

    Args:
        model: whose functions are about to be made.

    Raises:
        ValueError: a loss is not reduced to one number.
    """
    replicas = model.distribute_strategy.num_replicas_in_sync
    for loss in keras.tree.flatten(model.loss):
        if isinstance(loss, keras.losses.Loss) and loss.reduction in (None, "none") and replicas > 1:
            raise ValueError(
                f"The loss {loss.name!r} of model {model.name!r} has reduction={loss.reduction!r}: what it gives for "
                f"each row can't be brought together over {replicas} replicas. Give it reduction='sum' or "
                "'sum_over_batch_size'."
            )
    if not model.jit_compile or replicas == 1:
        return
    model.jit_compile = False
    warnings.warn(
        f"jit_compile is switched off for model {model.name!r}: TensorFlow {tf.__version__} can't compile a step that "
        f"exchanges values between {replicas} replicas with XLA. Compile it with jit_compile=False to be rid of this "
        "warning.",
        stacklevel=4,
    )


def predict_step(model: keras.Model, own_step: Callable[[Any], Any], data: Any) -> Any:
    """What a model's own `predict_step` gives for the rows of a replica, of which there may be none.

    Args:
        model: under a strategy.
        own_step: takes data.
        data: x, or a tuple that begins with it.
    """
    if model.distribute_strategy.num_replicas_in_sync == 1 or not padding.may_be_empty(data):
        return own_step(data)
    is_empty = tf.equal(number_of_rows(data), 0)
    outputs = own_step(padding.padded(data))
    return keras.tree.map_structure(lambda one: padding.without_padding(one, is_empty), outputs)
