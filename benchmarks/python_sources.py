"""Images a second in fit from a PyDataset: one process, Keras' workers, a generator, FastDataset, the limit, in turn.

python benchmarks/python_sources.py
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure
import keras
import numpy as np
import tensorflow as tf
from _photos import photo_folder
from _python_photos import Photos

from keras_turbo import FastDataset
from keras_turbo.data.settings import available_cores

BATCH_SIZE = 32
IMAGE_SIZE = (224, 224)
EPOCHS = 3

STOCK = "stock"
BY_HAND = "by hand, from_generator"
TURBO = "keras_turbo"
TURBO_HERE = "keras_turbo, workers=0"
LIMIT = "limit"
BY_HAND_CACHED = "by hand, from_generator and cache"
TURBO_CACHED = "keras_turbo, cache='memory'"

# What Keras itself offers beside one thread.
STOCK_OPTIONS = {
    "stock, 2 threads": {"workers": 2},
    "stock, 4 threads": {"workers": 4},
    "stock, 1 process": {"workers": 1, "use_multiprocessing": True},
    "stock, 2 processes": {"workers": 2, "use_multiprocessing": True},
    "stock, 4 processes": {"workers": 4, "use_multiprocessing": True},
}


@dataclasses.dataclass(frozen=True)
class FitRates:
    """Images a second: of the first epoch, with all that is started in it, and of those after it, their median."""

    first: float
    later: float


class Mean(keras.layers.Layer):
    """As little as makes a prediction of images: the input is what is measured."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        return keras.ops.mean(images, axis=(1, 2))


def new_model() -> keras.Model:
    dense = keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=0))
    model = keras.Sequential([keras.Input((*IMAGE_SIZE, 3)), Mean(), dense])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


def files_of(folder: Path, number: int) -> tuple[list[str], list[int]]:
    paths = sorted(str(path) for path in folder.glob("*/*.jpg"))[:number]
    return paths, [index % 2 for index in range(len(paths))]


def from_generator(photos: Photos) -> tf.data.Dataset:
    signature = (
        tf.TensorSpec((BATCH_SIZE, *IMAGE_SIZE, 3), tf.float32),
        tf.TensorSpec((BATCH_SIZE,), tf.int32),
    )
    batches = tf.data.Dataset.from_generator(photos.batches, output_signature=signature)
    # Without a number of batches, Keras (3.15) counts a step more than there are in each epoch.
    return batches.apply(tf.data.experimental.assert_cardinality(len(photos)))


def datasets(photos: Callable[..., Photos]) -> dict[str, Callable[[], Any]]:
    """For each contender a function that makes what `fit` is given."""

    def stock(options: dict[str, Any]) -> Callable[[], Photos]:
        return lambda: photos(**options)

    def same_batch() -> tf.data.Dataset:
        one = photos()
        return tf.data.Dataset.from_tensors(one[0]).repeat(len(one))

    return {
        STOCK: stock({}),
        **{name: stock(options) for name, options in STOCK_OPTIONS.items()},
        BY_HAND: lambda: from_generator(photos()).prefetch(tf.data.AUTOTUNE),
        TURBO_HERE: lambda: FastDataset(photos(), workers=0),
        TURBO: lambda: FastDataset(photos(), workers=max(2, available_cores())),
        BY_HAND_CACHED: lambda: from_generator(photos()).cache().prefetch(tf.data.AUTOTUNE),
        TURBO_CACHED: lambda: FastDataset(photos(), workers=max(2, available_cores()), cache="memory"),
        LIMIT: same_batch,
    }


def check_batches(photos: Callable[..., Photos]) -> int:
    """Compares the batches of a first and a second epoch with what the PyDataset gives.

    Returns:
        How many were compared.

    Raises:
        ResultsDifferError: one differs.
    """
    one, compared = photos(), 0
    for name in (TURBO_HERE, TURBO, TURBO_CACHED):
        dataset = datasets(photos)[name]()
        for _ in range(2):
            for index, (images, labels) in enumerate(dataset):
                wanted_images, wanted_labels = one[index]
                if not (np.array_equal(images, wanted_images) and np.array_equal(labels, wanted_labels)):
                    raise _measure.ResultsDifferError(f"Batch {index} of {name} is another one.")
                compared += 1
    if compared != 6 * len(one):
        raise _measure.ResultsDifferError(f"{compared} batches instead of {6 * len(one)}.")
    return compared


