"""Makes the image files that the tests of decoding read."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps

from keras_turbo.data.images import ImageOptions
from keras_turbo.data.sources.image_decoder import ImageDecoder


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """An RGB picture with soft random colors, so that JPEG keeps it well, and no symmetry."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def tiff(
    orientation: int,
    order: str = "<",
    *,
    kind: int = 3,
    tag: int = 0x0112,
    before: int = 2,
    after: int = 1,
    directory_offset: int = 8,
    count: int | None = None,
) -> bytes:
    """A TIFF structure as Exif has it: the orientation among other entries of its first directory."""
    letters = b"II" if order == "<" else b"MM"
    entries = [struct.pack(f"{order}HHII", 0x0100 + number, 4, 1, 6) for number in range(before)]
    value = {1: "B3x", 2: "B3x", 3: "H2x", 4: "I"}[kind]
    entries.append(struct.pack(f"{order}HHI{value}", tag, kind, 1, orientation))
    entries += [struct.pack(f"{order}HHII", 0x0213 + number, 4, 1, 6) for number in range(after)]
    head = letters + struct.pack(f"{order}HI", 42, directory_offset)
    named = len(entries) if count is None else count
    return head.ljust(directory_offset, b"\0") + struct.pack(f"{order}H", named) + b"".join(entries) + b"\0\0\0\0"


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def exif_segment(tiff_bytes: bytes) -> bytes:
    return segment(0xE1, b"Exif\0\0" + tiff_bytes)


JFIF = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
XMP = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>" + bytes(3000))
ICC = segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(2000))


def with_segments(jpeg: bytes, *segments: bytes, jfif: bool = True) -> bytes:
    """A JPEG of Pillow's with segments put before its tables."""
    assert jpeg[2:20] == JFIF
    return jpeg[:2] + (JFIF if jfif else b"") + b"".join(segments) + jpeg[20:]


MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# TensorFlow's default for JPEG is a faster and less exact cosine transform than Pillow's.
JPEG_TOLERANCE = 12
SEED = (3, 4)
IMAGE_SIZE = (11, 16)


def decode(data: bytes, seed: tuple[int, int] = SEED, **options) -> np.ndarray:
    return ImageDecoder(ImageOptions(**options)).decode(data, np.array(seed), None)


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

JPEGS = {
    "baseline": encoded(RGB, "JPEG", quality=95),
    "progressive": encoded(RGB, "JPEG", quality=95, progressive=True),
    "full color resolution": encoded(RGB, "JPEG", quality=95, subsampling=0),
    "gray": encoded(GRAY, "JPEG", quality=95),
    "with color profile": with_segments(encoded(RGB, "JPEG", quality=95), ICC),
}


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """What a person sees of stored pixels, by Pillow."""
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    return np.array(ImageOps.exif_transpose(image))


def resized(pixels: np.ndarray, image_size: tuple[int, int], **options) -> np.ndarray:
    """`tf.image.resize` and rounding."""
    return np.floor(np.clip(tf.image.resize(pixels, image_size, **options), 0, 255) + 0.5).astype(np.uint8)


def metadata_with(orientation: int) -> Image.Exif:
    metadata = Image.Exif()
    metadata[0x0112] = orientation
    return metadata
