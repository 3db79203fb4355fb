"""Which examples of unequal lengths come together in a batch: those that are filled up to the same length."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.batches import Padding, Piece
from keras_turbo.data.engine.order import ExampleOrder

if TYPE_CHECKING:
    from keras_turbo.data.settings import Settings

#: What becomes of sequences beyond the last boundary.
TOO_LONG = ("raise", "truncate")

# The stream of numbers that composes batches is kept apart from that of their order by this constant.
_COMPOSITION = 0x6275636B  # "buck"


@dataclasses.dataclass(frozen=True, eq=False)
class LengthBuckets:
    """Batches of examples of one bucket each: as many of each bucket in all epochs.

    Args:
        lengths: int64 vector, of all examples.
        boundaries: ascending; an example belongs to the first that is no shorter, and longer ones to the last.
        batch_size: examples a batch.
        drop_remainder: whether the last batch of each bucket is left out if it is not full.
        seed: of which the composition of batches is a function, with the epoch; None leaves examples in their order.
        truncates: whether sequences beyond the last boundary are cut.
    """

    lengths: np.ndarray
    boundaries: tuple[int, ...]
    batch_size: int
    drop_remainder: bool
    seed: int | None
    truncates: bool = False

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

    def composed(self, epoch: int) -> Callable[[int], tuple[int, np.ndarray]]:
        """Gives by its number the length to which a batch of an epoch is filled up, and the positions it has."""
        members = [self._shuffled(bucket, epoch) for bucket in range(len(self.boundaries))]

        def batch(number: int) -> tuple[int, np.ndarray]:
            bucket, begin = self._slots[number]
            return self.boundaries[bucket], members[bucket][begin : begin + self.batch_size]

        return batch

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
class BucketBatches:
    """The batches of buckets in an order of their own.

    Args:
        buckets: which examples come together.
        order: of the batches.
    """

    buckets: LengthBuckets
    order: ExampleOrder

    @property
    def batch_size(self) -> int:
        """Examples of a batch that is full."""
        return self.buckets.batch_size

    @property
    def drop_remainder(self) -> bool:
        """Whether all batches are full."""
        return self.buckets.drop_remainder

    @property
    def number(self) -> int:
        """Number of batches in an epoch."""
        return self.order.num_examples

    def examples(self, epoch: int) -> np.ndarray:
        """The positions of the examples of an epoch, in their order: int64 vector."""
        return np.concatenate([piece.positions for piece in self.pieces(epoch, 0, 1)])

    def pieces(self, epoch: int, first: int, group: int) -> Iterator[Piece]:
        composed = self.buckets.composed(epoch if self.order.reshuffle_each_epoch else 0)
        for number in self.order.positions(epoch)[first:].tolist():
            length, positions = composed(number)
            yield Piece(positions, (1, len(positions)), Padding(length, self.buckets.truncates))


def buckets_of(source: Any, lengths: np.ndarray, settings: Settings) -> LengthBuckets:
    """The buckets of sequences in memory.

    Raises:
        ValueError: a sequence is longer than the last boundary, and is not to be cut; no batch would be left.
    """
    boundaries = check_boundaries(settings.bucket_by_length)
    longest = int(lengths.argmax())
    if settings.too_long == "raise" and lengths[longest] > boundaries[-1]:
        number = int(np.count_nonzero(lengths > boundaries[-1]))
        raise ValueError(too_long_error(source.name(longest), int(lengths[longest]), boundaries[-1], number))
    buckets = LengthBuckets(
        lengths,
        boundaries,
        settings.batch_size or 1,
        settings.drop_remainder,
        settings.settled_seed if settings.shuffle else None,
        settings.too_long == "truncate",
    )
    if not buckets.num_batches:
        counts = ", ".join(f"{count} of length {length}" for length, count in buckets.counts)
        raise ValueError(
            f"drop_remainder=True leaves no batch: no bucket has {settings.batch_size} examples ({counts})."
        )
    return buckets


def too_long_error(which: str, length: int | None, last: int, number: int) -> str:
    """What an error says of sequences beyond the last boundary."""
    others = f" ({number} are too long)" if number > 1 else ""
    is_long = "is longer than" if length is None else f"has length {length}, more than"
    return (
        f"A sequence is too long: {which} {is_long} {last}, the last length of `bucket_by_length`{others}. Add a "
        "longer one, or cut sequences by too_long='truncate'."
    )


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
