"""How long the steps of a train function under a strategy wait for their batches, measured inside of its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")


class InputClock:
    """Adds up, over all executions of a train function, what this process waited for its batches.

    To be made outside of the graph, and of a strategy's scope.
    """

    def __init__(self) -> None:
        # Not on a GPU, of which each reading would wait for what it has to do.
        with tf.device("CPU:0"):
            self._sums = tf.Variable(tf.zeros([3], tf.float64), trainable=False)

    def timed(self, fetch: Callable[[], T], tensors: Callable[[T], Any]) -> T:
        """What a function gives, between two looks at the clock.

        Args:
            fetch: takes a batch from an iterator, in a graph or eagerly.
            tensors: gives, of what was fetched, what is there as soon as the batch is.
        """
        begin = self._now()
        with tf.control_dependencies([begin]):
            fetched = fetch()
        with tf.control_dependencies(tf.nest.flatten(tensors(fetched), expand_composites=True)):
            self._add(self._now() - begin, 0, 0)
        return fetched

    def count(self, rows: tf.Tensor) -> None:
        """Counts a batch of which the replicas of this process have so many rows."""
        self._add(0.0, 1, rows)

    def read(self) -> tuple[float, int, int]:
        """The sums: seconds, batches, rows."""
        seconds, batches, rows = self._sums.numpy()
        return float(seconds), int(batches), int(rows)

    def _now(self) -> tf.Tensor:
        with tf.device("CPU:0"):
            return tf.timestamp()

    def _add(self, *news: Any) -> None:
        with tf.device("CPU:0"):
            self._sums.assign_add(tf.stack([tf.cast(one, tf.float64) for one in news]), read_value=False)
