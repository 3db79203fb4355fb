"""Looks at checkpoints, finds one that is whole, and puts it into a model.

What is damaged and what can't be read are two things: an I/O error or a missing permission passes, or somebody mends
it, and until then nobody knows what is there. So an error that stays after a few attempts is raised, and never taken
for a reason to use an older checkpoint, or none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keras_turbo.checkpoint.directory import checkpoint_names, holds_checkpoint, newest_first
from keras_turbo.checkpoint.hdf5 import read_arrays
from keras_turbo.checkpoint.layout import (
    CALLBACKS,
    EXTRA,
    FORMAT_VERSION,
    MARKER,
    SHARDED_WEIGHTS,
    STATE,
    WEIGHTS,
    FileRecord,
    NewerFormatError,
    TrainingState,
    is_newer,
    is_weights,
    shown,
)
from keras_turbo.checkpoint.location import ALGORITHM, Directory, Location, checksum_of, locate
from keras_turbo.files import TRANSIENT_READING, retried

if TYPE_CHECKING:
    import keras
    import numpy as np

# What a disk, a mount or a ticket that is being renewed answers for a moment, and for good where nobody mends it.
_MAY_PASS = {errno.EIO, errno.EACCES, errno.EPERM}

Arrays = dict[str, "np.ndarray"]


@dataclasses.dataclass(frozen=True)
class Health:
    """What was found in a checkpoint.

    Args:
        name: of the checkpoint.
        path: its folder.
        problems: what is wrong, in words; empty if nothing is.
        state: its training state, None where that can't be read.
        nbytes: size of its files, as far as they are there.
        whole: whether checksums were compared; else only names and sizes.
        newer: whether a later version of keras_turbo wrote it: nothing is wrong with it, but here it can't be restored.
        unreadable: the error that hindered looking at it: nobody knows whether anything is wrong with it.
    """

    name: str
    path: Path | str
    problems: tuple[str, ...]
    state: TrainingState | None
    nbytes: int
    whole: bool
    newer: bool = False
    unreadable: OSError | None = None

    @property
    def ok(self) -> bool:
        """Whether it can be restored."""
        return not self.problems

    @property
    def is_damaged(self) -> bool:
        """Whether it is known that nobody can restore it."""
        return bool(self.problems) and not self.newer and self.unreadable is None

    def __str__(self) -> str:
        return f"{shown(self.name)}: {', '.join(self.problems)}"


def verify(directory: Directory) -> list[Health]:
    """Reads every byte of checkpoints and compares it with what was written.

    Example:

    ```python
    for health in keras_turbo.checkpoint.verify("checkpoints"):
        print(health.name, health.problems or "ok")
    ```

    Args:
        directory: a directory of checkpoints, or one checkpoint.

    Returns:
        What was found in each checkpoint, the oldest first by name; empty if there are none.

    Raises:
        ValueError: no file system has the scheme of the path.
    """
    location = locate(directory)
    if holds_checkpoint(location, location.path):
        return [examine(location, location.path)]
    return [examine(location, location.child(name)) for name in checkpoint_names(location)]


def latest(directory: Directory) -> Path | str | None:
    """Finds the newest checkpoint that is whole, every byte of it.

    The newest is the one with most optimizer steps, whatever the clock said. One that is damaged or was never finished
    is passed over, with a warning.

    Example:

    ```python
    folder = keras_turbo.checkpoint.latest("checkpoints")
    if folder is not None:
        model.load_weights(folder / "model.weights.h5")
    ```

    Args:
        directory: where checkpoints are kept. It may be missing.

    Returns:
        The checkpoint's folder (a `Path`; text behind a scheme), None if there is no good one.

    Raises:
        ValueError: no file system has the scheme of the path.
        OSError: the newest one, or the directory, can't be read.
    """
    good, _ = newest_good(locate(directory))
    return None if good is None else good.path


def restore(model: keras.Model, directory: Directory, *, best: bool = False) -> TrainingState:
    """Puts a checkpoint into a model: weights, optimizer, seeds of random layers, metrics, loss scale.

    Nothing is assigned unless all of it fits. (Metrics that the model creates only at its first step are left out:
    `fit` begins them anew. `AsyncCheckpoint` restores them, too.)

    Example:

    ```python
    model.compile("adam", "mse")
    state = keras_turbo.checkpoint.restore(model, "checkpoints", best=True)
    print(state.epoch, state.metrics)
    ```

    Args:
        model: built, and compiled as the model that was saved.
        directory: where checkpoints are kept, of which the newest good one is taken; or one checkpoint.
        best: take the good one with the best `monitor` of AsyncCheckpoint instead. Default False.

    Returns:
        Where the run was.

    Raises:
        FileNotFoundError: there is no good checkpoint.
        ValueError: the checkpoint that was named is damaged, or doesn't fit the model (with the paths that differ), or
            none tells which is the best.
        OSError: a checkpoint can't be read.
    """
    from keras_turbo.fit.training_state import assign_state

    location = locate(directory)
    if holds_checkpoint(location, location.path):
        health = _good(examine(location, location.path))
    else:
        found = _best_good(location) if best else newest_good(location)[0]
        if found is None:
            raise FileNotFoundError(f"There is no good checkpoint in {location.path}.")
        health = found
    weights, extra, state = read(location, health)
    assign_state(model, weights, {path: array for path, array in extra.items() if not path.startswith(CALLBACKS)})
    return state


def read_checkpoint(folder: Directory) -> tuple[Arrays, Arrays, TrainingState]:
    """Reads a checkpoint, after a look at every byte of it."""
    location = locate(folder)
    if not holds_checkpoint(location, location.path):
        raise FileNotFoundError(f"{location.path} is no checkpoint.")
    return read(location, _good(examine(location, location.path)))


def newest_good(location: Location) -> tuple[Health | None, list[Health]]:
    """The newest good checkpoint, and those passed over: damaged, or newer than this version. It warns of these."""
    passed: list[Health] = []
    good = None
    for name in newest_first(location):
        health = examine(location, location.child(name))
        if health.unreadable is not None:
            raise health.unreadable
        if health.ok:
            good = health
            break
        # Another process may just have deleted it: then it isn't damaged but gone.
        if location.files.exists(location.child(name)):
            passed.append(health)
    if passed:
        used = f"{shown(good.name)} is used instead" if good else f"there is no good one in {location.path}"
        listed = "; ".join(map(str, passed))
        warnings.warn(f"Damaged checkpoints were passed over ({listed}): {used}.", stacklevel=3)
    return good, passed


def _best_good(location: Location) -> Health | None:
    found = [examine(location, location.child(name), checksums=False) for name in newest_first(location)][::-1]
    if found and best_of(found) is None:
        raise ValueError(
            f"No checkpoint in {location.path} tells which is the best: AsyncCheckpoint had no `monitor`, or was never "
            "at the end of an epoch."
        )
    while (best := best_of(found)) is not None:
        health = examine(location, location.child(best.name))
        if health.unreadable is not None:
            raise health.unreadable
        if health.ok:
            return health
        warnings.warn(f"The best checkpoint is damaged ({health}): the next best is used.", stacklevel=3)
        found.remove(best)
    return None


def best_of(found: Sequence[Health]) -> Health | None:
    """The good checkpoint with the best watched metric; the earliest among equals, None without metrics."""
    monitor = next((one.state.monitor for one in reversed(found) if one.state and one.state.monitor), None)
    if monitor is None:
        return None
    sign = 1 if monitor["mode"] == "min" else -1
    scored = [
        (sign * value, one)
        for one in found
        if one.ok and one.state and (value := watched(one.state, monitor["name"])) is not None and not math.isnan(value)
    ]
    return min(scored, key=lambda pair: pair[0])[1] if scored else None


def watched(state: TrainingState, name: str) -> float | None:
    """The metric by which a checkpoint was judged; None for one that was not."""
    if state.monitor and state.monitor["name"] == name and "value" in state.monitor:
        return state.monitor["value"]
    return state.metrics.get(name)


def _good(health: Health) -> Health:
    if health.unreadable is not None:
        raise health.unreadable
    if not health.ok:
        raise ValueError(f"The checkpoint {health.path} is damaged: {'; '.join(health.problems)}.")
    return health


def read(location: Location, health: Health) -> tuple[Arrays, Arrays, TrainingState]:
    """As `read_checkpoint`, of one that was found to be good."""
    if health.state is None:
        raise ValueError(f"The checkpoint {health.path} has no training state.")
    folder, files = os.fspath(health.path), location.files
    weights: Arrays = {}
    for name in filter(is_weights, health.state.files):
        with files.local_copy(files.join(folder, name)) as path:
            arrays = read_arrays(path)
        twice = sorted(weights.keys() & arrays.keys())
        if twice:
            raise ValueError(f"The checkpoint {health.path} is damaged: {twice[0]!r} is in two of its files.")
        weights.update(arrays)
    with files.local_copy(files.join(folder, EXTRA)) as path:
        extra = read_arrays(path)
    return weights, extra, health.state


def examine(location: Location, path: str, *, checksums: bool = True) -> Health:
    """Looks at one checkpoint."""
    found: list[Health] = []

    def look() -> None:
        found[:] = [_Examination(location, path).health(checksums=checksums)]
        if found[0].unreadable is not None:
            raise found[0].unreadable

    with contextlib.suppress(OSError):
        retried(look, _MAY_PASS)
    return found[0]


class _Examination:
    """One look at a checkpoint, file by file."""

    def __init__(self, location: Location, path: str) -> None:
        self._location = location
        self._path = path
        self._problems: list[str] = []
        self._unreadable: OSError | None = None
        self._nbytes = 0

    def health(self, *, checksums: bool) -> Health:
        state, newer = None, False
        try:
            state = self._state()
        except NewerFormatError as error:
            newer = True
            self._problems.append(str(error))
        except OSError as error:
            self._could_not_read(STATE, error)
        except ValueError as error:
            self._problems.append(f"{STATE} can't be read: {error}")
        names = state.files if state is not None else {}
        for name, record in names.items():
            try:
                self._compare(name, record, checksums=checksums)
            except FileNotFoundError:
                self._problems.append(f"{shown(name)} is missing")
            except OSError as error:
                self._could_not_read(name, error)
        if state is not None and not ({WEIGHTS, SHARDED_WEIGHTS} & names.keys() and EXTRA in names):
            self._problems.append(f"{STATE} names no weights")
        location, path = self._location, self._path
        problems = tuple(self._problems)
        name = location.files.name_of(path)
        return Health(name, location.public(path), problems, state, self._nbytes, checksums, newer, self._unreadable)

    def _file(self, name: str) -> str:
        return self._location.files.join(self._path, name)

    def _could_not_read(self, name: str, error: OSError) -> None:
        self._problems.append(f"{shown(name)} can't be read: {error}")
        if self._unreadable is None:
            number = error.errno or errno.EIO
            self._unreadable = OSError(number, error.strerror or str(error), error.filename or self._file(name))

    def _state(self) -> TrainingState | None:
        """The training state, with what is wrong with it and with the marker that vouches for it."""
        files, record = self._location.files, None
        try:
            record = _vouched(files.read(self._file(MARKER)))
        except FileNotFoundError:
            self._problems.append(f"no commit marker ({MARKER}): its writing broke off")
        except OSError as error:
            self._could_not_read(MARKER, error)
        try:
            content = files.read(self._file(STATE))
        except FileNotFoundError:
            self._problems.append(f"{STATE} is missing")
            return None
        if isinstance(record, str):
            self._problems.append(f"{MARKER} {record}")
        elif record is not None:
            problem = _difference(len(content), [content], record)
            if problem:
                self._problems.append(f"{STATE} {problem}")
                return None
        return TrainingState.from_json(content.decode())

    def _compare(self, name: str, record: FileRecord, *, checksums: bool) -> None:
        files, path = self._location.files, self._file(name)
        size = files.size(path)
        self._nbytes += size
        # What a server refuses for a moment is no damage.
        problem = retried(
            lambda: _difference(size, files.chunks(path) if checksums else None, record), TRANSIENT_READING
        )
        if problem:
            self._problems.append(f"{shown(name)} {problem}")


def _vouched(content: bytes) -> FileRecord | str:
    """What the marker vouches for, or what is wrong with it; NewerFormatError if a later version wrote it."""
    try:
        marker = json.loads(content)
    except (ValueError, RecursionError):
        return "is damaged"
    version = marker.get("format_version") if isinstance(marker, dict) else None
    if is_newer(version):
        raise NewerFormatError(
            f"{MARKER} has format version {version}; this version of keras_turbo knows {FORMAT_VERSION}"
        )
    if version != FORMAT_VERSION:
        return "is damaged"
    try:
        return FileRecord.of_json(marker.get(STATE), STATE)
    except ValueError:
        return "is damaged"


def _difference(size: int, chunks: Iterable[bytes] | None, record: FileRecord) -> str | None:
    if size != record.bytes:
        return f"has {size} bytes where {record.bytes} were written"
    if chunks is None:
        return None
    if record.checksum.partition(":")[0] != ALGORITHM:
        return f"has a checksum that this version of keras_turbo doesn't know: {record.checksum!r}"
    found = checksum_of(chunks)
    return (
        None if found == record.checksum else f"is damaged: its checksum is {found} where {record.checksum} was written"
    )
