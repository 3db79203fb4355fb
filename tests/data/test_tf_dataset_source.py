"""A tf.data.Dataset as input: passed through, or kept in a store and shuffled in full."""

from __future__ import annotations

import os
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.sources import streams
from tests.data.epochs import batches_of, bytes_of, rows_of
from tests.data.garbage import goes, keep_no_logs

pytestmark = pytest.mark.compatibility


def numbers(count: int = 20) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


def pairs(count: int = 20) -> tf.data.Dataset:
    return numbers(count).map(lambda n: (tf.cast(n, tf.float32), n * 10))


def of_unknown_length(count: int = 20) -> tf.data.Dataset:
    return numbers(count).filter(lambda n: n >= 0)


class LyingDataset(tf.data.Dataset):
    """A dataset that says another cardinality than it has."""

    def __init__(self, dataset: tf.data.Dataset, said: int) -> None:
        self._inner = dataset
        self._said = said
        super().__init__(dataset._variant_tensor)

    def _inputs(self):
        return [self._inner]

    @property
    def element_spec(self):
        return self._inner.element_spec

    def cardinality(self):
        return tf.constant(self._said, tf.int64)


class TestStream:
    def test_examples_are_batched(self):
        dataset = FastDataset(pairs(5), batch_size=2)
        assert dataset.stored_in is None
        assert int(dataset.cardinality()) == 3
        batches = batches_of(dataset)
        assert [x.tolist() for x, _ in batches] == [[0, 1], [2, 3], [4]]
        assert [y.tolist() for _, y in batches] == [[0, 10], [20, 30], [40]]

    def test_the_remainder_can_be_dropped(self):
        dataset = FastDataset(pairs(5), batch_size=2, drop_remainder=True)
        assert int(dataset.cardinality()) == 2
        assert dataset.element_spec[0].shape.as_list() == [2]
        assert len(batches_of(dataset)) == 2

    @pytest.mark.parametrize("cache", [False, "memory"])
    def test_without_a_batch_size_elements_pass_as_they_are(self, cache):
        ready = pairs(6).batch(3, drop_remainder=True)
        dataset = FastDataset(ready, batch_size=None, cache=cache)
        assert int(dataset.cardinality()) == 2
        assert [x.tolist() for x, _ in batches_of(dataset)] == [[0, 1, 2], [3, 4, 5]]

    def test_ragged_elements_pass(self):
        rows = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]]))
        assert [row.numpy().tolist() for row in FastDataset(rows, batch_size=None)] == [[1], [2, 3]]

    def test_dictionaries_pass(self):
        dataset = FastDataset(numbers(3).map(lambda n: {"b": n, "a": -n}), batch_size=3)
        ((batch),) = batches_of(dataset)
        assert batch["a"].tolist() == [0, -1, -2]

    @pytest.mark.parametrize("cache", [False, "memory"])
    def test_map_and_augment(self, cache):
        dataset = FastDataset(
            pairs(6),
            batch_size=6,
            seed=1,
            cache=cache,
            map_fn=lambda x, y: (x * 2, y + 1),
            augment_fn=lambda x, seed: x + tf.random.stateless_uniform([], seed, maxval=0.5),
        )
        ((x, y),), ((again, _),) = batches_of(dataset), batches_of(dataset)
        assert y.tolist() == [1, 11, 21, 31, 41, 51]
        assert np.floor(x).tolist() == [0, 2, 4, 6, 8, 10]
        # Other random numbers for each example and in each epoch.
        assert len({*(x % 1).tolist(), *(again % 1).tolist()}) == 12

    @pytest.mark.parametrize("cache", [False, "memory"])
    def test_augmentation_is_a_function_of_the_seed(self, cache):
        def build(seed: int) -> FastDataset:
            return FastDataset(
                pairs(), batch_size=4, cache=cache, seed=seed, augment_fn=lambda x: x + tf.random.normal([])
            )

        one, same, other = build(3), build(3), build(4)
        first, second = bytes_of(one), bytes_of(one)
        assert first != second
        assert (bytes_of(same), bytes_of(same)) == (first, second)
        assert bytes_of(other) != first

    def test_unknown_and_infinite_lengths(self):
        unknown = FastDataset(of_unknown_length(5), batch_size=2)
        assert int(unknown.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        assert rows_of(unknown).tolist() == [0, 1, 2, 3, 4]
        infinite = FastDataset(numbers(3).repeat(), batch_size=2)
        assert int(infinite.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert [batch.tolist() for batch in infinite.take(2).as_numpy_iterator()] == [[0, 1], [2, 0]]

    def test_its_own_shuffle_stays_its_own(self):
        dataset = FastDataset(numbers().shuffle(20, seed=1), batch_size=20)
        first, second = rows_of(dataset), rows_of(dataset)
        assert first.tolist() != second.tolist()
        assert sorted(first) == sorted(second) == list(range(20))

    @pytest.mark.parametrize("what", ["labels", "file_paths"])
    def test_what_cannot_be_known(self, what):
        with pytest.raises(ValueError, match="can't be known|not made of files"):
            getattr(FastDataset(pairs()), what)
        assert FastDataset(pairs()).skipped == []

    def test_it_cannot_be_dealt_out(self):
        with pytest.raises(ValueError, match=r"Apply shard\(\) to the tf.data.Dataset before"):
            FastDataset(numbers()).shard(2, 0)


class TestBufferedShuffle:
    def build(self, dataset=None, **options) -> FastDataset:
        return FastDataset(
            numbers() if dataset is None else dataset, shuffle=True, batch_size=4, **{"seed": 1, **options}
        )

    def test_a_small_dataset_is_shuffled_in_full(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dataset = self.build()
        assert sorted(rows_of(dataset)) == list(range(20))

    def test_seed_and_epoch_decide_the_order(self):
        one, same, other = self.build(), self.build(), self.build(seed=2)
        orders = [rows_of(one).tolist() for _ in range(3)]
        assert [rows_of(same).tolist() for _ in range(3)] == orders
        assert len({tuple(order) for order in orders}) == 3
        assert rows_of(other).tolist() not in orders

    def test_one_order_for_all_epochs(self):
        dataset = self.build(reshuffle_each_epoch=False)
        assert rows_of(dataset).tolist() == rows_of(dataset).tolist() == rows_of(self.build()).tolist()

    def test_a_buffer_smaller_than_the_data_is_warned_of(self, monkeypatch):
        monkeypatch.setattr(streams, "_LARGEST_SHUFFLE_BUFFER", 5)
        with pytest.warns(UserWarning, match=r"mixes 5 neighbouring elements at a time.*cache='memory'"):
            dataset = self.build()
        order = rows_of(dataset)
        assert sorted(order) == list(range(20))
        # A buffer of five brings no element more than four places forward.
        assert all(position >= value - 4 for position, value in enumerate(order))

    def test_unknown_lengths_are_warned_of(self):
        with pytest.warns(UserWarning, match="mixes 10000 neighbouring elements"):
            dataset = self.build(of_unknown_length())
        assert sorted(rows_of(dataset)) == list(range(20))

    def test_the_buffer_takes_an_eighth_of_the_free_memory(self, monkeypatch):
        monkeypatch.setattr(streams, "free_memory_bytes", lambda: 8 * 8 * 7)
        with pytest.warns(UserWarning, match="mixes 7 neighbouring elements"):
            self.build()


@pytest.mark.parametrize("cache", ["memory", "disk"])
class TestStore:
    def build(self, dataset, cache, tmp_path, **options) -> FastDataset:
        return FastDataset(dataset, batch_size=6, cache=cache, cache_dir=tmp_path, **options)

    def test_a_full_shuffle(self, cache, tmp_path):
        dataset = self.build(pairs(200), cache, tmp_path, shuffle=True, seed=1)
        assert dataset.stored_in == cache
        assert int(dataset.cardinality()) == 34
        orders = []
        for _ in range(2):
            batches = batches_of(dataset)
            orders.append(np.concatenate([x for x, _ in batches]))
            np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), orders[-1] * 10)
            assert sorted(orders[-1]) == list(range(200))
        assert orders[0].tolist() != orders[1].tolist()
        # The same as that of arrays: positions are shuffled, whatever is behind them.
        by_arrays = FastDataset(np.arange(200, dtype="float32"), batch_size=6, shuffle=True, seed=1)
        np.testing.assert_array_equal(rows_of(by_arrays), orders[0])

    def test_the_source_is_read_once(self, cache, tmp_path):
        reads = []

        def read(number):
            reads.append(int(number))
            return number

        source = numbers(10).map(lambda n: tf.ensure_shape(tf.numpy_function(read, [n], tf.int64), []))
        dataset = self.build(source, cache, tmp_path, shuffle=True, map_fn=lambda n: n * 2)
        assert reads == []
        for _ in range(3):
            assert sorted(rows_of(dataset)) == list(range(0, 20, 2))
        assert sorted(reads) == list(range(10))

    def test_shards(self, cache, tmp_path):
        dataset = self.build(numbers(10), cache, tmp_path, shuffle=True, seed=1)
        parts = [rows_of(dataset.shard(2, index)).tolist() for index in range(2)]
        assert sorted(parts[0] + parts[1]) == list(range(10))

    def test_what_has_no_end_is_refused(self, cache, tmp_path):
        with pytest.raises(ValueError, match=rf"cache='{cache}' keeps all examples.*infinitely many.*cache=False"):
            self.build(numbers(3).repeat(), cache, tmp_path)

    def test_data_of_unknown_length_are_counted(self, cache, tmp_path):
        batched = pairs(23).batch(4).unbatch()
        dataset = self.build(batched, cache, tmp_path, shuffle=True, seed=0, map_fn=lambda x, y: (x, y + 1))
        assert int(dataset.cardinality()) == 4
        for _ in range(2):
            x, y = (np.concatenate(rows) for rows in zip(*batches_of(dataset), strict=True))
            assert sorted(x) == list(range(23))
            np.testing.assert_array_equal(y, x * 10 + 1)

    def test_no_element_is_an_error(self, cache, tmp_path):
        with pytest.raises(ValueError, match="gave no element"):
            self.build(numbers(3).filter(lambda n: n > 5), cache, tmp_path)

    def test_a_length_that_is_asserted(self, cache, tmp_path):
        source = of_unknown_length(7).apply(tf.data.experimental.assert_cardinality(7))
        assert rows_of(self.build(source, cache, tmp_path)).tolist() == list(range(7))

    @pytest.mark.parametrize(("said", "given", "words"), [(8, 5, "only 5"), (3, 5, "more")])
    def test_a_wrong_length_is_an_error(self, cache, tmp_path, said, given, words):
        dataset = self.build(LyingDataset(numbers(given), said), cache, tmp_path)
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"gave {words} elements, where its cardinality\(\) says {said}\."):
                batches_of(dataset)

    def test_a_wrong_assertion_is_an_error(self, cache, tmp_path):
        source = of_unknown_length(5).apply(tf.data.experimental.assert_cardinality(8))
        with pytest.raises(tf.errors.OpError, match="expected to contain 8 elements but contained only 5"):
            batches_of(self.build(source, cache, tmp_path))

    def test_an_element_that_fails_is_an_error(self, cache, tmp_path):
        dataset = self.build(numbers(5), cache, tmp_path, map_fn=lambda n: 10 // (n - 3))
        with pytest.raises(tf.errors.OpError, match=r"[Dd]iv"):
            batches_of(dataset)

    def test_strings_cannot_be_kept(self, cache, tmp_path):
        with pytest.raises(ValueError, match="has the type string"):
            self.build(numbers(3).map(tf.strings.as_string), cache, tmp_path)


def test_a_store_on_disk_goes_with_the_dataset(tmp_path, monkeypatch):
    """Its elements can't be recognised in another process."""
    keep_no_logs(monkeypatch)
    dataset = FastDataset(numbers(5), cache="disk", cache_dir=tmp_path)
    batches_of(dataset)
    assert os.listdir(tmp_path / "private")
    del dataset
    assert goes(lambda: os.listdir(tmp_path / "private") == [])


@pytest.mark.parametrize("cache", ["auto", False, "memory", "disk"])
def test_skipping_is_refused(cache, tmp_path):
    with pytest.raises(
        ValueError, match=r"on_error='skip' needs examples that can be loaded one by one.*ignore_errors"
    ):
        FastDataset(numbers(), on_error="skip", cache=cache, cache_dir=tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pairs().batch(4),
        lambda: pairs().batch(4).prefetch(2),
        lambda: pairs().shuffle(5).batch(4, drop_remainder=True).map(lambda x, y: (x + 1, y)).prefetch(1),
        lambda: pairs().batch(4, num_parallel_calls=2).cache().repeat(2),
    ],
)
def test_batches_of_batches_are_refused(make):
    """Case N21."""
    with pytest.raises(ValueError, match="has been batched, and batch_size=32 .*batch_size=None"):
        FastDataset(make())
    assert FastDataset(make(), batch_size=None).element_spec == make().element_spec
    assert len(batches_of(FastDataset(make().unbatch(), batch_size=20))[0][0]) == 20


