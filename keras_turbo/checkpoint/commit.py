"""The files of a checkpoint, and the step that makes it one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_turbo.checkpoint.hdf5 import hdf5_layout
from keras_turbo.checkpoint.layout import (
    DELETED,
    EXTRA,
    FORMAT_VERSION,
    MARKER,
    SHARDED_WEIGHTS,
    STATE,
    WEIGHTS,
    FileRecord,
    TrainingState,
    shard_name,
)
from keras_turbo.checkpoint.location import Location

# Larger weights are split: files of this size are still moved about with ease, and S3 takes 5 GB at once.
_DEFAULT_MAX_SHARD_MB = 2000.0
_MEGABYTE = 10**6


def checked_size(max_shard_mb: float | None) -> float:
    """The size from which weights are split, in MB; ValueError if it can't be."""
    if max_shard_mb is None:
        return _DEFAULT_MAX_SHARD_MB
    if not isinstance(max_shard_mb, int | float) or isinstance(max_shard_mb, bool) or not max_shard_mb > 0:
        raise ValueError(f"max_shard_mb must be a positive number of megabytes. Received: {max_shard_mb!r}.")
    return float(max_shard_mb)


def commit(
    location: Location,
    folder: str,
    name: str,
    state: TrainingState,
    records: Mapping[str, FileRecord],
    token: str | None = None,
) -> str:
    """Writes the state and the marker, and gives the checkpoint its name. Returns its path."""
    files = location.files
    state = dataclasses.replace(state, files=dict(records))
    record = files.write(files.join(folder, STATE), [memoryview(state.to_json().encode())])
    # The marker vouches for the state, the state for all other files.
    marker = {"format_version": FORMAT_VERSION, STATE: dataclasses.asdict(record)}
    if token is not None:
        marker["save"] = token
    files.write(files.join(folder, MARKER), [memoryview(json.dumps(marker).encode())])
    if not files.renames:
        return folder
    final = location.child(name)
    files.sync_folder(folder)
    if files.exists(final):
        raise FileExistsError(f"{final} has appeared while a checkpoint of that name was written.")
    files.rename(folder, final)
    return final


@contextlib.contextmanager
def discarding(location: Location, folder: str) -> Iterator[None]:
    """A context that removes what was written into a folder, if it ends with an error."""
    try:
        yield
    except BaseException:
        # That it can't be removed must not hide why the call failed. It is swept by the next run.
        with contextlib.suppress(OSError):
            if not location.files.renames:
                location.files.remove_file(location.files.join(folder, MARKER))
            location.files.remove_folder(folder, DELETED)
        raise


@dataclass(frozen=True)
class PlannedFile:
    """A file and what is in it."""

    name: str
    paths: tuple[str, ...]
    owner: int


@dataclass(frozen=True)
class FilePlan:
    """Which array goes into which file, the same for every worker. State and marker come after all of these."""

    files: tuple[PlannedFile, ...]
    index: str | None = None

    def write(
        self,
        location: Location,
        folder: str,
        owner: int,
        weights: Mapping[str, np.ndarray],
        extra: Mapping[str, np.ndarray],
        layer_names: Mapping[str, str],
        limit: Any,
    ) -> dict[str, FileRecord]:
        """Writes the files that one worker owns, and gives the record of each; the index is worker 0's."""
        files, records = location.files, {}
        for planned in self.files:
            if planned.owner == owner:
                content = _content(planned, weights, extra, layer_names)
                records[planned.name] = files.write(files.join(folder, planned.name), content, limit)
        if self.index is not None and owner == 0:
            content = [memoryview(self.index.encode())]
            records[SHARDED_WEIGHTS] = files.write(files.join(folder, SHARDED_WEIGHTS), content, limit)
        return records


def plan_files(weights: Mapping[str, np.ndarray], *, max_shard_mb: float, num_shards: int = 1) -> FilePlan:
    """Decides which weights go into which file.

    One file is `model.weights.h5`. Several are what Keras writes with `max_shard_size`, except that an array larger
    than that gets a file of its own where Keras refuses. Arrays stay in their order: Keras 3.12 finds them only in the
    order in which it walks through a model.
    """
    total = sum(array.nbytes for array in weights.values())
    most = max_shard_mb * _MEGABYTE
    everything = PlannedFile(EXTRA, (), owner=0)
    if num_shards == 1 and total <= most:
        return FilePlan((PlannedFile(WEIGHTS, tuple(weights), owner=0), everything))
    # No file has more than a worker's share, so that there is something for each.
    most = min(most, -(-total // num_shards))
    runs: list[list[str]] = [[]]
    size = 0
    for path, array in weights.items():
        if runs[-1] and size + array.nbytes > most:
            runs.append([])
            size = 0
        runs[-1].append(path)
        size += array.nbytes
    files = []
    bytes_of_workers = [0] * num_shards
    for index, paths in enumerate(runs):
        # An array can't be split, so shares are uneven; the next file goes to who has least.
        owner = bytes_of_workers.index(min(bytes_of_workers))
        bytes_of_workers[owner] += sum(weights[path].nbytes for path in paths)
        files.append(PlannedFile(shard_name(index), tuple(paths), owner))
    return FilePlan((*files, everything), _keras_index(files, total))


def _keras_index(files: list[PlannedFile], total: int) -> str:
    """What Keras' `ShardedH5IOStore` writes: group of variables to the file or files that have it."""
    weight_map: dict[str, str | list[str]] = {}
    for file in files:
        for path in file.paths:
            group = f"/{_group(path)}"
            known = weight_map.get(group)
            # One array is in a file, several are in a list of files, be it a list of one: as Keras has it.
            if known is None:
                weight_map[group] = file.name
            else:
                listed = known if isinstance(known, list) else [known]
                weight_map[group] = listed if file.name in listed else [*listed, file.name]
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=4)


def _group(path: str) -> str:
    """The group in which Keras keeps what an object saves ("layers/dense/vars" of "layers/dense/vars/0")."""
    before, _, _ = f"/{path}".rpartition("/vars/")
    return f"{before}/vars".lstrip("/")


def _content(
    file: PlannedFile,
    weights: Mapping[str, np.ndarray],
    extra: Mapping[str, np.ndarray],
    layer_names: Mapping[str, str],
) -> list[memoryview]:
    """The bytes of a planned file, in the arrays' own memory."""
    if file.name == EXTRA:
        return hdf5_layout(extra).filled(extra)
    arrays = {path: weights[path] for path in file.paths}
    groups = {_group(path) for path in arrays}
    named = {(f"{path}/vars" if path else "vars"): {"name": name} for path, name in layer_names.items()}
    if file.name != WEIGHTS:
        # Layers without variables are noted in the first shard.
        first = file.name == shard_name(0)
        with_arrays = {_group(path) for path in weights}
        named = {
            group: name for group, name in named.items() if group in groups or (first and group not in with_arrays)
        }
    return hdf5_layout(arrays, named).filled(arrays)
