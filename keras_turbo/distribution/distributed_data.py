"""How a dataset is split between workers and replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def distribute_dataset(
    strategy: tf.distribute.Strategy,
    dataset: Any,
    options: tf.distribute.InputOptions | None,
    distribute: Callable[..., Any],
) -> Any:
    """Gives what a strategy's `experimental_distribute_dataset` gives for a dataset.

    Args:
        strategy: one of `keras_turbo.distribution.strategies`.
        dataset: whose batches are global batches.
        options: of TensorFlow, or None.
        distribute: TensorFlow's own method, which takes a dataset and options.

    Returns:
        A distributed dataset.
    """
    del strategy
    return distribute(dataset, options)
