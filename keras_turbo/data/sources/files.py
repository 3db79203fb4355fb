"""Files, each of which is one example."""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.fingerprint import function_fingerprint
from keras_turbo.data.functions import PythonFunction, RowFunction
from keras_turbo.data.labels import encode_labels, labels_of_paths
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.python_code import RowsSource
from keras_turbo.data.sources.source import ExampleSource, Identity, Source
from keras_turbo.files import is_remote, resolved


class Decoder(Protocol):
    """Makes an array of a file's bytes."""

    #: Of the array; None for sizes that are the file's own.
    shape: tuple[int | None, ...]
    #: Of its numbers.
    dtype: np.dtype
    #: Whether it uses its seed.
    is_random: bool

    def decode(self, data: bytes, seed: np.ndarray | None, out: np.ndarray | None) -> np.ndarray:
        """Decodes a file, into `out` if it is given."""
        ...


class Files:
    """The paths and the labels of examples that are files.

    Args:
        paths: the files, as errors and the user call them. They are read where they are now, whatever folder this
            process works in later.
        labels: array with a row for each path, put behind x as `y`; None for x alone.
        class_numbers: the same as class numbers, where there are classes and `labels` has them in another form.
    """

    def __init__(self, paths: Sequence[str], labels: np.ndarray | None, class_numbers: np.ndarray | None) -> None:
        self.paths = list(paths)
        self.absolute = [storage.absolute(path) for path in self.paths]
        self.labels = labels if labels is None or labels.dtype.kind not in "US" else labels.astype(object)
        self._class_numbers = class_numbers

    def read(self, position: int) -> bytes:
        """The bytes of a file."""
        return storage.read_bytes(self.absolute[position])

    def labels_at(self, positions: np.ndarray) -> np.ndarray | None:
        """The labels of files at some positions; class numbers where there are classes."""
        labels = self.labels if self._class_numbers is None else self._class_numbers
        return None if labels is None else labels[positions]

    def with_label(self, spec: Any) -> Any:
        """The structure of `tf.TensorSpec`s of an example, by that of x."""
        if self.labels is None:
            return spec
        dtype = tf.string if self.labels.dtype == object else tf.as_dtype(self.labels.dtype)
        return spec, tf.TensorSpec(self.labels.shape[1:], dtype)

    def content(self) -> Any:
        """What is in the files, for an `Identity`."""
        labels = None if self.labels is None else self.labels.tolist()
        return {"files": files_content(self.paths), "labels": labels}


class DecodedFiles(ExampleSource):
    """Files that a decoder makes arrays of.

    Args:
        files: which.
        decoder: of one file.
        recipe: JSON-able description of how it is decoded.
    """

    can_fail = True
    loading_is_called = "decode"

    def __init__(self, files: Files, decoder: Decoder, recipe: Any) -> None:
        self.files = files
        self.paths = files.paths
        self.read = files.read
        self.is_random = decoder.is_random
        self.elements = Elements(files.with_label(tf.TensorSpec(decoder.shape, tf.as_dtype(decoder.dtype))))
        self.decoder = decoder
        self._recipe = recipe

    def __len__(self) -> int:
        return len(self.paths)

    def load_one(self, position: int, seed: np.ndarray | None, out: list[np.ndarray] | None) -> list[np.ndarray]:
        value = self.decoder.decode(self.read(position), seed, None if out is None else out[0])
        if self.files.labels is None:
            return [value]
        label = self.files.labels[position]
        if out is not None:
            out[1][...] = label
        return [value, label]

    def name(self, position: int) -> str:
        return self.paths[position]

    def labels_at(self, positions: np.ndarray) -> np.ndarray | None:
        return self.files.labels_at(positions)

    def identity(self) -> Identity:
        return Identity(self._recipe, self.files.content())


