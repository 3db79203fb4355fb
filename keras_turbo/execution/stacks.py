"""Batches from an iterator, several at a time as one stack."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# One stack is trained on while the next two are made.
_PREFETCHED_STACKS = 2


@dataclasses.dataclass
class Stack:
    """Batches of one shape, of which some have been used.

    Args:
        batches: structure of tensors of shape (capacity, batch, ...).
        begin: the first batch that is not used yet.
        end: one past the last batch.
    """

    batches: Any
    begin: int
    end: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each component of one batch."""
        return tuple(tuple(component.shape[1:]) for component in tf.nest.flatten(self.batches))


def why_not_stackable(element_spec: Any) -> str | None:
    """Why batches of this structure can't be stacked for an XLA program; None if they can.

    Args:
        element_spec: structure of `tf.TypeSpec`s of a batch.
    """
    for path, spec in keras.tree.flatten_with_path(element_spec):
        where = "the batch" if not path else "component " + ".".join(map(str, path))
        if not isinstance(spec, tf.TensorSpec):
            return f"{where} is no dense tensor ({type(spec).__name__.removesuffix('Spec')})"
        if spec.dtype in (tf.string, tf.variant, tf.resource):
            return f"{where} has dtype {spec.dtype.name}, which XLA does not know"
        if spec.shape.rank is None:
            return f"{where} is of unknown rank; tf.ensure_shape in its dataset makes it known"
        if spec.shape.rank == 0:
            return f"{where} has no batch axis"
        unknown = [axis for axis in range(1, spec.shape.rank) if spec.shape[axis] is None]
        if unknown:
            return f"axis {unknown[0]} of {where} is of unknown length, {tuple(spec.shape)}; pad it to a fixed length"
    return None


class StackingDataset(tf.data.Dataset):
    """A dataset whose iterators can give stacks, made by tf.data itself.

    Stacking what comes out of an iterator costs a function call for each batch. So `fit` is given this in place of a
    dataset of the user's. It makes as many iterators as are made of it, each over the stacks, so that a dataset that
    shuffles anew for each iterator keeps its order.

    Args:
        dataset: a dataset of batches that stack.
        batches: batches in a stack.
    """

    def __init__(self, dataset: tf.data.Dataset, batches: int) -> None:
        self._dataset = dataset
        self._batches = batches
        super().__init__(tf.data.experimental.to_variant(dataset))  # pyright: ignore[reportCallIssue]

    @property
    def unstacked(self) -> tf.data.Dataset:
        """The dataset of batches."""
        return self._dataset

    @property
    def element_spec(self) -> Any:
        """Of single batches."""
        return self._dataset.element_spec

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    def map(self, *args: Any, **kwargs: Any) -> StackingDataset:
        """As `tf.data.Dataset.map`; Keras gives its function for `class_weight`."""
        return StackingDataset(self._dataset.map(*args, **kwargs), self._batches)

    def __iter__(self) -> StackIterator:  # pyright: ignore[reportIncompatibleMethodOverride] (for our functions alone)
        return StackIterator(self._dataset, self._batches)


class StackIterator:
    """An iterator over the stacks of a dataset, which a train function of ours can read, and no other.

    Attributes:
        element_spec: structure of `tf.TypeSpec`s of a single batch.
    """

    def __init__(self, dataset: tf.data.Dataset, batches: int) -> None:
        self.element_spec = dataset.element_spec
        # Made now: a dataset that shuffles draws a seed for each iterator.
        if all(spec.shape[0] is not None for spec in tf.nest.flatten(dataset.element_spec)):
            self._stacks = _of_one_shape(iter(dataset.batch(batches).prefetch(_PREFETCHED_STACKS)))
        else:
            self._stacks = _split_all(iter(_stacked(dataset.map(_with_rows), batches)))

    def __iter__(self) -> StackIterator:
        return self

    def __next__(self) -> Stack:
        return next(self._stacks)

    def skip(self, batches: int) -> None:
        """Leaves out so many batches; nothing is left if there are fewer."""
        while batches > 0 and (stack := next(self._stacks, None)) is not None:
            left_out = min(batches, stack.end - stack.begin)
            stack.begin += left_out
            batches -= left_out
            if stack.begin < stack.end:
                self._stacks = itertools.chain([stack], self._stacks)


