"""The example store's folder on disk: `.npy` arrays, which of their rows are filled, and what they were made from.

    CACHE_DIR/<recipe>/<content>/
        manifest.json      format version, recipe, files with sizes and times, number of examples, shapes and types
        0.npy, 1.npy, ...  one array for each tensor of an example, (num_examples, ...)
        filled.npy         bool, (num_examples,)

`<recipe>` is a digest of how examples are made (folder, options, map_fn), `<content>` one of what they are made from
(each file's path, size and time of change). A changed source therefore never meets its old pixels: it gets a new
folder, and the old one is removed. Nothing here needs pickle to be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import socket
import tempfile
import time
import weakref
from typing import Any

import numpy as np

from keras_turbo import files
from keras_turbo.data.example_store import LARGEST_SHARE_OF_FREE, ExampleStore, leaf_formats
from keras_turbo.data.shared_arrays import aligned_zeros

FORMAT_VERSION = 1

# How often the marks of filled rows are saved while a store is being filled: what a killed process decodes again.
_SAVE_INTERVAL_SECONDS = 30.0

# Two processes that find the same damaged store may each remove what the other has put in its place, once.
_OPENING_TRIES = 3


def digest(description: Any) -> str:
    """A short name for a description made of JSON's types: equal descriptions, equal names."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def fits_on_disk(num_bytes: int, cache_dir: pathlib.Path) -> bool:
    """Whether a store of that size leaves at least half of the free disk."""
    folder = cache_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return num_bytes <= LARGEST_SHARE_OF_FREE * shutil.disk_usage(folder).free
    except OSError:
        return False


class DiskStore(ExampleStore):
    """A store whose arrays are memory maps in a folder, which other processes may have open at the same time.

    Two processes that fill one store write the same bytes to the same rows, so neither can spoil the other's.
    """

    kind = "disk"

    def __init__(self, element_spec: Any, folder: pathlib.Path) -> None:
        formats = leaf_formats(element_spec)
        arrays = []
        self._may_write = True
        for index in range(len(formats)):
            path = folder / f"{index}.npy"
            try:
                arrays.append(np.lib.format.open_memmap(path, mode="r+"))
            except PermissionError:
                # Somebody else's store: private pages, so that a write can't reach it.
                arrays.append(np.lib.format.open_memmap(path, mode="c"))
                self._may_write = False
        filled = aligned_zeros((len(arrays[0]),), np.bool_)
        with contextlib.suppress(FileNotFoundError):  # nothing is filled yet
            filled[:] = np.load(folder / "filled.npy", allow_pickle=False)
        super().__init__(element_spec, arrays, filled)
        self.folder = folder
        self._last_save = time.monotonic()
        self._inodes = _inodes(folder, len(arrays))
        if self._may_write:
            # Runs when the store is dropped, and at the interpreter's exit.
            weakref.finalize(self, _save_marks, folder, arrays, filled, self._inodes)

    def write(self, positions: np.ndarray, *leaves: np.ndarray) -> None:
        super().write(positions, *leaves)
        if time.monotonic() - self._last_save > _SAVE_INTERVAL_SECONDS:
            self.save()

    def save(self) -> None:
        if self._may_write:
            _save_marks(self.folder, self._arrays, self._filled, self._inodes)
        self._last_save = time.monotonic()


def _inodes(folder: pathlib.Path, num_arrays: int) -> list[tuple[int, int]]:
    """What tells a store's arrays from others at the same place; empty if they are gone."""
    try:
        found = [os.stat(folder / f"{index}.npy") for index in range(num_arrays)]
    except OSError:
        return []
    return [(status.st_dev, status.st_ino) for status in found]


