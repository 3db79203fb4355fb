"""Whether a checkpoint is what was written, file by file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_turbo.checkpoint.catalog import checkpoint_names, holds_checkpoint
from keras_turbo.checkpoint.checksums import ALGORITHM, checksum_of
from keras_turbo.checkpoint.location import Directory, Location, locate
from keras_turbo.checkpoint.names import EXTRA, MARKER, SHARDED_WEIGHTS, STATE, WEIGHTS
from keras_turbo.checkpoint.training_state import FORMAT_VERSION, NewerFormatError, TrainingState
from keras_turbo.files import TRANSIENT_READING, retried


@dataclass(frozen=True)
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
    """

    name: str
    path: Path | str
    problems: tuple[str, ...]
    state: TrainingState | None
    nbytes: int
    whole: bool
    newer: bool = False

    @property
    def ok(self) -> bool:
        """Whether it can be restored."""
        return not self.problems


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


def examine(location: Location, path: str, *, checksums: bool = True) -> Health:
    """Looks at one checkpoint.

    Args:
        location: its directory.
        path: its folder.
        checksums: whether its files are read; else their sizes are compared, which finds truncation and missing files.
    """
    files = location.files
    problems: list[str] = []
    state = None
    nbytes = 0
    newer = False
    try:
        state = _read_state(location, path, problems)
    except NewerFormatError as error:
        newer = True
        problems.append(str(error))
    except (OSError, ValueError) as error:
        problems.append(_told(error))
    names = state.files if state is not None else {}
    for name, record in names.items():
        try:
            problem, size = _examine_file(
                location, files.join(path, name), record.bytes, record.checksum if checksums else None
            )
            nbytes += size
        except OSError as error:
            problem = "is missing" if isinstance(error, FileNotFoundError) else _told(error)
        if problem:
            problems.append(f"{name} {problem}")
    if state is not None and not ({WEIGHTS, SHARDED_WEIGHTS} & names.keys() and EXTRA in names):
        problems.append(f"{STATE} names no weights")
    return Health(files.name_of(path), location.public(path), tuple(problems), state, nbytes, checksums, newer)


def _read_state(location: Location, path: str, problems: list[str]) -> TrainingState | None:
    """The training state, with what is wrong with it and with the marker that vouches for it."""
    files = location.files
    try:
        marker = _marker(files.read(files.join(path, MARKER)))
    except FileNotFoundError:
        problems.append(f"no commit marker ({MARKER}): its writing broke off")
        marker = None
    except NewerFormatError:
        raise
    except ValueError as error:
        problems.append(f"{MARKER} {error}")
        marker = None
    try:
        content = files.read(files.join(path, STATE))
    except FileNotFoundError:
        problems.append(f"{STATE} is missing")
        return None
    if marker is not None:
        problem = _difference(len(content), [content], marker["bytes"], marker["checksum"])
        if problem:
            problems.append(f"{STATE} {problem}")
            return None
    return TrainingState.from_json(content.decode())


def _marker(content: bytes) -> dict[str, Any]:
    try:
        marker = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("is damaged") from None
    version = marker.get("format_version") if isinstance(marker, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{MARKER} has format version {version}; this version of keras_turbo knows {FORMAT_VERSION}"
        )
    record = marker.get(STATE) if isinstance(marker, dict) else None
    if version != FORMAT_VERSION or not isinstance(record, dict):
        raise ValueError("is damaged")
    if type(record.get("bytes")) is not int or not isinstance(record.get("checksum"), str):
        raise ValueError("is damaged")
    return record


def _examine_file(location: Location, path: str, nbytes: int, checksum: str | None) -> tuple[str | None, int]:
    size = location.files.size(path)
    if checksum is None:
        return _difference(size, [], nbytes, None), size

    def compare() -> str | None:
        return _difference(size, location.files.chunks(path), nbytes, checksum)

    # What a server refuses for a moment is no damage.
    return retried(compare, TRANSIENT_READING), size


def _difference(size: int, chunks: Iterable[bytes], nbytes: int, checksum: str | None) -> str | None:
    if size != nbytes:
        return f"has {size} bytes where {nbytes} were written"
    if checksum is None:
        return None
    if checksum.partition(":")[0] != ALGORITHM:
        return f"has a checksum that this version of keras_turbo doesn't know: {checksum!r}"
    found = checksum_of(chunks)
    return None if found == checksum else f"is damaged: its checksum is {found} where {checksum} was written"


def _told(error: Exception) -> str:
    return f"{STATE} can't be read: {error}"
