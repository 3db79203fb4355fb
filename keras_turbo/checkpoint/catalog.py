"""Which checkpoints are in a directory, and which of them is newest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from keras_turbo.checkpoint.location import Location
from keras_turbo.checkpoint.names import MARKER, STATE, is_ours, step_in
from keras_turbo.checkpoint.training_state import TrainingState

# Before every real key: a checkpoint whose state can't be read may be the newest, so it is not passed over in silence.
_UNKNOWN = (float("inf"), float("inf"), float("inf"))


def checkpoint_names(location: Location) -> list[str]:
    """Names of what are checkpoints, whole or not, in order; folders of others are left out."""
    return [name for name in candidate_names(location) if _has_ours(location, location.child(name))]


def candidate_names(location: Location) -> list[str]:
    """Names of the folders that are not hidden, without a look into them; none where there is no directory."""
    if not location.files.is_folder(location.path):
        return []
    return sorted(name for name in location.files.folder_names(location.path) if not name.startswith("."))


def holds_checkpoint(location: Location, path: str) -> bool:
    """Whether a folder is itself a checkpoint, rather than a directory of some."""
    files = location.files
    return files.exists(files.join(path, MARKER)) or files.exists(files.join(path, STATE))


def newest_first(location: Location) -> Iterator[str]:
    """Names of the checkpoints, the newest first: the one with most optimizer steps.

    Steps only grow in a run, while clocks are set back; the clock decides only between checkpoints of one step. The
    step is read from the name where it tells one, so that of 10,000 checkpoints only the states of the first are read;
    a state that tells another step than its name is a reason to read all of them.
    """
    steps = {name: step_in(name) for name in candidate_names(location)}
    unnamed = [name for name, step in steps.items() if step is None]
    keys = {name: key for name in unnamed if (key := _key(location, name)) is not None}
    told = {name: step for name, step in steps.items() if step is not None}
    ranks = {**told, **{name: key[0] for name, key in keys.items()}}
    order = sorted(ranks, key=lambda name: ranks[name], reverse=True)
    given: set[str] = set()
    for step, names in groupby(order, key=lambda name: ranks[name]):
        same = {}
        for name in names:
            key = keys.get(name) or _key(location, name)
            if key is not None:
                same[name] = key
        if any(key[0] != step for name, key in same.items() if name in told and key != _UNKNOWN):
            yield from (name for name in _by_states(location, list(steps)) if name not in given)
            return
        given.update(same)
        yield from sorted(same, key=lambda name: (same[name], name), reverse=True)


def _by_states(location: Location, names: list[str]) -> list[str]:
    keys = {name: key for name in names if (key := _key(location, name)) is not None}
    return sorted(keys, key=lambda name: (keys[name], name), reverse=True)


def _key(location: Location, name: str) -> tuple[float, float, float] | None:
    """What orders a checkpoint in time; None if the folder is none."""
    path = location.child(name)
    try:
        state = read_state(location, path)
    except (OSError, ValueError):
        return _UNKNOWN if _has_ours(location, path) else None
    return (state.optimizer_step, state.steps, state.wall_time)


def read_state(location: Location, path: str) -> TrainingState:
    """The training state of a checkpoint, as it stands there.

    Raises:
        OSError: it can't be read.
        ValueError: it is none.
    """
    return TrainingState.from_json(location.files.read(location.files.join(path, STATE)).decode())


def _has_ours(location: Location, path: str) -> bool:
    try:
        return any(is_ours(name) for name in location.files.names(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
