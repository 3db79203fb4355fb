"""Kinds of image files, and how each is recognised by its first bytes, in Python and in graphs."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp")
"""The endings, in lower case, of the files that can be read. A file's content decides what it is, all the same."""

# As much of a file as tells its kind, and for a BMP how its pixels are laid out.
_HEAD_BYTES = 34

_KINDS = ("jpeg", "png", "gif", "bmp", "webp")
# For each kind, and for those forms of them that are treated apart: where in a file which bytes stand.
_MAGIC = {
    "jpeg": {0: b"\xff\xd8\xff"},
    "png": {0: b"\x89PNG\r\n\x1a\n"},
    "gif": {0: b"GIF8"},
    "bmp": {0: b"BM"},
    "webp": {0: b"RIFF", 8: b"WEBP"},
    "extended_webp": {0: b"RIFF", 8: b"WEBPVP8X"},
    # The usual beginning of a JPEG without Exif: a JFIF segment of 16 bytes, and at once a quantization table. Exif
    # would stand between the two, or in place of the first.
    "plain_jpeg": {0: b"\xff\xd8\xff\xe0\x00\x10", 20: b"\xff\xdb"},
}

# Little-endian numbers in a file's head: where they begin, and how many bytes they have.
_NUMBERS = {
    "gif_width": (6, 2),
    "gif_height": (8, 2),
    "bmp_pixel_offset": (10, 4),
    "bmp_header_size": (14, 4),
    "bmp_width": (18, 4),
    "bmp_height": (22, 4),
    "bmp_depth": (28, 2),
    "bmp_compression": (30, 4),
    "png_depth": (24, 1),
    "png_color_type": (25, 1),
}

# The sizes of a BMP's second header, in the order in which they came up from 1987 to 1998 (Pillow's list).
_BMP_HEADER_SIZES = (12, 16, 40, 52, 56, 64, 108, 124)


def image_kind(header: bytes) -> str | None:
    """Tells what kind of image a file is by its first bytes.

    Args:
        header: the first 16 bytes, or more.

    Returns:
        "jpeg", "png", "gif", "bmp" or "webp"; None for anything else.
    """
    for kind in _KINDS:
        if all(header.startswith(magic, offset) for offset, magic in _MAGIC[kind].items()):
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

    @property
    def is_plain_jpeg(self) -> tf.Tensor:
        """Bool scalar: whether it is a JPEG that certainly has no Exif."""
        return self._is_any(["plain_jpeg"])[0]

    def kinds(self) -> dict[str, tf.Tensor]:
        """Bool scalars: whether it is a "jpeg", "png", "gif", "bmp", "webp", and more narrowly an "extended_webp"."""
        return dict(zip(_MAGIC, tf.unstack(self._is_any(list(_MAGIC))), strict=True))

    def numbers(self) -> dict[str, tf.Tensor]:
        """int64 scalars by their names in `_NUMBERS`, of which those of the file's kind mean something."""
        weights = np.zeros((len(_NUMBERS), _HEAD_BYTES), np.int64)
        for row, (offset, count) in zip(weights, _NUMBERS.values(), strict=True):
            row[offset : offset + count] = 256 ** np.arange(count)
        values = tf.reduce_sum(tf.cast(self._bytes, tf.int64) * weights, -1)
        return dict(zip(_NUMBERS, tf.unstack(values), strict=True))

    def _is_any(self, kinds: list[str]) -> tf.Tensor:
        expected, mask = np.zeros((2, len(kinds), _HEAD_BYTES), np.uint8)
        for row, kind in enumerate(kinds):
            for offset, magic in _MAGIC[kind].items():
                expected[row, offset : offset + len(magic)] = list(magic)
                mask[row, offset : offset + len(magic)] = 0xFF
        return tf.reduce_all(tf.bitwise.bitwise_and(self._bytes, mask) == expected, -1)
