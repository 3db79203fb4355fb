"""(seed, epoch, shard) -> the order of rows that are read a row group at a time."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.example_order import ExampleOrder
from keras_turbo.data.python_calls import call_on

# What a stream of random numbers is for stands in the third word of its counter, apart from its seed and epoch.
_OF_GROUPS, _OF_ROWS = 1, 2

# Windows whose order is kept: the one that is read, the next, and one more for who is slow.
_WINDOWS_KEPT = 3


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The row groups of an epoch in their order.

    Attributes:
        epoch: its number.
        groups: of the row groups.
        begins: at which place each begins, counted in rows.
        ends: at which it ends.
    """

    epoch: int
    groups: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


class _Windows:
    """The latest of what was worked out."""

    def __init__(self) -> None:
        self._kept: collections.OrderedDict[tuple[int, ...], Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[int, ...], make: Any) -> Any:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
                while len(self._kept) > _WINDOWS_KEPT + 1:  # and the layout
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


@dataclasses.dataclass(frozen=True)
class RowGroupOrder(ExampleOrder):
    """An order in which rows that are stored together are visited together.

    Shuffled, an epoch has the row groups in a random order; so many of them in turn are a window, and the rows of each
    window are shuffled among themselves. So a row group is read once in an epoch. A shard has a contiguous part of the
    row groups in that order, of as many rows as the other shards (or one more): where it ends within a row group, the
    next one has the rest of it.

    All is a pure function of `(seed, epoch, shard)`: permutations are made by sorting what the counter-based generator
    Philox (Salmon et al. 2011) gives, whose bits NumPy promises to keep.

    Args:
        group_sizes: rows of each row group, in the order of positions.
        window: row groups whose rows are shuffled together.
    """

    group_sizes: tuple[int, ...] = ()
    window: int = 1
    _windows: _Windows = dataclasses.field(default_factory=_Windows, init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.group_sizes) != self.num_positions or self.window < 1:
            raise ValueError(
                f"Row groups of {sum(self.group_sizes)} rows in windows of {self.window} are no order of "
                f"{self.num_positions} positions."
            )

    @property
    def num_examples(self) -> int:
        if self.remainder == "drop":
            return self.num_positions // self.num_shards
        if self.remainder == "fill":
            return -(-self.num_positions // self.num_shards)
        return self._begin_of(self.shard_index + 1) - self._begin_of(self.shard_index)

    @property
    def details(self) -> dict[str, Any]:
        """As `ExampleOrder.details`; where nothing is shuffled or dealt out, the order is that of any other."""
        groups = {"row_groups": len(self.group_sizes)} if self.shuffle or self.num_shards > 1 else {}
        return {**groups, **({"shuffled_within_row_groups": self.window} if self.shuffle else {})}

    @property
    def permutation_size(self) -> int:
        return 0

    def at(self, ordinals: tf.Tensor, epoch: tf.Tensor, permutation: tf.Tensor) -> tf.Tensor:
        positions = call_on(self, RowGroupOrder._positions_at, [epoch, ordinals], tf.int64)
        return tf.ensure_shape(positions, ordinals.shape)

    def positions(self, epoch: int, ordinals: np.ndarray | None = None) -> np.ndarray:
        return self._positions_at(epoch, np.arange(self.num_examples) if ordinals is None else np.asarray(ordinals))

    def _positions_at(self, epoch: int | np.integer, ordinals: np.ndarray) -> np.ndarray:
        """The positions at some ordinals (of any order) of an epoch."""
        layout = self._layout(int(epoch) if self.reshuffle_each_epoch else 0)
        places = ordinals + self._begin_of(self.shard_index)
        if self.shuffle:
            places = self._shuffled(layout, places)
        places = places % self.num_positions  # those that fill a shard up may come after the end
        groups = np.searchsorted(layout.ends, places, "right")
        return (places - layout.begins[groups] + self._firsts[layout.groups[groups]]).astype(np.int64)

    def _shuffled(self, layout: _Layout, places: np.ndarray) -> np.ndarray:
        """Places in the order of row groups as they come when the rows of each window are shuffled."""
        begin = self._begin_of(self.shard_index)
        stop = begin + self.num_examples
        first_group = int(np.searchsorted(layout.ends, begin, "right"))
        # The last window also has what fills the shard up.
        ends = layout.ends[first_group + self.window - 1 :: self.window]
        ends = np.append(ends[ends < stop], stop)
        begins = np.concatenate([[begin], ends[:-1]])
        windows = np.searchsorted(ends, places, "right")
        shuffled = np.empty_like(places)
        for window in np.unique(windows).tolist():
            are_in = windows == window
            start, size = int(begins[window]), int(ends[window] - begins[window])
            rows = self._windows.get(
                (layout.epoch, start, size),
                lambda start=start, size=size: _permutation(self.seed, layout.epoch, _OF_ROWS, start, size),
            )
            shuffled[are_in] = start + rows[places[are_in] - start]
        return shuffled

    def _layout(self, epoch: int) -> _Layout:
        def made() -> _Layout:
            sizes = np.asarray(self.group_sizes, np.int64)
            groups = np.arange(len(sizes))
            if self.shuffle:
                groups = _permutation(self.seed, epoch, _OF_GROUPS, 0, len(sizes))
            ends = np.cumsum(sizes[groups])
            return _Layout(epoch, groups, ends - sizes[groups], ends)

        return self._windows.get((epoch,), made)

    def _index_of_part(self, num_shards: int, index: int) -> int:
        return self.shard_index * num_shards + index

    @functools.cached_property
    def _firsts(self) -> np.ndarray:
        sizes = np.asarray(self.group_sizes, np.int64)
        return np.cumsum(sizes) - sizes

    def _begin_of(self, shard: int) -> int:
        return shard * self.num_positions // self.num_shards


def _permutation(seed: int, epoch: int, of: int, number: int, size: int) -> np.ndarray:
    generator = np.random.Philox(
        key=np.array([seed, epoch], np.uint64), counter=np.array([0, 0, of, number], np.uint64)
    )
    order = np.argsort(generator.random_raw(size), kind="stable")
    return order if size > np.iinfo(np.uint32).max else order.astype(np.uint32)
