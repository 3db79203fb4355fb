"""Which checkpoints are no longer needed, and their deletion, save after save."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keras_turbo.checkpoint.directory import delete_checkpoint, newest_first
from keras_turbo.checkpoint.layout import TrainingState, step_in
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.reading import examine

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class SavedCheckpoint:
    """What decides whether a checkpoint is kept."""

    name: str
    wall_time: float
    metric: float | None = None
    good: bool = True
    diverged: bool = False


def names_to_delete(
    entries: Sequence[SavedCheckpoint],
    *,
    max_to_keep: int | None = None,
    keep_best: int = 1,
    keep_every_hours: float | None = None,
    mode: Literal["min", "max"] = "min",
) -> list[str]:
    """Says which checkpoints can go. It looks at nothing but its arguments.

    Kept are the newest `max_to_keep` good ones, the best `keep_best`, and one for every `keep_every_hours`. The best
    and the newest good one are kept whatever is asked for, and the newest good one before the loss became NaN, which is
    where a run can be taken up again. One that is damaged counts for nothing, and goes when it is
    older than all that are kept for being new.
    """
    check_retention(max_to_keep, keep_best, keep_every_hours)
    if mode not in ("min", "max"):
        raise ValueError(f'mode must be "min" or "max". Received: {mode!r}.')
    good = [entry for entry in entries if entry.good]
    if max_to_keep is None or not good:
        return []
    newest = good[-max_to_keep:]
    kept = {entry.name for entry in newest} | _best(good, max(1, keep_best), mode)
    kept |= {entry.name for entry in [one for one in good if not one.diverged][-1:]}
    if keep_every_hours is not None:
        kept |= _spaced(good, keep_every_hours * _SECONDS_PER_HOUR)
    oldest_new = entries.index(newest[0])
    return [
        entry.name
        for index, entry in enumerate(entries)
        if entry.name not in kept and (entry.good or index < oldest_new)
    ]


def check_retention(max_to_keep: int | None, keep_best: int, keep_every_hours: float | None) -> None:
    """Raises ValueError for options of `names_to_delete` that can't be."""
    if max_to_keep is not None and (type(max_to_keep) is not int or max_to_keep < 1):
        raise ValueError(f"max_to_keep must be an integer from 1, or None to keep all. Received: {max_to_keep!r}.")
    if type(keep_best) is not int or keep_best < 0:
        raise ValueError(f"keep_best must be an integer from 0. Received: {keep_best!r}.")
    if keep_every_hours is not None:
        is_number = isinstance(keep_every_hours, int | float) and not isinstance(keep_every_hours, bool)
        if not is_number or not keep_every_hours > 0:
            raise ValueError(f"keep_every_hours must be a positive number or None. Received: {keep_every_hours!r}.")


def _best(entries: Sequence[SavedCheckpoint], number: int, mode: str) -> set[str]:
    sign = 1 if mode == "min" else -1
    scored = [
        (sign * entry.metric, entry.name)
        for entry in entries
        if entry.metric is not None and not math.isnan(entry.metric)
    ]
    # Sorting is stable: among equals the earlier one is the best, as it was when it came.
    return {name for _, name in sorted(scored, key=lambda one: one[0])[:number]}


def _spaced(entries: Sequence[SavedCheckpoint], seconds: float) -> set[str]:
    """The oldest, and each that is so much later than the last one that was kept for it."""
    kept = {entries[0].name}
    last = entries[0].wall_time
    for entry in entries[1:]:
        if entry.wall_time < last:
            # The clock was set back. Counting goes on from there, or nothing would be kept until it is as late again.
            last = entry.wall_time
        elif entry.wall_time - last >= seconds:
            kept.add(entry.name)
            last = entry.wall_time
    return kept


class Pruner:
    """Keeps account of the checkpoints in a directory, those of earlier runs too, and deletes by `names_to_delete`.

    It never deletes one that it could not judge (it can't be read, or is of a newer format), nor one of a later step
    than those of its own run. One that can't be deleted ends no training.

    Attributes:
        failed: names of those that could not be deleted, with the reasons.
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
        self.failed: dict[str, str] = {}
        self._directory = directory
        self._max_to_keep = max_to_keep
        self._keep_best = keep_best
        self._keep_every_hours = keep_every_hours
        self._metric = metric
        self._entries: list[SavedCheckpoint] | None = None

    def saved(self, name: str, state: TrainingState, superseded: str | None = None) -> list[str]:
        """Takes note of a checkpoint just written, deletes what is no longer needed, and gives its names."""
        names = [] if superseded is None else [superseded]
        if self._max_to_keep is not None:
            if self._entries is None:
                try:
                    self._entries = [one for one in self._found(state.optimizer_step) if one.name != name]
                except OSError as error:
                    # The next save looks again.
                    self.failed[str(self._directory)] = str(error)
                    return []
            self._entries = [one for one in self._entries if one.name != superseded]
            self._entries.append(self._entry(name, state))
            names += names_to_delete(
                self._entries,
                max_to_keep=self._max_to_keep,
                keep_best=self._keep_best,
                keep_every_hours=self._keep_every_hours,
                mode="min" if self._metric is None else self._metric.mode,
            )
            self._entries = [one for one in self._entries if one.name not in names]
        for old in names:
            self._delete(old)
        return names

    def _delete(self, name: str) -> None:
        try:
            delete_checkpoint(self._directory, name)
        except OSError as error:
            self.failed[name] = str(error)

    def _found(self, step: int) -> list[SavedCheckpoint]:
        """What is there from before up to a step, the oldest first."""
        location = locate(self._directory)
        entries = []
        for name in newest_first(location):
            # Every byte would be read again with checksums; whoever restores one looks at all of them.
            health = examine(location, location.child(name), checksums=False)
            if health.newer or health.unreadable is not None:
                continue
            named = health.state.optimizer_step if health.state is not None else step_in(name)
            if named is None or named > step:
                continue
            if health.ok and health.state is not None:
                entries.append(self._entry(name, health.state))
            else:
                entries.append(SavedCheckpoint(name, 0.0, None, good=False))
        return entries[::-1]

    def _entry(self, name: str, state: TrainingState) -> SavedCheckpoint:
        monitor = state.monitor or {}
        # The value by which it was judged: the mean of half an epoch is not one.
        is_same = self._metric is not None and monitor.get("name") == self._metric.name
        metric = monitor.get("value") if is_same else None
        diverged = not math.isfinite(state.metrics.get("loss", 0.0))
        return SavedCheckpoint(name, state.wall_time, metric, diverged=diverged)
