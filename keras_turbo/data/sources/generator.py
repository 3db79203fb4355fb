"""A generator function: what the iterator gives that it returns, from its beginning in each epoch."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.failures import ExampleLoadError
from keras_turbo.data.light_operations import light_map, light_unbatch
from keras_turbo.data.python_items import sample_of
from keras_turbo.data.python_sessions import StreamReader
from keras_turbo.data.session_dataset import Sessions
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.made_in_python import MadeInPython
from keras_turbo.data.sources.tf_dataset import TfDatasetSource
from keras_turbo.data.worker_choice import choose_workers
from keras_turbo.data.worker_pool.keras_turbo_worker.item_maker import GENERATOR, ItemMaker
from keras_turbo.data.worker_pool.producer import Work

# Examples that come together where the user wants them one by one.
_GROUP = 32
# The parameters of a generator function that can be read in several processes.
_SHARD_PARAMETERS = ("shard_index", "num_shards")
# Number of the stream that is looked at before there is any other.
_LOOK = -1


class GeneratorSource(MadeInPython, TfDatasetSource):
    """What a generator function gives.

    Args:
        function: returns an iterator. If it has parameters `shard_index` and `num_shards`, it may be read in several
            processes, each of which gets a part.
        settings: of which `workers` and `batch_size` count.
    """

    is_called = "a generator"
    why_not_remote = "Python code of this process makes these examples"
    gets_positions_by = "give its data as a PyDataset, arrays or files"

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        name = getattr(function, "__qualname__", type(function).__name__)
        self._name = name
        self._is_sharded = _check_parameters(function, name)
        maker = ItemMaker(GENERATOR, function, None, seed=None)
        whole = self._keywords(1)[0]
        tasks = [("open", _LOOK, 0, whole, 0), ("next", _LOOK, 1), ("next", _LOOK, 1), ("close", _LOOK)]
        sample = sample_of(maker, tasks, name, are_batches=False)
        self._form = sample.form
        sample.form.require_batchable(name, settings)
        choice = choose_workers(
            settings.workers,
            function,
            name,
            item_seconds=sample.seconds,
            num_items=None,
            most=None if self._is_sharded else 1,
        )
        self._stacked = sample.form.has_fixed_shape and settings.batch_size is not None
        self._group = (settings.batch_size or _GROUP) if self._stacked else 1
        MadeInPython.__init__(self, Work(GENERATOR, function, sample.form.wanted, self._stacked, name), choice)
        TfDatasetSource.__init__(self, None, tf.data.UNKNOWN_CARDINALITY)
        self._seed = 0
        self._numbers = itertools.count()
        self._sessions = Sessions(self._read)

    @property
    def element_spec(self) -> Any:
        return tf.data.Dataset.from_tensors(0).map(lambda _: self._form.example()).element_spec

    def epoch_elements(
        self, epoch: tf.Tensor, shuffle_seed: tf.Tensor | None, num_skipped: tf.Tensor, seed: int
    ) -> tf.data.Dataset:
        self._seed = seed
        # Shuffled, what comes first is known only once the buffer was filled.
        left_out_by_reading = (
            num_skipped if shuffle_seed is None and self.choice.number <= 1 else tf.zeros_like(num_skipped)
        )
        groups = self._sessions.dataset([epoch, left_out_by_reading], self._form.flat_specs(stacked=self._stacked))
        items = light_map(light_unbatch(groups) if self._stacked else groups, self._form.packed)
        if shuffle_seed is not None:
            items = self.buffered_shuffle(items, shuffle_seed)
        return items.skip(num_skipped - left_out_by_reading)

    def _keywords(self, number: int) -> list[dict[str, int]]:
        if not self._is_sharded:
            return [{}]
        return [{"shard_index": index, "num_shards": number} for index in range(number)]

    def _read(self, epoch: np.integer, skip: np.integer) -> _GeneratorSession:
        producer = self.producer(self._seed)
        keywords = self._keywords(producer.num_workers)
        reader = StreamReader(producer, next(self._numbers), int(epoch), keywords, self._group, int(skip), self._name)
        return _GeneratorSession(reader, self._name)


class _GeneratorSession:
    def __init__(self, reader: StreamReader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._error: ExampleLoadError | None = None

    def next(self) -> list[np.ndarray]:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        result = self._reader.next()
        if result is None:
            raise StopIteration
        if result.failure is not None:
            index, reason, details = result.failure
            self._error = ExampleLoadError(f"item {index} of {self._name}: {reason}\n\n{details}")
            if not result.count:
                return self.next()
        return result.leaves

    def close(self) -> None:
        self._reader.close()


def _check_parameters(function: Callable[..., Any], name: str) -> bool:
    """Whether the function can be called for a part; raises if it can't be called at all."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    is_sharded = all(parameter in signature.parameters for parameter in _SHARD_PARAMETERS)
    try:
        signature.bind(**(dict.fromkeys(_SHARD_PARAMETERS, 0) if is_sharded else {}))
    except TypeError as error:
        raise TypeError(
            f"`x` must be a function without required parameters that returns an iterator (of those, only "
            f"`shard_index` and `num_shards` are given). Received: {name}{signature}, {error}. "
            "Use functools.partial for others."
        ) from None
    return is_sharded
