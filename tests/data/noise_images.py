"""Small image files for the tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_image(path: Path, *, size: tuple[int, int] = (8, 8), seed: int = 0, kind: str | None = None) -> np.ndarray:
    """Writes an image of noise; folders are made.

    Args:
        path: its ending decides what it is, unless `kind` does.
        size: height and width.
        seed: of the noise.
        kind: Pillow's name of the format.

    Returns:
        The pixels that were given to Pillow.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path, format=kind)
    return pixels


def write_images(folder: Path, names: list[str]) -> None:
    """Writes an image for each name (a path below the folder), each with noise of its own."""
    for seed, name in enumerate(names):
        write_image(folder / name, seed=seed)
