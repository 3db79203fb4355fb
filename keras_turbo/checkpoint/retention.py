"""Which checkpoints are no longer needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class SavedCheckpoint:
    """What decides whether a checkpoint is kept.

    Args:
        name: of the checkpoint.
        wall_time: of its save, seconds since 1970.
        metric: the watched metric at its save, None or NaN if there was none.
        good: whether it is whole.
        diverged: whether the loss was NaN or infinite at its save.
    """

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

    Example:

    ```python
    entries = [SavedCheckpoint("a", 0.0, 0.5), SavedCheckpoint("b", 1.0, 0.9), SavedCheckpoint("c", 2.0, 0.7)]
    names_to_delete(entries, max_to_keep=1)  # ["b"]: "c" is the newest, "a" the best
    ```

    Args:
        entries: in the order in which they were saved, the oldest first.
        max_to_keep: how many of the newest are kept; by default all.
        keep_best: how many of the best are kept besides; at least the best one is where there are metrics.
        keep_every_hours: one is kept for good for each span of so many hours, the oldest first.
        mode: whether the best metric is the smallest or the largest.

    Returns:
        Names in the order of `entries`.

    Raises:
        ValueError: an option can't be.
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
    """Refuses options of `names_to_delete` that can't be.

    Raises:
        ValueError: with what was received.
    """
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
        (sign * entry.metric, entry.name) for entry in entries if _is_known(entry.metric) and entry.metric is not None
    ]
    # Sorting is stable: among equals the earlier one is the best, as it was when it came.
    return {name for _, name in sorted(scored, key=lambda one: one[0])[:number]}


def _is_known(metric: float | None) -> bool:
    return metric is not None and not math.isnan(metric)


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
