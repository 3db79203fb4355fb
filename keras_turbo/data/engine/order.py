"""(seed, epoch, shard) -> the order of examples: a pure function over positions 0..n-1."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

# RandomIndexShuffle walks a cipher of at least 16 bits until it falls into range: measured at 0.8 us an index for
# 10,000 positions, but 7 us for 1,000 and 80 us for 100. Up to this many a permutation is drawn whole (0.5 MB).
WHOLE_PERMUTATION_LIMIT = 65_536

# Positions that are worked out together: of more examples, no permutation is whole in memory.
_POSITIONS_AT_ONCE = 65_536

#: What becomes of examples that cannot be dealt out evenly.
Remainder = Literal["keep", "drop", "fill"]
REMAINDERS: tuple[Remainder, ...] = get_args(Remainder)

# Rounds of the block cipher. With the 4 of tf.random.experimental.index_shuffle the orders of consecutive epochs are
# related (100,000 positions: most examples move by one of a few distances); with 8 no test told them from random ones.
_CIPHER_ROUNDS = 8


@dataclasses.dataclass(frozen=True)
class ExampleOrder:
    """The order in which the positions of a source are visited, epoch by epoch.

    The order of an epoch is a pure function of `(seed, epoch, shard_index)`; nothing is drawn from a global generator,
    and no state is kept between epochs. All shards of one epoch are disjoint, and together they are complete.

    Above 65,536 positions the permutation is never held in memory: position after position comes from TensorFlow's
    `RandomIndexShuffle`, a format-preserving permutation by a block cipher (SIMON, Beaulieu et al. 2013), as in Grain.
    Below that it is one `tf.random.experimental.stateless_shuffle`.

    Args:
        num_positions: number of positions in the source, over all shards.
        shuffle: whether the order is a permutation (else 0, 1, 2, ...).
        seed: integer that selects the permutations.
        reshuffle_each_epoch: whether each epoch has its own permutation. Without it all epochs have that of epoch 0.
        num_shards: number of disjoint parts that the order is dealt into, one position to each in turn.
        shard_index: which of those parts this is.
        remainder: what becomes of the positions of a last turn that is not full: "keep" gives them to the first parts,
            "drop" to none, and "fill" has the turn filled up by the first positions of the epoch once more.
    """

    num_positions: int
    shuffle: bool = False
    seed: int = 0
    reshuffle_each_epoch: bool = True
    num_shards: int = 1
    shard_index: int = 0
    remainder: Remainder = "keep"

    def __post_init__(self) -> None:
        if self.num_shards < 1:
            raise ValueError(f"num_shards must be at least 1. Received: num_shards={self.num_shards}.")
        if not 0 <= self.shard_index < self.num_shards:
            raise ValueError(
                f"A shard's index must lie between 0 and num_shards - 1 = {self.num_shards - 1}. "
                f"Received: {self.shard_index}."
            )
        if self.remainder not in REMAINDERS:
            raise ValueError(f"`remainder` must be one of {', '.join(REMAINDERS)}. Received: {self.remainder!r}.")

    @property
    def num_examples(self) -> int:
        """Number of positions of this shard."""
        if self.remainder == "drop":
            return self.num_positions // self.num_shards
        if self.remainder == "fill":
            return -(-self.num_positions // self.num_shards)
        return len(range(self.shard_index, self.num_positions, self.num_shards))

    @property
    def is_whole(self) -> bool:
        """Whether an epoch visits all positions."""
        return self.num_shards == 1

    @property
    def is_fixed(self) -> bool:
        """Whether all epochs have one and the same order."""
        return not (self.shuffle and self.reshuffle_each_epoch)

    @property
    def details(self) -> dict[str, Any]:
        """What else decides the order, made of JSON's types."""
        return {}

    def shard(self, num_shards: int, index: int, remainder: Remainder = "keep") -> ExampleOrder:
        """A part of this part: shard `index` of `num_shards` of what this order visits.

        Of a part of a part, `remainder` counts for all the parts together.
        """
        if not 0 <= index < num_shards:
            raise ValueError(
                f"A shard's index must lie between 0 and num_shards - 1. "
                f"Received: num_shards={num_shards}, index={index}."
            )
        return dataclasses.replace(
            self,
            num_shards=self.num_shards * num_shards,
            shard_index=self._index_of_part(num_shards, index),
            remainder=remainder,
        )

    def _index_of_part(self, num_shards: int, index: int) -> int:
        """The number of a shard of this shard among all of that size."""
        return self.shard_index + self.num_shards * index

    def positions(self, epoch: int, ordinals: np.ndarray | None = None) -> np.ndarray:
        """The positions at some ordinals of an epoch, or all of them in their order.

        Args:
            epoch: its number, from 0.
            ordinals: int64 vector; the first example of this shard's epoch has ordinal 0.

        Returns:
            int64 vector of the same length.
        """
        if ordinals is None:
            ordinals = np.arange(self.num_examples, dtype=np.int64)
        if self.num_shards > 1:
            ordinals = ordinals * self.num_shards + self.shard_index
        if self.remainder == "fill":
            ordinals = ordinals % self.num_positions
        if not self.shuffle:
            return ordinals
        seed = np.array([self.seed, epoch if self.reshuffle_each_epoch else 0], np.int64)
        with tf.device("CPU:0"):
            if self.num_positions > WHOLE_PERMUTATION_LIMIT:
                return _index_shuffled(ordinals, seed, self.num_positions)
            # The algorithm is named since "auto_select" would give another order on another kind of device.
            everything = tf.range(self.num_positions, dtype=tf.int64)
            return tf.random.experimental.stateless_shuffle(everything, seed=seed, alg="philox").numpy()[ordinals]

    def pieces(self, epoch: int, first: int = 0) -> Iterator[np.ndarray]:
        """The positions of an epoch in pieces, so that the order of many need not be whole in memory.

        Args:
            epoch: its number, from 0.
            first: the ordinal with which to begin.
        """
        for start in range(first, self.num_examples, _POSITIONS_AT_ONCE):
            stop = min(start + _POSITIONS_AT_ONCE, self.num_examples)
            yield self.positions(epoch, np.arange(start, stop, dtype=np.int64))


