"""Files that TensorFlow reaches by a scheme (`s3://`, `gs://`, `hdfs://`), and which schemes those are."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_turbo.checkpoint.checksums import Checksum
from keras_turbo.checkpoint.local_files import CHUNK_BYTES, in_chunks
from keras_turbo.checkpoint.retrying import TRANSIENT_READING, retried
from keras_turbo.checkpoint.tensorflow_io_exit import end_without_native_destructors
from keras_turbo.checkpoint.training_state import FileRecord

# What TensorFlow's errors are among the errors of a system.
_ERRNO = {
    tf.errors.NotFoundError: errno.ENOENT,
    tf.errors.AlreadyExistsError: errno.EEXIST,
    tf.errors.PermissionDeniedError: errno.EACCES,
    tf.errors.UnauthenticatedError: errno.EACCES,
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.UnavailableError: errno.EAGAIN,
    tf.errors.DeadlineExceededError: errno.EAGAIN,
    tf.errors.AbortedError: errno.EAGAIN,
}

# Schemes that tensorflow-io brings.
_TENSORFLOW_IO_SCHEMES = ("s3", "az", "oss", "hdfs", "har", "viewfs")


def check_scheme(scheme: str, path: str) -> None:
    """Refuses a scheme that nothing installed here can write, and says what brings it.

    Raises:
        ValueError: no installed file system has the scheme.
    """
    if scheme in ("http", "https"):
        raise ValueError(f"{path!r} can't be written: checkpoints can't be kept behind {scheme}://.")
    if scheme in _TENSORFLOW_IO_SCHEMES and importlib.util.find_spec("tensorflow_io") is not None:
        # Its file systems announce themselves when it is imported.
        importlib.import_module("tensorflow_io")
        if scheme == "s3":
            end_without_native_destructors()
    if scheme in _registered():
        return
    known = ", ".join(sorted(f"{one}://" for one in _registered() if one))
    if scheme in _TENSORFLOW_IO_SCHEMES:
        remedy = (
            f"{scheme}:// needs tensorflow-io, which loads on TensorFlow 2.17 only (this is {tf.__version__}): "
            'pip install "tensorflow>=2.17,<2.18" and pip install "keras_turbo[io]".'
        )
    else:
        remedy = "A path without a scheme is a local folder."
    raise ValueError(f"No file system is installed for {path!r}; there are {known}. {remedy}")


def _registered() -> list[str]:
    return tf.io.gfile.get_registered_schemes()


@contextlib.contextmanager
def _system_errors(path: str) -> Iterator[None]:
    """Turns TensorFlow's errors into those that a local file would give."""
    try:
        yield
    except tf.errors.OpError as error:
        number = next((number for kind, number in _ERRNO.items() if isinstance(error, kind)), errno.EIO)
        raise OSError(number, error.message, path) from error


def _retried_here(action: Any, path: str) -> Any:
    def converted() -> Any:
        with _system_errors(path):
            return action()

    # A store doesn't cache names: what is not there is not there.
    return retried(converted, TRANSIENT_READING)


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
        found = _retried_here(lambda: tf.io.gfile.listdir(folder), folder)
        # Stores tell folders by a slash behind them; some list the folder itself.
        return [name for name in (one.strip("/") for one in found) if name]

    def folder_names(self, folder: str) -> list[str]:
        # Whether each is a folder would be a request each; what is no folder turns out to be no checkpoint.
        return self.names(folder)

    def exists(self, path: str) -> bool:
        return _retried_here(lambda: tf.io.gfile.exists(path), path)

    def is_folder(self, path: str) -> bool:
        return _retried_here(lambda: tf.io.gfile.isdir(path), path)

    def size(self, path: str) -> int:
        return _retried_here(lambda: tf.io.gfile.stat(path).length, path)

    def make_folder(self, path: str) -> None:
        _retried_here(lambda: tf.io.gfile.makedirs(path), path)

    def write(self, path: str, pieces: Sequence[memoryview], limit: Any = None) -> FileRecord:
        """As `LocalFiles.write`; a store keeps the whole object or nothing of it."""
        return _retried_here(lambda: self._write(path, pieces, limit), path)

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
        with _system_errors(path), tf.io.gfile.GFile(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def read(self, path: str) -> bytes:
        return _retried_here(lambda: b"".join(self.chunks(path)), path)

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
        with contextlib.suppress(FileNotFoundError), _system_errors(path):
            tf.io.gfile.remove(path)

    def remove_folder(self, path: str, hidden_prefix: str) -> None:
        with contextlib.suppress(FileNotFoundError), _system_errors(path):
            tf.io.gfile.rmtree(path)

    def names_with(self, folder: str, patterns: Sequence[str]) -> set[str]:
        """Names of the folders in which there is a file of one of the patterns."""
        asked = [self.join(folder, "*", pattern) for pattern in patterns]
        found = _retried_here(lambda: tf.io.gfile.glob(asked), folder)
        return {self.name_of(self.parent_of(path)) for path in found}
