"""Stacks of batches: the batches of the same epoch, to the byte, several in one element."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_turbo import FastDataset
from tests.data.epochs import batches_of
from tests.data.garbage import goes

pytestmark = pytest.mark.compatibility

N, BATCH_SIZE, EPOCHS = 29, 4, 3
X = np.arange(N * 3, dtype="float32").reshape(N, 3)
Y = np.arange(N)
WEIGHTS = np.linspace(0, 1, N, dtype="float32")


def stacks_of(dataset: tf.data.Dataset, count: int) -> list[Any]:
    """One epoch, stack by stack, as numpy arrays."""
    stacks = iter(dataset).stacks(count)
    assert isinstance(stacks, tf.data.Iterator)
    return [tf.nest.map_structure(lambda leaf: leaf.numpy(), stack) for stack in stacks]


def unstacked(stacks: list[Any]) -> list[Any]:
    """The batches of some stacks."""
    batches = []
    for stack in stacks:
        count = len(tf.nest.flatten(stack)[0])
        batches += [tf.nest.map_structure(lambda leaf, index=index: leaf[index], stack) for index in range(count)]
    return batches


def shapes_of(stacks: list[Any]) -> list[tuple[int, ...]]:
    """Stacks and rows of each element."""
    return [tf.nest.flatten(stack)[0].shape[:2] for stack in stacks]


def assert_equal(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        tf.nest.assert_same_structure(batch, other)
        for leaf, other_leaf in zip(tf.nest.flatten(batch), tf.nest.flatten(other), strict=True):
            assert leaf.dtype == other_leaf.dtype
            np.testing.assert_array_equal(leaf, other_leaf)


def shaded(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.image.stateless_random_hue(image, 0.1, seed)


@pytest.fixture
def photos(tmp_path):
    """Eleven small images in two class folders."""
    for index in range(11):
        folder = tmp_path / "photos" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4), (index * 20, 0, 255 - index)).save(folder / f"{index:02d}.png")
    return tmp_path / "photos"


class TestArrays:
    @pytest.mark.parametrize(
        "arguments",
        [(X,), (X, Y, WEIGHTS), ({"a": X, "b": Y}, (Y, WEIGHTS)), (X, np.array([f"{label}" for label in Y]))],
        ids=["x", "x y w", "dict and tuple", "strings"],
    )
    def test_every_form(self, arguments):
        options = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3}
        one, other = FastDataset(*arguments, **options), FastDataset(*arguments, **options)
        for _ in range(2):
            assert_equal(unstacked(stacks_of(one, 3)), batches_of(other))

    @pytest.mark.parametrize(
        ("batch_size", "drop_remainder", "count", "shapes"),
        [
            (4, False, 3, [(3, 4), (3, 4), (1, 4), (1, 1)]),
            (4, True, 3, [(3, 4), (3, 4), (1, 4)]),
            (4, False, 7, [(7, 4), (1, 1)]),
            (4, False, 100, [(7, 4), (1, 1)]),
            (4, False, 1, [(1, 4)] * 7 + [(1, 1)]),
            (29, False, 2, [(1, 29)]),
            (29, True, 2, [(1, 29)]),
            (40, False, 2, [(1, 29)]),
            (40, True, 2, []),
            (1, False, 20, [(20, 1), (9, 1)]),
        ],
    )
    def test_every_size(self, batch_size, drop_remainder, count, shapes):
        options = {"batch_size": batch_size, "drop_remainder": drop_remainder, "shuffle": batch_size != 1, "seed": 1}
        one, other = FastDataset(X, Y, **options), FastDataset(X, Y, **options)
        for _ in range(2):
            stacks = stacks_of(one, count)
            assert shapes_of(stacks) == shapes
            assert_equal(unstacked(stacks), batches_of(other))

    def test_the_spec(self):
        spec = iter(FastDataset(X, Y, batch_size=4)).stacks(2).element_spec
        assert spec == (tf.TensorSpec([None, None, 3]), tf.TensorSpec([None, None], tf.int64))
        spec = iter(FastDataset(X, batch_size=4, drop_remainder=True)).stacks(2).element_spec
        assert spec == tf.TensorSpec([None, 4, 3])

    def test_an_order_that_is_never_whole_in_memory(self):
        rows = np.arange(70_000)
        options = {"batch_size": 1000, "shuffle": True, "seed": 0}
        stacks = stacks_of(FastDataset(rows, **options), 40)
        assert shapes_of(stacks) == [(40, 1000), (30, 1000)]
        assert_equal(unstacked(stacks), batches_of(FastDataset(rows, **options)))

    def test_a_memory_map(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        dataset = FastDataset(np.load(tmp_path / "x.npy", mmap_mode="r"), batch_size=BATCH_SIZE)
        assert_equal(unstacked(stacks_of(dataset, 3)), batches_of(dataset))

    def test_shards(self):
        options = {"batch_size": 4, "shuffle": True, "seed": 5}
        one, other = FastDataset(X, Y, **options), FastDataset(X, Y, **options)
        for index in range(3):
            part, same = one.shard(3, index), other.shard(3, index)
            for _ in range(2):
                stacks = stacks_of(part, 2)
                assert shapes_of(stacks) == [(2, 4), (1, 2)] if index < 2 else [(2, 4), (1, 1)]
                assert_equal(unstacked(stacks), batches_of(same))

    @pytest.mark.parametrize("batch_size", [4, 29])
    def test_augmentation_by_a_seed(self, batch_size):
        def augment(x, y):
            return x + tf.random.normal([3]), y

        options = {"batch_size": batch_size, "shuffle": True, "seed": 2, "augment_fn": augment}
        one, other = FastDataset(X, Y, **options), FastDataset(X, Y, **options)
        for _ in range(2):
            assert_equal(unstacked(stacks_of(one, 3)), batches_of(other))


class TestEpochs:
    def test_stacked_and_plain_epochs_count_alike(self):
        options = {"batch_size": 4, "shuffle": True, "seed": 0}
        one, other = FastDataset(X, **options), FastDataset(X, **options)
        epochs = [batches_of(other) for _ in range(5)]
        assert_equal(unstacked(stacks_of(one, 2)), epochs[0])
        assert_equal(batches_of(one), epochs[1])
        iter(one)  # unread, so not an epoch; and with unread stacks of it neither
        iter(iter(one).stacks(3))
        assert_equal(unstacked(stacks_of(one, 3)), epochs[2])
        assert_equal(unstacked(stacks_of(one, 2)), epochs[3])
        assert_equal(batches_of(one), epochs[4])

    def test_two_at_once(self):
        options = {"batch_size": 4, "shuffle": True, "seed": 0}
        one, other = FastDataset(X, **options), FastDataset(X, **options)
        first, second = (iter(one).stacks(2) for _ in range(2))
        begun = [next(first), next(second)]
        epochs = [[start, *rest] for start, rest in zip(begun, (first, second), strict=True)]
        for stacks in epochs:
            assert_equal(unstacked([stack.numpy() for stack in stacks]), batches_of(other))

    def test_the_iterator_is_the_usual_one(self):
        dataset = FastDataset(X, Y, batch_size=4)
        iterator = iter(dataset)
        assert isinstance(iterator, type(iter(tf.data.Dataset.range(1))))
        assert iterator.element_spec == dataset.element_spec
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(dataset, epochs=2, verbose=0)

    def test_the_iterator_holds_what_it_needs_and_nothing_holds_it(self):
        dataset = FastDataset(X, Y, batch_size=4, shuffle=True, seed=0)
        pipeline = weakref.ref(dataset._recipe)
        stacks = iter(dataset).stacks(2)
        del dataset
        assert shapes_of([stack[0] for stack in stacks])[:2] == [(2, 4), (2, 4)]
        assert pipeline() is not None
        del stacks
        assert goes(lambda: pipeline() is None)


class TestFiles:
    @pytest.mark.parametrize("cache", ["memory", "disk", False])
    @pytest.mark.parametrize("stacked", [{0, 1, 2}, {1}], ids=str)
    def test_folders_over_epochs(self, photos, tmp_path, cache, stacked):
        options = {"image_size": (4, 5), "batch_size": 3, "shuffle": True, "seed": 4}
        one = FastDataset.from_image_folder(photos, **options, cache=cache, cache_dir=tmp_path / "cache")
        other = FastDataset.from_image_folder(photos, **options, cache=False)
        for epoch in range(EPOCHS):
            batches = unstacked(stacks_of(one, 2)) if epoch in stacked else batches_of(one)
            assert_equal(batches, batches_of(other))
        if cache:
            assert one._recipe.store.num_filled == 11

    def test_a_store_left_half_way(self, photos):
        options = {"image_size": (4, 5), "batch_size": 3, "shuffle": False}
        one, other = (FastDataset.from_image_folder(photos, **options) for _ in range(2))
        next(iter(one).stacks(1))
        for _ in range(EPOCHS):
            assert_equal(unstacked(stacks_of(one, 2)), batches_of(other))

    @pytest.mark.parametrize("augment_fn", [None, pytest.param(shaded, marks=pytest.mark.slow)])
    def test_a_store_that_is_shared_by_shards(self, photos, augment_fn):
        options = {"image_size": (4, 5), "batch_size": 3, "shuffle": True, "seed": 0, "augment_fn": augment_fn}
        one, other = (FastDataset.from_image_folder(photos, **options) for _ in range(2))
        parts, others = ([whole.shard(2, index) for index in range(2)] for whole in (one, other))
        for _ in range(EPOCHS):
            for part, same in zip(parts, others, strict=True):
                assert_equal(unstacked(stacks_of(part, 2)), batches_of(same))

    @pytest.mark.parametrize("cache", ["memory", False])
    @pytest.mark.parametrize("drop_remainder", [False, True])
    @pytest.mark.filterwarnings("ignore:An example was left out")
    def test_what_is_skipped(self, photos, cache, drop_remainder):
        (photos / "a" / "04.png").write_bytes(b"")
        (photos / "b" / "07.png").write_bytes((photos / "b" / "07.png").read_bytes()[:50])
        options = {"image_size": (4, 5), "batch_size": 4, "shuffle": True, "seed": 4, "on_error": "skip"}
        options |= {"drop_remainder": drop_remainder, "cache": cache}
        one, other = (FastDataset.from_image_folder(photos, **options) for _ in range(2))
        for _ in range(EPOCHS):
            stacks = stacks_of(one, 2)
            assert shapes_of(stacks) == ([(2, 4)] if drop_remainder else [(2, 4), (1, 1)])
            assert_equal(unstacked(stacks), batches_of(other))
            assert [example.path[-6:] for example in one.skipped] == ["04.png", "07.png"]
            assert int(one.cardinality()) == 3 - drop_remainder

    def test_what_fails_is_named(self, photos):
        (photos / "a" / "04.png").write_bytes(b"")
        dataset = FastDataset.from_image_folder(photos, image_size=(4, 5), batch_size=4, shuffle=False)
        with pytest.raises(tf.errors.InvalidArgumentError, match="04.png"):
            stacks_of(dataset, 2)

    def test_a_dataset_that_is_kept(self):
        examples = tf.data.Dataset.from_tensor_slices((X, Y))
        one, other = (FastDataset(examples, batch_size=4, cache="memory", shuffle=True, seed=0) for _ in range(2))
        for _ in range(2):
            assert_equal(unstacked(stacks_of(one, 3)), batches_of(other))


class TestRefusals:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: FastDataset(X, batch_size=None),
            lambda: FastDataset(tf.data.Dataset.from_tensor_slices(X), batch_size=4),
            lambda: FastDataset(X, batch_size=1, map_fn=lambda row: row[: tf.cast(row[0], tf.int32)], cache=False),
        ],
        ids=["one by one", "a stream", "unequal shapes"],
    )
    def test_none_where_batches_do_not_stack(self, make):
        assert iter(make()).stacks(2) is None

    @pytest.mark.parametrize(("count", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
    def test_bad_counts(self, count, error):
        with pytest.raises(error):
            iter(FastDataset(X)).stacks(count)
