"""Which images both runs are given: all that both can read, and the same ones held out."""

from __future__ import annotations

import dataclasses
import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.sources.class_folders import validation_mask
from keras_turbo.data.sources.image_decoder import image_kind
from keras_turbo.data.sources.image_folder import find_images
from keras_turbo.report import progress_bar

VALIDATION_SPLIT = 0.2

# What keras.utils.image_dataset_from_directory says that it reads.
_KINDS_OF_STOCK_KERAS = ("jpeg", "png", "gif", "bmp")

# A longer list of files tells nobody more.
_MOST_FILES_NAMED = 5

# Bytes of a file that tell its kind.
_HEADER_BYTES = 16


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Two folders with the same class folders.

    Attributes:
        training: the folder of images to train on.
        validation: the folder of those held out.
        num_training: how many images the one has.
        num_validation: how many the other has.
        class_names: names of the class folders, sorted.
    """

    training: Path
    validation: Path
    num_training: int
    num_validation: int
    class_names: tuple[str, ...]


def hold_out(folder: str | os.PathLike, scratch: Path, seed: int) -> HeldOut:
    """Makes a folder to train on and one to validate on, of links to the images of a folder.

    Args:
        folder: has one folder of images for each class.
        scratch: where the two are made.
        seed: decides which images are held out.

    Raises:
        OSError: no such folder, or links can't be made.
        ValueError: no images that both sides can read, or too few images or classes.
    """
    found = find_images(folder, by_class=True)
    if len(found.class_names) < 2:
        raise ValueError(
            f"{os.fspath(folder)!r} has one class folder, {found.class_names[0]!r}, and a classifier needs two. Give "
            "the folder that holds the class folders."
        )
    unreadable = _unreadable(found.paths)
    images = [image for image in zip(found.paths, found.class_of, strict=True) if image[0] not in unreadable]
    is_held_out = validation_mask(len(images), VALIDATION_SPLIT, seed)
    if is_held_out.all() or not is_held_out.any():
        raise ValueError(
            f"{len(images)} images are too few to hold {VALIDATION_SPLIT:.0%} of them out for validation. Give "
            "more images."
        )
    training, validation = scratch / "training", scratch / "validation"
    for name in found.class_names:
        (training / name).mkdir(parents=True)
        (validation / name).mkdir(parents=True)
    for index, ((path, name), out) in enumerate(zip(images, is_held_out, strict=True)):
        # Keras looks for endings that it knows; what the file is, its decoder tells by the content.
        _link(path, (validation if out else training) / name / f"{index:08d}.png")
    num_validation = int(is_held_out.sum())
    return HeldOut(training, validation, len(images) - num_validation, num_validation, tuple(found.class_names))


def _unreadable(paths: Sequence[str]) -> set[str]:
    """Those images that stock Keras can't read, after a warning that names them.

    Reading all of them also brings the files into the operating system's cache, so that the run that goes second does
    not find them there because of the one that went first.
    """
    reasons: dict[str, str] = {}
    for path in paths:
        with open(path, "rb") as file:
            kind = image_kind(file.read(_HEADER_BYTES))
        if kind not in _KINDS_OF_STOCK_KERAS:
            reasons[path] = f"not a {', '.join(_KINDS_OF_STOCK_KERAS[:-1])} or {_KINDS_OF_STOCK_KERAS[-1]} file"
    known = [path for path in paths if path not in reasons]
    if known:
        reasons |= _reasons_of_failures(known)
    if reasons:
        named = [f"{path} ({reason.rstrip('.')})" for path, reason in list(reasons.items())[:_MOST_FILES_NAMED]]
        if len(reasons) > len(named):
            named.append(f"and {len(reasons) - len(named):,} more")
        text = f"{len(reasons):,} of {len(paths):,} images can't be read by stock Keras"
        if len(reasons) == len(paths):
            raise ValueError(f"{text}: {', '.join(named)}.")
        warnings.warn(f"{text} and are left out of both runs: {', '.join(named)}.", stacklevel=2)
    return set(reasons)


def _reasons_of_failures(paths: list[str]) -> dict[str, str]:
    """Decodes images as Keras does, and gives for those that fail the reason."""

    def decode(path: tf.Tensor) -> tf.Tensor:
        return tf.shape(tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False))

    shapes = FastDataset.from_files(paths, decode, cache=False, on_error="skip")
    with warnings.catch_warnings(), progress_bar("Checking the images", len(paths)) as advance:
        warnings.filterwarnings("ignore", "An example was left out")  # all are named together, by the caller
        try:
            for batch in shapes:
                advance(len(batch))
        except ExampleLoadError:
            if len(shapes.skipped) < len(paths):  # else it says that nothing is left, as the caller does
                raise
    return {example.path: example.reason for example in shapes.skipped}


def _link(path: str, link: Path) -> None:
    try:
        link.symlink_to(os.path.abspath(path))
    except OSError:  # a file system without links, or an account that may not make them
        shutil.copyfile(path, link)
