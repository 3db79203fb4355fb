"""Bytes of an image file to pixels: decoded, turned upright, brought to size.

JPEG is decoded by libjpeg-turbo, bit for bit as TensorFlow does; PNG by TensorFlow; TIFF by OpenCV; the rest by Pillow.
All of them work without Python's lock.
"""

from __future__ import annotations

import io
import threading
import warnings
from typing import Any, Literal

import numpy as np

from keras_turbo.data.images import ImageOptions

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
"""The endings, in lower case, of the files that can be read. A file's content decides what it is, all the same."""

# Where in a file of each kind which bytes stand.
_MAGIC = {
    "jpeg": [{0: b"\xff\xd8\xff"}],
    "png": [{0: b"\x89PNG\r\n\x1a\n"}],
    "gif": [{0: b"GIF8"}],
    "bmp": [{0: b"BM"}],
    "webp": [{0: b"RIFF", 8: b"WEBP"}],
    "tiff": [{0: b"II*\0"}, {0: b"MM\0*"}],
}
# The sizes of a BMP's second header, in the order in which they came up from 1987 to 1998 (Pillow's list).
_BMP_HEADER_SIZES = (12, 16, 40, 52, 56, 64, 108, 124)

# The usual beginning of a JPEG without Exif: a JFIF segment of 16 bytes, and at once a quantization table. Exif would
# stand between the two, or in place of the first.
_PLAIN_JPEG_MAGIC = {0: b"\xff\xd8\xff\xe0\x00\x10", 20: b"\xff\xdb"}

# The eXIf chunk of a PNG stands before the pixels, behind a color profile at most.
_PNG_SEARCHED_BYTES = 4096
_PNG_DEPTH, _PNG_COLOR_TYPE, _PNG_PALETTE = 24, 25, 3

_ORIENTATION_TAG, _UPRIGHT = 0x0112, 1
_BYTE_ORDERS: dict[bytes, Literal["little", "big"]] = {b"II": "little", b"MM": "big"}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SHOWN_BYTES = 16


def image_kind(header: bytes) -> str | None:
    """Tells what kind of image a file is by its first bytes.

    Args:
        header: the first 16 bytes, or more.

    Returns:
        "jpeg", "png", "gif", "bmp", "webp" or "tiff"; None for anything else.
    """
    for kind, forms in _MAGIC.items():
        if any(_has(header, magics) for magics in forms):
            # Text may begin with the two letters that a BMP begins with.
            is_text = kind == "bmp" and int.from_bytes(header[14:16], "little") not in _BMP_HEADER_SIZES
            return None if is_text else kind
    return None


def _has(header: bytes, magics: dict[int, bytes]) -> bool:
    return all(header.startswith(magic, offset) for offset, magic in magics.items())


