"""(seed, epoch, shard) -> the order of examples.

Nothing here knows what an example is: an order is over positions 0..n-1, so that a full shuffle moves eight bytes
an example and never a decoded image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

# RandomIndexShuffle walks a cipher of at least 16 bits until it falls into range: measured at 0.8 us an index for 10,000
# positions, but 7 us for 1,000 and 80 us for 100. Up to this many positions a permutation is drawn whole (0.5 MB).
WHOLE_PERMUTATION_LIMIT = 65_536

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
    """

    num_positions: int
    shuffle: bool = False
    seed: int = 0
    reshuffle_each_epoch: bool = True
    num_shards: int = 1
    shard_index: int = 0

    def __post_init__(self) -> None:
        if self.num_shards < 1:
            raise ValueError(f"num_shards must be at least 1. Received: num_shards={self.num_shards}.")
        if not 0 <= self.shard_index < self.num_shards:
            raise ValueError(
                f"The shard's index must lie between 0 and num_shards - 1 = {self.num_shards - 1}. "
                f"Received: {self.shard_index}."
            )

    @property
    def num_examples(self) -> int:
        """Number of positions of this shard."""
        return len(range(self.shard_index, self.num_positions, self.num_shards))

    @property
    def is_fixed(self) -> bool:
        """Whether all epochs have one and the same order."""
        return not (self.shuffle and self.reshuffle_each_epoch)

    def shard(self, num_shards: int, index: int) -> ExampleOrder:
        """A part of this part: shard `index` of `num_shards` of what this order visits."""
        if not 0 <= index < num_shards:
            raise ValueError(
                f"A shard's index must lie between 0 and num_shards - 1. "
                f"Received: num_shards={num_shards}, index={index}."
            )
        return dataclasses.replace(
            self,
            num_shards=self.num_shards * num_shards,
            shard_index=self.shard_index + self.num_shards * index,
        )

    def of_epoch(self, epoch: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        """The order of one epoch, as graph code.

        Args:
            epoch: int64 scalar, counted from 0.

        Returns:
            A function that takes int64 ordinals (any shape; the first example of this shard's epoch has ordinal 0)
            and gives the positions at those ordinals, int64, of the same shape.
        """

        def global_ordinals(ordinals: tf.Tensor) -> tf.Tensor:
            return ordinals * self.num_shards + self.shard_index if self.num_shards > 1 else ordinals

        if not self.shuffle or self.num_positions < 2:
            return global_ordinals

        seed = tf.stack(
            [tf.constant(self.seed, tf.int64), epoch if self.reshuffle_each_epoch else tf.zeros_like(epoch)]
        )
        if self.num_positions <= WHOLE_PERMUTATION_LIMIT:
            # The algorithm is named since "auto_select" would give another order on another kind of device.
            permutation = tf.random.experimental.stateless_shuffle(
                tf.range(self.num_positions, dtype=tf.int64), seed=seed, alg="philox"
            )
            return lambda ordinals: tf.gather(permutation, global_ordinals(ordinals))

        def permuted(ordinals: tf.Tensor) -> tf.Tensor:
            flat = tf.reshape(global_ordinals(ordinals), [-1])
            return tf.reshape(_index_shuffled(flat, seed, self.num_positions), tf.shape(ordinals))

        return permuted

    def positions(self, epoch: int) -> np.ndarray:
        """All positions of one epoch in their order: int64, shape `(num_examples,)`."""
        with tf.device("CPU:0"):
            lookup = self.of_epoch(tf.constant(epoch, tf.int64))
            return np.asarray(lookup(tf.range(self.num_examples, dtype=tf.int64)))


def _index_shuffled(ordinals: tf.Tensor, seed: tf.Tensor, num_positions: int) -> tf.Tensor:
    """Graph code: positions at some ordinals (int64 vectors) of a permutation that is never whole in memory."""
    # The cipher's key: by itself the cipher tells seeds apart too little that differ in a bit, as those of two epochs do.
    key = tf.random.stateless_uniform([3], seed, minval=None, maxval=None, dtype=tf.int64, alg="philox")

    def shuffled(indices: tf.Tensor, last: int) -> tf.Tensor:
        return tf.raw_ops.RandomIndexShuffle(
            index=indices, seed=key, max_index=tf.constant(last, tf.int64), rounds=_CIPHER_ROUNDS
        )

    last = num_positions - 1
    if last & (last - 1):
        return shuffled(ordinals, last)
    # Where the last index is a power of four (65,536 is one), TensorFlow (2.17 to 2.21) gives its cipher a bit too few,
    # and two ordinals get the same position. So one position more is shuffled, and what lands there goes where that
    # one would.
    positions = shuffled(ordinals, num_positions)
    instead = shuffled(tf.constant([num_positions], tf.int64), num_positions)
    return tf.where(positions == num_positions, instead, positions)


class EpochCounter:
    """Counts the epochs of a dataset where they are known to begin: inside its graph.

    Keras makes an iterator more than it has epochs and drops it unread, so counting iterators would skip every other
    order. A count taken when the first element is pulled does not.
    """

    def __init__(self) -> None:
        # A table, since a tf.Variable made under a strategy's scope would be mirrored, by a collective under several
        # workers; a table belongs to this process alone, whatever scope is open.
        with tf.device("CPU:0"):
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)

    def begin_epoch(self) -> tf.Tensor:
        """Graph code: the number of the epoch that begins here (int64, from 0), counted up for the next."""
        key = tf.constant(0, tf.int64)
        epoch = self._table.lookup(key)
        self._table.insert(key, epoch + 1)
        return epoch

    @property
    def next_epoch(self) -> int:
        """The number that the next epoch to begin will have."""
        return int(self._table.lookup(tf.constant(0, tf.int64)))
