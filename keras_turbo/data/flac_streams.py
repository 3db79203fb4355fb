"""FLAC files as bytes: what their header says, and whether all of it is there, as RFC 9639 describes them.

TensorFlow I/O decodes until it has as many samples as the header says. Where damage has cost some, it asks on and on at
the file's end, in vain and for ever. So damage must be found out before.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

import numpy as np

# x^8 + x^2 + x + 1, of a frame's header, and x^16 + x^15 + x^2 + 1, of a frame.
_CRC_8_POLYNOMIAL = 0x07
_CRC_16_POLYNOMIAL = 0x8005

# So many parts of a file go through the checksum side by side, each at least so long.
_MOST_LANES = 4096
_SHORTEST_LANE_BYTES = 64

# Codes of the number of samples in a frame: these stand for a number, 6 and 7 for one or two more bytes of the header.
_BLOCK_SIZES = {1: 192, **{2 + n: 576 << n for n in range(4)}, **{8 + n: 256 << n for n in range(8)}}
# How many more bytes a code of the sample rate stands for.
_RATE_BYTES = {12: 1, 13: 2, 14: 2}

# Players of MP3 put it behind files of other kinds, too.
_ID3_BYTES = 128


class FlacStream(NamedTuple):
    """What the header of a FLAC file says."""

    sample_rate: int
    channels: int
    bits: int
    num_samples: int


def flac_stream(data: bytes) -> FlacStream:
    """Reads the header of a FLAC file, and finds out whether the file is whole.

    Raises:
        ValueError: it is not; the text is a sentence.
        struct.error: it ends in its header.
    """
    (smallest_block, largest_block) = struct.unpack_from(">HH", data, 8)
    # Behind the sizes of blocks and frames: rate (20 bits), channels - 1 (3), bits - 1 (5), number of samples (36).
    (packed,) = struct.unpack_from(">Q", data, 18)
    stream = FlacStream(packed >> 44, flac_channels(data), (packed >> 36 & 0x1F) + 1, packed & (1 << 36) - 1)
    at, is_last = 4, False
    while not is_last:
        (block,) = struct.unpack_from(">I", data, at)
        is_last, at = bool(block >> 31), at + 4 + (block & 0xFFFFFF)
    end = len(data) - (_ID3_BYTES if data[-_ID3_BYTES:].startswith(b"TAG") else 0)
    frames = data[at:end]
    if not frames or flac_checksum(frames):
        raise ValueError(f"the FLAC file is truncated or damaged: its {len(data)} bytes do not match their checksums.")
    num_samples = _end_of_last_frame(frames, largest_block if smallest_block == largest_block else None)
    if num_samples != stream.num_samples:
        raise ValueError(
            f"the FLAC file is truncated: it says {stream.num_samples} samples of each channel, and has {num_samples}."
        )
    return stream


def flac_channels(data: bytes) -> int:
    """The number of channels, by the beginning of a file.

    Raises:
        struct.error: it ends before.
    """
    (packed,) = struct.unpack_from(">Q", data, 18)
    return (packed >> 41 & 0x7) + 1


def flac_checksum(frames: bytes) -> int:
    """The CRC-16 of some whole FLAC frames, which is 0, since each ends with that of what is before.

    It is computed for many parts of the data at a time. Since it is linear, and begins with 0, zeros in front of the
    data change nothing, and the parts are joined by what becomes of each bit after as many zeros as a part is long.
    """
    data = np.frombuffer(frames, np.uint8)
    lanes = max(1, min(_MOST_LANES, len(data) // _SHORTEST_LANE_BYTES))
    padded = np.zeros(-(-len(data) // lanes) * lanes, np.uint8)
    padded[len(padded) - len(data) :] = data
    table = _crc_16_table()
    parts, bits = np.zeros(lanes, np.uint16), np.uint16(1) << np.arange(16, dtype=np.uint16)
    for column in np.ascontiguousarray(padded.reshape(lanes, -1).T):
        parts = table[(parts >> np.uint16(8)) ^ column] ^ (parts << np.uint16(8))
        bits = table[bits >> np.uint16(8)] ^ (bits << np.uint16(8))
    becomes, checksum = bits.tolist(), 0
    for part in parts.tolist():
        moved = 0
        for bit in range(16):
            if checksum >> bit & 1:
                moved ^= becomes[bit]
        checksum = moved ^ part
    return checksum


@functools.cache
def _crc_16_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint16) << np.uint16(8)
    for _ in range(8):
        shifted = table << np.uint16(1)
        table = np.where(table & np.uint16(0x8000), shifted ^ np.uint16(_CRC_16_POLYNOMIAL), shifted)
    return table.astype(np.uint16)


def _end_of_last_frame(frames: bytes, fixed_block: int | None) -> int:
    """How many samples there are up to the end of the last of some whole frames; 0 if there is none."""
    at = len(frames)
    while (at := frames.rfind(b"\xff", 0, at)) >= 0:
        if frames[at + 1 : at + 2] not in (b"\xf8", b"\xf9"):
            continue
        try:
            end = _end_of_frame(frames[at : at + 32], fixed_block)
        except IndexError:
            continue
        if end is not None and not flac_checksum(frames[at:]):
            return end
    return 0


def _end_of_frame(header: bytes, fixed_block: int | None) -> int | None:
    """The number of the sample behind a frame; None if this is no frame's header."""
    # The number of the frame, or of its first sample, in as many bytes as there are ones at its beginning, like UTF-8.
    ones = 8 - (header[4] ^ 0xFF).bit_length()
    length = max(1, ones)
    number = header[4] & 0xFF >> ones + 1 if ones else header[4]
    for byte in header[5 : 4 + length]:
        number = number << 6 | byte & 0x3F
    at = 4 + length
    code = header[2] >> 4
    if code in (6, 7):
        block = int.from_bytes(header[at : at + code - 5], "big") + 1
        at += code - 5
    elif code in _BLOCK_SIZES:
        block = _BLOCK_SIZES[code]
    else:
        return None
    at += _RATE_BYTES.get(header[2] & 0xF, 0)
    if _crc_8(header[:at]) != header[at]:
        return None
    is_by_sample = header[1] & 1 or fixed_block is None
    return number + block if is_by_sample else number * fixed_block + block


def _crc_8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ _CRC_8_POLYNOMIAL) & 0xFF if crc & 0x80 else crc << 1
    return crc
