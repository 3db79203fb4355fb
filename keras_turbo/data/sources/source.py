"""What every input with positions offers to the engine: how many examples, their values, their names."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.engine.failures import SkippedExample
from keras_turbo.data.engine.order import ExampleOrder
from keras_turbo.data.engine.store import ExampleStore
from keras_turbo.data.settings import Settings

#: What `Source.load` takes and gives.
Load = Callable[
    [np.ndarray, np.ndarray | None, list[list[np.ndarray]] | None], tuple[list[Column] | None, dict[int, Exception]]
]


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
    """Examples that can be had by position, in any order, from any thread."""

    #: The form of an example.
    elements: Elements
    #: Whether `load` gives other values each time, by the seeds that it is given; such examples are never stored.
    is_random: bool = False
    #: Whether a single example can fail to load (a damaged file).
    can_fail: bool = False
    #: Whether examples are best loaded many at a time, by one thread.
    loads_together: bool = False
    #: The stateful random operations that a user's function loads examples with.
    random_ops: Sequence[str] = ()
    #: How many of them a thread loads at a time otherwise: few, so that none waits long for the last ones of a batch.
    rows_a_job: int = 4
    #: How many threads load; None leaves it to the user's `workers`.
    most_threads: int | None = None
    #: Rows of the largest example, where examples are batches that may have fewer; None where they are examples.
    most_rows: int | None = None
    #: What a report calls `load`; None where its time can't be measured by itself.
    loading_is_called: str | None = "load"
    #: Processes that make its examples in Python, 0 being this one; None where threads make them.
    processes: int | None = None
    #: What was left out when the source was built, since it can't be read.
    left_out: Sequence[SkippedExample] = ()

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of positions."""

    @abc.abstractmethod
    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column] | None, dict[int, Exception]]:
        """Makes some examples.

        Args:
            positions: int64 vector.
            seeds: int64, shape `(examples, 2)`, for random sources.
            in_place: for each example the arrays that may take its values; None where `loads_together`, since telling
                them costs more than copying columns.

        Returns:
            The columns, or None if the values were written in place; and by index the errors of examples that can't be
            loaded, whose rows mean nothing.
        """

    @abc.abstractmethod
    def name(self, position: int) -> str:
        """What to call one example in an error: its path, or its index."""

    @abc.abstractmethod
    def identity(self) -> Identity | None:
        """What a later process recognises the examples by; None where it can't."""

    def as_store(self) -> ExampleStore | None:
        """All examples in memory, where they are there from the beginning."""
        return None

    def order(self, *, shuffle: bool, seed: int, reshuffle_each_epoch: bool) -> ExampleOrder:
        """In which order its positions are visited, if all of them are."""
        return ExampleOrder(len(self), shuffle=shuffle, seed=seed, reshuffle_each_epoch=reshuffle_each_epoch)

    def adapted(self, settings: Settings) -> Settings:
        """Settings as they apply to this source."""
        return settings

    def labels_at(self, positions: np.ndarray) -> Any:
        """The labels of the examples at some positions (class numbers where there are classes); None without labels."""
        return None

    def used_by(self, dataset: Any) -> None:  # noqa: B027 (most have nothing to do)
        """Takes note of a dataset over it."""

    def begin_epoch(self, epoch: int, seed: int) -> Load:
        """Called before the first example of an epoch is loaded.

        Args:
            epoch: its number, from 0.
            seed: that of the dataset.

        Returns:
            What loads the examples of this epoch, as `load` does.
        """
        return self.load

    def end_epoch(self, epoch: int) -> None:  # noqa: B027
        """Called when the last element of an epoch was taken."""


class ExampleSource(Source):
    """A source whose examples are made one by one, by plain Python on NumPy arrays."""

    @abc.abstractmethod
    def load_one(self, position: int, seed: np.ndarray | None, out: list[np.ndarray] | None) -> list[np.ndarray] | None:
        """Makes one example, or raises whatever tells why it can't be made.

        Args:
            position: of it.
            seed: int64, shape (2,), for random sources.
            out: arrays to write its values into; None to have them returned.
        """

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column] | None, dict[int, Exception]]:
        columns: list[Column] | None = None
        if in_place is None and self.elements.is_fixed:
            arrays = [np.empty((len(positions), *shape), dtype) for shape, dtype in self.elements.arrays]
            in_place = [[array[index, ...] for array in arrays] for index in range(len(positions))]
            columns = [*arrays]
        failures: dict[int, Exception] = {}
        made: list[list[np.ndarray]] = []
        for index, position in enumerate(positions.tolist()):
            try:
                seed = None if seeds is None else seeds[index]
                values = self.load_one(position, seed, None if in_place is None else in_place[index])
            except ImportError:  # of a library that no example can do without
                raise
            except Exception as error:  # whatever a decoder or the user's own function raises is the reason
                failures[index] = error
                values = [column[0] for column in self.elements.zeros(1)]
            if in_place is None:
                made.append(values or [])
        if in_place is None:
            return [list(column) for column in zip(*made, strict=True)], failures
        return columns, failures
