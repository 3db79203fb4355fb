"""Image files to pixels: what is decoded, and which way up."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_turbo.data.images import ImageOptions
from keras_turbo.data.sources.image_decoder import IMAGE_ENDINGS, ImageDecoder, image_kind
from tests.data.image_files import (
    DEEP,
    GRAY,
    ICC,
    IMAGE_SIZE,
    JPEG_TOLERANCE,
    JPEGS,
    LOSSLESS,
    MODES,
    PALETTE,
    RGB,
    XMP,
    assert_close,
    assert_equal,
    by_pillow,
    decode,
    encoded,
    exif_segment,
    metadata_with,
    picture,
    resized,
    tiff,
    turned,
    with_segments,
    without_adobe_marker,
)

pytestmark = pytest.mark.compatibility


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_lossless_kinds_are_as_pillow_reads_them(channels):
    # The luma of a PNG is computed by libpng, whose rounding may differ by one.
    tolerance = 1 if channels == 1 else 0
    for name, data in LOSSLESS.items():
        assert_close(decode(data, channels=channels), by_pillow(data, channels), tolerance, name)


@pytest.mark.filterwarnings("ignore:There are images of 16 bits")
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bit_png_is_cut_to_its_upper_8(channels):
    expected = np.repeat((np.array(DEEP) >> 8)[..., np.newaxis], channels, -1)
    expected[..., 3:] = 255
    assert_close(decode(encoded(DEEP, "PNG"), channels=channels), expected, 0)


def test_transparent_pixels_of_a_gif_have_their_color_or_are_transparent():
    data = encoded(PALETTE, "GIF", transparency=3)
    transparent = np.array(PALETTE) == 3
    assert_equal(decode(data)[transparent], np.array(PALETTE.convert("RGB"))[transparent])
    assert np.array_equal(decode(data, channels=4)[..., 3] == 0, transparent)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_jpeg_is_close_to_pillow(channels):
    for name, data in JPEGS.items():
        assert_close(decode(data, channels=channels), by_pillow(data, channels), JPEG_TOLERANCE, name)


def test_jpeg_is_as_tensorflow_decodes_it():
    data = JPEGS["baseline"]
    assert_equal(decode(data), tf.io.decode_jpeg(data, channels=3))
    assert_equal(decode(data, channels=1), tf.io.decode_jpeg(data, channels=1))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_cmyk_jpeg(channels):
    data = encoded(RGB.convert("CMYK"), "JPEG", quality=95)
    expected = np.array(RGB.convert(MODES[channels])).reshape(24, 40, channels)
    # Pillow and others take CMYK for inverted, with and without Adobe's marker.
    for variant in (data, without_adobe_marker(data)):
        pixels = decode(variant, channels=channels)
        assert_close(pixels, by_pillow(variant, channels), 0)
        assert_close(pixels, expected, 12)
    # An unusual one of these, for it looks plain.
    plain = data[:2] + JPEGS["baseline"][2:20] + data[2:]
    plain = without_adobe_marker(plain)
    assert_close(decode(plain, channels=channels), expected, 12)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("jfif", [True, False])
def test_jpeg_is_turned_upright(order, jfif):
    stored = JPEGS["baseline"]
    for orientation in range(1, 9):
        data = with_segments(stored, exif_segment(tiff(orientation, order)), jfif=jfif)
        expected = turned(decode(stored), orientation)
        assert_equal(decode(data), expected, orientation)
        by_pillow = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        assert_close(decode(data), by_pillow, JPEG_TOLERANCE, orientation)
        assert_close(decode(data, image_size=IMAGE_SIZE), resized(expected, IMAGE_SIZE), 1, orientation)
        assert_equal(decode(data, exif_orientation=False), decode(stored), orientation)


@pytest.mark.parametrize("resize", ["pad", "crop"])
def test_a_turned_picture_fits_as_an_upright_one(resize):
    """The wanted part of a turned picture is found in the stored one: compare with a file that is stored upright."""
    options = {"image_size": IMAGE_SIZE, "resize": resize}
    for orientation in range(1, 9):
        data = encoded(picture(31, 46), "PNG", exif=metadata_with(orientation))
        upright = encoded(Image.fromarray(turned(np.array(picture(31, 46)), orientation)), "PNG")
        assert_equal(decode(data, **options), decode(upright, **options), orientation)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_other_kinds_are_turned_upright(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    for orientation in range(1, 9):
        data = encoded(RGB, kind, exif=metadata_with(orientation), **options)
        assert_equal(decode(data), turned(np.array(RGB), orientation), orientation)
        assert_equal(decode(data, exif_orientation=False), np.array(RGB), orientation)


def test_cmyk_is_turned_upright():
    stored = encoded(RGB.convert("CMYK"), "JPEG", quality=95)
    data = stored[:2] + exif_segment(tiff(6)) + stored[2:]
    assert_equal(decode(data), turned(decode(stored), 6))


def test_metadata_may_stand_behind_other_segments():
    data = with_segments(JPEGS["baseline"], ICC, XMP, exif_segment(tiff(6)))
    assert_equal(decode(data), turned(decode(JPEGS["baseline"]), 6))


def test_broken_metadata_counts_as_upright():
    for broken in (b"", b"II", tiff(6)[:12], b"\0" * 40, tiff(77)):
        data = with_segments(JPEGS["baseline"], exif_segment(broken))
        assert_equal(decode(data), decode(JPEGS["baseline"]), broken)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        *[(data, "jpeg") for data in JPEGS.values()],
        *[(data, name.split()[0]) for name, data in LOSSLESS.items()],
        (b"", None),
        (b"\xff\xd8", None),
        (b"BMW and other words", None),
        (b"RIFF\0\0\0\0WAVEfmt ", None),
        (b"GIF is a kind", None),
        (b"<html>", None),
    ],
)
def test_kinds_are_recognised_by_content(data, kind):
    assert image_kind(data[:16]) == kind
    assert kind is None or f".{kind}" in IMAGE_ENDINGS


def test_16_bit_png_keeps_its_depth_where_that_is_asked_for():
    pixels = decode(encoded(DEEP, "PNG"), channels=1, dtype="uint16")
    np.testing.assert_array_equal(pixels[..., 0], np.array(DEEP))
    pixels = decode(encoded(DEEP, "PNG"), channels=1, dtype="float32")
    np.testing.assert_array_equal(pixels[..., 0], np.array(DEEP, np.float32))
    spread = decode(encoded(GRAY, "PNG"), channels=1, dtype="uint16")
    np.testing.assert_array_equal(spread[..., 0], np.array(GRAY).astype(np.uint16) * 257)


def test_where_8_of_16_bits_are_kept_that_is_said_once():
    decoder = ImageDecoder(ImageOptions(channels=1))
    with pytest.warns(UserWarning, match="images of 16 bits, of which the upper 8 are kept.*dtype='uint16'") as caught:
        [decoder.decode(encoded(DEEP, "PNG"), None, None) for _ in range(2)]
    assert len(caught) == 1


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tiff_is_as_pillow_reads_it(channels):
    for image in (RGB, picture(9, 14), GRAY):
        data = encoded(image, "TIFF")
        assert_close(decode(data, channels=channels), by_pillow(data, channels), 1 if channels == 1 else 0, image.mode)


def test_tiff_of_16_bits_and_turned():
    data = encoded(DEEP, "TIFF")
    np.testing.assert_array_equal(decode(data, channels=1, dtype="uint16")[..., 0], np.array(DEEP))
    for orientation in range(1, 9):
        data = encoded(RGB, "TIFF", exif=metadata_with(orientation))
        assert_equal(decode(data), turned(np.array(RGB), orientation), orientation)
        assert_equal(decode(data, exif_orientation=False), np.array(RGB), orientation)
