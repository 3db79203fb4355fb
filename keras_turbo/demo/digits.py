"""The handwritten digits that scikit-learn ships, as image files in class folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from keras_turbo import files

NUM_DIGITS = 1797

#: Height and width of each, in pixels.
DIGIT_SIZE = 8

# scikit-learn's pixels go from 0 to 16.
_BRIGHTEST = 16


def digit_folders(cache_dir: str | os.PathLike | None = None) -> Path:
    """Ten folders, named 0 to 9, of 1,797 grayscale PNG files of 8 by 8 pixels.

    They are written once, whole or not at all.

    Args:
        cache_dir: where to keep them, in a folder `digits`. Default: `~/.cache/keras_turbo` (`$XDG_CACHE_HOME` counts).

    Returns:
        The folder that holds the class folders.

    Raises:
        ImportError: they are not there yet, and scikit-learn is not installed.
        OSError: the folder can't be made or written.
    """
    folder = (files.default_cache_dir() if cache_dir is None else Path(cache_dir)) / "digits"
    if _is_whole(folder):
        return folder
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "The handwritten digits come with scikit-learn, which is not installed. Install it by "
            'pip install "keras_turbo[demo]", or use images of your own.'
        ) from error
    files.remove_abandoned(str(folder.parent))
    try:
        with files.writing_folder(str(folder)) as making:
            digits = load_digits()
            _write(Path(making), digits.images, digits.target)
            # Here it is a set from which somebody has removed files.
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        # Another process was faster, and what it made is the same.
        if not _is_whole(folder):
            raise
    return folder


def _write(folder: Path, images: np.ndarray, classes: np.ndarray) -> None:
    from PIL import Image

    for number in range(10):
        (folder / str(number)).mkdir()
    pixels = np.round(images * (255 / _BRIGHTEST)).astype(np.uint8)
    for index, (image, number) in enumerate(zip(pixels, classes, strict=True)):
        Image.fromarray(image).save(folder / str(number) / f"{index:04d}.png")


def _is_whole(folder: Path) -> bool:
    return sum(1 for _ in folder.glob("[0-9]/[0-9]*.png")) == NUM_DIGITS
