"""One TFRecord file, written whole or not at all, and one writer at a time in a folder."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def shard_name(index: int, number: int) -> str:
    """The name of a shard; sorted by name they are in order."""
    return f"{index:05d}-of-{number:05d}.tfrecord"


@contextlib.contextmanager
def only_writer(folder: pathlib.Path) -> Iterator[None]:
    """A context in which no other process writes by way of this folder, which is made if missing.

    The lock goes with the process, however that ends.

    Raises:
        FileExistsError: another process does.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"Another process is writing into {str(folder.parent)!r}. Wait for it, or give another folder."
            ) from None
        yield


def open_writer(path: pathlib.Path, compression: str) -> tf.io.TFRecordWriter:
    """A writer of records into a new file."""
    options: Any = compression
    return tf.io.TFRecordWriter(os.fspath(path), options)


def put_in_place(temporary: pathlib.Path, final: pathlib.Path) -> None:
    """Gives a file that is closed its name, once its bytes are on the disk."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, final)


def remove_folder(folder: pathlib.Path) -> None:
    """Removes a folder of ours with what is in it."""
    shutil.rmtree(folder, ignore_errors=True)
