"""What can be said about the pixels that are wanted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from keras_turbo.data.images import (
    ImageOptions,
    RandomResizedCrop,
)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"image_size": 224}, TypeError, "two ints"),
        ({"image_size": (224,)}, TypeError, "two ints"),
        ({"image_size": (224.0, 224)}, TypeError, "two ints"),
        ({"image_size": (True, 224)}, TypeError, "two ints"),
        ({"image_size": (0, 224)}, ValueError, "at least"),
        ({"channels": 2}, ValueError, "1 .grayscale., 3"),
        ({"channels": True}, TypeError, "as an int"),
        ({"channels": "rgb"}, TypeError, "as an int"),
        ({"resize": "fit"}, ValueError, "'stretch', 'pad', 'crop'"),
        ({"interpolation": "cubic"}, ValueError, "bicubic"),
        ({"antialias": 1}, TypeError, "True or False"),
        ({"exif_orientation": None}, TypeError, "True or False"),
        ({"resize": "pad"}, ValueError, "needs a size"),
        ({"scaled_decode": True}, ValueError, "needs a size"),
        ({"random_resized_crop": RandomResizedCrop()}, ValueError, "needs a size"),
        ({"image_size": (8, 8), "random_resized_crop": True}, TypeError, "RandomResizedCrop"),
        ({"image_size": (8, 8), "resize": "pad", "random_resized_crop": RandomResizedCrop()}, ValueError, "one of"),
    ],
    ids=str,
)
def test_options_that_can_not_be_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        ImageOptions(**options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"area": 0.5}, TypeError),
        ({"area": (0.5,)}, TypeError),
        ({"area": ("0.1", 1)}, TypeError),
        ({"area": (False, True)}, TypeError),
        ({"area": (0.0, 1.0)}, ValueError),
        ({"area": (0.5, 1.5)}, ValueError),
        ({"area": (0.9, 0.5)}, ValueError),
        ({"area": (float("nan"), 0.5)}, ValueError),
        ({"aspect_ratio": (-1.0, 1.0)}, ValueError),
        ({"aspect_ratio": (1.0, float("inf"))}, ValueError),
    ],
    ids=str,
)
def test_ranges_that_can_not_be_are_refused(options, error):
    with pytest.raises(error, match=next(iter(options))):
        RandomResizedCrop(**options)


def test_options_are_values():
    options = ImageOptions(image_size=[np.int64(5), 7], random_resized_crop=RandomResizedCrop(area=[0.5, 1]))
    assert options == ImageOptions(image_size=(5, 7), random_resized_crop=RandomResizedCrop(area=(0.5, 1.0)))
    assert hash(options) == hash(dataclasses.replace(options))
    assert type(options.image_size[0]) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.channels = 1
