"""Files that TensorFlow reaches by a scheme (`s3://`, `gs://`, `hdfs://`)."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_turbo.checkpoint.checksums import Checksum
from keras_turbo.checkpoint.layout import FileRecord
from keras_turbo.checkpoint.local_files import in_chunks
from keras_turbo.storage import remote
from keras_turbo.storage.remote import retried_on, system_errors


class RemoteFiles:
    """What a checkpoint needs of an object store, the same as `LocalFiles` gives; paths keep their scheme."""

    # A store copies and deletes instead, which can break off in between.
    renames = False

    def join(self, folder: str, *names: str) -> str:
        return "/".join([folder.rstrip("/"), *names])

    def name_of(self, path: str) -> str:
        return path.rstrip("/").rpartition("/")[2]

    def parent_of(self, path: str) -> str:
        return path.rstrip("/").rpartition("/")[0]

    def names(self, folder: str) -> list[str]:
        return [entry.name for entry in remote.entries(folder)]

    def folder_names(self, folder: str) -> list[str]:
        # Whether each is a folder would be a request each; what is no folder turns out to be no checkpoint.
        return self.names(folder)

    def exists(self, path: str) -> bool:
        return remote.exists(path)

    def is_folder(self, path: str) -> bool:
        return remote.is_folder(path)

    def size(self, path: str) -> int:
        return remote.stat(path).length

    def make_folder(self, path: str) -> None:
        retried_on(path, lambda: tf.io.gfile.makedirs(path))

    def write(self, path: str, pieces: Sequence[memoryview], limit: Any = None) -> FileRecord:
        """As `LocalFiles.write`; a store keeps the whole object or nothing of it."""
        return retried_on(path, lambda: self._write(path, pieces, limit))

    def _write(self, path: str, pieces: Sequence[memoryview], limit: Any) -> FileRecord:
        checksum = Checksum()
        nbytes = 0
        with tf.io.gfile.GFile(path, "wb") as file:
            for chunk in in_chunks(pieces):
                if limit is not None:
                    limit.spend(len(chunk))
                checksum.update(chunk)
                nbytes += len(chunk)
                file.write(bytes(chunk))
        return FileRecord(nbytes, str(checksum))

    def chunks(self, path: str) -> Iterator[bytes]:
        return remote.chunks(path)

    def read(self, path: str) -> bytes:
        return retried_on(path, lambda: b"".join(self.chunks(path)))

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="keras_turbo-") as folder:
            copy = os.path.join(folder, self.name_of(path))
            with open(copy, "wb") as file:
                for chunk in self.chunks(path):
                    file.write(chunk)
            yield copy

    def rename(self, path: str, new_path: str) -> None:
        raise OSError(errno.ENOTSUP, "An object store renames nothing in one step", path, None, new_path)

    def sync_folder(self, path: str) -> None:
        """Nothing to do: what a store has confirmed, it keeps."""

    def remove_file(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), system_errors(path):
            tf.io.gfile.remove(path)

    def remove_folder(self, path: str, hidden_prefix: str) -> None:
        with contextlib.suppress(FileNotFoundError), system_errors(path):
            tf.io.gfile.rmtree(path)

    def names_with(self, folder: str, patterns: Sequence[str]) -> set[str]:
        """Names of the folders in which there is a file of one of the patterns."""
        asked = [self.join(folder, "*", pattern) for pattern in patterns]
        found = retried_on(folder, lambda: tf.io.gfile.glob(asked))
        return {self.name_of(self.parent_of(path)) for path in found}
