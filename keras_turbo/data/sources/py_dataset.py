"""A `keras.utils.PyDataset`: batches by index, made by a user's Python code."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.failures import ExampleLoadError
from keras_turbo.data.light_operations import light_map
from keras_turbo.data.python_items import Sample, positions_to_look_at, sample_of
from keras_turbo.data.python_sessions import Failure, ItemReader
from keras_turbo.data.session_dataset import Sessions
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.made_in_python import MadeInPython
from keras_turbo.data.sources.python_source import PythonSource
from keras_turbo.data.sources.tf_dataset import TfDatasetSource
from keras_turbo.data.worker_choice import choose_workers
from keras_turbo.data.worker_pool.keras_turbo_worker.item_maker import INDEXED, ItemMaker
from keras_turbo.data.worker_pool.producer import Producer, Work

# Positions of an endless dataset that are handed on together.
_POSITIONS_AT_ONCE = 1024


def is_py_dataset(x: Any) -> bool:
    """Whether this is a PyDataset, or a Sequence of the older Keras, which has the same methods."""
    if isinstance(x, keras.utils.PyDataset):
        return True
    return all(hasattr(type(x), name) for name in ("__getitem__", "__len__", "on_epoch_end"))


def py_dataset_source(x: Any, settings: Settings) -> PyDatasetSource | EndlessPyDatasetSource:
    """The source of a PyDataset; raises what `FastDataset` documents."""
    name = type(x).__name__
    if settings.batch_size not in (None, Settings.batch_size):
        raise ValueError(
            f"{name} makes batches itself, which pass as they are. Received: batch_size={settings.batch_size}. Leave "
            f"it out, and set the size in {name}."
        )
    if settings.drop_remainder:
        raise ValueError(f"{name} makes batches itself, so that drop_remainder=True has no meaning. Leave it out.")
    number = num_batches(x)
    if number is not None and number < 1:
        raise ValueError(f"{name} has no batch: its length is {number}.")
    may_fail = settings.on_error == "skip"
    looked_at = positions_to_look_at(number, may_fail=may_fail)
    maker = ItemMaker(INDEXED, x, None, seed=None)
    sample = sample_of(
        maker, [("items", 0, (index,)) for index in looked_at], name, are_batches=True, may_fail=may_fail
    )
    if number is None:
        return EndlessPyDatasetSource(x, name, sample, settings)
    return PyDatasetSource(x, name, sample, number, settings)


def num_batches(x: Any) -> int | None:
    """Number of batches as Keras asks for it; None where there is no end."""
    number = x.num_batches if hasattr(x, "num_batches") else len(x)
    return None if number is None else int(number)


def _work(x: Any, name: str, sample: Sample) -> Work:
    return Work(kind=INDEXED, source=x, wanted=sample.form.wanted, stacked=False, name=name)


class PyDatasetSource(PythonSource):
    """The batches of a PyDataset that has a length.

    Args:
        x: the PyDataset.
        name: what errors call it.
        sample: some of its batches.
        number: of all batches.
        settings: of which `workers` counts.
    """

    def __init__(self, x: Any, name: str, sample: Sample, number: int, settings: Settings) -> None:
        choice = choose_workers(settings.workers, x, name, item_seconds=sample.seconds, num_items=number)
        super().__init__(_work(x, name, sample), sample.form, number, sample.most_rows, choice)
        self._hooks = EpochHooks(x)

    def describe(self, position: int) -> str:
        return f"batch {position} of {self.work.name}"

    def begin_epoch(self, epoch: int) -> None:
        self._hooks.begin(epoch)
        number = num_batches(self.work.source)
        if number != self._num_items:
            raise ValueError(
                f"{self.work.name} has {number} batches at the beginning of epoch {epoch}, and had {self._num_items} "
                "when the FastDataset was made. Let its length stay the same, or make another FastDataset."
            )

    def end_epoch(self, epoch: int) -> None:
        self._hooks.end(epoch)


class EpochHooks:
    """Calls `on_epoch_begin` and `on_epoch_end` so that what they change is right for the number of the epoch.

    They are called in this process, in a thread that makes batches. An epoch that is left before its end ends when the
    next one begins. Epochs that are passed over (`resume_at`) are begun and ended, too: a PyDataset that shuffles at
    each end is then as it was. What was changed can't be taken back for an epoch that comes again.

    Args:
        x: the PyDataset.
    """

    def __init__(self, x: Any) -> None:
        self._x = x
        self._ended = 0
        self._is_begun = False
        # Of shards of one dataset, several may be read at a time.
        self._lock = threading.Lock()

    def begin(self, epoch: int) -> None:
        """Brings the PyDataset to the beginning of an epoch."""
        with self._lock:
            while self._ended < epoch:
                self._begin()
                self._end()
            if self._ended == epoch:
                self._begin()

    def end(self, epoch: int) -> None:
        """Takes note that an epoch was read to its end."""
        with self._lock:
            if self._ended == epoch and self._is_begun:
                self._end()

    def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            getattr(self._x, "on_epoch_begin", lambda: None)()

    def _end(self) -> None:
        self._is_begun = False
        self._ended += 1
        self._x.on_epoch_end()


class EndlessPyDatasetSource(MadeInPython, TfDatasetSource):
    """The batches of a PyDataset without a length, from index 0 on in each iteration.

    Args:
        x: the PyDataset.
        name: what errors call it.
        sample: some of its batches.
        settings: of which `workers` counts.
    """

    is_called = "a PyDataset without a length"
    can_seek = True

    def __init__(self, x: Any, name: str, sample: Sample, settings: Settings) -> None:
        if settings.shuffle:
            raise ValueError(
                f"{name} has no length (num_batches is None), so there is nothing that shuffle=True could shuffle. "
                "Give it a length, or shuffle in it."
            )
        choice = choose_workers(settings.workers, x, name, item_seconds=sample.seconds, num_items=None)
        MadeInPython.__init__(self, _work(x, name, sample), choice)
        TfDatasetSource.__init__(self, None, tf.data.INFINITE_CARDINALITY)
        self._form = sample.form
        self._hooks = EpochHooks(x)
        self._seed = 0
        self._sessions = Sessions(self._read)

    def epoch_elements(
        self, epoch: tf.Tensor, shuffle_seed: tf.Tensor | None, num_skipped: tf.Tensor, seed: int
    ) -> tf.data.Dataset:
        self._seed = seed
        return light_map(self._sessions.dataset([epoch, num_skipped], self._form.flat_specs()), self._form.packed)

    def _read(self, epoch: np.integer, first: np.integer) -> _EndlessSession:
        self._hooks.begin(int(epoch))
        return _EndlessSession(self.producer(self._seed), self.work.name, int(epoch), int(first))


class _EndlessSession:
    def __init__(self, producer: Producer, name: str, epoch: int, first: int) -> None:
        self._failure: Failure | None = None
        self._name = name
        self._reader = ItemReader(
            producer,
            epoch,
            _counted_from(first),
            1,
            lambda position: f"batch {position} of {name}",
            None,
            self._ends_with,
        )

    def next(self) -> list[np.ndarray]:
        items = self._reader.next()
        if items is None or items.leaves is None:
            failure, self._failure = self._failure, None
            if failure is None:
                raise StopIteration
            raise ExampleLoadError(f"batch {failure.position} of {self._name}: {failure.reason}\n\n{failure.details}")
        return items.leaves

    def close(self) -> None:
        self._reader.close()

    def _ends_with(self, failure: Failure) -> bool:
        self._failure = failure
        return False


def _counted_from(first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in itertools.count(first, _POSITIONS_AT_ONCE):
        numbers = np.arange(start, start + _POSITIONS_AT_ONCE)
        yield numbers, numbers
