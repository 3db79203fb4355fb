"""Inputs that can only be read from their beginning: a `tf.data.Dataset`, and what Python generators give."""

from __future__ import annotations

import abc
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.engine.node import process_is_ending
from keras_turbo.data.engine.store import ExampleStore, memory_store, why_not_storable
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.machine import free_memory_bytes
from keras_turbo.report import progress_bar

# Examples that the stream makes together while a store is filled: the store is written once for each such batch.
_FILL_BATCH = 32

# A buffered shuffle holds at most this many examples, and this share of the free memory: the habit of tf.data users.
_LARGEST_SHUFFLE_BUFFER = 10_000
_SHUFFLE_BUFFER_SHARE = 0.125

# Datasets that give the elements of the one before them, or as many batches as that has.
_PASSING = ("Map", "Prefetch", "Options", "Shuffle", "Repeat", "Take", "Skip", "Cache", "Shard", "AssertCardinality")


class Stream(abc.ABC):
    """Elements without positions: examples or, with `batch_size=None`, whatever shall reach the model."""

    #: What errors call it, behind an article.
    kind: str
    #: What a warning says how to get a full shuffle.
    gets_positions_by: str
    #: Processes that make its elements in Python, 0 being this one; None where threads make them.
    processes: int | None = None
    #: Whether an epoch can begin in its middle without reading what comes before.
    can_seek: bool = False
    #: Whether what is random in it is a function of the seed that it is given.
    is_random: bool = False

    #: Number of elements; negative where unknown or infinite, as `tf.data` has it.
    number: int
    #: Structure of `tf.TypeSpec`s of an element.
    element_spec: Any

    @abc.abstractmethod
    def elements(
        self, epoch: tf.Tensor, shuffle_seed: tf.Tensor | None, num_skipped: tf.Tensor, seed: int
    ) -> tf.data.Dataset:
        """Graph code: the elements of one epoch.

        Args:
            epoch: its number, int64 scalar.
            shuffle_seed: int64 scalar; None for the order of the stream.
            num_skipped: how many elements are left out in the beginning, int64 scalar.
            seed: that of the dataset, of which what is random in it shall be a function.
        """

    def shuffled(self, elements: tf.data.Dataset, shuffle_seed: tf.Tensor) -> tf.data.Dataset:
        """Graph code: elements shuffled through a buffer by a seed (int64 scalar), for one epoch."""
        return elements.shuffle(
            self.shuffle_buffer_size,
            seed=shuffle_seed,  # pyright: ignore[reportArgumentType] (a tensor does, in a graph)
            reshuffle_each_iteration=False,
        )

    def adapted(self, settings: Settings) -> Settings:
        """Settings as they apply to this stream."""
        return settings

    def used_by(self, dataset: Any) -> None:  # noqa: B027 (most have nothing to do)
        """Takes note of a dataset over it."""

    @property
    def shuffle_buffer_size(self) -> int:
        """Elements that the buffered shuffle holds."""
        size = _LARGEST_SHUFFLE_BUFFER if self.number < 0 else min(self.number, _LARGEST_SHUFFLE_BUFFER)
        spec = self.element_spec
        if all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(spec)):
            elements = Elements(spec)
            if why_not_storable(elements) is None:
                budget = _SHUFFLE_BUFFER_SHARE * free_memory_bytes()
                size = min(size, int(budget / max(1, elements.row_bytes)))
        return max(size, 1)

    def warn_of_buffered_shuffle(self) -> None:
        """Says that this is no full shuffle, where it is none."""
        size = self.shuffle_buffer_size
        if 0 <= self.number <= size:
            return
        warnings.warn(
            f"shuffle=True of a {self.kind} without a store mixes {size} neighbouring elements at a time. For a "
            f"full shuffle {self.gets_positions_by}.",
            stacklevel=6,  # where the FastDataset is made
        )


class TfDatasetStream(Stream):
    """The elements of a `tf.data.Dataset`."""

    kind = "tf.data.Dataset"
    gets_positions_by = "give cache='memory' or cache='disk', or build the FastDataset from arrays or files"

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        self.number = int(dataset.cardinality())
        self.element_spec = dataset.element_spec

    def elements(
        self, epoch: tf.Tensor, shuffle_seed: tf.Tensor | None, num_skipped: tf.Tensor, seed: int
    ) -> tf.data.Dataset:
        elements = self._dataset if shuffle_seed is None else self.shuffled(self._dataset, shuffle_seed)
        return elements.skip(num_skipped)


class OfOneShape(Stream):
    """A stream that declares sizes as unknown, and whose elements are all like the first one.

    What makes windows of a series declares no length, and what is read to be kept needs one.

    Args:
        stream: gives dense tensors; its first element is read.
        seed: of the dataset.
    """

    def __init__(self, stream: Stream, seed: int) -> None:
        self._stream = stream
        self.kind, self.number, self.processes = stream.kind, stream.number, stream.processes
        with tf.device("CPU:0"):
            zero = tf.constant(0, tf.int64)
            first = next(iter(stream.elements(zero, None, zero, seed).take(1)), None)
        if first is None:
            raise ValueError(f"The {stream.kind} gave no element.")
        self.element_spec = tf.nest.map_structure(
            lambda spec, tensor: tf.TensorSpec(tensor.shape, spec.dtype), stream.element_spec, first
        )

    def elements(
        self, epoch: tf.Tensor, shuffle_seed: tf.Tensor | None, num_skipped: tf.Tensor, seed: int
    ) -> tf.data.Dataset:
        def ensured(*parts: Any) -> Any:
            element = parts if len(parts) > 1 else next(iter(parts))
            return tf.nest.map_structure(lambda one, spec: tf.ensure_shape(one, spec.shape), element, self.element_spec)

        elements = self._stream.elements(epoch, shuffle_seed, num_skipped, seed)
        return elements.map(tf.autograph.experimental.do_not_convert(ensured))


