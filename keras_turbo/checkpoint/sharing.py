"""Several workers write one checkpoint: each its share, and worker 0 commits when all shares are there.

They need nothing between them but the directory. Worker 0 makes a folder with a token in it, newly drawn for each save.
Each worker writes its files there, then a note with that token, its step and its checksums. A folder of a dead run has
another token, so nothing that was left in one gets into a checkpoint; a worker that met one begins anew in the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from keras_turbo.checkpoint.commit import check_free, commit, discard
from keras_turbo.checkpoint.location import Directory, Location
from keras_turbo.checkpoint.lock import locked
from keras_turbo.checkpoint.names import DELETED, MARKER, SHARE, SHARING
from keras_turbo.checkpoint.training_state import FileRecord, TrainingState, check_file_name

_TOKEN = f"{SHARE}token.json"

# A look costs a request or two; the first come soon, since workers at the same step end at about the same time.
_FIRST_WAIT_SECONDS = 0.01
_LONGEST_WAIT_SECONDS = 0.5

# How long a save may be gone before a worker takes it for given up: longer than worker 0 needs to replace the folder of
# a dead run, attributes that NFS caches for 3 s included.
_GONE_SECONDS = 10.0

WriteFiles = Callable[[str], dict[str, FileRecord]]


def write_share(
    location: Location,
    directory: Directory,
    name: str,
    state: TrainingState,
    shard: tuple[int, int],
    write_files: WriteFiles,
    timeout_seconds: float,
) -> str:
    """Writes this worker's share of a checkpoint and waits until the whole is committed.

    Args:
        location: where checkpoints are kept.
        directory: the same, as the user gave it.
        name: of the checkpoint, the same for all workers.
        state: where the run is. What all must agree on is compared; the rest is worker 0's.
        shard: number of workers, and the index of this one.
        write_files: writes this worker's files into a folder and returns their records.
        timeout_seconds: how long it waits for the others.

    Returns:
        The path of the checkpoint.

    Raises:
        ValueError: the workers are not at the same step.
        FileExistsError: there is a checkpoint of that name.
        TimeoutError: the others have not done their part.
        OSError: it can't be written, by this worker or another.
    """
    num_shards, index = shard
    state = dataclasses.replace(state, num_shards=num_shards)
    save = _SharedSave(location, name, state, num_shards, index, write_files, time.monotonic() + timeout_seconds)
    if index > 0:
        return save.follow()
    with locked(location, directory):
        check_free(location, name)
        return save.lead()


@dataclasses.dataclass(frozen=True)
class _SharedSave:
    location: Location
    name: str
    state: TrainingState
    num_shards: int
    index: int
    write_files: WriteFiles
    deadline: float

    @property
    def folder(self) -> str:
        """The one folder that all workers know without being told."""
        return self.location.child(f"{SHARING}{self.name}" if self.location.files.renames else self.name)

    def lead(self) -> str:
        files = self.location.files
        if files.exists(self.folder):
            files.remove_folder(self.folder, DELETED)
        token = uuid.uuid4().hex
        files.make_folder(self.folder)
        try:
            self._write_note(_TOKEN, {"token": token, "num_shards": self.num_shards})
            records = self.write_files(self.folder)
            for index in range(1, self.num_shards):
                records.update(self._share_of(index, token))
            for name in [_TOKEN, *(_note_name(index) for index in range(1, self.num_shards))]:
                files.remove_file(files.join(self.folder, name))
            return commit(self.location, self.folder, self.name, self.state, records)
        except BaseException:
            discard(self.location, self.folder)
            raise

    def _share_of(self, index: int, token: str) -> dict[str, FileRecord]:
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
            records[name] = FileRecord(**record)
            size = self.location.files.size(self.location.files.join(self.folder, name))
            if size != record["bytes"]:
                raise OSError(f"{name} of worker {index} has {size} bytes where it wrote {record['bytes']}.")
        return records

    def follow(self) -> str:
        if self._is_committed():
            raise FileExistsError(f"There is a checkpoint {self.location.child(self.name)} already.")
        while True:
            note = self._awaited(lambda: self._read_note(_TOKEN), "worker 0 to begin")
            token = note["token"]
            if note.get("num_shards") != self.num_shards:
                self._awaited(lambda token=token: self._other_token(token), f"worker 0 to begin with {self.num_shards}")
                continue
            try:
                self._write_my_share(token)
            except FileNotFoundError:
                # Worker 0 has replaced the folder, which was of a dead run; or it gave up.
                if self._read_note(_TOKEN, token) is not None:
                    raise
            if self._is_over(token):
                return self.location.child(self.name)

    def _write_my_share(self, token: str) -> None:
        try:
            records = self.write_files(self.folder)
        except FileNotFoundError:
            raise
        except Exception as error:
            # Worker 0 should not have to wait for what won't come.
            with contextlib.suppress(OSError):
                self._write_note(_note_name(self.index), {"token": token, "error": f"{type(error).__name__}: {error}"})
            raise
        content = {name: dataclasses.asdict(record) for name, record in records.items()}
        note = {"token": token, "position": self._position(), "files": content}
        self._write_note(_note_name(self.index), note)

    def _is_over(self, token: str) -> bool:
        """Waits for the commit: True then, False when another folder has taken the place of this save's."""
        gone_since: list[float] = []

        def look() -> bool | None:
            if self._is_committed():
                return True
            now = self._read_note(_TOKEN)
            if now is None:
                gone_since.append(time.monotonic())
                if gone_since[-1] - gone_since[0] > _GONE_SECONDS:
                    raise OSError(f"Worker 0 has given up on {self.location.child(self.name)}; its error says why.")
                return None
            gone_since.clear()
            return None if now["token"] == token else False

        return self._awaited(look, "worker 0 to commit")

    def _is_committed(self) -> bool:
        return self.location.files.exists(self.location.child(self.name, MARKER))

    def _other_token(self, token: str) -> bool | None:
        note = self._read_note(_TOKEN)
        return True if note is not None and note["token"] != token else None

    def _position(self) -> dict[str, int]:
        return {name: getattr(self.state, name) for name in ("optimizer_step", "steps", "epoch", "batch")}

    def _write_note(self, name: str, note: dict[str, Any]) -> None:
        files = self.location.files
        files.write(files.join(self.folder, name), [memoryview(json.dumps(note).encode())])

    def _read_note(self, name: str, token: str | None = None) -> dict[str, Any] | None:
        """A note, if it is there, whole, and has the token."""
        path = self.location.files.join(self.folder, name)
        try:
            note = json.loads(self.location.files.read(path))
        except (OSError, ValueError):
            return None
        if not isinstance(note, dict) or not isinstance(note.get("token"), str):
            return None
        return note if token in (None, note["token"]) else None

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
