"""What lists, dicts and their like hold, put back into the very same objects."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np

_OF_ITEMS = (list, deque, set)
_OF_KEYS = (dict, defaultdict, OrderedDict, Counter)
# Larger arrays are data, which a callback reads; two of them might not fit in memory.
_MOST_BYTES = 16 << 20


class Contents:
    """Remembers what containers hold, and those within them.

    A callback that collects does so in place, and its list may be known by another name outside. So the object stays,
    and its contents are put back. Objects of other kinds, such as models, are not looked into.

    Args:
        value: a container, or anything else.
    """

    def __init__(self, value: Any) -> None:
        # By id; each with the object itself, so that its id stays its own.
        self._held: dict[int, tuple[Any, Any]] = {}
        self._remember(value)

    def put_back(self) -> None:
        """Gives each container what it held."""
        for container, held in self._held.values():
            if isinstance(container, np.ndarray):
                if container.flags.writeable:
                    container[...] = held
                continue
            container.clear()
            if isinstance(container, (list, deque)):
                container.extend(held)
            else:
                container.update(held)

    def _remember(self, value: Any) -> None:
        # Subclasses of users may do more than hold.
        kind = type(value)
        if id(value) in self._held:
            return
        if kind is tuple:
            for each in value:
                self._remember(each)
        elif kind is np.ndarray and value.nbytes <= _MOST_BYTES:
            self._held[id(value)] = value, value.copy()
        elif kind in _OF_ITEMS:
            self._held[id(value)] = value, list(value)
            for each in value:
                self._remember(each)
        elif kind in _OF_KEYS:
            self._held[id(value)] = value, dict(value)
            for each in value.values():
                self._remember(each)
