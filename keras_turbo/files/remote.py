"""The file systems behind schemes, all as fsspec has them.

Those that TensorFlow knows (`gs://` and `ram://`, and with tensorflow-io `s3://` and its like) are TensorFlow's, all
others fsspec's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import importlib.util
import logging
import os
from typing import Any

import fsspec
import tensorflow as tf

from keras_turbo.files.attempts import TRANSIENT_READING, each_of, retried
from keras_turbo.files.paths import scheme_of

# TensorFlow makes a request of each half of a megabyte, one after the other, so that large reads are made of parts.
_PART_BYTES = 1 << 20


def require_system(path: str) -> None:
    """Finds out whether anything installed reads a path.

    Raises:
        ValueError: nothing does; the text says what to install.
    """
    scheme = scheme_of(path)
    if not _is_known_to_tensorflow(scheme):
        try:
            fsspec.get_filesystem_class(scheme)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f'No file system is installed for {path!r}: {error}. `pip install "keras_turbo[remote]"` brings s3://. '
                "A path without a scheme is a local one."
            ) from error


def system_of(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a path with a scheme, and what the path is called there.

    To be asked for each time: these objects do not survive a fork, and keep listings that others may have changed.
    """
    scheme = scheme_of(path)
    if _is_known_to_tensorflow(scheme):
        return TensorFlowFiles(), path
    # The variable by which tensorflow-io finds another server than Amazon's; s3fs has AWS_ENDPOINT_URL.
    endpoint = os.environ.get("S3_ENDPOINT") if scheme == "s3" else None
    system, path = fsspec.core.url_to_fs(path, **({"endpoint_url": endpoint} if endpoint else {}))
    system.invalidate_cache()
    return system, path


def read_part(path: str, offset: int, size: int) -> bytes:
    """A part of a file, or with a size of -1 all behind the offset; less where it ends before."""
    system, there = system_of(path)

    def read() -> Any:
        try:
            return system.cat_file(there, start=offset or None, end=None if size < 0 else offset + size)
        except Exception:
            with contextlib.suppress(Exception):
                if offset >= system.info(there)["size"]:  # some stores refuse to read where nothing is
                    return b""
            raise

    return retried(read, TRANSIENT_READING, path=path)


class RemoteFile(fsspec.spec.AbstractBufferedFile):
    """A remote file of so many bytes, open for reading as other libraries expect it."""

    def __init__(self, path: str, size: int, read_ahead_bytes: int) -> None:
        cache_type = "readahead" if read_ahead_bytes else "none"
        block_size: Any = read_ahead_bytes or "default"
        super().__init__(system_of(path)[0], path, "rb", block_size, cache_type=cache_type, size=size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self.size)  # it may ask for more

        def read(begin: int) -> bytes:
            size = min(_PART_BYTES, end - begin)
            part = read_part(self.path, begin, size)
            if len(part) < size:
                raise OSError(errno.EIO, f"It has ended before its {self.size} bytes", self.path)
            return part

        return b"".join(each_of(read, range(start, end, _PART_BYTES)))


def make_remote_folder(path: str) -> None:
    """Makes a folder and those above it, but no bucket."""
    system, there = system_of(path)
    if not isinstance(system, TensorFlowFiles):
        system.info(there.partition("/")[0] or "/")  # fsspec would make a bucket up
    system.makedirs(there, exist_ok=True)


@functools.cache
def _is_known_to_tensorflow(scheme: str) -> bool:
    if scheme not in tf.io.gfile.get_registered_schemes():
        load_tensorflow_io()
    return scheme in tf.io.gfile.get_registered_schemes()


@functools.cache
def load_tensorflow_io() -> None:
    """Loads tensorflow-io, whose file systems announce themselves to TensorFlow, where it is installed and loads.

    At the end of a process the destructors of its last version (0.37.1) log through what others have taken down ("pure
    virtual method called", tensorflow/io issue 1912). That is SIGABRT, and a scheduler takes a run that has done all
    its work for a failed one. So such a process ends right after Python has, its exit handlers and buffers included.
    """
    if importlib.util.find_spec("tensorflow_io") is None:
        return
    try:
        importlib.import_module("tensorflow_io")
    except Exception as error:  # a library for another TensorFlow fails in as many ways as there are symbols
        logging.getLogger(__name__).warning("tensorflow-io is installed, but does not load: %s", error)
        return
    libc = ctypes.CDLL(None)
    # Handlers run in reverse order, and get the exit code as their first argument, as libc's own `_exit` expects it.
    # They can't be Python code, which is gone by then.
    for handler in (libc._exit, libc.fcloseall):
        libc.on_exit(ctypes.cast(handler, ctypes.c_void_p), None)


def _with_slash(path: str) -> str:
    # A bucket by itself is no path to S3 unless a slash stands behind it.
    return path if "/" in path.partition("://")[2] else f"{path}/"


class TensorFlowFiles(fsspec.AbstractFileSystem):
    """`tf.io.gfile`; paths keep their scheme."""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return path

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        found = tf.io.gfile.stat(_with_slash(path))
        kind = "directory" if found.is_directory else "file"
        return {"name": path, "size": found.length, "type": kind, "changed_ns": found.mtime_nsec}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = path.rstrip("/")
        try:
            names = tf.io.gfile.listdir(_with_slash(path))
        except tf.errors.OpError:
            # TensorFlow takes whatever hinders it for a folder that is not there. This raises what it was.
            if self.info(path)["type"] == "directory":
                raise
            raise NotADirectoryError(errno.ENOTDIR, "It is a file", path) from None
        # Some stores tell folders by a slash behind them.
        is_folder = {name.strip("/"): True if name.endswith("/") else None for name in names}
        paths = [f"{path}/{name}" for name in is_folder if name]
        if not detail:
            return paths
        # What it does not tell costs a request each. One name of each ending is asked about, and if it is a file's, the
        # others are, too: there are many of a kind.
        by_ending: dict[str, list[str]] = {}
        for one in paths:
            if is_folder[one.rpartition("/")[2]] is None:
                by_ending.setdefault(os.path.splitext(one)[1] or one, []).append(one)
        samples = [some[0] for some in by_ending.values()]
        folders = {one for one, answer in zip(samples, each_of(self.isdir, samples), strict=True) if answer}
        others = [one for some in by_ending.values() if some[0] in folders for one in some[1:]]
        folders |= {one for one, answer in zip(others, each_of(self.isdir, others), strict=True) if answer}
        folders |= {f"{path}/{name}" for name, answer in is_folder.items() if answer}
        return [{"name": one, "size": None, "type": "directory" if one in folders else "file"} for one in paths]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with tf.io.gfile.GFile(path, "rb") as file:
            try:
                file.seek(start or 0)
                return file.read(-1 if end is None else end - (start or 0))
            except tf.errors.OutOfRangeError:  # it begins behind the end
                return b""

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        # One call, which Ctrl-C does not break off: a file that is closed half written is kept half by the store.
        tf.io.gfile.copy(lpath, rpath, overwrite=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        tf.io.gfile.makedirs(path)

    def rm_file(self, path: str) -> None:
        tf.io.gfile.remove(path)

    def rmdir(self, path: str) -> None:
        tf.io.gfile.rmtree(path)