class StackReader:
    """Reads one iterator to its end in stacks; what one call leaves over, the next one gets.

    An iterator that has a method `stacks(count)`, as that of a `FastDataset`, makes stacks itself. From any other one
    batches are taken one by one and stacked in the background, some stacks ahead.

    Args:
        iterator: a `tf.data.Iterator` that has given no batch yet.
        batches: batches in a stack, the most that `take` gives.
    """

    def __init__(self, iterator: tf.data.Iterator | StackIterator, batches: int) -> None:
        # Whoever makes stacks reads from it.
        self._iterator = iterator
        if isinstance(iterator, StackIterator):
            self._stacks = iterator
        else:
            make_stacks = getattr(iterator, "stacks", None)
            own = None if make_stacks is None else make_stacks(batches)
            if own is not None:
                self._stacks = _of_one_shape(own)
            else:
                # Stacks are made on the host; the iterator of a FastDataset may give batches on a GPU.
                on_host = getattr(iterator, "host_iterator", lambda: iterator)()
                self._stacks = _split_all(iter(_from_iterator(on_host, batches)))
        self._current: Stack | None = None

    def take(self, most: int) -> Stack | None:
        """The next batches, at least one and at most `most`, of one shape; None at the end."""
        if self._current is None or self._current.begin == self._current.end:
            self._current = next(self._stacks, None)
            if self._current is None:
                return None
        taken = Stack(self._current.batches, self._current.begin, min(self._current.begin + most, self._current.end))
        self._current.begin = taken.end
        return taken


def _of_one_shape(stacks: tf.data.Iterator) -> Iterator[Stack]:
    for batches in stacks:
        yield Stack(batches, 0, int(tf.nest.flatten(batches)[0].shape[0]))


def _from_iterator(iterator: tf.data.Iterator, batches: int) -> tf.data.Dataset:
    def next_batch(_: tf.Tensor) -> Any:
        return iterator.get_next_as_optional()

    def value_with_rows(batch: Any) -> tuple[Any, tf.Tensor]:
        return batch.get_value(), _rows_of(batch.get_value())

    # The end of an iterator is an error, which a map function may not raise, so batches come as optionals.
    one_by_one = tf.data.Dataset.range(tf.int64.max).map(tf.autograph.experimental.do_not_convert(next_batch))
    one_by_one = one_by_one.take_while(tf.autograph.experimental.do_not_convert(lambda batch: batch.has_value()))
    stacks = _stacked(one_by_one.map(tf.autograph.experimental.do_not_convert(value_with_rows)), batches)
    options = tf.data.Options()
    # Nothing here is parallel. The iterator that is read from has its own.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return stacks.with_options(options)


@tf.autograph.experimental.do_not_convert
def _with_rows(*batch: Any) -> tuple[Any, tf.Tensor]:
    # tf.data gives the parts of a tuple one by one, and anything else as it is.
    return batch[0] if len(batch) == 1 else batch, _rows_of(batch)


def _rows_of(batch: Any) -> tf.Tensor:
    first: Any = next(iter(tf.nest.flatten(batch)))
    return tf.shape(first)[0]


def _stacked(with_rows: tf.data.Dataset, batches: int) -> tf.data.Dataset:
    # The last batch may have fewer rows, and is filled up to be stacked with the others.
    return with_rows.padded_batch(batches).prefetch(_PREFETCHED_STACKS)


def _split_all(stacks: Any) -> Iterator[Stack]:
    for stack, rows in stacks:
        yield from _split(stack, rows.numpy())


def _split(stack: Any, rows: np.ndarray) -> Iterator[Stack]:
    """Runs of batches with equally many rows, in their order."""
    borders = [0, *(np.flatnonzero(np.diff(rows)) + 1), len(rows)]
    pieces = deque(itertools.pairwise(borders))
    if len(pieces) == 1:
        # As many as in the longest batch, so nothing is filled up.
        yield Stack(stack, 0, len(rows))
        return
    for begin, end in pieces:
        count = int(rows[begin])

        def cut(component: tf.Tensor, begin: int = begin, end: int = end, count: int = count) -> tf.Tensor:
            return component[begin:end, :count]

        yield Stack(tf.nest.map_structure(cut, stack), 0, int(end - begin))
