"""Megabytes of four epochs over files and of a full shuffle: stock Keras, by hand, keras_turbo and the limit, in turn.

    python benchmarks/memory.py

- stock: `keras.utils.image_dataset_from_directory`; `fit(x, y)`.
- by hand: `map`, `shuffle(1000)`, `batch`, `prefetch`; `from_tensor_slices`, `shuffle` of all, `batch`, `prefetch`.
- keras_turbo: `FastDataset`, over files without a cache and with one in memory.
- limit: the same batch again and again: the process with its model and nothing else.

Each runs in a process of its own, since a process gives little of its memory back. What a shuffle takes is the peak of
a process that shuffles, less the peak of one that does the same in order. The one by hand takes 5 GB, and minutes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure
import _photos
import keras
import numpy as np
import psutil
import tensorflow as tf

from keras_turbo import FastDataset

EPOCHS = 4
IMAGE_SIZE = 224
IMAGE_BATCH = 32
POSITIONS = 10_000_000
POSITION_BATCH = 10_000

STOCK = "stock"
BY_HAND = "by hand"
TURBO = "keras_turbo"
TURBO_UNCACHED = "keras_turbo, no cache"
TURBO_MEMORY = "keras_turbo, memory"
LIMIT = "limit"

FILE_CONTENDERS = (STOCK, BY_HAND, TURBO_UNCACHED, TURBO_MEMORY, LIMIT)
SHUFFLE_CONTENDERS = (STOCK, BY_HAND, TURBO)


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


def peak_mb() -> float:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


class ResidentAfterEpochs(keras.callbacks.Callback):
    """Reads the resident memory after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.mb: list[float] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.mb.append(resident_mb())


