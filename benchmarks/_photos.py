"""Photos to measure with: distinct JPEGs cut from the two sample photographs of scikit-learn."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

# Of the usual photo on the web; the two originals have 640 by 427.
WIDTH, HEIGHT = 500, 375
CLASSES = 4
_QUALITY = 90
# Levels of noise on each side, so that no two files are alike and none compresses better than a camera's would.
_NOISE = 6
# The smallest part of an original that is cut out.
_SMALLEST_PART = 0.5


@contextlib.contextmanager
def photo_folder(data: Path | None, number: int) -> Iterator[Path]:
    """A folder with class folders of photos.

    Args:
        data: used as it is if it exists, else made and kept. None: a temporary folder.
        number: how many photos are made.
    """
    if data is not None and data.exists():
        yield data
        return
    parent = None if data is None else data.absolute().parent
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".photos-", dir=parent))
    try:
        _make_photos(making, number)
        if data is None:
            yield making
        else:
            os.rename(making, data)
            yield data
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _make_photos(folder: Path, number: int) -> None:
    from sklearn.datasets import load_sample_images

    originals = [Image.fromarray(image) for image in load_sample_images().images]
    for index in range(CLASSES):
        (folder / f"class_{index}").mkdir()

    def make(index: int) -> None:
        rng = np.random.default_rng(index)
        original = originals[index % len(originals)]
        size = (np.array(original.size) * rng.uniform(_SMALLEST_PART, 1)).astype(int)
        corner = rng.integers(0, np.array(original.size) - size, endpoint=True)
        part = original.crop((*corner, *(corner + size))).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        pixels = np.asarray(part, np.int16) + rng.integers(-_NOISE, _NOISE, (HEIGHT, WIDTH, 3), np.int16, endpoint=True)
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        image.save(folder / f"class_{index % CLASSES}" / f"{index:06d}.jpg", quality=_QUALITY)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # Taking the results raises what a thread raised.
        list(pool.map(make, range(number)))
