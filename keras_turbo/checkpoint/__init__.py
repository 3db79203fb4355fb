"""Checkpoints: a snapshot in memory, written in the background, made complete on disk in one step."""

from __future__ import annotations

from keras_turbo.checkpoint.lock import DirectoryInUseError
from keras_turbo.checkpoint.restoring import latest, restore
from keras_turbo.checkpoint.verification import verify

__all__ = [
    "DirectoryInUseError",
    "latest",
    "restore",
    "verify",
]
