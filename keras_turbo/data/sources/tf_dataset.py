"""A `tf.data.Dataset` of examples, which can be read from its beginning only."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_store import ExampleStore, bytes_per_example, why_not_storable
from keras_turbo.data.python_calls import process_is_ending
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.machine import free_memory_bytes
from keras_turbo.report import progress_bar

# Examples that the source makes together while a store is filled: the store is written once for each such batch.
_FILL_BATCH = 32

# A buffered shuffle holds at most this many examples, and this share of the free memory: the habit of tf.data users.
_LARGEST_SHUFFLE_BUFFER = 10_000
_SHUFFLE_BUFFER_SHARE = 0.125


class TfDatasetSource(Source):
    """The elements of a `tf.data.Dataset`, with positions in its own order once they are in a store.

    Args:
        dataset: elements are examples (or, with `batch_size=None`, whatever shall reach the model). None for a subclass
            that makes them in `epoch_elements`.
        num_examples: its cardinality; negative where unknown or infinite.
    """

    can_be_measured = False
    why_not_remote = (
        "only examples that have positions can be dealt out to them: a tf.data.Dataset has none, and can be given to "
        "tf.data.experimental.service.distribute by itself, as TensorFlow describes it"
    )
    #: What errors call it.
    is_called = "a tf.data.Dataset"
    #: What a warning says how to get a full shuffle.
    gets_positions_by = "give cache='memory' or cache='disk', or build the FastDataset from arrays or files"
    #: Whether an epoch can begin in its middle without reading what comes before.
    can_seek = False

    def __init__(self, dataset: Any, num_examples: int) -> None:
        self.dataset: tf.data.Dataset = dataset
        self._num_examples = num_examples

    @property
    def num_examples(self) -> int:
        return self._num_examples

    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        raise TypeError("A tf.data.Dataset can't be read by position.")

    def any_element(self) -> Any:
        """Graph code: some element, for tracing what follows."""
        return self.dataset.get_single_element()

    def describe(self, position: int) -> str:
        return f"element {position} of the tf.data.Dataset"

    def identity(self) -> Identity | None:
        return None

    def fill(self, store: ExampleStore, map_element: Callable[[Any], Any]) -> None:
        """Writes every example into a store, with a progress bar if there is a terminal."""
        if store.num_filled == store.num_examples:
            return
        examples = self.dataset.enumerate().map(
            lambda position, element: (position, map_element(element)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        given = 0
        with progress_bar("Filling the example store", store.num_examples) as advance:
            for positions, batch in examples.batch(_FILL_BATCH):
                rows = np.asarray(positions)
                given = int(rows[-1]) + 1
                if given > store.num_examples:
                    break
                store.write(rows, *(leaf.numpy() for leaf in store.to_stored(batch)))
                advance(len(rows))
                if process_is_ending():
                    return
        store.save()
        if given != store.num_examples:
            raise ValueError(
                f"The tf.data.Dataset gave {f'only {given}' if given < store.num_examples else 'more'} elements, where "
                f"its cardinality() says {store.num_examples}. Correct it with tf.data.experimental.assert_cardinality."
            )

    @property
    def element_spec(self) -> Any:
        """Structure of `tf.TensorSpec`s of an element."""
        return self.dataset.element_spec

    def epoch_elements(
        self, epoch: tf.Tensor, shuffle_seed: tf.Tensor | None, num_skipped: tf.Tensor, seed: int
    ) -> tf.data.Dataset:
        """Graph code: the elements of one epoch.

        Args:
            epoch: its number, int64 scalar.
            shuffle_seed: int64 scalar; None for the order of the source.
            num_skipped: how many elements are left out in the beginning, int64 scalar.
            seed: that of the dataset, of which what is random in it shall be a function.
        """
        elements = self.dataset if shuffle_seed is None else self.buffered_shuffle(self.dataset, shuffle_seed)
        return elements.skip(num_skipped)

    def buffered_shuffle(self, elements: tf.data.Dataset, shuffle_seed: tf.Tensor) -> tf.data.Dataset:
        """Graph code: elements shuffled through a buffer by a seed (int64 scalar), for one epoch."""
        return elements.shuffle(
            self.shuffle_buffer_size,
            seed=shuffle_seed,  # pyright: ignore[reportArgumentType] (a tensor does, in a graph)
            reshuffle_each_iteration=False,
        )

    @property
    def shuffle_buffer_size(self) -> int:
        """Elements that the buffered shuffle holds."""
        size = _LARGEST_SHUFFLE_BUFFER if self._num_examples < 0 else min(self._num_examples, _LARGEST_SHUFFLE_BUFFER)
        if why_not_storable(self.element_spec) is None:
            budget = _SHUFFLE_BUFFER_SHARE * free_memory_bytes()
            size = min(size, int(budget / max(1, bytes_per_example(self.element_spec))))
        return max(size, 1)

    def warn_of_buffered_shuffle(self) -> None:
        """Says that this is no full shuffle, where it is none."""
        size = self.shuffle_buffer_size
        if 0 <= self._num_examples <= size:
            return
        warnings.warn(
            f"shuffle=True of {self.is_called} without a store mixes {size} neighbouring elements at a time. For a "
            f"full shuffle {self.gets_positions_by}.",
            stacklevel=6,  # where the FastDataset is made
        )
