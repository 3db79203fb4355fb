"""(seed, epoch, shard) -> the order of rows that are read a row group at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_turbo.data.engine.order import ExampleOrder

# What a stream of random numbers is for stands in the third word of its counter, apart from its seed and epoch.
_OF_GROUPS, _OF_ROWS = 1, 2


@dataclasses.dataclass(frozen=True)
class RowGroupOrder(ExampleOrder):
    """An order in which rows that are stored together are visited together.

    Shuffled, an epoch has the row groups (of `group_sizes` rows, in the order of positions) in a random order, and the
    rows of `window` of them in turn are shuffled among themselves: so a row group is read once. A shard has a
    contiguous part of that order, of as many rows as the others (or one more).

    Permutations are made by sorting what the counter-based generator Philox (Salmon et al. 2011) gives, whose bits
    NumPy promises to keep.
    """

    group_sizes: tuple[int, ...] = ()
    window: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.group_sizes) != self.num_positions or self.window < 1:
            raise ValueError(
                f"Row groups of {sum(self.group_sizes)} rows in windows of {self.window} are no order of "
                f"{self.num_positions} positions."
            )

    @property
    def num_examples(self) -> int:
        if self.remainder == "keep":
            return self._begin_of(self.shard_index + 1) - self._begin_of(self.shard_index)
        return super().num_examples

    @property
    def details(self) -> dict[str, Any]:
        """As `ExampleOrder.details`; where nothing is shuffled or dealt out, the order is that of any other."""
        groups = {"row_groups": len(self.group_sizes)} if self.shuffle or self.num_shards > 1 else {}
        return {**groups, **({"shuffled_within_row_groups": self.window} if self.shuffle else {})}

    def positions(self, epoch: int, ordinals: np.ndarray | None = None) -> np.ndarray:
        everything = np.concatenate([np.empty(0, np.int64), *self.pieces(epoch)])
        return everything if ordinals is None else everything[ordinals]

    def pieces(self, epoch: int, first: int = 0) -> Iterator[np.ndarray]:
        """As `ExampleOrder.pieces`: a window at a time."""
        epoch = epoch if self.reshuffle_each_epoch else 0
        sizes = np.asarray(self.group_sizes, np.int64)
        groups = np.arange(len(sizes))
        if self.shuffle:
            groups = _permutation(self.seed, epoch, _OF_GROUPS, 0, len(sizes))
        firsts = (np.cumsum(sizes) - sizes)[groups]
        ends = np.cumsum(sizes[groups])
        begins = ends - sizes[groups]
        start = self._begin_of(self.shard_index)
        first, stop = start + first, start + self.num_examples
        first_group = int(np.searchsorted(ends, start, "right"))
        # The last window also has what fills the shard up, which may come after the end.
        window_ends = ends[first_group + self.window - 1 :: self.window]
        for end in [*window_ends[window_ends < stop].tolist(), stop]:
            if end > first:
                places = np.arange(start, end)
                if self.shuffle:
                    places = places[_permutation(self.seed, epoch, _OF_ROWS, start, end - start)]
                places = places[max(0, first - start) :] % self.num_positions
                at = np.searchsorted(ends, places, "right")
                yield places - begins[at] + firsts[at]
            start = end

    def _index_of_part(self, num_shards: int, index: int) -> int:
        return self.shard_index * num_shards + index

    def _begin_of(self, shard: int) -> int:
        return shard * self.num_positions // self.num_shards


def _permutation(seed: int, epoch: int, of: int, number: int, size: int) -> np.ndarray:
    generator = np.random.Philox(
        key=np.array([seed, epoch], np.uint64), counter=np.array([0, 0, of, number], np.uint64)
    )
    return np.argsort(generator.random_raw(size), kind="stable")
