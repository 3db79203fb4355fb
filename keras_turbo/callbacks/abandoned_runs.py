"""Runs whose `fit` is ended by an error, which Keras tells no callback."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Run(Protocol):
    """What lasts as long as a `fit`."""

    @property
    def is_left_behind(self) -> bool:
        """Whether its `fit` has ended and it has not."""
        ...

    def abandon(self) -> None:
        """Ends it."""
        ...


# Those that have begun, as far as anybody still has them.
_begun: weakref.WeakSet[Any] = weakref.WeakSet()


def note_begin(run: Run) -> None:
    """Takes note of a run, after an end to those that were left behind.

    A notebook keeps the traceback of an error, and with it all of a `fit`. So its run ends, if not before, when the
    cell is run again.
    """
    for other in list(_begun):
        if other.is_left_behind:
            other.abandon()
    _begun.add(run)


def note_end(run: Run) -> None:
    """Forgets a run."""
    _begun.discard(run)


def abandoning(method: Callable[..., None]) -> Callable[..., None]:
    """Ends the run with whatever a method of it raises: that ends `fit`, which does not say so."""

    @functools.wraps(method)
    def guarded(self: Run, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except BaseException:
            self.abandon()
            raise

    return guarded
