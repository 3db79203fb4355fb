"""One epoch: positions -> loaders -> store -> batches, in order, with failures where they happen."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from keras_turbo.data.engine.batches import Piece, WholeBatches
from keras_turbo.data.engine.elements import Column, concatenated, scattered, taken
from keras_turbo.data.engine.recipe import Recipe
from keras_turbo.data.functions import RowFunction

# Copying less than this in the thread that asks for a batch takes less time than waking another one.
_COPIED_AT_ONCE_BYTES = 1 << 20

# Examples that go together through a function of the user's: a call costs about as much as so many small ones.
_ROWS_A_CALL = 16
_BYTES_A_CALL = 1 << 16

# Values of some examples (None: written where they are wanted), and by index the errors of those that could not be
# made, whose rows mean nothing.
_Made = tuple[list[Column] | None, dict[int, Exception]]


@dataclasses.dataclass
class _Begun:
    """A piece that is being made.

    Attributes:
        piece: what is wanted.
        lent: the arrays in which its rows are written; None where they differ in shape.
        jobs: with the index of its first row, each.
    """

    piece: Piece
    lent: list[np.ndarray] | None
    jobs: list[tuple[int, Future[_Made]]]


class Epoch:
    """One epoch, as the arrays of its elements in order.

    Loaders fill the rows of the next pieces while the one before is given. What fails is an exception, caught where the
    example is at hand.

    Args:
        recipe: what it is made by.
        number: of the epoch, from 0.
        first: the element with which it begins.
        group: how many elements are given together, along an axis in front. None gives them one by one, without it.
    """

    def __init__(self, recipe: Recipe, number: int, first: int, group: int | None) -> None:
        self._recipe = recipe
        self._number = number
        self._first = first
        self._group = group
        self._pool: ThreadPoolExecutor | None = None
        self._given = self._run()

    def next(self) -> list[np.ndarray]:
        """The arrays of the next element; raises StopIteration at the end."""
        return next(self._given)

    def close(self) -> None:
        """Leaves the rest."""
        self._given.close()

    def _run(self) -> Iterator[list[np.ndarray]]:
        try:
            yield from self._elements()
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def _elements(self) -> Iterator[list[np.ndarray]]:
        recipe = self._recipe
        if recipe.fill_store is not None:
            recipe.fill_store()
        self._load = recipe.source.begin_epoch(self._number, recipe.seed)
        if recipe.may_skip:
            yield from self._without_failures()
            recipe.failures.end_pass(np.concatenate([*recipe.order.pieces(self._number)]))
            recipe.source.end_epoch(self._number)
        else:
            pieces = self._in_order(recipe.batches.pieces(self._number, self._first, self._group or 1))
            begun = next(pieces, None)
            while begun is not None:
                columns, failed = self._result(begun)
                self._report(begun.piece, failed)
                following = next(pieces, None)
                if following is None:
                    # Nobody asks behind the last element of a number that is known.
                    recipe.source.end_epoch(self._number)
                yield begun.lent or self._packed(columns, len(begun.piece.positions))
                begun = following

    def _without_failures(self) -> Iterator[list[np.ndarray]]:
        """The elements where failing examples are left out, and those behind them move up."""
        recipe = self._recipe
        assert isinstance(recipe.batches, WholeBatches)  # noqa: S101 (of others nothing is left out)
        size, group = recipe.batches.batch_size or 1, self._group or 1
        many = group * size
        # Which examples are in the batches before the first is known only once they are made.
        to_leave_out = self._first * size
        runs = (run[~recipe.failures.have_failed(run)] for run in recipe.order.pieces(self._number))
        waiting: list[list[Column]] = []
        rows = 0
        for begun in self._in_order(dataclasses.replace(recipe.batches, drop_remainder=False).cut(runs, group)):
            columns, failed = self._result(begun)
            self._report(begun.piece, failed)
            count = len(begun.piece.positions)
            if begun.lent and count == many and not (failed or rows or to_leave_out):
                yield begun.lent
                continue
            good = np.delete(np.arange(count), list(failed))
            wanted = good[to_leave_out:]
            to_leave_out -= len(good) - len(wanted)
            waiting.append(taken(columns, wanted))
            rows += len(wanted)
            while rows >= many:
                together = concatenated(waiting)
                yield self._packed([column[:many] for column in together], many)
                waiting, rows = [[column[many:] for column in together]], rows - many
        together = concatenated(waiting) if rows else []
        full = rows // size * size
        if full:
            yield self._packed([column[:full] for column in together], full)
        if full < rows and not recipe.batches.drop_remainder:
            yield self._packed([column[full:] for column in together], rows - full)

    def _report(self, piece: Piece, failed: dict[int, Exception]) -> None:
        for index, error in sorted(failed.items()):
            self._recipe.failures.report(int(piece.positions[index]), error)

    def _packed(self, columns: Sequence[Column], rows: int) -> list[np.ndarray]:
        """The arrays of an element out of its rows."""
        size = self._recipe.batches.batch_size
        if size is None:
            return [np.asarray(column[0]) if self._group is None else np.asarray(column) for column in columns]
        arrays = self._recipe.elements.components(columns)
        if self._group is None:
            return arrays
        many = max(1, rows // size)
        return [array.reshape(many, rows // many, *array.shape[1:]) for array in arrays]

    def _in_order(self, pieces: Iterator[Piece]) -> Iterator[_Begun]:
        """Begins pieces ahead, and gives them one after the other."""
        ahead: collections.deque[_Begun] = collections.deque()
        # Two pieces, so that no thread waits while one is handed over; more where a piece has less work than threads:
        # not where it is copied out of memory, which more threads make no faster.
        most_jobs = 0 if self._recipe.is_ready and self._recipe.augment_fn is None else 2 * self._recipe.workers
        for piece in pieces:
            ahead.append(self._begin(piece))
            while ahead and (
                not ahead[-1].jobs or (len(ahead) > 2 and sum(len(begun.jobs) for begun in ahead) > most_jobs)
            ):
                yield ahead.popleft()
        while ahead:
            yield ahead.popleft()

    def _begin(self, piece: Piece) -> _Begun:
        recipe, count = self._recipe, len(piece.positions)
        lent = None
        if recipe.elements.is_fixed:
            most = (self._group or 1) * (recipe.batches.batch_size or 1)
            lent = recipe.lend(max(count, most), piece.leading if self._group else piece.leading[1:])
        is_there = recipe.is_ready
        num_bytes = sum(array.nbytes for array in lent or ())
        if lent is not None and is_there and recipe.augment_fn is None and num_bytes <= _COPIED_AT_ONCE_BYTES:
            self._make(piece, lent, 0, count)
            return _Begun(piece, lent, [])
        size = self._rows_a_job(count, is_there)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(recipe.workers, "keras_turbo")
        starts = range(0, count, size)
        jobs = [(at, self._pool.submit(self._make, piece, lent, at, min(at + size, count))) for at in starts]
        return _Begun(piece, lent, jobs)

    def _rows_a_job(self, count: int, is_there: bool) -> int:
        recipe = self._recipe
        if not is_there and recipe.source.processes is not None:
            return recipe.source.rows_a_job
        if recipe.augment_fn is not None or (recipe.map_fn is not None and not is_there):
            return max(_ROWS_A_CALL, _BYTES_A_CALL // recipe.elements.row_bytes)
        return count if is_there or recipe.source.loads_together else recipe.source.rows_a_job

    def _result(self, begun: _Begun) -> tuple[list[Column], dict[int, Exception]]:
        """What the jobs have made of a piece."""
        failed: dict[int, Exception] = {}
        columns: list[Sequence[Column]] = []
        for first, job in begun.jobs:
            made, errors = job.result()
            failed |= {first + index: error for index, error in errors.items()}
            if made is not None:
                columns.append(made)
        if begun.lent is not None:
            return [*self._flat_rows(begun.lent, len(begun.piece.positions))], failed
        return concatenated(columns), failed

    def _flat_rows(self, lent: list[np.ndarray], count: int) -> list[np.ndarray]:
        return [
            array.reshape(count, *shape) for array, (shape, _) in zip(lent, self._recipe.elements.arrays, strict=True)
        ]

    # What follows runs in the threads of the pool.

    def _make(self, piece: Piece, lent: list[np.ndarray] | None, begin: int, end: int) -> _Made:
        """Makes some rows of a piece: from the store, or loaded, mapped and stored; and augmented."""
        recipe = self._recipe
        positions = piece.positions[begin:end]
        out = None
        if lent is not None:
            out = [array[begin:end] for array in self._flat_rows(lent, len(piece.positions))]
        target = out if recipe.augment_fn is None else None
        columns: list[Column] | None
        if recipe.store is None:
            in_place = row_arrays(target) if target is not None and self._loads_in_place else None
            columns, failed = self._loaded(positions, in_place)
        else:
            failed = self._fill(positions)
            gathered = recipe.store.gather(positions, target)
            columns = gathered if target is None else None
        if recipe.augment_fn is not None and columns is not None:
            columns, failed = self._applied(recipe.augment_fn, columns, positions, failed)
        if columns is not None and piece.padding is not None:
            columns, failed = piece.padding.apply(columns, recipe.elements, failed)
        if out is None or columns is None:
            return columns, failed
        for rows, column in zip(out, columns, strict=True):
            rows[...] = column
        return None, failed

    def _fill(self, positions: np.ndarray) -> dict[int, Exception]:
        """Sees to it that examples are in the store; gives the errors of those that can't be."""
        store = self._recipe.store
        assert store is not None  # noqa: S101 (as the caller knows)
        missing = np.flatnonzero(~store.has(positions))
        if not len(missing):
            return {}
        wanted = positions[missing]
        columns, failed = self._loaded(wanted, store.rows(wanted) if self._loads_in_place else None)
        good = np.delete(np.arange(len(wanted)), list(failed))
        if columns is None:
            store.mark(wanted[good])
        else:
            store.put(wanted[good], taken(columns, good))
        return {int(missing[index]): error for index, error in failed.items()}

    @property
    def _loads_in_place(self) -> bool:
        """Whether the source is given where each example's arrays lie: not one that gives many at a time."""
        return self._recipe.map_fn is None and not self._recipe.source.loads_together

    def _loaded(self, positions: np.ndarray, in_place: list[list[np.ndarray]] | None) -> _Made:
        """Examples as they leave `map_fn`."""
        source, map_fn = self._recipe.source, self._recipe.map_fn
        columns, failed = self._load(positions, self._seeds(positions) if source.is_random else None, in_place)
        if map_fn is not None and columns is not None:
            columns, failed = self._applied(map_fn, columns, positions, failed)
        return columns, failed

    def _applied(
        self, function: RowFunction, columns: list[Column], positions: np.ndarray, failed: dict[int, Exception]
    ) -> tuple[list[Column], dict[int, Exception]]:
        """What a function makes of examples, but for those that have failed before."""
        seeds = self._seeds(positions)
        if not failed:
            return function(columns, seeds)
        good = np.delete(np.arange(len(positions)), list(failed))
        made, errors = function(taken(columns, good), seeds[good])
        failed = failed | {int(good[index]): error for index, error in errors.items()}
        return scattered(made, good, len(positions), function.elements), failed

    def _seeds(self, positions: np.ndarray) -> np.ndarray:
        return np.stack([np.full(len(positions), self._seed_of_epoch, np.int64), positions], axis=1)

    @functools.cached_property
    def _seed_of_epoch(self) -> int:
        return self._recipe.seed_of_epoch(self._number)


def row_arrays(columns: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """For each row of some arrays what it is in each of them, to be written."""
    return [[column[index, ...] for column in columns] for index in range(len(columns[0]))]
