"""Callbacks for `fit`: thin, they join the other packages to its hooks."""

from __future__ import annotations

from keras_turbo.callbacks.async_checkpoint import AsyncCheckpoint

__all__ = ["AsyncCheckpoint"]
