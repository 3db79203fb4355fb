"""A few batches of the user's own data, in memory, to measure a model with."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.execution.pulling import batch_puller
from keras_turbo.execution.stacks import why_not_stackable
from keras_turbo.execution.unread_copy import unread_copy

# As much as a few stacks that are kept ready anyway.
_MOST_BYTES = 64 << 20
_LOOP_STEPS = 32


class Sample:
    """Batches of the data that a model is to be trained on.

    Args:
        data: what `fit` takes as `x`: a dataset of batches or a `PyDataset`; or a tuple `(x, y)` or
            `(x, y, sample_weight)` of arrays; or arrays `x` alone.
        batch_size: examples a batch; for arrays alone.
        most_batches: how many to keep, if the data has as many and they take little memory.

    Raises:
        TypeError: other data; a generator, which reading would use up.
        ValueError: data without batches.

    Attributes:
        num_batches: batches in an epoch; None where that is not known, or endless.
        element_spec: structure of `tf.TypeSpec`s of a batch, as the data's dataset has it.
        stack: structure of tensors of shape (batches, batch, ...); None where batches differ in shape.
        first_batch: structure of tensors.
        batch_rows: examples in the first batch.
        batch_bytes: size of the first batch.
    """

    def __init__(self, data: Any, *, batch_size: int, most_batches: int) -> None:
        dataset, self.num_batches = _as_dataset(data, batch_size)
        self._dataset, self._put_back = _to_look_at(dataset)
        self.element_spec = dataset.element_spec
        try:
            self._batches = self._read(most_batches)
        finally:
            self._put_back()
        if not self._batches:
            raise ValueError("`data` has no batches. Expected at least one batch to measure the model with.")
        self.first_batch = self._batches[0]
        self.batch_rows = int(tf.shape(_components(self.first_batch)[0])[0])
        self.batch_bytes = _bytes_of(self.first_batch)
        self.stack = self._stacked()

    def _read(self, most_batches: int) -> list[Any]:
        batches = []
        taken = 0
        for batch in self._dataset.take(most_batches):
            taken += _bytes_of(batch)
            batches.append(batch)
            if taken > _MOST_BYTES:
                break
        return batches

    def _stacked(self) -> Any:
        # The last batch may be smaller. Whether the others are alike decides.
        shapes = [[tuple(component.shape) for component in _components(batch)] for batch in self._batches]
        alike = [batch for batch, shape in zip(self._batches, shapes, strict=True) if shape == shapes[0]]
        if why_not_stackable(self.element_spec) is not None or len(alike) < len(self._batches) - 1:
            return None
        return tf.nest.map_structure(lambda *components: tf.stack(components), *alike)

    def dataset(self, steps: int) -> tf.data.Dataset:
        """These batches again and again: so many of them, at next to no cost."""
        if self.stack is not None:
            return RepeatedStack(self.stack, self.element_spec, steps)
        batches = [tf.data.Dataset.from_tensors(batch) for batch in self._batches]
        whole = batches[0]
        for batch in batches[1:]:
            whole = whole.concatenate(batch)
        return whole.cache().repeat().take(steps)

    def input_ms(self, seconds: float) -> float | None:
        """Milliseconds that the data itself takes for a batch, measured for about so long, or one epoch of it.

        None for a single batch, and for a cache that is not full yet: the epochs to come are not like the first one.
        """
        if getattr(self._dataset, "stored_in", None) is not None and not getattr(self._dataset, "is_ready", True):
            return None
        try:
            iterator = iter(self._dataset)
            pull = batch_puller(iterator)
            # Buffers fill before the first.
            pull(iterator, 1)
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < seconds:
                pulled = pull(iterator, _LOOP_STEPS)
                count += pulled
                if pulled < _LOOP_STEPS:
                    break
            return (time.perf_counter() - start) / count * 1e3 if count else None
        finally:
            self._put_back()


class RepeatedStack(tf.data.Dataset):
    """The batches of a stack again and again, one by one or in stacks.

    Args:
        stack: structure of tensors of shape (batches, batch, ...).
        element_spec: structure of `tf.TypeSpec`s of a batch, as Keras shall see it.
        steps: batches in an epoch.
    """

    def __init__(self, stack: Any, element_spec: Any, steps: int) -> None:
        self._stack = stack
        self._steps = steps
        self._batches = self._fast(tf.data.Dataset.from_tensor_slices(stack).repeat().take(steps))
        self._element_spec = element_spec
        super().__init__(self._batches._variant_tensor)  # pyright: ignore[reportCallIssue]

    @property
    def element_spec(self) -> Any:
        return self._element_spec

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._batches]

    def __iter__(self) -> tf.data.Iterator:
        iterator = super().__iter__()
        object.__setattr__(iterator, "stacks", self._stacks)
        return iterator

    def _stacks(self, count: int) -> tf.data.Iterator:
        return iter(self._fast(self._batches.batch(count)))

    @staticmethod
    def _fast(dataset: tf.data.Dataset) -> tf.data.Dataset:
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.prefetch(2).with_options(options)


def _bytes_of(batch: Any) -> int:
    return sum(component.shape.num_elements() * component.dtype.size for component in _components(batch))


def _components(batch: Any) -> list[tf.Tensor]:
    return tf.nest.flatten(batch, expand_composites=True)


def _as_dataset(data: Any, batch_size: int) -> tuple[tf.data.Dataset, int | None]:
    """The data as a dataset of batches, and their number in an epoch, None where there is none."""
    if isinstance(data, tf.data.Dataset):
        batches = int(data.cardinality())
        return data, batches if batches >= 0 else None
    if isinstance(data, keras.utils.PyDataset):
        batches = data.num_batches
        spec = tf.nest.map_structure(_spec_of, _as_tuple(data[0]))

        def read() -> Iterable[Any]:
            return (_as_tuple(data[i]) for i in (itertools.count() if batches is None else range(batches)))

        return tf.data.Dataset.from_generator(read, output_signature=spec), batches
    if _is_array(data) and not isinstance(data, (tuple, list)):
        data = (data,)  # x alone, also a dict of arrays
    if isinstance(data, tuple) and 1 <= len(data) <= 3 and all(_is_array(part) for part in data):
        rows = {len(component) for part in data for component in keras.tree.flatten(part)}
        if len(rows) != 1:
            raise ValueError(f"The arrays in `data` must have equally many examples. Received: {sorted(rows)}.")
        parts: Any = keras.tree.map_structure(_as_fit_takes, data[0] if len(data) == 1 else data)
        dataset = tf.data.Dataset.from_tensor_slices(parts).batch(batch_size)
        return dataset, math.ceil(rows.pop() / batch_size)
    hint = ""
    if hasattr(data, "__next__"):
        hint = " A generator would be used up by being measured: make a tf.data.Dataset of it (from_generator)."
    raise TypeError(
        "`data` must be a FastDataset, a tf.data.Dataset of batches, a keras.utils.PyDataset, arrays x or a tuple of "
        f"arrays (x, y) or (x, y, sample_weight). Received: {type(data).__name__}.{hint}"
    )


def _to_look_at(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, Callable[[], None]]:
    """What to read in place of a dataset, and what to call after it, so that the dataset has not moved on."""
    counted: Any = dataset if hasattr(dataset, "epochs_begun") else None  # a FastDataset counts its epochs
    position = (0, 0) if counted is None else counted.position

    def put_back() -> None:
        if counted is not None:
            counted.resume_at(*position)

    if counted is not None and not counted.is_stream:
        counted.epochs_begun = position[0]  # where it would begin in the middle of an epoch, little may be left
        return dataset, put_back
    copy = unread_copy(dataset)
    if copy is None:
        warnings.warn(
            "This dataset can't be copied, so a few batches are read from the dataset itself: if it shuffles, its "
            "epochs from now on have another order than without tune().",
            stacklevel=4,
        )
    return copy or dataset, put_back


def _is_array(part: Any) -> bool:
    leaves = keras.tree.flatten(part)
    return bool(leaves) and all(
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and len(leaf.shape) for leaf in leaves
    )


def _as_fit_takes(array: Any) -> Any:
    """Floating-point arrays in Keras' floatx, as in `fit(x, y)`."""
    array = np.asarray(array)
    return array.astype(keras.config.floatx()) if np.issubdtype(array.dtype, np.floating) else array


def _as_tuple(batch: Any) -> tuple:
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def _spec_of(array: Any) -> tf.TensorSpec:
    array = np.asarray(array)
    return tf.TensorSpec([None, *array.shape[1:]], array.dtype)