def _index_shuffled(ordinals: np.ndarray, seed: np.ndarray, num_positions: int) -> np.ndarray:
    """Positions at some ordinals (int64 vectors) of a permutation that is never whole in memory."""
    # The cipher's key. By itself it tells seeds apart too little that differ in a bit, as those of two epochs do.
    key = tf.random.stateless_uniform(
        [3],
        tf.constant(seed),
        minval=None,  # pyright: ignore[reportArgumentType] (all 64 bits, as TensorFlow documents it)
        maxval=None,
        dtype=tf.int64,
        alg="philox",
    )

    def shuffled(indices: np.ndarray, last: int) -> np.ndarray:
        return tf.raw_ops.RandomIndexShuffle(
            index=indices, seed=key, max_index=np.int64(last), rounds=_CIPHER_ROUNDS
        ).numpy()

    last = num_positions - 1
    if last & (last - 1):
        return shuffled(ordinals, last)
    # Where the last index is a power of four (65,536 is one), TensorFlow (2.17 to 2.21) gives its cipher a bit too few,
    # and two ordinals get the same position. So one position more is shuffled, and what lands there goes where that
    # one would.
    positions = shuffled(ordinals, num_positions)
    instead = shuffled(np.array([num_positions], np.int64), num_positions)
    return np.where(positions == num_positions, instead, positions)


class EpochCounter:
    """Counts the epochs of a dataset where they are known to begin: when their first element is pulled.

    Keras makes an iterator more than it has epochs and drops it unread, so counting iterators would skip every other
    order. A tf.Variable would not do: made under a strategy's scope it would be mirrored.
    """

    def __init__(self) -> None:
        self._next_epoch = 0
        self._first_batch = 0
        self._lock = threading.Lock()

    def begin_epoch(self) -> tuple[int, int]:
        """Begins an epoch, and counts it up for the next.

        Returns:
            The number of the epoch that begins here, from 0, and its first batch: 0, but for one that is resumed.
        """
        with self._lock:
            begun = self._next_epoch, self._first_batch
            self._next_epoch += 1
            self._first_batch = 0
        return begun

    def resume_at(self, epoch: int, batch: int) -> None:
        """Lets the next epoch to begin be this one, from this batch on."""
        with self._lock:
            self._next_epoch, self._first_batch = epoch, batch

    @property
    def next_epoch(self) -> int:
        """The number that the next epoch to begin will have."""
        return self._next_epoch

    @property
    def position(self) -> tuple[int, int]:
        """That number, and the batch from which on the epoch will be."""
        with self._lock:
            return self._next_epoch, self._first_batch
