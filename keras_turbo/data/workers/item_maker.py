"""Makes items by a user's Python code: by position, or from a generator."""

from __future__ import annotations

import dataclasses
import random
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .items import Form, ItemError, flatten, packed


@dataclasses.dataclass
class Made:
    """What came of a task.

    Attributes:
        items: the arrays of each item that could be made.
        failures: for the others, by their index in the task, what went wrong: in a line, and with its traceback.
        ended: whether a generator has no more.
        structures: those of the items.
    """

    items: list[list[np.ndarray]] = dataclasses.field(default_factory=list)
    failures: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
    ended: bool = False
    structures: list[Any] = dataclasses.field(default_factory=list)


class _OpenStream:
    """A generator that is being read, with the state of the random numbers that it draws."""

    iterator: Iterator = iter(())
    random_state: Any = None


class ItemMaker:
    """Runs tasks, which are tuples of plain values that begin with what to do.

    - `("items", epoch, positions, rows)`: items by position; `rows` are the columns of what they are made of, or None.
    - `("open", stream, epoch, keywords, skip)`: calls the generator function and leaves out the first items.
    - `("next", stream, count)`: up to so many items more.
    - `("close", stream)`
    - `("load", positions, seeds)`: examples of a source of keras_turbo.

    Args:
        source: an object with `__getitem__`; a generator function; a source of keras_turbo; or of rows
            `(structure, function, whether it takes all parts)`.
        form: what items must be like; None while that is found out.
        are_batches: whether they are batches.
        seed: with it, Python's and NumPy's global random numbers are functions of seed, epoch and position. None leaves
            them alone, as is right where they are the user's own.
    """

    def __init__(self, source: Any, form: Form | None, *, are_batches: bool, seed: int | None) -> None:
        self.source = source
        self._form = form
        self._are_batches = are_batches
        self._seed = seed
        self._streams: dict[int, _OpenStream] = {}
        self._last_iterator: Any = None

    def run(self, task: tuple) -> Made:
        """Does what a task says. What the user's code raises is in the result."""
        what, *arguments = task
        made = Made()
        getattr(self, f"_{what}")(made, *arguments)
        return made

    def _items(self, made: Made, epoch: int, positions: Sequence[int], rows: Sequence[Any] | None) -> None:
        for index, position in enumerate(positions):
            self._seed_random_numbers(epoch, position)
            try:
                self._add(made, self.source[position] if rows is None else self._mapped([one[index] for one in rows]))
            except Exception as error:  # whatever the user's code raises is told
                made.failures[index] = _failure(error)

    def _mapped(self, values: list[Any]) -> Any:
        structure, function, takes_all = self.source
        row = packed(structure, iter(values))
        if not isinstance(row, tuple):
            return function(row)
        return function(*row) if takes_all else (function(row[0]), *row[1:])

    def _add(self, made: Made, item: Any) -> None:
        structure, leaves = flatten(item, is_batch=self._are_batches)
        if self._form is not None:
            self._form.check(structure, leaves)
        made.items.append(leaves)
        made.structures.append(structure)

    def _load(self, made: Made, positions: np.ndarray, seeds: np.ndarray | None) -> None:
        columns, failures = self.source.load(positions, seeds, None)
        made.failures = {index: (str(error) or type(error).__name__, "") for index, error in failures.items()}
        good = [index for index in range(len(positions)) if index not in failures]
        made.items = [[np.asarray(column[index]) for column in columns] for index in good]

    def _open(self, made: Made, stream: int, epoch: int, keywords: dict[str, int], skip: int) -> None:
        self._seed_random_numbers(epoch, 0)
        opened = self._streams[stream] = _OpenStream()
        number_skipped = 0
        try:
            iterator = iter(self.source(**keywords))
            if iterator is self._last_iterator:
                raise ItemError(
                    "The function has returned the iterator that it returned before, of which a part has been read. It "
                    "must make a new one at each call, as a generator function does."
                )
            opened.iterator = self._last_iterator = iterator
            for number_skipped in range(skip):
                next(iterator)
        except StopIteration:
            opened.iterator = iter(())
        except Exception as error:
            made.failures[number_skipped] = _failure(error)
        self._keep_random_numbers(opened)

    def _next(self, made: Made, stream: int, count: int) -> None:
        reading = self._streams[stream]
        if reading.random_state is not None:
            random.setstate(reading.random_state[0])
            np.random.set_state(reading.random_state[1])  # noqa: NPY002 (it is the global generator that users draw from)
        try:
            while len(made.items) < count:
                self._add(made, next(reading.iterator))
        except StopIteration:
            made.ended = True
        except Exception as error:
            made.failures[len(made.items)] = _failure(error)
        self._keep_random_numbers(reading)

    def _close(self, made: Made, stream: int) -> None:
        close = getattr(self._streams.pop(stream, _OpenStream).iterator, "close", None)
        try:
            if close is not None:
                close()
        except Exception as error:
            made.failures[0] = _failure(error)

    def _seed_random_numbers(self, epoch: int, position: int) -> None:
        if self._seed is not None:
            words = np.random.SeedSequence([self._seed, epoch, position]).generate_state(8)
            random.seed(words.tobytes())
            np.random.seed(words)  # noqa: NPY002 (it is the global generator that users draw from)

    def _keep_random_numbers(self, stream: _OpenStream) -> None:
        if self._seed is not None:
            stream.random_state = random.getstate(), np.random.get_state()  # noqa: NPY002


def _failure(error: BaseException) -> tuple[str, str]:
    # The first frame is the one here.
    trace = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).strip()
    return "".join(traceback.format_exception_only(type(error), error)).strip(), text
