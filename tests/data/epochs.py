"""Datasets as values that can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def batches_of(dataset: tf.data.Dataset) -> list[Any]:
    """One epoch, batch by batch, as numpy arrays."""
    return list(dataset.as_numpy_iterator())


def rows_of(dataset: tf.data.Dataset) -> np.ndarray:
    """One epoch of a dataset whose elements are batches of one array: its rows, one after the other."""
    return np.concatenate(batches_of(dataset))


def bytes_of(dataset: tf.data.Dataset) -> bytes:
    """One epoch as bytes: what "equal to the byte" compares."""
    return b"".join(leaf.tobytes() for batch in batches_of(dataset) for leaf in tf.nest.flatten(batch))
