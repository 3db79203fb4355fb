"""What every input with positions offers to the pipeline."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.failures import SkippedExample


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a disk store remembers of a source, as JSON-able descriptions.

    Attributes:
        recipe: how examples are made of it: kind, folder, options.
        content: what is in it now: paths with sizes and times, or a digest of the data.
    """

    recipe: Any
    content: Any


class Source(abc.ABC):
    """Examples that can be had by position, in any order."""

    #: Whether `load` gives other pixels each time, by the seed that it is given; such examples are never stored.
    is_random: bool = False
    #: Whether a single example can fail to load (a damaged file).
    can_fail: bool = False
    #: Whether its stages can be told apart and measured.
    can_be_measured: bool = True
    #: What a report calls `load`.
    loading_is_called: str = "load"
    #: Whether `gather` gives whole batches from memory, so that neither a store nor parallel calls have a use.
    in_memory: bool = False
    #: Whether examples can also be made many at a time, by `make_rows`, where nothing is done to a single one.
    makes_rows: bool = False
    #: Why other machines can't make its examples, as a clause; None if they can.
    why_not_remote: str | None = None
    #: Bytes of the data that graphs hold themselves.
    bytes_in_graph: int = 0

    #: What was left out when the source was built, since it can't be read.
    left_out: Sequence[SkippedExample] = ()

    @property
    @abc.abstractmethod
    def num_examples(self) -> int:
        """Number of positions."""

    def order(self, *, shuffle: bool, seed: int, reshuffle_each_epoch: bool) -> ExampleOrder:
        """In which order its positions are visited, if all of them are."""
        return ExampleOrder(self.num_examples, shuffle=shuffle, seed=seed, reshuffle_each_epoch=reshuffle_each_epoch)

    def known_failure(self, position: int) -> str:
        """Why an example can't be loaded, where that is known without loading it; empty where it is not."""
        return ""

    @abc.abstractmethod
    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        """Graph code: the example at a position.

        Args:
            position: int64 scalar.
            seed: int64, shape (2,); used by random sources only.
        """

    def load_remotely(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        """Graph code: as `load`, by TensorFlow's operations alone, for a process that has none of this one's Python."""
        return self.load(position, seed)

    def gather(self, positions: tf.Tensor) -> Any:
        """Graph code: the examples at some positions (int64, any shape), for sources that are `in_memory`."""
        raise TypeError(f"{type(self).__name__} has no examples in memory to gather.")

    @property
    def rows_at_once(self) -> int | None:
        """How many examples `read_rows` and `make_rows` shall get at a time; None where a source has neither."""
        return None

    def read_rows(self, positions: tf.Tensor) -> dict[str, tf.Tensor]:
        """Graph code: what `load_row` needs of the examples at some positions (int64 vector), with a first axis."""
        raise TypeError(f"{type(self).__name__} has examples one by one.")

    def load_row(self, row: Any, seed: tf.Tensor) -> Any:
        """Graph code: an example as `load` gives it, of one row of what `read_rows` gave."""
        raise TypeError(f"{type(self).__name__} has examples one by one.")

    def make_rows(self, chunks: tf.data.Dataset, parallel_calls: int) -> tf.data.Dataset:
        """Examples of chunks of positions.

        Args:
            chunks: dicts of vectors, one of them "position".
            parallel_calls: how many chunks to work at.

        Returns:
            The same dicts with "out", the examples. Rows whose example fails are left out of all vectors; a chunk may
            also fail whole.
        """
        raise TypeError(f"{type(self).__name__} has examples one by one.")

    def finish(self, batches: tf.data.Dataset, parallel_calls: int) -> tf.data.Dataset:
        """What is still to be done to batches of "out" before anybody sees them."""
        return batches

    @abc.abstractmethod
    def describe(self, position: int) -> str:
        """What to call one example in an error: its path, or its index."""

    def labels_at(self, positions: np.ndarray) -> Any:
        """The labels of the examples at some positions (class numbers where there are classes); None without labels."""
        return None

    @abc.abstractmethod
    def identity(self) -> Identity | None:
        """What a later process recognises the examples by; None where it can't."""
