"""Checkpoints: a snapshot in memory, written in the background, made complete on disk in one step."""

from __future__ import annotations

from keras_turbo.checkpoint.async_checkpoint import AsyncCheckpoint
from keras_turbo.checkpoint.directory import DirectoryInUseError
from keras_turbo.checkpoint.reading import latest, restore, verify
from keras_turbo.checkpoint.saver import CheckpointSaveError

__all__ = ["AsyncCheckpoint", "CheckpointSaveError", "DirectoryInUseError", "latest", "restore", "verify"]
