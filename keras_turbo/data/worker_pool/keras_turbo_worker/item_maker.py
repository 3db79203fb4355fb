"""Makes items by a user's Python code: by index, from a generator, or by a function of rows of arrays."""

from __future__ import annotations

import dataclasses
import random
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

from .item_layout import check, flatten

#: Kinds of sources: an object with `__getitem__`; a function that returns an iterator; rows and a function of them.
INDEXED, GENERATOR, MAPPED = "indexed", "generator", "mapped"


@dataclasses.dataclass
class Made:
    """What came of a task.

    Attributes:
        items: the arrays of each item that was made.
        ended: whether a generator has no more.
        failure: what went wrong with the item after those: its index, the error in a line, and its traceback.
        structures: those of the items.
    """

    items: list[list[np.ndarray]]
    ended: bool = False
    failure: tuple[int, str, str] | None = None
    structures: list[tuple] = dataclasses.field(default_factory=list)

    def add(self, item: Any, wanted: tuple | None, *, is_batch: bool) -> None:
        """Takes an item in, if it is what was wanted."""
        structure, leaves = flatten(item, is_batch=is_batch)
        if wanted is not None:
            check(structure, leaves, wanted)
        self.items.append(leaves)
        self.structures.append(structure)


class _Stream:
    """A generator that is being read, with the state of the random numbers that it draws."""

    def __init__(self, iterator: Iterator, next_index: int, random_state: Any) -> None:
        self.iterator = iterator
        self.next_index = next_index
        self.random_state = random_state


class ItemMaker:
    """Runs tasks, which are tuples of plain values that begin with what to do.

    - `("items", epoch, positions)`: the items at some positions.
    - `("open", stream, epoch, keywords, skip)`: calls the generator function and leaves out the first items.
    - `("next", stream, count)`: up to so many items more.
    - `("close", stream)`.

    Args:
        kind: INDEXED, GENERATOR or MAPPED.
        source: the object; the generator function; or `(rows, function, takes_all)`, of which rows are
            `(structure of the row, arrays)`.
        wanted: what items must be like, as `item_layout.check` takes it; None while that is found out.
        seed: with it, Python's and NumPy's global random numbers are functions of seed, epoch and position. None leaves
            them alone, as is right where they are the user's own.
    """

    def __init__(self, kind: str, source: Any, wanted: tuple | None, seed: int | None) -> None:
        self._kind = kind
        self.source = source
        self._wanted = wanted
        self._seed = seed
        self._streams: dict[int, _Stream] = {}

    def run(self, task: tuple) -> Made:
        """Does what a task says. What the user's code raises is in the result."""
        what, *arguments = task
        return {"items": self._items, "open": self._open, "next": self._next, "close": self._close}[what](*arguments)

    def _items(self, epoch: int, positions: tuple[int, ...]) -> Made:
        made = Made([])
        for position in positions:
            self._seed_random_numbers(epoch, position)
            try:
                item = self._mapped(position) if self._kind == MAPPED else self.source[position]
                made.add(item, self._wanted, is_batch=self._kind == INDEXED)
            except Exception as error:  # whatever the user's code raises is told
                made.failure = _failure(position, error)
                break
        return made

    def _mapped(self, position: int) -> Any:
        (structure, arrays), function, takes_all = self.source
        row = _row(structure, iter([array[position] for array in arrays]))
        if takes_all:
            return function(*row) if isinstance(row, tuple) else function(row)
        return (function(row[0]), *row[1:])

    def _open(self, stream: int, epoch: int, keywords: dict[str, int], skip: int) -> Made:
        self._seed_random_numbers(epoch, 0)
        opened = _Stream(iter(()), 0, None)
        self._streams[stream] = opened
        try:
            opened.iterator = iter(self.source(**keywords))
            while opened.next_index < skip:
                next(opened.iterator)
                opened.next_index += 1
        except StopIteration:
            opened.iterator = iter(())
        except Exception as error:
            return Made([], failure=_failure(opened.next_index, error))
        self._keep_random_numbers(opened)
        return Made([])

    def _next(self, stream: int, count: int) -> Made:
        reading, made = self._streams[stream], Made([])
        if self._seed is not None and reading.random_state is not None:
            random.setstate(reading.random_state[0])
            np.random.set_state(reading.random_state[1])  # noqa: NPY002 (it is the global generator that users draw from)
        for _ in range(count):
            try:
                made.add(next(reading.iterator), self._wanted, is_batch=False)
            except StopIteration:
                made.ended = True
                break
            except Exception as error:
                made.failure = _failure(reading.next_index, error)
                break
            reading.next_index += 1
        self._keep_random_numbers(reading)
        return made

    def _close(self, stream: int) -> Made:
        reading = self._streams.pop(stream, None)
        close = getattr(getattr(reading, "iterator", None), "close", None)
        if close is not None:
            try:
                close()
            except Exception as error:
                return Made([], failure=_failure(reading.next_index if reading else 0, error))
        return Made([])

    def _seed_random_numbers(self, epoch: int, position: int) -> None:
        if self._seed is None:
            return
        words = np.random.SeedSequence([self._seed, epoch, position]).generate_state(8)
        random.seed(words.tobytes())
        np.random.seed(words)  # noqa: NPY002 (it is the global generator that users draw from)

    def _keep_random_numbers(self, stream: _Stream) -> None:
        if self._seed is not None:
            stream.random_state = random.getstate(), np.random.get_state()  # noqa: NPY002


def _row(structure: tuple, values: Iterator[Any]) -> Any:
    kind, *inner = structure
    if kind == "dict":
        return {key: _row(part, values) for key, part in inner[0]}
    if kind == "tuple":
        return tuple(_row(part, values) for part in inner[0])
    return next(values)


def _failure(index: int, error: BaseException) -> tuple[int, str, str]:
    # The first frame is the one here.
    trace = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).strip()
    return index, "".join(traceback.format_exception_only(type(error), error)).strip(), text
