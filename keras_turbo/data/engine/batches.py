"""(order, batch size) -> which positions each batch of an epoch has, for one worker or for one of several."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column, Elements, numpy_dtype
from keras_turbo.data.engine.order import ExampleOrder


@dataclasses.dataclass(frozen=True)
class Padding:
    """Brings sequences, whose first axis varies, to one length.

    Args:
        length: to which they are filled up with zeros.
        truncates: whether longer ones are cut; else they fail.
    """

    length: int
    truncates: bool

    def apply(
        self, columns: list[Column], elements: Elements, failed: dict[int, Exception]
    ) -> tuple[list[Column], dict[int, Exception]]:
        """The columns of some examples with sequences of that length, and by index the errors of those that fail."""
        failed = dict(failed)
        padded: list[Column] = []
        for column, leaf in zip(columns, elements.leaves, strict=True):
            if not is_sequence(leaf):
                padded.append(column)
                continue
            rows = np.zeros((len(column), self.length, *column[0].shape[1:]), numpy_dtype(leaf.dtype))
            if rows.dtype.hasobject:
                rows[...] = b""
            for index, row in enumerate(column):
                if len(row) > self.length and not self.truncates:
                    failed[index] = ValueError(
                        "A sequence is longer than its bucket: `map_fn` or `augment_fn` may not lengthen what they get "
                        f"by so much. Too long by {len(row) - self.length}."
                    )
                rows[index, : len(row)] = row[: self.length]
            padded.append(rows)
        return padded, failed


def is_sequence(leaf: tf.TensorSpec) -> bool:
    """Whether a tensor of an example varies in its first axis."""
    return bool(leaf.shape.rank) and leaf.shape[0] is None


class Piece(NamedTuple):
    """Examples that are made together: one batch, or several of the same size.

    Attributes:
        positions: int64 vector.
        leading: the shape in which they come: (batches, rows), or (rows,) of single examples.
        padding: how sequences in it are brought to one length; None for other data.
    """

    positions: np.ndarray
    leading: tuple[int, ...]
    padding: Padding | None = None


class Batches(Protocol):
    """Which examples come together, epoch by epoch."""

    @property
    def batch_size(self) -> int | None:
        """Examples of a batch that is full; None where elements are single examples."""
        ...

    @property
    def number(self) -> int:
        """Number of elements in an epoch: of batches, or of parts of batches."""
        ...

    def pieces(self, epoch: int, first: int, group: int) -> Iterator[Piece]:
        """The elements of an epoch, from one on, up to `group` of the same size at a time."""
        ...


@dataclasses.dataclass(frozen=True)
class WholeBatches:
    """Batches of examples that follow one another in an order.

    Args:
        order: of the examples.
        batch_size: examples a batch; None for examples one by one.
        drop_remainder: whether a last batch that is not full is left out.
    """

    order: ExampleOrder
    batch_size: int | None
    drop_remainder: bool

    @property
    def number(self) -> int:
        """Number of batches in an epoch."""
        return self.number_of(self.order.num_examples)

    def number_of(self, num_examples: int) -> int:
        """Number of batches (of examples, where there are no batches) that so many examples make."""
        if self.batch_size is None:
            return num_examples
        return num_examples // self.batch_size if self.drop_remainder else math.ceil(num_examples / self.batch_size)

    def pieces(self, epoch: int, first: int, group: int) -> Iterator[Piece]:
        start = min(first * (self.batch_size or 1), self.order.num_examples)
        return self.cut(self.order.pieces(epoch, start), group)

    def cut(self, positions: Iterable[np.ndarray], group: int) -> Iterator[Piece]:
        """Pieces of up to `group` batches of positions that come in runs of any length."""
        size = self.batch_size or 1
        together = group * size
        rest = np.empty(0, np.int64)
        for following in positions:
            run = np.concatenate([rest, following]) if len(rest) else following
            end = len(run) // together * together
            for begin in range(0, end, together):
                yield self._piece(run[begin : begin + together])
            rest = run[end:]
        full = len(rest) // size * size
        if full:
            yield self._piece(rest[:full])
        if full < len(rest) and not self.drop_remainder:
            yield self._piece(rest[full:])

    def _piece(self, positions: np.ndarray) -> Piece:
        if self.batch_size is None:
            return Piece(positions, (len(positions),))
        rows = min(self.batch_size, len(positions))
        return Piece(positions, (len(positions) // rows, rows))


@dataclasses.dataclass(frozen=True)
class BatchParts:
    """Which parts of every batch one of several workers has.

    A batch is cut into as many runs of neighbouring rows as there are replicas. The parts are dealt to the workers in
    turn: with two workers of two replicas each, worker 0 has parts 0 and 2, worker 1 has 1 and 3. That is the order in
    which Keras (3.12 to 3.15) puts together again what several workers predicted.

    Args:
        num_workers: number of workers.
        worker: which of them, from 0.
        replicas_per_worker: parts that each has.
    """

    num_workers: int
    worker: int
    replicas_per_worker: int

    def __post_init__(self) -> None:
        for name in ("num_workers", "worker", "replicas_per_worker"):
            operator.index(getattr(self, name))
        if self.num_workers < 1 or self.replicas_per_worker < 1:
            raise ValueError(
                "There must be at least one worker with at least one replica. Received: "
                f"num_workers={self.num_workers}, replicas_per_worker={self.replicas_per_worker}."
            )
        if not 0 <= self.worker < self.num_workers:
            raise ValueError(
                f"`worker` must lie between 0 and num_workers - 1 = {self.num_workers - 1}. Received: {self.worker}."
            )

    @property
    def num_parts(self) -> int:
        """Parts of a batch, over all workers: one for each replica."""
        return self.num_workers * self.replicas_per_worker

    def runs(self, batch_size: int) -> list[slice]:
        """The rows of a full batch that each of this worker's replicas has; any two parts differ by one row at most."""
        least, more = divmod(batch_size, self.num_parts)
        starts = [part * least + min(part, more) for part in range(self.num_parts + 1)]
        own = range(self.worker, self.num_parts, self.num_workers)
        return [slice(starts[part], starts[part + 1]) for part in own]


@dataclasses.dataclass(frozen=True)
class PartsOfBatches:
    """A worker's rows of each batch, as one element for each of its replicas.

    Where a batch has too few rows for all, some elements are without rows, so that no worker is through before the
    others, which would wait for it.

    Args:
        whole: the batches of all workers together.
        parts: which rows are the worker's.
    """

    whole: WholeBatches
    parts: BatchParts

    @property
    def number(self) -> int:
        """Number of elements in an epoch."""
        return self.whole.number * self.parts.replicas_per_worker

    @property
    def batch_size(self) -> int:
        """Rows of the largest element."""
        return -(-(self.whole.batch_size or 1) // self.parts.num_parts)

    @property
    def static_rows(self) -> int | None:
        """Rows of every element, where all have as many."""
        size = self.whole.batch_size or 1
        return size // self.parts.num_parts if self.whole.drop_remainder and not size % self.parts.num_parts else None

    def pieces(self, epoch: int, first: int, group: int) -> Iterator[Piece]:
        runs = self.parts.runs(self.whole.batch_size or 1)
        for batch in self.whole.pieces(epoch, first, 1):
            for run in runs:
                own = batch.positions[run]
                yield Piece(own, (1, len(own)))
