"""Where the records of a TFRecord file begin: found once, and kept beside the data or in the cache folder.

    a record: uint64 length | uint32 masked CRC-32C of the length | data | uint32 masked CRC-32C of the data

So a file is indexed by 12 bytes of each record. What reads a bucket writes nothing into it.

    DATA/.keras_turbo_index/<file name>.npy      or, where that can't be written, leads elsewhere or has a scheme,
    CACHE_DIR/tfrecord/index/<digest of the path>.npy

An index is one int64 vector: format version, size of the data file and its time of change in nanoseconds, a checksum of
what follows, then the offsets. One that does not fit the file any more, is damaged or is none at all is made anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import zlib
from collections.abc import Callable

import google_crc32c
import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.engine.disk_store import digest
from keras_turbo.files import is_remote

FORMAT_VERSION = 1
INDEX_FOLDER = ".keras_turbo_index"

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES

ReadAt = Callable[[int, int], bytes]
"""Of an offset and a number of bytes: so many bytes of a file from there, fewer where it ends before."""

# Behind what could be unpacked of a damaged file: no record begins so, and thus the rest of the file is told of.
DAMAGE_MARK = b"\xff" * HEADER_BYTES

# Small records are found in blocks of the file; behind a record as long as this, only the next header is read.
_BLOCK_BYTES = 1 << 20
_LONG_RECORD_BYTES = 1 << 16
# A store gives this in a tenth of a second or two, which is long beside the time until it answers.
_REMOTE_BLOCK_BYTES = 1 << 23

_NUM_HEADER_FIELDS = 4
# More than `numpy.save` puts in front of a vector.
_MOST_NPY_HEADER_BYTES = 1 << 10


def index_of(path: str, read_at: ReadAt, cache_folder: pathlib.Path) -> tuple[np.ndarray, bool]:
    """Where the records of an uncompressed file begin, by the index that was kept or by a new one, which is kept.

    The last offset is where the last record ends. True beside it: that is no record, but what is left of a file that is
    truncated there, or the header of a record whose length is damaged.
    """
    status = storage.status_of(path)
    if not status.size:
        read_at(0, HEADER_BYTES)  # which fails if it is a pipe or a device: they have no size either
    places = [str(cache_folder / "tfrecord" / "index" / f"{digest(storage.absolute(path))}.npy")]
    folder, name = os.path.split(storage.absolute(path))
    # A link would be followed out of the data's folder.
    if not is_remote(path) and not os.path.islink(os.path.join(folder, INDEX_FOLDER)):
        places.insert(0, os.path.join(folder, INDEX_FOLDER, f"{name}.npy"))
    offsets = next((offsets for offsets in (_kept(place, status) for place in places) if offsets is not None), None)
    if offsets is None:
        offsets = record_offsets(read_at, status.size, passes_over=not is_remote(path))
        header = [FORMAT_VERSION, *status, zlib.crc32(offsets.tobytes())]
        for place in places:
            with contextlib.suppress(OSError):
                storage.make_folder(os.path.dirname(place))
                with storage.writing(place, syncs=False) as file:
                    np.save(file, np.concatenate([np.array(header, np.int64), offsets]))
                break
    begin = int(offsets[-1])
    if begin == status.size:
        return offsets, False
    header = read_at(begin, HEADER_BYTES)
    # Of a damaged length the rest of the file, however large, tells nothing.
    is_cut = len(header) < HEADER_BYTES or length_in(header) is not None
    return np.append(offsets, status.size if is_cut else begin + HEADER_BYTES), True


def _kept(place: str, status: storage.Status) -> np.ndarray | None:
    try:
        most_offsets = 1 + status.size // FRAME_BYTES
        if storage.status_of(place).size > _MOST_NPY_HEADER_BYTES + 8 * (_NUM_HEADER_FIELDS + most_offsets):
            return None
        vector = np.load(io.BytesIO(storage.read_bytes(place)), allow_pickle=False)
        header, offsets = vector[:_NUM_HEADER_FIELDS], vector[_NUM_HEADER_FIELDS:]
        fits = header.tolist() == [FORMAT_VERSION, *status, zlib.crc32(offsets.tobytes())]
        is_sound = vector.dtype == np.int64 and offsets[0] == 0 and offsets[-1] <= status.size
        return offsets if fits and is_sound and (np.diff(offsets) >= FRAME_BYTES).all() else None
    except Exception:  # whatever NumPy makes of something else that lies there
        return None


def record_offsets(read_at: ReadAt, size: int, *, passes_over: bool = True) -> np.ndarray:
    """Where the records of a file begin, and where the last whole one ends; behind a damaged length there are none."""
    # Where each call is a request over a network, passing over the data of long records takes longer than reading them.
    offsets, block, block_begin, offset = [0], b"", 0, 0
    block_bytes = _BLOCK_BYTES if passes_over else _REMOTE_BLOCK_BYTES
    is_long = False
    while offset + FRAME_BYTES <= size:
        at = offset - block_begin
        if at + HEADER_BYTES > len(block):
            block = read_at(offset, HEADER_BYTES if is_long else block_bytes)
            block_begin, at = offset, 0
        length = length_in(block[at : at + HEADER_BYTES])
        if length is None or offset + length + FRAME_BYTES > size:
            break
        is_long = passes_over and length >= _LONG_RECORD_BYTES
        offset += length + FRAME_BYTES
        offsets.append(offset)
    return np.array(offsets, np.int64)


def length_in(header: bytes) -> int | None:
    """The length in the first bytes of a record, if it is all there and matches its checksum."""
    if len(header) < HEADER_BYTES:
        return None
    return int.from_bytes(header[:8], "little") if is_whole(header[:8], header[8:HEADER_BYTES]) else None


def is_whole(data: bytes, checksum: bytes) -> bool:
    """Whether some bytes match their masked CRC-32C, given as the four bytes in the file."""
    return _masked(google_crc32c.value(data)).to_bytes(FOOTER_BYTES, "little") == checksum


def _masked(crc: int) -> int:
    # The mask of TFRecord (tsl/lib/hash/crc32c.h).
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def what_is_wrong(frame: bytes) -> str:
    """Why the bytes of one record, from its length to its last checksum, are no record, as the end of a sentence."""
    if frame == DAMAGE_MARK:
        return "the compressed data are damaged or end early, so that nothing behind this can be read."
    if len(frame) < HEADER_BYTES:
        return f"the file is truncated: a record's header has {HEADER_BYTES} bytes, and {len(frame)} are there."
    length = length_in(frame)
    if length is None:
        return "the record's length does not match its checksum, so that nothing behind it can be found in this file."
    if len(frame) < length + FRAME_BYTES:
        return f"the file is truncated: the record has {length + FRAME_BYTES} bytes, and {len(frame)} are there."
    return "the record's data do not match their checksum: they were damaged after they were written."
