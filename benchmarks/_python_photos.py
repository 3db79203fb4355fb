"""The photos as a PyDataset, as people write one; worker processes import it from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import keras
import numpy as np
from PIL import Image


class Photos(keras.utils.PyDataset):
    """Batches of photos that Pillow decodes and resizes, as floats.

    Args:
        paths: the files.
        labels: one for each.
        batch_size: photos a batch; those that do not fill one are left out.
        image_size: of the result, height and width.
        **options: of Keras' PyDataset: `workers`, `use_multiprocessing`.
    """

    def __init__(
        self, paths: Sequence[str], labels: Sequence[int], batch_size: int, image_size: tuple[int, int], **options
    ) -> None:
        super().__init__(**options)
        self.paths, self.labels = list(paths), np.asarray(labels, np.int32)
        self.batch_size, self.image_size = batch_size, image_size

    def __len__(self) -> int:
        return len(self.paths) // self.batch_size

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        height, width = self.image_size
        images = []
        for path in self.paths[rows]:
            with Image.open(path) as image:
                pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)
            images.append(pixels / np.float32(127.5) - np.float32(1))
        return np.stack(images), self.labels[rows]

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The same as a generator."""
        for index in range(len(self)):
            yield self[index]
