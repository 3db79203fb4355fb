"""Builds the graph of a dataset whose examples Python code makes, in this process or in others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.accounting import without_rows_before_first
from keras_turbo.data.batch_store import BatchStore
from keras_turbo.data.example_store import ExampleStore
from keras_turbo.data.failures import ExampleLoadError
from keras_turbo.data.light_operations import light_map, light_scan, light_unbatch
from keras_turbo.data.pipeline import POSITIONS_AT_ONCE, Pipeline
from keras_turbo.data.python_sessions import Failure, ItemReader, Items
from keras_turbo.data.session_dataset import Sessions
from keras_turbo.data.sources.python_source import PythonSource

# Positions that are worked out together: a permutation of more is not whole in memory either.
_PIECE = 65_536
# Items that one worker makes at a time, where the user wants them without batches.
_GROUP = 32


@dataclasses.dataclass
class PythonPipeline(Pipeline):
    """A pipeline over a `PythonSource`.

    tf.data does not call Python for each example here. It reads a session (`ItemReader`), which knows the order of the
    epoch, lets worker processes make what comes next, and gives it in order.
    """

    _errors: dict[int, Exception] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._sessions = Sessions(self._begin_session)

    @property
    def _python_source(self) -> PythonSource:
        assert isinstance(self.source, PythonSource)  # noqa: S101 (it is built with one)
        return self.source

    def begin_epoch(self) -> tuple[np.int64, np.int64, np.ndarray]:
        begun = super().begin_epoch()
        self._python_source.begin_epoch(int(begun[0]))
        return begun

    def report_gap(self, start: np.integer, stop: np.integer, arrived: np.ndarray, epoch: np.integer) -> None:
        error = self._errors.get(self._epoch_number(epoch))
        if error is not None:
            raise error
        super().report_gap(start, stop, arrived, epoch)

    def _from_memory(self, stacked: int | None) -> tf.data.Dataset:
        if self.augment_fn is not None or not isinstance(self.store, BatchStore):
            return super()._from_memory(stacked)
        chunks = self._chunks(POSITIONS_AT_ONCE)
        if self.may_skip:
            chunks = light_scan(chunks, tf.constant(0, tf.int64), without_rows_before_first)
        return light_map(light_unbatch(chunks), lambda item: self._gather(item["position"]))

    def _to_load(self) -> tf.data.Dataset:
        form, stacked = self._python_source.form, self._python_source.stacked
        shape = [None] if stacked else []
        number = tf.TensorSpec(shape, tf.int64)
        spec = {
            "item": dict.fromkeys(("epoch", "first", "ordinal", "position"), number),
            "is_stored": tf.TensorSpec(shape, tf.bool),
            "leaves": form.flat_specs(stacked=stacked),
        }
        items = self._sessions.dataset([], spec)
        if stacked:
            items = light_unbatch(items)
        return light_map(items, lambda one: {**one["item"], "is_stored": one["is_stored"], "row": one["leaves"]})

    def _is_stored(self, item: dict[str, Any], store: ExampleStore) -> tf.Tensor:
        # Who made the item knows, and the store may be filled meanwhile.
        return item["is_stored"]

    def _begin_session(self) -> _EpochSession | _NoSession:
        try:
            epoch, first, _ = self.begin_epoch()
            self._errors.pop(int(epoch), None)
            producer = self._python_source.producer(self.seed)
        except Exception as error:
            # tf.data would go on after an error here. The end of an epoch of which nothing came raises it.
            self.fail(self.counter.next_epoch - 1, error)
            return _NoSession()
        return _EpochSession(self, producer, int(epoch), int(first))

    def asked_for(self, epoch: int, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ordinals and positions of an epoch, without those of which it is known that they fail."""
        begin = 0 if self.may_skip else first
        for start in range(begin, self.order.num_examples, _PIECE):
            ordinals = np.arange(start, min(start + _PIECE, self.order.num_examples))
            positions = self.order.positions(epoch, ordinals)
            loadable = ~self.failures.are_failed(positions)
            yield ordinals[loadable], positions[loadable]

    def fail(self, epoch: int, error: Exception) -> None:
        """Lets the end of an epoch raise an error."""
        self._errors[epoch] = error

    def goes_on_after(self, failure: Failure, epoch: int) -> bool:
        """Keeps account of an item that could not be made; says whether the epoch goes on."""
        if failure.is_fatal:
            self.fail(epoch, ExampleLoadError(failure.reason))
            return False
        self.failures.tell(failure.position, epoch, failure.reason, failure.details)
        return self.failures.on_error == "skip"


class _EpochSession:
    """One epoch as tensors."""

    def __init__(self, pipeline: PythonPipeline, producer: Any, epoch: int, first: int) -> None:
        source = pipeline.source
        self._pipeline = pipeline
        self._epoch, self._first = epoch, first
        self._form, self._stacked = source.form, source.stacked
        size = (pipeline.batch_size or _GROUP) if self._stacked else 1
        self._reader = ItemReader(
            producer,
            epoch,
            pipeline.asked_for(epoch, first),
            size,
            source.describe,
            None if pipeline.store is None else pipeline.store.are_filled,
            lambda failure: pipeline.goes_on_after(failure, epoch),
        )

    def next(self) -> list[np.ndarray]:
        items = self._reader.next()
        if items is not None:
            return self._tensors(items)
        try:
            self._pipeline.source.end_epoch(self._epoch)
        except Exception as error:
            self._pipeline.fail(self._epoch, error)
            # An item that no epoch has: the account of what arrives meets it, and raises.
            after_all = np.array([self._pipeline.order.num_examples + 1])
            return self._tensors(Items(after_all, np.zeros(1, np.int64), None))
        raise StopIteration

    def _tensors(self, items: Items) -> list[np.ndarray]:
        count = len(items.positions)
        leaves = items.leaves
        if leaves is None:
            leaves = self._form.placeholders(count if self._stacked else None)
        numbers = [
            np.full(count, self._epoch),
            np.full(count, self._first),
            items.ordinals,
            items.positions,
        ]
        is_stored = np.full(count, items.leaves is None)
        if not self._stacked:
            numbers, is_stored = [number[0] for number in numbers], is_stored[0]
        # In the order of tf.nest, which sorts names: "is_stored", "item" (epoch, first, ordinal, position), "leaves".
        return [is_stored, *numbers, *leaves]

    def close(self) -> None:
        self._reader.close()


class _NoSession:
    """An epoch that could not begin."""

    def next(self) -> list[np.ndarray]:
        raise StopIteration

    def close(self) -> None:
        pass
