"""Reading and writing behind a scheme by TensorFlow, with the errors that a local file system would give.

What passes (a store that asks to slow down) is tried again. A store is asked over a network: where many files must be
asked about, `each_of` has many requests under way.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from keras_turbo.storage.retrying import TRANSIENT_READING, retried

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK_BYTES = 2**20
"""How much is read at a time of a file that is read from its beginning."""

# They wait for the store, not for this machine. More of them make stores ask to slow down.
_REQUESTS_AT_ONCE = 32

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


class Entry(NamedTuple):
    """What a folder has under a name.

    Attributes:
        name: without a slash.
        is_folder: None where the listing does not tell.
    """

    name: str
    is_folder: bool | None


@contextlib.contextmanager
def system_errors(path: str) -> Iterator[None]:
    """Turns TensorFlow's errors into those that a local file would give."""
    try:
        yield
    except tf.errors.OpError as error:
        number = next((number for kind, number in _ERRNO.items() if isinstance(error, kind)), errno.EIO)
        raise OSError(number, error.message, path) from error


def retried_on(path: str, action: Callable[[], Result]) -> Result:
    """Does something with a path, and again while it fails by what passes.

    Raises:
        OSError: with the path.
    """

    def converted() -> Result:
        with system_errors(path):
            return action()

    # A store doesn't cache names: what is not there is not there.
    return retried(converted, TRANSIENT_READING)


def each_of(action: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """What an action gives for each of some items, with many of them under way at a time."""
    items = list(items)
    if len(items) < 2:
        return [action(item) for item in items]
    pool = concurrent.futures.ThreadPoolExecutor(min(_REQUESTS_AT_ONCE, len(items)))
    try:
        return list(pool.map(action, items))
    finally:
        # Of an error in one of them, and of Ctrl-C, the rest need not be waited for.
        pool.shutdown(wait=True, cancel_futures=True)


def stat(path: str) -> Any:
    """`length`, `mtime_nsec` and `is_directory` of a file or folder.

    Raises:
        FileNotFoundError: there is none.
        OSError: the store can't be asked: the network, or the credentials.
    """
    return retried_on(path, lambda: tf.io.gfile.stat(_with_slash(path)))


def _with_slash(path: str) -> str:
    """A bucket by itself is no path to S3 unless a slash stands behind it."""
    return path if "/" in path.partition("://")[2] else f"{path}/"


def require_reachable(path: str) -> None:
    """Finds out why nothing is found under a path: some stores take what they refuse for what is not there.

    Raises:
        PermissionError: the store refuses.
        FileNotFoundError: there is no such bucket or host.
        OSError: the store can't be asked.
    """
    scheme, _, rest = path.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}/"
    try:
        stat(root)
    except PermissionError as error:
        message = "The store refuses. Are the credentials right, and may they list what is in it?"
        raise PermissionError(errno.EACCES, message, root) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "There is no such bucket, or host", root) from error


def exists(path: str) -> bool:
    """Whether there is a file or folder. Other than `tf.io.gfile.exists`, it raises what hinders it to know."""
    try:
        stat(path)
    except FileNotFoundError:
        return False
    return True


def is_folder(path: str) -> bool:
    """Whether there is a folder. Other than `tf.io.gfile.isdir`, it raises what hinders it to know."""
    try:
        return bool(stat(path).is_directory)
    except FileNotFoundError:
        return False


def entries(folder: str) -> list[Entry]:
    """What is in a folder, sorted by name.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such folder.
        OSError: the store can't be asked.
    """
    try:
        found = retried_on(folder, lambda: tf.io.gfile.listdir(_with_slash(folder)))
    except FileNotFoundError:
        # TensorFlow takes whatever hinders it for a folder that is not there. This raises what it was.
        if stat(folder).is_directory:
            raise
        raise NotADirectoryError(errno.ENOTDIR, "It is a file", folder) from None
    # Some stores tell folders by a slash behind them; some list the folder itself.
    named = {Entry(name.strip("/"), True if name.endswith("/") else None) for name in found}
    return sorted(entry for entry in named if entry.name)


def chunks(path: str) -> Iterator[bytes]:
    """The content of a file, piece by piece."""
    with system_errors(path), tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def read_at(path: str, offset: int, size: int) -> bytes:
    """A part of a file; less where it ends before."""

    def read() -> bytes:
        with tf.io.gfile.GFile(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    try:
        return retried_on(path, read)
    except OSError as error:
        if isinstance(error.__cause__, tf.errors.OutOfRangeError):  # it begins behind the end
            return b""
        raise


def write(path: str, pieces: Iterable[bytes]) -> None:
    """Writes a file; a store keeps the whole object or nothing of it.

    Args:
        path: the file; what is there is overwritten.
        pieces: its content in order, gone through again when the write is tried again.
    """

    def write_once() -> None:
        with tf.io.gfile.GFile(path, "wb") as file:
            for piece in pieces:
                file.write(piece)

    retried_on(path, write_once)


def upload(local_path: str, path: str) -> None:
    """Writes a file that is a copy of one of this machine; what is there is overwritten."""
    # One call, which Ctrl-C does not break off: a file that is closed half written is kept half by the store.
    retried_on(path, lambda: tf.io.gfile.copy(local_path, path, overwrite=True))


def remove_folder(path: str) -> None:
    """Removes a folder with what is in it; it may be gone."""
    with contextlib.suppress(FileNotFoundError), system_errors(path):
        tf.io.gfile.rmtree(path)
