"""Trains the same model on the same images twice, as people do it by hand and with keras_turbo, and compares."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_turbo import FastDataset, MixedPrecisionSafeHead, tune
from keras_turbo.demo.digits import DIGIT_SIZE, digit_folders
from keras_turbo.demo.held_out import HeldOut, hold_out
from keras_turbo.report import Block, Report, Table, progress_bar

# Small enough that a small network trains on photos without a GPU.
DEFAULT_PHOTO_SIZE = 64

# The bar moves at most so often: a step of a small model takes less time than drawing it.
_PROGRESS_INTERVAL_SECONDS = 0.25

# Enough to compile two candidates and to tell them apart.
_TUNE_SECONDS = 10.0

# More than a model has initializers, so that models of different seeds share none.
_SEEDS_PER_MODEL = 32

# Keras' own bars would scroll the table away. (A dict, since Keras' default "auto" is taken for the argument's type.)
_SILENT: dict[str, Any] = {"verbose": 0}


class DemoError(ValueError):
    """The demo can't run on what it was given."""


@dataclasses.dataclass(frozen=True)
class RunFigures:
    """What one of the two runs took, and what it reached.

    Attributes:
        epoch_seconds: of each epoch, training and validation.
        val_accuracy: after the last epoch, 0 to 1.
        images_per_epoch: images that an epoch trains on or validates with.
        setting: how its steps ran.
        tune_seconds: what `tune()` took before the first epoch; 0 without it.
    """

    epoch_seconds: tuple[float, ...]
    val_accuracy: float
    images_per_epoch: int
    setting: str = "Keras' own"
    tune_seconds: float = 0.0

    @property
    def first_epoch_seconds(self) -> float:
        """Of the first epoch, in which the training step is traced."""
        return self.epoch_seconds[0]

    @property
    def later_epoch_seconds(self) -> float:
        """Median over the epochs after the first; that of the first where there is no other."""
        return statistics.median(self.epoch_seconds[1:] or self.epoch_seconds)

    @property
    def images_per_second(self) -> float:
        """In the later epochs."""
        return self.images_per_epoch / self.later_epoch_seconds


@dataclasses.dataclass(frozen=True)
class DemoResult(Report):
    """What `run_demo` measured.

    Attributes:
        stock: the run with `keras.utils.image_dataset_from_directory`.
        turbo: the run with `keras_turbo.FastDataset` and `keras_turbo.tune`.
        num_training: images trained on.
        num_validation: images held out.
        class_names: in the order of their numbers.
        image_size: height and width in pixels.
        batch_size: images a step.
    """

    stock: RunFigures
    turbo: RunFigures
    num_training: int
    num_validation: int
    class_names: tuple[str, ...]
    image_size: int
    batch_size: int

    @property
    def ratio(self) -> float:
        """How many times as fast keras_turbo was in the later epochs; below 1 where it was slower."""
        return self.stock.later_epoch_seconds / self.turbo.later_epoch_seconds

    def blocks(self) -> Iterator[Block]:
        """Both runs side by side, and what was compared."""
        stock, turbo = self.stock, self.turbo
        epochs = len(stock.epoch_seconds)
        first, first_turbo = stock.first_epoch_seconds, turbo.first_epoch_seconds
        later, later_turbo = stock.later_epoch_seconds, turbo.later_epoch_seconds
        ratio = f"{self.ratio:.2f}"
        rows = [("first epoch, seconds", f"{first:.3f}", f"{first_turbo:.3f}", f"{first / first_turbo:.2f}")]
        if epochs > 1:
            what = f"epochs 2 to {epochs}, seconds each (median)"
            rows.append((what, f"{later:.3f}", f"{later_turbo:.3f}", ratio))
        rows += [
            ("images a second", f"{stock.images_per_second:,.0f}", f"{turbo.images_per_second:,.0f}", ratio),
            ("tune(), seconds once", "", f"{turbo.tune_seconds:.1f}", ""),
            ("validation accuracy at the end", f"{stock.val_accuracy:.4f}", f"{turbo.val_accuracy:.4f}", ""),
        ]
        yield Table(
            f"{self.num_training:,} images of {len(self.class_names)} classes, {self.num_validation:,} held out, "
            f"{self.image_size} by {self.image_size} pixels, batch {self.batch_size}",
            ("what", "stock Keras", "keras_turbo", "ratio"),
            rows,
        )
        yield (
            "Both runs: the same images, the same model from the same weights (its head is a MixedPrecisionSafeHead in "
            "both), the same optimizer, shuffled. An epoch is training and validation. A ratio above 1 means that "
            f"keras_turbo was faster. tune() chose for its steps: {turbo.setting}."
        )


