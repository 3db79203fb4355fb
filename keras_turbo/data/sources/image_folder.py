"""Folders of images, one class a folder."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_turbo.data.images import IMAGE_ENDINGS, ImageOptions, decode_image, image_kind
from keras_turbo.data.labels import check_class_names, encode_labels, labels_of_paths
from keras_turbo.data.sources.files import FileSource

Subset = Literal["training", "validation", "both"]

# The longest magic number that image_kind looks at, with some to spare.
_HEADER_BYTES = 16


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """The images found under a folder.

    Attributes:
        paths: sorted; where there are classes, within each class, in the order of their numbers.
        class_of: for each path the name of its class folder; empty where classes were not asked for.
        class_names: the class folders, in the order of their numbers.
    """

    paths: list[str]
    class_of: list[str]
    class_names: list[str]


def find_images(directory: str | os.PathLike, by_class: bool, class_names: Sequence[str] | None = None) -> ImageFiles:
    """Finds the images under a folder, and in its class folders if asked.

    A file is an image by its ending, or by its first bytes where the ending is unknown. Hidden files are passed over.
    Whatever else is left out is counted in one warning, by ending.

    Args:
        directory: the folder. Links are followed, but for those that lead back into it.
        by_class: whether each folder in it is a class.
        class_names: the class folders to read, in the order of their numbers; by default all, sorted by name.

    Raises:
        FileNotFoundError: no such folder.
        NotADirectoryError: it is a file.
        ValueError: no images, no class folders, or a name in `class_names` without a folder.
    """
    root = pathlib.Path(os.fspath(directory))
    if not root.exists():
        raise FileNotFoundError(
            f"There is no folder {str(root)!r}. Check the path (it is relative to {os.getcwd()!r})."
        )
    if not root.is_dir():
        raise NotADirectoryError(f"{str(root)!r} is a file. Give the folder that holds the class folders.")
    left_out: collections.Counter[str] = collections.Counter()
    if not by_class:
        paths = _images_below(root, root, left_out)
        class_of: list[str] = []
        folders: list[str] = []
    else:
        folders = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
        if class_names is not None:
            check_class_names(class_names)
            missing = [name for name in class_names if name not in folders]
            if missing:
                raise ValueError(
                    f"`class_names` has {missing}, for which {str(root)!r} has no folder. It has: {folders}."
                )
            folders = list(class_names)
        if not folders:
            raise ValueError(
                f"{str(root)!r} has no class folders: with labels='inferred' each class is a folder of images in it. "
                "For a flat folder give `labels` as a list or a function of the path, or labels=None."
            )
        _warn_of_images_beside(root)
        paths, class_of = [], []
        for name in folders:
            of_class = _images_below(root, root / name, left_out)
            paths += of_class
            class_of += [name] * len(of_class)
    if left_out:
        counts = ", ".join(f"{count} {ending or '(no ending)'}" for ending, count in left_out.most_common())
        warnings.warn(
            f"{sum(left_out.values())} files under {str(root)!r} are not among the images that can be read and were "
            f"left out: {counts}. Read are {', '.join(sorted(IMAGE_ENDINGS))}.",
            stacklevel=3,
        )
    if not paths:
        raise ValueError(
            f"No images under {str(root)!r}. Looked for {', '.join(sorted(IMAGE_ENDINGS))}, by content too. "
            "If the images are elsewhere, give that folder."
        )
    return ImageFiles(paths, class_of, folders)


def _warn_of_images_beside(root: pathlib.Path) -> None:
    beside = [
        path.name
        for path in root.iterdir()
        if path.is_file() and not path.name.startswith(".") and path.suffix.lower() in IMAGE_ENDINGS
    ]
    if beside:
        warnings.warn(
            f"{len(beside)} images lie beside the class folders of {str(root)!r} and were left out, {min(beside)!r} "
            "among them: they have no class.",
            stacklevel=4,
        )


def _images_below(root: pathlib.Path, folder: pathlib.Path, left_out: collections.Counter[str]) -> list[str]:
    found = []
    been_in = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        if os.path.realpath(parent) in been_in:  # a link to a folder above would lead round and round
            folders.clear()
            continue
        been_in.add(os.path.realpath(parent))
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not _leads_back(os.path.join(parent, name), root)
        )
        for name in names:
            if name.startswith("."):
                continue
            path = os.path.join(parent, name)
            ending = os.path.splitext(name)[1].lower()
            if ending in IMAGE_ENDINGS or _has_image_content(path):
                found.append(path)
            else:
                left_out[ending] += 1
    return sorted(found)


def _leads_back(folder: str, root: pathlib.Path) -> bool:
    """Whether a link leads to the images that are looked through anyway, in which each has its place and its class."""
    if not os.path.islink(folder):
        return False
    target, whole = pathlib.Path(folder).resolve(), root.resolve()
    return target == whole or target in whole.parents or whole in target.parents


def _has_image_content(path: str) -> bool:
    if not os.path.isfile(path):  # a pipe would keep its reader waiting
        return False
    try:
        with open(path, "rb") as file:
            return image_kind(file.read(_HEADER_BYTES)) is not None
    except OSError:
        return False


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
    _check_split(validation_split, subset)
    files = find_images(directory, isinstance(labels, str) and labels == "inferred", class_names)
    encoded = numbers = names = None
    if labels is not None and label_mode is not None:
        found = files.class_of or labels_of_paths(labels, files.paths)
        # Folders without an image are classes all the same.
        known = files.class_names if files.class_of else class_names
        encoded, numbers, names = encode_labels(found, label_mode, known)

    held_out = np.zeros(len(files.paths), bool)
    if validation_split is not None:
        held_out = validation_mask(len(files.paths), validation_split, seed or 0)
    wanted = {"training": ~held_out, "validation": held_out}
    if subset != "both":
        wanted = {"training" if subset is None else subset: wanted["training" if subset is None else subset]}

    sources = {}
    for part, mask in wanted.items():
        if not mask.any():
            raise ValueError(
                f"validation_split={validation_split} of {len(files.paths)} images leaves none for {part}. Use more "
                "images or another share."
            )
        # Where both parts are asked for at once, the held-out images are looked at whole.
        whole = part == "validation" and subset == "both"
        part_options = dataclasses.replace(options, random_resized_crop=None) if whole else options
        recipe = {
            "kind": "image_folder",
            "directory": os.path.abspath(os.fspath(directory)),
            "images": dataclasses.asdict(part_options),
            "classes": [labels if isinstance(labels, str) else labels is not None, label_mode, names],
            "part": [part, validation_split and float(validation_split), subset, seed and int(seed)],
        }
        sources[part] = FileSource(
            [path for path, is_wanted in zip(files.paths, mask, strict=True) if is_wanted],
            functools.partial(_load_image, part_options),
            None if encoded is None else encoded[mask],
            None if numbers is None else numbers[mask],
            functools.partial(dict, recipe),
            is_random=part_options.random_resized_crop is not None,
            loading_is_called="decode",
            load_remotely=functools.partial(_load_image, part_options, calls_python=False),
        )
    return sources, names


def _load_image(options: ImageOptions, path: tf.Tensor, seed: tf.Tensor, *, calls_python: bool = True) -> tf.Tensor:
    return decode_image(tf.io.read_file(path), options, seed, calls_python=calls_python)


def _check_split(validation_split: float | None, subset: Subset | None) -> None:
    if validation_split is None:
        if subset is not None:
            raise ValueError(f"subset={subset!r} needs `validation_split`, the share of the images to hold out.")
        return
    if isinstance(validation_split, (bool, str)) or not 0 < validation_split < 1:
        raise ValueError(f"`validation_split` must lie between 0 and 1. Received: {validation_split!r}.")
    if subset not in ("training", "validation", "both"):
        raise ValueError(
            "With `validation_split`, `subset` must be 'training', 'validation' or 'both'. "
            f"Received: subset={subset!r}."
        )


def validation_mask(num_examples: int, validation_split: float, seed: int) -> np.ndarray:
    """Which examples are held out: bool, shape `(num_examples,)`, a random `validation_split` of them by the seed.

    The same number of examples and the same seed give the same mask, so that the two sets are disjoint.
    """
    order = np.random.default_rng(seed).permutation(num_examples)
    mask = np.zeros(num_examples, bool)
    mask[order[: round(num_examples * validation_split)]] = True
    return mask
