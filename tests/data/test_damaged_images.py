"""What is no image, or no whole one: an error that says what is wrong, and never anything worse."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from keras_turbo.data.images import RandomResizedCrop
from tests.data.image_files import (
    IMAGE_SIZE,
    JPEGS,
    LOSSLESS,
    PALETTE,
    RGB,
    assert_equal,
    decode,
    encoded,
    exif_segment,
    picture,
    tiff,
    with_segments,
)

CUT = {
    "jpeg": JPEGS["baseline"],
    "progressive jpeg": JPEGS["progressive"],
    "jpeg with exif": with_segments(JPEGS["baseline"], exif_segment(tiff(6))),
    "cmyk jpeg": encoded(RGB.convert("CMYK"), "JPEG"),
    "png": LOSSLESS["png"],
    "gif": LOSSLESS["gif"],
    "bmp": LOSSLESS["bmp"],
    "bmp palette": LOSSLESS["bmp palette"],
    "webp": LOSSLESS["webp"],
    "webp rgba": LOSSLESS["webp rgba"],
}


def test_truncated_files_raise():
    for name, data in CUT.items():
        for share in (0.1, 0.5, 0.9):
            with pytest.raises(ValueError, match="truncated"):
                pytest.fail(
                    f"{name} cut to {share} gave pixels of shape {decode(data[: int(len(data) * share)]).shape}"
                )


@pytest.mark.parametrize("resize", ["crop", "random"])
def test_truncated_jpegs_raise_whatever_part_is_wanted(resize):
    """The missing rows are not among those wanted, and still the file is refused, in each epoch alike."""
    data = encoded(picture(400, 40), "JPEG", quality=95)
    options = {"resize": "crop"} if resize == "crop" else {"random_resized_crop": RandomResizedCrop(area=(0.01, 0.02))}
    assert decode(data, image_size=IMAGE_SIZE, **options).shape == (*IMAGE_SIZE, 3)
    for number in range(5):
        with pytest.raises(ValueError, match="truncated"):
            decode(data[: int(len(data) * 0.9)], seed=(number, 0), image_size=IMAGE_SIZE, **options)


def test_bytes_behind_the_end_of_a_jpeg_do_no_harm():
    options = {"image_size": IMAGE_SIZE, "random_resized_crop": RandomResizedCrop(area=(0.01, 0.02))}
    assert_equal(decode(JPEGS["baseline"] + b"trailer", **options), decode(JPEGS["baseline"], **options))


MESSAGES = [
    (b"", r"the file is empty \(0 bytes\)"),
    (b"\xff", r"JPEG, PNG, GIF, BMP, WebP and TIFF are, and its first bytes are b'\\xff'"),
    (b"\0" * 100, r"first bytes are b'\\x00\\x00"),
    (b"  \n<!DOCTYPE html><html>404</html>", "They look like an HTML page"),
    (b"<?xml version='1.0'?><svg/>", "They look like XML or SVG"),
    (b"BMI and other words in a text file", "They look like text"),
    (b"RIFF\x24\0\0\0WAVEfmt ", "not an image that can be read"),
    (encoded(PALETTE, "BMP")[:60], "damaged or truncated bmp file of 60 bytes"),
]


def test_the_message_says_what_is_wrong():
    for data, message in MESSAGES:
        with pytest.raises(ValueError, match=message):
            decode(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_picture_that_declares_too_many_pixels_is_refused(kind):
    data = encoded(RGB, kind)
    assert decode(data, max_pixels=24 * 40).shape == (24, 40, 3)
    with pytest.raises(ValueError, match=r"declares 40 x 24 pixels, more than max_pixels=959.*larger `max_pixels`"):
        decode(data, max_pixels=24 * 40 - 1)


def test_damaged_files_give_pixels_or_an_error():
    """Random damage must never end the process, or raise anything else."""
    rng = np.random.default_rng(0)
    for data in [*CUT.values(), LOSSLESS["webp animated"], LOSSLESS["gif animated"]]:
        for _ in range(15):
            damaged = bytearray(data)
            for position in rng.integers(0, len(data), 3):
                damaged[position] = rng.integers(0, 256)
            with contextlib.suppress(ValueError):
                assert decode(bytes(damaged), image_size=IMAGE_SIZE).shape == (*IMAGE_SIZE, 3)