def run_demo(
    data: str | os.PathLike | None = None,
    *,
    epochs: int = 12,
    batch_size: int = 32,
    image_size: int | None = None,
    seed: int = 0,
) -> DemoResult:
    """Trains a small convolutional network on images, the stock way and with keras_turbo.

    One fifth of the images is held out for validation. Both runs read the same files, in batches of the same size and
    in a shuffled order, and train the same model from the same weights. A progress bar shows in a terminal.

    Example:

    ```python
    run_demo("photos", epochs=5).print()
    ```

    Args:
        data: a folder with one folder of images for each class. Default: the handwritten digits of scikit-learn.
        epochs: of each run, default 12.
        batch_size: images a step, default 32.
        image_size: height and width in pixels to which images are resized. Default: 8 for the digits, which have that
            size; 64 for others.
        seed: decides the split, the initial weights and the order of images; from 0, default 0.

    Returns:
        The figures of both runs.

    Raises:
        DemoError: a number out of range; no such folder, no images, no class folders, too few of either; the digits
            can't be had.
    """
    for name, value, smallest in (("epochs", epochs, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < smallest:
            raise DemoError(f"`{name}` must be at least {smallest}. Received: {name}={value}.")
    if image_size is not None and image_size < 1:
        raise DemoError(f"`image_size` must be at least 1 pixel. Received: image_size={image_size}.")
    side = image_size or (DIGIT_SIZE if data is None else DEFAULT_PHOTO_SIZE)
    channels = 1 if data is None else 3
    with tempfile.TemporaryDirectory(prefix="keras_turbo_demo_") as scratch:
        try:
            images = hold_out(digit_folders() if data is None else data, Path(scratch), seed)
        except (OSError, ValueError, ImportError) as error:
            raise DemoError(str(error)) from error

        def new_model() -> keras.Model:
            return _small_network((side, side, channels), len(images.class_names), seed)

        initial = new_model()
        initial_weights = initial.get_weights()
        # What TensorFlow does once in a process is done here, not in the first epoch of the run that goes first.
        initial.fit(np.zeros((batch_size, side, side, channels), np.uint8), np.zeros(batch_size, np.int32), **_SILENT)

        def train(title: str, datasets: tuple[tf.data.Dataset, tf.data.Dataset], *, tuned: bool = False) -> RunFigures:
            model = new_model()
            model.set_weights(initial_weights)
            report = tune(model, datasets[0], budget_seconds=_TUNE_SECONDS) if tuned else None
            figures = _train(title, model, *datasets, epochs=epochs, images=images)
            if report is None:
                return figures
            return dataclasses.replace(figures, setting=report.winner.name, tune_seconds=report.seconds)

        common = {"image_size": (side, side), "batch_size": batch_size, "seed": seed}
        stock = train("stock Keras", _stock_datasets(images, channels, common))
        turbo = train("keras_turbo", _turbo_datasets(images, channels, common, Path(scratch) / "examples"), tuned=True)
    return DemoResult(stock, turbo, images.num_training, images.num_validation, images.class_names, side, batch_size)


def _stock_datasets(
    images: HeldOut, channels: Literal[1, 3], common: dict[str, Any]
) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Training and validation images as Keras' own function reads them."""

    def dataset(folder: Path, shuffle: bool) -> Any:
        return keras.utils.image_dataset_from_directory(
            folder,
            color_mode="grayscale" if channels == 1 else "rgb",
            shuffle=shuffle,
            verbose=False,
            **common,
        )

    return dataset(images.training, True), dataset(images.validation, False)


def _turbo_datasets(
    images: HeldOut, channels: Literal[1, 3], common: dict[str, Any], cache_dir: Path
) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """The same images as FastDataset reads them. `cache_dir` takes them if they are too many for the memory."""

    def dataset(folder: Path, shuffle: bool) -> tf.data.Dataset:
        return FastDataset.from_image_folder(folder, channels=channels, shuffle=shuffle, cache_dir=cache_dir, **common)

    return dataset(images.training, True), dataset(images.validation, False)


def _small_network(input_shape: tuple[int, int, int], num_classes: int, seed: int) -> keras.Model:
    """Three convolutions for images of 8 by 8 pixels; larger ones are halved to that by further convolutions."""
    layers = keras.layers
    # Seeds of their own, so that nobody's global seed is touched.
    seeds = itertools.count(seed * _SEEDS_PER_MODEL)

    def initializer() -> Any:
        return keras.initializers.GlorotUniform(seed=next(seeds))

    def convolution(filters: int, strides: int = 1) -> keras.Layer:
        return layers.Conv2D(filters, 3, strides, padding="same", activation="relu", kernel_initializer=initializer())

    halvings = max(0, math.ceil(math.log2(input_shape[0] / DIGIT_SIZE)))
    model = keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Rescaling(1 / 255),
            *(convolution(16, strides=2) for _ in range(halvings)),
            convolution(16),
            convolution(32),
            layers.MaxPooling2D(padding="same"),
            convolution(64),
            layers.GlobalAveragePooling2D(),
            MixedPrecisionSafeHead(num_classes, kernel_initializer=initializer()),
        ]
    )
    model.compile(
        keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def _train(
    title: str,
    model: keras.Model,
    training: tf.data.Dataset,
    validation: tf.data.Dataset,
    *,
    epochs: int,
    images: HeldOut,
) -> RunFigures:
    with progress_bar(f"Training, {title}", epochs * int(training.cardinality())) as advance:
        stopwatch = _Stopwatch(advance)
        # Both datasets shuffle by themselves, and Keras 3.15 warns of its own default shuffle=True beside a dataset.
        history = model.fit(
            training, validation_data=validation, epochs=epochs, shuffle=False, callbacks=[stopwatch], **_SILENT
        )
    return RunFigures(
        tuple(stopwatch.epoch_seconds),
        float(history.history["val_accuracy"][-1]),
        images.num_training + images.num_validation,
    )


class _Stopwatch(keras.callbacks.Callback):
    """Times epochs, and moves a progress bar by the steps done."""

    needs_every_batch = False

    def __init__(self, advance: Callable[[int], None]) -> None:
        super().__init__()
        self.epoch_seconds: list[float] = []
        self._advance = advance
        self._steps_shown = 0
        self._moved_at = self._epoch_begun_at = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch_begun_at = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now = time.perf_counter()
        if now - self._moved_at > _PROGRESS_INTERVAL_SECONDS:
            # An execution may have been several steps.
            model: Any = self.model
            steps = int(model.optimizer.iterations)
            self._advance(steps - self._steps_shown)
            self._steps_shown, self._moved_at = steps, now

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.epoch_seconds.append(time.perf_counter() - self._epoch_begun_at)
