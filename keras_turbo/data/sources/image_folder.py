"""Folders of images, one class a folder."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_turbo.data.images import IMAGE_ENDINGS, ImageOptions, decode_image, image_kind
from keras_turbo.data.sources.class_folders import (
    ClassFiles,
    FileKind,
    Loader,
    Subset,
    check_split,
    class_folder_sources,
    find_class_files,
)
from keras_turbo.data.sources.files import FileSource

_IMAGES = FileKind("image", "images", IMAGE_ENDINGS, lambda head: image_kind(head) is not None)


def find_images(directory: str | os.PathLike, by_class: bool, class_names: Sequence[str] | None = None) -> ClassFiles:
    """Finds the images under a folder, and in its class folders if asked, as `find_class_files` does."""
    return find_class_files(directory, _IMAGES, by_class, class_names)


def image_folder_sources(
    directory: str | os.PathLike,
    *,
    labels: Any,
    label_mode: str | None,
    class_names: Sequence[str] | None,
    image_options: dict[str, Any],
    validation_split: float | None,
    subset: Subset | None,
    seed: int | None,
) -> tuple[dict[str, FileSource], list[str] | None]:
    """The sources of `FastDataset.from_image_folder`, by the name of their part, and the class names."""
    options = ImageOptions(**image_options)
    check_split(validation_split, subset, _IMAGES)

    def loader_of(is_whole: bool) -> Loader:
        # Where both parts are asked for at once, the held-out images are looked at whole.
        of_part = dataclasses.replace(options, random_resized_crop=None) if is_whole else options
        return Loader(
            functools.partial(_load_image, of_part),
            dataclasses.asdict(of_part),
            is_random=of_part.random_resized_crop is not None,
            load_remotely=functools.partial(_load_image, of_part, calls_python=False),
        )

    return class_folder_sources(
        find_images(directory, isinstance(labels, str) and labels == "inferred", class_names),
        _IMAGES,
        loader_of,
        directory=directory,
        labels=labels,
        label_mode=label_mode,
        class_names=class_names,
        validation_split=validation_split,
        subset=subset,
        seed=seed,
    )


def _load_image(options: ImageOptions, path: tf.Tensor, seed: tf.Tensor, *, calls_python: bool = True) -> tf.Tensor:
    return decode_image(tf.io.read_file(path), options, seed, calls_python=calls_python)
