"""Image files to pixels: the kinds of files, orientation, sizes, random parts, and what is wrong with a file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import re
import struct
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_turbo.data import pillow_decoder
from keras_turbo.data.images import (
    IMAGE_ENDINGS,
    INTERPOLATIONS,
    ImageOptions,
    RandomResizedCrop,
    decode_image,
    image_kind,
)
from tests.data.image_files import ICC, XMP, encoded, exif_segment, picture, tiff, with_segments

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# TensorFlow's default for JPEG is a faster and less exact cosine transform than Pillow's.
JPEG_TOLERANCE = 12
SEED = (3, 4)


@functools.cache
def _decoder(options: ImageOptions):
    signature = [tf.TensorSpec([], tf.string), tf.TensorSpec([2], tf.int64)]
    return tf.function(lambda data, seed: decode_image(data, options, seed), input_signature=signature)


def decode(data: bytes, seed: tuple[int, int] = SEED, **options) -> np.ndarray:
    """Decodes in a graph, as in a map function."""
    return _decoder(ImageOptions(**options))(data, seed).numpy()


def by_pillow(data: bytes, channels: int = 3) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.array(image.convert(MODES[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


def assert_close(pixels: np.ndarray, expected: np.ndarray, tolerance: float, what: object = "") -> None:
    assert pixels.dtype == np.uint8, what
    assert pixels.shape == expected.shape, what
    assert np.abs(pixels.astype(float) - expected).max() <= tolerance, what


def assert_equal(pixels: np.ndarray, expected: np.ndarray, what: object = "") -> None:
    assert_close(pixels, np.asarray(expected), 0, what)


RGB = picture(24, 40)
RGBA = RGB.copy()
RGBA.putalpha(picture(24, 40, seed=1).convert("L"))
GRAY = RGB.convert("L")
PALETTE = RGB.convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
BITS = RGB.convert("1")
DEEP = Image.fromarray((np.arange(24 * 40).reshape(24, 40) * 68).astype(np.uint16))
ANIMATION = {"save_all": True, "append_images": [RGB.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]}


def interlaced_png() -> bytes:
    """An RGB picture of 4 x 4 pixels in the seven passes of Adam7, which Pillow reads and does not write."""
    pixels = np.array(picture(4, 4))
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = b""
    for top, left, down, right in passes:
        part = pixels[top::down, left::right]
        rows += b"".join(b"\0" + row.tobytes() for row in part if row.size)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bit_fields_bmp() -> bytes:
    """A BMP of 16 bits a pixel: 5, 6 and 5 of them for red, green and blue."""
    pixels = np.array(RGB).astype(np.uint32)
    packed = (pixels[..., 0] >> 3 << 11 | pixels[..., 1] >> 2 << 5 | pixels[..., 2] >> 3).astype("<u2")[::-1].tobytes()
    head = struct.pack("<IiiHHIIiiII", 40, 40, 24, 1, 16, 3, len(packed), 0, 0, 0, 0)
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
    offset = 14 + len(head) + len(masks)
    return b"BM" + struct.pack("<IHHI", offset + len(packed), 0, 0, offset) + head + masks + packed


def top_down(bmp: bytes) -> bytes:
    (height,) = struct.unpack("<i", bmp[22:26])
    return bmp[:22] + struct.pack("<i", -height) + bmp[26:]


def on_larger_screen(gif: bytes) -> bytes:
    """The same GIF with a first frame that fills only a part of the screen."""
    return gif[:6] + struct.pack("<HH", 50, 30) + gif[10:]


def without_adobe_marker(jpeg: bytes) -> bytes:
    start = jpeg.index(b"\xff\xee")
    (length,) = struct.unpack(">H", jpeg[start + 2 : start + 4])
    return jpeg[:start] + jpeg[start + 2 + length :]


LOSSLESS = {
    "png": encoded(RGB, "PNG"),
    "png palette": encoded(PALETTE, "PNG"),
    "png palette with transparency": encoded(PALETTE, "PNG", transparency=3),
    "png 1 bit": encoded(BITS, "PNG"),
    "png gray": encoded(GRAY, "PNG"),
    "png gray with transparency": encoded(GRAY, "PNG", transparency=100),
    "png gray and alpha": encoded(RGBA.convert("LA"), "PNG"),
    "png rgba": encoded(RGBA, "PNG"),
    "png interlaced": interlaced_png(),
    "gif": encoded(PALETTE, "GIF"),
    "gif animated": encoded(PALETTE, "GIF", **ANIMATION),
    "gif smaller than its screen": on_larger_screen(encoded(PALETTE, "GIF")),
    "bmp": encoded(RGB, "BMP"),
    "bmp odd width": encoded(RGB.crop((0, 0, 37, 24)), "BMP"),
    "bmp 32 bits": encoded(RGBA, "BMP"),
    "bmp top down": top_down(encoded(RGB, "BMP")),
    "bmp palette": encoded(PALETTE, "BMP"),
    "bmp 1 bit": encoded(BITS, "BMP"),
    "bmp 16 bits": bit_fields_bmp(),
    "bmp with a byte too many": encoded(RGB, "BMP") + b"\0",
    "webp lossless": encoded(RGB, "WEBP", lossless=True),
    "webp lossless rgba": encoded(RGBA, "WEBP", lossless=True, exact=True),
    "webp": encoded(RGB, "WEBP"),
    "webp rgba": encoded(RGBA, "WEBP"),
    "webp animated": encoded(RGB, "WEBP", lossless=True, **ANIMATION),
}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_lossless_kinds_are_as_pillow_reads_them(channels):
    # The luma of a PNG is computed by libpng, whose rounding may differ by one.
    tolerance = 1 if channels == 1 else 0
    for name, data in LOSSLESS.items():
        assert_close(decode(data, channels=channels), by_pillow(data, channels), tolerance, name)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bit_png_is_cut_to_its_upper_8(channels):
    expected = np.repeat((np.array(DEEP) >> 8)[..., np.newaxis], channels, -1)
    expected[..., 3:] = 255
    assert_close(decode(encoded(DEEP, "PNG"), channels=channels), expected, 0)


def test_transparent_pixels_of_a_gif_are_black_or_transparent():
    data = encoded(PALETTE, "GIF", transparency=3)
    transparent = np.array(PALETTE) == 3
    assert not decode(data)[transparent].any()
    assert np.array_equal(decode(data, channels=4)[..., 3] == 0, transparent)


JPEGS = {
    "baseline": encoded(RGB, "JPEG", quality=95),
    "progressive": encoded(RGB, "JPEG", quality=95, progressive=True),
    "full color resolution": encoded(RGB, "JPEG", quality=95, subsampling=0),
    "gray": encoded(GRAY, "JPEG", quality=95),
    "with color profile": with_segments(encoded(RGB, "JPEG", quality=95), ICC),
}


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


def test_common_kinds_never_enter_python(monkeypatch):
    calls = []
    original = pillow_decoder._pixels_or_problem
    monkeypatch.setattr(
        pillow_decoder, "_pixels_or_problem", lambda data, channels: calls.append(data) or original(data, channels)
    )
    monkeypatch.setattr(pillow_decoder, "_orientation", lambda data: calls.append(data) or np.int32(1))
    options = ImageOptions(image_size=(8, 8))
    common = [*JPEGS.values(), *(LOSSLESS[name] for name in ("png", "gif", "gif animated", "bmp", "bmp 32 bits"))]
    common.append(with_segments(JPEGS["baseline"], exif_segment(tiff(6))))
    rare = LOSSLESS["bmp palette"]
    dataset = tf.data.Dataset.from_tensor_slices([*common, rare]).map(lambda data: decode_image(data, options))
    assert len(list(dataset)) == len(common) + 1
    assert calls == [rare]


def test_mixed_kinds_under_one_ending_make_one_batch(tmp_path):
    small = picture(8, 8)
    files = {
        "a.jpg": encoded(small, "JPEG"),
        "b.jpg": encoded(small, "PNG"),
        "c.jpg": encoded(small, "GIF", save_all=True, append_images=[picture(8, 8, seed=1)]),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    options = ImageOptions(image_size=(8, 8))
    paths = [str(tmp_path / name) for name in files]
    dataset = tf.data.Dataset.from_tensor_slices(paths).map(
        lambda path: decode_image(tf.io.read_file(path), options), num_parallel_calls=2
    )
    batches = list(dataset.batch(3))
    assert dataset.batch(3).element_spec == tf.TensorSpec((None, 8, 8, 3), tf.uint8)
    assert [batch.shape for batch in batches] == [(3, 8, 8, 3)]
    for pixels, data in zip(batches[0].numpy(), files.values(), strict=True):
        assert_close(pixels, by_pillow(data), JPEG_TOLERANCE)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (ImageOptions(), [None, None, 3]),
        (ImageOptions(channels=1), [None, None, 1]),
        (ImageOptions(image_size=(5, 7), channels=4, resize="pad"), [5, 7, 4]),
        (ImageOptions(image_size=[5, 7], scaled_decode=True, resize="crop"), [5, 7, 3]),
    ],
    ids=str,
)
def test_static_shape(options, shape):
    assert _decoder(options).get_concrete_function().structured_outputs.shape.as_list() == shape


def test_works_eagerly():
    for data in (JPEGS["baseline"], LOSSLESS["png"], LOSSLESS["bmp palette"], encoded(RGB.convert("CMYK"), "JPEG")):
        pixels = decode_image(tf.constant(data), ImageOptions(image_size=(9, 9))).numpy()
        assert_equal(pixels, decode(data, image_size=(9, 9)))


# --- orientation


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """What a person sees of stored pixels, by Pillow."""
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    return np.array(ImageOps.exif_transpose(image))


def resized(pixels: np.ndarray, image_size: tuple[int, int], **options) -> np.ndarray:
    """`tf.image.resize` and rounding."""
    return np.floor(np.clip(tf.image.resize(pixels, image_size, **options), 0, 255) + 0.5).astype(np.uint8)


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
        assert_equal(decode(data, image_size=(11, 16)), resized(expected, (11, 16)), orientation)
        assert_equal(decode(data, exif_orientation=False), decode(stored), orientation)


@pytest.mark.parametrize("resize", ["pad", "crop"])
def test_a_turned_picture_fits_as_an_upright_one(resize):
    """The wanted part of a turned picture is found in the stored one: compare with a file that is stored upright."""
    options = {"image_size": (12, 8), "resize": resize}
    for orientation in range(1, 9):
        data = encoded(picture(31, 46), "PNG", exif=_metadata(orientation))
        upright = encoded(Image.fromarray(turned(np.array(picture(31, 46)), orientation)), "PNG")
        assert_equal(decode(data, **options), decode(upright, **options), orientation)


def _metadata(orientation: int) -> Image.Exif:
    metadata = Image.Exif()
    metadata[0x0112] = orientation
    return metadata


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_other_kinds_are_turned_upright(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    for orientation in range(1, 9):
        data = encoded(RGB, kind, exif=_metadata(orientation), **options)
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


# --- sizes


@pytest.mark.parametrize(
    ("resize", "keras_option"),
    [("stretch", {}), ("crop", {"crop_to_aspect_ratio": True}), ("pad", {"pad_to_aspect_ratio": True})],
)
def test_sizes_are_those_of_keras(tmp_path, resize, keras_option):
    pictures = [picture(24, 40), picture(41, 17), picture(33, 33), picture(13, 60)]
    files = [encoded(image, kind) for image, kind in zip(pictures, ("JPEG", "PNG", "BMP", "JPEG"), strict=True)]
    for number, data in enumerate(files):
        (tmp_path / f"{number}.{image_kind(data[:16])}").write_bytes(data)
    for image_size in [(16, 12), (30, 50), (9, 31)]:
        dataset = keras.utils.image_dataset_from_directory(
            tmp_path, labels=None, image_size=image_size, shuffle=False, batch_size=4, verbose=False, **keras_option
        )
        pixels = np.stack([decode(data, image_size=image_size, resize=resize) for data in files])
        assert_close(pixels, next(iter(dataset)).numpy(), 0.501, image_size)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("antialias", [False, True])
def test_interpolated_pixels_are_rounded_and_clipped(interpolation, antialias):
    noise = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (21, 34, 3))
    data = encoded(Image.fromarray(noise), "PNG")
    pixels = decode(data, image_size=(16, 25), interpolation=interpolation, antialias=antialias)
    exact = np.asarray(tf.image.resize(noise, (16, 25), interpolation, antialias=antialias), float)
    assert_close(pixels, np.clip(exact, 0, 255), 0.5001)


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


# --- random parts


RANDOM = RandomResizedCrop(area=(0.1, 0.6), aspect_ratio=(0.5, 2.0))


def sampled_region(size: tuple[int, int], seed: tuple[int, int]) -> tuple[slice, slice]:
    start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        [*size, 3], [[[0.0, 0.0, 1.0, 1.0]]], seed, 0.0, RANDOM.aspect_ratio, RANDOM.area
    )
    (top, left, _), (height, width, _) = start.numpy(), extent.numpy()
    return slice(top, top + height), slice(left, left + width)


def test_a_random_part_is_that_of_the_whole():
    files = {**JPEGS, "png": LOSSLESS["png"], "exif": with_segments(JPEGS["baseline"], exif_segment(tiff(6)))}
    options = {"image_size": (10, 12), "random_resized_crop": RANDOM}
    for name, data in files.items():
        whole = decode(data)
        for number in range(20):
            part = whole[sampled_region(whole.shape[:2], (number, 7))]
            assert_equal(decode(data, seed=(number, 7), **options), resized(part, (10, 12)), (name, number))


def test_a_random_part_is_a_function_of_the_seed():
    options = {"image_size": (10, 12), "random_resized_crop": RANDOM}
    parts = [decode(JPEGS["baseline"], seed=(number % 10, 1), **options) for number in range(20)]
    np.testing.assert_array_equal(parts[:10], parts[10:])
    assert len({part.tobytes() for part in parts}) == 10


def test_a_random_part_without_a_seed_is_refused():
    with pytest.raises(ValueError, match="needs a `seed`"):
        decode_image(tf.constant(b""), ImageOptions(image_size=(8, 8), random_resized_crop=RandomResizedCrop()))


def test_seeds_of_32_bits():
    options = ImageOptions(image_size=(10, 12), random_resized_crop=RANDOM)
    pixels = decode_image(tf.constant(JPEGS["baseline"]), options, tf.constant(SEED, tf.int32))
    assert pixels.shape == (10, 12, 3)


# --- decoding at a smaller scale


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
        assert_equal(pixels, resized(part, image_size), image_size)


def test_scaled_decoding_of_a_turned_picture():
    data = with_segments(LARGE, exif_segment(tiff(6)))
    smaller = tf.io.decode_jpeg(LARGE, channels=3, ratio=2).numpy()
    pixels = decode(data, image_size=(65, 45), scaled_decode=True)
    assert_equal(pixels, turned(smaller, 6))
    whole = tf.io.decode_jpeg(LARGE, channels=3).numpy()
    pixels = decode(data, image_size=(45, 65), scaled_decode=True)
    assert_equal(pixels, resized(turned(whole, 6), (45, 65)))


def test_scaled_decoding_of_a_random_part_looks_alike():
    options = {"image_size": (8, 8), "random_resized_crop": RANDOM}
    for number in range(10):
        pixels = decode(LARGE, seed=(number, 0), scaled_decode=True, **options).astype(float)
        exact = decode(LARGE, seed=(number, 0), antialias=True, **options)
        assert np.abs(pixels - exact).mean() < 12


def test_scaled_decoding_leaves_other_kinds_alone():
    options = {"image_size": (5, 8)}
    assert_equal(decode(LOSSLESS["png"], scaled_decode=True, **options), decode(LOSSLESS["png"], **options))


# --- what is wrong with a file


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
            with pytest.raises(tf.errors.InvalidArgumentError):
                pytest.fail(
                    f"{name} cut to {share} gave pixels of shape {decode(data[: int(len(data) * share)]).shape}"
                )


@pytest.mark.parametrize("resize", ["crop", "random"])
def test_truncated_jpegs_raise_whatever_part_is_wanted(resize):
    """The missing rows are not among those wanted, and still the file is refused, in each epoch alike."""
    data = encoded(picture(400, 40), "JPEG", quality=95)
    options = {"resize": "crop"} if resize == "crop" else {"random_resized_crop": RandomResizedCrop(area=(0.01, 0.02))}
    assert decode(data, image_size=(8, 8), **options).shape == (8, 8, 3)
    for number in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError):
            decode(data[: int(len(data) * 0.9)], seed=(number, 0), image_size=(8, 8), **options)


def test_bytes_behind_the_end_of_a_jpeg_do_no_harm():
    options = {"image_size": (8, 8), "resize": "crop"}
    assert_equal(decode(JPEGS["baseline"] + b"trailer", **options), decode(JPEGS["baseline"], **options))


MESSAGES = [
    (b"", r"the file is empty \(0 bytes\)"),
    (b"\xff", r"JPEG, PNG, GIF, BMP and WebP are, and its first bytes are b'\\xff'"),
    (b"\0" * 100, r"first bytes are b'\\x00\\x00"),
    (b"  \n<!DOCTYPE html><html>404</html>", "They look like an HTML page"),
    (b"<?xml version='1.0'?><svg/>", "They look like XML or SVG"),
    (b"BMI and other words in a text file", "They look like text"),
    (b"RIFF\x24\0\0\0WAVEfmt ", "not an image that can be read"),
    (encoded(PALETTE, "BMP")[:60], "damaged or truncated bmp file of 60 bytes"),
]


@pytest.mark.parametrize("mode", ["graph", "dataset", "eager"])
def test_the_message_says_what_is_wrong(mode):
    def run(data: bytes) -> None:
        if mode == "graph":
            decode(data)
        elif mode == "dataset":
            list(tf.data.Dataset.from_tensors(data).map(lambda data: decode_image(data, ImageOptions())))
        else:
            decode_image(tf.constant(data), ImageOptions())

    for data, message in MESSAGES:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            run(data)
        # Assertions escape what they print.
        text = caught.value.message.replace("\\\\", "\\").replace("\\'", "'")
        assert re.search(message, text), text
        assert "Traceback" not in text


def test_an_enormous_picture_is_refused_by_pillow(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"exceeds limit.*MAX_IMAGE_PIXELS"):
        decode(LOSSLESS["bmp palette"])


def test_damaged_files_give_pixels_or_an_error():
    """Random damage must never end the process, or raise anything else."""
    rng = np.random.default_rng(0)
    for data in [*CUT.values(), LOSSLESS["webp animated"], LOSSLESS["gif animated"]]:
        for _ in range(15):
            damaged = bytearray(data)
            for position in rng.integers(0, len(data), 3):
                damaged[position] = rng.integers(0, 256)
            with contextlib.suppress(tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError):
                assert decode(bytes(damaged), image_size=(8, 8)).shape == (8, 8, 3)


# --- options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"image_size": 224}, TypeError, "two ints"),
        ({"image_size": (224,)}, TypeError, "two ints"),
        ({"image_size": (224.0, 224)}, TypeError, "two ints"),
        ({"image_size": (True, 224)}, TypeError, "two ints"),
        ({"image_size": (0, 224)}, ValueError, "at least"),
        ({"channels": 2}, ValueError, "1 .grayscale., 3"),
        ({"channels": True}, TypeError, "as an int"),
        ({"channels": "rgb"}, TypeError, "as an int"),
        ({"resize": "fit"}, ValueError, "'stretch', 'pad', 'crop'"),
        ({"interpolation": "cubic"}, ValueError, "bicubic"),
        ({"antialias": 1}, TypeError, "True or False"),
        ({"exif_orientation": None}, TypeError, "True or False"),
        ({"resize": "pad"}, ValueError, "needs a size"),
        ({"scaled_decode": True}, ValueError, "needs a size"),
        ({"random_resized_crop": RandomResizedCrop()}, ValueError, "needs a size"),
        ({"image_size": (8, 8), "random_resized_crop": True}, TypeError, "RandomResizedCrop"),
        ({"image_size": (8, 8), "resize": "pad", "random_resized_crop": RandomResizedCrop()}, ValueError, "one of"),
    ],
    ids=str,
)
def test_options_that_can_not_be_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        ImageOptions(**options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"area": 0.5}, TypeError),
        ({"area": (0.5,)}, TypeError),
        ({"area": ("0.1", 1)}, TypeError),
        ({"area": (False, True)}, TypeError),
        ({"area": (0.0, 1.0)}, ValueError),
        ({"area": (0.5, 1.5)}, ValueError),
        ({"area": (0.9, 0.5)}, ValueError),
        ({"area": (float("nan"), 0.5)}, ValueError),
        ({"aspect_ratio": (-1.0, 1.0)}, ValueError),
        ({"aspect_ratio": (1.0, float("inf"))}, ValueError),
    ],
    ids=str,
)
def test_ranges_that_can_not_be_are_refused(options, error):
    with pytest.raises(error, match=next(iter(options))):
        RandomResizedCrop(**options)


def test_options_are_values():
    options = ImageOptions(image_size=[np.int64(5), 7], random_resized_crop=RandomResizedCrop(area=[0.5, 1]))
    assert options == ImageOptions(image_size=(5, 7), random_resized_crop=RandomResizedCrop(area=(0.5, 1.0)))
    assert hash(options) == hash(dataclasses.replace(options))
    assert type(options.image_size[0]) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.channels = 1


# --- kinds


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
        (b"II*\0", None),
    ],
)
def test_kinds_are_recognised_by_content(data, kind):
    assert image_kind(data[:16]) == kind
    assert kind is None or f".{kind}" in IMAGE_ENDINGS
