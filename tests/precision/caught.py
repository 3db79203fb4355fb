"""Precision warnings, caught apart from those that Keras and NumPy give meanwhile."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from keras_turbo.precision import PrecisionWarning


@contextlib.contextmanager
def precision_warnings() -> Iterator[list[str]]:
    """Gives a list that has, at the end, the messages of all precision warnings inside."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", PrecisionWarning)
        yield messages
    messages += [str(one.message) for one in caught]
