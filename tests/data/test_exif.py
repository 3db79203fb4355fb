"""The orientation of pictures, in well-made and broken metadata."""

from __future__ import annotations

import numpy as np
import pytest

from keras_turbo.data.sources import image_decoder
from tests.data.image_files import (
    ICC,
    JFIF,
    XMP,
    exif_segment,
    segment,
    tiff,
)

SCAN = b"\xff\xda" + bytes(20)


def orientation_of(data: bytes) -> int:
    return image_decoder._jpeg_orientation(data)


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation_is_read(order):
    for orientation in range(1, 9):
        for before in (b"", JFIF, XMP, JFIF + ICC + XMP, b"\xff\xff\xff"):
            data = b"\xff\xd8" + before + exif_segment(tiff(orientation, order)) + SCAN
            assert orientation_of(data) == orientation, before


@pytest.mark.parametrize("order", ["<", ">"])
def test_unusual_but_valid_directories_are_read(order):
    for variation in (
        {"kind": 4},
        {"before": 0, "after": 0},
        {"before": 60},
        {"directory_offset": 26},
        {"directory_offset": 27},
        {"count": 65535},
        {"count": 3},
    ):
        data = b"\xff\xd8" + exif_segment(tiff(6, order, **variation)) + SCAN
        assert orientation_of(data) == 6, variation


def test_the_first_of_two_segments_counts():
    assert orientation_of(b"\xff\xd8" + exif_segment(tiff(6)) + exif_segment(tiff(3)) + SCAN) == 6


BROKEN = [
    b"",
    b"\xff\xd8",
    b"\xff\xd8" + SCAN,
    b"\xff\xd8" + JFIF + SCAN + exif_segment(tiff(6)),
    b"\xff\xd8" + XMP + SCAN,
    b"\xff\xd8" + segment(0xE1, b"Exif\0\0"),
    b"\xff\xd8\xff\xe1\x00\x00Exif\0\0" + tiff(6),
    b"\xff\xd8" + exif_segment(b"XX" + tiff(6)[2:]) + SCAN,
    b"\xff\xd8" + exif_segment(b"II+\0" + tiff(6)[4:]) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(0)) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(9)) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(65535)) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(2**32 - 1, kind=4)) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(6, kind=2)) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(6, tag=0x0113)) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(6, count=2)) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(6)[:4] + b"\xff\xff\xff\xff" + tiff(6)[8:]) + SCAN,
    b"\xff\xd8" + exif_segment(tiff(6)[:4] + b"\xff\xff\xff\x7f" + tiff(6)[8:]) + SCAN,
    # The directory lies outside the segment.
    b"\xff\xd8" + exif_segment(tiff(6)[:8]) + tiff(6)[8:] + SCAN,
]


def test_absent_or_broken_metadata_is_upright():
    for data in BROKEN:
        assert orientation_of(data) == 1, data[:60]


@pytest.mark.parametrize("order", ["<", ">"])
def test_metadata_cut_anywhere_does_not_fail(order):
    data = b"\xff\xd8" + JFIF + exif_segment(tiff(6, order))
    read = {orientation_of(data[:length]) for length in range(len(data))}
    assert read == {1, 6}


def test_random_metadata_does_not_fail():
    rng = np.random.default_rng(0)
    start = bytearray(b"\xff\xd8" + JFIF + exif_segment(tiff(6, before=3)) + SCAN)
    for _ in range(300):
        data = start.copy()
        for position in rng.integers(2, len(data), 4):
            data[position] = rng.integers(0, 256)
        assert 1 <= orientation_of(bytes(data)) <= 8
