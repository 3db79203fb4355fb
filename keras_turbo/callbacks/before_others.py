"""A place before all other callbacks of a `fit`."""

from __future__ import annotations

from typing import Any, Protocol

import keras


class FollowsFit(Protocol):
    """What is told first."""

    def before_epoch(self, epoch: int) -> None:
        """At the beginning of an epoch."""
        ...

    def add_progress(self, logs: dict[str, Any]) -> None:
        """At the end of an epoch, with logs that others will see."""
        ...

    def before_end(self) -> None:
        """At the end of training."""
        ...


class BeforeOthers(keras.callbacks.Callback):
    """Stands before all other callbacks of a fit, as AsyncCheckpoint stands behind them.

    Args:
        run: what is told.
    """

    needs_every_batch = False

    def __init__(self, run: FollowsFit) -> None:
        super().__init__()
        self._run = run

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See `FollowsFit.before_epoch`."""
        self._run.before_epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See `FollowsFit.add_progress`."""
        if logs is not None:
            self._run.add_progress(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """See `FollowsFit.before_end`."""
        self._run.before_end()
