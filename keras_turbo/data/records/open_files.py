"""Data files by their numbers: some kept open, others opened for each read, others behind a scheme."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_turbo import files as storage
from keras_turbo.files import is_remote

# Of the files that this process may still open, this share is kept open; all others are opened for each read.
_SHARE_OF_OPEN_FILES = 0.25

# Linux and macOS list a process' own open files there.
_OWN_OPEN_FILES = "/dev/fd"


class Places(NamedTuple):
    """Where records are: the number of the file of each, its first byte there and how many bytes it has."""

    files: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray
    are_one_run: bool


class OpenFiles:
    """Data files, of which some are kept open and the others opened for each read."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        #: Whether all are on this machine, or mounted as if they were.
        self.are_near = not any(map(is_remote, paths))
        self._lock = threading.Lock()
        self._descriptors: dict[int, int] = {}
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            self._most_kept_open = len(paths)
        else:
            self._most_kept_open = int((limit - len(os.listdir(_OWN_OPEN_FILES))) * _SHARE_OF_OPEN_FILES)
        weakref.finalize(self, _close_descriptors, self._descriptors)

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Bytes of a file: fewer where it has become shorter."""
        if is_remote(self._paths[file]):
            return storage.read_at(self._paths[file], offset, size)
        data = bytearray(size)
        return bytes(data[: self.read_into(file, memoryview(data), offset)])

    def read_runs(self, places: Places) -> Iterator[tuple[bytes, int]]:
        """The bytes of files behind a scheme, and how many each read asked for.

        Each read is a request: of records that lie behind one another it is one, and others do not wait for it.
        """
        files, begins, sizes = places.files, places.begins, places.sizes
        starts = np.append(True, (files[1:] != files[:-1]) | (begins[1:] != begins[:-1] + sizes[:-1]))
        firsts = np.flatnonzero(starts)
        totals = np.add.reduceat(sizes, firsts).tolist()
        runs = list(zip(files[firsts].tolist(), begins[firsts].tolist(), totals, strict=True))
        yield from zip(storage.each_of(lambda run: self.read(*run), runs), totals, strict=True)

    def read_into(self, file: int, target: memoryview, offset: int) -> int:
        """As `read`, to where they are wanted, of a file on this machine; returns how many there were."""
        descriptor = self._kept_open(file)
        if descriptor is not None:
            return _read_into(descriptor, target, offset)
        descriptor = os.open(self._paths[file], os.O_RDONLY)
        try:
            return _read_into(descriptor, target, offset)
        finally:
            os.close(descriptor)

    def _kept_open(self, file: int) -> int | None:
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            with self._lock:
                # Another thread may have opened it by now.
                descriptor = self._descriptors.get(file)
                if descriptor is None and len(self._descriptors) < self._most_kept_open:
                    descriptor = self._descriptors[file] = os.open(self._paths[file], os.O_RDONLY)
        return descriptor


def _close_descriptors(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _read_into(descriptor: int, target: memoryview, offset: int) -> int:
    """Reads bytes of a file until the target is full or the file ends; returns how many there were."""
    done = 0
    while done < len(target):  # the system gives at most 2 GB at once
        if hasattr(os, "preadv"):
            count = os.preadv(descriptor, [target[done:]], offset + done)
        else:
            data = os.pread(descriptor, len(target) - done, offset + done)
            count = len(data)
            target[done : done + count] = data
        if not count:
            break
        done += count
    return done
