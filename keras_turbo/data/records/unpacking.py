"""Compressed TFRecord files, unpacked once into the cache folder: nothing can be read from the middle of one.

CACHE_DIR/tfrecord/unpacked/<digest of path>/<digest of size and time of change>.tfrecord
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import tempfile
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from keras_turbo.data.records.framing import HEADER_BYTES, lengths_are_whole, record_offsets
from keras_turbo.progress import progress_bar

COMPRESSIONS = (None, "", "GZIP", "ZLIB")

# Behind what could be unpacked of a damaged file: no record begins so, and thus the rest of the file is told of.
DAMAGE_MARK = b"\xff" * HEADER_BYTES

_CHUNK_BYTES = 1 << 20

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
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    if len(head) < 2:
        return ""
    if len(head) == HEADER_BYTES and lengths_are_whole(np.frombuffer(head, np.uint8).reshape(1, -1))[0]:
        return ""
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    # Deflate with a window of up to 32 KB, and a header whose two bytes are a multiple of 31.
    return "ZLIB" if head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0 else ""


def unpacked(paths: Sequence[str], compressions: Sequence[str], cache_folder: pathlib.Path) -> list[str]:
    """For each file itself, or its unpacked copy, which is made if there is none; with a progress bar in a terminal.

    A file whose compressed data end early, or are damaged, is unpacked up to there, and `DAMAGE_MARK` put behind it.

    Raises:
        OSError: a file can't be read, or the cache folder can't take the copy.
    """
    folder = cache_folder / "tfrecord" / "unpacked"
    places = []
    missing = []
    for path, compression in zip(paths, compressions, strict=True):
        status = os.stat(path)
        if not compression or not status.st_size:  # an empty file holds nothing that could be unpacked
            places.append(path)
            continue
        state = f"{status.st_size} {status.st_mtime_ns} {compression}"
        place = folder / _digest(os.path.abspath(path)) / f"{_digest(state)}.tfrecord"
        places.append(str(place))
        if not place.exists():
            missing.append((path, compression, place))
    if missing:
        with progress_bar("Unpacking compressed TFRecords", len(missing)) as advance:
            for path, compression, place in missing:
                _unpack(path, compression, place)
                advance(1)
    return places


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest()


def _unpack(path: str, compression: str, place: pathlib.Path) -> None:
    temporary = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".unpacking-")
        with os.fdopen(handle, "w+b") as copy, open(path, "rb") as packed:
            if not _decompress(packed, copy, _WINDOW_BITS[compression]):
                copy.flush()
                # The half of a record would be told of by what it lacks, and not by why it does.
                copy.truncate(record_offsets(copy.fileno(), copy.tell())[-1])
                copy.seek(0, os.SEEK_END)
                copy.write(DAMAGE_MARK)
        os.replace(temporary, place)
        for outdated in place.parent.glob("*.tfrecord"):
            if outdated != place:
                outdated.unlink(missing_ok=True)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise OSError(
            error.errno,
            f"{path!r} is compressed and is unpacked into {str(place.parent)!r} before it is read by position, which "
            f"failed ({error}). Give a folder with more room as `cache_dir`, or store the records uncompressed",
        ) from error


def _decompress(packed: BinaryIO, copy: BinaryIO, window_bits: int) -> bool:
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
