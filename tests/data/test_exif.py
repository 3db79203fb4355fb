"""The orientation of pictures, in well-made and broken metadata."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data import exif
from keras_turbo.data.pillow_decoder import orientation_by_pillow
from tests.data.image_files import (
    ICC,
    JFIF,
    XMP,
    assert_equal,
    encoded,
    exif_segment,
    metadata_with,
    picture,
    segment,
    tiff,
    turned,
)

SCAN = b"\xff\xda" + bytes(20)


@functools.cache
def _reader():
    return tf.function(exif.jpeg_orientation, input_signature=[tf.TensorSpec([], tf.string)])


def orientation_of(data: bytes) -> int:
    result = _reader()(data)
    assert result.dtype == tf.int32
    assert result.shape == []
    return int(result)


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


def test_pillow_reads_other_kinds():
    for kind in ("PNG", "WEBP", "JPEG"):
        data = encoded(picture(8, 6), kind, exif=metadata_with(8))
        assert int(orientation_by_pillow(tf.constant(data))) == 8, kind
        assert int(orientation_by_pillow(tf.constant(encoded(picture(8, 6), kind)))) == 1, kind
    assert int(orientation_by_pillow(tf.constant(b"no image"))) == 1


def test_pixels_and_regions_turn_alike():
    stored = np.array(picture(9, 14))
    for orientation in range(1, 9):
        expected = turned(stored, orientation)
        assert_equal(exif.upright(tf.constant(stored), tf.constant(orientation)).numpy(), expected, orientation)
        size = exif.upright_size(tf.constant(stored.shape[:2]), tf.constant(orientation))
        assert tuple(size.numpy()) == expected.shape[:2]
        for region in [(0, 0, 1, 1), (2, 1, 5, 7), (0, 3, 9, 6), (8, 8, 1, 1), (4, 0, 2, 9)]:
            y, x, rows, columns = exif.stored_region(
                tf.constant(region), stored.shape[:2], tf.constant(orientation)
            ).numpy()
            part = exif.upright(tf.constant(stored[y : y + rows, x : x + columns]), tf.constant(orientation)).numpy()
            top, left, height, width = region
            assert_equal(part, expected[top : top + height, left : left + width], (orientation, region))
