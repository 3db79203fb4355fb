"""Examples by position that Python code makes: the batches of a `PyDataset`, and what a function makes of rows."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column
from keras_turbo.data.functions import ElementFunction, PythonFunction
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.arrays import structured_arrays
from keras_turbo.data.sources.source import Identity, Load, Source
from keras_turbo.data.workers.choice import choose_workers
from keras_turbo.data.workers.form import Sample, look_at, positions_to_look_at
from keras_turbo.data.workers.pool import MadeInPython, Work

# Sending a task to a worker costs 0.2 ms; this much of work a task makes that little.
_SECONDS_A_TASK = 0.02
_MOST_ROWS_A_TASK = 64


class PythonSource(MadeInPython, Source):
    """Examples (or batches) by position."""

    can_fail = True
    loading_is_called = None

    def __init__(self, work: Work, number: int, sample: Sample, workers: int | None) -> None:
        self.processes = choose_workers(workers, work, item_seconds=sample.seconds, num_items=number)
        super().__init__(work, self.processes)
        self.elements = work.form.elements
        self.rows_a_job = int(np.clip(_SECONDS_A_TASK / max(sample.seconds, 1e-9), 1, _MOST_ROWS_A_TASK))
        self._number = number

    def __len__(self) -> int:
        return self._number

    def begin_epoch(self, epoch: int, seed: int) -> Load:
        producer, form = self.producer(seed), self.work.form

        def load(positions: np.ndarray, _: Any, in_place: list[list[np.ndarray]] | None) -> Any:
            task = ("items", epoch, positions.tolist(), self._rows(positions.tolist()))
            made = producer.submit(task, self.name(int(positions[0]))).result()
            return form.loaded(made, len(positions), in_place)

        return load

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column] | None, dict[int, Exception]]:
        return self.begin_epoch(0, 0)(positions, seeds, in_place)

    def _rows(self, positions: Sequence[int]) -> list[Any] | None:
        """What the examples are made of, if they are made of rows."""
        return None

    def identity(self) -> Identity | None:
        return None


class RowsSource(PythonSource):
    """Examples that a Python function makes of the rows of arrays (x, or a tuple with y and weights), or of paths.

    Args:
        argument: the name under which the user gave the function, for errors.
        paths: the files that the examples are of, if they are of files.
        labels: what `FastDataset.labels` gives, by position.
    """

    def __init__(
        self,
        parts: Any,
        function: PythonFunction,
        argument: str,
        settings: Settings,
        paths: list[str] | None = None,
        labels: Any = None,
    ) -> None:
        self._parts = parts
        num_parts = len(parts) if isinstance(parts, tuple) else 1
        takes_all = ElementFunction(function.function, argument).takes_all(num_parts, {}, expects_seed=False)
        source, name = (function.function, takes_all), function.__name__
        number = len(tf.nest.flatten(parts)[0])
        tasks = [("items", 0, (index,), self._rows([index])) for index in positions_to_look_at(number, settings)]
        sample = look_at(source, tasks, name, settings)
        # Functions are what they were when the dataset was made, as elsewhere.
        super().__init__(Work(source, name, sample.form, may_change=False), number, sample, settings.workers)
        if paths is not None:
            self.paths = paths
        self._labels = labels

    @classmethod
    def of_arrays(cls, x: Any, y: Any, sample_weight: Any, settings: Settings) -> RowsSource:
        """The source of arrays whose `map_fn` is a Python function."""
        assert isinstance(settings.map_fn, PythonFunction)  # noqa: S101 (nothing else is called so)
        structure, arrays = structured_arrays(x, y, sample_weight, memory_maps_stay_on_disk=True)
        parts = tf.nest.pack_sequence_as(structure, arrays)
        return cls(parts, settings.map_fn, "map_fn", settings, labels=None if y is None else parts[1])

    def adapted(self, settings: Settings) -> Settings:
        is_called = isinstance(settings.map_fn, PythonFunction)
        return dataclasses.replace(settings, map_fn=None) if is_called else settings

    def _rows(self, positions: Sequence[int]) -> list[Any]:
        return [tf.nest.map_structure(lambda array: array[index], self._parts) for index in positions]  # noqa: B023

    def name(self, position: int) -> str:
        paths = getattr(self, "paths", None)
        return f"the example at index {position}" if paths is None else paths[position]

    def labels_at(self, positions: np.ndarray) -> Any:
        return None if self._labels is None else tf.nest.map_structure(lambda array: array[positions], self._labels)


def is_py_dataset(x: Any) -> bool:
    """Whether this is a PyDataset, or a Sequence of the older Keras, which has the same methods."""
    if isinstance(x, keras.utils.PyDataset):
        return True
    return all(hasattr(type(x), name) for name in ("__getitem__", "__len__", "on_epoch_end"))


def num_batches(x: Any) -> int | None:
    """Number of batches of a PyDataset as Keras asks for it; None where there is no end."""
    number = x.num_batches if hasattr(x, "num_batches") else len(x)
    return None if number is None else int(number)


def sample_of_py_dataset(x: Any, settings: Settings) -> Sample:
    """Some batches of a PyDataset; raises ValueError for settings that it can't be used with, too."""
    name, number = type(x).__name__, num_batches(x)
    if settings.batch_size not in (None, Settings.batch_size):
        raise ValueError(
            f"{name} makes batches itself, which pass as they are. Received: batch_size={settings.batch_size}. Leave "
            f"it out, and set the size in {name}."
        )
    if settings.drop_remainder:
        raise ValueError(f"{name} makes batches itself, so that drop_remainder=True has no meaning. Leave it out.")
    if number is not None and number < 1:
        raise ValueError(f"{name} has no batch: its length is {number}.")
    tasks = [("items", 0, (position,), None) for position in positions_to_look_at(number, settings)]
    return look_at(x, tasks, name, settings, are_batches=True)


class PyDatasetSource(PythonSource):
    """The batches of a PyDataset that has a length."""

    def __init__(self, x: Any, settings: Settings) -> None:
        sample, number = sample_of_py_dataset(x, settings), num_batches(x)
        assert number is not None  # noqa: S101 (others are no source, but a stream)
        super().__init__(Work(x, type(x).__name__, sample.form), number, sample, settings.workers)
        self.rows_a_job = 1
        self.most_rows = sample.most_rows
        self._hooks = EpochHooks(x)

    def adapted(self, settings: Settings) -> Settings:
        # What is random in a PyDataset would be kept for ever, and nobody can see whether anything is.
        cache = False if settings.cache == "auto" else settings.cache
        return dataclasses.replace(settings, batch_size=None, cache=cache)

    def name(self, position: int) -> str:
        return f"batch {position} of {self.work.name}"

    def begin_epoch(self, epoch: int, seed: int) -> Load:
        self._hooks.begin(epoch)
        number = num_batches(self.work.source)
        if number != len(self):
            raise ValueError(
                f"{self.work.name} has {number} batches at the beginning of epoch {epoch}, and had {len(self)} "
                "when the FastDataset was made. Let its length stay the same, or make another FastDataset."
            )
        return super().begin_epoch(epoch, seed)

    def end_epoch(self, epoch: int) -> None:
        self._hooks.end(epoch)


class EpochHooks:
    """Calls `on_epoch_begin` and `on_epoch_end` so that what they change is right for the number of the epoch.

    They are called in this process, in a thread that makes batches. An epoch that is left before its end ends when the
    next one begins. Epochs that are passed over (`resume_at`) are begun and ended, too: a PyDataset that shuffles at
    each end is then as it was. What was changed can't be taken back for an epoch that comes again.
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
