"""Rows a second from tables in fit(): make_csv_dataset, a generator over pyarrow, keras_turbo and the limit, in turn.

    python benchmarks/tabular.py

- stock: for CSV `tf.data.experimental.make_csv_dataset`; for Parquet, for which there is no reader, what tutorials
  write: `Dataset.from_generator` over the batches of `pyarrow.parquet.ParquetFile.iter_batches`.
- by hand: columns read by pyarrow, `from_tensor_slices`, `shuffle(1000)`, `batch`, `prefetch`.
- keras_turbo: `from_csv` and `from_parquet`, in memory and (Parquet) by row groups with `cache=False`.
- limit: one batch of the columns, in memory, through the same step again and again.

Every contender trains the same functional model, on batches of the same size; the files are written beforehand. Reading
them into memory, where a contender does that, is in the first epoch's time, which is shown by itself.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _measure
import keras
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import tensorflow as tf

from keras_turbo import FastDataset

BATCH_SIZE = 256
FILES = 4
EPOCHS = 3
NUMBERS = [f"x{k}" for k in range(12)]
CITIES = [f"city {k}" for k in range(50)]
LABEL = "y"
COLUMNS = [*NUMBERS, "city"]

STOCK = "stock"
BY_HAND = "by hand"
TURBO = "keras_turbo"
TURBO_GROUPS = "keras_turbo, row groups"
LIMIT = "limit"


@dataclasses.dataclass(frozen=True)
class Tables:
    """Files of one table.

    Attributes:
        kind: "CSV" or "Parquet".
        paths: of the files.
        columns: what is in them, as arrays.
    """

    kind: str
    paths: list[str]
    columns: dict[str, np.ndarray]

    @property
    def rows(self) -> int:
        return len(self.columns[LABEL])

    @property
    def steps(self) -> int:
        return -(-self.rows // BATCH_SIZE)

    def stock(self, *, shuffle: bool) -> tf.data.Dataset:
        if self.kind == "CSV":
            batches = tf.data.experimental.make_csv_dataset(
                self.paths,
                BATCH_SIZE,
                label_name=LABEL,
                num_epochs=1,
                shuffle=shuffle,
                column_defaults=[*(tf.float32 for _ in NUMBERS), tf.string, tf.int64],
            )
            # Of an OrderedDict Keras takes the columns in its order, and not by their names.
            batches = batches.map(lambda x, y: (dict(x), y))
            return batches.apply(tf.data.experimental.assert_cardinality(self.steps))
        spec = {name: tf.TensorSpec([None], tf.float32) for name in NUMBERS}
        signature = ({**spec, "city": tf.TensorSpec([None], tf.string)}, tf.TensorSpec([None], tf.int64))
        batches = tf.data.Dataset.from_generator(self._batches, output_signature=signature)
        # Where Keras does not know it, its count of steps has one more in each epoch.
        batches = batches.apply(tf.data.experimental.assert_cardinality(self.steps))
        return batches.prefetch(tf.data.AUTOTUNE)

    def _batches(self) -> Iterator[Any]:
        # Whole batches over the borders of files, as the others have them.
        left: list[pa.RecordBatch] = []
        for path in self.paths:
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=BATCH_SIZE):
                    left.append(batch)
                    table = pa.Table.from_batches(left)
                    while len(table) >= BATCH_SIZE:
                        yield as_element(table.slice(0, BATCH_SIZE))
                        table = table.slice(BATCH_SIZE)
                    left = table.to_batches()
        if left:
            yield as_element(pa.Table.from_batches(left))

    def by_hand(self, *, shuffle: bool) -> tf.data.Dataset:
        read = pyarrow.csv.read_csv if self.kind == "CSV" else pyarrow.parquet.read_table
        table = pa.concat_tables([read(path) for path in self.paths])
        dataset = tf.data.Dataset.from_tensor_slices(as_element(table))
        if shuffle:
            dataset = dataset.shuffle(1000)
        return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

    def turbo(self, *, shuffle: bool, **options: Any) -> FastDataset:
        read = FastDataset.from_csv if self.kind == "CSV" else FastDataset.from_parquet
        return read(self.paths, COLUMNS, label=LABEL, batch_size=BATCH_SIZE, shuffle=shuffle, seed=0, **options)

    def by_groups(self, *, shuffle: bool) -> FastDataset:
        return self.turbo(shuffle=shuffle, cache=False, shuffle_row_groups=4)

    def limit(self, *, shuffle: bool) -> tf.data.Dataset:
        x = {name: self.columns[name][:BATCH_SIZE] for name in COLUMNS}
        return tf.data.Dataset.from_tensors((x, self.columns[LABEL][:BATCH_SIZE])).repeat(self.steps)

    def contenders(self) -> dict[str, Callable[..., tf.data.Dataset]]:
        made: dict[str, Callable[..., tf.data.Dataset]] = {
            STOCK: self.stock,
            BY_HAND: self.by_hand,
            TURBO: self.turbo,
        }
        if self.kind == "Parquet":
            made[TURBO_GROUPS] = self.by_groups
        return {**made, LIMIT: self.limit}


def as_element(table: pa.Table) -> Any:
    x = {name: table[name].to_numpy().astype(np.float32) for name in NUMBERS}
    x["city"] = np.array(table["city"].to_pylist(), object)
    return x, table[LABEL].to_numpy()


def write_tables(folder: Path, rows: int) -> list[Tables]:
    rng = np.random.default_rng(0)
    columns: dict[str, np.ndarray] = {name: rng.standard_normal(rows).astype(np.float32).round(4) for name in NUMBERS}
    columns["city"] = np.array([CITIES[k] for k in rng.integers(len(CITIES), size=rows)], object)
    columns[LABEL] = rng.integers(2, size=rows)
    table = pa.table(columns)
    bounds = np.linspace(0, rows, FILES + 1).astype(int)
    paths: dict[str, list[str]] = {"CSV": [], "Parquet": []}
    for number in range(FILES):
        part = table.slice(bounds[number], bounds[number + 1] - bounds[number])
        paths["CSV"].append(str(folder / f"part-{number}.csv"))
        pyarrow.csv.write_csv(part, paths["CSV"][-1])
        paths["Parquet"].append(str(folder / f"part-{number}.parquet"))
        pyarrow.parquet.write_table(part, paths["Parquet"][-1], row_group_size=max(1, rows // FILES // 4))
    return [Tables(kind, paths[kind], columns) for kind in paths]


def new_model() -> keras.Model:
    inputs = {name: keras.Input((1,), name=name) for name in NUMBERS}
    inputs["city"] = keras.Input((1,), name="city", dtype="string")
    city = keras.layers.StringLookup(vocabulary=CITIES, output_mode="one_hot")(inputs["city"])
    features = keras.layers.Concatenate()([*(inputs[name] for name in NUMBERS), city])
    for number, (units, activation) in enumerate(((64, "relu"), (1, None))):
        initializer = keras.initializers.GlorotUniform(seed=number)
        features = keras.layers.Dense(units, activation, kernel_initializer=initializer)(features)
    model = keras.Model(inputs, features)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def check(tables: Tables) -> dict[str, Any]:
    """Compares what the contenders read: in order batch by batch, and of a shuffled epoch all of it.

    Returns:
        What was found.

    Raises:
        ResultsDifferError: they are not equal.
    """
    expected = np.sort(tables.columns["x0"])
    for name, make in tables.contenders().items():
        if name == LIMIT:
            continue
        at = 0
        for x, y in make(shuffle=False):
            rows = slice(at, at + len(y))
            at += len(y)
            wanted = {column: tables.columns[column][rows] for column in COLUMNS}
            wanted["city"] = np.array([city.encode() for city in wanted["city"]], object)
            same = all(np.array_equal(x[column].numpy(), wanted[column]) for column in COLUMNS)
            if not same or not np.array_equal(y, tables.columns[LABEL][rows]):
                raise _measure.ResultsDifferError(f"Batches of {name} from {tables.kind} differ from the table.")
        if at != tables.rows:
            raise _measure.ResultsDifferError(f"{name} read {at} rows of {tables.rows} from {tables.kind}.")
        found = np.sort(np.concatenate([x["x0"] for x, _ in make(shuffle=True)]))
        if not np.array_equal(found, expected):
            raise _measure.ResultsDifferError(f"A shuffled epoch of {name} from {tables.kind} is not complete.")
    return {"batches in order equal": True, "shuffled epochs complete": True}


@dataclasses.dataclass(frozen=True)
class Rates:
    """Rows a second of the first epoch, the making of the dataset included, and of the later ones together."""

    first: float
    later: float


def measured(tables: Tables, make: Callable[..., tf.data.Dataset]) -> Callable[[], Rates]:
    model = new_model()

    def run() -> Rates:
        before, stopwatch = int(model.optimizer.iterations), _measure.EpochSeconds()
        start = time.perf_counter()
        dataset = make(shuffle=True)
        making = time.perf_counter() - start
        model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[stopwatch])
        steps = int(model.optimizer.iterations) - before
        if steps != EPOCHS * tables.steps:
            raise _measure.ResultsDifferError(f"{steps} steps instead of {EPOCHS * tables.steps}.")
        first, *later = stopwatch.seconds
        return Rates(tables.rows / (making + first), (EPOCHS - 1) * tables.rows / sum(later))

    return run


def compare(tables: Tables, rounds: int) -> list[_measure.Comparison]:
    contenders = {name: measured(tables, make) for name, make in tables.contenders().items()}
    rates = _measure.in_turn(contenders, rounds)
    comparisons = []
    for title, field in (("first epoch, with making the dataset", "first"), ("later epochs", "later")):
        figures = {name: [getattr(one, field) for one in found] for name, found in rates.items()}
        comparisons.append(
            _measure.Comparison(
                f"{tables.kind} in fit, {title}",
                "rows a second",
                "higher",
                _measure.figures(figures),
                stock=STOCK,
                limits=(LIMIT,),
            )
        )
    return comparisons


def main() -> None:
    parser = _measure.parser(__doc__, "tabular", rounds=3)
    options = parser.parse_args()
    _measure.hide_gpus()
    rounds = _measure.num_rounds(options)
    checks: dict[str, Any] = {}
    comparisons, targets = [], []
    with tempfile.TemporaryDirectory(prefix="keras_turbo_benchmark_") as folder:
        kinds = write_tables(Path(folder), 3_000 if options.quick else 100_000)
        for tables in kinds:
            checks |= check(tables)
        for tables in kinds:
            first, later = compare(tables, rounds)
            for comparison in (first, later):
                comparison.print()
                comparisons.append(comparison)
            targets.append(
                _measure.Target(f"{tables.kind}, later epochs, times by hand", later.ratio(TURBO, BY_HAND), at_least=1)
            )
    settings = {
        "rows": [tables.rows for tables in kinds],
        "columns": len(COLUMNS),
        "files": FILES,
        "epochs": EPOCHS,
        "rounds": rounds,
        "batch_size": BATCH_SIZE,
    }
    _measure.finish(options, settings, comparisons, targets, checks)


if __name__ == "__main__":
    main()
