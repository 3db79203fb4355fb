"""Files, each of which is one example."""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.fingerprint import function_fingerprint
from keras_turbo.data.labels import encode_labels, labels_of_paths
from keras_turbo.data.python_function import PythonFunction
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.mapped_rows import MappedRowsSource
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.files import is_remote, resolved


class FileSource(Source):
    """One example for each file.

    Args:
        paths: the files, as errors and the user call them. They are read where they are now, whatever folder this
            process works in later.
        load_path: graph code that makes an example's `x` (or a whole element) of an absolute path: `(path, seed) -> x`.
        labels: array with a row for each path, put behind x as `y`; None for x alone.
        class_numbers: the same as class numbers, where there are classes and `labels` has them in another form.
        recipe: gives a JSON-able description of `load_path`, or None where it can't be told.
        is_random: whether `load_path` uses its seed.
        loading_is_called: the name of what `load_path` does, in a report.
        load_remotely: as `load_path`, by TensorFlow's operations alone; None where that is so anyway.
    """

    can_fail = True

    def __init__(
        self,
        paths: Sequence[str],
        load_path: Callable[[tf.Tensor, tf.Tensor], Any],
        labels: np.ndarray | None,
        class_numbers: np.ndarray | None,
        recipe: Callable[[], Any],
        is_random: bool = False,
        loading_is_called: str = "load",
        load_remotely: Callable[[tf.Tensor, tf.Tensor], Any] | None = None,
    ) -> None:
        self.paths = list(paths)
        self._labels = labels
        self._class_numbers = class_numbers
        self.is_random = is_random
        self.loading_is_called = loading_is_called
        # A function of its own, since it is called in several graphs: decoding is traced once (half a second).
        self._load_path = tf.function(load_path)
        self._load_path_remotely = self._load_path if load_remotely is None else tf.function(load_remotely)
        self._recipe = recipe
        with tf.device("CPU:0"):
            # As bytes, since a name need not be text; from the root, since this process may change its folder, and
            # others, which may read the files too, work in another one.
            absolute = [os.fsencode(storage.absolute(path)) for path in self.paths]
            self._path_tensor = tf.constant(absolute, tf.string)
            self._label_tensor = None if labels is None else tf.convert_to_tensor(labels)

    @property
    def num_examples(self) -> int:
        return len(self.paths)

    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        return self._with_label(self._load_path(tf.gather(self._path_tensor, position), seed), position)

    def load_remotely(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        path = tf.gather(self._path_tensor, position)
        return self._with_label(self._load_path_remotely(path, seed), position)

    def _with_label(self, example: Any, position: tf.Tensor) -> Any:
        if self._label_tensor is None:
            return example
        return example, tf.gather(self._label_tensor, position)

    def read(self, position: tf.Tensor) -> tf.Tensor:
        """Graph code: reads one file and gives its length, for measuring."""
        return tf.strings.length(tf.io.read_file(tf.gather(self._path_tensor, position)))

    def describe(self, position: int) -> str:
        return self.paths[position]

    def labels_at(self, positions: np.ndarray) -> np.ndarray | None:
        labels = self._labels if self._class_numbers is None else self._class_numbers
        return None if labels is None else labels[positions]

    def identity(self) -> Identity | None:
        recipe = self._recipe()
        if recipe is None:
            return None
        content = files_content(self.paths)
        labels = None if self._labels is None else self._labels.tolist()
        return Identity(recipe=recipe, content={"files": content, "labels": labels})


def files_source(
    pattern: str | os.PathLike | Sequence[str | os.PathLike],
    load_fn: Callable[[tf.Tensor], Any],
    labels: Any,
    label_mode: str,
    class_names: Sequence[str] | None,
    settings: Settings,
) -> tuple[FileSource | MappedRowsSource, list[str] | None]:
    """The source of `FastDataset.from_files`, and its class names."""
    if not callable(load_fn):
        raise TypeError(f"`load_fn` must be a function of a path. Received: {load_fn!r}.")
    paths = find_files(pattern)
    encoded = numbers = names = None
    if labels is not None:
        encoded, numbers, names = encode_labels(labels_of_paths(labels, paths), label_mode, class_names)
    if isinstance(load_fn, PythonFunction):
        absolute = [storage.absolute(path) for path in paths]
        rows: tuple[Any, list[np.ndarray]] = (("leaf",), [np.asarray(absolute, object)])
        if encoded is not None:
            rows = (("tuple", (("leaf",), ("leaf",))), [*rows[1], encoded])
        known = encoded if numbers is None else numbers
        return MappedRowsSource(rows, load_fn, "load_fn", settings, paths=paths, labels=known), names

    def recipe() -> Any:
        digest = function_fingerprint(load_fn, [tf.TensorSpec([], tf.string)])
        patterns = [pattern] if isinstance(pattern, (str, os.PathLike)) else pattern
        where = [storage.absolute(resolved(one, "pattern")) for one in patterns]
        return digest and {"kind": "files", "where": where, "load_fn": digest, "label_mode": label_mode}

    return FileSource(paths, lambda path, seed: load_fn(path), encoded, numbers, recipe), names


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
