"""Batches divided among workers: together, and in order, they are the batches of one device."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_turbo import FastDataset
from keras_turbo.data.class_weights import WeightedEpochs
from keras_turbo.data.engine.batches import BatchParts
from tests.data.epochs import batches_of

CLUSTERS = [(1, 1), (2, 1), (3, 1), (2, 2), (1, 4), (3, 2)]


def parts_of(dataset: Any, workers: int, replicas: int) -> list[list[Any]]:
    """What each worker gets of one epoch: one list of elements for each."""
    epoch, parts = dataset.epochs_begun, []
    for worker in range(workers):
        dataset.epochs_begun = epoch
        parts.append(batches_of(dataset.part_of_batches(workers, worker, replicas)))
    return parts


def put_together(parts: list[list[Any]], replicas: int) -> list[Any]:
    """The global batches, as Keras puts together what replicas predict: the first of each worker, then the second."""
    batches = []
    for begin in range(0, len(parts[0]), replicas):
        pieces = [part[begin + replica] for replica in range(replicas) for part in parts]
        batches.append(np.concatenate(pieces))
    return batches


def assert_same(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def write_images(folder, number: int) -> None:
    for index in range(number):
        Image.new("RGB", (4, 4), (index, 0, 0)).save(folder / f"{index:02d}.png")


@pytest.mark.parametrize(("workers", "replicas"), CLUSTERS)
def test_sizes_and_rows(workers, replicas):
    for batch_size in (1, 2, 5, 6, 7, 12, 13):
        parts = [BatchParts(workers, worker, replicas) for worker in range(workers)]
        runs = [[np.arange(batch_size)[run] for run in part.runs(batch_size)] for part in parts]
        sizes = [len(run) for run in itertools.chain(*zip(*runs, strict=True))]
        assert sum(sizes) == batch_size
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)
        rows = np.concatenate([run for part in runs for run in part])
        assert sorted(rows) == list(range(batch_size))
        assert all((np.diff(np.concatenate(part)) > 0).all() for part in runs)


@pytest.mark.parametrize(
    "numbers", [(0, 0, 1), (2, 2, 1), (2, -1, 1), (2, 0, 0)], ids=["no worker", "no such", "below", "no replica"]
)
def test_numbers_that_can_not_be(numbers):
    with pytest.raises(ValueError, match="Received"):
        FastDataset(np.arange(8), batch_size=4).part_of_batches(*numbers)


@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("num_examples", [40, 41, 47])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_batches_are_those_of_one_device(workers, replicas, num_examples, drop_remainder):
    def dataset() -> FastDataset:
        return FastDataset(np.arange(num_examples), batch_size=8, shuffle=True, seed=3, drop_remainder=drop_remainder)

    whole = dataset()
    several = [dataset() for _ in range(workers)]
    # Made once, as fit does, and iterated several times.
    parts = [one.part_of_batches(workers, worker, replicas) for worker, one in enumerate(several)]
    for _ in range(2):
        epoch = [batches_of(part) for part in parts]
        assert len({len(part) for part in epoch}) == 1
        assert_same(put_together(epoch, replicas), batches_of(whole))
    assert [one.epochs_begun for one in several] == [2] * workers


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_fewer_examples_than_replicas(batch_size):
    dataset = FastDataset(np.arange(7), batch_size=batch_size)
    assert_same(put_together(parts_of(dataset, 2, 2), 2), batches_of(dataset))
    assert_same(put_together(parts_of(dataset, 5, 1), 1), batches_of(dataset))


@pytest.mark.parametrize("num_examples", range(1, 9))
@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (4, 1), (2, 2)])
def test_one_batch(num_examples, workers, replicas):
    dataset = FastDataset(np.arange(num_examples), batch_size=8)
    parts = parts_of(dataset, workers, replicas)
    assert {len(part) for part in parts} == {replicas}
    assert_same(put_together(parts, replicas), [np.arange(num_examples)])


def test_static_shapes_where_all_batches_are_full():
    dataset = FastDataset(np.zeros((20, 3)), batch_size=8, drop_remainder=True)
    assert dataset.part_of_batches(2, 0, 2).element_spec.shape == (2, 3)
    assert dataset.part_of_batches(2, 0, 1).element_spec.shape == (4, 3)
    assert dataset.part_of_batches(3, 0, 1).element_spec.shape.as_list() == [None, 3]


def test_structures_weights_and_randomness():
    """What is drawn for an example is drawn alike, on whichever worker it is."""
    x = {"a": np.arange(20, dtype="float32"), "b": np.arange(40).reshape(20, 2)}

    def augment(x, y, weight, seed):
        return {**x, "a": x["a"] + tf.random.stateless_uniform([], seed)}, y, weight

    def dataset() -> FastDataset:
        weights = np.linspace(0, 1, 20)
        return FastDataset(x, np.arange(20), weights, batch_size=6, shuffle=True, seed=1, augment_fn=augment)

    whole = batches_of(dataset())
    parts = [batches_of(dataset().part_of_batches(2, worker)) for worker in range(2)]
    for number, batch in enumerate(whole):
        together = [tf.nest.flatten(part[number]) for part in parts]
        for leaf, pieces in zip(tf.nest.flatten(batch), zip(*together, strict=True), strict=True):
            np.testing.assert_array_equal(leaf, np.concatenate(pieces))


@pytest.mark.parametrize("batch", [0, 1, 4, 5, 6])
@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (4, 1), (2, 2)])
def test_resumed_in_the_middle(workers, replicas, batch):
    def rest(number: int) -> list[Any]:
        several = [FastDataset(np.arange(41), batch_size=8, shuffle=True, seed=3) for _ in range(workers)]
        for one in several:
            one.resume_at(1, number)
        parts = [batches_of(one.part_of_batches(workers, worker, replicas)) for worker, one in enumerate(several)]
        assert len({len(part) for part in parts}) == 1
        return put_together(parts, replicas)

    assert_same(rest(batch), rest(0)[batch:])


def test_repeated_epochs():
    whole = FastDataset(np.arange(10), batch_size=4, shuffle=True, seed=0)
    expected = [*batches_of(whole), *batches_of(whole)]
    repeated = [FastDataset(np.arange(10), batch_size=4, shuffle=True, seed=0).repeat() for _ in range(2)]
    parts = [batches_of(one.part_of_batches(2, worker).take(6)) for worker, one in enumerate(repeated)]
    assert_same(put_together(parts, 1), expected)


def test_examples_are_made_by_the_worker_whose_they_are(tmp_path):
    """From files: each is read by one worker only, and goes into the cache of that one."""
    write_images(tmp_path, 22)
    loaded: list[list[bytes]] = [[], []]

    def dataset(worker: int) -> FastDataset:
        def load(path):
            def note(one):
                loaded[worker].append(one)
                return np.int64(len(one))

            return tf.ensure_shape(tf.numpy_function(note, [path], tf.int64), [])

        return FastDataset.from_files(str(tmp_path / "*.png"), load, batch_size=8, cache="memory")

    several = [dataset(worker) for worker in range(2)]
    parts = [one.part_of_batches(2, worker) for worker, one in enumerate(several)]
    loaded[:] = [[], []]  # building looks at one
    for _ in range(2):
        for part in parts:
            batches_of(part)
    assert len(loaded[0]) == 12
    assert len(loaded[1]) == 10
    assert not set(loaded[0]) & set(loaded[1])


def test_skipped_examples_are_skipped_on_all(tmp_path):
    write_images(tmp_path, 11)
    for damaged in sorted(tmp_path.glob("*.png"))[2:9:3]:
        damaged.write_bytes(b"")

    def dataset() -> FastDataset:
        return FastDataset.from_image_folder(
            tmp_path, image_size=(4, 4), batch_size=4, labels=None, on_error="skip", seed=0, shuffle=True
        )

    with pytest.warns(UserWarning, match="left out"):
        whole = batches_of(dataset())
    with pytest.warns(UserWarning, match="left out"):
        together = put_together(parts_of(dataset(), 2, 2), 2)
    assert_same(together, whole)
    assert sum(map(len, whole)) == 8


def test_streams_and_py_datasets_are_made_whole_and_cut():
    stream = FastDataset(tf.data.Dataset.range(10), batch_size=4)
    assert_same(put_together(parts_of(stream, 2, 2), 2), batches_of(stream))

    class Squares(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.arange(index * 5, index * 5 + 5) ** 2

    squares = FastDataset(Squares(), workers=0)
    assert_same(put_together(parts_of(squares, 2, 1), 1), batches_of(squares))


def test_single_numbers_can_not_be_divided():
    with pytest.raises(ValueError, match="no batch axis"):
        FastDataset(np.arange(4), batch_size=None).part_of_batches(2, 0)


def test_class_weights_as_keras_makes_them():
    """What fit(class_weight=...) does to a dataset keeps what its parts need."""
    make = keras.src.trainers.data_adapters.tf_dataset_adapter.make_class_weight_map_fn
    y = np.arange(10) % 3

    def weighted() -> Any:
        dataset = FastDataset(np.arange(10.0), y, batch_size=4, shuffle=True, seed=1)
        return dataset.map(make({0: 5.0, 1: 2.0})).prefetch(tf.data.AUTOTUNE)

    whole = weighted()
    assert isinstance(whole, WeightedEpochs)
    expected = [batch[2] for batch in batches_of(whole)]
    parts = [batches_of(weighted().part_of_batches(2, worker)) for worker in range(2)]
    assert_same(put_together([[batch[2] for batch in part] for part in parts], 1), expected)
    assert np.unique(np.concatenate(expected)).tolist() == [1.0, 2.0, 5.0]


class TestSeeds:
    def test_a_drawn_seed_is_replaced(self):
        given = FastDataset(np.arange(30), batch_size=4, shuffle=True, seed=12)
        drawn = FastDataset(np.arange(30), batch_size=4, shuffle=True)
        assert drawn.seed_was_drawn
        drawn.epochs_begun = 3
        given.epochs_begun = 3
        drawn.adopt_seed(12)
        assert (drawn.seed, drawn.epochs_begun, drawn.seed_was_drawn) == (12, 3, True)
        assert_same(batches_of(drawn), batches_of(given))
        assert_same(put_together(parts_of(drawn, 2, 1)[:1], 1), put_together(parts_of(given, 2, 1)[:1], 1))

    def test_an_iterator_from_before_goes_on(self):
        dataset = FastDataset(np.arange(30), batch_size=4, shuffle=True)
        iterator = iter(dataset)
        first = next(iterator).numpy()
        dataset.adopt_seed(dataset.seed + 1)
        rest = [batch.numpy() for batch in iterator]
        np.testing.assert_array_equal(np.sort(np.concatenate([first, *rest])), np.arange(30))

    def test_a_given_one_stays(self):
        dataset = FastDataset(np.arange(30), batch_size=4, shuffle=True, seed=1)
        assert not dataset.seed_was_drawn
        assert not dataset.shard(2, 0).seed_was_drawn
        with pytest.raises(ValueError, match="seed=1"):
            dataset.adopt_seed(2)

    def test_of_a_stream(self):
        dataset = FastDataset(tf.data.Dataset.range(30), batch_size=4, shuffle=True)
        same = FastDataset(tf.data.Dataset.range(30), batch_size=4, shuffle=True, seed=5)
        dataset.adopt_seed(5)
        assert_same(batches_of(dataset), batches_of(same))
