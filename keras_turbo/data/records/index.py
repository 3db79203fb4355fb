"""Where the records of a file begin, found once and kept beside the data, or in the cache folder.

    DATA/.keras_turbo_index/<file name>.npy      or, where that can't be written,
    CACHE_DIR/tfrecord/index/<digest of the path>.npy

An index is one int64 vector: format version, size of the data file and its time of change in nanoseconds, a checksum of
what follows, then the offsets. One that does not fit the file any more, or is damaged, is made anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import tempfile
import zlib

import numpy as np

from keras_turbo.data.records.framing import end_of_damage, record_offsets

FORMAT_VERSION = 1
INDEX_FOLDER = ".keras_turbo_index"

_NUM_HEADER_FIELDS = 4


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """The records of one file.

    Attributes:
        path: of the file that is read: for a compressed one, of its unpacked copy.
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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        places = _places(path, cache_folder)
        offsets = None
        for place in places:
            offsets = _load(place, status)
            if offsets is not None:
                break
        if offsets is None:
            offsets = record_offsets(descriptor, status.st_size)
            for place in places:
                if _save(place, status, offsets):
                    break
        is_damaged = bool(offsets[-1] != status.st_size)
        if is_damaged:
            offsets = np.append(offsets, np.int64(end_of_damage(descriptor, int(offsets[-1]), status.st_size)))
    finally:
        os.close(descriptor)
    return RecordIndex(path, status.st_size, status.st_mtime_ns, offsets, is_damaged)


def _places(path: str, cache_folder: pathlib.Path) -> list[pathlib.Path]:
    file = pathlib.Path(os.path.abspath(path))
    name = hashlib.blake2b(os.fsencode(file), digest_size=16).hexdigest()
    return [
        file.parent / INDEX_FOLDER / f"{file.name}.npy",
        cache_folder / "tfrecord" / "index" / f"{name}.npy",
    ]


def _load(place: pathlib.Path, status: os.stat_result) -> np.ndarray | None:
    try:
        vector = np.load(place, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if vector.dtype != np.int64 or vector.ndim != 1 or len(vector) <= _NUM_HEADER_FIELDS:
        return None
    header, offsets = vector[:_NUM_HEADER_FIELDS], vector[_NUM_HEADER_FIELDS:]
    expected = [FORMAT_VERSION, status.st_size, status.st_mtime_ns, zlib.crc32(offsets.tobytes())]
    return offsets if header.tolist() == expected else None


def _save(place: pathlib.Path, status: os.stat_result, offsets: np.ndarray) -> bool:
    """Writes an index beside its name and renames it; whether that could be done."""
    header = [FORMAT_VERSION, status.st_size, status.st_mtime_ns, zlib.crc32(offsets.tobytes())]
    temporary = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".index-")
        with os.fdopen(handle, "wb") as file:
            np.save(file, np.concatenate([np.array(header, np.int64), offsets]))
        os.chmod(temporary, 0o644)  # mkstemp's files are closed to others, who may share the data
        os.replace(temporary, place)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True
