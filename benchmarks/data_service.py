"""Images a second from two workers of a tf.data service on this machine: by hand, keras_turbo and no service, in turn.

    python benchmarks/data_service.py

- stock: `keras.utils.image_dataset_from_directory`, in this process.
- by hand: shuffled paths, `map` to uint8, `batch`, and `tf.data.experimental.service.distribute` with dynamic sharding,
  in which the batches of a worker that dies are lost, and come in another order in each run.
- keras_turbo: `FastDataset.from_image_folder(service=...)`, whose batches are those of this process, in their order.
- keras_turbo, in this process: the same without `service`.

All share the cores of this machine, so that the figures tell what a service costs and not what other machines gain.
Beginning to read, which takes a job of the service some time, is in the two epochs that are measured.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import _measure
import _photos
import numpy as np
import tensorflow as tf
from image_folder import BATCH_SIZE, IMAGE_SIZE, Photos

WORKERS = 2
EPOCHS = 2

_START_SECONDS = 120

STOCK = "stock"
BY_HAND = "by hand"
TURBO = "keras_turbo"
TURBO_HERE = "keras_turbo, in this process"


@contextlib.contextmanager
def data_service() -> Iterator[str]:
    """A context in which a dispatcher and its workers run, with the dispatcher's address."""
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(_part("dispatcher"))
        for _ in range(WORKERS):
            stack.enter_context(_part("worker", "--dispatcher", address))
        yield address


@contextlib.contextmanager
def _part(*arguments: str) -> Iterator[str]:
    """A context in which a part of the service runs, with the address that it prints."""
    command = [sys.executable, "-m", "keras_turbo", "data-service", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    timer = threading.Timer(_START_SECONDS, process.kill)
    try:
        timer.start()
        words = process.stdout.readline().split() if process.stdout is not None else []
        timer.cancel()
        if not words:
            raise RuntimeError(f"{' '.join(command)} has ended before it listened. Run it by itself to see why.")
        yield words[1]
    finally:
        timer.cancel()
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Contenders:
    """The datasets that are measured."""

    def __init__(self, photos: Photos, address: str) -> None:
        self.photos = photos
        self.address = address

    def stock(self) -> tf.data.Dataset:
        return self.photos.stock(IMAGE_SIZE)

    def by_hand(self) -> tf.data.Dataset:
        distributed = tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC, self.address
        )
        class_names = tf.constant(sorted(path.name for path in self.photos.folder.iterdir()))

        def load(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image = tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), [IMAGE_SIZE, IMAGE_SIZE])
            label = tf.argmax(tf.strings.split(path, "/")[-2] == class_names, output_type=tf.int32)
            # A quarter of the bytes to send.
            return tf.cast(tf.round(image), tf.uint8), label

        paths = tf.data.Dataset.from_tensor_slices(self.photos.files).shuffle(self.photos.num_images, seed=0)
        return paths.map(load, tf.data.AUTOTUNE).batch(BATCH_SIZE).apply(distributed).prefetch(tf.data.AUTOTUNE)

    def turbo(self) -> tf.data.Dataset:
        return self.photos.turbo(IMAGE_SIZE, cache=False, exif_orientation=False, service=self.address)

    def turbo_here(self) -> tf.data.Dataset:
        return self.photos.turbo(IMAGE_SIZE, cache=False, exif_orientation=False)


def check(contenders: Contenders) -> dict[str, Any]:
    """Compares an epoch of keras_turbo's batches with those made here, and which images there are by hand.

    Returns:
        What was found.

    Raises:
        ResultsDifferError: they are not equal.
    """
    sums, labels = [], []
    for here, there in zip(contenders.turbo_here(), contenders.turbo(), strict=True):
        if not all(np.array_equal(*parts) for parts in zip(here, there, strict=True)):
            raise _measure.ResultsDifferError("Batches of the service differ from those of this process.")
        sums.append(np.sum(here[0], (1, 2, 3), np.float64))
        labels.append(np.asarray(here[1]))
    by_hand = [(np.sum(x, (1, 2, 3), np.float64), np.asarray(y)) for x, y in contenders.by_hand()]
    ours, theirs = np.sort(np.concatenate(sums)), np.sort(np.concatenate([part for part, _ in by_hand]))
    same_labels = np.array_equal(np.sort(np.concatenate(labels)), np.sort(np.concatenate([y for _, y in by_hand])))
    # A pixel half way between two integers may be rounded to either.
    if len(ours) != len(theirs) or not np.allclose(ours, theirs, rtol=2e-4) or not same_labels:
        raise _measure.ResultsDifferError("An epoch by hand is not of the same images.")
    return {"batches equal to those of this process": True, "epochs of the same images": True}


def main() -> None:
    parser = _measure.parser(__doc__, "data_service", rounds=3)
    options = parser.parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    with _photos.photo_folder(None, 64 if options.quick else 1_000) as folder, data_service() as address:
        photos = Photos(folder)
        contenders = Contenders(photos, address)
        checks = check(contenders)
        measured = _measure.in_turn(
            {
                STOCK: photos.iterated(contenders.stock, EPOCHS),
                BY_HAND: photos.iterated(contenders.by_hand, EPOCHS),
                TURBO: photos.iterated(contenders.turbo, EPOCHS),
                TURBO_HERE: photos.iterated(contenders.turbo_here, EPOCHS),
            },
            rounds,
        )
    comparison = _measure.Comparison(
        f"Photos by {WORKERS} workers of a data service on this machine",
        "images a second",
        "higher",
        _measure.figures(measured),
        stock=STOCK,
    )
    comparison.print()
    targets = [_measure.Target("times by hand over the same service", comparison.ratio(TURBO, BY_HAND), at_least=0.9)]
    settings = {
        "photos": photos.num_images,
        "workers": WORKERS,
        "epochs": EPOCHS,
        "rounds": rounds,
        "image_size": IMAGE_SIZE,
    }
    _measure.finish(options, settings, [comparison], targets, checks)


if __name__ == "__main__":
    main()
