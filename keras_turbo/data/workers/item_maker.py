"""Makes items by a user's Python code, by position or from a generator, as arrays in a structure."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

#: What stands for an array in the structure of an item, which is made of dicts and tuples.
ARRAY = "array"

_MOST_PARTS = 3  # x, y and sample_weight

_THE_SAME_ITERATOR = (
    "The function has returned the iterator that it returned before, of which a part has been read. It must make a new "
    "one at each call, as a generator function does."
)


class ItemError(ValueError):
    """An item is not what can be trained on, or not what was agreed upon."""


class Made(NamedTuple):
    """What came of a task: structure and arrays of items by their index in it; of the others error and traceback."""

    items: dict[int, tuple[Any, list[np.ndarray]]]
    failures: dict[int, tuple[str, str]]
    ended: bool = False  # whether a generator has no more


class ItemMaker:
    """Runs tasks, which are tuples of plain values that begin with what to do.

    - `("items", epoch, positions, rows)`: items by position, or made of some rows.
    - `("open", stream, epoch, keywords, skip)`: calls the generator function and leaves out the first items.
    - `("next", stream, count)`: up to so many items more.
    - `("close", stream)`
    - `("load", positions, seeds)`: examples of a source of keras_turbo.

    Args:
        source: an object with `__getitem__`; a generator function; a source of keras_turbo; or of rows
            `(function, whether it takes all parts)`.
        are_batches: whether items are those of a PyDataset.
        seed: with it, Python's and NumPy's global random numbers are functions of seed, epoch and position. None leaves
            them alone, as is right where they are the user's own.
    """

    def __init__(self, source: Any, *, are_batches: bool, seed: int | None) -> None:
        self.source = source
        self._are_batches = are_batches
        self._seed = seed
        # Generators that are being read, with the state of the random numbers that each draws.
        self._streams: dict[int, tuple[Iterator, Any]] = {}
        self._last_iterator: Any = None

    def run(self, task: tuple) -> Made:
        """Does what a task says. What the user's code raises is in the result."""
        what, *arguments = task
        return getattr(self, f"_{what}")(*arguments)

    def _items(self, epoch: int, positions: Sequence[int], rows: Sequence[Any] | None) -> Made:
        made = Made({}, {})
        for index, position in enumerate(positions):
            self._seed_random_numbers(epoch, position)
            try:
                item = self.source[position] if rows is None else self._mapped(rows[index])
                made.items[index] = flatten(item, is_batch=self._are_batches)
            except Exception as error:  # whatever the user's code raises is told
                made.failures[index] = _failure(error)
        return made

    def _mapped(self, row: Any) -> Any:
        function, takes_all = self.source
        if not isinstance(row, tuple):
            return function(row)
        return function(*row) if takes_all else (function(row[0]), *row[1:])

    def _load(self, positions: np.ndarray, seeds: np.ndarray | None) -> Made:
        columns, errors = self.source.load(positions, seeds, None)
        failures = {index: (str(error) or type(error).__name__, "") for index, error in errors.items()}
        good = [index for index in range(len(positions)) if index not in failures]
        return Made({index: (None, [np.asarray(column[index]) for column in columns]) for index in good}, failures)

    def _open(self, stream: int, epoch: int, keywords: dict[str, int], skip: int) -> Made:
        self._seed_random_numbers(epoch, 0)
        self._streams[stream] = iter(()), None
        skipped = 0
        try:
            iterator = iter(self.source(**keywords))
            if iterator is self._last_iterator:
                return Made({}, {0: (_THE_SAME_ITERATOR, "")})
            self._last_iterator = iterator
            while skipped < skip:
                next(iterator)
                skipped += 1
            self._keep(stream, iterator)
        except StopIteration:
            pass
        except Exception as error:
            return Made({}, {skipped: _failure(error)})
        return Made({}, {})

    def _next(self, stream: int, count: int) -> Made:
        iterator, random_state = self._streams[stream]
        if random_state is not None:
            random.setstate(random_state[0])
            np.random.set_state(random_state[1])  # noqa: NPY002 (it is the global generator that users draw from)
        made = Made({}, {})
        try:
            while len(made.items) < count:
                made.items[len(made.items)] = flatten(next(iterator))
        except StopIteration:
            return made._replace(ended=True)
        except Exception as error:
            made.failures[len(made.items)] = _failure(error)
        self._keep(stream, iterator)
        return made

    def _close(self, stream: int) -> Made:
        iterator, _ = self._streams.pop(stream, (None, None))
        try:
            getattr(iterator, "close", lambda: None)()
        except Exception as error:
            return Made({}, {0: _failure(error)})
        return Made({}, {})

    def _seed_random_numbers(self, epoch: int, position: int) -> None:
        if self._seed is not None:
            words = np.random.SeedSequence([self._seed, epoch, position]).generate_state(8)
            random.seed(words.tobytes())
            np.random.seed(words)  # noqa: NPY002 (it is the global generator that users draw from)

    def _keep(self, stream: int, iterator: Iterator) -> None:
        state = None if self._seed is None else (random.getstate(), np.random.get_state())  # noqa: NPY002
        self._streams[stream] = iterator, state


