"""Where checkpoints are kept: a local folder, or one behind a scheme."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Union

from keras_turbo.checkpoint.local_files import LocalFiles

if TYPE_CHECKING:
    from keras_turbo.checkpoint.remote_files import RemoteFiles

# Two letters at least: one is a drive of Windows. A `Path` has dropped one of the slashes.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(.*)", re.DOTALL)

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
    if not isinstance(directory, str | os.PathLike):
        raise ValueError(
            f"directory must be text or a Path. Received: {directory!r} of type {type(directory).__name__}."
        )
    text = os.fspath(directory)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if not text.strip() or "\0" in text:
        raise ValueError(f"directory must be the path of a folder. Received: {text!r}.")
    match = _SCHEME.fullmatch(text)
    if match is None:
        return Location(LocalFiles(), os.path.abspath(os.path.expanduser(text)))
    scheme, second_slash, rest = match.groups()
    if not second_slash and isinstance(directory, str):
        raise ValueError(
            f"directory must be a local path or one with a scheme. Received: {text!r}. Meant: {scheme}://{rest}?"
        )
    scheme = scheme.lower()
    if scheme == "file":
        # file:///folder and file://localhost/folder
        _, slash, path = rest.partition("/") if second_slash else ("", "/", rest)
        if not slash:
            raise ValueError(f"A file:// path must be absolute, as in file:///folder. Received: {text!r}.")
        return Location(LocalFiles(), os.path.abspath(f"/{path}"))
    from keras_turbo.checkpoint.remote_files import RemoteFiles, check_scheme

    path = f"{scheme}://{rest.rstrip('/')}"
    check_scheme(scheme, path)
    if not rest.strip("/"):
        raise ValueError(f"directory must name a bucket or folder behind {scheme}://. Received: {text!r}.")
    return Location(RemoteFiles(), path)
