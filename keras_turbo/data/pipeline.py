"""Builds the graph of one dataset: positions of an epoch -> examples -> store -> augmentation -> batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_turbo.data.accounting import accounted_for, without_rows_before_first
from keras_turbo.data.claimed_cardinality import claim_cardinality
from keras_turbo.data.epoch_positions import EpochPositions
from keras_turbo.data.example_order import EpochCounter, ExampleOrder
from keras_turbo.data.example_store import ExampleStore
from keras_turbo.data.failures import Failures
from keras_turbo.data.light_operations import light_filter, light_flat_map, light_map, light_scan, light_unbatch
from keras_turbo.data.python_calls import call_on
from keras_turbo.data.sources.source import Source
from keras_turbo.data.stacking import stacks_of_rows
from keras_turbo.data.user_functions import ElementFunction, RandomFunction

# Small batches are gathered many at a time and cut: below this size the fixed cost of a gather, about 40 us, is more
# than the copying. Measured with rows of 128 bytes: chunks of 256 KB were no slower than any other size.
_GATHER_BYTES = 262_144
_MOST_BATCHES_A_GATHER = 64

# Positions that are worked out together where examples are made one by one.
POSITIONS_AT_ONCE = 1024

# Batches made ahead of the step that takes them. Two, since one hides the making and a second evens out a slow batch.
PREFETCHED_BATCHES = 2

# A graph that holds more is not rewritten, since that copies it. So much is copied in a few milliseconds.
_MOST_BYTES_COPIED = 16 << 20

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
    _store_has_all: bool = dataclasses.field(default=False, init=False)
    #: The batch with which the epoch began that began last.
    first_batch: int = dataclasses.field(default=0, init=False)
    _first_ordinal: int = dataclasses.field(default=0, init=False)

    #: Whether `dataset` can put batches together in stacks.
    gives_stacks: ClassVar[bool] = True

    @property
    def may_skip(self) -> bool:
        """Whether an epoch may have fewer examples than positions."""
        can_fail = self.source.can_fail or self.map_fn is not None or self.augment_fn is not None
        return self.failures.on_error == "skip" and can_fail

    def examples_at(self, positions: np.ndarray) -> np.ndarray:
        """The source's examples at some positions of an order that is fixed: the same."""
        return positions

    def num_batches(self, num_examples: int) -> int:
        """Number of batches (of examples, where there are no batches) in an epoch of so many examples."""
        if self.batch_size is None:
            return num_examples
        return num_examples // self.batch_size if self.drop_remainder else math.ceil(num_examples / self.batch_size)

    def dataset(self, *, stacked: int | None = None, only_stored: bool = False) -> tf.data.Dataset:
        """The whole: a dataset of batches, a new epoch each time it is iterated.

        What TensorFlow instantiates anew for each iterator is kept small, since a short epoch is over in a few
        hundredths of a second: few functions, and none of those that load examples once the store is complete.

        Args:
            stacked: how many batches to put together along a new first axis, as elements of shape
                `(stacked, batch, ...)`. The last full batches may be fewer, and a last batch that is not full comes
                alone, as `(1, rows, ...)`. None: batches as they are. Two stacks are ready ahead of the step and one
                more is being made, or three where examples are made one by one: choose a number with which six stacks
                are little memory.
            only_stored: whether to leave out what loads examples, once `only_gathers()`.
        """
        if self._gathers_always or only_stored:
            batches = self._from_memory(stacked)
        elif self.store is None:
            batches = self._from_source(stacked)
        else:
            batches = self._from_store_or_source(stacked)
        if stacked is None and not self.may_skip:
            number = self.num_batches(self.order.num_examples)
            # Where examples are loaded, what is to be done at an epoch's end is done when that is asked for.
            only_gathers = (self._gathers_always or only_stored) and self.augment_fn is None
            batches = claim_cardinality(batches, number, read_to_end=not only_gathers)
        if self._makes_rows:
            batches = self.source.finish(batches, self.parallel_calls)
        return batches.prefetch(PREFETCHED_BATCHES).with_options(data_options(self.bytes_in_graph))

    @property
    def bytes_in_graph(self) -> int:
        """Bytes of the data and of the store, which functions of the graph hold."""
        return self.source.bytes_in_graph + (0 if self.store is None else self.store.num_bytes)

    def begin_epoch(self) -> tuple[np.int64, np.int64, np.ndarray]:
        """Begins an epoch: its number and the ordinal with which it begins, both from 0, and its permutation."""
        if self.fill_store is not None:
            self.fill_store()
        epoch, first_batch = self.counter.begin_epoch()
        self.first_batch = int(first_batch)
        self._first_ordinal = min(self.first_batch * (self.batch_size or 1), self.order.num_examples)
        return epoch, np.int64(self._first_ordinal), self.order.permutation(tf.constant(epoch)).numpy()

    def store_is_complete(self) -> np.bool_:
        """Whether the store has all that the next epoch wants, but for what can't be loaded."""
        is_whole = self.order.is_whole
        return np.bool_(
            self._has(
                np.arange(self.order.num_positions) if is_whole else self.order.positions(self.counter.next_epoch)
            )
        )

    def _has(self, positions: np.ndarray) -> bool:
        """Whether the store has these examples, but for what can't be loaded."""
        if self.store is None:
            return False
        filled, failed = self.store.are_filled(positions), self.failures.are_failed(positions)
        # An epoch without a single example is an error, which the account of loaded ones raises.
        complete = bool((filled | failed).all() and filled.any())
        if complete:
            self.failures.end_pass(positions)
        return complete

    def only_gathers(self) -> bool:
        """Whether no epoch will load anything any more, since all that any wants is in memory or in the store."""
        if self._gathers_always or self._store_has_all:
            return True
        if self.store is None:
            return False
        whole = self.order.is_whole or not self.order.is_fixed
        wanted = self.order.num_positions if whole else self.order.num_examples
        if self.store.num_filled + len(self.failures.skipped) < wanted:
            return False  # the usual case, told apart from the others at the cost of counting
        self._store_has_all = self._has(np.arange(wanted) if whole else self.order.positions(0))
        return self._store_has_all

    def example(self, position: tf.Tensor) -> Any:
        """Graph code: one mapped example, as it is stored (a random source's with a seed of zeros)."""
        return self._mapped(position, tf.zeros([2], tf.int64))

    def loaded_example(self, position: tf.Tensor, epoch: tf.Tensor) -> Any:
        """Graph code: one example as it leaves `map_fn` and `augment_fn` in an epoch."""
        seed = self._example_seed(epoch, position)
        example = self._gather(position) if self._gathers_always else self._mapped(position, seed)
        return example if self.augment_fn is None else self.augment_fn(example, seed)

    @property
    def _gathers_always(self) -> bool:
        """Whether examples are in memory before an epoch begins."""
        return self.fill_store is not None or (self.source.in_memory and self.map_fn is None)

    def _from_store_or_source(self, stacked: int | None) -> tf.data.Dataset:
        """An epoch from the store if it has all that the epoch wants, else one that loads and fills it."""
        stored, loaded = self._from_memory(stacked), self._from_source(stacked)

        def chosen(_: tf.Tensor) -> tf.data.Dataset:
            complete = tf.ensure_shape(call_on(self, Pipeline.store_is_complete, [], tf.bool), [])
            everything, nothing = tf.constant(-1, tf.int64), tf.constant(0, tf.int64)
            # Of a dataset of which nothing is taken, TensorFlow makes no iterator.
            return stored.take(tf.where(complete, everything, nothing)).concatenate(
                loaded.take(tf.where(complete, nothing, everything))
            )

        return light_flat_map(tf.data.Dataset.from_tensors(0), chosen)

    @property
    def _positions(self) -> EpochPositions:
        def begin() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            # Python draws the permutation: as graph code, its fifty nodes would be made for each iterator.
            epoch, first, permutation = call_on(self, type(self).begin_epoch, [], [tf.int64] * 3)
            permutation = tf.ensure_shape(permutation, [self.order.permutation_size])
            return tf.ensure_shape(epoch, []), tf.ensure_shape(first, []), permutation

        # Where examples may be left out, it is known which ones are in the batches before only once these are made.
        return EpochPositions(self.order, begin, from_first=not self.may_skip)

    def _chunks(self, size: int) -> tf.data.Dataset:
        """Up to `size` positions at a time, as `EpochPositions.chunks`, without those known to fail."""
        chunks = self._positions.chunks(size)
        if not self.may_skip:
            return chunks

        def without_failed(chunk: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            loadable = ~tf.gather(self.failures.failed_view, chunk["position"])
            return {name: tf.boolean_mask(vector, loadable) for name, vector in chunk.items()}

        return light_map(chunks, without_failed)

    def _example_seed(self, epoch: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(self.seed ^ _EXAMPLE_SEEDS, tf.int64), epoch])
        return tf.random.experimental.stateless_fold_in(seed, position)

    def _mapped(self, position: tf.Tensor, seed: tf.Tensor, row: Any = None) -> Any:
        example = self.source.load(position, seed) if row is None else self.source.load_row(row, seed)
        return example if self.map_fn is None else self.map_fn(example)

    def _gather(self, positions: tf.Tensor) -> Any:
        return self.source.gather(positions) if self.store is None else self.store.gather(positions)

    def _from_memory(self, stacked: int | None) -> tf.data.Dataset:
        """An epoch of examples that are in memory or in a complete store: gathered whole, if nothing is done to one."""
        if self.augment_fn is not None:
            return self._one_by_one(stacked, from_memory=True)
        if self.batch_size is None or self.may_skip:
            return self._from_memory_in_rows(stacked)
        at_once = stacked or self._batches_per_gather()
        gathered = self._positions.batches(
            self._gather,
            batch_size=self.batch_size,
            drop_remainder=self.drop_remainder,
            # One large batch by itself is nothing to cut, and another copy of it costs something.
            stacked=None if stacked is None and at_once == 1 else at_once,
            # A stack is large and lasts for long, so that no second one need be made beside it.
            num_parallel_calls=PREFETCHED_BATCHES if stacked is None else 1,
        )
        return light_unbatch(gathered) if stacked is None and at_once > 1 else gathered

    def _from_memory_in_rows(self, stacked: int | None) -> tf.data.Dataset:
        """The same where no batch is known before its rows are: some may be left out, or there are no batches."""
        size = self.batch_size or 1
        chunks = self._chunks(size * (stacked or self._batches_per_gather()))
        if self.may_skip:
            # All that fails is known by now.
            chunks = light_scan(chunks, tf.constant(0, tf.int64), without_rows_before_first)
        rows = light_map(
            chunks, lambda chunk: self._gather(chunk["position"]), PREFETCHED_BATCHES if stacked is None else 1
        )
        if self.batch_size is None:
            return light_unbatch(rows)
        if stacked is not None:
            return stacks_of_rows(rows.rebatch(stacked * size, drop_remainder=False), size, self.drop_remainder)
        return rows.rebatch(size, drop_remainder=self.drop_remainder)

    def _batches_per_gather(self) -> int:
        example = self._gather(tf.zeros([1], tf.int64))
        example_bytes = max(1, sum(_num_bytes(leaf) for leaf in tf.nest.flatten(example)))
        size = self.batch_size or 1
        most = max(1, self.order.num_examples // (size * 4))
        return max(1, min(_MOST_BATCHES_A_GATHER, _GATHER_BYTES // (size * example_bytes), most))

    @property
    def _makes_rows(self) -> bool:
        """Whether the source makes examples many at a time, since nothing is done to a single one."""
        is_whole = self.map_fn is None and self.augment_fn is None and self.batch_size is not None
        return self.source.makes_rows and is_whole

    def _from_source(self, stacked: int | None) -> tf.data.Dataset:
        """An epoch of examples that are loaded."""
        if not self._makes_rows:
            return self._one_by_one(stacked, from_memory=False)
        size = self.batch_size or 1
        # Whole batches at a time: putting parts of several together would copy them.
        at_once = size * max(1, (self.source.rows_at_once or size) // size)
        rows = self.source.make_rows(self._chunks(at_once), PREFETCHED_BATCHES)
        rows = accounted_for(self, rows.ignore_errors(log_warning=False), self.store)
        if stacked is not None:
            return stacks_of_rows(rows.rebatch(stacked * size, drop_remainder=False), size, self.drop_remainder)
        return rows.rebatch(size, drop_remainder=self.drop_remainder)

    def _one_by_one(self, stacked: int | None, *, from_memory: bool) -> tf.data.Dataset:
        """An epoch of examples that are made one by one: a failure is told from the gap that it leaves."""
        store = None if from_memory else self.store

        def make(item: dict[str, Any]) -> dict[str, Any]:
            position = item["position"]
            seed = self._example_seed(item["epoch"], position)
            example = self._gather(position) if from_memory else self._loaded(item, seed)
            out = example if self.augment_fn is None else self.augment_fn(example, seed)
            made = {name: item[name] for name in ("epoch", "first", "ordinal", "position")}
            made["out"] = as_tensors(out)
            if store is not None and self.augment_fn is not None:
                made["stored"] = as_tensors(example)
            return tf.nest.map_structure(lambda t: t[None], made) if self.batch_size is None else made

        items = light_unbatch(self._chunks(POSITIONS_AT_ONCE)) if from_memory else self._to_load()
        examples = items.map(make, num_parallel_calls=self.parallel_calls, deterministic=True)
        # What failed is missed and accounted for below, by its ordinal.
        examples = examples.ignore_errors(log_warning=False)
        # A stack is one batch up to the end.
        batches = examples if self.batch_size is None else examples.batch(self.batch_size * (stacked or 1))
        if store is not None:
            # Loading goes on while a batch is written. In fresh memory that can take a third of the time of decoding.
            batches = batches.prefetch(PREFETCHED_BATCHES if stacked is None else 1)
        batches = accounted_for(self, batches, store)
        # The end marker has no rows, and goes.
        if self.batch_size is None:
            # Not by unbatching, since that ends the process (TensorFlow 2.21) where an example is an empty vector.
            rows = light_filter(batches, _has_rows)
            return light_map(rows, lambda row: tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, [0]), row))
        if stacked is not None:
            return stacks_of_rows(batches, self.batch_size, self.drop_remainder)
        if self.drop_remainder:
            return batches.rebatch(self.batch_size, drop_remainder=True)
        return light_filter(batches, _has_rows)

    def _to_load(self) -> tf.data.Dataset:
        """The positions of an epoch one by one, as dicts, with what the source makes of many at a time as "row"."""
        at_once = self.source.rows_at_once
        if at_once is None:
            return light_unbatch(self._chunks(POSITIONS_AT_ONCE))

        def with_rows(chunk: dict[str, tf.Tensor]) -> dict[str, Any]:
            return {**chunk, "row": self.source.read_rows(chunk["position"])}

        return light_unbatch(light_map(self._chunks(at_once), with_rows, PREFETCHED_BATCHES))

    def _is_stored(self, item: dict[str, Any], store: ExampleStore) -> tf.Tensor:
        """Graph code: whether the example of an element of `_to_load` is in the store."""
        return tf.gather(store.filled_view, item["position"])

    def _loaded(self, item: dict[str, Any], seed: tf.Tensor) -> Any:
        """Graph code: the mapped example of an element of `_to_load`, out of the store if it is there."""
        position, row = item["position"], item.get("row")
        if self.store is None:
            return self._mapped(position, seed, row)
        return tf.cond(
            self._is_stored(item, self.store),
            lambda: as_tensors(self._gather(position)),
            lambda: as_tensors(self._mapped(position, seed, row)),
        )

    def report_gap(self, start: np.integer, stop: np.integer, arrived: np.ndarray, epoch: np.integer) -> None:
        """Accounts for the ordinals from `start` to `stop` of an epoch that did not arrive.

        A negative start is that of an epoch of which nothing arrived, which has not told where it begins either.
        """
        begin = int(start) if start >= 0 else self._first_ordinal
        missing = np.setdiff1d(np.arange(begin, stop), arrived)
        number = self._epoch_number(epoch)
        self.failures.report(self.order.positions(number, missing), number)

    def end_pass(self, epoch: np.integer) -> None:
        """Takes note that an epoch is through."""
        everything = np.arange(self.order.num_positions)
        self.failures.end_pass(everything if self.order.is_whole else self.order.positions(self._epoch_number(epoch)))

    def _epoch_number(self, epoch: np.integer) -> int:
        # An epoch of which nothing arrived has not told its number.
        return int(epoch) if epoch >= 0 else self.counter.next_epoch - 1


def data_options(bytes_in_graph: int = 0) -> tf.data.Options:
    """Options under which the graphs here run.

    tf.data's autotuner is off: with it, the same pipeline ran at half its rate in about every second epoch (on two
    cores, TensorFlow 2.21), and everything that it would tune has a value here. Its optimizer is off where much data is
    in the graph: for each iterator it writes the graph anew, with a copy of all of them, those on disk too.

    Args:
        bytes_in_graph: of the tensors that functions of the graph hold.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    if bytes_in_graph > _MOST_BYTES_COPIED:
        options.experimental_optimization.apply_default_optimizations = False
    return options


def _has_rows(batch: Any) -> tf.Tensor:
    return tf.shape(tf.nest.flatten(batch)[0])[0] > 0


def as_tensors(example: Any) -> Any:
    """Graph code: a structure of what can be tensors as tensors."""
    return tf.nest.map_structure(tf.convert_to_tensor, example)


def _num_bytes(tensor: tf.Tensor) -> int:
    """Bytes of a tensor; a string counts as its handle."""
    return (tensor.shape.num_elements() or 0) * (tensor.dtype.size or 16)
