"""What every input with positions offers to the pipeline."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf


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

    @property
    @abc.abstractmethod
    def num_examples(self) -> int:
        """Number of positions."""

    @abc.abstractmethod
    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        """Graph code: the example at a position.

        Args:
            position: int64 scalar.
            seed: int64, shape (2,); used by random sources only.
        """

    def gather(self, positions: tf.Tensor) -> Any:
        """Graph code: the examples at some positions (int64, any shape), for sources that are `in_memory`."""
        raise TypeError(f"{type(self).__name__} has no examples in memory to gather.")

    @abc.abstractmethod
    def describe(self, position: int) -> str:
        """What to call one example in an error: its path, or its index."""

    def labels_at(self, positions: np.ndarray) -> Any:
        """The labels of the examples at some positions (class numbers where there are classes); None without labels."""
        return None

    @abc.abstractmethod
    def identity(self) -> Identity | None:
        """What a later process recognises the examples by; None where it can't."""
