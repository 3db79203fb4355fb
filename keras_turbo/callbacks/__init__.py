"""Callbacks for `fit`: thin, they join the other packages to its hooks."""

from __future__ import annotations

from keras_turbo.callbacks.async_checkpoint import AsyncCheckpoint
from keras_turbo.callbacks.background_saver import CheckpointSaveError

__all__ = ["AsyncCheckpoint", "CheckpointSaveError"]