class TracedFiles(Source):
    """Files that a function of the path makes examples of, traced by TensorFlow.

    Args:
        files: which.
        load_fn: takes the path (string tensor), and returns x or the whole element.
        recipe: JSON-able description of the files.
    """

    can_fail = True

    def __init__(self, files: Files, load_fn: Callable[[tf.Tensor], Any], recipe: Any) -> None:
        self.files = files
        self.paths = files.paths
        self.read = files.read
        self._load_fn = RowFunction(lambda path, _: load_fn(path), Elements(tf.TensorSpec([], tf.string)), "load_fn")
        self.elements = Elements(files.with_label(self._load_fn.elements.spec))
        #: The stateful random operations in `load_fn`.
        self.random_ops = self._load_fn.random_ops
        # As bytes, since a name need not be text.
        self._encoded = np.array([os.fsencode(path) for path in files.absolute], object)
        self._recipe = recipe

    def __len__(self) -> int:
        return len(self.paths)

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column], dict[int, Exception]]:
        columns, failures = self._load_fn([self._encoded[positions]], np.zeros((len(positions), 2), np.int64))
        if self.files.labels is not None:
            columns = [*columns, self.files.labels[positions]]
        return columns, failures

    def name(self, position: int) -> str:
        return self.paths[position]

    def labels_at(self, positions: np.ndarray) -> np.ndarray | None:
        return self.files.labels_at(positions)

    def identity(self) -> Identity | None:
        digest = function_fingerprint(self._load_fn, is_loader=True)
        return None if digest is None else Identity({**self._recipe, "load_fn": digest}, self.files.content())


def files_source(
    pattern: str | os.PathLike | Sequence[str | os.PathLike],
    load_fn: Callable[[tf.Tensor], Any],
    labels: Any,
    label_mode: str,
    class_names: Sequence[str] | None,
    settings: Settings,
) -> tuple[Source, list[str] | None]:
    """The source of `FastDataset.from_files`, and its class names."""
    if not callable(load_fn):
        raise TypeError(f"`load_fn` must be a function of a path. Received: {load_fn!r}.")
    paths = find_files(pattern)
    encoded = numbers = names = None
    if labels is not None:
        encoded, numbers, names = encode_labels(labels_of_paths(labels, paths), label_mode, class_names)
    files = Files(paths, encoded, numbers)
    if isinstance(load_fn, PythonFunction):
        return _python_files(files, load_fn, settings), names
    patterns = [pattern] if isinstance(pattern, (str, os.PathLike)) else pattern
    where = [storage.absolute(resolved(one, "pattern")) for one in patterns]
    return TracedFiles(files, load_fn, {"kind": "files", "where": where, "label_mode": label_mode}), names


def _python_files(files: Files, load_fn: PythonFunction, settings: Settings) -> Source:
    paths = np.array(files.absolute, object)
    parts = paths if files.labels is None else (paths, files.labels)
    everything = np.arange(len(paths))
    return RowsSource(parts, load_fn, "load_fn", settings, files.paths, files.labels_at(everything))


def files_content(paths: Sequence[str]) -> list[list[Any]]:
    """What is in some files, for an `Identity`: path, size and time of change of each."""
    statuses = statuses_of(paths)
    return [[storage.absolute(path), *status] for path, status in zip(paths, statuses, strict=True)]


def statuses_of(paths: Sequence[str]) -> list[storage.Status]:
    """Sizes and times of change of many files; of one that is gone, both are -1: reading it says so."""

    def status(path: str) -> storage.Status:
        try:
            return storage.status_of(path)
        except OSError:
            return storage.Status(-1, -1)

    return storage.each_path(status, paths)


def find_files(pattern: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    """The files that a pattern matches, sorted.

    Args:
        pattern: a glob pattern (`**` crosses folders), or a list of patterns or paths, on this machine or behind a
            scheme.

    Raises:
        ValueError: nothing matches one of the patterns, or its scheme has no file system.
        OSError: the store behind a scheme can't be asked.
    """
    patterns = [pattern] if isinstance(pattern, (str, os.PathLike)) else list(pattern)
    if not patterns:
        raise ValueError(
            "`pattern` is an empty list. Give a glob pattern such as 'photos/**/*.jpg', or a list of paths."
        )
    found: set[str] = set()
    for one in patterns:
        text = resolved(one, "pattern")
        # A path that exists is itself, even if it has a bracket in its name.
        if storage.is_file(text):
            matches = [text]
        else:
            matches = storage.find(text)
        if not matches:
            if is_remote(text):
                storage.require_reachable(text)
            raise ValueError(
                f"No file matches the pattern {text!r}{_nearest_folder(text)}. "
                "Check the path; `**` is needed to match files in folders below."
            )
        found.update(matches)
    return sorted(found)


def _nearest_folder(pattern: str) -> str:
    """Where a pattern stops to exist, for the error."""
    if is_remote(pattern):
        return ""
    folder = pathlib.Path(pattern)
    while glob.has_magic(str(folder)) or not folder.exists():
        if folder == folder.parent:
            return ""
        folder = folder.parent
    return f" (the folder {str(folder)!r} exists)"
