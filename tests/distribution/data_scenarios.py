"""What two workers do with data and gradients, in one pair of processes; the tests look at what came out."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.distribution import keras_overrides, strategies
from keras_turbo.distribution.communication import Communication, set_communication, sum_over_replicas

NUM_IDS = 100
GLOBAL_BATCH_SIZE = 8


def run(folder: str) -> dict[str, Any]:
    """All scenarios; each worker says what it had.

    Args:
        folder: holds `ids.txt`, a number a line, and `ids.tfrecord`.
    """
    strategy = strategies.multi_worker()
    worker = strategy.cluster_resolver.task_id
    random.seed(worker)  # so that drawn seeds differ
    data = {name: scenario(strategy, worker, Path(folder)) for name, scenario in SCENARIOS.items()}
    fitted = {name: fit(strategy, name) for name in FITS}
    return {**data, "fits": fitted, "gradients": gradients(strategy, worker)}


def received(strategy: tf.distribute.Strategy, dataset: Any, epochs: int = 1, steps: int | None = None) -> Any:
    """The rows that this worker got: for each epoch a list of lists, one for each step; or the error; and warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            distributed = strategy.experimental_distribute_dataset(dataset)
        except ValueError as error:
            return {"error": str(error)}
    result = []
    for _ in range(epochs):
        iterator = iter(distributed)
        rows: list[Any] = []
        while steps is None or len(rows) < steps:
            try:
                (local,) = strategy.experimental_local_results(next(iterator))
            except StopIteration:
                break
            rows.append(local.numpy().tolist())
        result.append(rows)
    return {"epochs": result, "warnings": [str(one.message) for one in caught]}


def shuffled_without_seed(strategy: tf.distribute.Strategy, worker: int, _: Path) -> Any:
    dataset = FastDataset(np.arange(NUM_IDS), batch_size=GLOBAL_BATCH_SIZE, shuffle=True)
    if worker == 1:
        next(iter(dataset))  # a look at the data, which only this one takes
    drawn = dataset.seed
    return {
        **received(strategy, dataset, epochs=2),
        "drawn": drawn,
        "seed": dataset.seed,
        "begun": dataset.epochs_begun,
    }


