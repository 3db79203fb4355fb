"""Image files through Pillow: what TensorFlow does not read, or reads wrongly. Python that graphs call."""

from __future__ import annotations

import io

import numpy as np
import tensorflow as tf

from keras_turbo.data.image_kinds import image_kind

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_ORIENTATION_TAG, _UPRIGHT = 0x0112, 1
_SHOWN_BYTES = 16


def decode_by_pillow(data: tf.Tensor, channels: int, exif_orientation: bool) -> tf.Tensor:
    """Decodes an image file, in graph code that calls Python.

    Args:
        data: scalar string, the file's bytes.
        channels: 1, 3 or 4.
        exif_orientation: whether it is turned as its Exif says.

    Returns:
        uint8 tensor of shape `(height, width, channels)`: the first frame.

    Raises:
        tf.errors.InvalidArgumentError: when it runs, with what is wrong with the file.
    """
    pixels, problem = tf.numpy_function(
        _pixels_or_problem, [data, channels, exif_orientation], [tf.uint8, tf.string], stateful=False
    )
    if tf.executing_eagerly():
        if problem != b"":
            raise tf.errors.InvalidArgumentError(None, None, problem.numpy().decode())
    else:
        # An assertion, since an error in the Python function would bring that function's traceback along.
        with tf.control_dependencies([tf.debugging.Assert(problem == b"", [problem])]):
            pixels = tf.identity(pixels)
    return tf.ensure_shape(pixels, [None, None, channels])


def _pixels_or_problem(
    data: bytes | np.ndarray, channels: np.integer, exif_orientation: np.bool_
) -> tuple[np.ndarray, bytes]:
    """Pixels and b"", or an empty array and a message in ASCII."""
    from PIL import Image, ImageOps

    data = _as_bytes(data)
    kind = image_kind(data)
    if kind is None:
        return np.zeros((0, 0, channels), np.uint8), _why_no_image(data).encode()
    try:
        with Image.open(io.BytesIO(data), formats=[kind.upper()]) as image:
            converted = image.convert(_MODES[int(channels)])
            if exif_orientation and _orientation(data) != _UPRIGHT:
                converted = ImageOps.exif_transpose(image).convert(_MODES[int(channels)])
            pixels = np.array(converted)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        problem = f"{error} If you trust the file, set PIL.Image.MAX_IMAGE_PIXELS to more, or make the image smaller."
    except Exception as error:  # Pillow's decoders raise whatever they meet: OSError, SyntaxError, struct.error
        problem = f"damaged or truncated {kind} file of {len(data)} bytes: {error}. Replace or remove it."
    else:
        return pixels.reshape(*pixels.shape[:2], int(channels)), b""
    return np.zeros((0, 0, channels), np.uint8), problem.encode("ascii", "backslashreplace")


def _why_no_image(data: bytes) -> str:
    if not data:
        return "the file is empty (0 bytes). Write it again, or remove it."
    start = data[:1024].lstrip().lower()
    looks = ""
    if start.startswith((b"<!doctype html", b"<html")):
        looks = " They look like an HTML page, such as a server sends in place of a missing image."
    elif start.startswith((b"<svg", b"<?xml")):
        looks = " They look like XML or SVG."
    elif all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        looks = " They look like text."
    return (
        f"not an image that can be read: JPEG, PNG, GIF, BMP and WebP are, and its first bytes are "
        f"{data[:_SHOWN_BYTES]!r}.{looks} Replace or remove it."
    )


def orientation_by_pillow(data: tf.Tensor) -> tf.Tensor:
    """Reads the Exif orientation of any file that Pillow reads, in graph code that calls Python.

    Args:
        data: scalar string, the file's bytes.

    Returns:
        int32 scalar from 1 to 8; 1 where Pillow finds none.
    """
    orientation = tf.numpy_function(_orientation, [data], tf.int32, stateful=False)
    return tf.ensure_shape(orientation, [])


def _orientation(data: bytes | np.ndarray) -> np.int32:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(_as_bytes(data))) as image:
            value = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # broken metadata counts as absent, and what is wrong with the pixels shows when they are decoded
        value = None
    return np.int32(value if isinstance(value, int) and 1 <= value <= 8 else _UPRIGHT)


def _as_bytes(data: bytes | np.ndarray) -> bytes:
    """A scalar string comes as bytes from a graph, and as an array of shape () in eager mode."""
    return data if isinstance(data, bytes) else data.item()
