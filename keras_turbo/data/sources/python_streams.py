"""What users' Python code gives without positions: a generator function, and a `PyDataset` without a length."""

from __future__ import annotations

import abc
import collections
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.engine.node import Sessions, VariantDataset, unbatched
from keras_turbo.data.functions import ElementFunction, PythonFunction, RowFunction
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.python_code import EpochHooks, sample_of_py_dataset
from keras_turbo.data.sources.streams import Stream
from keras_turbo.data.workers.choice import choose_workers
from keras_turbo.data.workers.form import Form, look_at
from keras_turbo.data.workers.pool import MadeInPython, Work

# Of each process so many tasks are asked for ahead: one is done while the next is at hand.
_ASKED_AHEAD = 2
# The parameters of a generator function that can be read in several processes.
_SHARD_PARAMETERS = ("shard_index", "num_shards")


class PythonStream(MadeInPython, Stream):
    """Elements that Python gives one after the other, or (`group`) so many stacked."""

    def __init__(self, work: Work, processes: int, group: int | None) -> None:
        super().__init__(work, processes)
        self.processes = processes
        self.element_spec = work.form.elements.spec
        self._group = group
        self._seed = 0
        self.sessions = Sessions(lambda epoch, skipped: _Session(self._given(epoch, skipped)))

    def adapted(self, settings: Settings) -> Settings:
        # Workers are processes here, which are not many calls at a time of what TensorFlow does afterwards.
        return dataclasses.replace(settings, workers=None)

    def elements(
        self, epoch: tf.Tensor, shuffle_seed: tf.Tensor | None, num_skipped: tf.Tensor, seed: int
    ) -> tf.data.Dataset:
        self._seed = seed
        # Shuffled, what comes first is known only once the buffer was filled; of several parts no one has it all.
        can_skip = shuffle_seed is None and (self.can_seek or (self.processes or 1) == 1)
        skipped = num_skipped if can_skip else tf.zeros_like(num_skipped)
        front = [] if self._group is None else [None]
        specs = [tf.TensorSpec([*front, *leaf.shape], leaf.dtype) for leaf in self.work.form.elements.leaves]
        given = self.sessions.dataset([epoch, skipped], specs)
        given = given if self._group is None else unbatched(given)
        elements: tf.data.Dataset = VariantDataset(
            tf.data.experimental.to_variant(given), self.element_spec, [given], holds=given
        )
        if shuffle_seed is not None:
            elements = self.shuffled(elements, shuffle_seed)
        return elements.skip(num_skipped - skipped)

    @abc.abstractmethod
    def _given(self, epoch: int, skipped: int) -> Iterator[list[Any]]:
        """The arrays of the elements of an epoch."""


class _Session:
    def __init__(self, given: Iterator[list[Any]]) -> None:
        self.next = given.__next__
        self.close = given.close


class EndlessPyDataset(PythonStream):
    """The batches of a PyDataset without a length, from index 0 on in each iteration."""

    kind = "PyDataset without a length"
    can_seek = True
    number = tf.data.INFINITE_CARDINALITY

    def __init__(self, x: Any, settings: Settings) -> None:
        sample, name = sample_of_py_dataset(x, settings), type(x).__name__
        if settings.shuffle:
            raise ValueError(
                f"{name} has no length (num_batches is None), so there is nothing that shuffle=True could shuffle. "
                "Give it a length, or shuffle in it."
            )
        work = Work(x, name, sample.form)
        super().__init__(work, choose_workers(settings.workers, work, item_seconds=sample.seconds), None)
        self._hooks = EpochHooks(x)

    def adapted(self, settings: Settings) -> Settings:
        return dataclasses.replace(super().adapted(settings), batch_size=None)

    def _given(self, epoch: int, skipped: int) -> Iterator[list[Any]]:
        self._hooks.begin(epoch)
        producer = self.producer(self._seed)

        def ask(index: int) -> tuple[str, Any]:
            what = f"batch {index} of {self.work.name}"
            return what, producer.submit(("items", epoch, (index,), None), what)

        asked = map(ask, itertools.count(skipped))
        ahead = collections.deque(itertools.islice(asked, _ASKED_AHEAD * (self.processes or 1)))
        while True:
            what, pending = ahead.popleft()
            columns, failures = self.work.form.columns(pending.result(), 1)
            for error in failures.values():
                raise _told(what, error)
            ahead.append(next(asked))
            yield [column[0] for column in columns]


