"""One TFRecord file, and one writer at a time in a folder."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_turbo.data.disk_store import digest
from keras_turbo.files import default_cache_dir, is_remote, resolved


def shard_name(index: int, number: int) -> str:
    """The name of a shard; sorted by name they are in order."""
    return f"{index:05d}-of-{number:05d}.tfrecord"


def target_folder(out: str | os.PathLike) -> str:
    """The folder to write into, as text.

    Raises:
        ValueError: it names no bucket or folder, or no installed file system has its scheme.
    """
    folder = resolved(out, "out", writes=True)
    if not is_remote(folder):
        return str(pathlib.Path(folder))
    if not folder.partition("://")[2].strip("/"):
        raise ValueError(f"out must name a bucket or folder behind its scheme. Received: {folder!r}.")
    return folder.rstrip("/")


@contextlib.contextmanager
def working_folder(target: str, name: str) -> Iterator[pathlib.Path]:
    """A context in which this process alone writes into a folder, and has one of this machine for unfinished files.

    That is a folder of this name in the target, which stays; for a target behind a scheme one in the cache folder,
    which goes. The lock goes with the process, however that ends. Other machines that write behind a scheme it can't
    hinder.

    Args:
        target: what is written into; made if missing.
        name: of the folder.

    Raises:
        FileExistsError: another process writes into the target.
    """
    if not is_remote(target):
        with _only_writer(pathlib.Path(target) / name, target):
            yield pathlib.Path(target) / name
        return
    folder = default_cache_dir() / "writing" / digest(target)
    with _only_writer(folder, target):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _only_writer(folder: pathlib.Path, target: str) -> Iterator[None]:
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"Another process is writing into {target!r}. Wait for it, or give another folder."
            ) from None
        for leftover in folder.glob("*.tfrecord"):  # of a process that was killed
            leftover.unlink()
        yield


def open_writer(path: pathlib.Path, compression: str) -> tf.io.TFRecordWriter:
    """A writer of records into a new file."""
    options: Any = compression
    return tf.io.TFRecordWriter(os.fspath(path), options)
