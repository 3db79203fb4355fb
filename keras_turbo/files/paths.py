"""Paths as text: of this machine, or with a scheme such as `s3://`. Nothing here opens anything."""

from __future__ import annotations

import errno
import os
import pathlib
import re
from typing import Any

# Two letters at least: one is a drive of Windows. A `Path` has dropped one of the slashes.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(.*)", re.DOTALL)


def resolved(path: Any, argument: str, *, writes: bool = False) -> str:
    """A path as text: with its scheme, if it has one that can be used here, else as it was given.

    Args:
        path: text or a `Path`. `file://` is understood; a `Path` may have lost one of the slashes behind a scheme.
        argument: what the caller calls it, for the error.
        writes: whether it is to be written to.

    Raises:
        ValueError: it is no path, or nothing installed reads its scheme; the text says what to install.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{argument} must be text or a Path. Received: {path!r} of type {type(path).__name__}.")
    text = os.fsdecode(path)
    if "\0" in text:
        raise ValueError(f"{argument} must be a path. Received: {text!r}.")
    match = _SCHEME.fullmatch(text)
    if match is None:
        return text
    scheme, second_slash, rest = match.groups()
    if not second_slash and isinstance(path, str):
        raise ValueError(
            f"{argument} must be a local path or one with a scheme. Received: {text!r}. Meant: {scheme}://{rest}?"
        )
    scheme = scheme.lower()
    if scheme == "file":
        # file:///folder and file://localhost/folder
        _, slash, local = rest.partition("/") if second_slash else ("", "/", rest)
        if not slash:
            raise ValueError(f"A file:// path must be absolute, as in file:///folder. Received: {text!r}.")
        return f"/{local}"
    text = f"{scheme}://{rest}"
    if writes and scheme in ("http", "https"):
        raise ValueError(f"{text!r} can't be written: nothing can be kept behind {scheme}://.")
    from keras_turbo.files.remote import require_system

    require_system(text)
    return text


def scheme_of(path: str) -> str:
    """The scheme of a path that was resolved; empty for one of this machine."""
    match = _SCHEME.fullmatch(path)
    return match[1] if match is not None and match[2] else ""


def is_remote(path: str) -> bool:
    """Whether a path that was resolved has a scheme."""
    return bool(scheme_of(path))


def absolute(path: str) -> str:
    """The path from the root of its file system."""
    return path if is_remote(path) else os.path.abspath(path)


def join(folder: str, *names: str) -> str:
    """The path of something in a folder. For names that somebody else wrote there is `inside`."""
    return "/".join([folder.rstrip("/"), *names]) if is_remote(folder) else os.path.join(folder, *names)


def inside(folder: str, name: str) -> str:
    """As `join`, for a name that somebody else wrote: it must stay in the folder, also by way of links.

    Raises:
        PermissionError: it leads out of the folder.
    """
    path = join(folder, name)
    leads_out = name.startswith("/") or "\0" in name or ".." in name.split("/")
    if not leads_out and not is_remote(folder):
        root = os.path.realpath(folder)
        leads_out = os.path.commonpath([root, os.path.realpath(path)]) != root
    if leads_out:
        raise PermissionError(errno.EACCES, f"{name!r} leads out of the folder, and is not followed", folder)
    return path


def parent_of(path: str) -> str:
    """The folder of a file."""
    return path.rstrip("/").rpartition("/")[0] if is_remote(path) else os.path.dirname(path)


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2] if is_remote(path) else os.path.basename(path)


def relative_to(path: str, folder: str) -> str:
    """The path of something in a folder, from there."""
    return path[len(folder.rstrip("/")) + 1 :] if is_remote(path) else os.path.relpath(path, folder)


def default_cache_dir() -> pathlib.Path:
    """The user's cache folder for keras_turbo: `$XDG_CACHE_HOME/keras_turbo`, by default `~/.cache/keras_turbo`.

    Raises:
        FileNotFoundError: the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache").absolute() / "keras_turbo"
    except RuntimeError as error:
        message = "There is no home folder to keep a cache in. Give `cache_dir`, or set XDG_CACHE_HOME"
        raise FileNotFoundError(errno.ENOENT, message) from error