class TestSizesThatAreNotDeclared:
    @pytest.mark.parametrize("cache", ["memory", "disk"])
    def test_windows_of_a_series_are_kept(self, cache, tmp_path):
        series = np.arange(40, dtype="float32").reshape(20, 2)
        windows = keras.utils.timeseries_dataset_from_array(series, series[4:, 0], sequence_length=5, batch_size=3)
        assert windows.element_spec[0].shape.as_list() == [None, None, 2]
        dataset = FastDataset(windows.unbatch(), batch_size=4, cache=cache, cache_dir=str(tmp_path))
        assert dataset.element_spec[0].shape.as_list()[1:] == [5, 2]
        for _ in range(2):
            x, y = (np.concatenate(parts) for parts in zip(*batches_of(dataset), strict=True))
            assert x.shape == (16, 5, 2)
            np.testing.assert_array_equal(x[:, -1, 0], y)

    def test_elements_that_vary_are_an_error_with_both_shapes(self):
        varying = tf.data.Dataset.range(1, 9).map(lambda n: tf.zeros([4 if n < 6 else 5, 2]))
        varying = varying.map(lambda x: tf.ensure_shape(x, [None, 2])).filter(lambda x: True)
        with pytest.raises(ValueError, match=r"has a tensor of shape \[4,2\], and a later one \[5,2\]. Pad them"):
            FastDataset(varying, batch_size=2, cache="memory")
