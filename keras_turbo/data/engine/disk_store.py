"""The example store's folder on disk: `.npy` arrays, checksums of their rows, and what they were made from.

    CACHE_DIR/<recipe>/<content>/
        manifest.json      format version, recipe, files with sizes and times, number of examples, shapes and types
        0.npy, 1.npy, ...  one array for each tensor of an example, (num_examples, ...)
        sums.npy           int64, (num_examples,): CRC-32 of each example's bytes; -1 for those that are not there

`<recipe>` is a digest of how examples are made (folder, options, map_fn), `<content>` one of what they are made from
(each file's path, size and time of change). A changed source therefore never meets its old pixels: it gets a new
folder, and the old one is removed. A row that does not match its checksum is made anew. Nothing here needs pickle to be
read.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import shutil
import socket
import tempfile
import time
import weakref
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo import files
from keras_turbo.data.engine.elements import Elements
from keras_turbo.data.engine.store import LARGEST_SHARE_OF_FREE, ExampleStore

FORMAT_VERSION = 2

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

    def __init__(self, elements: Elements, folder: pathlib.Path) -> None:
        leaves: list[np.ndarray] = []
        may_write = True
        for index, (_, dtype) in enumerate(elements.arrays):
            path = folder / f"{index}.npy"
            try:
                array = np.lib.format.open_memmap(path, mode="r+")
            except PermissionError:
                # Somebody else's store: private pages, so that a write can't reach it.
                array = np.lib.format.open_memmap(path, mode="c")
                may_write = False
            leaves.append(array.view(dtype))
        self._sums = _saved_sums(folder, len(leaves[0]))
        filled = self._sums >= 0
        #: Rows that an earlier process has written, and that have not been read in this one.
        self._unread = filled.copy()
        super().__init__(leaves, filled)
        self.folder = folder
        self._last_save = time.monotonic()
        self._save = functools.partial(_save_sums, folder, leaves, self._sums, _inodes(folder, len(leaves)))
        if not may_write:
            self._save = lambda: None
        # Runs when the store is dropped, and at the interpreter's exit.
        weakref.finalize(self, self._save)

    @property
    def num_ready(self) -> int:
        return int(np.count_nonzero(self._filled & ~self._unread))

    @property
    def is_complete(self) -> bool:
        """Whether all examples are there, and are known to be whole."""
        return not self._unread.any() and super().is_complete

    def has(self, positions: np.ndarray) -> np.ndarray:
        """As `ExampleStore.has`; rows that are read for the first time are compared with their checksums."""
        for position in positions[self._unread[positions]].tolist():
            if self._sum_of(position) != self._sums[position]:
                self._filled[position] = False
                self._sums[position] = -1
            self._unread[position] = False
        return super().has(positions)

    def mark(self, positions: np.ndarray) -> None:
        for position in positions.tolist():
            self._sums[position] = self._sum_of(position)
        super().mark(positions)
        if time.monotonic() - self._last_save > _SAVE_INTERVAL_SECONDS:
            self.save()

    def save(self) -> None:
        self._last_save = time.monotonic()
        self._save()

    def _sum_of(self, position: int) -> int:
        checksum = 0
        for leaf in self._leaves:
            checksum = zlib.crc32(leaf[position].tobytes(), checksum)
        return checksum


def _saved_sums(folder: pathlib.Path, num_examples: int) -> np.ndarray:
    """The checksums of the rows that are there; -1 for the others."""
    try:
        sums = np.load(folder / "sums.npy", allow_pickle=False)
    except (OSError, ValueError, EOFError):  # nothing is filled yet
        return np.full(num_examples, -1, np.int64)
    return sums.astype(np.int64)


def _inodes(folder: pathlib.Path, num_arrays: int) -> list[tuple[int, int]]:
    """What tells a store's arrays from others at the same place; empty if they are gone."""
    try:
        found = [os.stat(folder / f"{index}.npy") for index in range(num_arrays)]
    except OSError:
        return []
    return [(status.st_dev, status.st_ino) for status in found]