def fit_files(contender: str, folder: Path) -> dict[str, Any]:
    """In a child: four epochs over photos with a model that is small beside them."""
    size = (IMAGE_SIZE, IMAGE_SIZE)

    def load(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.image.resize(image, size), label

    def by_hand() -> tf.data.Dataset:
        files = FastDataset.from_image_folder(folder, cache=False, shuffle=False)
        paths = tf.data.Dataset.from_tensor_slices((files.file_paths, files.labels))
        images = paths.map(load, num_parallel_calls=tf.data.AUTOTUNE)
        return images.shuffle(1000).batch(IMAGE_BATCH).prefetch(tf.data.AUTOTUNE)

    def turbo(cache: Any) -> tf.data.Dataset:
        return FastDataset.from_image_folder(
            folder, image_size=size, batch_size=IMAGE_BATCH, shuffle=True, seed=0, cache=cache
        )

    def limit() -> tf.data.Dataset:
        batches = int(turbo(False).cardinality())
        batch = (np.zeros((IMAGE_BATCH, *size, 3), np.uint8), np.zeros(IMAGE_BATCH, np.int32))
        return tf.data.Dataset.from_tensors(batch).repeat(batches)

    datasets: dict[str, Callable[[], tf.data.Dataset]] = {
        STOCK: lambda: keras.utils.image_dataset_from_directory(
            folder, image_size=size, batch_size=IMAGE_BATCH, verbose=False
        ),
        BY_HAND: by_hand,
        TURBO_UNCACHED: lambda: turbo(False),
        TURBO_MEMORY: lambda: turbo("memory"),
        LIMIT: limit,
    }
    dataset = datasets[contender]()
    model = keras.Sequential(
        [
            keras.Input((*size, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(_photos.CLASSES),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    resident = ResidentAfterEpochs()
    # Keras 3.15 warns of its own default shuffle=True beside a dataset.
    model.fit(dataset, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[resident])
    return {"resident_mb": resident.mb, "peak_mb": peak_mb(), "steps": int(model.optimizer.iterations)}


def fit_positions(contender: str, positions: int, shuffle: bool) -> dict[str, Any]:
    """In a child: one epoch over as many numbers, with a model of two weights."""
    x = np.arange(positions, dtype=np.float32)[:, None]
    batch = POSITION_BATCH
    model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(1 / positions), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    start = time.perf_counter()
    if contender == STOCK:
        model.fit(x, x, batch_size=batch, shuffle=shuffle, verbose=0)
    else:
        if contender == BY_HAND:
            dataset = tf.data.Dataset.from_tensor_slices((x, x))
            dataset = (dataset.shuffle(positions) if shuffle else dataset).batch(batch).prefetch(tf.data.AUTOTUNE)
        else:
            dataset = FastDataset(x, x, batch_size=batch, shuffle=shuffle, seed=0)
        model.fit(dataset, shuffle=False, verbose=0)
    seconds = time.perf_counter() - start
    return {"peak_mb": peak_mb(), "seconds": seconds, "steps": int(model.optimizer.iterations)}


def in_child(*arguments: Any) -> dict[str, Any]:
    """Runs this file in a new process and gives what it measured."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The process for {arguments} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def run_child(arguments: list[str]) -> None:
    what, contender, *rest = arguments
    if what == "files":
        result = fit_files(contender, Path(rest[0]))
    else:
        result = fit_positions(contender, int(rest[0]), rest[1] == "True")
    print(json.dumps(result))


def compare_files(folder: Path, rounds: int) -> tuple[list[_measure.Comparison], list[_measure.Target], int]:
    measured = _measure.in_turn(
        {name: lambda name=name: in_child("files", name, folder) for name in FILE_CONTENDERS}, rounds, warm_up=False
    )
    steps = {run["steps"] for runs in measured.values() for run in runs}
    if len(steps) != 1:
        raise _measure.ResultsDifferError(f"Contenders took different numbers of steps: {steps}.")

    growth = _measure.Comparison(
        f"Resident memory after epoch {EPOCHS} over files",
        "times that after the first",
        "lower",
        _figures(measured, lambda run: run["resident_mb"][-1] / run["resident_mb"][0]),
    )
    peak = _measure.Comparison(
        f"Most memory of the process in {EPOCHS} epochs over files",
        "MB",
        "lower",
        _figures(measured, lambda run: run["peak_mb"]),
        STOCK,
        (LIMIT,),
    )
    targets = [
        _measure.Target(f"memory after epoch {EPOCHS} over the first, {name}", growth.figures[name].median, at_most=1.3)
        for name in (TURBO_UNCACHED, TURBO_MEMORY)
    ]
    return [growth, peak], targets, steps.pop()


def compare_shuffles(positions: int, rounds: int) -> tuple[list[_measure.Comparison], list[_measure.Target], int]:
    """What a shuffle takes: the peak of a process that shuffles less that of one that does the same in order."""
    shuffled, in_order = (
        _measure.in_turn(
            {
                name: lambda name=name, shuffle=shuffle: in_child("positions", name, positions, shuffle)
                for name in SHUFFLE_CONTENDERS
            },
            rounds,
            warm_up=False,
        )
        for shuffle in (True, False)
    )
    steps = {run["steps"] for part in (shuffled, in_order) for runs in part.values() for run in runs}
    if len(steps) != 1:
        raise _measure.ResultsDifferError(f"Contenders took different numbers of steps: {steps}.")
    cost = {
        name: [one["peak_mb"] - other["peak_mb"] for one, other in zip(shuffled[name], in_order[name], strict=True)]
        for name in SHUFFLE_CONTENDERS
    }
    memory = _measure.Comparison(
        f"What a full shuffle of {positions:,} positions takes", "MB", "lower", _measure.figures(cost)
    )
    seconds = {**shuffled, f"{TURBO}, not shuffled": in_order[TURBO]}
    time_taken = _measure.Comparison(
        f"An epoch of {positions:,} positions, shuffled",
        "seconds",
        "lower",
        _figures(seconds, lambda run: run["seconds"]),
        STOCK,
    )
    target = _measure.Target(memory.title + ", in MB", memory.figures[TURBO].median, at_most=200)
    return [memory, time_taken], [target], steps.pop()


def _figures(
    measured: dict[str, list[dict[str, Any]]], figure: Callable[[dict[str, Any]], float]
) -> dict[str, _measure.Figure]:
    return _measure.figures({name: [figure(run) for run in runs] for name, runs in measured.items()})


def main() -> None:
    parser = _measure.parser(__doc__, "memory", rounds=2)
    parser.add_argument("--data", type=Path, metavar="DIR", help="class folders of JPEGs; made there if there is none")
    parser.add_argument("--photos", type=int, metavar="N", help="photos to make (default: 1,500)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    _measure.hide_gpus()
    if options.child:
        run_child(options.child)
        return
    rounds = _measure.num_rounds(options)
    positions = POSITIONS // 100 if options.quick else POSITIONS
    with _photos.photo_folder(options.data, options.photos or (64 if options.quick else 1500)) as folder:
        files, targets, file_steps = compare_files(folder, rounds)
    shuffles, shuffle_targets, shuffle_steps = compare_shuffles(positions, rounds)
    for comparison in files + shuffles:
        comparison.print()
    checks = {"steps of all over files": file_steps, "steps of all over positions": shuffle_steps}
    settings = {"epochs": EPOCHS, "positions": positions, "rounds": rounds, "image_size": IMAGE_SIZE}
    _measure.finish(options, settings, files + shuffles, targets + shuffle_targets, checks)


if __name__ == "__main__":
    main()