def measure(photos: Callable[..., Photos], rounds: int) -> dict[str, list[FitRates]]:
    images = len(photos()) * BATCH_SIZE

    def contender(name: str, make: Callable[[], Any]) -> Callable[[], FitRates]:
        model = new_model()

        def run() -> FitRates:
            stopwatch = _measure.EpochSeconds()
            before = int(model.optimizer.iterations)
            # Keras shuffles a PyDataset in whole batches, which costs nothing; all go in order.
            model.fit(make(), epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[stopwatch])
            steps = int(model.optimizer.iterations) - before
            if steps * BATCH_SIZE != EPOCHS * images:
                expected = EPOCHS * images // BATCH_SIZE
                raise _measure.ResultsDifferError(f"{steps} steps of {name} instead of {expected}.")
            gc.collect()  # processes end with their dataset
            first, *later = stopwatch.seconds
            return FitRates(images / first, images / statistics.median(later))

        return run

    contenders = {name: contender(name, make) for name, make in datasets(photos).items()}
    return _measure.in_turn(contenders, rounds, warm_up=False)


def comparisons_of(measured: dict[str, list[FitRates]]) -> tuple[_measure.Comparison, ...]:
    def comparison(title: str, field: str, names: list[str]) -> _measure.Comparison:
        values = {name: [getattr(rates, field) for rates in measured[name]] for name in names}
        return _measure.Comparison(
            title, "images a second", "higher", _measure.figures(values), stock=STOCK, limits=(LIMIT,)
        )

    making = [STOCK, *STOCK_OPTIONS, BY_HAND, TURBO_HERE, TURBO, LIMIT]
    return (
        comparison("Batches made in Python, first epoch (with the start of processes)", "first", making),
        comparison("Batches made in Python, later epochs", "later", making),
        comparison(
            "Batches made in Python, later epochs with a cache",
            "later",
            [STOCK, BY_HAND_CACHED, TURBO_CACHED, LIMIT],
        ),
    )


def main() -> None:
    parser = _measure.parser(__doc__, "python_sources", rounds=5)
    parser.add_argument("--data", type=Path, metavar="DIR", help="where photos are kept (default: a temporary folder)")
    options = parser.parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    number = 2 * BATCH_SIZE if options.quick else 640
    with photo_folder(options.data, number) as folder:
        paths, labels = files_of(folder, number)

        def photos(**keras_options: Any) -> Photos:
            return Photos(paths, labels, BATCH_SIZE, IMAGE_SIZE, **keras_options)

        compared = check_batches(photos)
        first, later, cached = comparisons_of(measure(photos, rounds))
    for comparison in (first, later, cached):
        comparison.print()
    best_of_keras = max(STOCK_OPTIONS, key=lambda name: later.figures[name].median)
    targets = [
        _measure.Target("later epochs, times one process", later.ratio(TURBO, STOCK), at_least=1.8),
        _measure.Target(
            f"later epochs, times the best of Keras' own ({best_of_keras})",
            later.ratio(TURBO, best_of_keras),
            at_least=1.25,
        ),
        _measure.Target(
            "later epochs with a cache, times tf.data's", cached.ratio(TURBO_CACHED, BY_HAND_CACHED), at_least=0.95
        ),
    ]
    checks = {"batches compared": compared, "steps of every fit equal": True}
    settings = {
        "images": number,
        "image_size": list(IMAGE_SIZE),
        "batch_size": BATCH_SIZE,
        "epochs": EPOCHS,
        "rounds": rounds,
        "workers": max(2, available_cores()),
    }
    _measure.finish(options, settings, [first, later, cached], targets, checks)


if __name__ == "__main__":
    main()
