"""Figures of several workers, brought together: each has its own, and the chief those of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_turbo.distribution.workers import worker_of

# In this order each worker gives its figures, so that all give equally many. What one has not is NaN. A sum over
# workers (energy) is the mean times their number.
GATHERED = (
    "gpu_utilization_percent",
    "gpu_memory_peak_percent",
    "gpu_power_watts",
    "gpu_energy_wh",
    "gpu_throttled_percent",
    "cpu_utilization_percent",
    "step_ms_median",
    "step_ms_p95",
    "examples_per_second",
    "input_wait_ms",
    "input_wait_percent",
)


def worker_of_model(model: Any) -> tuple[int, int]:
    """The index of this worker and the number of workers that train a model together; (0, 1) in one process."""
    return worker_of(model.distribute_strategy) if keras.config.backend() == "tensorflow" else (0, 1)


def gather_over_workers(strategy: Any, figures: Mapping[str, float]) -> np.ndarray:
    """Every worker's figures, in the same order on all.

    Each worker has to call it, and waits for the others.

    Args:
        strategy: one over several workers.
        figures: of this worker.

    Returns:
        Array (workers, figures) of what `GATHERED` names, with NaN for what a worker has not.
    """
    import tensorflow as tf

    mine = [[figures.get(name, float("nan")) for name in GATHERED]]
    with tf.init_scope():
        return np.asarray(strategy.gather(tf.constant(mine, tf.float32), axis=0))


def over_workers(gathered: Any, names: Sequence[str] = GATHERED) -> dict[str, float]:
    """Minimum, mean and maximum of each figure over the workers that have it.

    Args:
        gathered: array (workers, figures).
        names: of the figures.

    Returns:
        For each name that a worker has a figure of: `workers_min_` and the name, and likewise `mean` and `max`.
    """
    result = {}
    for name, values in zip(names, np.asarray(gathered, float).T, strict=True):
        known = values[~np.isnan(values)]
        if len(known):
            result[f"workers_min_{name}"] = float(known.min())
            result[f"workers_mean_{name}"] = float(known.mean())
            result[f"workers_max_{name}"] = float(known.max())
    return result
