"""Where checkpoints are kept: a local folder, or one behind a scheme."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Union

from keras_turbo.checkpoint.local_files import LocalFiles
from keras_turbo.files import is_remote, resolved

if TYPE_CHECKING:
    from keras_turbo.checkpoint.remote_files import RemoteFiles

Directory = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Location:
    """A folder, and how to work in it.

    Args:
        files: the file system.
        path: absolute, or with its scheme.
    """

    files: LocalFiles | RemoteFiles
    path: str

    def child(self, *names: str) -> str:
        """The path of something in the folder."""
        return self.files.join(self.path, *names)

    def public(self, path: str) -> Path | str:
        """A path as users get it: a `Path` where that can stand for it."""
        return Path(path) if self.files.renames else path


def locate(directory: Directory) -> Location:
    """Finds out what a path stands for. Nothing is made or read.

    Args:
        directory: text or a `Path`: a local folder (`~` is the home folder, `file://` is understood), or a path with a
            scheme that TensorFlow or tensorflow-io knows, as `s3://bucket/run`.

    Raises:
        ValueError: it is empty, or no installed file system has its scheme; the text says what brings it.
    """
    path = resolved(directory, "directory", writes=True)
    if not path.strip():
        raise ValueError(f"directory must be the path of a folder. Received: {path!r}.")
    if not is_remote(path):
        return Location(LocalFiles(), os.path.abspath(os.path.expanduser(path)))
    if not path.partition("://")[2].strip("/"):
        raise ValueError(f"directory must name a bucket or folder behind its scheme. Received: {path!r}.")
    from keras_turbo.checkpoint.remote_files import RemoteFiles

    return Location(RemoteFiles(), path.rstrip("/"))