def _save_sums(folder: pathlib.Path, leaves: list[np.ndarray], sums: np.ndarray, inodes: list[tuple[int, int]]) -> None:
    """Saves which rows are filled, after the rows themselves: a mark on disk vouches for data on disk."""
    if not inodes or _inodes(folder, len(leaves)) != inodes:
        return  # the folder was removed, or another process has built the store anew: it has not these rows
    saved = _saved_sums(folder, len(sums))
    # Another process may have filled other rows.
    merged = np.where(sums >= 0, sums, saved)
    if np.array_equal(merged, saved):
        return
    # The folder may have been removed (its source changed), or cannot be written. The marks are a convenience for a
    # later process; this one has its own in memory.
    with contextlib.suppress(OSError):
        for leaf in leaves:
            if isinstance(leaf, np.memmap):
                leaf.flush()
        with files.writing(str(folder / "sums.npy")) as file:
            np.save(file, merged)


def open_disk_store(
    elements: Elements, num_examples: int, cache_dir: pathlib.Path, recipe: Any, content: Any
) -> DiskStore:
    """Opens the store of some examples, or makes an empty one.

    Args:
        elements: the form of an example, of fixed shape.
        num_examples: number of rows.
        cache_dir: folder under which stores are kept; made if missing.
        recipe: JSON-able description of how examples are made.
        content: JSON-able description of what they are made from. A store of the same recipe with other content is
            stale, and removed.

    Raises:
        OSError: the folder can't be made or written, or the disk has not that much room.
    """
    leaves = [[list(leaf.shape), leaf.dtype.name] for leaf in elements.leaves]
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
        if not _is_whole(folder, elements, num_examples):
            if was_there:
                shutil.rmtree(folder, ignore_errors=True)
            _make_folder(folder, elements, num_examples, manifest)
        try:
            return DiskStore(elements, folder)
        except FileNotFoundError:  # another process that began at the same moment has just replaced it
            continue
    raise FileNotFoundError(f"The store {folder} was removed by another process {_OPENING_TRIES} times in a row.")


def private_disk_store(elements: Elements, num_examples: int, cache_dir: pathlib.Path) -> DiskStore:
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
        _make_folder(parent / "store", elements, num_examples, {"num_examples": num_examples})
        store = DiskStore(elements, parent / "store")
    except BaseException:
        shutil.rmtree(parent, ignore_errors=True)
        raise
    weakref.finalize(store, shutil.rmtree, parent, ignore_errors=True)
    return store


def _make_folder(folder: pathlib.Path, elements: Elements, num_examples: int, manifest: dict) -> None:
    """Makes an empty store."""
    try:
        with files.writing_folder(str(folder)) as making:
            for index, (shape, dtype) in enumerate(elements.arrays):
                path = pathlib.Path(making) / f"{index}.npy"
                np.lib.format.open_memmap(path, mode="w+", dtype=_in_files(dtype), shape=(num_examples, *shape))
                _reserve(path)
            (pathlib.Path(making) / "manifest.json").write_text(json.dumps(manifest, indent=1))
    except OSError:
        # Another process was faster, and what it made is the same.
        if not _is_whole(folder, elements, num_examples):
            raise


def _reserve(path: pathlib.Path) -> None:
    """Takes the disk space now: a full disk must be an error here, not a bus error in the middle of an epoch."""
    if not hasattr(os, "posix_fallocate"):  # Windows reserves it by itself
        return
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _is_whole(folder: pathlib.Path, elements: Elements, num_examples: int) -> bool:
    """Whether the folder has a store that these examples fit."""
    try:
        json.loads((folder / "manifest.json").read_text())
        for index, (shape, dtype) in enumerate(elements.arrays):
            array = np.lib.format.open_memmap(folder / f"{index}.npy", mode="r")
            if array.shape != (num_examples, *shape) or array.dtype != _in_files(dtype):
                return False
        sums = folder / "sums.npy"
        return not sums.exists() or np.load(sums, allow_pickle=False).shape == (num_examples,)
    except (OSError, ValueError, EOFError):
        return False


def _in_files(dtype: np.dtype) -> np.dtype:
    """The type under which numbers are kept: NumPy's files know no bfloat16, so its bits are."""
    return np.dtype(np.uint16) if dtype == tf.bfloat16.as_numpy_dtype else dtype
