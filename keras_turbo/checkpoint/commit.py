"""Writes a checkpoint such that under its name there is a whole one or none."""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_turbo.checkpoint.file_plan import DEFAULT_MAX_SHARD_MB, FilePlan, file_content, plan_files
from keras_turbo.checkpoint.location import Directory, Location, locate
from keras_turbo.checkpoint.lock import locked
from keras_turbo.checkpoint.names import DELETED, MARKER, STATE, WRITING, check_name, is_ours
from keras_turbo.checkpoint.training_state import FORMAT_VERSION, FileRecord, TrainingState


def write_checkpoint(
    directory: Directory,
    name: str,
    weights: Mapping[str, np.ndarray],
    extra: Mapping[str, np.ndarray],
    state: TrainingState,
    *,
    max_shard_mb: float | None = None,
    limit: Any = None,
    shard: tuple[int, int] = (1, 0),
    layer_names: Mapping[str, str] | None = None,
    timeout_seconds: float = 600.0,
) -> Path | str:
    """Writes a checkpoint, whole or not at all.

    Locally it is made beside its name, brought to the disk and renamed. An object store can't rename, so there the
    files are written under the final name. In both, the commit marker comes last: what has none is no checkpoint.
    A call that fails removes what it wrote. A checkpoint that is there is never touched.

    Example:

    ```python
    folder = write_checkpoint("checkpoints", "step-00000100", weights, extra, state)
    model.load_weights(folder / "model.weights.h5")  # stock Keras
    ```

    Args:
        directory: where checkpoints are kept; made if missing.
        name: of the checkpoint.
        weights: path in Keras' layout ("layers/dense/vars/0") to array. Contiguous arrays are written from their own
            memory, so they must not change meanwhile.
        extra: path to array, of all else.
        state: where the run is.
        max_shard_mb: size in MB from which the weights are split into Keras' sharded format; by default 2,000.
        limit: has `spend(nbytes)`, which waits until so many bytes may be written. Default: no limit.
        shard: number of workers that write the checkpoint together, and the index of this one. All give the same
            name, and arrays of the same paths, shapes and types; of the others' shares only those are looked at.
        layer_names: path of a layer ("layers/dense") to its name, which Keras keeps in the file for people who read it.
        timeout_seconds: how long a worker waits for the others.

    Returns:
        The checkpoint's folder: a `Path`, or text behind a scheme.

    Raises:
        ValueError: an argument can't be, or the workers are at different steps.
        FileExistsError: there is a checkpoint of that name.
        DirectoryInUseError: another run saves there.
        TimeoutError: the other workers don't write their shares.
        OSError: the disk is full, can't be written, is gone; with the path.
    """
    location = locate(directory)
    check_name(name)
    num_shards, index = checked_shard(shard)
    plan = plan_files(weights, max_shard_mb=checked_size(max_shard_mb), num_shards=num_shards)
    names = layer_names or {}
    if num_shards > 1:
        from keras_turbo.checkpoint.sharing import write_share

        def write_files(folder: str) -> dict[str, FileRecord]:
            return write_planned(location, folder, plan, index, weights, extra, names, limit)

        path = write_share(location, directory, name, state, shard, write_files, timeout_seconds)
        return location.public(path)
    with locked(location, directory):
        folder = begin(location, name)
        try:
            records = write_planned(location, folder, plan, index, weights, extra, names, limit)
            return location.public(commit(location, folder, name, state, records))
        except BaseException:
            discard(location, folder)
            raise


def checked_shard(shard: tuple[int, int]) -> tuple[int, int]:
    """The number of workers and the index of this one.

    Raises:
        ValueError: they can't be.
    """
    whole = isinstance(shard, tuple) and len(shard) == 2 and all(type(number) is int for number in shard)
    if not whole or not 0 <= shard[1] < shard[0]:
        raise ValueError(
            f"shard must be the number of workers and an index below it, as in (2, 0). Received: {shard!r}."
        )
    return shard