def check_not_batched(dataset: tf.data.Dataset, batch_size: int | None) -> None:
    """Refuses to make batches of batches.

    Raises:
        ValueError: the elements of the dataset are batches.
    """
    if batch_size is None:
        return
    while True:
        name = type(dataset).__name__
        if "Batch" in name and "Unbatch" not in name:
            raise ValueError(
                f"The tf.data.Dataset has been batched, and batch_size={batch_size} would make batches of its batches. "
                "Give batch_size=None to have its batches as they are, or its .unbatch() to have other ones."
            )
        inputs = dataset._inputs() if any(passing in name for passing in _PASSING) else []
        if len(inputs) != 1:
            return
        dataset = inputs[0]


class StoredStream(Source):
    """The elements of a stream by their places in it, once they are in a store.

    Args:
        stream: gives them.
        number: of its elements.
    """

    loading_is_called = None

    def __init__(self, stream: Stream, number: int) -> None:
        self._stream = stream
        self._number = number
        self.elements = Elements(stream.element_spec)

    def __len__(self) -> int:
        return self._number

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column], dict[int, Exception]]:
        raise TypeError(f"A {self._stream.kind} can't be read by position.")

    def name(self, position: int) -> str:
        return f"element {position} of the {self._stream.kind}"

    def identity(self) -> Identity | None:
        return None

    def fill(self, store: ExampleStore, map_element: Callable[[Any], Any], seed: int) -> None:
        """Writes every element into a store, with a progress bar if there is a terminal.

        Raises:
            ValueError: there are more or fewer than there should be.
        """
        if store.is_complete:
            return
        given = 0
        with progress_bar("Filling the example store", len(store)) as advance:
            for columns in _read(self._stream, map_element, seed):
                rows = np.arange(given, given + len(columns[0]))
                given += len(rows)
                if given > len(store):
                    break
                store.put(rows, columns)
                advance(len(rows))
                if process_is_ending():
                    return
        store.save()
        if given != len(store):
            raise ValueError(
                f"The {self._stream.kind} gave {f'only {given}' if given < len(store) else 'more'} "
                f"elements, where its cardinality() says {len(store)}. Correct it with "
                "tf.data.experimental.assert_cardinality."
            )


def read_into_memory(stream: Stream, elements: Elements, map_element: Callable[[Any], Any], seed: int) -> ExampleStore:
    """Reads a stream of unknown length once, to its end.

    Raises:
        ValueError: it takes more than is free, or has no element.
    """
    parts: list[list[np.ndarray]] = []
    num_bytes = 0
    with progress_bar("Reading all examples", None) as advance:
        for columns in _read(stream, map_element, seed):
            parts.append(columns)
            advance(len(columns[0]))
            num_bytes += sum(column.nbytes for column in columns)
            if num_bytes > free_memory_bytes():  # they are copied once more, in one piece
                raise ValueError(
                    f"cache='memory' can't hold a {stream.kind} of unknown length: the memory was used up after "
                    f"{sum(len(part[0]) for part in parts)} elements. Use cache='disk' or cache=False."
                )
    if not parts:
        raise ValueError(f"The {stream.kind} gave no element.")
    number = sum(len(part[0]) for part in parts)
    store = memory_store(elements, number)
    given = 0
    while parts:
        columns = parts.pop(0)
        store.put(np.arange(given, given + len(columns[0])), columns)
        given += len(columns[0])
    return store


def count_elements(stream: Stream, seed: int) -> int:
    """Reads a stream of unknown length to its end, to know how many elements it has.

    Raises:
        ValueError: none.
    """
    number = sum(len(columns[0]) for columns in _read(stream, lambda _: tf.constant(0), seed))
    if not number:
        raise ValueError(f"The {stream.kind} gave no element.")
    return number


def _read(stream: Stream, map_element: Callable[[Any], Any], seed: int) -> Any:
    """The elements of a stream, some at a time, as arrays of their tensors."""
    with tf.device("CPU:0"):
        zero = tf.constant(0, tf.int64)
        elements = stream.elements(zero, None, zero, seed)
        mapped = elements.map(
            lambda *parts: map_element(parts if len(parts) > 1 else next(iter(parts))),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        try:
            for batch in mapped.batch(_FILL_BATCH):
                yield [leaf.numpy() for leaf in tf.nest.flatten(batch)]
        except tf.errors.InvalidArgumentError as error:
            shapes = re.search(r"(\[[\d,]*\]) is not compatible with expected shape (\[[\d,]*\])", error.message)
            if not isinstance(stream, OfOneShape) or shapes is None:
                raise
            raise ValueError(
                f"A cache keeps examples of one shape. The first of the {stream.kind} has a tensor of shape "
                f"{shapes[2]}, and a later one {shapes[1]}. Pad them to one shape, or use cache=False."
            ) from error
