"""Deletes the checkpoints of a directory that are no longer needed, save after save."""

from __future__ import annotations

import math
from typing import Any

from keras_turbo.checkpoint.catalog import newest_first
from keras_turbo.checkpoint.directory import delete_checkpoint
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.retention import SavedCheckpoint, check_retention, names_to_delete
from keras_turbo.checkpoint.training_state import TrainingState
from keras_turbo.checkpoint.verification import examine


class Pruner:
    """Keeps account of the checkpoints in a directory, those of earlier runs too, and deletes by `names_to_delete`.

    Args:
        directory: where checkpoints are kept.
        max_to_keep: see `names_to_delete`.
        keep_best: likewise.
        keep_every_hours: likewise.
        metric: has `name` and `mode`, "min" or "max", by which one is the best; None if none is watched.

    Raises:
        ValueError: an option can't be.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        max_to_keep: int | None,
        keep_best: int,
        keep_every_hours: float | None,
        metric: Any = None,
    ) -> None:
        check_retention(max_to_keep, keep_best, keep_every_hours)
        self._directory = directory
        self._max_to_keep = max_to_keep
        self._keep_best = keep_best
        self._keep_every_hours = keep_every_hours
        self._metric = metric
        self._entries: list[SavedCheckpoint] | None = None

    def saved(self, name: str, state: TrainingState) -> list[str]:
        """Takes note of a checkpoint that has just been written, and deletes what is no longer needed.

        Args:
            name: of the checkpoint.
            state: what was written.

        Returns:
            The names that were deleted.
        """
        if self._max_to_keep is None:
            return []
        if self._entries is None:
            self._entries = [entry for entry in self._found() if entry.name != name]
        self._entries.append(self._entry(name, state))
        names = names_to_delete(
            self._entries,
            max_to_keep=self._max_to_keep,
            keep_best=self._keep_best,
            keep_every_hours=self._keep_every_hours,
            mode="min" if self._metric is None else self._metric.mode,
        )
        for old in names:
            delete_checkpoint(self._directory, old)
        self._entries = [entry for entry in self._entries if entry.name not in names]
        return names

    def _found(self) -> list[SavedCheckpoint]:
        """What is there from before, the oldest first."""
        location = locate(self._directory)
        entries = []
        for name in newest_first(location):
            # Every byte would be read again with checksums; whoever restores one looks at all of them.
            health = examine(location, location.child(name), checksums=False)
            if health.ok and health.state is not None:
                entries.append(self._entry(name, health.state))
            elif not health.newer:
                # What a later version wrote is for that version to delete.
                entries.append(SavedCheckpoint(name, 0.0, None, good=False))
        return entries[::-1]

    def _entry(self, name: str, state: TrainingState) -> SavedCheckpoint:
        monitor = state.monitor or {}
        # The value by which it was judged: the mean of half an epoch is not one.
        is_same = self._metric is not None and monitor.get("name") == self._metric.name
        metric = monitor.get("value") if is_same else None
        diverged = not math.isfinite(state.metrics.get("loss", 0.0))
        return SavedCheckpoint(name, state.wall_time, metric, diverged=diverged)
