"""Copies of TFRecord files in the cache folder, of those that can't be read by position where they are.

Nothing can be read from the middle of a compressed file, so it is unpacked once. A file behind a scheme could be read
by position, but each record would be a request over the network, in each epoch anew; so it is copied once, if the disk
has room for it.

CACHE_DIR/tfrecord/unpacked/<digest of path>/<digest of size and time of change>.tfrecord
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import warnings
import zlib
from collections.abc import Sequence
from typing import IO, BinaryIO, NamedTuple

import numpy as np

from keras_turbo import files as storage
from keras_turbo.data.disk_store import fits_on_disk
from keras_turbo.data.records.framing import HEADER_BYTES, lengths_are_whole, record_offsets
from keras_turbo.files import is_remote
from keras_turbo.report import progress_bar

COMPRESSIONS = (None, "", "GZIP", "ZLIB")

# Behind what could be unpacked of a damaged file: no record begins so, and thus the rest of the file is told of.
DAMAGE_MARK = b"\xff" * HEADER_BYTES

_CHUNK_BYTES = 1 << 20

# How much is asked for at a time behind a scheme.
_READ_AHEAD_BYTES = 8 << 20

# What zlib is told about the header to expect: a gzip one (16 on top of the window's 15 bits), or its own.
_WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}


def check_compression(compression: str | None) -> None:
    """Checks what was given as `compression`.

    Raises:
        ValueError: it is none of `COMPRESSIONS`.
    """
    if compression not in COMPRESSIONS:
        raise ValueError(
            "`compression` must be 'GZIP', 'ZLIB', '' (not compressed), or None, to tell by each file's first bytes. "
            f"Received: {compression!r}."
        )


def compression_of(path: str) -> str:
    """How a file is compressed, by its first bytes: "", "GZIP" or "ZLIB".

    A record's length in the first eight bytes could look like the two of zlib; so a file is taken for a compressed one
    only if it begins with no record.
    """
    head = storage.read_at(path, 0, HEADER_BYTES)
    if len(head) < 2:
        return ""
    if len(head) == HEADER_BYTES and lengths_are_whole(np.frombuffer(head, np.uint8).reshape(1, -1))[0]:
        return ""
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    # Deflate with a window of up to 32 KB, and a header whose two bytes are a multiple of 31.
    return "ZLIB" if head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0 else ""


def local_copies(paths: Sequence[str], compressions: Sequence[str], cache_folder: pathlib.Path) -> list[str]:
    """For each file itself, or its copy, which is made if there is none; with a progress bar in a terminal.

    A file whose compressed data end early, or are damaged, is unpacked up to there, and `DAMAGE_MARK` put behind it.
    Where copies of the files behind a scheme would take more than half of the free disk, those files are left where
    they are, with a warning.

    Raises:
        OSError: a file can't be read, or the cache folder can't take the copy.
    """
    folder = cache_folder / "tfrecord" / "unpacked"
    copies: list[str] = []
    missing = []
    statuses = storage.each_path(storage.status_of, paths)
    for path, compression, status in zip(paths, compressions, statuses, strict=True):
        # An empty file holds nothing that could be unpacked.
        if not status.size or not (compression or is_remote(path)):
            copies.append(path)
            continue
        state = f"{status.size} {status.changed_ns} {compression}"
        place = folder / _digest(storage.absolute(path)) / f"{_digest(state)}.tfrecord"
        copies.append(str(place))
        if not place.exists():
            missing.append(_Missing(path, compression, status.size, place))
    left = _without_room(missing, cache_folder)
    missing = [one for one in missing if one not in left]
    if missing:
        with progress_bar("Copying TFRecords to the cache", len(missing)) as advance:
            for one in missing:
                _copy(one)
                advance(1)
    stays = {str(one.place): one.path for one in left}
    return [stays.get(copy, copy) for copy in copies]


class _Missing(NamedTuple):
    """A copy that is to be made."""

    path: str
    compression: str
    size: int
    place: pathlib.Path


def _without_room(missing: list[_Missing], cache_folder: pathlib.Path) -> list[_Missing]:
    """Those files that are better read where they are, as there is no room for all."""
    movable = [one for one in missing if not one.compression]
    num_bytes = sum(one.size for one in movable)
    if not movable or fits_on_disk(num_bytes, cache_folder):
        return []
    warnings.warn(
        f"{len(movable)} TFRecord files ({num_bytes / 1e9:.1f} GB), {movable[0].path!r} among them, would take more "
        f"than half of the free disk of {str(cache_folder)!r}. They are read where they are, which is a request for "
        "each record if they are shuffled. Give a folder with more room as `cache_dir`.",
        stacklevel=5,  # where from_tfrecord is called
    )
    return movable


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest()


def _copy(missing: _Missing) -> None:
    path, compression, size, place = missing
    try:
        storage.make_folder(str(place.parent))
        storage.remove_abandoned(str(place.parent))
        with (
            storage.writing(str(place), syncs=False) as copy,
            storage.opened(path, read_ahead_bytes=_READ_AHEAD_BYTES) as (original, _),
        ):
            if not compression:
                _copy_whole(original, copy, size)
            elif not _decompress(original, copy, _WINDOW_BITS[compression]):
                copy.flush()
                # The half of a record would be told of by what it lacks, and not by why it does.
                copy.truncate(_last_end(copy))
                copy.seek(0, os.SEEK_END)
                copy.write(DAMAGE_MARK)
        for outdated in place.parent.glob("*.tfrecord"):
            if outdated != place:
                outdated.unlink(missing_ok=True)
    except OSError as error:
        why, remedy = "is copied", ""
        if compression:
            why, remedy = "is compressed and is unpacked", ", or store the records uncompressed"
        raise OSError(
            error.errno,
            f"{path!r} {why} into {str(place.parent)!r} before it is read by position, which failed ({error}). If the "
            f"disk is full, give a folder with more room as `cache_dir`{remedy}",
        ) from error


def _copy_whole(original: IO[bytes], copy: BinaryIO, size: int) -> None:
    while chunk := original.read(_CHUNK_BYTES):
        copy.write(chunk)
    if copy.tell() != size:
        raise OSError(f"{copy.tell()} of {size} bytes came")


def _last_end(copy: BinaryIO) -> int:
    """Where the last whole record of a file ends."""
    descriptor = copy.fileno()
    return int(record_offsets(lambda offset, size: os.pread(descriptor, size, offset), copy.tell())[-1])


def _decompress(packed: IO[bytes], copy: BinaryIO, window_bits: int) -> bool:
    """Decompresses a file as far as that can be done; whether that is to its end."""
    decompressor = zlib.decompressobj(window_bits)
    while data := decompressor.unused_data or packed.read(_CHUNK_BYTES):
        if decompressor.eof:  # files put behind one another, as gzip allows
            decompressor = zlib.decompressobj(window_bits)
        try:
            copy.write(decompressor.decompress(data))
        except zlib.error:
            return False
    return decompressor.eof
