"""What pixels are wanted of an image file, checked when it is said."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, Literal

INTERPOLATIONS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
"""The methods of `tf.image.resize`."""

RESIZES = ("stretch", "pad", "crop")

DTYPES = ("uint8", "uint16", "float32")

# Pillow's own limit, and more than a photo of the largest cameras has. A file of some kilobytes can declare any number.
MOST_PIXELS = 178_956_970


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the picture, stretched to the image size: the usual augmentation for classifiers.

    Args:
        area: least and greatest share of the picture's area, in (0, 1]. Default: 0.08 to 1.
        aspect_ratio: least and greatest width over height, above 0. Default: 3/4 to 4/3.

    Where no such part fits (a narrow panorama), the whole picture is taken.

    Raises:
        TypeError: not two numbers.
        ValueError: not in order, or out of bounds.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        _store(self, "area", _checked_range("area", self.area, greatest=1.0))
        _store(self, "aspect_ratio", _checked_range("aspect_ratio", self.aspect_ratio, greatest=math.inf))


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """What pixels are wanted of an image file.

    Args:
        image_size: height and width in pixels. None keeps each file's own.
        channels: 3 for RGB (the default), 1 for grayscale, 4 for RGBA.
        resize: "stretch" (default) ignores the aspect ratio. "pad" keeps it, and centers the picture between black (for
            4 channels transparent) margins. "crop" keeps it, and takes the largest centered part of the wanted shape.
            The three give what `keras.utils.image_dataset_from_directory` gives by default, with
            `pad_to_aspect_ratio` and with `crop_to_aspect_ratio`.
        interpolation: a method of `tf.image.resize`. Default: "bilinear".
        antialias: whether to average over all pixels that a smaller one stands for. Default: False, as in Keras. No
            effect on "nearest" and "area".
        exif_orientation: whether to turn pictures as their metadata say. Default: True.
        scaled_decode: whether a JPEG that is at least 2, 4 or 8 times as large as needed may be decoded at 1/2, 1/4 or
            1/8 of its size, which is faster and gives other pixels (smoother ones, like antialiasing). Default: False.
        random_resized_crop: takes a random part of each picture in place of "stretch". Default: None.
        dtype: "uint8" (default); or "uint16" or "float32", for the values of 16-bit PNG and TIFF files as they are
            stored.
        max_pixels: a file that declares more is refused before any memory is taken. Default: 179 million.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a value that can't be, or options that exclude one another.
    """

    image_size: tuple[int, int] | None = None
    channels: int = 3
    resize: Literal["stretch", "pad", "crop"] = "stretch"
    interpolation: str = "bilinear"
    antialias: bool = False
    exif_orientation: bool = True
    scaled_decode: bool = False
    random_resized_crop: RandomResizedCrop | None = None
    dtype: str = "uint8"
    max_pixels: int = MOST_PIXELS

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"`dtype` must be one of {DTYPES}. Received: {self.dtype!r}.")
        if not _is_integer(self.max_pixels):
            raise TypeError(f"`max_pixels` must be a positive int. Received: {self.max_pixels!r}.")
        if self.max_pixels < 1:
            raise ValueError(f"`max_pixels` must be a positive int. Received: {self.max_pixels}.")
        if self.image_size is not None:
            _store(self, "image_size", _checked_size(self.image_size))
        if not _is_integer(self.channels):
            raise TypeError(f"`channels` must be 1, 3 or 4, as an int. Received: {self.channels!r}.")
        if self.channels not in (1, 3, 4):
            raise ValueError(f"`channels` must be 1 (grayscale), 3 (RGB) or 4 (RGBA). Received: {self.channels}.")
        if self.resize not in RESIZES:
            raise ValueError(f"`resize` must be one of {RESIZES}. Received: {self.resize!r}.")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(f"`interpolation` must be one of {INTERPOLATIONS}. Received: {self.interpolation!r}.")
        for name in ("antialias", "exif_orientation", "scaled_decode"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"`{name}` must be True or False. Received: {getattr(self, name)!r}.")
        crop = self.random_resized_crop
        if crop is not None and not isinstance(crop, RandomResizedCrop):
            raise TypeError(
                f"`random_resized_crop` must be a RandomResizedCrop or None. Received: {crop!r}. "
                "RandomResizedCrop() has the usual ranges."
            )
        if crop is not None and self.resize != "stretch":
            raise ValueError(
                f"resize={self.resize!r} has nothing to do beside `random_resized_crop`, which chooses the part of the "
                "picture itself. Leave one of the two out."
            )
        if self.image_size is None:
            for name, idle in (("resize", "stretch"), ("scaled_decode", False), ("random_resized_crop", None)):
                if getattr(self, name) != idle:
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} needs a size to resize to, but `image_size` is None. Give "
                        f"image_size=(height, width), or leave `{name}` out."
                    )


IMAGE_OPTIONS = tuple(field.name for field in dataclasses.fields(ImageOptions))
"""The names of all options."""


def require_batchable(image_size: tuple[int, int] | None, batch_size: int | None) -> None:
    """Checks that images have one size if they are to be batched.

    Raises:
        ValueError: each keeps its own.
    """
    if image_size is None and batch_size not in (None, 1):
        raise ValueError(
            "image_size=None keeps each image's own size, and images of different sizes can't be batched. Give "
            f"image_size=(height, width), or batch_size=None. Received: batch_size={batch_size}."
        )


def _store(options: Any, name: str, value: Any) -> None:
    """Sets a field of a frozen dataclass, while that is being made."""
    object.__setattr__(options, name, value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _checked_size(size: Any) -> tuple[int, int]:
    if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(_is_integer(side) for side in size):
        raise TypeError(f"`image_size` must be two ints, (height, width), in pixels, or None. Received: {size!r}.")
    if min(size) < 1:
        raise ValueError(f"`image_size` must be at least (1, 1). Received: {size!r}.")
    return int(size[0]), int(size[1])


def _checked_range(name: str, value: Any, greatest: float) -> tuple[float, float]:
    bounds = f"0 < least <= greatest{f' <= {greatest:g}' if math.isfinite(greatest) else ''}"
    if (
        not isinstance(value, (tuple, list))
        or len(value) != 2
        or not all(isinstance(number, numbers.Real) and not isinstance(number, bool) for number in value)
    ):
        raise TypeError(f"`{name}` must be two numbers, (least, greatest), with {bounds}. Received: {value!r}.")
    least, most = float(value[0]), float(value[1])
    if not (0 < least <= most <= greatest and math.isfinite(most)):
        raise ValueError(f"`{name}` must be (least, greatest) with {bounds}. Received: {value!r}.")
    return least, most