def _failure(error: BaseException) -> tuple[str, str]:
    # The first frame is the one here.
    trace = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).strip()
    return "".join(traceback.format_exception_only(type(error), error)).strip(), text


def flatten(item: Any, *, is_batch: bool = False) -> tuple[Any, list[np.ndarray]]:
    """The structure of an item, and its arrays in the order of `tf.nest`; raises ItemError where it has others.

    Lists of arrays are tuples, and other lists arrays; a None behind x and y is left out. A list that is a batch, of up
    to three things, is (x, y, sample_weight), as Keras takes what a PyDataset gives.
    """
    if isinstance(item, list) and is_batch:
        item = tuple(item) if len(item) <= _MOST_PARTS else np.asarray(item)
    while isinstance(item, tuple) and len(item) > 1 and item[-1] is None:
        item = item[:-1]
    leaves: list[np.ndarray] = []
    return _structure(item, "item", leaves), leaves


def _structure(part: Any, name: str, leaves: list[np.ndarray]) -> Any:
    if isinstance(part, dict):
        return {key: _structure(part[key], f"{name}[{key!r}]", leaves) for key in sorted(part)}
    if isinstance(part, tuple) or (isinstance(part, list) and part and all(map(_is_arrays, part))):
        return tuple(_structure(one, f"{name}[{index}]", leaves) for index, one in enumerate(part))
    leaves.append(_array(part, name))
    return ARRAY


def _is_arrays(part: Any) -> bool:
    if isinstance(part, (list, tuple)):
        return bool(part) and all(map(_is_arrays, part))
    return isinstance(part, dict) or (hasattr(part, "shape") and len(part.shape) > 0)


def _array(leaf: Any, name: str) -> np.ndarray:
    if leaf is None:
        raise ItemError(f"{name} is None, where an array was expected.")
    if any(hasattr(leaf, mark) for mark in ("toarray", "ragged_rank", "dense_shape")):
        raise ItemError(
            f"{name} is a {type(leaf).__name__}; only dense arrays can be batched. Make it dense, or pad it."
        )
    try:
        array = np.asarray(leaf)
    except ValueError as error:
        raise ItemError(f"{name} has rows of different shapes ({error}). Pad them to one length.") from error
    if array.dtype.kind in "SUO":
        strings = np.empty(array.shape, object)
        for index, one in np.ndenumerate(array):
            if not isinstance(one, (str, bytes)):
                raise ItemError(
                    f"{name} is an array of Python objects (one of them a {type(one).__name__}), as rows of different "
                    "lengths make. Pad them to one length."
                )
            strings[index] = one.encode() if isinstance(one, str) else bytes(one)
        return strings
    if array.dtype.kind not in "biufc" and not is_float(array.dtype):
        raise ItemError(f"{name} has the type {array.dtype}, for which there is no tensor. Make numbers of it.")
    return array


def is_float(dtype: np.dtype) -> bool:
    """Whether these are floats; bfloat16 and those of 8 bits are no types of NumPy's own."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float8"))
