"""Writes checkpoints, by one worker or several.

Several need nothing between them but the directory. Worker 0 makes a folder, whose name all can tell, with a token in
it, newly drawn for each save. Each worker writes its files, then a note with that token, its step and its checksums.
When all shares are there, worker 0 commits. A folder of a dead run has another token, so nothing that was left in one
gets into a checkpoint; a worker that met one begins anew in the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_turbo.checkpoint.commit import checked_size, commit, discarding, plan_files
from keras_turbo.checkpoint.directory import delete_checkpoint, foreign_names, locked
from keras_turbo.checkpoint.layout import (
    DELETED,
    MARKER,
    SHARE,
    SHARING,
    WRITING,
    FileRecord,
    TrainingState,
    check_file_name,
    check_name,
)
from keras_turbo.checkpoint.location import Directory, Location, locate
from keras_turbo.checkpoint.reading import examine

_TOKEN = f"{SHARE}token.json"

# A look costs a request or two; the first come soon, since workers at the same step end at about the same time.
_FIRST_WAIT_SECONDS = 0.01
_LONGEST_WAIT_SECONDS = 0.5

# How long a save may be gone before a worker takes it for given up: longer than worker 0 needs to replace the folder of
# a dead run, attributes that NFS caches for 3 s included.
_GONE_SECONDS = 10.0


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
    finds_name: bool = False,
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
        finds_name: where the name is taken, the next one like it is found ("step-00000100-2"), the same for all
            workers; what has it and is damaged makes room. Default: a name that is taken is an error.

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
    num_shards, index = _checked_shard(shard)
    plan = plan_files(weights, max_shard_mb=checked_size(max_shard_mb), num_shards=num_shards)

    def write_files(folder: str) -> dict[str, FileRecord]:
        return plan.write(location, folder, index, weights, extra, layer_names or {}, limit)

    state = dataclasses.replace(state, num_shards=num_shards)
    deadline = time.monotonic() + timeout_seconds
    share = _Share(location, name, state, num_shards, index, write_files, deadline)
    if index > 0:
        if not finds_name and location.files.exists(location.child(name, MARKER)):
            raise FileExistsError(f"There is a checkpoint {location.child(name)} already. It is not overwritten.")
        return location.public(share.follow())
    with locked(location):
        final = _free_name(location, name) if finds_name else _require_free(location, name)
        if num_shards > 1:
            return location.public(share.lead(final))
        folder = location.child(final)
        if location.files.renames:
            folder = location.child(f"{WRITING}{name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        location.files.make_folder(folder)
        with discarding(location, folder):
            return location.public(commit(location, folder, final, state, write_files(folder)))


def _checked_shard(shard: tuple[int, int]) -> tuple[int, int]:
    whole = isinstance(shard, tuple) and len(shard) == 2 and all(type(number) is int for number in shard)
    if not whole or not 0 <= shard[1] < shard[0]:
        raise ValueError(
            f"shard must be the number of workers and an index below it, as in (2, 0). Received: {shard!r}."
        )
    return shard


def _require_free(location: Location, name: str) -> str:
    """The name, if it can be given: a leftover without commit marker is swept. Else FileExistsError."""
    final, files = location.child(name), location.files
    if files.exists(files.join(final, MARKER)):
        raise FileExistsError(f"There is a checkpoint {final} already. It is not overwritten.")
    if files.exists(final):
        if not files.is_folder(final):
            raise FileExistsError(f"{final} is a file, so no checkpoint can have that name.")
        foreign = foreign_names(location, name)
        if foreign:
            raise FileExistsError(f"{final} has {foreign[0]!r} in it and is no checkpoint. It is not overwritten.")
        files.remove_folder(final, DELETED)
    return name


def _free_name(location: Location, name: str) -> str:
    """The name, or the next one like it where something has it; only a damaged checkpoint makes room."""
    free, number = name, 1
    while location.files.exists(location.child(free)):
        folder = location.child(free)
        is_ours = location.files.is_folder(folder) and not foreign_names(location, free)
        health = examine(location, folder) if is_ours else None
        if health is not None and health.is_damaged:
            # It was passed over when this run was resumed, and its steps are done anew.
            delete_checkpoint(location.path, free)
            break
        number += 1
        free = f"{name}-{number}"
    return free


@dataclasses.dataclass(frozen=True)
class _Share:
    """One worker's part in a checkpoint."""

    location: Location
    name: str
    state: TrainingState
    num_shards: int
    index: int
    write_files: Callable[[str], dict[str, FileRecord]]
    deadline: float

    @property
    def notes(self) -> str:
        """The one folder that all workers know without being told."""
        return self.location.child(f"{SHARING}{self.name}")

    def files_of(self, name: str) -> str:
        """Where the files of the checkpoint are written. A store, which renames nothing, has them in place at once."""
        return self.notes if self.location.files.renames else self.location.child(name)

    def lead(self, name: str) -> str:
        """Of worker 0: writes its share, and commits the checkpoint under the name that is free for it."""
        files, folder = self.location.files, self.files_of(name)
        if files.exists(self.notes):
            files.remove_folder(self.notes, DELETED)
        token = uuid.uuid4().hex
        try:
            with discarding(self.location, folder):
                for one in {self.notes, folder}:
                    files.make_folder(one)
                self._write_note(_TOKEN, {"token": token, "num_shards": self.num_shards, "name": name})
                records = self.write_files(folder)
                for index in range(1, self.num_shards):
                    records.update(self._share_of(index, token, folder))
                for note in [_TOKEN, *(_note_name(index) for index in range(1, self.num_shards))]:
                    files.remove_file(files.join(self.notes, note))
                return commit(self.location, folder, name, self.state, records, token)
        finally:
            if folder != self.notes:
                with contextlib.suppress(OSError):
                    files.remove_folder(self.notes, DELETED)

    def _share_of(self, index: int, token: str, folder: str) -> dict[str, FileRecord]:
        """What another worker has written, when it has."""
        note = self._awaited(lambda: self._read_note(_note_name(index), token), f"worker {index} to write its share")
        if "error" in note:
            raise OSError(f"Worker {index} could not write its share of {self.name}: {note['error']}")
        if note["position"] != self._position():
            raise ValueError(
                f"The workers are not at the same step: worker {index} is at {note['position']}, worker 0 at "
                f"{self._position()}. {self.name} is not written."
            )
        records = {}
        for name, record in note["files"].items():
            check_file_name(name)
            records[name] = FileRecord.of_json(record, name)
            size = self.location.files.size(self.location.files.join(folder, name))
            if size != records[name].bytes:
                raise OSError(f"{name} of worker {index} has {size} bytes where it wrote {records[name].bytes}.")
        return records

    def follow(self) -> str:
        """Of the others: writes their share, and waits for the commit."""
        while True:
            note = self._awaited(lambda: self._read_note(_TOKEN), "worker 0 to begin")
            token, name = note["token"], note.get("name")
            if note.get("num_shards") != self.num_shards or not isinstance(name, str):
                self._awaited(lambda token=token: self._other_token(token), f"worker 0 to begin with {self.num_shards}")
                continue
            check_file_name(name)
            try:
                self._write_my_share(token, self.files_of(name))
            except FileNotFoundError:
                # Worker 0 has replaced the folder, which was of a dead run; or it gave up.
                if self._read_note(_TOKEN, token) is not None:
                    raise
            if self._is_over(token, name):
                return self.location.child(name)

    def _write_my_share(self, token: str, folder: str) -> None:
        try:
            records = self.write_files(folder)
        except FileNotFoundError:
            raise
        except Exception as error:
            # Worker 0 should not have to wait for what won't come.
            with contextlib.suppress(OSError):
                self._write_note(_note_name(self.index), {"token": token, "error": f"{type(error).__name__}: {error}"})
            raise
        content = {name: dataclasses.asdict(record) for name, record in records.items()}
        self._write_note(_note_name(self.index), {"token": token, "position": self._position(), "files": content})

    def _is_over(self, token: str, name: str) -> bool:
        """Waits for the commit: True then, False when another folder has taken the place of this save's."""
        gone_since: list[float] = []

        def look() -> bool | None:
            if (self._read_json(self.location.child(name, MARKER)) or {}).get("save") == token:
                return True
            now = self._read_note(_TOKEN)
            if now is None:
                gone_since.append(time.monotonic())
                if gone_since[-1] - gone_since[0] > _GONE_SECONDS:
                    raise OSError(f"Worker 0 has given up on {self.location.child(name)}; its error says why.")
                return None
            gone_since.clear()
            return None if now["token"] == token else False

        return self._awaited(look, "worker 0 to commit")

    def _other_token(self, token: str) -> bool | None:
        note = self._read_note(_TOKEN)
        return True if note is not None and note["token"] != token else None

    def _position(self) -> dict[str, int]:
        return {name: getattr(self.state, name) for name in ("optimizer_step", "steps", "epoch", "batch")}

    def _write_note(self, name: str, note: dict[str, Any]) -> None:
        files = self.location.files
        files.write(files.join(self.notes, name), [memoryview(json.dumps(note).encode())])

    def _read_note(self, name: str, token: str | None = None) -> dict[str, Any] | None:
        """A note, if it is there, whole, and has the token."""
        note = self._read_json(self.location.files.join(self.notes, name))
        if note is None or not isinstance(note.get("token"), str):
            return None
        return note if token in (None, note["token"]) else None

    def _read_json(self, path: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self.location.files.read(path))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _awaited(self, look: Callable[[], Any], what: str) -> Any:
        wait = _FIRST_WAIT_SECONDS
        while (seen := look()) is None:
            if time.monotonic() > self.deadline:
                raise TimeoutError(
                    f"Worker {self.index} of {self.num_shards} has waited too long for {what} of {self.name} in "
                    f"{self.location.path}."
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        return seen


def _note_name(index: int) -> str:
    return f"{SHARE}{index}.json"
