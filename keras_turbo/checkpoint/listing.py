"""What `python -m keras_turbo checkpoints` shows."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from keras_turbo.checkpoint.directory import holds_checkpoint, newest_first
from keras_turbo.checkpoint.layout import TrainingState, shown, to_json_values
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.reading import Health, best_of, examine, watched

_COLUMNS = ("checkpoint", "step", "epoch", "metric", "size", "age", "health")
_RIGHT = ("step", "epoch", "size", "age")

# Units of an age, each used from twice its length on, so that no more than half of an age is rounded away.
_AGE_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def list_checkpoints(directory: Directory, *, checksums: bool = False) -> list[Health]:
    """Looks at every checkpoint in a directory."""
    location = locate(directory)
    if not location.files.is_folder(location.path):
        raise FileNotFoundError(f"There is no folder {location.path}.")
    if holds_checkpoint(location, location.path):
        return [examine(location, location.path, checksums=checksums)]
    names = list(newest_first(location))[::-1]
    return [examine(location, location.child(name), checksums=checksums) for name in names]


def as_json(found: Sequence[Health]) -> str:
    """The listing for programs, one object a checkpoint."""
    best = best_of(found)
    return json.dumps([_described(one, is_best=one is best) for one in found], indent=1, allow_nan=False) + "\n"


def _described(health: Health, *, is_best: bool) -> dict[str, Any]:
    state = health.state
    described: dict[str, Any] = {
        "name": health.name,
        "path": str(health.path),
        "bytes": health.nbytes,
        "ok": health.ok,
        "problems": list(health.problems),
        "checksums_compared": health.whole,
        "best": is_best,
    }
    for name in ("optimizer_step", "steps", "epoch", "batch", "metrics", "monitor", "wall_time", "versions"):
        described[name] = to_json_values(getattr(state, name)) if state is not None else None
    return described


def as_table(found: Sequence[Health], directory: Directory) -> str:
    """The listing for people."""
    if not found:
        return f"There are no checkpoints in {directory}.\n"
    best = best_of(found)
    rows = [dict(zip(_COLUMNS, _COLUMNS, strict=True)), *(_row(one, is_best=one is best) for one in found)]
    widths = {column: max(len(row[column]) for row in rows) for column in _COLUMNS}
    lines = []
    for row in rows:
        cells = [
            row[column].rjust(widths[column]) if column in _RIGHT else row[column].ljust(widths[column])
            for column in _COLUMNS
        ]
        lines.append("  ".join(cells).rstrip())
    number_good = sum(one.ok for one in found)
    how = "every byte was read" if all(one.whole for one in found) else "sizes were compared; --verify reads every byte"
    lines.append(f"{number_good} of {len(found)} good ({how})")
    return "\n".join(lines) + "\n"


def _row(health: Health, *, is_best: bool) -> dict[str, str]:
    state = health.state
    return {
        "checkpoint": shown(health.name),
        "step": "?" if state is None else str(state.optimizer_step),
        "epoch": "?" if state is None else _epoch(state),
        "metric": "?" if state is None else _metric(state) + (" (best)" if is_best else ""),
        "size": _size(health.nbytes),
        "age": "?" if state is None else _age(time.time() - state.wall_time),
        "health": "ok" if health.ok else "; ".join(health.problems),
    }


def _epoch(state: TrainingState) -> str:
    return f"{state.epoch}+{state.batch} batches" if state.batch else str(state.epoch)


def _metric(state: TrainingState) -> str:
    name = state.monitor["name"] if state.monitor else "loss"
    value = watched(state, name)
    return "" if value is None else f"{name} {value:.4g}"


def _size(nbytes: int) -> str:
    # Decimal units, as of disks.
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:,.1f} kB"


def _age(seconds: float) -> str:
    if seconds < 0:
        return "in the future"
    unit, length = next((one for one in _AGE_UNITS if seconds >= 2 * one[1]), _AGE_UNITS[-1])
    return f"{seconds / length:.0f} {unit}"
