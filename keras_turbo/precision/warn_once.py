"""Warnings about precision: each kind once for each model, and all of them switched off together."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator
from typing import Any


class PrecisionWarning(UserWarning):
    """Something about a model's precision that is likely to cost accuracy or speed."""


_given: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
_silenced = [False]


def warn_once(owner: Any, kind: str, message: str) -> None:
    """Warns unless the same owner has been warned of the same kind of thing before.

    Args:
        owner: what the warning is about: a model or an optimizer. It is not kept alive.
        kind: of warning, such as "recurrent".
        message: what was found, what follows from it and what to do.
    """
    if _silenced[0]:
        return
    kinds = _given.setdefault(owner, set())
    if kind in kinds:
        return
    kinds.add(kind)
    warnings.warn(message, PrecisionWarning, stacklevel=3)


@contextlib.contextmanager
def _restored(before: bool) -> Iterator[None]:
    try:
        yield
    finally:
        _silenced[0] = before


def silence_warnings(silenced: bool = True) -> contextlib.AbstractContextManager[None]:
    """Turns all of keras_turbo's warnings about precision off, or on again.

    Example:

    ```python
    keras_turbo.precision.silence_warnings()        # from now on
    with keras_turbo.precision.silence_warnings():  # for a while
        model.fit(...)
    ```

    A filter of Python's does the same: `warnings.filterwarnings("ignore", category=PrecisionWarning)`.

    Args:
        silenced: whether they are off. True by default.

    Returns:
        A context manager that puts back, at its end, what held before this call.

    Raises:
        ValueError: `silenced` is neither True nor False.
    """
    if not isinstance(silenced, bool):
        raise ValueError(f"`silenced` must be True or False. Received: silenced={silenced!r}.")
    before, _silenced[0] = _silenced[0], silenced
    return _restored(before)
