"""Several steps of a model in one call from Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.execution.stacks import Stack, StackIterator, StackReader, why_not_stackable

# Programs for other shapes than the first, for data whose batches come in a few lengths. Each takes seconds to compile,
# so that data of any length had better take the graph.
_MOST_PROGRAMS = 4


class Steps:
    """One step of a model as TensorFlow traces it, alone or in a loop.

    It is always traced for the batches that the dataset declares, as Keras does, also where the size of the batch at
    hand is known: Keras weighs its metrics in another way where it sees the batch size in a graph.

    Args:
        model: a compiled model without a distribution strategy.
        step: its `train_step`, `test_step` or `predict_step`: takes a batch.
        on_trace: called with the batch each time the step is traced.
    """

    def __init__(self, model: keras.Model, step: Callable, on_trace: Callable[[Any], None]) -> None:
        self._model = model
        self._step = step
        self._on_trace = on_trace
        self.graph = tf.function(self, reduce_retracing=True, autograph=False)
        self.xla = tf.function(self, reduce_retracing=True, autograph=False, jit_compile=True)

    def __call__(self, batch: Any) -> Any:
        """Traces the step for a batch; returns its outputs as tensors."""
        # Keras' data adapters give an empty optional where a part of the data is None.
        batch = keras.tree.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, batch)
        self._on_trace(batch)
        outputs = self._model.distribute_strategy.run(self._step, args=(batch,))
        return tf.nest.map_structure(tf.convert_to_tensor, outputs)

    def variables(self, element_spec: Any) -> list[tf.Variable]:
        """All variables that a step reads or changes, whoever holds them."""
        return list(self.graph.get_concrete_function(element_spec).variables)

    def output_spec(self, element_spec: Any) -> Any:
        """Structure of `tf.TensorSpec`s of the outputs for a batch.

        Tracing a step also creates what is created at the first step: weights, metrics, the optimizer's variables.
        Inside a loop that is impossible.
        """
        outputs = self.graph.get_concrete_function(element_spec).structured_outputs
        return tf.nest.map_structure(lambda output: tf.TensorSpec(output.shape, output.dtype), outputs)


class GraphLoop:
    """Up to k steps in one graph, which takes its batches from the iterator itself.

    Args:
        steps: the step to run.
        jit_compile: whether XLA compiles each step. A batch of another shape than the first of its epoch then runs
            without XLA, which would compile the step again for it.
    """

    def __init__(self, steps: Steps, *, jit_compile: bool) -> None:
        self._steps = steps
        self._jit_compile = jit_compile
        self._iterator: Any = None
        self._first_shapes: list[tf.TensorShape] = []
        self._functions: dict[str, Callable] = {}

    def forget(self) -> None:
        """Lets go of the iterator."""
        self._iterator = None

    def trace(self, element_spec: Any) -> None:
        """Traces the step for batches of this structure; raises what is wrong with it before anything has run."""
        self._steps.output_spec(element_spec)

    def __call__(self, iterator: tf.data.Iterator, most: int) -> tuple[int, Any]:
        """Runs up to `most` steps; returns how many there were batches for, and the outputs of the last."""
        done, outputs = 0, None
        if self._jit_compile and iterator is not self._iterator:
            # The shapes that XLA is to compile for are known once there is a batch.
            batch = iterator.get_next_as_optional()
            if not batch.has_value():
                return 0, None
            self._iterator = iterator
            self._first_shapes = [component.shape for component in _components(batch.get_value())]
            done, outputs = 1, self._steps.xla.get_concrete_function(iterator.element_spec)(batch.get_value())
            if done == most:
                return done, outputs
        key = f"{iterator.element_spec} {self._first_shapes}"
        if key not in self._functions:
            self._functions[key] = self._function(iterator.element_spec, self._first_shapes)
        more, later = self._functions[key](iterator, tf.constant(most - done, tf.int32))
        more = int(more)
        return done + more, later if more else outputs

    def _function(self, element_spec: Any, first_shapes: list[tf.TensorShape]) -> Callable:
        output_spec = self._steps.output_spec(element_spec)
        shapes = tf.nest.map_structure(lambda spec: spec.shape, output_spec)
        no_outputs = tf.nest.map_structure(_zeros, output_spec)

        expected: list[Any] = [shape.as_list() for shape in first_shapes]

        def step(batch: Any) -> Any:
            if not self._jit_compile:
                return self._steps.graph(batch)
            same = [
                tf.reduce_all(tf.equal(tf.shape(component), shape))
                for component, shape in zip(_components(batch), expected, strict=True)
            ]
            return tf.cond(tf.reduce_all(same), lambda: self._steps.xla(batch), lambda: self._steps.graph(batch))

        def run(iterator: tf.data.Iterator, most: tf.Tensor) -> tuple[tf.Tensor, Any]:
            def more(done: tf.Tensor, _: Any, batch: Any) -> tf.Tensor:
                return tf.logical_and(done < most, batch.has_value())

            def body(done: tf.Tensor, _: Any, batch: Any) -> tuple[tf.Tensor, Any, Any]:
                outputs = step(batch.get_value())
                done += 1
                # The iterator is asked for what will be used, and no more.
                batch = tf.cond(done < most, iterator.get_next_as_optional, lambda: batch)
                return done, outputs, batch

            first = iterator.get_next_as_optional()
            done, outputs, _ = tf.while_loop(
                more,
                body,
                (tf.constant(0, tf.int32), no_outputs, first),
                shape_invariants=(tf.TensorShape([]), shapes, tf.type_spec_from_value(first)),
            )
            return done, outputs

        return tf.function(run, reduce_retracing=True, autograph=False)


class XlaLoop:
    """Up to k steps in one XLA program, over a stack of batches that is ready when it begins.

    What has another shape than the stacks (a last batch with fewer rows) runs step by step in a graph. XLA would
    compile the whole program once more for it.

    Args:
        steps: the step to run.
        capacity: batches in a stack: k.
        otherwise: runs the steps where the data can't be stacked.
        on_unstackable: called with the reason when that happens.

    Attributes:
        compiles: whether stacks run as XLA programs. Else their steps run one by one in a graph.
        falls_back: whether to run steps one by one, too, where XLA can't compile them; else its error is raised.
        waited_seconds: how long stacks were waited for so far.
        batches: how many batches of stacks were run.
        examples: how many examples they held.
    """

    def __init__(
        self, steps: Steps, capacity: int, otherwise: GraphLoop, on_unstackable: Callable[[str], None]
    ) -> None:
        self._steps = steps
        self._capacity = capacity
        self._otherwise = otherwise
        self._on_unstackable = on_unstackable
        self.compiles, self.falls_back = True, False
        self.waited_seconds = 0.0
        self.batches = 0
        self.examples = 0
        self._iterator: Any = None
        self._reader: StackReader | None = None
        self._first_shapes: tuple | None = None
        self._programs: dict[Any, Callable] = {}
        self._one_step: Callable | None = None

    def forget(self) -> None:
        """Lets go of the iterator and of what was read ahead."""
        self._iterator = self._reader = None
        self._otherwise.forget()

    def __call__(self, iterator: tf.data.Iterator | StackIterator, most: int) -> tuple[int, Any]:
        """Runs up to `most` steps; returns how many there were batches for, and the outputs of the last."""
        if iterator is not self._iterator:
            reason = why_not_stackable(iterator.element_spec)
            if reason is not None:
                self._on_unstackable(reason)
            self._iterator = iterator
            self._reader = None if reason else StackReader(iterator, self._capacity)
            self._first_shapes = None
            self._one_step = None
        if self._reader is None:
            return self._otherwise(self._iterator, most)
        done, outputs = 0, None
        while done < most:
            begin = time.perf_counter()
            stack = self._reader.take(most - done)
            self.waited_seconds += time.perf_counter() - begin
            if stack is None:
                break
            outputs = self._run(stack)
            self.batches += stack.end - stack.begin
            self.examples += (stack.end - stack.begin) * stack.shapes[0][0]
            done += stack.end - stack.begin
        return done, outputs

    def _run(self, stack: Stack) -> Any:
        if self._first_shapes is None:
            self._first_shapes = stack.shapes
        element_spec = self._iterator.element_spec
        key = (str(element_spec), stack.shapes)
        if not self.compiles or key not in self._programs:
            is_other = stack.shapes != self._first_shapes or len(self._programs) == _MOST_PROGRAMS
            if is_other or not self.compiles:
                return self._one_by_one(stack, element_spec)
            self._programs[key] = self._program(stack.batches, element_spec)
        batches = tf.nest.map_structure(self._filled_up, stack.batches)
        begin, end = tf.constant(stack.begin, tf.int32), tf.constant(stack.end, tf.int32)
        try:
            return self._programs[key](batches, begin, end)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
            # XLA compiles a program as a whole before it runs any of it.
            if not self.falls_back:
                raise
            self.compiles = False
            return self._one_by_one(stack, element_spec)

    def _one_by_one(self, stack: Stack, element_spec: Any) -> Any:
        one_step = self._one_step or self._steps.graph.get_concrete_function(element_spec)
        self._one_step = one_step
        outputs = None
        for i in range(stack.begin, stack.end):
            outputs = one_step(tf.nest.map_structure(lambda batches, i=i: batches[i], stack.batches))
        return outputs

    def _filled_up(self, batches: tf.Tensor) -> tf.Tensor:
        missing = self._capacity - batches.shape[0]
        return tf.pad(batches, [[0, missing]] + [[0, 0]] * (batches.shape.rank - 1)) if missing else batches

    def _program(self, batches: Any, element_spec: Any) -> Callable:
        no_outputs = tf.nest.map_structure(_zeros, self._steps.output_spec(element_spec))

        def run(batches: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
            def body(i: tf.Tensor, _: Any) -> tuple[tf.Tensor, Any]:
                batch = tf.nest.map_structure(lambda stack, spec: as_declared(stack[i], spec), batches, element_spec)
                return i + 1, self._steps(batch)

            return tf.while_loop(lambda i, _: i < end, body, (begin, no_outputs))[1]

        stack = tf.nest.map_structure(
            lambda component: tf.TensorSpec([self._capacity, *component.shape[1:]], component.dtype), batches
        )
        count = tf.TensorSpec([], tf.int32)
        return tf.function(run, autograph=False, jit_compile=True).get_concrete_function(stack, count, count)


def as_declared(component: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Graph code: the same tensor, of which a graph knows no more than the spec says. XLA knows its shape."""
    return tf.raw_ops.PlaceholderWithDefault(input=component, shape=spec.shape)


def _components(batch: Any) -> list[tf.Tensor]:
    return tf.nest.flatten(batch, expand_composites=True)


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([0 if size is None else size for size in spec.shape], spec.dtype)
