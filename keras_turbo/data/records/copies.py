"""Copies of TFRecord files in the cache folder, of those that can't be read by position where they are.

Nothing can be read from the middle of a compressed file, so it is unpacked once. A file behind a scheme could be read
by position, but each record would be a request over the network, in each epoch anew; so it is copied once, if the disk
has room for it.

CACHE_DIR/tfrecord/unpacked/<digest of path>/<digest of size and time of change>.tfrecord
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from keras_turbo.data.engine.disk_store import digest, fits_on_disk, remove_abandoned
from keras_turbo.data.records.index import DAMAGE_MARK, HEADER_BYTES, digest_of_path, length_in, record_offsets
from keras_turbo.progress import progress_bar
from keras_turbo.storage import paths as storage
from keras_turbo.storage.schemes import is_remote

COMPRESSIONS = (None, "", "GZIP", "ZLIB")

_CHUNK_BYTES = 1 << 20

# How the names of copies begin that are not whole.
_UNFINISHED = ".unpacking-"

# What zlib is told about the header to expect: a gzip one (16 on top of the window's 15 bits), or its own.
_WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}

# Numbers and images are packed to a half or a tenth; deflate can do 1,000 to 1, for files made to fill a disk.
_LARGEST_RATIO = 100
_ALWAYS_ALLOWED_BYTES = 1 << 28


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
    if len(head) < 2 or length_in(head) is not None:
        return ""
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    # Deflate with a window of up to 32 KB, and a header whose two bytes are a multiple of 31.
    return "ZLIB" if head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0 else ""


def local_copies(
    paths: Sequence[str], compressions: Sequence[str], cache_folder: pathlib.Path, most_bytes: int | None
) -> list[str]:
    """For each file itself, or its copy, which is made if there is none; with a progress bar in a terminal.

    A file whose compressed data end early, or are damaged, is unpacked up to there, and `DAMAGE_MARK` put behind it.
    Where copies of the files behind a scheme would take more than half of the free disk, those files are left where
    they are, with a warning.

    Args:
        paths: the files.
        compressions: of each, "" for none.
        cache_folder: where copies are kept.
        most_bytes: that a file may have when it is unpacked; None for 100 times its size, or 256 MB if that is more.

    Raises:
        OSError: a file can't be read, or the cache folder can't take the copy.
        ValueError: a file unpacks to more.
    """
    copies: list[str] = []
    missing: list[tuple[int, int]] = []
    statuses = storage.statuses_of(paths)
    for number, (path, compression, status) in enumerate(zip(paths, compressions, statuses, strict=True)):
        copies.append(path)
        # An empty file holds nothing that could be unpacked.
        if status.size and (compression or is_remote(path)):
            name = f"{digest([*status, compression])}.tfrecord"
            copies[-1] = str(cache_folder / "tfrecord" / "unpacked" / digest_of_path(path) / name)
            if not os.path.exists(copies[-1]):
                missing.append((number, status.size))
    movable = [(number, size) for number, size in missing if not compressions[number]]
    num_bytes = sum(size for _, size in movable)
    if movable and not fits_on_disk(num_bytes, cache_folder):
        warnings.warn(
            f"{len(movable)} TFRecord files ({num_bytes / 1e9:.1f} GB), {paths[movable[0][0]]!r} among them, would take "
            f"more than half of the free disk of {str(cache_folder)!r}. They are read where they are, which is a request "
            "for each record if they are shuffled. Give a folder with more room as `cache_dir`.",
            stacklevel=4,  # where from_tfrecord is called
        )
        for number, _ in movable:
            copies[number] = paths[number]
        missing = [one for one in missing if one not in movable]
    with progress_bar("Copying TFRecords to the cache", len(missing)) as advance:
        for number, size in missing:
            limit = most_bytes or max(_LARGEST_RATIO * size, _ALWAYS_ALLOWED_BYTES)
            _copy(paths[number], compressions[number], size, limit, pathlib.Path(copies[number]))
            advance(1)
    return copies


def _copy(path: str, compression: str, size: int, limit: int, place: pathlib.Path) -> None:
    temporary = None
    remove_abandoned(place.parent, _UNFINISHED)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=_UNFINISHED)
        with os.fdopen(handle, "w+b") as copy, storage.opened(path) as original:
            if compression:
                _unpack(path, original, copy, _WINDOW_BITS[compression], limit)
            else:
                for chunk in iter(lambda: original.read(_CHUNK_BYTES), b""):
                    copy.write(chunk)
                if copy.tell() != size:
                    raise OSError(f"{copy.tell()} of {size} bytes came")
        os.replace(temporary, place)
        for outdated in set(place.parent.glob("*.tfrecord")) - {place}:
            outdated.unlink(missing_ok=True)
    except OSError as error:
        why = "is compressed and is unpacked" if compression else "is copied"
        raise OSError(
            error.errno,
            f"{path!r} {why} into {str(place.parent)!r} before it is read by position, which failed ({error}). If the "
            "disk is full, give a folder with more room as `cache_dir`",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _unpack(path: str, packed: storage.Readable, copy: BinaryIO, window_bits: int, limit: int) -> None:
    try:
        for data in _unpacked(packed, window_bits):
            copy.write(data)
            if copy.tell() > limit:
                raise ValueError(
                    f"{path!r} unpacks to more than {limit / 1e6:,.0f} MB, which is a lot for its size. If you trust it, "
                    "give a larger `max_unpacked_bytes`."
                )
    except (zlib.error, EOFError):
        copy.flush()
        # The half of a record would be told of by what it lacks, and not by why it does.
        descriptor = copy.fileno()
        end = record_offsets(lambda offset, size: os.pread(descriptor, size, offset), copy.tell())[-1]
        copy.seek(int(end))
        copy.truncate()
        copy.write(DAMAGE_MARK)


def _unpacked(packed: storage.Readable, window_bits: int) -> Iterator[bytes]:
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
