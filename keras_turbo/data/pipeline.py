"""Builds the graph of one dataset: positions of an epoch -> examples -> store -> augmentation -> batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.data.example_order import EpochCounter, ExampleOrder
from keras_turbo.data.example_store import ExampleStore
from keras_turbo.data.failures import Failures
from keras_turbo.data.python_calls import call_on
from keras_turbo.data.sources.source import Source
from keras_turbo.data.user_functions import ElementFunction, RandomFunction

# Small batches are gathered many at a time and cut: below this size the fixed cost of a gather, about 40 us, is more
# than the copying. Measured with rows of 128 bytes: chunks of 256 KB were no slower than any other size.
_GATHER_CHUNK_BYTES = 262_144
_MOST_BATCHES_A_CHUNK = 64

# Batches made ahead of the step that takes them. Two, since one hides the making and a second evens out a slow batch.
PREFETCHED_BATCHES = 2

# The stream of numbers for each example's randomness is kept apart from that of the order by this constant.
_EXAMPLE_SEEDS = 0x6B74  # "kt"


@dataclasses.dataclass
class Pipeline:
    """The parts of a dataset, and the graph that joins them.

    Attributes:
        source: examples by position.
        order: which positions an epoch visits, and in which order.
        seed: integer of which order and randomness are functions.
        batch_size: examples a batch; None gives them one by one, without a batch axis.
        drop_remainder: whether a last batch that is not full is left out.
        map_fn: deterministic function of an example, or None.
        augment_fn: random function of an example, or None.
        store: where mapped examples are kept, or None.
        failures: account of what could not be loaded.
        parallel_calls: how many examples are loaded at a time.
        fill_store: called at the beginning of an epoch to fill the store, for sources that can't be read by position.
    """

    source: Source
    order: ExampleOrder
    seed: int
    batch_size: int | None
    drop_remainder: bool
    map_fn: ElementFunction | None
    augment_fn: RandomFunction | None
    store: ExampleStore | None
    failures: Failures
    parallel_calls: int
    fill_store: Callable[[], None] | None = None
    counter: EpochCounter = dataclasses.field(default_factory=EpochCounter)

    @property
    def may_skip(self) -> bool:
        """Whether an epoch may have fewer examples than positions."""
        can_fail = self.source.can_fail or self.map_fn is not None or self.augment_fn is not None
        return self.failures.on_error == "skip" and can_fail

    def num_batches(self, num_examples: int) -> int:
        """Number of batches (of examples, where there are no batches) in an epoch of so many examples."""
        if self.batch_size is None:
            return num_examples
        return num_examples // self.batch_size if self.drop_remainder else math.ceil(num_examples / self.batch_size)

    def dataset(self) -> tf.data.Dataset:
        """The whole: a dataset of batches, a new epoch each time it is iterated."""
        batches = tf.data.Dataset.from_tensors(0).flat_map(lambda _: self._epoch(self.counter.begin_epoch()))
        if not self.may_skip:
            number = self.num_batches(self.order.num_examples)
            batches = batches.apply(tf.data.experimental.assert_cardinality(number))
        return batches.prefetch(PREFETCHED_BATCHES).with_options(data_options())

    def fill(self) -> None:
        """Fills the store, where the source can't be read by position."""
        if self.fill_store is not None:
            self.fill_store()

    def example(self, position: tf.Tensor) -> Any:
        """Graph code: one mapped example, as it is stored (a random source's with a seed of zeros)."""
        return self._mapped(position, tf.zeros([2], tf.int64))

    def loaded_example(self, position: tf.Tensor, epoch: tf.Tensor) -> Any:
        """Graph code: one example as it leaves `map_fn` and `augment_fn` in an epoch."""
        seed = self._example_seed(epoch, position)
        example = self._gather(position) if self._gathers_always else self._mapped(position, seed)
        return example if self.augment_fn is None else self.augment_fn(example, seed)

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        lookup, count = self._positions(epoch)
        if self.fill_store is not None:
            call_on(self, Pipeline.fill, [], [])
        if self._gathers_always:
            return self._gathered(epoch, lookup, count)
        if self.store is None:
            return self._one_by_one(epoch, lookup, count)
        complete = self._store_is_complete(self.store, lookup, count)
        nothing = tf.zeros_like(count)
        gathered = self._gathered(epoch, lookup, tf.where(complete, count, nothing))
        return gathered.concatenate(self._one_by_one(epoch, lookup, tf.where(complete, nothing, count)))

    def _store_is_complete(self, store: ExampleStore, lookup: Callable, count: tf.Tensor) -> tf.Tensor:
        """Graph code: whether the store has all that this epoch wants."""
        if self.order.num_shards == 1:
            return tf.reduce_all(store.filled_view | self.failures.failed_view)
        return tf.reduce_all(tf.gather(store.filled_view, lookup(tf.range(count))))

    @property
    def _gathers_always(self) -> bool:
        """Whether examples are in memory before an epoch begins."""
        return self.fill_store is not None or (self.source.in_memory and self.map_fn is None)

    def _positions(self, epoch: tf.Tensor) -> tuple[Callable[[tf.Tensor], tf.Tensor], tf.Tensor]:
        """The epoch's order without what is known to fail: a function of ordinals, and how many there are."""
        lookup = self.order.of_epoch(epoch)
        count = tf.constant(self.order.num_examples, tf.int64)
        if not self.may_skip:
            return lookup, count
        everything = lookup(tf.range(count))
        loadable = tf.boolean_mask(everything, ~tf.gather(self.failures.failed_view, everything))
        return lambda ordinals: tf.gather(loadable, ordinals), tf.size(loadable, tf.int64)

    def _example_seed(self, epoch: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(self.seed ^ _EXAMPLE_SEEDS, tf.int64), epoch])
        return tf.random.experimental.stateless_fold_in(seed, position)

    def _mapped(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        example = self.source.load(position, seed)
        return example if self.map_fn is None else self.map_fn(example)

    def _gather(self, positions: tf.Tensor) -> Any:
        return self.source.gather(positions) if self.store is None else self.store.gather(positions)

    # From memory: batches are gathered whole, where nothing is done to single examples.

    def _gathered(self, epoch: tf.Tensor, lookup: Callable, count: tf.Tensor) -> tf.data.Dataset:
        if self.augment_fn is not None:
            return self._one_by_one(epoch, lookup, count, from_memory=True)
        if self.batch_size is None:
            return tf.data.Dataset.range(count).map(
                lambda ordinal: self._gather(lookup(ordinal)),
                num_parallel_calls=self.parallel_calls,
                deterministic=True,
            )
        size = self.batch_size
        full, rest = count // size, count % size
        chunk = self._batches_per_chunk()
        chunks = full // chunk if chunk > 1 else tf.zeros_like(full)

        def many_batches(index: tf.Tensor) -> Any:
            ordinals = tf.range(chunk * size, dtype=tf.int64) + index * (chunk * size)
            batches = self._gather(tf.reshape(lookup(ordinals), [chunk, size]))
            return _set_leading_shape(batches, (chunk, size))

        def one_batch(index: tf.Tensor) -> Any:
            ordinals = tf.range(index * size, tf.minimum((index + 1) * size, count))
            return _set_leading_shape(self._gather(lookup(ordinals)), (size if self.drop_remainder else None,))

        last = full if self.drop_remainder else full + tf.cast(rest > 0, tf.int64)
        singles = tf.data.Dataset.range(chunks * chunk, last).map(
            one_batch, num_parallel_calls=PREFETCHED_BATCHES, deterministic=True
        )
        if chunk == 1:
            return singles
        cut = tf.data.Dataset.range(chunks).map(many_batches).prefetch(1).unbatch()
        return cut.concatenate(singles)

    def _batches_per_chunk(self) -> int:
        spec = tf.data.Dataset.range(1).map(self._gather).element_spec
        batch_bytes = self.batch_size * max(1, sum(_static_bytes(leaf) for leaf in tf.nest.flatten(spec)))
        most = max(1, self.order.num_examples // (self.batch_size * 4))
        return max(1, min(_MOST_BATCHES_A_CHUNK, _GATHER_CHUNK_BYTES // batch_bytes, most))

    # One by one: a failure is told from the gap that it leaves.

    def _one_by_one(
        self, epoch: tf.Tensor, lookup: Callable, count: tf.Tensor, *, from_memory: bool = False
    ) -> tf.data.Dataset:
        store = None if from_memory else self.store

        def make(ordinal: tf.Tensor) -> dict[str, Any]:
            position = lookup(ordinal)
            seed = self._example_seed(epoch, position)
            if from_memory:
                example = self._gather(position)
            elif store is None:
                example = self._mapped(position, seed)
            else:
                example = tf.cond(
                    tf.gather(store.filled_view, position),
                    lambda: _as_tensors(store.gather(position)),
                    lambda: _as_tensors(self._mapped(position, seed)),
                )
            out = example if self.augment_fn is None else self.augment_fn(example, seed)
            item = {"ordinal": ordinal, "position": position, "out": _as_tensors(out)}
            if store is not None and self.augment_fn is not None:
                item["stored"] = _as_tensors(example)
            return tf.nest.map_structure(lambda t: t[None], item) if self.batch_size is None else item

        examples = tf.data.Dataset.range(count).map(make, num_parallel_calls=self.parallel_calls, deterministic=True)
        # What failed is missed and accounted for below, by its ordinal.
        examples = examples.ignore_errors(log_warning=False)
        batches = examples if self.batch_size is None else examples.batch(self.batch_size)
        batches = batches.concatenate(_end_marker(batches.element_spec, count))
        # Where a store is complete, a second part without examples follows, and ends the pass.
        ends_pass = self.may_skip and not (from_memory and self.store is not None and not self._gathers_always)

        def end_pass() -> int:
            everything = tf.range(self.order.num_examples, dtype=tf.int64)
            self.failures.end_pass_in_graph(
                everything if self.order.num_shards == 1 else self.order.of_epoch(epoch)(everything)
            )
            return 0

        def account(expected: tf.Tensor, batch: dict[str, Any]) -> tuple[tf.Tensor, dict[str, Any]]:
            ordinals = batch["ordinal"]
            following = ordinals[-1] + 1
            is_end = ordinals[0] >= count
            wanted = tf.range(expected, tf.minimum(following, count))
            if_gap = tf.where(is_end, tf.size(wanted) > 0, tf.size(wanted) != tf.size(ordinals))

            def report() -> tf.Tensor:
                self.failures.report_in_graph(lookup(wanted), batch["position"], epoch)
                return following

            with tf.control_dependencies([tf.cond(if_gap, report, lambda: following)]):
                following = tf.identity(following)
            if ends_pass:
                tf.cond(is_end, end_pass, lambda: 0)
            return following, batch

        batches = batches.scan(tf.constant(0, tf.int64), account)
        if store is not None:
            batches = batches.map(self._store_batch)
        least = 1 if self.batch_size is None or not self.drop_remainder else self.batch_size
        batches = batches.filter(lambda batch: (tf.size(batch["ordinal"]) >= least) & (batch["ordinal"][0] < count))
        if self.batch_size is None:
            return batches.map(lambda batch: tf.nest.map_structure(lambda t: t[0], batch["out"]))
        size = self.batch_size if self.drop_remainder else None
        return batches.map(lambda batch: _set_leading_shape(batch["out"], (size,)))

    def _store_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        stored = batch.get("stored", batch["out"])
        is_end = tf.size(batch["position"]) == 0

        def write() -> int:
            self.store.write_in_graph(batch["position"], stored)
            return 0

        tf.cond(is_end, lambda: 0, write)
        return {"ordinal": batch["ordinal"], "out": batch["out"]}


def data_options() -> tf.data.Options:
    """Options under which the graphs here run.

    tf.data's autotuner is off: with it, the same pipeline ran at half its rate in about every second epoch (on two
    cores, TensorFlow 2.21), and everything that it would tune has a value here.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    return options


def _as_tensors(example: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, example)


def _set_leading_shape(batch: Any, leading: tuple[int | None, ...]) -> Any:
    for tensor in tf.nest.flatten(batch):
        if tensor.shape.rank is not None:  # the result of tf.numpy_function has none, if nobody says
            tensor.set_shape([*leading, *tensor.shape[len(leading) :]])
    return batch


def _end_marker(element_spec: Any, count: tf.Tensor) -> tf.data.Dataset:
    """A last, empty batch, whose ordinal is that of the example after the last."""

    def empty(spec: tf.TensorSpec) -> tf.Tensor:
        inner = spec.shape[1:] if spec.shape.rank is not None else []
        return tf.zeros([0, *(size or 0 for size in inner)], spec.dtype)

    marker = tf.nest.map_structure(empty, element_spec)
    marker["ordinal"] = count[None]
    return tf.data.Dataset.from_tensors(marker)


def _static_bytes(spec: tf.TensorSpec) -> int:
    """Bytes of a tensor as far as its shape is known; a string counts as its handle."""
    elements = math.prod(size or 1 for size in spec.shape)
    return elements * (spec.dtype.size or 16)
