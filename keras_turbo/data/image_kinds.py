"""Kinds of image files, and how each is recognised by its first bytes, in Python and in graphs."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp")
"""The endings, in lower case, of the files that can be read. A file's content decides what it is, all the same."""

# As much of a file as tells its kind, and for a PNG the kind of its pixels.
_HEAD_BYTES = 26

# Where in a file of each kind which bytes stand.
_MAGIC = {
    "jpeg": {0: b"\xff\xd8\xff"},
    "png": {0: b"\x89PNG\r\n\x1a\n"},
    "gif": {0: b"GIF8"},
    "bmp": {0: b"BM"},
    "webp": {0: b"RIFF", 8: b"WEBP"},
}
# The usual beginning of a JPEG without Exif: a JFIF segment of 16 bytes, and at once a quantization table. Exif would
# stand between the two, or in place of the first.
_PLAIN_JPEG_MAGIC = {0: b"\xff\xd8\xff\xe0\x00\x10", 20: b"\xff\xdb"}

_PNG_DEPTH, _PNG_COLOR_TYPE, _PNG_PALETTE = 24, 25, 3

# The sizes of a BMP's second header, in the order in which they came up from 1987 to 1998 (Pillow's list).
_BMP_HEADER_SIZES = (12, 16, 40, 52, 56, 64, 108, 124)


def image_kind(header: bytes) -> str | None:
    """Tells what kind of image a file is by its first bytes.

    Args:
        header: the first 16 bytes, or more.

    Returns:
        "jpeg", "png", "gif", "bmp" or "webp"; None for anything else.
    """
    for kind, magics in _MAGIC.items():
        if all(header.startswith(magic, offset) for offset, magic in magics.items()):
            # Text may begin with the two letters that a BMP begins with.
            is_text = kind == "bmp" and int.from_bytes(header[14:16], "little") not in _BMP_HEADER_SIZES
            return None if is_text else kind
    return None


class FileHead:
    """What the first bytes of a file say, as graph code with few operations.

    Args:
        data: scalar string, the file's bytes.
    """

    def __init__(self, data: tf.Tensor) -> None:
        self._bytes = tf.io.decode_raw(data, tf.uint8, fixed_length=_HEAD_BYTES)

    def is_jpeg(self) -> tf.Tensor:
        """Bool scalar: whether it is a JPEG."""
        return self._has(_MAGIC["jpeg"])

    def is_plain_jpeg(self) -> tf.Tensor:
        """Bool scalar: whether it is a JPEG that certainly has no Exif."""
        return self._has(_PLAIN_JPEG_MAGIC)

    def is_png_for(self, channels: int) -> tf.Tensor:
        """Bool scalar: whether it is a PNG that TensorFlow decodes rightly to so many channels."""
        is_png = self._has(_MAGIC["png"])
        if channels != 4:
            return is_png
        # It gives a wrong alpha for a PNG of few bits or with a palette.
        return is_png & (self._bytes[_PNG_DEPTH] >= 8) & (self._bytes[_PNG_COLOR_TYPE] != _PNG_PALETTE)

    def _has(self, magics: dict[int, bytes]) -> tf.Tensor:
        expected, mask = np.zeros((2, _HEAD_BYTES), np.uint8)
        for offset, magic in magics.items():
            expected[offset : offset + len(magic)] = list(magic)
            mask[offset : offset + len(magic)] = 0xFF
        return tf.reduce_all(tf.bitwise.bitwise_and(self._bytes, mask) == expected)
