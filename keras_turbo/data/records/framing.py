"""How records lie in a TFRecord file: a length, its checksum, the data, their checksum.

    uint64 length | uint32 masked CRC-32C of the length | data | uint32 masked CRC-32C of the data

Where each record begins follows from the lengths alone, so that a file is indexed by reading 12 bytes a record. The
data's checksums are checked when a record is read (`reader.py`).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import numpy as np

ReadAt = Callable[[int, int], bytes]
"""Of an offset and a number of bytes: so many bytes of a file from there, fewer where it ends before."""

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES

# Small records are found in blocks of the file; behind a record as long as this, only the next header is read.
_BLOCK_BYTES = 1 << 20
_LONG_RECORD_BYTES = 1 << 16
# A store gives this in a tenth of a second or two, which is long beside the time until it answers.
_REMOTE_BLOCK_BYTES = 1 << 23

# CRC-32C (Castagnoli), reflected, and the mask that TFRecord puts on it (tsl/lib/hash/crc32c.h).
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = np.uint32(0xA282EAD8)


def record_offsets(read_at: ReadAt, size: int, *, passes_over: bool = True) -> np.ndarray:
    """Where the records of a file begin, and where the last whole one ends.

    Args:
        read_at: gives a part of the file.
        size: of the file, in bytes.
        passes_over: whether the data of long records are passed over. Where each call is a request over a network, it
            takes less time to read all.

    Returns:
        int64 vector, one longer than the number of records. Its last entry is `size`, unless the file is truncated or a
        length in it is damaged, behind which nothing can be found.
    """
    offsets, headers = [0], bytearray()
    block, block_begin, offset = b"", 0, 0
    block_bytes = _BLOCK_BYTES if passes_over else _REMOTE_BLOCK_BYTES
    is_long = False
    while offset + FRAME_BYTES <= size:
        at = offset - block_begin
        if at + HEADER_BYTES > len(block):
            block = read_at(offset, HEADER_BYTES if is_long else block_bytes)
            block_begin, at = offset, 0
            if len(block) < HEADER_BYTES:  # the file has become shorter meanwhile
                break
        (length,) = struct.unpack_from("<Q", block, at)
        is_long = passes_over and length >= _LONG_RECORD_BYTES
        end = offset + length + FRAME_BYTES
        if end > size:
            break
        headers += block[at : at + HEADER_BYTES]
        offsets.append(end)
        offset = end
    table = np.frombuffer(bytes(headers), np.uint8).reshape(-1, HEADER_BYTES)
    damaged = np.flatnonzero(~lengths_are_whole(table))
    whole = int(damaged[0]) if len(damaged) else len(table)
    return np.array(offsets[: whole + 1], np.int64)


def end_of_damage(read_at: ReadAt, begin: int, size: int) -> int:
    """How far a file must be read to tell what is wrong with it behind its last whole record.

    Args:
        read_at: gives a part of the file.
        begin: where that record ends.
        size: of the file, in bytes.

    Returns:
        `size` where a record is truncated; the end of the header where its length is damaged, since the rest of the
        file, however large, tells nothing then.
    """
    header = read_at(begin, HEADER_BYTES)
    if len(header) < HEADER_BYTES or lengths_are_whole(np.frombuffer(header, np.uint8).reshape(1, -1))[0]:
        return size
    return begin + HEADER_BYTES


def what_is_wrong(frame: bytes) -> str:
    """Why the bytes of one record, from its length to its last checksum, are no record, as the end of a sentence."""
    if len(frame) < HEADER_BYTES:
        return f"the file is truncated: a record's header has {HEADER_BYTES} bytes, and {len(frame)} are there."
    header = np.frombuffer(frame[:HEADER_BYTES], np.uint8).reshape(1, HEADER_BYTES)
    if not lengths_are_whole(header)[0]:
        return "the record's length does not match its checksum, so that nothing behind it can be found in this file."
    (length,) = struct.unpack_from("<Q", frame)
    if len(frame) < length + FRAME_BYTES:
        return f"the file is truncated: the record has {length + FRAME_BYTES} bytes, and {len(frame)} are there."
    return "the record's data do not match their checksum: they were damaged after they were written."


def lengths_are_whole(headers: np.ndarray) -> np.ndarray:
    """Which headers (uint8, shape `(n, 12)`) have a length that matches its checksum."""
    crc = np.full(len(headers), 0xFFFFFFFF, np.uint32)
    for column in range(8):
        crc = _table()[(crc ^ headers[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc = ~crc
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK_DELTA
    return masked == np.ascontiguousarray(headers[:, 8:12]).view("<u4")[:, 0]


@functools.cache
def _table() -> np.ndarray:
    """For each byte its part in the CRC, uint32, shape (256,)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & np.uint32(1), (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table.astype(np.uint32)
