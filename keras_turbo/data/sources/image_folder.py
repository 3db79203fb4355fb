"""Folders of images, one class a folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from keras_turbo.data.images import ImageOptions
from keras_turbo.data.sources.class_folders import (
    ClassFiles,
    FileKind,
    check_split,
    class_folder_sources,
    find_class_files,
)
from keras_turbo.data.sources.files import DecodedFiles
from keras_turbo.data.sources.image_decoder import IMAGE_ENDINGS, ImageDecoder, image_kind

_IMAGES = FileKind("image", "images", IMAGE_ENDINGS, lambda head: image_kind(head) is not None)


def find_images(
    directory: str | os.PathLike, by_class: bool, class_names: Sequence[str] | None = None, follow_links: bool = True
) -> ClassFiles:
    """Finds the images under a folder, and in its class folders if asked, as `find_class_files` does."""
    return find_class_files(directory, _IMAGES, by_class, class_names, follow_links)


def image_folder_sources(
    directory: str | os.PathLike,
    options: ImageOptions,
    *,
    labels: Any,
    class_names: Any,
    subset: Any,
    follow_links: bool = True,
    **others: Any,
) -> tuple[dict[str, DecodedFiles], list[str] | None]:
    """The sources of `FastDataset.from_image_folder`, by the name of their part, and the class names."""
    check_split(others["validation_split"], subset, others["seed"], _IMAGES)

    def decoder_of(is_whole: bool) -> tuple[ImageDecoder, dict[str, Any]]:
        # Where both parts are asked for at once, the held-out images are looked at whole.
        of_part = dataclasses.replace(options, random_resized_crop=None) if is_whole else options
        return ImageDecoder(of_part), dataclasses.asdict(of_part)

    return class_folder_sources(
        find_images(directory, isinstance(labels, str) and labels == "inferred", class_names, follow_links),
        _IMAGES,
        decoder_of,
        directory=directory,
        labels=labels,
        class_names=class_names,
        subset=subset,
        **others,
    )
