"""Host memory for snapshots: allocated once, touched, and used again and again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.machine import free_memory_bytes

# Memory that may never be needed is allocated in advance where it takes no more than this part of what is free.
_PART_OF_FREE = 0.5


class BufferSet:
    """Arrays for the variables of one snapshot."""

    def __init__(self) -> None:
        # The variables are kept, too: an id is good for as long as its object lives.
        self._arrays: dict[int, tuple[Any, np.ndarray]] = {}

    def arrays_for(self, variables: Mapping[int, Any]) -> dict[int, np.ndarray]:
        """An array for each variable: the one that it had before, or a new one whose pages are there.

        Args:
            variables: TensorFlow's variables by their ids.

        Raises:
            ValueError: a variable has no fixed shape, or is of strings.
        """
        kept = {key: self._arrays[key] for key in variables if key in self._arrays}
        # What has gone goes first, so that a model compiled anew does not need room for two optimizers.
        self._arrays = kept
        for key, variable in variables.items():
            if key not in kept:
                kept[key] = (variable, _touched(variable))
        return {key: kept[key][1] for key in variables}


class BufferPool:
    """At most so many sets, handed out to one holder each.

    Args:
        num_sets: the most there are.
    """

    def __init__(self, num_sets: int) -> None:
        self._num_sets = num_sets
        self._num_made = 0
        self._free: list[BufferSet] = []
        self._changed = threading.Condition()
        self._is_closed = False

    def prepare(self, variables: Mapping[int, Any]) -> None:
        """Allocates the sets for these variables, here and now: one at least, and the others unless memory is short.

        Args:
            variables: TensorFlow's variables by their ids.
        """
        while self._num_made < self._num_sets:
            made = BufferSet()
            made.arrays_for(variables)
            with self._changed:
                self._num_made += 1
                self._free.append(made)
            if sum(array.nbytes for array in made.arrays_for(variables).values()) > free_memory_bytes() * _PART_OF_FREE:
                return

    def acquire(self, *, block: bool) -> BufferSet | None:
        """A set that nobody else has.

        Args:
            block: whether to wait for one.

        Returns:
            The set; None if there is none and `block` is False.

        Raises:
            RuntimeError: the pool is closed.
        """
        with self._changed:
            while True:
                if self._is_closed:
                    raise RuntimeError("The memory for snapshots was given back: `close` has been called.")
                if self._free:
                    return self._free.pop()
                if self._num_made < self._num_sets:
                    self._num_made += 1
                    return BufferSet()
                if not block:
                    return None
                self._changed.wait()

    def release(self, buffers: BufferSet) -> None:
        """Takes a set back."""
        with self._changed:
            if not self._is_closed:
                self._free.append(buffers)
            self._changed.notify_all()

    def close(self) -> None:
        """Lets go of all sets, and wakes whoever waits for one."""
        with self._changed:
            self._is_closed = True
            self._free.clear()
            self._changed.notify_all()


def _touched(variable: Any) -> np.ndarray:
    dtype = variable.dtype
    if dtype in (tf.string, tf.variant, tf.resource) or not variable.shape.is_fully_defined():
        raise ValueError(
            f"The variable {variable.name!r} can't be saved: it is of {dtype.name} {variable.shape}. A variable must "
            "be of numbers and have a fixed shape."
        )
    array = np.empty(variable.shape, dtype.as_numpy_dtype)
    # The kernel gives memory when it is first written to. `zeros` would put that off.
    array.fill(0)
    return array