def resumed(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    dataset = FastDataset(np.arange(NUM_IDS), batch_size=GLOBAL_BATCH_SIZE, shuffle=True, seed=7)
    dataset.resume_at(1, 10)
    return received(strategy, dataset)


def of_one_tfrecord(strategy: tf.distribute.Strategy, _: int, folder: Path) -> Any:
    dataset = FastDataset.from_tfrecord(
        str(folder / "ids.tfrecord"),
        {"id": tf.io.FixedLenFeature([], tf.int64)},
        batch_size=GLOBAL_BATCH_SIZE,
    )
    return received(strategy, dataset.map(lambda x: x["id"]))


def of_one_text_file(strategy: tf.distribute.Strategy, _: int, folder: Path) -> Any:
    lines = tf.data.TextLineDataset(str(folder / "ids.txt"))
    return received(strategy, lines.map(lambda line: tf.strings.to_number(line, tf.int64)).batch(GLOBAL_BATCH_SIZE))


def of_a_generator(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(np.arange(NUM_IDS)), output_signature=tf.TensorSpec([], tf.int64)
    )
    return received(strategy, dataset.batch(GLOBAL_BATCH_SIZE))


def tf_data_without_seed(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    return received(strategy, tf.data.Dataset.range(NUM_IDS).shuffle(NUM_IDS).batch(GLOBAL_BATCH_SIZE))


def tf_data_with_seed(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    return received(strategy, tf.data.Dataset.range(NUM_IDS).shuffle(NUM_IDS, seed=1).batch(GLOBAL_BATCH_SIZE), 2)


def arrays_of_keras_without_seed(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    return received(strategy, _of_keras())


def arrays_of_keras_with_seed(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    keras.utils.set_random_seed(5)
    try:
        return received(strategy, _of_keras(), 2)
    finally:
        tf.random.set_seed(None)


def _of_keras() -> tf.data.Dataset:
    adapter = keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter(
        np.arange(NUM_IDS), batch_size=GLOBAL_BATCH_SIZE, shuffle=True
    )
    return adapter.get_tf_dataset().map(lambda batch: batch)


def other_seeds(strategy: tf.distribute.Strategy, worker: int, _: Path) -> Any:
    return received(strategy, FastDataset(np.arange(NUM_IDS), batch_size=8, shuffle=True, seed=worker))


def mapped_with_other_seeds(strategy: tf.distribute.Strategy, worker: int, _: Path) -> Any:
    random.seed(worker)
    return received(strategy, FastDataset(np.arange(NUM_IDS), batch_size=8, shuffle=True).map(lambda x: x))


def other_data(strategy: tf.distribute.Strategy, worker: int, _: Path) -> Any:
    return received(strategy, FastDataset(np.arange(NUM_IDS - worker), batch_size=8))


def sharded_by_hand(strategy: tf.distribute.Strategy, worker: int, _: Path) -> Any:
    return received(strategy, FastDataset(np.arange(NUM_IDS), batch_size=8).shard(2, worker))


def one_has_another_kind(strategy: tf.distribute.Strategy, worker: int, _: Path) -> Any:
    dataset = tf.data.Dataset.range(NUM_IDS).batch(8) if worker else FastDataset(np.arange(NUM_IDS), batch_size=8)
    return received(strategy, dataset)


def fewer_examples_than_workers(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    return received(strategy, FastDataset(np.arange(3), batch_size=1))


def without_end(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    return received(strategy, FastDataset(np.arange(12), batch_size=8).repeat(), steps=4)


def of_a_function(strategy: tf.distribute.Strategy, _: int, __: Path) -> Any:
    """Data that each worker has by itself, with the batch size of a replica."""

    def shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = FastDataset(
            np.arange(NUM_IDS), batch_size=context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE), shuffle=True, seed=1
        )
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id, remainder="drop")

    distributed = strategy.distribute_datasets_from_function(shard)
    return {"epochs": [[strategy.experimental_local_results(one)[0].numpy().tolist() for one in distributed]]}


SCENARIOS: dict[str, Callable[[tf.distribute.Strategy, int, Path], Any]] = {
    scenario.__name__: scenario
    for scenario in (
        shuffled_without_seed,
        resumed,
        of_one_tfrecord,
        of_one_text_file,
        of_a_generator,
        tf_data_without_seed,
        tf_data_with_seed,
        arrays_of_keras_without_seed,
        arrays_of_keras_with_seed,
        other_seeds,
        mapped_with_other_seeds,
        other_data,
        sharded_by_hand,
        one_has_another_kind,
        fewer_examples_than_workers,
        without_end,
        of_a_function,
    )
}

FITS: dict[str, dict[str, Any]] = {
    "ragged": {},
    "resumed, with class weights": {"class_weight": {0: 3.0, 1: 0.5}},
    "endless": {"steps_per_epoch": 5},
    "compressed": {},
}


def fit(strategy: tf.distribute.Strategy | None, name: str) -> dict[str, Any]:
    """Losses and weights after two epochs over 45 examples in batches of 8; without a strategy, on one device."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((45, 6)).astype("float32"), np.arange(45) % 3
    with contextlib.ExitStack() as stack:
        if strategy is not None:
            stack.enter_context(keras_overrides.install(strategy))
            stack.enter_context(strategy.scope())
            compression = "float16" if name == "compressed" else None
            set_communication(strategy, Communication(gradient_compression=compression))
        first = keras.layers.Dense(8, "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        last = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=2))
        model = keras.Sequential([keras.Input((6,)), first, last])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2 if name == "compressed" else None)
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    train = FastDataset(x, y, batch_size=8, shuffle=True, seed=4)
    if name.startswith("resumed"):
        train.resume_at(1, 3)
    data = train.repeat() if name == "endless" else train
    validation = FastDataset(x[:21], y[:21], batch_size=8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")  # Keras knows how many a whole epoch has
        history = model.fit(data, epochs=2, verbose=0, validation_data=validation, **FITS[name])
    return {
        "history": history.history,
        "weights": np.concatenate([weight.ravel() for weight in model.get_weights()]),
        "begun": train.epochs_begun,
        "predicted": model.predict(FastDataset(x[:21], batch_size=8), verbose=0),
    }


SETTINGS = {
    "as they are": Communication(),
    "ring in packs": Communication(implementation="ring", bytes_per_pack=1000, timeout_seconds=60.0),
    "float16": Communication(gradient_compression="float16"),
    "bfloat16": Communication(gradient_compression="bfloat16", bytes_per_pack=1000),
}


def local_gradients(worker: int) -> dict[str, np.ndarray]:
    """Gradients of one worker: of magnitudes that float16 has not, of none, of one element, and one that overflowed."""
    rng = np.random.default_rng(worker)
    return {
        "usual": rng.standard_normal((50, 30)).astype("float32"),
        "large": (rng.standard_normal(1000) * 1e8).astype("float32"),
        "small": (rng.standard_normal(1000) * 1e-12).astype("float32"),
        "mixed": (rng.standard_normal(1000) * 10.0 ** rng.integers(-3, 4, 1000)).astype("float32"),
        "zero": np.zeros(5, "float32"),
        "one": np.full((), 3.0 - worker, "float32"),
        "nothing": np.zeros((0, 4), "float32"),
        "double": rng.standard_normal(7),
        "whole": np.array([worker, 2], "int32"),
        "infinite": np.array([np.inf if worker else 1.0, 1.0], "float32"),
        "nan": np.array([1.0, 1.0 if worker else np.nan], "float32"),
    }


# TensorFlow's operations that sum over workers.
REDUCTIONS = {"CollectiveReduceV2", "CollectiveReduceV3"}


def gradients(strategy: tf.distribute.Strategy, worker: int) -> dict[str, dict[str, Any]]:
    """The sums of those gradients with each of the settings."""
    mine = local_gradients(worker)
    rows = mine["large"][:6].reshape(3, 2)
    sums = {}
    for name, communication in SETTINGS.items():
        set_communication(strategy, communication)

        @tf.function
        def summed() -> Any:
            def on_replica() -> list[Any]:
                sparse = tf.IndexedSlices(tf.constant(rows), tf.constant([worker, 2, 4]), tf.constant([5, 2]))
                return sum_over_replicas([*map(tf.constant, mine.values()), sparse])

            return strategy.run(on_replica)

        *dense, sparse = summed()
        sums[name] = dict(zip(mine, (np.asarray(one) for one in dense), strict=True))
        sums[name]["sparse"] = tf.convert_to_tensor(sparse).numpy()
        sent = [op.inputs[0] for op in summed.get_concrete_function().graph.get_operations() if op.type in REDUCTIONS]
        sums[name]["sent"] = [[one.dtype.name, one.shape.num_elements()] for one in sent]
    return sums
