"""Image files to pixels of a wanted size: all of a picture, a centered part, a random one, a smaller scale."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_turbo.data.images import INTERPOLATIONS, RandomResizedCrop
from keras_turbo.data.sources.image_decoder import image_kind
from tests.data.image_files import (
    IMAGE_SIZE,
    JPEGS,
    LOSSLESS,
    assert_close,
    assert_equal,
    decode,
    encoded,
    exif_segment,
    picture,
    resized,
    tiff,
    turned,
    with_segments,
)


@pytest.mark.parametrize(
    ("resize", "keras_option"),
    [("stretch", {}), ("crop", {"crop_to_aspect_ratio": True}), ("pad", {"pad_to_aspect_ratio": True})],
)
def test_sizes_are_those_of_keras(tmp_path, resize, keras_option):
    sizes = [(24, 40), (41, 17), (33, 33), (13, 60), (7, 5), (10, 12), (30, 36), (100, 20)]
    kinds = ["JPEG", "PNG", "BMP", "JPEG", "GIF", "PNG", "JPEG", "PNG"]
    files = [encoded(picture(*size), kind) for size, kind in zip(sizes, kinds, strict=True)]
    for number, data in enumerate(files):
        (tmp_path / f"{number}.{image_kind(data[:16])}").write_bytes(data)
    dataset = keras.utils.image_dataset_from_directory(
        tmp_path, labels=None, image_size=IMAGE_SIZE, shuffle=False, batch_size=8, verbose=False, **keras_option
    )
    for data, by_keras, size in zip(files, next(iter(dataset)).numpy(), sizes, strict=True):
        assert_close(decode(data, image_size=IMAGE_SIZE, resize=resize), by_keras, 1.501, size)


@pytest.mark.parametrize("antialias", [False, True])
def test_interpolated_pixels_are_rounded_and_clipped(antialias):
    noise = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (21, 34, 3))
    data = encoded(Image.fromarray(noise), "PNG")
    for interpolation in INTERPOLATIONS:
        options = {"interpolation": interpolation, "antialias": antialias}
        exact = np.asarray(tf.image.resize(noise, IMAGE_SIZE, interpolation, antialias=antialias), float)
        pixels = decode(data, image_size=IMAGE_SIZE, **options)
        by_opencv = interpolation == "bilinear" and not antialias
        assert_close(pixels, np.clip(exact, 0, 255), 1.5001 if by_opencv else 0.5001, interpolation)


@pytest.mark.parametrize("interpolation", ["bilinear", "gaussian"])
def test_pixels_of_the_wanted_size_are_left_alone(interpolation):
    for data in (JPEGS["baseline"], LOSSLESS["png"]):
        assert_equal(decode(data, image_size=(24, 40), interpolation=interpolation), decode(data))


def test_padding_is_black_and_centered():
    white = encoded(Image.new("RGB", (40, 20), (255, 255, 255)), "PNG")
    pixels = decode(white, image_size=(40, 40), resize="pad")
    np.testing.assert_array_equal(pixels[:10], 0)
    np.testing.assert_array_equal(pixels[10:30], 255)
    np.testing.assert_array_equal(pixels[30:], 0)


def test_extreme_shapes():
    wide = encoded(picture(1, 3000), "PNG")
    tall = encoded(picture(700, 1), "JPEG")
    for data in (wide, tall):
        for resize in ("stretch", "pad", "crop"):
            assert decode(data, image_size=(6, 5), resize=resize).shape == (6, 5, 3)


RANDOM = RandomResizedCrop(area=(0.1, 0.6), aspect_ratio=(0.5, 2.0))


def sampled_region(size: tuple[int, int], seed: tuple[int, int]) -> tuple[slice, slice]:
    start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        [*size, 3], [[[0.0, 0.0, 1.0, 1.0]]], seed, 0.0, RANDOM.aspect_ratio, RANDOM.area
    )
    (top, left, _), (height, width, _) = start.numpy(), extent.numpy()
    return slice(top, top + height), slice(left, left + width)


def test_a_random_part_is_that_of_the_whole():
    files = {**JPEGS, "png": LOSSLESS["png"], "exif": with_segments(JPEGS["baseline"], exif_segment(tiff(6)))}
    options = {"image_size": IMAGE_SIZE, "random_resized_crop": RANDOM}
    for name, data in files.items():
        whole = decode(data)
        for number in range(20):
            part = whole[sampled_region(whole.shape[:2], (number, 7))]
            assert_close(decode(data, seed=(number, 7), **options), resized(part, IMAGE_SIZE), 1, (name, number))


def test_a_random_part_is_a_function_of_the_seed():
    options = {"image_size": IMAGE_SIZE, "random_resized_crop": RANDOM}
    parts = [decode(JPEGS["baseline"], seed=(number % 10, 1), **options) for number in range(20)]
    np.testing.assert_array_equal(parts[:10], parts[10:])
    assert len({part.tobytes() for part in parts}) == 10


LARGE = encoded(picture(90, 130), "JPEG", quality=95)


@pytest.mark.parametrize(
    ("resize", "scales"),
    [
        ("stretch", {(91, 130): 1, (46, 65): 1, (45, 65): 2, (45, 10): 2, (22, 32): 4, (11, 16): 8, (1, 1): 8}),
        ("pad", {(60, 65): 2, (45, 80): 2, (46, 66): 1}),
    ],
)
def test_scaled_decoding_keeps_the_size_that_is_needed(resize, scales):
    for image_size, scale in scales.items():
        smaller = tf.io.decode_jpeg(LARGE, channels=3, ratio=scale).numpy()
        expected = decode(encoded(Image.fromarray(smaller), "PNG"), image_size=image_size, resize=resize)
        pixels = decode(LARGE, image_size=image_size, resize=resize, scaled_decode=True)
        assert_equal(pixels, expected, (image_size, scale))


def test_scaled_decoding_of_a_centered_part():
    """The part is chosen in the whole picture, and then scaled."""
    for image_size, scale, columns in [
        ((22, 22), 4, slice(20, 110)),
        ((45, 46), 2, slice(19, 111)),
        ((46, 46), 1, slice(20, 110)),
    ]:
        smaller = tf.io.decode_jpeg(LARGE, channels=3, ratio=scale).numpy()
        part = smaller[:, columns.start // scale : -(-columns.stop // scale)]
        pixels = decode(LARGE, image_size=image_size, resize="crop", scaled_decode=True)
        assert_close(pixels, resized(part, image_size), 1, image_size)


def test_scaled_decoding_of_a_turned_picture():
    data = with_segments(LARGE, exif_segment(tiff(6)))
    smaller = tf.io.decode_jpeg(LARGE, channels=3, ratio=2).numpy()
    pixels = decode(data, image_size=(65, 45), scaled_decode=True)
    assert_equal(pixels, turned(smaller, 6))
    whole = tf.io.decode_jpeg(LARGE, channels=3).numpy()
    pixels = decode(data, image_size=(45, 65), scaled_decode=True)
    assert_close(pixels, resized(turned(whole, 6), (45, 65)), 1)


def test_scaled_decoding_of_a_random_part_looks_alike():
    options = {"image_size": (8, 8), "random_resized_crop": RANDOM}
    for number in range(10):
        pixels = decode(LARGE, seed=(number, 0), scaled_decode=True, **options).astype(float)
        exact = decode(LARGE, seed=(number, 0), antialias=True, **options)
        assert np.abs(pixels - exact).mean() < 12


def test_scaled_decoding_leaves_other_kinds_alone():
    pixels = decode(LOSSLESS["png"], image_size=IMAGE_SIZE, scaled_decode=True)
    assert_equal(pixels, decode(LOSSLESS["png"], image_size=IMAGE_SIZE))
