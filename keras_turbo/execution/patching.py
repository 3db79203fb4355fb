"""Attributes of models and methods of Keras' classes that are replaced for a while."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute, which hides what the owner's class has, or its bases, until it closes.

    Args:
        owner: An instance or a class. What it had itself is put back.
        name: Of the attribute.
        value: What it is meanwhile.

    Yields:
        Nothing.
    """
    is_own, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def replaced_method(owner: type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replaces a method of a class, for all instances that there are and will be, until it closes.

    Args:
        owner: The class. A method that it inherits is hidden, and its bases stay as they are.
        name: Of the method.
        replacement: Function that is called with the original method and then with what the method is called with,
            `self` first.

    Yields:
        Nothing.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, self, *args, **kwargs)

    with replaced_attribute(owner, name, method):
        yield
