"""Files behind a scheme (`s3://`, `gs://`, `hdfs://`)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from keras_turbo import files
from keras_turbo.checkpoint.checksums import Checksum
from keras_turbo.checkpoint.local_files import CHUNK_BYTES, in_chunks
from keras_turbo.checkpoint.training_state import FileRecord


class RemoteFiles:
    """What a checkpoint needs of an object store, the same as `LocalFiles` gives; paths keep their scheme."""

    # A store copies and deletes instead, which can break off in between.
    renames = False

    join = staticmethod(files.join)
    name_of = staticmethod(files.name_of)
    parent_of = staticmethod(files.parent_of)
    names = staticmethod(files.names_in)
    # Whether each is a folder may be a request each; what is no folder turns out to be no checkpoint.
    folder_names = staticmethod(files.names_in)
    exists = staticmethod(files.exists)
    is_folder = staticmethod(files.is_folder)
    make_folder = staticmethod(files.make_folder)
    read = staticmethod(files.read_bytes)
    remove_file = staticmethod(files.remove_file)

    def size(self, path: str) -> int:
        return files.status_of(path).size

    def write(self, path: str, pieces: Sequence[memoryview], limit: Any = None) -> FileRecord:
        """As `LocalFiles.write`; a store keeps the whole object or nothing of it."""
        record = FileRecord(0, "")

        def chunks() -> Iterator[memoryview]:
            nonlocal record
            checksum, nbytes = Checksum(), 0
            for chunk in in_chunks(pieces):
                if limit is not None:
                    limit.spend(len(chunk))
                checksum.update(chunk)
                nbytes += len(chunk)
                yield chunk
            record = FileRecord(nbytes, str(checksum))

        files.write_whole(path, chunks)
        return record

    def chunks(self, path: str) -> Iterator[bytes]:
        with files.opened(path, read_ahead_bytes=8 * CHUNK_BYTES) as (file, _):
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="keras_turbo-") as folder:
            copy = os.path.join(folder, self.name_of(path))
            with files.opened(path, read_ahead_bytes=8 * CHUNK_BYTES) as (original, _), open(copy, "wb") as file:
                shutil.copyfileobj(original, file, CHUNK_BYTES)
            yield copy

    def rename(self, path: str, new_path: str) -> None:
        raise OSError(errno.ENOTSUP, "An object store renames nothing in one step", path, None, new_path)

    def sync_folder(self, path: str) -> None:
        """Nothing to do: what a store has confirmed, it keeps."""

    def remove_folder(self, path: str, hidden_prefix: str) -> None:
        files.remove_folder(path)

    def names_with(self, folder: str, patterns: Sequence[str]) -> set[str]:
        """Names of the folders in which there is a file of one of the patterns."""
        found = [path for pattern in patterns for path in files.find(self.join(folder, "*", pattern))]
        return {self.name_of(self.parent_of(path)) for path in found}
