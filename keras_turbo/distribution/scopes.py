"""The scope of a strategy, which can be left for a while.

In the scope of several workers each new variable is sent from the chief to all. Keras makes variables in passing: to
see what attributes an optimizer has, each time that it saves. So where the chief alone saves, it must not do so in the
scope: the others would take what it sends for the next exchange of theirs. `fit` needs no scope, since a model knows
its strategy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Those that are entered and not left, the innermost last.
_entered: list[_Scope] = []


class _Scope:
    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._context: Any = None

    def enter(self) -> None:
        self._context = self._strategy.scope()
        self._context.__enter__()

    def leave(self) -> None:
        self._context.__exit__(None, None, None)


@contextlib.contextmanager
def entered(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Enters the scope of a strategy."""
    scope = _Scope(strategy)
    scope.enter()
    _entered.append(scope)
    try:
        yield
    finally:
        _entered.remove(scope)
        scope.leave()


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Leaves the scopes that `entered` has entered, and enters them again."""
    scopes = list(_entered)
    _entered.clear()
    for scope in reversed(scopes):
        scope.leave()
    try:
        yield
    finally:
        for scope in scopes:
            scope.enter()
        _entered.extend(scopes)
