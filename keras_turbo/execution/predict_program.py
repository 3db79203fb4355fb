"""Predictions for several batches in one XLA program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.execution.programs import Steps
from keras_turbo.execution.stacks import why_not_stackable


class PredictLoop:
    """What `predict` calls with a list of batches; gives their outputs as those of one larger batch.

    A full list of equal batches runs as one XLA program; others (the last ones) run one by one in a graph.

    Args:
        steps: the predict step.
        capacity: batches in a full list.
    """

    def __init__(self, steps: Steps, capacity: int) -> None:
        self._steps = steps
        self._capacity = capacity
        self._shapes: Any = None
        self._program: Callable | None = None

    def __call__(self, batches: list[Any]) -> Any:
        """Outputs for 1 to `capacity` batches, one after another along the first axis."""
        if len(batches) == self._capacity > 1:
            shapes = [[component.shape for component in tf.nest.flatten(batch)] for batch in batches]
            spec = tf.nest.map_structure(tf.type_spec_from_value, batches[0])
            if all(other == shapes[0] for other in shapes) and why_not_stackable(spec) is None:
                # One program, for the shapes that came first.
                if self._program is None:
                    self._shapes, self._program = shapes[0], self._make_program(spec)
                if shapes[0] == self._shapes:
                    return self._program(batches)
        outputs = [self._steps.graph(batch) for batch in batches]
        return outputs[0] if len(outputs) == 1 else tf.nest.map_structure(_joined, *outputs)

    def _make_program(self, batch_spec: Any) -> Callable:
        output_spec = self._steps.output_spec(batch_spec)
        count = self._capacity

        @tf.function(autograph=False, jit_compile=True)
        def over_stack(stack: Any) -> list[tf.Tensor]:
            arrays = [
                tf.TensorArray(spec.dtype, size=count, element_shape=spec.shape)
                for spec in tf.nest.flatten(output_spec)
            ]

            def body(i: tf.Tensor, arrays: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
                outputs = tf.nest.flatten(self._steps(tf.nest.map_structure(lambda batches: batches[i], stack)))
                return i + 1, [array.write(i, output) for array, output in zip(arrays, outputs, strict=True)]

            _, arrays = tf.while_loop(lambda i, _: i < count, body, (tf.constant(0, tf.int32), arrays))
            return [_as_one_batch(array.stack()) for array in arrays]

        @tf.function(autograph=False)
        def program(batches: list[Any]) -> Any:
            # XLA is given one tensor for each component, not one for each batch.
            outputs = over_stack(tf.nest.map_structure(lambda *components: tf.stack(components), *batches))
            return tf.nest.pack_sequence_as(output_spec, outputs)

        return program


def _joined(*outputs: Any) -> Any:
    if isinstance(outputs[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=list(outputs))
    return tf.stack(outputs) if outputs[0].shape.rank == 0 else tf.concat(outputs, axis=0)


def _as_one_batch(stack: tf.Tensor) -> tf.Tensor:
    return stack if stack.shape.rank == 1 else tf.reshape(stack, tf.concat([[-1], tf.shape(stack)[2:]], axis=0))