def checked_size(max_shard_mb: float | None) -> float:
    """The size from which weights are split, in MB.

    Raises:
        ValueError: it can't be.
    """
    if max_shard_mb is None:
        return DEFAULT_MAX_SHARD_MB
    if not isinstance(max_shard_mb, int | float) or isinstance(max_shard_mb, bool) or not max_shard_mb > 0:
        raise ValueError(f"max_shard_mb must be a positive number of megabytes. Received: {max_shard_mb!r}.")
    return float(max_shard_mb)


def begin(location: Location, name: str) -> str:
    """Makes the folder in which a checkpoint is written.

    Raises:
        FileExistsError: there is a checkpoint of that name.
    """
    check_free(location, name)
    folder = location.child(name)
    if location.files.renames:
        folder = location.child(f"{WRITING}{name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    location.files.make_folder(folder)
    return folder


def check_free(location: Location, name: str) -> None:
    """Sees to it that a name can be given: a leftover without commit marker is swept.

    Raises:
        FileExistsError: there is a checkpoint of that name, or something that isn't of ours.
    """
    final = location.child(name)
    files = location.files
    if not files.exists(final):
        return
    if files.exists(files.join(final, MARKER)):
        raise FileExistsError(f"There is a checkpoint {final} already. It is not overwritten.")
    if not files.is_folder(final):
        raise FileExistsError(f"{final} is a file, so no checkpoint can have that name.")
    foreign = foreign_names(location, name)
    if foreign:
        raise FileExistsError(f"{final} has {foreign[0]!r} in it and is no checkpoint. It is not overwritten.")
    files.remove_folder(final, DELETED)


def foreign_names(location: Location, name: str) -> list[str]:
    """What is in a folder and never was part of a checkpoint: such a folder is somebody else's.

    Args:
        location: a directory of checkpoints.
        name: of a folder in it.
    """
    return [one for one in location.files.names(location.child(name)) if not is_ours(one)]


def write_planned(
    location: Location,
    folder: str,
    plan: FilePlan,
    index: int,
    weights: Mapping[str, np.ndarray],
    extra: Mapping[str, np.ndarray],
    layer_names: Mapping[str, str],
    limit: Any,
) -> dict[str, FileRecord]:
    """Writes the files that one worker owns; worker 0 also writes Keras' index of the shards.

    Returns:
        The record of each file.
    """
    files = location.files
    records = {}
    for planned in plan.files:
        if planned.owner == index:
            content = file_content(planned, weights, extra, layer_names)
            records[planned.name] = files.write(files.join(folder, planned.name), content, limit)
    if plan.index is not None and index == 0:
        content = [memoryview(plan.index.encode())]
        records[plan.index_name] = files.write(files.join(folder, plan.index_name), content, limit)
    return records


def commit(location: Location, folder: str, name: str, state: TrainingState, records: Mapping[str, FileRecord]) -> str:
    """Writes the state and the marker, and gives the checkpoint its name.

    Returns:
        The path of the checkpoint.
    """
    files = location.files
    state = dataclasses.replace(state, files=dict(records))
    record = files.write(files.join(folder, STATE), [memoryview(state.to_json().encode())])
    # The marker vouches for the state, the state for all other files.
    marker = {"format_version": FORMAT_VERSION, STATE: dataclasses.asdict(record)}
    files.write(files.join(folder, MARKER), [memoryview(json.dumps(marker).encode())])
    if not files.renames:
        return folder
    final = location.child(name)
    files.sync_folder(folder)
    if files.exists(final):
        raise FileExistsError(f"{final} has appeared while a checkpoint of that name was written.")
    files.rename(folder, final)
    return final


def discard(location: Location, folder: str) -> None:
    """Removes what a failed call wrote. That the folder can't be removed must not hide why the call failed."""
    try:
        files = location.files
        if not files.renames and files.exists(files.join(folder, MARKER)):
            files.remove_file(files.join(folder, MARKER))
        files.remove_folder(folder, DELETED)
    except OSError:
        # It is swept by the next run.
        return
