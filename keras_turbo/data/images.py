"""Bytes of an image file to pixels, by TensorFlow operations that `tf.data` runs in parallel.

What most files are (JPEG, PNG, GIF, plain BMP, and simple WebP where this TensorFlow reads it) never enters Python.
The rest goes through Pillow: CMYK JPEG, BMP with a palette, and the like.
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
_PNG_PALETTE = 3
# Shorter ones, of OS/2, hold their numbers elsewhere.
_LEAST_BMP_HEADER_SIZE = 40


# Stored pixels of a region (top, left, height, width), or of all the picture for None, at 1 / _JPEG_SCALES[rung].
_Reader = Callable[["tf.Tensor | None", "tf.Tensor | None"], tf.Tensor]


@tf.autograph.experimental.do_not_convert
def decode_image(data: tf.Tensor, options: ImageOptions, seed: tf.Tensor | None = None) -> tf.Tensor:
    """Decodes an image file, turns it upright and brings it to size. Graph code for `tf.data` maps; eager too.

    The file is recognised by its content: JPEG (also grayscale, CMYK and YCCK), PNG (all depths and color types; 16
    bits are cut to the upper 8), GIF (first frame), BMP, WebP (first frame). Pixels are uint8: where resizing
    interpolates, its result is rounded to the nearest integer and clipped to 0..255, not truncated. Where the size fits
    already, they are the decoder's own.

    With 1 or 3 channels transparency is dropped, as TensorFlow and Keras do: transparent pixels show the color that the
    file stores for them (in a GIF black). With 4 channels, files without transparency get an alpha of 255.

    Args:
        data: scalar string, the file's bytes.
        options: what pixels are wanted.
        seed: int32 or int64, shape (2,). Needed by `random_resized_crop`, of which the part taken is a function of it
            and of the picture's size: the same seed gives the same bytes.

    Returns:
        uint8 tensor of shape `(height, width, channels)`, as static as `image_size` allows.

    Raises:
        ValueError: `random_resized_crop` without a seed.
        tf.errors.InvalidArgumentError: when it runs: a file that is empty, truncated, damaged, or no such image.
    """
    if options.random_resized_crop is not None and seed is None:
        raise ValueError("`random_resized_crop` needs a `seed` of shape (2,), such as the example's own in its epoch.")
    head = FileHead(data)

    def plain_jpeg() -> tf.Tensor:
        shape = tf.image.extract_jpeg_shape(data)
        return tf.cond(
            shape[2] == _CMYK_CHANNELS,
            unusual,
            lambda: _fit(shape[:2], _jpeg_reader(data, shape, options), options, seed),
        )

    def anything() -> tf.Tensor:
        kinds = head.kinds()
        shape = tf.cond(kinds["jpeg"], lambda: tf.image.extract_jpeg_shape(data), lambda: tf.zeros([3], tf.int32))
        orientation = _orientation(data, kinds) if options.exif_orientation else None
        return tf.cond(
            kinds["jpeg"] & (shape[2] != _CMYK_CHANNELS),
            lambda: _fit(shape[:2], _jpeg_reader(data, shape, options), options, seed, orientation),
            lambda: _fit_decoded(_decode_other(data, head, kinds, options.channels), options, seed, orientation),
        )

    # By far the most files are plain. They are spared all that looks for something else.
    unusual = _apart(anything)
    image = tf.cond(head.is_plain_jpeg, plain_jpeg, unusual)
    return tf.ensure_shape(image, [*(options.image_size or (None, None)), options.channels])


def _apart(branch: Callable[[], tf.Tensor]) -> Callable[[], tf.Tensor]:
    """The same branch as one node of the graph.

    TensorFlow inlines the branches of a condition, and then passes through each node of those not taken, one by one.
    For the many nodes of a rarely taken branch that costs as much as a tenth of the decoding.
    """
    if tf.executing_eagerly():
        return branch
    return tf.function(branch, autograph=False, experimental_attributes={"_noinline": True})


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


def _orientation(data: tf.Tensor, kinds: dict[str, tf.Tensor]) -> tf.Tensor:
    """How the picture is to be turned, from the metadata of any kind of file."""
    has_exif_chunk = tf.strings.regex_full_match(tf.strings.substr(data, 0, _PNG_SEARCHED_BYTES), r"(?s)\C*eXIf\C*")
    may_have_exif = (kinds["png"] & has_exif_chunk) | kinds["extended_webp"]
    return tf.switch_case(
        tf.where(kinds["jpeg"], 0, tf.where(may_have_exif, 1, 2)),
        [lambda: exif.jpeg_orientation(data), lambda: orientation_by_pillow(data), lambda: tf.constant(1)],
    )


def _decode_other(data: tf.Tensor, head: FileHead, kinds: dict[str, tf.Tensor], channels: int) -> tf.Tensor:
    """The stored pixels of anything but a JPEG of one or three channels."""
    numbers = head.numbers()

    @_apart
    def pillow() -> tf.Tensor:
        return decode_by_pillow(data, channels)

    def png() -> tf.Tensor:
        return tf.io.decode_png(data, channels=channels)

    def bmp() -> tf.Tensor:
        return _from_rgb(tf.io.decode_image(data, channels=3, expand_animations=False), channels)

    def gif() -> tf.Tensor:
        pixels = bmp()
        screen = tf.stack([numbers["gif_height"], numbers["gif_width"]])
        # TensorFlow takes a first frame that fills only a part of the screen for all of it.
        return tf.cond(tf.reduce_all(tf.shape(pixels, tf.int64)[:2] == screen), lambda: pixels, pillow)

    def webp() -> tf.Tensor:
        return _from_rgb(tf.io.decode_image(data, channels=0, expand_animations=False)[:, :, :3], channels)

    branches = [(kinds["bmp"] & _is_true_color_bmp(data, numbers), bmp)]
    if channels == 4:
        # TensorFlow gives a wrong alpha for a PNG of few bits or with a palette, and none for a GIF or WebP.
        branches.append((kinds["png"] & (numbers["png_depth"] >= 8) & (numbers["png_color_type"] != _PNG_PALETTE), png))
    else:
        branches += [(kinds["png"], png), (kinds["gif"], gif)]
        if hasattr(tf.io, "decode_webp"):
            # An extended WebP may be an animation, on which TensorFlow 2.21 crashes.
            branches.append((kinds["webp"] & ~kinds["extended_webp"], webp))
    branches.append((tf.constant(True), pillow))
    return tf.switch_case(
        tf.argmax(tf.stack([condition for condition, _ in branches]), output_type=tf.int32),
        [branch for _, branch in branches],
    )


def _is_true_color_bmp(data: tf.Tensor, numbers: dict[str, tf.Tensor]) -> tf.Tensor:
    """Whether a BMP is of the kind that TensorFlow reads: true color, no bit fields, and not a byte too many."""
    depth, height = numbers["bmp_depth"], numbers["bmp_height"]
    height = tf.minimum(height, 2**32 - height)  # a negative one, in two's complement, means that rows run downwards
    size = numbers["bmp_pixel_offset"] + (depth * numbers["bmp_width"] + 31) // 32 * 4 * height
    return (
        (numbers["bmp_header_size"] >= _LEAST_BMP_HEADER_SIZE)
        & ((depth == 24) | (depth == 32))
        & (numbers["bmp_compression"] == 0)
        & (tf.cast(tf.strings.length(data), tf.int64) == size)
    )


def _with_alpha(rgb: tf.Tensor) -> tf.Tensor:
    return tf.concat([rgb, tf.fill(tf.concat([tf.shape(rgb)[:2], [1]], 0), tf.constant(255, tf.uint8))], -1)


def _from_rgb(rgb: tf.Tensor, channels: int) -> tf.Tensor:
    if channels == 1:
        # ITU-R BT.601 luma in 16-bit fixed point, as Pillow computes it.
        weighted = tf.cast(rgb, tf.int32) * tf.constant([19595, 38470, 7471])
        return tf.cast((tf.reduce_sum(weighted, -1, keepdims=True) + 0x8000) // 0x10000, tf.uint8)
    return _with_alpha(rgb) if channels == 4 else rgb


def _sliced(pixels: tf.Tensor, start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    return tf.slice(pixels, tf.concat([start, [0]], 0), tf.concat([size, [-1]], 0))


def _fit_decoded(
    pixels: tf.Tensor, options: ImageOptions, seed: tf.Tensor | None, orientation: tf.Tensor | None
) -> tf.Tensor:
    """`_fit` for a picture that is there as a whole."""

    def read(region: tf.Tensor | None, _rung: tf.Tensor | None) -> tf.Tensor:
        return pixels if region is None else _sliced(pixels, region[:2], region[2:])

    return _fit(tf.shape(pixels)[:2], read, options, seed, orientation)


def _fit(
    stored_size: tf.Tensor,
    read: _Reader,
    options: ImageOptions,
    seed: tf.Tensor | None,
    orientation: tf.Tensor | None = None,
) -> tf.Tensor:
    """Reads the part of a picture that is wanted, turns it upright and resizes it.

    The picture is turned before it is resized. The other order would turn fewer pixels, but rounds differently.

    Args:
        stored_size: int32, height and width before turning.
        read: gives stored pixels.
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
    if orientation is not None:
        image = exif.upright(image, orientation)
    return _resized(image, options)


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
