"""What the epochs of a dataset are made by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.batch_store import BatchStore
from keras_turbo.data.engine.batches import Batches
from keras_turbo.data.engine.elements import Elements
from keras_turbo.data.engine.failures import Failures
from keras_turbo.data.engine.order import EpochCounter, ExampleOrder
from keras_turbo.data.engine.slots import Slots
from keras_turbo.data.engine.store import ExampleStore
from keras_turbo.data.functions import RowFunction
from keras_turbo.data.sources.source import Source

# The stream of numbers for each example's randomness is kept apart from that of the order by this constant.
_EXAMPLE_SEEDS = 0x6B74  # "kt"


@dataclasses.dataclass
class Recipe:
    """The parts of a dataset whose examples have positions.

    Attributes:
        source: examples by position.
        order: which positions an epoch visits, and in which order.
        batches: which of them come together.
        seed: integer of which order and randomness are functions.
        map_fn: deterministic function of an example, or None.
        augment_fn: random function of an example, or None.
        store: where mapped examples are kept, or are from the beginning; None to make them in each epoch.
        failures: account of what could not be loaded.
        workers: threads that load.
        counter: of the epochs.
        fill_store: called at the beginning of an epoch, for a source that can't be read by position.
    """

    source: Source
    order: ExampleOrder
    batches: Batches
    seed: int
    map_fn: RowFunction | None
    augment_fn: RowFunction | None
    store: ExampleStore | BatchStore | None
    failures: Failures
    workers: int
    counter: EpochCounter
    fill_store: Callable[[], None] | None = None
    _is_ready: bool = dataclasses.field(default=False, init=False)
    _slots: dict[int, list[Slots]] = dataclasses.field(default_factory=dict, init=False)

    @property
    def elements(self) -> Elements:
        """What an example looks like as it is given."""
        last = self.augment_fn or self.map_fn
        return self.source.elements if last is None else last.elements

    @property
    def may_skip(self) -> bool:
        """Whether an epoch may have fewer examples than positions."""
        can_fail = self.source.can_fail or self.map_fn is not None or self.augment_fn is not None
        return self.failures.on_error == "skip" and can_fail

    @property
    def is_ready(self) -> bool:
        """Whether no epoch will load an example any more: all that can be loaded are in the store."""
        if not self._is_ready:
            self._is_ready = self._has_everything()
        return self._is_ready

    def _has_everything(self) -> bool:
        if self.store is None or self.store.is_complete or self.fill_store is not None:
            return self.store is not None
        if self.store.num_ready + len(self.failures.skipped) < self.order.num_examples:
            return False  # the usual case, told apart from the others at the cost of counting
        is_partial = self.order.is_fixed and not self.order.is_whole
        wanted = self.order.positions(0) if is_partial else np.arange(self.order.num_positions)
        return bool((self.store.has(wanted) | self.failures.have_failed(wanted)).all())

    def lend(self, rows: int, leading: tuple[int, ...]) -> list[np.ndarray]:
        """Arrays for examples of fixed shape, out of buffers of so many rows that are used again."""
        if rows not in self._slots:
            self._slots[rows] = [Slots(rows, shape, dtype) for shape, dtype in self.elements.arrays]
        return [slots.lend(leading) for slots in self._slots[rows]]

    def seed_of_epoch(self, epoch: int) -> int:
        """The number that, together with its position, is the seed of an example in an epoch."""
        with tf.device("CPU:0"):
            of_epoch = np.array([self.seed ^ _EXAMPLE_SEEDS, epoch], np.int64)
            # What stateless_fold_in makes of a seed and a number is a new first half, and the number.
            return int(tf.random.experimental.stateless_fold_in(of_epoch, np.int64(0))[0])
