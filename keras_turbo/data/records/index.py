"""Where the records of a file begin, found once and kept beside the data, or in the cache folder.

What reads a bucket writes nothing into it: of a file behind a scheme, the index is in the cache folder.

    DATA/.keras_turbo_index/<file name>.npy      or, where that can't be written or has a scheme,
    CACHE_DIR/tfrecord/index/<digest of the path>.npy

An index is one int64 vector: format version, size of the data file and its time of change in nanoseconds, a checksum of
what follows, then the offsets. One that does not fit the file any more, or is damaged, is made anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterator

import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.records.framing import ReadAt, end_of_damage, record_offsets
from keras_turbo.files import Status, is_remote

FORMAT_VERSION = 1
INDEX_FOLDER = ".keras_turbo_index"

_NUM_HEADER_FIELDS = 4


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """The records of one file.

    Attributes:
        path: of the file that is read: for a compressed one, or one behind a scheme, mostly of a copy.
        size: in bytes.
        changed_ns: the file's time of change.
        offsets: int64 vector: where each entry begins, and where the last one ends.
        is_damaged: whether the last entry is no record but what is left of a file that is truncated there, or the
            header of a record whose length is damaged.
    """

    path: str
    size: int
    changed_ns: int
    offsets: np.ndarray
    is_damaged: bool

    @property
    def num_entries(self) -> int:
        """Number of records, and one more for a damaged rest."""
        return len(self.offsets) - 1


def index_of(path: str, cache_folder: pathlib.Path) -> RecordIndex:
    """The index of an uncompressed file: the one that was kept if it is up to date, else a new one, which is kept.

    Args:
        path: the file.
        cache_folder: where to keep the index if the folder of the file can't be written.

    Raises:
        OSError: the file can't be read.
    """
    with _opened(path) as (read_at, status):
        places = _places(path, cache_folder)
        offsets = None
        for place in places:
            offsets = _load(place, status)
            if offsets is not None:
                break
        if offsets is None:
            offsets = record_offsets(read_at, status.size, passes_over=not is_remote(path))
            for place in places:
                if _save(place, status, offsets):
                    break
        is_damaged = bool(offsets[-1] != status.size)
        if is_damaged:
            offsets = np.append(offsets, np.int64(end_of_damage(read_at, int(offsets[-1]), status.size)))
    return RecordIndex(path, status.size, status.changed_ns, offsets, is_damaged)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[ReadAt, Status]]:
    """A context with a way to read parts of a file, and its status."""
    if is_remote(path):
        yield functools.partial(storage.read_at, path), storage.status_of(path)
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        yield lambda offset, size: os.pread(descriptor, size, offset), Status(status.st_size, status.st_mtime_ns)
    finally:
        os.close(descriptor)


def _places(path: str, cache_folder: pathlib.Path) -> list[pathlib.Path]:
    file = storage.absolute(path)
    name = hashlib.blake2b(os.fsencode(file), digest_size=16).hexdigest()
    in_cache = cache_folder / "tfrecord" / "index" / f"{name}.npy"
    if is_remote(path):
        return [in_cache]
    return [pathlib.Path(file).parent / INDEX_FOLDER / f"{os.path.basename(file)}.npy", in_cache]


def _load(place: pathlib.Path, status: Status) -> np.ndarray | None:
    try:
        vector = np.load(place, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if vector.dtype != np.int64 or vector.ndim != 1 or len(vector) <= _NUM_HEADER_FIELDS:
        return None
    header, offsets = vector[:_NUM_HEADER_FIELDS], vector[_NUM_HEADER_FIELDS:]
    expected = [FORMAT_VERSION, *status, zlib.crc32(offsets.tobytes())]
    return offsets if header.tolist() == expected else None


def _save(place: pathlib.Path, status: Status, offsets: np.ndarray) -> bool:
    """Writes an index; whether that could be done."""
    header = [FORMAT_VERSION, *status, zlib.crc32(offsets.tobytes())]
    try:
        storage.make_folder(str(place.parent))
        with storage.writing(str(place), syncs=False) as file:
            np.save(file, np.concatenate([np.array(header, np.int64), offsets]))
    except OSError:
        return False
    return True