class ImageDecoder:
    """Decodes image files.

    With 1 or 3 channels transparency is dropped, as TensorFlow and Keras do: transparent pixels show the color that the
    file stores for them. With 4 channels, files without transparency get an alpha of 255.

    Args:
        options: what pixels are wanted.
    """

    def __init__(self, options: ImageOptions) -> None:
        self.options = options
        self.shape = (*(options.image_size or (None, None)), options.channels)
        self.dtype = np.dtype(options.dtype)
        self.is_random = options.random_resized_crop is not None
        self._buffers = threading.local()
        self._has_warned_of_depth = False

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])

    def decode(self, data: bytes, seed: np.ndarray | None, out: np.ndarray | None) -> np.ndarray:
        """Decodes a file.

        Args:
            data: its bytes.
            seed: int64, shape (2,), for `random_resized_crop`.
            out: where the pixels are to be; None for a new array.

        Returns:
            The pixels, of shape `(height, width, channels)`: `out` itself if it was given.

        Raises:
            ValueError: a file that is empty, truncated, damaged, too large or no such image; the text is a sentence.
        """
        kind = image_kind(data)
        if kind is None:
            raise ValueError(_why_no_image(data))
        if kind == "jpeg":
            return self._resized(self._jpeg(data, seed), out)
        pixels = getattr(self, f"_{kind}", self._by_pillow)(data)
        return self._resized(self._part(pixels, seed), out)

    def _jpeg(self, data: bytes, seed: np.ndarray | None) -> np.ndarray:
        import simplejpeg

        options = self.options
        try:
            *size, color_space, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        except ValueError as error:
            raise ValueError(_damaged("jpeg", data, error)) from None
        except KeyError:  # of a color space that there is not
            raise ValueError(_damaged("jpeg", data, "its header can't be read")) from None
        height, width = map(int, size)
        self._check_size(height, width)
        if color_space in ("CMYK", "YCCK"):
            # TensorFlow inverts CMYK only behind Adobe's marker, where others always do, and gives no grayscale of it.
            return self._part(self._by_pillow(data), seed)
        orientation = _UPRIGHT
        if options.exif_orientation and not _has(data, _PLAIN_JPEG_MAGIC):
            orientation = _jpeg_orientation(data)
        size = (height, width) if orientation <= 4 else (width, height)
        region = self._region(size, seed)
        scale = 1
        if options.scaled_decode and options.image_size is not None:
            scale = self._scale(size if region is None else region[2:])
        pixels = self._jpeg_pixels(data, -(-height // scale), -(-width // scale), scale)
        pixels = _upright(pixels, orientation)
        if region is None:
            return pixels
        stop = [-(-(start + extent) // scale) for start, extent in zip(region[:2], region[2:], strict=True)]
        start = [number // scale for number in region[:2]]
        return pixels[start[0] : stop[0], start[1] : stop[1]]

    def _jpeg_pixels(self, data: bytes, height: int, width: int, scale: int) -> np.ndarray:
        import simplejpeg

        channels = 1 if self.options.channels == 1 else 3
        size = height * width * channels
        buffer = getattr(self._buffers, "pixels", None)
        if buffer is None or buffer.size < size:
            # Memory that a thread has written before comes without page faults, a tenth of the time of decoding.
            buffer = self._buffers.pixels = np.empty(size, np.uint8)
        smallest: dict[str, Any] = {} if scale == 1 else {"min_height": height, "min_width": width, "min_factor": scale}
        try:
            pixels = simplejpeg.decode_jpeg(
                data, "GRAY" if channels == 1 else "RGB", fastdct=True, buffer=buffer[:size], **smallest
            )
        except ValueError as error:
            # libjpeg complains of files that TensorFlow reads, with bytes that nobody needs; those are decoded there.
            pixels = _by_tensorflow(data, channels, scale)
            if pixels is None:
                raise ValueError(_damaged("jpeg", data, error)) from None
        if self.options.channels == 4:
            alpha = np.full((*pixels.shape[:2], 1), 255, np.uint8)
            return np.concatenate([pixels, alpha], axis=2)
        return pixels

    def _png(self, data: bytes) -> np.ndarray:
        import tensorflow as tf

        channels = self.options.channels
        depth, color_type = (*data[_PNG_DEPTH : _PNG_COLOR_TYPE + 1], 0, 0)[:2]
        if channels == 4 and (depth < 8 or color_type == _PNG_PALETTE):  # TensorFlow gives a wrong alpha for those
            return self._by_pillow(data)
        self._check_size(int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big"))
        if depth == 16:
            self._warn_of_depth()
        with tf.device("CPU:0"):
            try:
                wanted = tf.uint8 if self.dtype == np.uint8 or depth <= 8 else tf.uint16
                pixels = np.asarray(memoryview(tf.io.decode_png(data, channels=channels, dtype=wanted)))
            except tf.errors.OpError as error:
                raise ValueError(_damaged("png", data, error.message or error)) from None
        if self.options.exif_orientation and b"eXIf" in data[:_PNG_SEARCHED_BYTES]:
            pixels = _upright(pixels, _orientation_by_pillow(data))
        return self._of_depth(pixels)

    def _tiff(self, data: bytes) -> np.ndarray:
        import cv2
        from PIL import Image

        orientation = _UPRIGHT
        try:
            with Image.open(io.BytesIO(data), formats=["TIFF"]) as image:
                self._check_size(image.height, image.width)
                if not self.options.exif_orientation:
                    orientation = _valid(image.getexif().get(_ORIENTATION_TAG))
        except (OSError, SyntaxError) as error:
            raise ValueError(_damaged("tiff", data, error)) from None
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if pixels is None:
            raise ValueError(_damaged("tiff", data, "OpenCV can't decode it"))
        # OpenCV turns every TIFF upright; the inverse of a quarter is the other quarter, of all else the same.
        pixels = _upright(np.atleast_3d(pixels), {6: 8, 8: 6}.get(orientation, orientation))
        wanted, given = self.options.channels, pixels.shape[2]
        codes = {
            (1, 3): cv2.COLOR_GRAY2RGB, (1, 4): cv2.COLOR_GRAY2RGBA, (3, 1): cv2.COLOR_BGR2GRAY,
            (3, 3): cv2.COLOR_BGR2RGB, (3, 4): cv2.COLOR_BGR2RGBA, (4, 1): cv2.COLOR_BGRA2GRAY,
            (4, 3): cv2.COLOR_BGRA2RGB, (4, 4): cv2.COLOR_BGRA2RGBA,
        }  # fmt: skip
        if (given, wanted) in codes:
            pixels = np.atleast_3d(cv2.cvtColor(pixels, codes[given, wanted]))
        elif given != wanted:
            raise ValueError(f"the file has {given} channels, which can't be made {wanted}.")
        if pixels.dtype == np.uint16:
            self._warn_of_depth()
        return self._of_depth(pixels)

    def _by_pillow(self, data: bytes) -> np.ndarray:
        from PIL import Image, ImageOps

        kind, mode = image_kind(data) or "", _MODES[self.options.channels]
        try:
            # A size that is too large is refused before its pixels are decoded.
            with Image.open(io.BytesIO(data), formats=[kind.upper()]) as image:
                self._check_size(image.height, image.width)
                converted = image.convert(mode)
                if self.options.exif_orientation and image.getexif().get(_ORIENTATION_TAG, _UPRIGHT) != _UPRIGHT:
                    converted = ImageOps.exif_transpose(image).convert(mode)
                return self._of_depth(np.atleast_3d(np.asarray(converted)))
        except _TooLargeError:
            raise
        except Exception as error:  # Pillow's decoders raise whatever they meet: OSError, SyntaxError, struct.error
            raise ValueError(_damaged(kind, data, error)) from None

    def _of_depth(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels of the type that is wanted: 16 bits are cut to the upper 8, and 8 spread over 16."""
        if pixels.dtype == self.dtype:
            return pixels
        if self.dtype == np.float32:
            return pixels.astype(np.float32)
        if pixels.dtype.kind != "u" or pixels.dtype.itemsize > 2:
            raise ValueError(
                f"the file has pixels of type {pixels.dtype}, which can't be {self.dtype}. Give dtype='float32'."
            )
        return (pixels >> 8).astype(np.uint8) if self.dtype == np.uint8 else pixels.astype(np.uint16) * 257

    def _check_size(self, height: int, width: int) -> None:
        if height * width > self.options.max_pixels:
            raise _TooLargeError(
                f"the file declares {width} x {height} pixels, more than max_pixels={self.options.max_pixels}. If you "
                "trust it, give a larger `max_pixels`, or make the image smaller."
            )

    def _warn_of_depth(self) -> None:
        if self.dtype == np.uint8 and not self._has_warned_of_depth:
            self._has_warned_of_depth = True
            warnings.warn(
                "There are images of 16 bits, of which the upper 8 are kept: 4095 becomes 15. Give dtype='uint16' to "
                "have them all.",
                stacklevel=2,
            )

    def _part(self, pixels: np.ndarray, seed: np.ndarray | None) -> np.ndarray:
        """The wanted part of an upright picture."""
        region = self._region(pixels.shape[:2], seed)
        if region is None:
            return pixels
        top, left, height, width = region
        return pixels[top : top + height, left : left + width]

    def _region(self, size: tuple[int, ...], seed: np.ndarray | None) -> tuple[int, int, int, int] | None:
        """`(top, left, height, width)` of the part to keep; None for all of a picture of that height and width."""
        options = self.options
        if options.random_resized_crop is not None:
            import tensorflow as tf

            if seed is None:
                raise ValueError("`random_resized_crop` needs a seed of shape (2,).")
            with tf.device("CPU:0"):
                start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
                    np.array([*size, options.channels], np.int32),
                    np.array([[[0.0, 0.0, 1.0, 1.0]]], np.float32),
                    seed,
                    min_object_covered=0.0,
                    area_range=options.random_resized_crop.area,
                    aspect_ratio_range=options.random_resized_crop.aspect_ratio,
                )
            (top, left, _), (height, width, _) = start.numpy().tolist(), extent.numpy().tolist()
            return top, left, height, width
        if options.resize == "crop" and options.image_size is not None:
            # As `keras.utils.image_utils.smart_resize` does it.
            (given_height, given_width), (height, width) = size, options.image_size
            kept_height = min(max(given_width * height // width, 1), given_height)
            kept_width = min(max(given_height * width // height, 1), given_width)
            return (given_height - kept_height) // 2, (given_width - kept_width) // 2, kept_height, kept_width
        return None

    def _scale(self, size: tuple[int, ...]) -> int:
        """The smallest of 1/8, 1/4, 1/2 and 1/1 that leaves a part of this size as large as it is needed."""
        # Padded, a picture fills the image along one side; else it does along both.
        is_enough = any if self.options.resize == "pad" else all
        wanted = self.options.image_size or (0, 0)
        return next(
            (n for n in (8, 4, 2) if is_enough(have >= n * need for have, need in zip(size, wanted, strict=True))), 1
        )

    def _resized(self, pixels: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        options = self.options
        if options.image_size is None:
            # Copied, since they may lie in the buffer of the thread.
            return pixels.copy() if out is None else _copied(pixels, out)
        if out is None:
            out = np.empty((*options.image_size, options.channels), self.dtype)
        if options.resize != "pad":
            return self._interpolated(pixels, out)
        # What `tf.image.resize_with_pad` computes in floats, of which it sometimes loses the last row or column.
        (height, width), (given_height, given_width) = options.image_size, pixels.shape[:2]
        inner_height = min(max(given_height * width // given_width, 1), height)
        inner_width = min(max(given_width * height // given_height, 1), width)
        top = max((height * given_width - given_height * width) // (2 * given_width), 0)
        left = max((width * given_height - given_width * height) // (2 * given_height), 0)
        out[...] = 0
        inner = np.empty((inner_height, inner_width, options.channels), self.dtype)
        out[top : top + inner_height, left : left + inner_width] = self._interpolated(pixels, inner)
        return out

    def _interpolated(self, pixels: np.ndarray, out: np.ndarray) -> np.ndarray:
        options = self.options
        if pixels.shape == out.shape:
            return _copied(pixels, out)
        method = options.interpolation
        if method == "nearest" or (method == "bilinear" and not options.antialias):
            import cv2

            # "Exact" has the same centers of pixels as TensorFlow. Bilinear differs from it by one level at most.
            flag = cv2.INTER_LINEAR if method == "bilinear" else cv2.INTER_NEAREST_EXACT
            cv2.resize(pixels, out.shape[1::-1], dst=out, interpolation=flag)
            return out
        import tensorflow as tf

        with tf.device("CPU:0"):
            resized = tf.image.resize(pixels, out.shape[:2], method, antialias=options.antialias).numpy()
        if self.dtype == np.float32:
            return _copied(resized, out)
        # Overshoot is clipped; the nearest integer is taken.
        return _copied(np.clip(resized, 0, np.iinfo(self.dtype).max) + 0.5, out)


class _TooLargeError(ValueError):
    """A file declares more pixels than are allowed."""


def _copied(pixels: np.ndarray, out: np.ndarray) -> np.ndarray:
    np.copyto(out, pixels, casting="unsafe")
    return out


def _by_tensorflow(data: bytes, channels: int, scale: int) -> np.ndarray | None:
    import tensorflow as tf

    with tf.device("CPU:0"):
        try:
            return np.asarray(memoryview(tf.io.decode_jpeg(data, channels=channels, ratio=scale)))
        except tf.errors.OpError:
            return None


def _damaged(kind: str, data: bytes, error: object) -> str:
    return f"damaged or truncated {kind} file of {len(data)} bytes: {error}. Replace or remove it."


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
        f"not an image that can be read: JPEG, PNG, GIF, BMP, WebP and TIFF are, and its first bytes are "
        f"{data[:_SHOWN_BYTES]!r}.{looks} Replace or remove it."
    )


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turns stored pixels `(height, width, channels)` upright, by the numbers of the Exif standard.

    1 is as stored, 2 mirrored, 3 turned by half, 4 mirrored upside down, 5 transposed, 6 to be turned a quarter
    clockwise, 7 transposed along the other diagonal, 8 to be turned a quarter counter-clockwise.
    """
    if orientation in (3, 4, 6, 7):
        pixels = pixels[::-1]
    if orientation in (2, 3, 7, 8):
        pixels = pixels[:, ::-1]
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    return pixels if orientation == _UPRIGHT else np.ascontiguousarray(pixels)


def _jpeg_orientation(data: bytes) -> int:
    """Walks a JPEG's segments up to the first Exif one. Metadata that can't be followed counts as absent."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # any number of these may stand before a marker
            position += 1
            continue
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        if marker in (0xDA, 0xD9) or length < 2:  # the pixels, or the end
            break
        if marker == 0xE1 and data.startswith(b"Exif\0\0", position + 4):
            return _tiff_orientation(data[position + 10 : position + 2 + length])
        position += 2 + length
    return _UPRIGHT


def _orientation_by_pillow(data: bytes) -> int:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return _valid(image.getexif().get(_ORIENTATION_TAG))
    except Exception:  # broken metadata counts as absent, and what is wrong with the pixels shows when they are decoded
        return _UPRIGHT


def _tiff_orientation(tiff: bytes) -> int:
    """The orientation in the first directory of a TIFF structure; 1 if it has none."""
    order = _BYTE_ORDERS.get(tiff[:2])

    def number(start: int, size: int) -> int:
        return int.from_bytes(tiff[start : start + size], order or "little")

    directory = number(4, 4)
    if order is None or number(2, 2) != 42 or directory + 2 > len(tiff):
        return _UPRIGHT
    first = directory + 2
    count = min(number(directory, 2), (len(tiff) - first) // 12)
    for entry in range(first, first + 12 * count, 12):
        kind = number(entry + 2, 2)
        if number(entry, 2) == _ORIENTATION_TAG and kind in (3, 4):  # of 16 or 32 bits
            value = number(entry + 8, 2 if kind == 3 else 4)
            if 1 <= value <= 8:
                return value
    return _UPRIGHT


def _valid(orientation: object) -> int:
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else _UPRIGHT
