"""FastDataset over generator functions, and over Python functions of rows and files."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.functions import PythonFunction
from tests.data import python_data
from tests.data.epochs import batches_of

HERE_AND_IN_WORKERS = pytest.mark.parametrize("workers", [0, 1])


@pytest.fixture(autouse=True)
def collected():
    """Processes go with the dataset, which an exception may hold in a circle."""
    yield
    gc.collect()


@HERE_AND_IN_WORKERS
class TestGenerators:
    def test_items_are_examples_that_are_batched(self, workers):
        dataset = FastDataset(python_data.seventy, workers=workers, batch_size=16)
        assert dataset.element_spec == (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int64))
        for _ in range(2):
            got = [(x.numpy(), y.numpy()) for x, y in dataset]
            assert [len(x) for x, _ in got] == [16] * 4 + [6]
            numbers = np.concatenate([x[:, 0] for x, _ in got])
            np.testing.assert_array_equal(numbers, np.arange(70))
            np.testing.assert_array_equal(np.concatenate([y for _, y in got]), np.arange(70) % 3)

    def test_strings_and_small_types(self, workers):
        dataset = FastDataset(python_data.named, workers=workers, batch_size=3)
        assert dataset.element_spec == tuple(tf.TensorSpec([None], t) for t in (tf.string, tf.uint8, tf.bool))
        names, numbers, are_odd = next(iter(dataset))
        assert names.numpy().tolist() == [f"näme {k}".encode() for k in range(3)]
        assert numbers.numpy().tolist() == [0, 1, 2]
        assert are_odd.numpy().tolist() == [False, True, False]

    def test_without_batch_size_they_pass_as_they_are(self, workers):
        dataset = FastDataset(python_data.batches, workers=workers, batch_size=None)
        assert [(batch.shape.as_list(), float(batch[0, 0])) for batch in dataset] == [
            ([number + 1, 2], number) for number in range(5)
        ]

    def test_sequences_are_batched_as_the_error_says(self, workers):
        hint = r"FastDataset\(FastDataset\(\.\.\., batch_size=None\), bucket_by_length="
        for options in ({}, {"bucket_by_length": [4, 8]}):
            with pytest.raises(ValueError, match=rf"gives items of different shapes.*\(any, 2\).*{hint}"):
                FastDataset(python_data.batches, workers=workers, **options)
        items = FastDataset(python_data.batches, workers=workers, batch_size=None)
        batches = batches_of(FastDataset(items, bucket_by_length=[4, 8], batch_size=4))
        assert sorted(batch.shape for batch in batches) == [(1, 8, 2), (4, 4, 2)]

    def test_of_pictures_no_error_speaks_of_sequences(self, workers):
        with pytest.raises(ValueError, match=r"different shapes.*Pad them to one shape, or give batch_size=None"):
            FastDataset(python_data.pictures, workers=workers)

    def test_ragged_ones_are_batched_once_they_are_padded(self, workers):
        with pytest.raises(ValueError, match=r"batches gives items of different shapes.*\(any, 2\).*batch_size=None"):
            FastDataset(python_data.batches, workers=workers, batch_size=5)
        dataset = FastDataset(
            python_data.batches,
            workers=workers,
            batch_size=5,
            map_fn=lambda x: tf.ensure_shape(tf.pad(x, [[0, 5 - tf.shape(x)[0]], [0, 0]], constant_values=-1), [5, 2]),
        )
        (batch,) = dataset
        assert np.count_nonzero(batch.numpy()[:, :, 0] >= 0, axis=1).tolist() == [1, 2, 3, 4, 5]

    def test_an_endless_one(self, workers):
        dataset = FastDataset(python_data.endless, workers=workers, batch_size=4)
        for _ in range(3):
            assert [int(batch[0, 0]) for batch in dataset.take(3)] == [0, 4, 8]

    def test_one_that_fails_at_item_1000(self, workers):
        seen = []

        def read():
            for batch in FastDataset(python_data.failing_at_1000, workers=workers, batch_size=8):
                seen.extend(batch[:, 0].numpy().astype(int).tolist())

        with pytest.raises(ExampleLoadError, match="(?s)^item 1000 of failing_at_1000: LookupError.*raise LookupError"):
            read()
        assert seen == [*range(1000)]

    def test_map_fn_augment_fn_and_shuffle(self, workers):
        def epochs(seed):
            dataset = FastDataset(
                python_data.seventy,
                workers=workers,
                batch_size=35,
                shuffle=True,
                seed=seed,
                map_fn=lambda x: x[:1] * 10,
                augment_fn=lambda x, y, seed: (x + tf.random.stateless_uniform([1], seed), y),
            )
            return [np.concatenate([x[:, 0].numpy() for x, _ in dataset]).tolist() for _ in range(2)]

        with pytest.warns(UserWarning, match=r"shuffle=True of a generator .* give its data as a PyDataset") as warned:
            first, second = epochs(4)
        assert [warning.filename for warning in warned] == [__file__]
        with pytest.warns(UserWarning, match="shuffle=True of a generator"):
            again = epochs(4)
        assert again == [first, second]
        assert first != second
        assert sorted(int(number) // 10 for number in first) == [*range(70)]

    @pytest.mark.parametrize("batch_size", [16, None])
    def test_resume_at(self, workers, batch_size):
        dataset = FastDataset(python_data.seventy, workers=workers, batch_size=batch_size)
        whole = [x.numpy().tolist() for x, _ in dataset]
        with pytest.warns(UserWarning, match="reads 3 batches"):
            dataset.resume_at(1, 3)
        assert [x.numpy().tolist() for x, _ in dataset] == whole[3:]

    def test_one_without_an_item(self, workers):
        with pytest.raises(ValueError, match="empty gave no item"):
            FastDataset(python_data.empty, workers=workers)

    def test_parts_in_several_processes_make_the_whole(self, workers):
        dataset = FastDataset(python_data.dealt_out, workers=workers * 3, batch_size=None)
        assert dataset.workers == workers * 3
        assert [int(batch[0, 0]) for batch in dataset] == [*range(20)]


def padded(x):
    return tf.ensure_shape(tf.pad(x, [[0, 5 - tf.shape(x)[0]]], constant_values=-1), [5])


@HERE_AND_IN_WORKERS
class TestShapesOfItems:
    def test_case_n5_two_of_one_length_say_nothing_of_the_others(self, workers):
        dataset = FastDataset(python_data.sequences, workers=workers, batch_size=None)
        assert dataset.element_spec == (tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int64))
        assert [(len(x), int(y)) for x, y in dataset] == [(3, 0), (3, 1), (1, 2), (0, 3), (5, 4), (2, 5)]

    @pytest.mark.parametrize("batch_size", [None, 4])
    def test_case_n5_with_a_map_fn_that_pads(self, workers, batch_size):
        dataset = FastDataset(python_data.sequences, workers=workers, batch_size=batch_size, map_fn=padded)
        front = [] if batch_size is None else [None]
        assert dataset.element_spec[0] == tf.TensorSpec([*front, 5], tf.float32)
        rows = np.concatenate([np.reshape(x, [-1, 5]) for x, _ in dataset])
        assert np.count_nonzero(rows >= 0, axis=1).tolist() == list(python_data.LENGTHS)

    def test_where_a_batch_needs_one_shape_it_is_that_of_the_first_two(self, workers):
        for options in ({}, {"map_fn": lambda x: x * 2}):
            dataset = FastDataset(python_data.sequences, workers=workers, **options)
            assert dataset.element_spec[0] == tf.TensorSpec([None, 3], tf.float32)
            with pytest.raises(ExampleLoadError, match=r"(?s)item 2 of sequences: .*shape \(1,\).*by `element_spec`"):
                list(dataset)

    def test_declared(self, workers):
        spec = [tf.TensorSpec([None], tf.float16), tf.TensorSpec([], tf.uint8)]
        dataset = FastDataset(python_data.sequences, workers=workers, batch_size=None, element_spec=spec)
        assert dataset.element_spec == tuple(spec)
        assert [(len(x), int(y)) for x, y in dataset] == [(3, 0), (3, 1), (1, 2), (0, 3), (5, 4), (2, 5)]

    def test_what_is_declared_need_not_be_looked_at(self, workers):
        dataset = FastDataset(
            python_data.empty, workers=workers, batch_size=2, element_spec=tf.TensorSpec([3], tf.float32)
        )
        assert dataset.element_spec == tf.TensorSpec([None, 3], tf.float32)
        assert list(dataset) == []

    def test_declared_otherwise(self, workers):
        def read(spec):
            list(FastDataset(python_data.sequences, workers=workers, batch_size=None, element_spec=spec))

        x, y = tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int64)
        with pytest.raises(ExampleLoadError, match=r"structure is \(array, array\), where `element_spec` says array"):
            read(x)
        with pytest.raises(ExampleLoadError, match=r"item 2 of .* has the shape \(1,\), where \(3,\) was expected\."):
            read((tf.TensorSpec([3], tf.float32), y))
        with pytest.raises(ExampleLoadError, match="has the type float64, where `element_spec` says int32"):
            read((tf.TensorSpec([None], tf.int32), y))

    def test_declared_for_other_code(self, workers):
        spec = tf.TensorSpec([None], tf.float32)
        x, function = np.array([[0.0], [3], [1], [2], [3]]), PythonFunction(python_data.of_other_shape)
        with pytest.raises(ExampleLoadError, match="the example at index 2: .*by `element_spec`"):
            list(FastDataset(x, map_fn=function, workers=workers))
        dataset = FastDataset(x, map_fn=function, workers=workers, batch_size=None, element_spec=spec)
        assert [len(one) for one in dataset] == [1, 1, 2, 3, 1]
        batches = [np.zeros((2, length), np.float32) for length in (3, 3, 1, 4, 3)]
        with pytest.raises(ExampleLoadError, match="by `element_spec`"):
            list(FastDataset(python_data.Varied(batches), workers=workers))
        dataset = FastDataset(
            python_data.Varied(batches), workers=workers, element_spec=tf.TensorSpec([None, None], tf.float32)
        )
        assert [batch.shape[1] for batch in dataset] == [3, 3, 1, 4, 3]


@HERE_AND_IN_WORKERS
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_generator_that_is_kept_is_read_once_and_counts(workers, cache, tmp_path):
    dataset = FastDataset(
        python_data.seventy, workers=workers, batch_size=16, cache=cache, cache_dir=tmp_path, shuffle=True, seed=3
    )
    assert (dataset.stored_in, int(dataset.cardinality())) == (cache, 5)
    whole = [np.concatenate([x[:, 0] for x, _ in dataset]) for _ in range(2)]
    assert all(sorted(epoch) == [*range(70)] for epoch in whole)
    assert whole[0].tolist() != whole[1].tolist()
    dataset.resume_at(1, 2)
    assert np.concatenate([x[:, 0] for x, _ in dataset]).tolist() == whole[1][32:].tolist()
    assert [int(dataset.shard(2, index).cardinality()) for index in range(2)] == [3, 3]


class TestTheSameIterator:
    def test_is_refused_when_the_dataset_is_built(self):
        iterator = iter([np.float32(number) for number in range(10)])
        with pytest.raises(ValueError, match="returned the iterator that it returned before"):
            FastDataset(lambda: iterator, batch_size=2)

    def test_is_refused_in_the_second_epoch_where_nothing_was_looked_at(self):
        iterator = iter([np.float32(number) for number in range(10)])
        dataset = FastDataset(lambda: iterator, batch_size=None, workers=0, element_spec=tf.TensorSpec([], tf.float32))
        assert [int(one) for one in dataset] == [*range(10)]
        with pytest.raises(ExampleLoadError, match="returned the iterator that it returned before"):
            list(dataset)

    def test_a_list_is_no_iterator(self):
        items = [np.float32(number) for number in range(10)]
        dataset = FastDataset(lambda: items, batch_size=None, workers=0)
        for _ in range(2):
            assert [int(one) for one in dataset] == [*range(10)]


@pytest.mark.parametrize("spec", [3, [None], tf.TensorSpec(None, tf.float32), {"a": (3, 4)}])
def test_an_element_spec_that_can_not_be(spec):
    with pytest.raises(TypeError, match="`element_spec` must be a tf.TensorSpec, or a dict or tuple of them"):
        FastDataset(python_data.seventy, element_spec=spec)


def test_an_element_spec_of_data_that_is_known():
    with pytest.raises(ValueError, match="`element_spec` is for what Python code makes"):
        FastDataset(np.zeros((3, 1)), element_spec=tf.TensorSpec([1], tf.float32))


def test_random_numbers_of_a_generator_are_by_seed_and_epoch():
    def epochs(seed):
        dataset = FastDataset(python_data.noisy, workers=1, batch_size=4, seed=seed)
        return [[batch.numpy().tolist() for batch in dataset] for _ in range(2)]

    first = epochs(1)
    assert epochs(1) == first
    assert first[0] != first[1]
    assert epochs(2) != first


def test_a_generator_that_can_not_be_dealt_out_takes_one_process():
    assert FastDataset(python_data.seventy, workers=4).workers == 1


class TestArgumentsOfGenerators:
    @pytest.mark.parametrize("iterator", [python_data.seventy(), iter([1, 2]), itertools.count()])
    def test_an_iterator_is_refused_with_the_remedy(self, iterator):
        with pytest.raises(TypeError, match="which can be read once only. Give the function that makes it"):
            FastDataset(iterator)

    def test_required_parameters(self):
        with pytest.raises(TypeError, match=r"without required parameters.*doubled\(x\).*functools.partial"):
            FastDataset(python_data.doubled)
        numbers = FastDataset(functools.partial(python_data.dealt_out, num_shards=1, shard_index=0), workers=0)
        assert len(list(numbers)) == 1

    def test_what_can_not_be_sent(self):
        lock = threading.Lock()

        def locked():
            with lock:
                yield 1.0

        with pytest.raises(TypeError, match="can't be sent to worker processes: .*lock.* workers=0"):
            FastDataset(locked, workers=1)
        assert float(next(iter(FastDataset(locked, workers=0)))[0]) == 1

    def test_skip(self):
        with pytest.raises(ValueError, match="a generator can only be read from its beginning"):
            FastDataset(python_data.seventy, on_error="skip")

    def test_shard(self):
        with pytest.raises(ValueError, match="a generator function can give a part by itself"):
            FastDataset(python_data.seventy, workers=0).shard(2, 0)


@pytest.mark.parametrize("workers", [0, 2])
class TestPythonFunctions:
    def numbers(self, dataset):
        return [int(x) for batch in dataset for x in np.ravel(batch[0] if isinstance(batch, tuple) else batch)]

    def test_of_x_alone(self, workers):
        x, y = np.arange(50.0).reshape(50, 1), np.arange(50)
        dataset = FastDataset(
            x, y, map_fn=PythonFunction(python_data.doubled), workers=workers, batch_size=8, shuffle=True, seed=3
        )
        plain = FastDataset(x * 2, y, batch_size=8, shuffle=True, seed=3)
        assert dataset.stored_in == "memory"
        for _ in range(3):
            for (got_x, got_y), (want_x, want_y) in zip(dataset, plain, strict=True):
                np.testing.assert_array_equal(got_x, want_x)
                np.testing.assert_array_equal(got_y, want_y)

    def test_of_x_and_y(self, workers):
        x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
        dataset = FastDataset(
            x, y, map_fn=PythonFunction(python_data.summed), workers=workers, batch_size=4, cache=False
        )
        assert np.concatenate([x for x, _ in dataset]).tolist() == [[4 * k + 1, k] for k in range(10)]
        assert dataset.labels.tolist() == [*range(10)]
        dataset.resume_at(0, 1)
        assert np.concatenate([y for _, y in dataset]).tolist() == [*range(4, 10)]
        parts = [np.concatenate([y for _, y in dataset.shard(2, index)]).tolist() for index in range(2)]
        assert parts == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]

    def test_results_of_different_shapes_pass_one_by_one(self, workers):
        dataset = FastDataset(
            np.arange(7.0).reshape(7, 1),
            map_fn=PythonFunction(python_data.of_other_shape),
            workers=workers,
            batch_size=None,
        )
        assert [len(x) for x in dataset] == [1, 2, 3, 1, 2, 3, 1]

    def test_results_of_different_shapes_in_batches(self, workers):
        with pytest.raises(ValueError, match=r"of_other_shape gives items of different shapes.*\(any\).*Pad"):
            FastDataset(
                np.arange(7.0).reshape(7, 1), map_fn=PythonFunction(python_data.of_other_shape), workers=workers
            )

    def test_failures(self, workers):
        x = np.arange(40.0).reshape(40, 1)
        function = PythonFunction(python_data.failing_on_seven)
        with pytest.raises(ExampleLoadError, match="(?s)^the example at index 7: ZeroDivisionError: seven"):
            list(FastDataset(x, map_fn=function, workers=workers, batch_size=4))
        dataset = FastDataset(x, map_fn=function, workers=workers, batch_size=4, on_error="skip")
        with pytest.warns(UserWarning, match="index 7"):
            first = self.numbers(dataset)
        expected = [number for number in range(40) if number != 7]
        assert first == expected
        assert self.numbers(dataset) == expected
        assert int(dataset.cardinality()) == 10

    def test_of_files(self, workers, tmp_path):
        for number in range(5):
            (tmp_path / f"ä {number}.bin").write_bytes(b"x" * number)
        dataset = FastDataset.from_files(
            f"{tmp_path}/*.bin",
            PythonFunction(python_data.length_of_file),
            labels=lambda path: os.path.basename(path)[2],
            label_mode="int",
            workers=workers,
            batch_size=2,
        )
        assert dataset.class_names == ["0", "1", "2", "3", "4"]
        assert [os.path.basename(path) for path in dataset.file_paths] == [f"ä {number}.bin" for number in range(5)]
        got = [(x.numpy().tolist(), y.numpy().tolist()) for x, y in dataset]
        assert got == [([[0], [1]], [0, 1]), ([[2], [3]], [2, 3]), ([[4]], [4])]
        assert dataset.labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", [-1, 1.5, True, "many"])
def test_workers_that_cannot_be(workers, tmp_path):
    from keras_turbo.data.convert import convert_images

    (tmp_path / "a").write_bytes(b"a")
    for make in (
        lambda: FastDataset(python_data.seventy, workers=workers),
        lambda: FastDataset(python_data.Sequence(), workers=workers),
        lambda: FastDataset(np.zeros((3, 1)), map_fn=PythonFunction(python_data.doubled), workers=workers),
        lambda: FastDataset.from_files(f"{tmp_path}/*", PythonFunction(python_data.length_of_file), workers=workers),
        lambda: FastDataset(np.zeros(3), workers=workers),
    ):
        with pytest.raises((TypeError, ValueError), match="or 0, for this process, where Python code makes the data"):
            make()
    with pytest.raises((TypeError, ValueError), match=r"`workers` must be .* Received: workers="):
        convert_images(tmp_path, tmp_path / "out", workers=workers)


class TestArgumentsOfPythonFunctions:
    def test_no_function(self):
        with pytest.raises(TypeError, match="PythonFunction takes a function"):
            PythonFunction(3)

    def test_wrong_number_of_arguments(self):
        with pytest.raises(TypeError, match="must take either 1 positional arguments"):
            FastDataset(np.zeros((3, 1)), map_fn=PythonFunction(python_data.summed), workers=0)

    @pytest.mark.parametrize("x", [tf.data.Dataset.range(3), python_data.seventy, python_data.Sequence()])
    def test_of_other_sources(self, x):
        with pytest.raises(TypeError, match="A PythonFunction as `map_fn` is for arrays"):
            FastDataset(x, map_fn=PythonFunction(python_data.doubled))
