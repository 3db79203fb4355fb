"""Sounds a second from a folder of WAV files: stock Keras, by hand, keras_turbo and the limit, in turn.

    python benchmarks/audio.py

- stock: `keras.utils.audio_dataset_from_directory`.
- by hand: `list_files`, `map(decode_wav)`, `shuffle(1000)`, `batch`, `prefetch`; in later epochs the same with
  `cache()` before the shuffle.
- keras_turbo: `FastDataset.from_audio_folder`, with `cache="memory"` and with `cache=False`.
- limit: the same batch, in memory, again and again.

Files are one second of 16 kHz, mono, 16 bits, made on the fly.
"""

from __future__ import annotations

import tempfile
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure
import keras
import numpy as np
import tensorflow as tf

from keras_turbo import FastDataset

BATCH_SIZE = 32
SAMPLE_RATE = 16_000
CLASSES = 8

# Epochs of a round where an epoch takes a fraction of a second.
_LATER_EPOCHS = 3

STOCK = "stock"
BY_HAND = "by hand"
BY_HAND_CACHED = "by hand, cache()"
TURBO = "keras_turbo"
TURBO_NOT_KEPT = "keras_turbo, cache=False"
LIMIT = "limit"


class Sounds:
    """The datasets of the contenders over one folder."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number
        rng = np.random.default_rng(0)
        for index in range(number):
            path = folder / f"class {index % CLASSES}" / f"{index:05d}.wav"
            path.parent.mkdir(exist_ok=True)
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
                file.writeframes(rng.integers(-(2**15), 2**15, SAMPLE_RATE, np.int16).astype("<i2").tobytes())

    def stock(self, *, shuffle: bool = True) -> tf.data.Dataset:
        return keras.utils.audio_dataset_from_directory(
            self.folder,
            batch_size=BATCH_SIZE,
            output_sequence_length=SAMPLE_RATE,
            shuffle=shuffle,
            seed=0 if shuffle else None,
            verbose=False,
        )

    def by_hand(self, *, shuffle: bool = True, cache: bool = False) -> tf.data.Dataset:
        class_names = tf.constant(sorted(path.name for path in self.folder.iterdir()))

        def load(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            audio, _ = tf.audio.decode_wav(tf.io.read_file(path), 1, SAMPLE_RATE)
            label = tf.argmax(tf.strings.split(path, "/")[-2] == class_names, output_type=tf.int32)
            return tf.ensure_shape(audio, [SAMPLE_RATE, 1]), label

        paths = tf.data.Dataset.list_files(str(self.folder / "*/*.wav"), shuffle=False)
        sounds = paths.map(load, num_parallel_calls=tf.data.AUTOTUNE)
        if cache:
            sounds = sounds.cache()
        if shuffle:
            sounds = sounds.shuffle(1000)
        return sounds.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

    def turbo(self, *, shuffle: bool = True, cache: Any = "memory") -> FastDataset:
        return FastDataset.from_audio_folder(
            self.folder,
            sample_rate=SAMPLE_RATE,
            length_samples=SAMPLE_RATE,
            batch_size=BATCH_SIZE,
            shuffle=shuffle,
            seed=0,
            cache=cache,
        )

    def limit(self) -> tf.data.Dataset:
        batch = next(iter(self.turbo(shuffle=False, cache=False)))
        full, rest = divmod(self.number, BATCH_SIZE)
        again = tf.data.Dataset.from_tensors(batch).repeat(full)
        if rest:
            again = again.concatenate(tf.data.Dataset.from_tensors(tuple(part[:rest] for part in batch)))
        return again.prefetch(2)

    def iterated(self, make: Callable[[], tf.data.Dataset], epochs: int = 1) -> Callable[[], float]:
        """Measures sounds a second of some epochs of a dataset, without the making of it."""

        def measure() -> float:
            dataset = make()
            count, start = 0, time.perf_counter()
            for _ in range(epochs):
                for audio, _ in dataset:
                    count += audio.shape[0]
            seconds = time.perf_counter() - start
            if count != epochs * self.number:
                raise _measure.ResultsDifferError(f"{count} sounds in {epochs} epochs of {self.number}.")
            return count / seconds

        return measure


def check(sounds: Sounds) -> dict[str, Any]:
    """Compares what the contenders read: in order batch by batch, and of a shuffled epoch all of it.

    Returns:
        What was found.

    Raises:
        ResultsDifferError: they are not equal.
    """
    contenders = (sounds.stock, sounds.by_hand, sounds.turbo)
    for batches in zip(*(make(shuffle=False) for make in contenders), strict=True):
        (audio, labels), *others = batches
        if not all(np.array_equal(audio, x) and np.array_equal(labels, y) for x, y in others):
            raise _measure.ResultsDifferError("Batches in order differ.")
    # Each file is noise of its own, so that its first sample and its sum tell which one it is.
    kinds = []
    for make in contenders:
        parts = [np.stack([x[:, 0, 0], np.sum(x, (1, 2)), y], 1) for x, y in make()]
        kinds.append(sorted(map(tuple, np.concatenate(parts).tolist())))
    if any(kind != kinds[0] for kind in kinds):
        raise _measure.ResultsDifferError("Shuffled epochs are not of the same sounds.")
    return {"batches in order equal": True, "shuffled epochs complete": True}


def compare(sounds: Sounds, rounds: int) -> tuple[_measure.Comparison, _measure.Comparison]:
    """The first epoch, and later ones, both iterated alone."""
    limit = sounds.limit()
    first = {
        STOCK: sounds.iterated(sounds.stock),
        BY_HAND: sounds.iterated(sounds.by_hand),
        TURBO: sounds.iterated(sounds.turbo),
        TURBO_NOT_KEPT: sounds.iterated(lambda: sounds.turbo(cache=False)),
        LIMIT: sounds.iterated(lambda: limit),
    }
    datasets = {
        STOCK: sounds.stock(),
        BY_HAND_CACHED: sounds.by_hand(cache=True),
        TURBO: sounds.turbo(),
        TURBO_NOT_KEPT: sounds.turbo(cache=False),
        LIMIT: limit,
    }
    for dataset in datasets.values():
        sounds.iterated(lambda dataset=dataset: dataset)()
    later = {
        name: sounds.iterated(lambda dataset=dataset: dataset, _LATER_EPOCHS) for name, dataset in datasets.items()
    }
    made = [
        _measure.Comparison(
            title,
            "sounds a second",
            "higher",
            _measure.figures(_measure.in_turn(contenders, rounds)),
            stock=STOCK,
            limits=(LIMIT,),
        )
        for title, contenders in (("WAV files, first epoch", first), ("WAV files, later epochs", later))
    ]
    return made[0], made[1]


def main() -> None:
    parser = _measure.parser(__doc__, "audio", rounds=5)
    options = parser.parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    with tempfile.TemporaryDirectory(prefix="keras_turbo_benchmark_") as folder:
        sounds = Sounds(Path(folder), 100 if options.quick else 2_000)
        checks = check(sounds)
        first, later = compare(sounds, rounds)
    for comparison in (first, later):
        comparison.print()
    targets = [
        _measure.Target("later epochs, times stock", later.ratio(TURBO, STOCK), at_least=2),
        _measure.Target("later epochs, times by hand with cache()", later.ratio(TURBO, BY_HAND_CACHED), at_least=1),
    ]
    settings = {"sounds": sounds.number, "sample_rate": SAMPLE_RATE, "rounds": rounds, "batch_size": BATCH_SIZE}
    _measure.finish(options, settings, (first, later), targets, checks)


if __name__ == "__main__":
    main()
