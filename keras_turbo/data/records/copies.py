"""Copies of TFRecord files in the cache folder, of those that can't be read by position where they are.

Nothing can be read from the middle of a compressed file, so it is unpacked once. A file behind a scheme could be read
by position, but each record would be a request over the network, in each epoch anew; so it is copied once, if the disk
has room for it.

CACHE_DIR/tfrecord/unpacked/<digest of path>/<digest of size and time of change>.tfrecord
"""

from __future__ import annotations

import os
import pathlib
import shutil
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import IO

from keras_turbo import files as storage
from keras_turbo.data.engine.disk_store import digest, fits_on_disk
from keras_turbo.data.records.index import DAMAGE_MARK, HEADER_BYTES, length_in, record_offsets
from keras_turbo.files import is_remote
from keras_turbo.report import progress_bar

COMPRESSIONS = (None, "", "GZIP", "ZLIB")

# As much of a damaged file is lost with what is damaged.
_CHUNK_BYTES = 1 << 16

# How much is asked for at a time behind a scheme.
_READ_AHEAD_BYTES = 8 << 20

# What zlib is told about the header to expect: a gzip one (16 on top of the window's 15 bits), or its own.
_WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}

# Numbers and images are packed to a half or a tenth; deflate can do 1,000 to 1, for files made to fill a disk.
_LARGEST_RATIO = 100
_ALWAYS_ALLOWED_BYTES = 1 << 28


def check_compression(compression: str | None) -> None:
    """Raises ValueError if what was given as `compression` is none of `COMPRESSIONS`."""
    if compression not in COMPRESSIONS:
        raise ValueError(
            "`compression` must be 'GZIP', 'ZLIB', '' (not compressed), or None, to tell by each file's first bytes. "
            f"Received: {compression!r}."
        )


def compression_of(path: str) -> str:
    """How a file is compressed, by its first bytes: "", "GZIP" or "ZLIB"."""
    head = storage.read_at(path, 0, HEADER_BYTES)
    # The length of a record could look like the two bytes of zlib.
    if len(head) < 2 or length_in(head) is not None:
        return ""
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    # Deflate with a window of up to 32 KB, and a header whose two bytes are a multiple of 31.
    return "ZLIB" if head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0 else ""


def local_copies(
    paths: Sequence[str], compressions: Sequence[str], cache_folder: pathlib.Path, most_bytes: int | None
) -> list[str]:
    """For each file itself, or the copy that must be read in its place, which is made if there is none.

    Damaged files are unpacked up to the damage, with `DAMAGE_MARK` behind. What unpacks to more than `most_bytes` is
    refused; None stands for 100 times its size, or 256 MB if that is more.
    """
    copies = list(paths)
    missing: dict[int, int] = {}
    for number, status in enumerate(storage.each_path(storage.status_of, paths)):
        # An empty file holds nothing that could be unpacked.
        if status.size and (compressions[number] or is_remote(paths[number])):
            name = f"{digest([*status, compressions[number]])}.tfrecord"
            place = cache_folder / "tfrecord" / "unpacked" / digest(storage.absolute(paths[number])) / name
            copies[number] = str(place)
            if not place.exists():
                missing[number] = status.size
    movable = {number: size for number, size in missing.items() if not compressions[number]}
    if movable and not fits_on_disk(sum(movable.values()), cache_folder):
        warnings.warn(
            f"{len(movable)} TFRecord files ({sum(movable.values()) / 1e9:.1f} GB), {paths[min(movable)]!r} among "
            f"them, would take more than half of the free disk of {str(cache_folder)!r}. They are read where they are, "
            "which is a request for each record if they are shuffled. Give a folder with more room as `cache_dir`.",
            stacklevel=4,  # where from_tfrecord is called
        )
        copies = [paths[number] if number in movable else copy for number, copy in enumerate(copies)]
        missing = {number: size for number, size in missing.items() if number not in movable}
    with progress_bar("Copying TFRecords to the cache", len(missing)) as advance:
        for number, size in missing.items():
            limit = most_bytes or max(_LARGEST_RATIO * size, _ALWAYS_ALLOWED_BYTES)
            _copy(paths[number], compressions[number], limit, pathlib.Path(copies[number]))
            advance(1)
    return copies


def _copy(path: str, compression: str, limit: int, place: pathlib.Path) -> None:
    try:
        storage.make_folder(str(place.parent))
        storage.remove_abandoned(str(place.parent))
        with (
            storage.writing(str(place), syncs=False) as copy,
            storage.opened(path, read_ahead_bytes=_READ_AHEAD_BYTES) as (original, _),
        ):
            if not compression:
                shutil.copyfileobj(original, copy, _CHUNK_BYTES)
            try:
                for data in _unpacked(original, _WINDOW_BITS[compression]) if compression else ():
                    copy.write(data)
                    if copy.tell() > limit:
                        raise ValueError(
                            f"{path!r} unpacks to more than {limit / 1e6:,.0f} MB, which is a lot for its size. If you "
                            "trust it, give a larger `max_unpacked_bytes`."
                        )
            except (zlib.error, EOFError):
                copy.flush()
                # Half a record would be told of by what it lacks, and not by why it does.
                descriptor = copy.fileno()
                end = record_offsets(lambda at, size: os.pread(descriptor, size, at), copy.tell())[-1]
                copy.seek(int(end))
                copy.truncate()
                copy.write(DAMAGE_MARK)
        for outdated in set(place.parent.glob("*.tfrecord")) - {place}:
            outdated.unlink(missing_ok=True)
    except OSError as error:
        why = "is compressed and is unpacked" if compression else "is copied"
        raise OSError(
            error.errno,
            f"{path!r} {why} into {str(place.parent)!r} before it is read by position, which failed ({error}). If the "
            "disk is full, give a folder with more room as `cache_dir`",
        ) from error


def _unpacked(packed: IO[bytes], window_bits: int) -> Iterator[bytes]:
    """What is packed in a file, or in several behind one another; raises `EOFError` if the last is not whole."""
    decompressor, data = zlib.decompressobj(window_bits), b""
    while data := data or packed.read(_CHUNK_BYTES):
        if decompressor.eof:
            decompressor = zlib.decompressobj(window_bits)
        yield decompressor.decompress(data, _CHUNK_BYTES)
        data = decompressor.unused_data if decompressor.eof else decompressor.unconsumed_tail
    yield decompressor.flush()
    if not decompressor.eof:
        raise EOFError