class GeneratorStream(PythonStream):
    """What a function gives that returns an iterator.

    If it has parameters `shard_index` and `num_shards`, it may be read in several processes, each of which gets a part.
    """

    kind = "generator"
    gets_positions_by = "give cache='memory' or cache='disk', or give its data as a PyDataset, arrays or files"
    number = tf.data.UNKNOWN_CARDINALITY

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        name = getattr(function, "__qualname__", type(function).__name__)
        self._is_sharded = _check_parameters(function, name)
        self._numbers = itertools.count()
        tasks: list[tuple] = []
        if settings.element_spec is None or settings.workers is None:
            whole = self._parts(1)[0]
            # Opened once more, which fails where that gives the same iterator again.
            tasks = [("open", 0, 0, whole, 0), ("next", 0, 1), ("next", 0, 1), ("open", 1, 0, whole, 0)]
            tasks += [("close", 0), ("close", 1)]
        sample = look_at(function, tasks, name, settings)
        work = Work(function, name, _with_what_may_differ(sample.form, settings))
        most = None if self._is_sharded else 1
        processes = choose_workers(settings.workers, work, item_seconds=sample.seconds, most=most)
        super().__init__(work, processes, settings.batch_size if work.form.elements.is_fixed else None)

    def _parts(self, number: int) -> list[dict[str, int]]:
        if not self._is_sharded:
            return [{}]
        return [{"shard_index": index, "num_shards": number} for index in range(number)]

    def _given(self, epoch: int, skipped: int) -> Iterator[list[Any]]:
        producer, name, number = self.producer(self._seed), self.work.name, next(self._numbers)
        group = self._group or 1
        num_read = collections.Counter[int]()
        parts = self._parts(self.processes or 1)
        turns: collections.deque[tuple[int, collections.deque[Any]]] = collections.deque()
        try:
            for part, keywords in enumerate(parts, 1):
                opening = producer.submit(("open", number, epoch, keywords, skipped), name, part)
                turns.append((part, collections.deque([opening])))
            while turns:
                for part, ahead in turns:
                    while len(ahead) < _ASKED_AHEAD:
                        ahead.append(producer.submit(("next", number, group), name, part))
                part, ahead = turns[0]
                is_opening = part not in num_read
                made = ahead.popleft().result()
                columns, failures = self.work.form.columns(made, len(made.items))
                count = min([len(made.items), *failures])
                if count:
                    yield [column[:count] if self._group else column[0] for column in columns]
                if failures:
                    raise _told(f"item {num_read[part] + min(failures)} of {name}", failures[min(failures)])
                num_read[part] += skipped if is_opening else count
                if made.ended:
                    turns.popleft()
                elif not is_opening:
                    turns.rotate(-1)
        finally:
            for part in range(1, len(parts) + 1):
                producer.forget(number, part)


def _told(what: str, error: Exception) -> ExampleLoadError:
    return ExampleLoadError(f"{what}: {error}\n\n{getattr(error, 'details', '')}".strip())


def _with_what_may_differ(form: Form, settings: Settings) -> Form:
    """What items have in common, where those that were looked at are all of one shape.

    Of sequences and of batches the first axis differs, and two of them may be alike by chance. So it is left open
    wherever no batch and no store needs it: where items pass as they are, and where `map_fn` brings them to one shape.
    """
    if form.is_declared or not form.elements.is_fixed:
        return form
    opened, map_fn = form.opened(), settings.map_fn
    if settings.batch_size is None and settings.cache in ("auto", False):
        return opened
    if map_fn is None or isinstance(map_fn, (PythonFunction, keras.Layer)):
        return form
    function = ElementFunction(map_fn, "map_fn")
    try:
        mapped = RowFunction(lambda element, _: function(element), opened.elements, "map_fn")
    except Exception:  # it needs to know all sizes
        return form
    return opened if mapped.elements.is_fixed else form


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
