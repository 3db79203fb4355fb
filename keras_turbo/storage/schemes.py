"""What a path stands for: something on this machine, or behind a scheme that TensorFlow or tensorflow-io knows."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
from typing import Any

from keras_turbo.storage.tensorflow_io_exit import end_without_native_destructors

_logger = logging.getLogger(__name__)

# Two letters at least: one is a drive of Windows. A `Path` has dropped one of the slashes.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(.*)", re.DOTALL)

# Schemes that tensorflow-io brings.
_TENSORFLOW_IO_SCHEMES = ("s3", "az", "oss", "hdfs", "har", "viewfs", "http", "https")
_READ_ONLY_SCHEMES = ("http", "https")

INSTALLATION = 'pip install "tensorflow>=2.17,<2.18" and pip install "keras_turbo[io]"'
"""What brings tensorflow-io."""


def resolved(path: Any, argument: str, *, writes: bool = False) -> str:
    """A path as text: with its scheme, if it has one that can be used here, else as it was given. Nothing is opened.

    Args:
        path: text or a `Path`. `file://` is understood; a `Path` may have lost one of the slashes behind a scheme.
        argument: what the caller calls it, for the error.
        writes: whether it is to be written to.

    Raises:
        ValueError: it is no path, or no installed file system has its scheme; the text says what brings it.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{argument} must be text or a Path. Received: {path!r} of type {type(path).__name__}.")
    text = os.fspath(path)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
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
    check_scheme(scheme, text, writes=writes)
    return text


def is_remote(path: str) -> bool:
    """Whether a path that was resolved is one behind a scheme."""
    match = _SCHEME.fullmatch(path)
    return match is not None and bool(match[2])


def check_scheme(scheme: str, path: str, *, writes: bool) -> None:
    """Refuses a scheme that nothing installed here can read (or write), and says what brings it.

    Raises:
        ValueError: no installed file system has the scheme.
    """
    if writes and scheme in _READ_ONLY_SCHEMES:
        raise ValueError(f"{path!r} can't be written: nothing can be kept behind {scheme}://.")
    if scheme in _TENSORFLOW_IO_SCHEMES and has_tensorflow_io():
        # Its file systems announce themselves when it is imported.
        importlib.import_module("tensorflow_io")
        if scheme == "s3":
            end_without_native_destructors()
    if scheme in registered_schemes():
        return
    import tensorflow as tf

    known = ", ".join(sorted(f"{one}://" for one in registered_schemes() if one))
    if scheme in _TENSORFLOW_IO_SCHEMES:
        remedy = (
            f"{scheme}:// needs tensorflow-io, which loads on TensorFlow 2.17 only (this is {tf.__version__}): "
            f"{INSTALLATION}."
        )
    else:
        remedy = "A path without a scheme is a local one."
    raise ValueError(f"No file system is installed for {path!r}; there are {known}. {remedy}")


def has_tensorflow_io() -> bool:
    """Whether tensorflow-io is installed; that it loads is another matter."""
    return importlib.util.find_spec("tensorflow_io") is not None


def load_file_systems() -> None:
    """Loads the file systems of tensorflow-io, where that is installed and loads, for graphs of other processes.

    There no path is looked at before TensorFlow opens it. It takes a tenth of a second and 14 MB.
    """
    if not has_tensorflow_io():
        return
    try:
        importlib.import_module("tensorflow_io")
    except Exception as error:  # a library for another TensorFlow fails in as many ways as there are symbols
        _logger.warning("tensorflow-io is installed, but does not load (%s): s3:// and its like can't be read.", error)
        return
    end_without_native_destructors()


def registered_schemes() -> list[str]:
    """The schemes that TensorFlow has file systems for, by now."""
    import tensorflow as tf

    return tf.io.gfile.get_registered_schemes()
