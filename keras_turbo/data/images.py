"""Bytes of an image file to pixels, by TensorFlow operations that `tf.data` runs in parallel.

JPEG and PNG are decoded there. The rest goes through Pillow, in Python: GIF, BMP and WebP, CMYK JPEG, and PNG with a
palette where an alpha channel is wanted.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from keras_turbo.data import exif
from keras_turbo.data.image_kinds import IMAGE_ENDINGS, FileHead, image_kind
from keras_turbo.data.image_options import INTERPOLATIONS, RESIZES, ImageOptions, RandomResizedCrop
from keras_turbo.data.pillow_decoder import decode_by_pillow, orientation_by_pillow

__all__ = [
    "IMAGE_ENDINGS",
    "INTERPOLATIONS",
    "RESIZES",
    "ImageOptions",
    "RandomResizedCrop",
    "decode_image",
    "image_kind",
]

# 1/1, 1/2, 1/4 and 1/8 are what TensorFlow's JPEG decoder offers.
_JPEG_SCALES = (1, 2, 4, 8)

# One sample of the color channels, which most JPEGs keep at half the resolution. The decoder interpolates between
# samples, so that with this much around it a region gets the very pixels that it has in the whole picture.
_CHROMA_MARGIN = 2

# TensorFlow inverts CMYK only behind Adobe's marker, where others always do, and gives no grayscale of any CMYK. Pillow
# decodes it.
_CMYK_CHANNELS = 4

# The eXIf chunk of a PNG stands before the pixels, behind a color profile at most.
_PNG_SEARCHED_BYTES = 4096

# Stored pixels of a region (top, left, height, width), or of all the picture for None, at 1 / _JPEG_SCALES[rung].
_Reader = Callable[["tf.Tensor | None", "tf.Tensor | None"], tf.Tensor]


@tf.autograph.experimental.do_not_convert
def decode_image(
    data: tf.Tensor, options: ImageOptions, seed: tf.Tensor | None = None, *, calls_python: bool = True
) -> tf.Tensor:
    """Decodes an image file, turns it upright and brings it to size. Graph code for `tf.data` maps; eager too.

    The file is recognised by its content: JPEG (also grayscale, CMYK and YCCK), PNG (all depths and color types; 16
    bits are cut to the upper 8), GIF (first frame), BMP, WebP (first frame). Pixels are uint8: where resizing
    interpolates, its result is rounded to the nearest integer and clipped to 0..255, not truncated. Where the size fits
    already, they are the decoder's own.

    With 1 or 3 channels transparency is dropped, as TensorFlow and Keras do: transparent pixels show the color that the
    file stores for them. With 4 channels, files without transparency get an alpha of 255.

    Args:
        data: scalar string, the file's bytes.
        options: what pixels are wanted.
        seed: int32 or int64, shape (2,). Needed by `random_resized_crop`, of which the part taken is a function of it
            and of the picture's size: the same seed gives the same bytes.
        calls_python: False for graphs that run where this process' Python code is not. They can't decode what Pillow
            decodes, nor turn what has an Exif orientation, and fail for such files.

    Returns:
        uint8 tensor of shape `(height, width, channels)`, as static as `image_size` allows.

    Raises:
        ValueError: `random_resized_crop` without a seed.
        tf.errors.InvalidArgumentError: when it runs: a file that is empty, truncated, damaged, or no such image.
    """
    if options.random_resized_crop is not None and seed is None:
        raise ValueError("`random_resized_crop` needs a `seed` of shape (2,), such as the example's own in its epoch.")
    head = FileHead(data)

    def pillow() -> tf.Tensor:
        if not calls_python:
            return _fails_without_python(
                tf.zeros([1, 1, options.channels], tf.uint8),
                "a data service's workers decode JPEG and PNG alone, and of those neither CMYK nor (with 4 channels) "
                "palettes. Convert the file, or leave `service` out.",
            )
        return _part(decode_by_pillow(data, options.channels, options.exif_orientation), options, seed)

    def jpeg() -> tf.Tensor:
        shape = tf.image.extract_jpeg_shape(data)
        orientation = None
        if options.exif_orientation:
            orientation = tf.cond(
                head.is_plain_jpeg(),
                lambda: exif.UPRIGHT,
                lambda: exif.jpeg_orientation(data) if calls_python else _no_orientation(),
            )
        return tf.cond(
            shape[2] == _CMYK_CHANNELS,
            pillow,
            lambda: _jpeg_part(_jpeg_reader(data, shape, options), shape[:2], options, seed, orientation),
        )

    def png() -> tf.Tensor:
        pixels = tf.io.decode_png(data, channels=options.channels)
        if options.exif_orientation:
            has_exif = tf.strings.regex_full_match(tf.strings.substr(data, 0, _PNG_SEARCHED_BYTES), r"(?s)\C*eXIf\C*")
            orientation = tf.cond(
                has_exif,
                lambda: orientation_by_pillow(data) if calls_python else _no_orientation(),
                lambda: exif.UPRIGHT,
            )
            pixels = exif.upright(pixels, orientation)
        return _part(pixels, options, seed)

    # Few nodes, all in all: TensorFlow optimizes this function anew for each iterator, and passes through each node of
    # the branches not taken.
    kind = tf.where(head.is_jpeg(), 0, tf.where(head.is_png_for(options.channels), 1, 2))
    image = _resized(tf.switch_case(kind, [jpeg, png, pillow]), options)
    return tf.ensure_shape(image, [*(options.image_size or (None, None)), options.channels])


def _fails_without_python(value: tf.Tensor, problem: str) -> tf.Tensor:
    """Graph code: an error when it runs, in the place of a value."""
    with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [problem])]):
        return tf.identity(value)


def _no_orientation() -> tf.Tensor:
    return _fails_without_python(
        tf.constant(exif.UPRIGHT),
        "a data service's workers can't read the Exif orientation that this file may have. Give "
        "exif_orientation=False if the pictures are stored upright, or convert them.",
    )


def _jpeg_reader(data: tf.Tensor, shape: tf.Tensor, options: ImageOptions) -> _Reader:
    channels = 1 if options.channels == 1 else 3

    def read_at(region: tf.Tensor | None, scale: int) -> tf.Tensor:
        def whole() -> tf.Tensor:
            return tf.io.decode_jpeg(data, channels=channels, ratio=scale)

        if region is None:
            return whole()
        start, stop = region[:2] // scale, -(-(region[:2] + region[2:]) // scale)
        if options.random_resized_crop is None:
            # The centered part is most of the picture: to decode it alone takes no less time.
            return _sliced(whole(), start, stop - start)
        scaled_size = -(-shape[:2] // scale)

        def part() -> tf.Tensor:
            first = tf.maximum(start - _CHROMA_MARGIN, 0)
            last = tf.minimum(stop + _CHROMA_MARGIN, scaled_size)
            window = tf.concat([first, last - first], 0)
            pixels = tf.image.decode_and_crop_jpeg(data, window, channels=channels, ratio=scale)
            return _sliced(pixels, start - first, stop - start)

        # A truncated file must fail, whichever part of it is wanted. Without its end mark only reading it all can tell.
        is_complete = tf.strings.substr(data, -2, 2) == b"\xff\xd9"
        return tf.cond(is_complete, part, lambda: _sliced(whole(), start, stop - start))

    def read(region: tf.Tensor | None, rung: tf.Tensor | None) -> tf.Tensor:
        if rung is None:
            pixels = read_at(region, 1)
        else:
            pixels = tf.switch_case(rung, [lambda scale=scale: read_at(region, scale) for scale in _JPEG_SCALES])
        return _with_alpha(pixels) if options.channels == 4 else pixels

    return read


def _with_alpha(rgb: tf.Tensor) -> tf.Tensor:
    return tf.concat([rgb, tf.fill(tf.concat([tf.shape(rgb)[:2], [1]], 0), tf.constant(255, tf.uint8))], -1)


def _sliced(pixels: tf.Tensor, start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    return tf.slice(pixels, tf.concat([start, [0]], 0), tf.concat([size, [-1]], 0))


def _part(pixels: tf.Tensor, options: ImageOptions, seed: tf.Tensor | None) -> tf.Tensor:
    """The wanted part of an upright picture."""
    region = _wanted_region(tf.shape(pixels)[:2], options, seed)
    return pixels if region is None else _sliced(pixels, region[:2], region[2:])


def _jpeg_part(
    read: _Reader,
    stored_size: tf.Tensor,
    options: ImageOptions,
    seed: tf.Tensor | None,
    orientation: tf.Tensor | None,
) -> tf.Tensor:
    """Reads the wanted part of a JPEG and turns it upright.

    It is turned before it is resized. The other order would turn fewer pixels, but rounds differently.

    Args:
        read: gives stored pixels.
        stored_size: int32, height and width before turning.
        options: what is wanted.
        seed: for a random part.
        orientation: int32 scalar from 1 to 8. None is 1, without any operations.
    """
    size = stored_size if orientation is None else exif.upright_size(stored_size, orientation)
    region = _wanted_region(size, options, seed)
    rung = None
    if options.scaled_decode and options.image_size is not None:
        rung = _scale_rung(size if region is None else region[2:], options.image_size, options.resize)
    if region is not None and orientation is not None:
        region = exif.stored_region(region, stored_size, orientation)
    image = read(region, rung)
    return image if orientation is None else exif.upright(image, orientation)


def _wanted_region(size: tf.Tensor, options: ImageOptions, seed: tf.Tensor | None) -> tf.Tensor | None:
    """`(top, left, height, width)` of the part to keep, int32; None for all of a picture of that height and width."""
    if options.random_resized_crop is not None:
        start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.concat([size, [options.channels]], 0),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed,
            min_object_covered=0.0,
            area_range=options.random_resized_crop.area,
            aspect_ratio_range=options.random_resized_crop.aspect_ratio,
        )
        return tf.concat([start[:2], extent[:2]], 0)
    if options.resize == "crop" and options.image_size is not None:
        # As `keras.utils.image_utils.smart_resize` does it. The product of two sides may exceed 32 bits.
        height, width = options.image_size
        asked_for = tf.cast(size[::-1], tf.int64) * (height, width) // (width, height)
        extent = tf.clip_by_value(tf.cast(asked_for, tf.int32), 1, size)
        return tf.concat([(size - extent) // 2, extent], 0)
    return None


def _scale_rung(size: tf.Tensor, image_size: tuple[int, int], resize: str) -> tf.Tensor:
    """The index in `_JPEG_SCALES` of the smallest scale that leaves a part of this size as large as it is needed."""
    # Padded, a picture fills the image along one side; else it does along both.
    is_enough = tf.reduce_any if resize == "pad" else tf.reduce_all
    return tf.add_n(
        [tf.cast(is_enough(size >= scale * tf.constant(image_size)), tf.int32) for scale in _JPEG_SCALES[1:]]
    )


def _resized(image: tf.Tensor, options: ImageOptions) -> tf.Tensor:
    if options.image_size is None:
        return image
    image_size = tf.constant(options.image_size)
    size, margin = image_size, None
    if options.resize == "pad":
        # What `tf.image.resize_with_pad` computes in floats, of which it sometimes loses the last row or column.
        wanted, given = tf.cast(image_size, tf.int64), tf.shape(image, tf.int64)[:2]
        numerator, denominator = given * wanted[::-1], given[::-1]
        size = tf.clip_by_value(tf.cast(numerator // denominator, tf.int32), 1, image_size)
        margin = tf.maximum(tf.cast((wanted * denominator - numerator) // (2 * denominator), tf.int32), 0)

    def interpolated() -> tf.Tensor:
        pixels = tf.image.resize(image, size, options.interpolation, antialias=options.antialias)
        if pixels.dtype == tf.uint8:
            return pixels
        if options.interpolation not in ("bilinear", "area"):  # these two never leave the range of what they average
            pixels = tf.clip_by_value(pixels, 0.0, 255.0)
        return tf.cast(pixels + 0.5, tf.uint8)

    image = tf.cond(tf.reduce_all(tf.shape(image)[:2] == size), lambda: image, interpolated)
    if margin is None:
        return image
    return tf.pad(image, tf.concat([tf.stack([margin, image_size - margin - size], 1), [[0, 0]]], 0))
