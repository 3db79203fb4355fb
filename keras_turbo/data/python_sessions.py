"""Reads items that Python code makes, one epoch or stream at a time, and always asks for the next ones ahead."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from keras_turbo.data.worker_pool.pool import Result, WorkerError
from keras_turbo.data.worker_pool.producer import Producer


@dataclasses.dataclass
class Items:
    """Items that follow one another.

    Attributes:
        ordinals: their places in the epoch, int64.
        positions: their positions in the source, int64.
        leaves: their arrays, stacked or of one item; None where the items are in a store.
    """

    ordinals: np.ndarray
    positions: np.ndarray
    leaves: list[np.ndarray] | None


@dataclasses.dataclass
class Failure:
    """An item that could not be made.

    Attributes:
        position: where it is in the source.
        reason: the error, in a line.
        details: its traceback; empty if the item is not to blame.
        is_fatal: whether nothing more can be made.
    """

    position: int
    reason: str
    details: str
    is_fatal: bool = False


class ItemReader:
    """Items at certain positions, in their order.

    Args:
        producer: makes them.
        epoch: number of the epoch.
        asked_for: ordinals and positions, in pieces of any length.
        group: how many items are made by one task.
        describe: names the item at a position.
        is_stored: tells which of some positions are in a store.
        goes_on: told of each failure; says whether the items after it are wanted.
    """

    def __init__(
        self,
        producer: Producer,
        epoch: int,
        asked_for: Iterator[tuple[np.ndarray, np.ndarray]],
        group: int,
        describe: Callable[[int], str],
        is_stored: Callable[[np.ndarray], np.ndarray] | None,
        goes_on: Callable[[Failure], bool],
    ) -> None:
        self._producer = producer
        self._epoch = epoch
        self._groups = itertools.chain.from_iterable(
            _groups(ordinals, positions, group, is_stored) for ordinals, positions in asked_for
        )
        self._describe = describe
        self._goes_on = goes_on
        self._ahead: collections.deque[tuple[np.ndarray, np.ndarray, object]] = collections.deque()

    def next(self) -> Items | None:
        """The next items; None at the end."""
        while True:
            self._ask_ahead()
            if not self._ahead:
                return None
            ordinals, positions, ticket = self._ahead.popleft()
            if ticket is None:
                return Items(ordinals, positions, None)
            try:
                result = self._producer.result(ticket)
            except WorkerError as error:
                self._goes_on(Failure(int(positions[0]), str(error), "", is_fatal=True))
                self.close()
                return None
            count = result.count
            if result.failure is not None:
                position, reason, details = result.failure
                if not self._goes_on(Failure(position, reason, details)):
                    self.close()
                elif len(positions) > count + 1:
                    rest = slice(count + 1, None)
                    self._ahead.appendleft(self._asked(ordinals[rest], positions[rest]))
            if count:
                return Items(ordinals[:count], positions[:count], result.leaves)

    def close(self) -> None:
        """Leaves the rest."""
        self._groups = iter(())
        while self._ahead:
            ticket = self._ahead.pop()[2]
            if ticket is not None:
                self._producer.forget(ticket)

    def _ask_ahead(self) -> None:
        while len(self._ahead) < self._producer.tasks_ahead:
            following = next(self._groups, None)
            if following is None:
                return
            ordinals, positions, is_stored = following
            self._ahead.append((ordinals, positions, None) if is_stored else self._asked(ordinals, positions))

    def _asked(self, ordinals: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, object]:
        task = ("items", self._epoch, tuple(positions.tolist()))
        return ordinals, positions, self._producer.submit(task, self._describe(int(positions[0])))


def _groups(
    ordinals: np.ndarray, positions: np.ndarray, size: int, is_stored: Callable[[np.ndarray], np.ndarray] | None
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Pieces of up to `size` positions that are all in the store, or all not."""
    for start in range(0, len(positions), size):
        some_ordinals, some = ordinals[start : start + size], positions[start : start + size]
        stored = np.zeros(len(some), bool) if is_stored is None else is_stored(some)
        for part in np.split(np.arange(len(some)), np.flatnonzero(np.diff(stored)) + 1):
            yield some_ordinals[part], some[part], bool(stored[part[0]])


class StreamReader:
    """What generators give, group by group from each in turn.

    Args:
        producer: runs them, one in a worker.
        number: of the stream, other than that of any other one.
        epoch: number of the epoch.
        keywords: what each generator function is called with.
        group: how many items are made by one task.
        skip: items of the first generator that are left out.
        name: what to call the generator.
    """

    def __init__(
        self,
        producer: Producer,
        number: int,
        epoch: int,
        keywords: list[dict[str, int]],
        group: int,
        skip: int,
        name: str,
    ) -> None:
        self._producer = producer
        self._number = number
        self._group = group
        self._name = name
        self._opened = [
            producer.submit(("open", number, epoch, words, skip), name, only) for only, words in enumerate(keywords)
        ]
        self._ahead: list[collections.deque] = [collections.deque() for _ in keywords]
        self._reading = list(range(len(keywords)))
        self._turn = 0

    def next(self) -> Result | None:
        """The next items, which may come with a failure of the one after them; None at the end.

        Raises:
            WorkerError: a process died, or could not start.
        """
        while self._reading:
            number = self._reading[self._turn % len(self._reading)]
            for ahead in self._reading:
                # Each is asked for its next ones while those before are on their way.
                while len(self._ahead[ahead]) < min(2, self._producer.tasks_ahead):
                    self._ahead[ahead].append(
                        self._producer.submit(("next", self._number, self._group), self._name, ahead)
                    )
            if self._opened[number] is not None:
                opened = self._producer.result(self._opened[number])
                self._opened[number] = None
                if opened.failure is not None:
                    self.close()
                    return opened
            result = self._producer.result(self._ahead[number].popleft())
            if result.failure is not None:
                self._reading = []
                return result
            if result.ended:
                self._turn = self._reading.index(number)
                self._reading.remove(number)
            else:
                self._turn = (self._reading.index(number) + 1) % len(self._reading)
            if result.count:
                return result
        return None

    def close(self) -> None:
        """Ends the generators."""
        self._reading = []
        for only, ahead in enumerate(self._ahead):
            for ticket in ahead:
                self._producer.forget(ticket)
            self._producer.submit(("close", self._number), self._name, only)
