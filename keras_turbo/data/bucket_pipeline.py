"""Builds the graph of batches of sequences that are filled up to a few lengths."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_turbo.data.claimed_cardinality import claim_cardinality
from keras_turbo.data.length_buckets import LengthBuckets, check_boundaries
from keras_turbo.data.light_operations import light_map
from keras_turbo.data.pipeline import PREFETCHED_BATCHES, Pipeline, as_tensors, data_options
from keras_turbo.data.session_dataset import Sessions
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.made_in_python import MadeInPython
from keras_turbo.data.sources.sequences import SequenceSource
from keras_turbo.data.sources.source import Source
from keras_turbo.data.sources.tf_dataset import TfDatasetSource
from keras_turbo.data.stream_buckets import padded, too_long_error


def check_for_buckets(settings: Settings, source: Source) -> None:
    """Checks what can't be together with `bucket_by_length`.

    Raises:
        ValueError: a source whose lengths are not known, or another option.
    """
    is_stream = isinstance(source, TfDatasetSource) and not isinstance(source, MadeInPython)
    if not is_stream and not isinstance(source, SequenceSource):
        raise ValueError(
            "`bucket_by_length` needs sequences in memory, or a tf.data.Dataset of single examples. Any FastDataset "
            "is one: FastDataset(FastDataset.from_tfrecord(..., batch_size=None), bucket_by_length=[...])."
        )
    if settings.cache not in ("auto", False):
        raise ValueError(
            f"cache={settings.cache!r} keeps examples of one shape, and `bucket_by_length` is for others. Leave "
            "`cache` out, or cache the tf.data.Dataset itself."
        )
    if settings.on_error != "raise":
        raise ValueError("on_error='skip' is not possible with `bucket_by_length`: batches are composed beforehand.")


def buckets_of(source: SequenceSource, settings: Settings) -> LengthBuckets:
    """The buckets of sequences in memory.

    Raises:
        ValueError: a sequence is longer than the last boundary, and is not to be cut; no batch would be left.
    """
    boundaries = check_boundaries(settings.bucket_by_length)
    longest = int(source.lengths.argmax())
    if settings.too_long == "raise" and source.lengths[longest] > boundaries[-1]:
        number = int(np.count_nonzero(source.lengths > boundaries[-1]))
        raise ValueError(too_long_error(source.describe(longest), int(source.lengths[longest]), boundaries[-1], number))
    buckets = LengthBuckets(
        source.lengths,
        boundaries,
        settings.batch_size or 1,
        settings.drop_remainder,
        settings.settled_seed if settings.shuffle else None,
    )
    if not buckets.num_batches:
        raise ValueError(
            f"drop_remainder=True leaves no batch: no bucket has {settings.batch_size} examples ("
            + ", ".join(f"{count} of length {length}" for length, count in buckets.counts)
            + ")."
        )
    return buckets


@dataclasses.dataclass
class BucketPipeline(Pipeline):
    """A pipeline whose positions are batches: which examples each has is a function of (seed, epoch).

    `batch_size` is None, as for other data that comes in batches.
    """

    buckets: LengthBuckets | None = None
    truncates: bool = False

    gives_stacks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._sessions = Sessions(self._begin_session)

    @property
    def _buckets(self) -> LengthBuckets:
        if self.buckets is None:
            raise ValueError("A pipeline of buckets needs them.")
        return self.buckets

    def examples_at(self, positions: np.ndarray) -> np.ndarray:
        composition = self._buckets.composed(0)
        return np.concatenate([composition.batch(int(number))[1] for number in positions])

    def only_gathers(self) -> bool:
        return False

    def dataset(self, *, stacked: int | None = None, only_stored: bool = False) -> tf.data.Dataset:
        scalar = tf.TensorSpec([], tf.int64)
        # In the order of tf.nest, which sorts names.
        spec = {"epoch": scalar, "length": scalar, "positions": tf.TensorSpec([None], tf.int64)}
        composed = self._sessions.dataset([], spec)
        if self.map_fn is None and self.augment_fn is None:
            batches = light_map(composed, self._gathered, PREFETCHED_BATCHES)
        else:
            batches = composed.map(self._made, num_parallel_calls=PREFETCHED_BATCHES, deterministic=True)
        batches = claim_cardinality(batches, self.order.num_examples, read_to_end=False)
        return batches.prefetch(PREFETCHED_BATCHES).with_options(data_options(self.bytes_in_graph))

    def epoch_of_composition(self, epoch: int) -> int:
        """The epoch whose batches another one has: its own, or the first where nothing is reshuffled."""
        return epoch if self.order.reshuffle_each_epoch else 0

    def _sequences(self) -> SequenceSource:
        assert isinstance(self.source, SequenceSource)  # noqa: S101 (it is built with one)
        return self.source

    def _gathered(self, batch: dict[str, tf.Tensor]) -> Any:
        rows = self._sequences().gather_padded(batch["positions"], batch["length"])
        if not self._buckets.drop_remainder:
            return rows
        return tf.nest.map_structure(lambda leaf: _with_rows(leaf, self._buckets.batch_size), rows)

    def _made(self, batch: dict[str, tf.Tensor]) -> Any:
        """Graph code: the examples of a batch one by one, several at a time, and then together."""
        epoch = batch["epoch"]

        def made(position: tf.Tensor) -> Any:
            example = as_tensors(self.loaded_example(position, epoch))
            return padded(example, batch["length"], truncates=self.truncates)

        examples = tf.data.Dataset.from_tensor_slices(batch["positions"])
        examples = examples.map(made, num_parallel_calls=self.parallel_calls, deterministic=True)
        rows = examples.batch(tf.size(batch["positions"], tf.int64)).get_single_element()
        count = self._buckets.batch_size if self._buckets.drop_remainder else None
        return tf.nest.map_structure(lambda leaf: _with_rows(leaf, count), rows)

    def _begin_session(self) -> _BucketSession:
        epoch, first, _ = self.begin_epoch()
        numbers = self.order.positions(int(epoch))[int(first) :]
        return _BucketSession(int(epoch), self._buckets.composed(self.epoch_of_composition(int(epoch))), numbers)


class _BucketSession:
    """The batches of one epoch, as the positions of their examples."""

    def __init__(self, epoch: int, composition: Any, numbers: np.ndarray) -> None:
        self._epoch = np.asarray(epoch, np.int64)
        self._composition = composition
        self._numbers = iter(numbers.tolist())

    def next(self) -> list[np.ndarray]:
        length, positions = self._composition.batch(next(self._numbers))
        return [self._epoch, np.asarray(length, np.int64), positions.astype(np.int64)]

    def close(self) -> None:
        pass


def _with_rows(leaf: tf.Tensor, count: int | None) -> tf.Tensor:
    return tf.ensure_shape(leaf, [count, *leaf.shape[1:]])
