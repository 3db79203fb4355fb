"""Which way up a picture is: the Exif orientation of an image file, read and applied by TensorFlow operations.

Cameras store the sensor's rows as they come, and note in the file how the picture is to be turned. Orientations are
numbered as in the Exif standard: 1 as stored, 2 mirrored, 3 turned by half, 4 mirrored upside down, 5 transposed,
6 to be turned a quarter clockwise, 7 transposed along the other diagonal, 8 to be turned a quarter counter-clockwise.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_UPRIGHT = 1
_ORIENTATION_TAG, _SHORT, _LONG = 0x0112, 3, 4
_TIFF_VERSION = 42
_LITTLE_ENDIAN, _BIG_ENDIAN = 0x4949, 0x4D4D  # "II" and "MM", the same in either order of bytes

_START_OF_SCAN, _END_OF_IMAGE, _FILL = 0xDA, 0xD9, 0xFF
# How an Exif segment begins: a marker, two bytes of length, a signature.
_EXIF_START = np.frombuffer(b"\xff\xe1\0\0Exif\0\0", np.uint8).astype(np.int32)
_IS_LENGTH = np.array([False, False, True, True, *[False] * 6])

# A segment's length has 16 bits: one that begins in the first 64 KiB ends, with its marker, two bytes behind the first
# 128 at the most.
_SEARCHED_BYTES = 1 << 16
_READ_BYTES = 2 * _SEARCHED_BYTES + 2

# For each orientation, from 1 on, what brings the stored picture upright: whether its rows and its columns are put in
# reverse order, and then whether the two are exchanged.
_REVERSED = np.array([[0, 0], [0, 1], [1, 1], [1, 0], [0, 0], [1, 0], [1, 1], [0, 1]], bool)
_AXES = np.array(4 * [[0, 1]] + 4 * [[1, 0]], np.int32)


def jpeg_orientation(data: tf.Tensor) -> tf.Tensor:
    """Reads the Exif orientation of a JPEG, without Python, in graph code.

    Walks the file's segments up to the first Exif one, which must begin in the first 64 KiB, and looks its first
    directory through. Metadata that cannot be followed counts as absent.

    Args:
        data: scalar string, the file's bytes.

    Returns:
        int32 scalar from 1 to 8; 1 without Exif.
    """
    file = tf.io.decode_raw(data, tf.uint8, fixed_length=_READ_BYTES)

    def walking(position: tf.Tensor, tiff: tf.Tensor, _end: tf.Tensor) -> tf.Tensor:
        return (position >= 0) & (position < _SEARCHED_BYTES) & (tiff < 0)

    def step(position: tf.Tensor, _tiff: tf.Tensor, _end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        start = tf.cast(tf.gather(file, position + np.arange(len(_EXIF_START))), tf.int32)
        first, marker, *length = tf.unstack(start)[:4]
        length = 256 * length[0] + length[1]
        end = position + 2 + length
        is_exif = tf.reduce_all((start == _EXIF_START) | _IS_LENGTH) & (length >= 2)
        is_last = (first != 0xFF) | (marker == _START_OF_SCAN) | (marker == _END_OF_IMAGE) | (length < 2)
        # Any number of bytes may fill the space before a marker.
        following = tf.where((first == 0xFF) & (marker == _FILL), position + 1, tf.where(is_last, -1, end))
        return following, tf.where(is_exif, position + len(_EXIF_START), -1), end

    _, tiff, end = tf.while_loop(walking, step, [tf.constant(2), tf.constant(-1), tf.constant(0)])
    return tf.cond(tiff >= 0, lambda: _tiff_orientation(file, tiff, end), lambda: tf.constant(_UPRIGHT))


def _tiff_orientation(file: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """The orientation in the TIFF structure that lies at `start:end` of a uint8 vector; 1 if it has none."""
    is_little = file[start] == _LITTLE_ENDIAN & 0xFF
    pair_weights = tf.where(is_little, [1, 1 << 8], [1 << 8, 1])
    word_weights = tf.where(is_little, [1, 1 << 16], [1 << 16, 1])

    def words(positions: tf.Tensor, count: int) -> tf.Tensor:
        """`count` 16-bit numbers from each of n positions on, int32 of shape `(n, count)`."""
        digits = tf.gather(file, tf.reshape(positions, [-1, 1]) + np.arange(2 * count))
        return tf.reduce_sum(tf.reshape(tf.cast(digits, tf.int32), [-1, count, 2]) * pair_weights, -1)

    head = words(start, 4)[0]
    order, version, *_ = tf.unstack(head)
    offset = tf.reduce_sum(head[2:] * word_weights)  # negative from 2 GiB on
    directory = start + offset
    is_readable = (
        ((order == _LITTLE_ENDIAN) | (order == _BIG_ENDIAN))
        & (version == _TIFF_VERSION)
        & (offset >= 0)
        & (offset < _SEARCHED_BYTES)
        & (directory + 2 <= end)
    )
    directory = tf.where(is_readable, directory, 0)
    count = tf.minimum(words(directory, 1)[0, 0], tf.where(is_readable, (end - directory - 2) // 12, 0))
    # An entry has a tag, a type, a number of values in two words, and a value in two.
    entries = words(directory + 2 + 12 * tf.range(count), 6)
    tag, kind, _, _, short, _ = tf.unstack(entries, axis=1)
    value = tf.where(kind == _SHORT, short, tf.reduce_sum(entries[:, 4:] * word_weights, -1))
    is_found = (
        (tag == _ORIENTATION_TAG)
        & ((kind == _SHORT) | (kind == _LONG))
        & (value >= _UPRIGHT)
        & (value <= len(_REVERSED))
    )
    # There should be one at most.
    return tf.reduce_max(tf.concat([tf.where(is_found, value, _UPRIGHT), [_UPRIGHT]], 0))


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

    return tf.cond(orientation == _UPRIGHT, lambda: image, turned)