def _save_marks(
    folder: pathlib.Path, arrays: list[np.ndarray], filled: np.ndarray, inodes: list[tuple[int, int]]
) -> None:
    """Saves which rows are filled, after the rows themselves: a mark on disk vouches for data on disk."""
    if not inodes or _inodes(folder, len(arrays)) != inodes:
        return  # the folder was removed, or another process has built the store anew: it has not these rows
    marks_path = folder / "filled.npy"
    try:
        saved = np.load(marks_path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        saved = np.zeros_like(filled)
    # Another process may have filled other rows.
    merged = filled | saved
    if np.array_equal(merged, saved):
        return
    # The folder may have been removed (its source changed), or cannot be written. The marks are a convenience for a
    # later process; this one has its own in memory.
    with contextlib.suppress(OSError):
        for array in arrays:
            if isinstance(array, np.memmap):
                array.flush()
        with files.writing(str(marks_path)) as file:
            np.save(file, merged)


def open_disk_store(
    element_spec: Any, num_examples: int, cache_dir: pathlib.Path, recipe: Any, content: Any
) -> DiskStore:
    """Opens the store of some examples, or makes an empty one.

    Args:
        element_spec: structure of `tf.TensorSpec`s of one example, all shapes known.
        num_examples: number of rows.
        cache_dir: folder under which stores are kept; made if missing.
        recipe: JSON-able description of how examples are made.
        content: JSON-able description of what they are made from. A store of the same recipe with other content is
            stale, and removed.

    Raises:
        OSError: the folder can't be made or written, or the disk has not that much room.
    """
    leaves = [[list(leaf.shape), leaf.dtype.name] for leaf in leaf_formats(element_spec)]
    recipe = {"how": recipe, "leaves": leaves, "format_version": FORMAT_VERSION}
    family = cache_dir / digest(recipe)
    folder = family / digest([content, num_examples])
    family.mkdir(parents=True, exist_ok=True)
    files.remove_abandoned(str(family))
    for sibling in family.iterdir():
        if sibling != folder and not sibling.name.startswith("."):
            shutil.rmtree(sibling, ignore_errors=True)
    manifest = {"recipe": recipe, "content": content, "num_examples": num_examples}
    for _ in range(_OPENING_TRIES):
        was_there = folder.exists()  # asked first: what another process puts there meanwhile is whole
        if not _is_whole(folder, element_spec, num_examples):
            if was_there:
                shutil.rmtree(folder, ignore_errors=True)
            _make_folder(folder, element_spec, num_examples, manifest)
        try:
            return DiskStore(element_spec, folder)
        except FileNotFoundError:  # another process that began at the same moment has just replaced it
            continue
    raise FileNotFoundError(f"The store {folder} was removed by another process {_OPENING_TRIES} times in a row.")


def private_disk_store(element_spec: Any, num_examples: int, cache_dir: pathlib.Path) -> DiskStore:
    """An empty store that nobody else will open, for examples that can't be recognised again; it goes with its user.

    Raises:
        OSError: as `open_disk_store`.
    """
    import psutil

    family = cache_dir / "private"
    family.mkdir(parents=True, exist_ok=True)
    host = hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
    for leftover in family.glob(f"{host}-*"):
        pid = leftover.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(leftover, ignore_errors=True)
    parent = pathlib.Path(tempfile.mkdtemp(dir=family, prefix=f"{host}-{os.getpid()}-"))
    try:
        _make_folder(parent / "store", element_spec, num_examples, {"num_examples": num_examples})
        store = DiskStore(element_spec, parent / "store")
    except BaseException:
        shutil.rmtree(parent, ignore_errors=True)
        raise
    weakref.finalize(store, shutil.rmtree, parent, ignore_errors=True)
    return store


def _make_folder(folder: pathlib.Path, element_spec: Any, num_examples: int, manifest: dict) -> None:
    """Makes an empty store."""
    try:
        with files.writing_folder(str(folder)) as making:
            for index, leaf in enumerate(leaf_formats(element_spec)):
                path = pathlib.Path(making) / f"{index}.npy"
                np.lib.format.open_memmap(path, mode="w+", dtype=leaf.stored_dtype, shape=(num_examples, *leaf.shape))
                _reserve(path)
            (pathlib.Path(making) / "manifest.json").write_text(json.dumps(manifest, indent=1))
    except OSError:
        # Another process was faster, and what it made is the same.
        if not _is_whole(folder, element_spec, num_examples):
            raise


def _reserve(path: pathlib.Path) -> None:
    """Takes the disk space now: a full disk must be an error here, not a bus error in the middle of an epoch."""
    if not hasattr(os, "posix_fallocate"):  # Windows reserves it by itself
        return
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _is_whole(folder: pathlib.Path, element_spec: Any, num_examples: int) -> bool:
    """Whether the folder has a store that these examples fit."""
    try:
        json.loads((folder / "manifest.json").read_text())
        for index, leaf in enumerate(leaf_formats(element_spec)):
            array = np.lib.format.open_memmap(folder / f"{index}.npy", mode="r")
            if array.shape != (num_examples, *leaf.shape) or array.dtype != leaf.stored_dtype:
                return False
        marks = folder / "filled.npy"
        return not marks.exists() or np.load(marks, allow_pickle=False).shape == (num_examples,)
    except (OSError, ValueError, EOFError):
        return False
