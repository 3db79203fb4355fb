"""Which way up a picture is: the Exif orientation of an image file, read and applied.

Cameras store the sensor's rows as they come, and note in the file how the picture is to be turned. Orientations are
numbered as in the Exif standard: 1 as stored, 2 mirrored, 3 turned by half, 4 mirrored upside down, 5 transposed,
6 to be turned a quarter clockwise, 7 transposed along the other diagonal, 8 to be turned a quarter counter-clockwise.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import tensorflow as tf

UPRIGHT = 1
"""The orientation of a picture that is stored as it is to be seen."""

_ORIENTATION_TAG, _SHORT, _LONG = 0x0112, 3, 4
_TIFF_VERSION = 42
_BYTE_ORDERS: dict[bytes, Literal["little", "big"]] = {b"II": "little", b"MM": "big"}

_EXIF_MARKER, _START_OF_SCAN, _END_OF_IMAGE, _FILL = 0xE1, 0xDA, 0xD9, 0xFF
_EXIF_SIGNATURE = b"Exif\0\0"

# For each orientation, from 1 on, what brings the stored picture upright: whether its rows and its columns are put in
# reverse order, and then whether the two are exchanged.
_REVERSED = np.array([[0, 0], [0, 1], [1, 1], [1, 0], [0, 0], [1, 0], [1, 1], [0, 1]], bool)
_AXES = np.array(4 * [[0, 1]] + 4 * [[1, 0]], np.int32)


def jpeg_orientation(data: tf.Tensor) -> tf.Tensor:
    """Reads the Exif orientation of a JPEG, in graph code that calls Python (about 10 us).

    Args:
        data: scalar string, the file's bytes.

    Returns:
        int32 scalar from 1 to 8; 1 without Exif.
    """
    orientation = tf.numpy_function(_jpeg_orientation, [data], tf.int32, stateful=False)
    return tf.ensure_shape(orientation, [])


def _jpeg_orientation(data: bytes | np.ndarray) -> np.int32:
    """Walks the segments up to the first Exif one. Metadata that can't be followed counts as absent."""
    data = data if isinstance(data, bytes) else bytes(data.item())
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == _FILL:  # any number of these may stand before a marker
            position += 1
            continue
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        if marker in (_START_OF_SCAN, _END_OF_IMAGE) or length < 2:
            break
        content = data[position + 4 : position + 2 + length]
        if marker == _EXIF_MARKER and content.startswith(_EXIF_SIGNATURE):
            return np.int32(_tiff_orientation(content[len(_EXIF_SIGNATURE) :]))
        position += 2 + length
    return np.int32(UPRIGHT)


def _tiff_orientation(tiff: bytes) -> int:
    """The orientation in the first directory of a TIFF structure; 1 if it has none."""
    order = _BYTE_ORDERS.get(tiff[:2])

    def number(start: int, size: int) -> int:
        return int.from_bytes(tiff[start : start + size], order or "little")

    directory = number(4, 4)
    if order is None or number(2, 2) != _TIFF_VERSION or directory + 2 > len(tiff):
        return UPRIGHT
    first = directory + 2
    count = min(number(directory, 2), (len(tiff) - first) // 12)
    for entry in range(first, first + 12 * count, 12):
        kind = number(entry + 2, 2)
        if number(entry, 2) == _ORIENTATION_TAG and kind in (_SHORT, _LONG):
            value = number(entry + 8, 2 if kind == _SHORT else 4)
            if UPRIGHT <= value <= len(_REVERSED):
                return value
    return UPRIGHT


def upright_size(stored_size: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """The height and width (shape `(2,)`) that a picture has once it is upright."""
    return tf.gather(stored_size, tf.gather(_AXES, orientation - 1))


def stored_region(region: tf.Tensor, stored_size: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Where a region of the upright picture lies in the stored one.

    Args:
        region: int32, `(top, left, height, width)` in the upright picture.
        stored_size: int32, height and width as stored.
        orientation: int32 scalar from 1 to 8.

    Returns:
        int32, `(top, left, height, width)` in the stored picture.
    """
    axes = tf.gather(_AXES, orientation - 1)
    start, size = tf.unstack(tf.gather(tf.reshape(region, [2, 2]), axes, axis=1))
    start = tf.where(tf.gather(_REVERSED, orientation - 1), stored_size - start - size, start)
    return tf.concat([start, size], 0)


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turns stored pixels `(height, width, channels)` upright. Costs next to nothing where the orientation is 1."""

    def turned() -> tf.Tensor:
        # This op takes the axes as booleans, and so can look them up.
        dims = tf.concat([tf.gather(_REVERSED, orientation - 1), [False]], 0)
        axes = tf.concat([tf.gather(_AXES, orientation - 1), [2]], 0)
        return tf.raw_ops.Transpose(x=tf.raw_ops.Reverse(tensor=image, dims=dims), perm=axes)

    return tf.cond(orientation == UPRIGHT, lambda: image, turned)
