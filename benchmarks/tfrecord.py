"""Records a second from TFRecord files: bare tf.data, by hand, keras_turbo and the limit, in turn.

    python benchmarks/tfrecord.py

- stock: a bare `TFRecordDataset` in batches, with `parse_example`. (Keras itself has no reader of TFRecords.)
- by hand: what tutorials write: `parse_single_example`, `shuffle(1000)`, `batch`, `prefetch`.
- keras_turbo: `FastDataset.from_tfrecord` with `cache=False`, in order and shuffled over all files.
- limit: `TFRecordDataset` in batches, and nothing parsed.

Short records hold 32 floats and a label, long ones a file of 32 KB, as it is, and a label.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure
import numpy as np
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data import write_tfrecords

BATCH_SIZE = 32
SHARDS = 4
_FILE_BYTES = 32_768

STOCK = "stock"
BY_HAND = "by hand"
TURBO = "keras_turbo"
TURBO_SHUFFLED = "keras_turbo, shuffled"
LIMIT = "limit"


@dataclasses.dataclass(frozen=True)
class Records:
    """Files of records of one kind.

    Attributes:
        name: of the kind.
        paths: of the files.
        features: to parse them.
        number: of records in all.
        epochs: to measure in a round.
    """

    name: str
    paths: list[str]
    features: dict[str, Any]
    number: int
    epochs: int

    def stock(self) -> tf.data.Dataset:
        batches = tf.data.TFRecordDataset(self.paths).batch(BATCH_SIZE)
        parsed = batches.map(
            lambda batch: tf.io.parse_example(batch, self.features), num_parallel_calls=tf.data.AUTOTUNE
        )
        return parsed.prefetch(tf.data.AUTOTUNE)

    def by_hand(self) -> tf.data.Dataset:
        files = tf.data.Dataset.from_tensor_slices(self.paths)
        records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        examples = records.map(
            lambda record: tf.io.parse_single_example(record, self.features), num_parallel_calls=tf.data.AUTOTUNE
        )
        return examples.shuffle(1000).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

    def turbo(self, shuffle: bool) -> FastDataset:
        return FastDataset.from_tfrecord(
            self.paths, self.features, batch_size=BATCH_SIZE, shuffle=shuffle, seed=0, cache=False
        )

    def limit(self) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(self.paths).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)
        return records.map(lambda batch: {"y": batch})

    def measured(self, dataset: tf.data.Dataset) -> Callable[[], float]:
        """Measures records a second of some epochs."""

        def measure() -> float:
            count, start = 0, time.perf_counter()
            for _ in range(self.epochs):
                for batch in dataset:
                    count += batch["y"].shape[0]
            seconds = time.perf_counter() - start
            if count != self.epochs * self.number:
                raise _measure.ResultsDifferError(f"{count} records in {self.epochs} epochs of {self.number}.")
            return count / seconds

        return measure


def write_short(folder: Path, number: int) -> Records:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((number, 32), dtype=np.float32)
    return _written("short records", folder, x, tf.io.FixedLenFeature([32], tf.float32), epochs=1)


def write_long(folder: Path, number: int) -> Records:
    rng = np.random.default_rng(0)
    x = np.array([rng.bytes(_FILE_BYTES) for _ in range(number)], object)
    return _written("long records", folder, x, tf.io.FixedLenFeature([], tf.string), epochs=2)


def _written(name: str, folder: Path, x: np.ndarray, feature: Any, epochs: int) -> Records:
    write_tfrecords(FastDataset(x, np.arange(len(x))), folder, shards=SHARDS)
    features = {"x": feature, "y": tf.io.FixedLenFeature([], tf.int64)}
    return Records(name, sorted(map(str, folder.glob("*.tfrecord"))), features, len(x), epochs)


def check_records(kinds: list[Records]) -> dict[str, Any]:
    """Compares what the contenders read, byte for byte: in order, and of a shuffled epoch all of it.

    Returns:
        What was found.

    Raises:
        ResultsDifferError: they are not equal.
    """
    for records in kinds:
        for stock, turbo in zip(records.stock(), records.turbo(shuffle=False), strict=True):
            if not all(np.array_equal(stock[name], turbo[name]) for name in ("x", "y")):
                raise _measure.ResultsDifferError(f"Batches of {records.name} differ.")
        for dataset in (records.turbo(shuffle=True), records.by_hand()):
            found = np.sort(np.concatenate([batch["y"] for batch in dataset]))
            if not np.array_equal(found, np.arange(records.number)):
                raise _measure.ResultsDifferError(f"A shuffled epoch of {records.name} is not complete.")
    return {"batches in order equal": True, "shuffled epochs complete": True}


def compare(records: Records, rounds: int) -> _measure.Comparison:
    contenders = {
        STOCK: records.measured(records.stock()),
        BY_HAND: records.measured(records.by_hand()),
        TURBO: records.measured(records.turbo(shuffle=False)),
        TURBO_SHUFFLED: records.measured(records.turbo(shuffle=True)),
        LIMIT: records.measured(records.limit()),
    }
    return _measure.Comparison(
        f"TFRecord, {records.name}",
        "records a second",
        "higher",
        _measure.figures(_measure.in_turn(contenders, rounds)),
        stock=STOCK,
        limits=(LIMIT,),
    )


def main() -> None:
    parser = _measure.parser(__doc__, "tfrecord", rounds=5)
    options = parser.parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    with tempfile.TemporaryDirectory(prefix="keras_turbo_benchmark_") as folder:
        kinds = [
            write_short(Path(folder) / "short", 2_000 if options.quick else 200_000),
            write_long(Path(folder) / "long", 200 if options.quick else 10_000),
        ]
        checks = check_records(kinds)
        comparisons = [compare(records, rounds) for records in kinds]
    targets = []
    for records, comparison in zip(kinds, comparisons, strict=True):
        comparison.print()
        targets += [
            _measure.Target(f"{records.name}, times stock", comparison.ratio(TURBO, STOCK), at_least=0.9),
            _measure.Target(
                f"{records.name}, shuffled, times in order", comparison.ratio(TURBO_SHUFFLED, TURBO), at_least=0.9
            ),
        ]
    settings = {"records": [records.number for records in kinds], "rounds": rounds, "batch_size": BATCH_SIZE}
    _measure.finish(options, settings, comparisons, targets, checks)


if __name__ == "__main__":
    main()
