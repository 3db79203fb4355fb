"""A directory of checkpoints as a run works with it: taken, swept, thinned out."""

from __future__ import annotations

from keras_turbo.checkpoint.local_files import LocalFiles
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.lock import DirectoryLock
from keras_turbo.checkpoint.names import (
    DELETED,
    EXTRA,
    MARKER,
    SHARDED_WEIGHTS,
    SHARE,
    SHARING,
    STATE,
    WRITING,
    check_name,
)


def claim(directory: Directory) -> DirectoryLock:
    """Takes a directory for a run: makes it, finds out that it can be written, and sweeps what dead runs left.

    Example:

    ```python
    lock = claim("checkpoints")
    try:
        ...  # write_checkpoint, delete_checkpoint
    finally:
        lock.release()
    ```

    Args:
        directory: where checkpoints are kept.

    Returns:
        The lock; it holds until it is released or the process ends.

    Raises:
        ValueError: no file system has the scheme of the path.
        DirectoryInUseError: another run has it.
        OSError: it can't be made or written.
    """
    lock = DirectoryLock(directory).acquire()
    try:
        if not lock.contested:
            sweep(directory)
    except BaseException:
        lock.release()
        raise
    return lock


def sweep(directory: Directory) -> list[str]:
    """Removes what runs that died have left: half-written and half-deleted checkpoints.

    Only who holds the directory's `DirectoryLock` may do it, so that nothing of a living run is taken for a leftover.

    Args:
        directory: where checkpoints are kept.

    Returns:
        The names that were removed.
    """
    location = locate(directory)
    files = location.files
    leftovers = {name for name in files.names(location.path) if name.startswith((WRITING, SHARING, DELETED))}
    if not isinstance(files, LocalFiles):
        begun = files.names_with(location.path, ("*.weights.h5", SHARDED_WEIGHTS, EXTRA, STATE, f"{SHARE}*"))
        leftovers |= begun - files.names_with(location.path, (MARKER,))
    for name in sorted(leftovers):
        files.remove_folder(location.child(name), DELETED)
    return sorted(leftovers)


def delete_checkpoint(directory: Directory, name: str) -> None:
    """Deletes a checkpoint such that nobody meets a part of it.

    Locally it is renamed out of sight first; in an object store it loses its commit marker first.

    Args:
        directory: where checkpoints are kept.
        name: of the checkpoint. It may be gone.
    """
    location = locate(directory)
    check_name(name)
    path = location.child(name)
    if not location.files.renames:
        location.files.remove_file(location.files.join(path, MARKER))
    location.files.remove_folder(path, DELETED)
