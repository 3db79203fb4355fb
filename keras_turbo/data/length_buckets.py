"""Which examples of unequal lengths come together in a batch: those that are filled up to the same length."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import tensorflow as tf

#: What becomes of sequences beyond the last boundary.
TOO_LONG = ("raise", "truncate")

# The stream of numbers that composes batches is kept apart from that of their order by this constant.
_COMPOSITION = 0x6275636B  # "buck"


@dataclasses.dataclass(frozen=True, eq=False)
class LengthBuckets:
    """The batches of an epoch, each of examples of one bucket: as many of each bucket in all epochs.

    Args:
        lengths: int64 vector, of all examples.
        boundaries: ascending; an example belongs to the first that is no shorter, and longer ones to the last.
        batch_size: examples a batch.
        drop_remainder: whether the last batch of each bucket is left out if it is not full.
        seed: of which the composition of batches is a function, with the epoch; None leaves examples in their order.
    """

    lengths: np.ndarray
    boundaries: tuple[int, ...]
    batch_size: int
    drop_remainder: bool
    seed: int | None

    @functools.cached_property
    def _members(self) -> list[np.ndarray]:
        """Of each bucket the positions of its examples, in their order."""
        bucket_of = np.searchsorted(self.boundaries, np.minimum(self.lengths, self.boundaries[-1]))
        return [np.flatnonzero(bucket_of == bucket) for bucket in range(len(self.boundaries))]

    @functools.cached_property
    def _slots(self) -> list[tuple[int, int]]:
        """Bucket and first member of each batch, in the order of their first examples where nothing is shuffled."""
        slots = []
        for bucket, members in enumerate(self._members):
            count = len(members) - len(members) % self.batch_size if self.drop_remainder else len(members)
            slots += [(bucket, begin) for begin in range(0, count, self.batch_size)]
        return sorted(slots, key=lambda slot: self._members[slot[0]][slot[1]])

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return len(self._slots)

    @property
    def counts(self) -> list[tuple[int, int]]:
        """Of each bucket its length and how many examples it has."""
        return [(length, len(members)) for length, members in zip(self.boundaries, self._members, strict=True)]

    def composed(self, epoch: int) -> Composition:
        """The batches of one epoch."""
        return Composition(self, [self._shuffled(bucket, epoch) for bucket in range(len(self.boundaries))])

    def _shuffled(self, bucket: int, epoch: int) -> np.ndarray:
        members = self._members[bucket]
        if self.seed is None:
            return members
        with tf.device("CPU:0"):
            of_epoch = tf.constant([self.seed ^ _COMPOSITION, epoch], tf.int64)
            seed = tf.random.experimental.stateless_fold_in(of_epoch, tf.constant(bucket, tf.int64))
            # The algorithm is named since "auto_select" would give another order on another kind of device.
            return tf.random.experimental.stateless_shuffle(members, seed=seed, alg="philox").numpy()


@dataclasses.dataclass(frozen=True)
class Composition:
    """The batches of one epoch, by their numbers."""

    buckets: LengthBuckets
    members: list[np.ndarray]

    def batch(self, number: int) -> tuple[int, np.ndarray]:
        """The length to which a batch is filled up, and the positions of its examples."""
        bucket, begin = self.buckets._slots[number]
        return self.buckets.boundaries[bucket], self.members[bucket][begin : begin + self.buckets.batch_size]


def check_boundaries(boundaries: object) -> tuple[int, ...]:
    """The boundaries as a tuple of ascending positive integers.

    Raises:
        TypeError, ValueError: they are something else.
    """
    hint = "Give the lengths to which sequences are filled up, as bucket_by_length=[32, 64, 128]."
    if isinstance(boundaries, (str, bytes)) or not hasattr(boundaries, "__iter__"):
        raise TypeError(f"`bucket_by_length` must be a list of integers. Received: {boundaries!r}. {hint}")
    numbers = list(boundaries)  # pyright: ignore[reportArgumentType] (it has __iter__)
    if any(isinstance(one, (bool, np.bool_)) or not isinstance(one, (int, np.integer)) for one in numbers):
        raise TypeError(f"`bucket_by_length` must be a list of integers. Received: {boundaries!r}. {hint}")
    if not numbers or numbers[0] < 1 or any(one >= two for one, two in itertools.pairwise(numbers)):
        raise ValueError(f"`bucket_by_length` must be ascending lengths from 1. Received: {boundaries!r}. {hint}")
    return tuple(map(int, numbers))
