"""Epochs that begin in their middle: byte for byte what would have followed."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_turbo import FastDataset, tune
from keras_turbo.data.engine.failures import ExampleLoadError
from tests.data.epochs import batches_of
from tests.data.test_stacks import assert_equal, stacks_of, unstacked

pytestmark = pytest.mark.compatibility

N, BATCH_SIZE = 23, 4
X = np.arange(N * 3, dtype="float32").reshape(N, 3)
Y = np.arange(N)


def noisy(x, y, seed):
    return x + tf.random.stateless_normal([3], seed), y


def tripled(x, y):
    return x * 3, y


def of_arrays(**options) -> FastDataset:
    return FastDataset(X, Y, **{"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3, **options})


def of_elements(**options) -> FastDataset:
    elements = tf.data.Dataset.from_tensor_slices((X, Y))
    return FastDataset(elements, **{"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3, **options})


KINDS: dict[str, Any] = {
    "arrays": of_arrays,
    "arrays in order": lambda: of_arrays(shuffle=False),
    "arrays without remainder": lambda: of_arrays(drop_remainder=True),
    "arrays one by one": lambda: of_arrays(batch_size=None),
    "mapped": lambda: of_arrays(map_fn=tripled),
    "mapped, not cached": lambda: of_arrays(map_fn=tripled, cache=False),
    "augmented": lambda: of_arrays(augment_fn=noisy),
    "mapped and augmented": lambda: of_arrays(map_fn=tripled, augment_fn=noisy, drop_remainder=True),
    "one batch": lambda: of_arrays(batch_size=N),
    "always the same order": lambda: of_arrays(reshuffle_each_epoch=False),
    "a shard": lambda: of_arrays().shard(2, 1),
    "kept elements": lambda: of_elements(cache="memory"),
}
STREAMS: dict[str, Any] = {
    "stream": of_elements,
    "stream in order": lambda: of_elements(shuffle=False),
    "stream, augmented": lambda: of_elements(map_fn=tripled, augment_fn=noisy, drop_remainder=True),
    "stream, one by one": lambda: of_elements(batch_size=None, augment_fn=noisy),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_every_batch_of_every_epoch(make):
    straight, resumed = make(), make()
    epochs = [batches_of(straight) for _ in range(3)]
    for epoch in (1, 0):
        for batch in range(len(epochs[epoch]) + 2):
            resumed.resume_at(epoch, batch)
            assert_equal(batches_of(resumed), epochs[epoch][batch:])
            assert resumed.epochs_begun == epoch + 1
            assert int(resumed.cardinality()) == len(epochs[0])
        assert_equal(batches_of(resumed), epochs[epoch + 1])


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_streams_are_read_and_say_so_once(make):
    straight, resumed = make(), make()
    epochs = [batches_of(straight) for _ in range(3)]
    with pytest.warns(UserWarning, match="reads 2 batches before the first that is given, since a tf.data.Dataset"):
        resumed.resume_at(1, 2)
    assert_equal(batches_of(resumed), epochs[1][2:])
    assert_equal(batches_of(resumed), epochs[2])
    for batch in (0, len(epochs[0]) - 1, len(epochs[0]), 100):
        resumed.resume_at(0, batch)
        assert_equal(batches_of(resumed), epochs[0][batch:])


def test_a_stream_without_end():
    elements = tf.data.Dataset.range(10_000_000).repeat()
    resumed = FastDataset(elements, batch_size=3)
    assert int(resumed.cardinality()) == tf.data.INFINITE_CARDINALITY
    with pytest.warns(UserWarning, match="reads 2 batches"):
        resumed.resume_at(0, 2)
    np.testing.assert_array_equal(next(iter(resumed)), [6, 7, 8])


def test_what_is_skipped_is_neither_mapped_nor_loaded():
    seen = []

    def remember(x, y):
        def note(label):
            seen.append(int(label))
            return label

        return x, tf.ensure_shape(tf.numpy_function(note, [y], tf.int64), [])

    dataset = of_arrays(map_fn=remember, shuffle=False, cache=False)
    dataset.resume_at(0, 4)
    batches_of(dataset)
    assert sorted(seen) == list(range(16, N))


@pytest.mark.parametrize("kind", [name for name in KINDS if "one by one" not in name])
def test_stacks(kind):
    straight, resumed = KINDS[kind](), KINDS[kind]()
    epochs = [batches_of(straight) for _ in range(3)]
    for batch in range(len(epochs[0]) + 1):
        resumed.resume_at(1, batch)
        assert_equal(unstacked(stacks_of(resumed, 2)), epochs[1][batch:])
    assert_equal(unstacked(stacks_of(resumed, 3)), epochs[2])


@pytest.mark.parametrize(
    "derive",
    [
        lambda dataset: dataset.map(lambda x, y: (x + 1, y)),
        lambda dataset: dataset.prefetch(3),
        lambda dataset: dataset.unbatch().batch(3),
        lambda dataset: tf.data.Dataset.zip((dataset, tf.data.Dataset.range(100))),
    ],
    ids=["map", "prefetch", "batches of another size", "zip"],
)
@pytest.mark.parametrize("make", [of_arrays, lambda: of_arrays(augment_fn=noisy)], ids=["gathered", "augmented"])
def test_datasets_made_of_it(derive, make):
    straight, resumed = make(), make()
    batches_of(straight)
    from_there = make()
    from_there.resume_at(1, 2)
    whole = derive(resumed)
    assert int(whole.cardinality()) == int(derive(straight).cardinality())
    resumed.resume_at(1, 2)
    first_of_rest = tf.nest.flatten(batches_of(derive(from_there)))
    assert_equal(tf.nest.flatten(batches_of(whole)), first_of_rest)
    assert_equal(batches_of(resumed), [batches_of(straight), batches_of(straight)][1])


def test_repeated_for_ever():
    straight, resumed = of_arrays(), of_arrays()
    batches = list(itertools.chain.from_iterable(batches_of(straight) for _ in range(4)))
    repeated = resumed.repeat()
    assert int(repeated.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert repeated.element_spec == resumed.element_spec
    for batch in (0, 2, 5, 6, 7, 13):
        repeated.resume_at(0, batch)
        assert_equal(list(repeated.take(8).as_numpy_iterator()), batches[batch : batch + 8])
    assert len(batches_of(of_arrays().repeat(2))) == 12


@pytest.mark.parametrize("cache", ["memory", False])
@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.filterwarnings("ignore:An example was left out")
def test_what_was_left_out_is_left_out_of_the_batches_before(tmp_path, cache, drop_remainder):
    for index in range(11):
        Image.new("RGB", (5, 4), (index * 20, 0, 255 - index)).save(tmp_path / f"{index:02d}.png")
    for name in ("00.png", "04.png", "09.png"):
        (tmp_path / name).write_bytes(b"")
    options = {"image_size": (4, 5), "batch_size": 2, "shuffle": True, "seed": 4, "on_error": "skip", "labels": None}
    options |= {"cache": cache, "drop_remainder": drop_remainder}
    straight = FastDataset.from_image_folder(tmp_path, **options)
    epochs = [batches_of(straight) for _ in range(3)]
    assert sum(map(len, epochs[0])) == 8
    for batch, stacked in ((0, True), (2, False), (1, True), (5, True)):
        resumed = FastDataset.from_image_folder(tmp_path, **options)
        if batch:
            with pytest.warns(UserWarning, match="on_error='skip' may have left examples out"):
                resumed.resume_at(1, batch)
        else:
            resumed.resume_at(1, batch)
        for _ in range(2):  # with what fails unknown, and known
            batches = unstacked(stacks_of(resumed, 2)) if stacked else batches_of(resumed)
            assert_equal(batches, epochs[1][batch:])
            assert len(resumed.skipped) == 3
            resumed.resume_at(1, batch)
        resumed.epochs_begun = 2
        assert_equal(batches_of(resumed), epochs[2])


def test_a_store_that_was_resumed_fills_up_later(tmp_path):
    for index in range(11):
        Image.new("RGB", (5, 4), (index * 20, 0, 255 - index)).save(tmp_path / f"{index:02d}.png")
    options = {"image_size": (4, 5), "batch_size": 2, "shuffle": True, "seed": 4, "labels": None}
    straight = FastDataset.from_image_folder(tmp_path, cache=False, **options)
    resumed = FastDataset.from_image_folder(tmp_path, cache="memory", **options)
    epochs = [batches_of(straight) for _ in range(4)]
    resumed.resume_at(0, 3)
    assert_equal(batches_of(resumed), epochs[0][3:])
    assert resumed._recipe.store.num_filled == 5
    for epoch in (1, 2):
        assert_equal(batches_of(resumed), epochs[epoch])
    resumed.resume_at(3, 4)
    assert_equal(batches_of(resumed), epochs[3][4:])


@pytest.mark.parametrize("damaged", ["08.png", "10.png"], ids=["the first one", "the last one"])
def test_what_fails_after_it_is_named(tmp_path, damaged):
    for index in range(11):
        Image.new("RGB", (5, 4), (index, 0, 0)).save(tmp_path / f"{index:02d}.png")
    (tmp_path / damaged).write_bytes(b"")
    (tmp_path / "01.png").write_bytes(b"")
    dataset = FastDataset.from_image_folder(tmp_path, image_size=(4, 5), batch_size=4, labels=None, shuffle=False)
    dataset.resume_at(0, 2)
    with pytest.raises(ExampleLoadError, match=damaged):
        batches_of(dataset)


def test_in_fit_on_two_devices(two_cpu_strategy):
    def batches_in_fit(start: int) -> list[Any]:
        dataset = of_arrays(batch_size=8)
        dataset.resume_at(1, start)
        with two_cpu_strategy.scope():
            distributed = two_cpu_strategy.experimental_distribute_dataset(dataset)
        parts = [two_cpu_strategy.experimental_local_results(labels) for _, labels in distributed]
        return [np.concatenate([part.numpy() for part in labels]) for labels in parts]

    assert_equal(batches_in_fit(1), batches_in_fit(0)[1:])


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras knows how many a whole epoch has
@pytest.mark.parametrize("tuned", [False, True, "after it was resumed"])
def test_in_fit(tuned):
    def weights_after(*, resumed: bool) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
        dataset = of_arrays()
        if tuned:
            tune(model, dataset, budget_seconds=1)
            dataset.epochs_begun = 0
        if resumed:
            dataset.resume_at(0, 4)
            if tuned == "after it was resumed":
                tune(model, dataset, budget_seconds=1)
                assert dataset.position == (0, 4)
            model.fit(dataset, epochs=2, verbose=0)
        else:
            batches = batches_of(dataset)[4:]
            for x, y in batches:
                model.train_on_batch(x, y)
            model.fit(dataset, verbose=0)
        return model.get_weights()

    for weights, others in zip(weights_after(resumed=True), weights_after(resumed=False), strict=True):
        np.testing.assert_allclose(weights, others, rtol=1e-5)


@pytest.mark.parametrize(("epoch", "batch"), [(-1, 0), (0, -1), (True, 0), (0, 1.0), (None, 0), (0, "1")])
def test_what_is_no_position(epoch, batch):
    epochs = of_arrays()
    for dataset in (epochs, epochs.repeat()):
        with pytest.raises(ValueError, match="must be an integer from 0. Received: "):
            dataset.resume_at(epoch, batch)
        assert epochs.epochs_begun == 0


def test_numbers_may_be_those_of_numpy():
    straight, resumed = of_arrays(), of_arrays()
    batches_of(straight)
    expected = batches_of(straight)[2:]
    resumed.resume_at(np.int64(1), np.int32(2))
    assert resumed.position == (1, 2)
    assert_equal(batches_of(resumed), expected)
    resumed.epochs_begun = np.int64(1)
    assert_equal(batches_of(resumed)[2:], expected)


@pytest.mark.parametrize("numbers", [(2.5, 0), (2, 0.0), ("2", 0), (True, 0)])
def test_what_is_no_shard(numbers):
    with pytest.raises(TypeError, match="`num_shards` and `index` must be integers. Received: num_shards="):
        of_arrays().shard(*numbers)


def test_what_decides_the_batches():
    assert of_arrays().order_settings == of_arrays(map_fn=tripled).order_settings
    assert of_arrays().order_settings != of_arrays(seed=4).order_settings
    in_order = of_arrays(shuffle=False, seed=None).order_settings
    assert in_order == of_arrays(shuffle=False, seed=5).order_settings
    assert in_order["seed"] is None
    assert of_arrays().shard(2, 1).order_settings["shard"] == [2, 1]
    assert of_arrays().shard(2, 1, remainder="drop").order_settings != of_arrays().shard(2, 1).order_settings
    assert of_elements().order_settings["num_examples"] == N
