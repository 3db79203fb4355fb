"""Python objects that are read by tf.data, one for each iterator, and told when that is gone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from keras_turbo.data.light_operations import traced_on_cpu
from keras_turbo.data.python_calls import call_if_alive, call_on
from keras_turbo.data.variant_dataset import VariantDataset


class Session(Protocol):
    """What is read by one iterator."""

    def next(self) -> list[np.ndarray]:
        """The tensors of the next element, flattened; raises StopIteration at the end."""
        ...

    def close(self) -> None:
        """Called once, when the iterator has read all or is gone."""
        ...


class Sessions:
    """The sessions of a dataset.

    Args:
        begin: makes a session of some numpy scalars, when the first element of an iterator is asked for.
    """

    def __init__(self, begin: Callable[..., Session]) -> None:
        self._begin = begin
        self._open: dict[int, Session] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def dataset(self, inputs: list[tf.Tensor], element_spec: Any) -> tf.data.Dataset:
        """Graph code: a dataset of the elements of a session, a new one for each iterator.

        Args:
            inputs: int64 scalars that `begin` is called with.
            element_spec: structure of `tf.TensorSpec`s.
        """
        leaves = tf.nest.flatten(element_spec)
        number = tf.TensorSpec([], tf.int64)

        def begin(*values: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(call_on(self, Sessions.begin, list(values), tf.int64), [])

        def following(session: tf.Tensor) -> list[tf.Tensor]:
            tensors = call_on(self, Sessions.next, [session], [leaf.dtype for leaf in leaves])
            return [tf.ensure_shape(tensor, leaf.shape) for tensor, leaf in zip(tensors, leaves, strict=True)]

        def end(session: tf.Tensor) -> tf.Tensor:
            return call_if_alive(self, Sessions.end, [session])

        begun = traced_on_cpu(begin, [number] * len(inputs))
        read = traced_on_cpu(following, [number])
        ended = traced_on_cpu(end, [number])
        # What tf.data.Dataset.from_generator is made of. It tells when an iterator is gone, and does not copy arrays.
        variant = tf.raw_ops.GeneratorDataset(
            init_func_other_args=[*inputs, *begun.captured_inputs],
            next_func_other_args=read.captured_inputs,
            finalize_func_other_args=ended.captured_inputs,
            init_func=begun,
            next_func=read,
            finalize_func=ended,
            output_types=[leaf.dtype for leaf in leaves],
            output_shapes=[leaf.shape for leaf in leaves],
        )
        return VariantDataset(variant, element_spec, [], holds=(begun, read, ended, self))

    def begin(self, *values: np.integer) -> np.int64:
        """Begins a session and gives its number."""
        session = self._begin(*values)
        with self._lock:
            number = next(self._numbers)
            self._open[number] = session
        return np.int64(number)

    def next(self, number: np.integer) -> list[np.ndarray]:
        """The next element of a session."""
        return self._open[int(number)].next()

    def end(self, number: np.integer) -> None:
        """Ends a session."""
        with self._lock:
            session = self._open.pop(int(number), None)
        if session is not None:
            session.close()
