"""Images a second from a folder of photos: stock Keras, by hand, keras_turbo and the limit, in turn.

    python benchmarks/image_folder.py

- stock: `keras.utils.image_dataset_from_directory`.
- by hand: `list_files`, `map`, `shuffle(1000)`, `batch`, `prefetch`; or, for later epochs, stock with `.cache()`.
- keras_turbo: `FastDataset.from_image_folder`, by default with `cache="memory"`.
- limit: in the first epoch reading and decoding by tf.data and nothing else, with two calls at a time for each core and
  with tf.data's own options ("autotuned"), whichever is faster; in later epochs the same batch again and again.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure
import _photos
import keras
import numpy as np
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.node import data_options

BATCH_SIZE = 32
IMAGE_SIZE = 224
SCALED_SIZE = 160  # a photo of 500 by 375 is decoded at half its size for it

# keras_turbo rounds to integers what stock Keras keeps as fractions, and resizes by OpenCV, within one level of it.
_LARGEST_PIXEL_DIFFERENCE = 1.0
_COMPARED_IMAGES = 256

# Epochs of a round where an epoch takes a fraction of a second.
_STORED_EPOCHS = 3
_FIT_EPOCHS = 2

STOCK = "stock"
BY_HAND = "by hand"
BY_HAND_CACHED = "by hand, .cache()"
TURBO = "keras_turbo"
TURBO_NOT_KEPT = "keras_turbo, cache=False"
TURBO_SCALED = "keras_turbo, scaled_decode"
TURBO_MEMORY = "keras_turbo, memory"
TURBO_DISK = "keras_turbo, disk"
LIMIT = "limit"
LIMIT_AUTOTUNED = "limit, autotuned"


class Photos:
    """The datasets of the contenders over one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = FastDataset.from_image_folder(folder, cache=False, shuffle=False).file_paths
        self.num_images = len(self.files)

    def stock(self, side: int, shuffle: bool = True) -> tf.data.Dataset:
        return keras.utils.image_dataset_from_directory(
            self.folder,
            image_size=(side, side),
            batch_size=BATCH_SIZE,
            shuffle=shuffle,
            seed=0 if shuffle else None,
            verbose=False,
        )

    def by_hand(self, side: int, shuffle: bool = True) -> tf.data.Dataset:
        """What tutorials write: pixels from -1 to 1, shuffled as decoded images."""
        class_names = tf.constant(sorted(path.name for path in self.folder.iterdir()))

        def load(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
            image = (tf.image.resize(image, [side, side]) - 127.5) / 127.5
            label = tf.argmax(tf.strings.split(path, "/")[-2] == class_names, output_type=tf.int32)
            return image, label

        if shuffle:
            paths = tf.data.Dataset.list_files(str(self.folder / "*/*.jpg"), seed=0)
        else:
            paths = tf.data.Dataset.from_tensor_slices(self.files)
        images = paths.map(load, num_parallel_calls=tf.data.AUTOTUNE)
        if shuffle:
            images = images.shuffle(1000)
        return images.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

    def turbo(self, side: int, **options: Any) -> FastDataset:
        options = {"shuffle": True, "seed": 0, "cache": "memory"} | options
        return FastDataset.from_image_folder(self.folder, image_size=(side, side), batch_size=BATCH_SIZE, **options)

    def only_decoded(self, options: tf.data.Options) -> tf.data.Dataset:
        """The limit: what every way of reading these files has to do at least."""

        def decode(path: tf.Tensor) -> tf.Tensor:
            return tf.shape(tf.io.decode_jpeg(tf.io.read_file(path), channels=3))

        tuned = options.autotune.enabled is not False
        paths = tf.data.Dataset.from_tensor_slices(self.files)
        calls = tf.data.AUTOTUNE if tuned else 2 * _measure.environment()["cores"]
        return paths.map(decode, num_parallel_calls=calls).batch(BATCH_SIZE).prefetch(2).with_options(options)

    def iterated(self, make: Callable[[], tf.data.Dataset], epochs: int = 1) -> Callable[[], float]:
        """Measures images a second of a dataset that is made anew, without the making."""

        def measure() -> float:
            dataset = make()
            count, start = 0, time.perf_counter()
            for _ in range(epochs):
                for element in dataset:
                    count += tf.nest.flatten(element)[0].shape[0]
            seconds = time.perf_counter() - start
            if count != epochs * self.num_images:
                raise _measure.ResultsDifferError(f"{count} images in {epochs} epochs of {self.num_images}.")
            return count / seconds

        return measure

    def fitted(self, dataset: tf.data.Dataset, dtype: str) -> Callable[[], float]:
        """Measures images a second inside `fit` with a model that takes next to no time."""
        model = tiny_model(dtype)

        def measure() -> float:
            before = int(model.optimizer.iterations)
            stopwatch = _measure.EpochSeconds()
            # Keras 3.15 warns of its own default shuffle=True beside a dataset.
            model.fit(dataset, epochs=_FIT_EPOCHS, shuffle=False, verbose=0, callbacks=[stopwatch])
            steps = int(model.optimizer.iterations) - before
            if steps != _FIT_EPOCHS * -(-self.num_images // BATCH_SIZE):
                raise _measure.ResultsDifferError(f"{steps} steps in {_FIT_EPOCHS} epochs of {self.num_images} images.")
            return self.num_images / statistics.median(stopwatch.seconds)

        return measure


def tiny_model(dtype: str) -> keras.Model:
    """Rescales, averages and classifies; its input has the type of the dataset's images."""
    model = keras.Sequential(
        [
            keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), dtype=dtype),
            keras.layers.Rescaling(1 / 255),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(_photos.CLASSES),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def check_pixels(photos: Photos) -> dict[str, Any]:
    """Compares pixels and labels of all contenders, in one order.

    Returns:
        What was found.

    Raises:
        ResultsDifferError: they are not equal.
    """
    batches = max(1, min(photos.num_images, _COMPARED_IMAGES) // BATCH_SIZE)

    def first(dataset: tf.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
        parts = list(dataset.take(batches))
        return np.concatenate([x for x, _ in parts]).astype(np.float32), np.concatenate([y for _, y in parts])

    stock, stock_labels = first(photos.stock(IMAGE_SIZE, shuffle=False))
    by_hand, by_hand_labels = first(photos.by_hand(IMAGE_SIZE, shuffle=False))
    turbo, turbo_labels = first(photos.turbo(IMAGE_SIZE, shuffle=False, cache=False))
    largest = max(float(np.abs(stock - turbo).max()), float(np.abs(by_hand * 127.5 + 127.5 - turbo).max()))
    if largest > _LARGEST_PIXEL_DIFFERENCE:
        raise _measure.ResultsDifferError(f"Pixels differ by up to {largest:.3f} levels of 255.")
    if not (np.array_equal(stock_labels, turbo_labels) and np.array_equal(by_hand_labels, turbo_labels)):
        raise _measure.ResultsDifferError("Labels differ.")
    whole, _ = first(photos.turbo(SCALED_SIZE, shuffle=False, cache=False))
    scaled, _ = first(photos.turbo(SCALED_SIZE, shuffle=False, cache=False, scaled_decode=True))
    return {
        "images compared": len(turbo),
        "largest difference of pixels, of 255 levels": round(largest, 4),
        "labels equal": True,
        "examples of every epoch equal": True,
        "mean difference of pixels by scaled_decode, of 255 levels": round(float(np.abs(whole - scaled).mean()), 3),
    }


def first_epochs(photos: Photos, rounds: int) -> list[_measure.Comparison]:
    """The first epoch iterated alone, at two sizes."""
    limits = {
        LIMIT: photos.iterated(lambda: photos.only_decoded(data_options())),
        LIMIT_AUTOTUNED: photos.iterated(lambda: photos.only_decoded(tf.data.Options())),
    }
    size, small = IMAGE_SIZE, SCALED_SIZE
    whole = {
        STOCK: photos.iterated(lambda: photos.stock(size)),
        BY_HAND: photos.iterated(lambda: photos.by_hand(size)),
        TURBO: photos.iterated(lambda: photos.turbo(size)),
        TURBO_NOT_KEPT: photos.iterated(lambda: photos.turbo(size, cache=False)),
        **limits,
    }
    scaled = {
        STOCK: photos.iterated(lambda: photos.stock(small)),
        BY_HAND: photos.iterated(lambda: photos.by_hand(small)),
        TURBO: photos.iterated(lambda: photos.turbo(small)),
        TURBO_SCALED: photos.iterated(lambda: photos.turbo(small, scaled_decode=True)),
        **limits,
    }
    return [
        _measure.Comparison(
            f"First epoch, {side} pixels",
            "images a second",
            "higher",
            _measure.figures(_measure.in_turn(contenders, rounds)),
            stock=STOCK,
            limits=tuple(limits),
        )
        for side, contenders in ((size, whole), (small, scaled))
    ]


def later_epochs(photos: Photos, rounds: int) -> list[_measure.Comparison]:
    """Later epochs: iterated alone, and inside fit."""
    with tempfile.TemporaryDirectory(prefix="keras_turbo_benchmark_") as cache_dir:
        in_memory = photos.turbo(IMAGE_SIZE)
        on_disk = photos.turbo(IMAGE_SIZE, cache="disk", cache_dir=cache_dir)
        # As Keras' own tutorials cache: the batches, float32.
        cached = photos.stock(IMAGE_SIZE).cache().prefetch(tf.data.AUTOTUNE)
        for dataset in (in_memory, on_disk, cached):
            photos.iterated(lambda dataset=dataset: dataset)()
        stock = photos.stock(IMAGE_SIZE)
        # Of the same number of full batches; the last one may be smaller, as everybody's.
        batch = next(iter(in_memory))
        rest = photos.num_images % BATCH_SIZE
        again = tf.data.Dataset.from_tensors(batch).repeat(photos.num_images // BATCH_SIZE)
        if rest:
            again = again.concatenate(tf.data.Dataset.from_tensors(tf.nest.map_structure(lambda t: t[:rest], batch)))
        contenders = {
            STOCK: (stock, "float32", 1),
            BY_HAND_CACHED: (cached, "float32", _STORED_EPOCHS),
            TURBO_MEMORY: (in_memory, "uint8", _STORED_EPOCHS),
            TURBO_DISK: (on_disk, "uint8", _STORED_EPOCHS),
            LIMIT: (again, "uint8", _STORED_EPOCHS),
        }
        alone = _measure.in_turn(
            {
                name: photos.iterated(lambda dataset=dataset: dataset, epochs)
                for name, (dataset, _, epochs) in contenders.items()
            },
            rounds,
        )
        in_fit = _measure.in_turn(
            {name: photos.fitted(dataset, dtype) for name, (dataset, dtype, _) in contenders.items()}, rounds
        )
    return [
        _measure.Comparison(
            title, "images a second", "higher", _measure.figures(measured), stock=STOCK, limits=(LIMIT,)
        )
        for title, measured in (("Later epochs, iterated alone", alone), ("Later epochs, inside fit", in_fit))
    ]


def main() -> None:
    parser = _measure.parser(__doc__, "image_folder", rounds=5)
    parser.add_argument("--data", type=Path, metavar="DIR", help="class folders of JPEGs; made there if there is none")
    parser.add_argument("--photos", type=int, metavar="N", help="photos to make (default: 3,000)")
    options = parser.parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    with _photos.photo_folder(options.data, options.photos or (96 if options.quick else 3000)) as folder:
        photos = Photos(folder)
        checks = check_pixels(photos)
        comparisons = []
        for measure in (first_epochs, later_epochs):
            comparisons += measure(photos, rounds)
    first, scaled, alone, in_fit = comparisons
    for comparison in comparisons:
        comparison.print()
    first_rate = first.figures[TURBO].median
    targets = [
        _measure.Target("first epoch, share of the limit", first.ratio(TURBO, first.limit), at_least=0.8),
        _measure.Target("first epoch, times stock", first.ratio(TURBO, STOCK), at_least=1.15),
        _measure.Target("first epoch, not kept, of the limit", first.ratio(TURBO_NOT_KEPT, first.limit), at_least=0.9),
        _measure.Target("first epoch, not kept, times stock", first.ratio(TURBO_NOT_KEPT, STOCK), at_least=1.25),
        _measure.Target(
            f"first epoch at {SCALED_SIZE} pixels with scaled_decode, times stock",
            scaled.ratio(TURBO_SCALED, STOCK),
            at_least=1.25,
        ),
        _measure.Target("later epochs inside fit, share of the limit", in_fit.ratio(TURBO_MEMORY, LIMIT), at_least=0.9),
        _measure.Target("later epochs inside fit, times stock", in_fit.ratio(TURBO_MEMORY, STOCK), at_least=5),
        _measure.Target(
            "later epochs iterated alone, times the first", alone.figures[TURBO_MEMORY].median / first_rate, at_least=20
        ),
    ]
    settings = {"photos": photos.num_images, "rounds": rounds, "batch_size": BATCH_SIZE, "image_size": IMAGE_SIZE}
    _measure.finish(options, settings, comparisons, targets, checks)


if __name__ == "__main__":
    main()
