"""A clock for the epochs of a fit, on every backend of Keras."""

from __future__ import annotations

import time
from typing import Any

import keras


class EpochSeconds(keras.callbacks.Callback):
    """Times the epochs of a fit."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._begun_at = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.seconds.append(time.perf_counter() - self._begun_at)
