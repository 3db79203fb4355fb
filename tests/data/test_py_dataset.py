"""FastDataset over PyDatasets: order, types, epochs, failures, the cache, resuming and shards, here and in workers."""

from __future__ import annotations

import errno
import gc
import logging
import os
import threading
import time

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.workers import choice, messages, pool, process
from tests.data import python_data
from tests.data.python_data import (
    BadHooks,
    Counted,
    Dying,
    Endless,
    Failing,
    Large,
    Noisy,
    Reordering,
    Sequence,
    Shrinking,
    Slow,
    Varied,
)

pytestmark = pytest.mark.compatibility


@pytest.fixture(autouse=True)
def collected():
    """Processes go with the dataset, which an exception or a model may hold in a circle."""
    yield
    gc.collect()


HERE_AND_IN_WORKERS = pytest.mark.parametrize("workers", [0, 2])


def first_numbers(dataset):
    """The first number of each batch's x, or of the batch."""
    return [int((batch[0] if isinstance(batch, tuple) else batch).numpy().flat[0]) for batch in dataset]


def no_more_files(*_):
    """What the system says that has no descriptor left; TensorFlow itself ends the process where there is none."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Model(keras.Model):
    """Notes the first number of each batch that it trains on."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        tf.numpy_function(lambda batch: self.seen.append(int(batch.flat[0])), [x], [])
        return {"loss": tf.reduce_mean(tf.cast(x, tf.float32))}


def fitted(dataset, **options):
    model = Model()
    model.compile()
    model.fit(dataset, verbose=0, **options)
    return model.seen


@HERE_AND_IN_WORKERS
class TestBatches:
    def test_pass_as_they_are_and_in_order(self, workers):
        dataset = FastDataset(Sequence(), workers=workers)
        assert int(dataset.cardinality()) == 6
        assert dataset.element_spec == (tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None], tf.int64))
        for _ in range(2):
            got = [(x.numpy(), y.numpy()) for x, y in dataset]
            assert [x.shape for x, _ in got] == [(4, 3)] * 5 + [(2, 3)]
            for index, (x, y) in enumerate(got):
                np.testing.assert_array_equal(x, np.full((len(x), 3), index, np.float32))
                np.testing.assert_array_equal(y, np.full(len(x), index))

    def test_types_are_those_of_the_arrays(self, workers):
        items = [
            {"b": np.array([[index], [2]], np.uint8), "a": np.array([True, False]), "text": np.array(["é", "xyz"])}
            for index in range(3)
        ]
        dataset = FastDataset(Varied(items), workers=workers)
        got = list(dataset)
        assert {key: (got[2][key].dtype, got[2][key].shape.as_list()) for key in got[2]} == {
            "a": (tf.bool, [2]),
            "b": (tf.uint8, [2, 1]),
            "text": (tf.string, [2]),
        }
        assert got[2]["b"].numpy().tolist() == [[2], [2]]
        assert got[2]["text"].numpy().tolist() == ["é".encode(), b"xyz"]

    def test_lists_are_tuples_and_none_weights_are_left_out(self, workers):
        item = [[np.zeros((2, 1)), np.ones((2, 1))], [1, 2], None]
        dataset = FastDataset(Varied([item] * 3), workers=workers)
        assert tf.nest.map_structure(lambda spec: spec.dtype, dataset.element_spec) == (
            (tf.float32, tf.float32),
            tf.int64,
        )
        assert len(list(dataset)) == 3

    def test_larger_ones_come_later(self, workers):
        items = [np.full((1 << index, 100), index, np.float32) for index in range(12)]
        dataset = FastDataset(Varied(items), workers=workers)
        for index, batch in enumerate(dataset):
            np.testing.assert_array_equal(batch, items[index])

    def test_kept_ones_stay_as_they_were(self, workers):
        dataset = FastDataset(Sequence(number=40), workers=workers)
        kept = list(dataset) + list(dataset)
        assert [int(x.numpy().flat[0]) for x, _ in kept] == [*range(40)] * 2
        assert all((x.numpy() == x.numpy().flat[0]).all() for x, _ in kept)

    def test_shuffle_is_over_all_batches_and_by_the_seed(self, workers):
        shuffled = FastDataset(Sequence(number=30), workers=workers, shuffle=True, seed=7)
        epochs = [first_numbers(shuffled), first_numbers(shuffled)]
        assert all(sorted(epoch) == [*range(30)] for epoch in epochs)
        assert epochs[0] != epochs[1] != [*range(30)]
        again = FastDataset(Sequence(number=30), workers=2 - workers, shuffle=True, seed=7)
        assert [first_numbers(again), first_numbers(again)] == epochs
        assert first_numbers(FastDataset(Sequence(number=30), workers=0, shuffle=True, seed=8)) != epochs[0]

    def test_resume_at_makes_nothing_of_what_is_skipped(self, workers, tmp_path):
        source = Counted(tmp_path / "made", number=20)
        dataset = FastDataset(source, workers=workers, shuffle=True, seed=1)
        whole = [first_numbers(dataset) for _ in range(3)]
        again = FastDataset(source, workers=workers, shuffle=True, seed=1)
        source.made()
        again.resume_at(1, 15)
        assert first_numbers(again) == whole[1][15:]
        assert source.made() == sorted(whole[1][15:])
        assert first_numbers(again) == whole[2]

    def test_shards_are_disjoint_and_complete(self, workers):
        dataset = FastDataset(Sequence(number=9), workers=workers, shuffle=True, seed=1)
        parts = [first_numbers(dataset.shard(3, index)) for index in range(3)]
        assert [len(part) for part in parts] == [3, 3, 3]
        assert sorted(number for part in parts for number in part) == [*range(9)]

    def test_the_cache_makes_each_batch_once(self, workers, tmp_path):
        source = Counted(tmp_path / "made", number=7)
        dataset = FastDataset(
            source, workers=workers, shuffle=True, seed=5, cache="memory", augment_fn=lambda x, y, seed: (x + 1, y)
        )
        plain = FastDataset(Sequence(number=7), workers=0, shuffle=True, seed=5)
        source.made()
        for epoch in range(3):
            got = {int(y[0]): x.numpy() for x, y in dataset}
            assert list(got) == first_numbers(plain)
            assert [len(x) for _, x in sorted(got.items())] == [4] * 6 + [2]
            assert all((x == index + 1).all() for index, x in got.items())
            assert source.made() == ([*range(7)] if epoch == 0 else [])

    def test_a_cache_left_half_way_is_filled_by_the_next_epoch(self, workers, tmp_path):
        source = Counted(tmp_path / "made", number=20)
        dataset = FastDataset(source, workers=workers, cache="disk", cache_dir=tmp_path / "store")
        assert len(list(dataset.take(2))) == 2
        assert first_numbers(dataset) == [*range(20)]
        source.made()
        assert first_numbers(dataset) == [*range(20)]
        assert source.made() == []

    def test_on_epoch_begin_and_end_are_called_and_workers_see_what_they_change(self, workers):
        source, expected = Reordering(), Reordering()
        dataset = FastDataset(source, workers=workers)
        epochs = []
        for _ in range(3):
            epochs.append(expected.order.tolist())
            assert first_numbers(dataset) == epochs[-1]
            expected.on_epoch_end()
        assert source.calls == ["begin", "end"] * 3
        assert len({tuple(epoch) for epoch in epochs}) == 3
        resumed = FastDataset(Reordering(), workers=workers)
        resumed.resume_at(2, 3)
        assert first_numbers(resumed) == epochs[2][3:]

    def test_an_epoch_that_is_left_ends_when_the_next_begins(self, workers):
        source = Reordering()
        dataset = FastDataset(source, workers=workers)
        for batch in dataset:
            assert int(batch[0, 0]) == 0
            break
        assert source.calls == ["begin"]
        first_numbers(dataset)
        assert source.calls == ["begin", "end", "begin", "end"]

    def test_a_length_that_changes_is_an_error_of_the_epoch_that_meets_it(self, workers):
        dataset = FastDataset(Shrinking(), workers=workers)
        assert len(list(dataset)) == 6
        with pytest.raises(ValueError, match=r"5 batches at the beginning of epoch 1, and had 6"):
            list(dataset)

    @pytest.mark.parametrize("hook", ["begin", "end"])
    def test_an_exception_of_a_hook_is_raised(self, workers, hook):
        dataset = FastDataset(BadHooks(hook), workers=workers)
        assert len(list(dataset)) == 6
        with pytest.raises(LookupError, match=f"no {'beginning' if hook == 'begin' else 'end'}"):
            list(dataset)

    def test_map_fn_and_augment_fn_are_given_batches(self, workers):
        dataset = FastDataset(
            Sequence(),
            workers=workers,
            map_fn=lambda x: x[:, :1] * 10,
            augment_fn=lambda x, seed: x + 1,
            cache="memory",
        )
        for _ in range(2):
            assert first_numbers(dataset) == [1, 11, 21, 31, 41, 51]

    def test_case_8_an_endless_one_goes_on_over_epochs(self, workers):
        dataset = FastDataset(Endless(), workers=workers)
        assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert fitted(dataset, steps_per_epoch=5, epochs=3) == [*range(15)]
        dataset.resume_at(0, 5)
        assert first_numbers(dataset.take(3)) == [5, 6, 7]


@HERE_AND_IN_WORKERS
class TestFailures:
    def test_an_exception_is_raised_in_fit_with_its_traceback_and_the_batch(self, workers):
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            fitted(FastDataset(Failing(), workers=workers))
        text = str(raised.value)
        assert "batch 3 of Failing: ZeroDivisionError: no batch for 3." in text
        assert 'raise ZeroDivisionError(f"no batch for {index}")' in text
        assert "python_data.py" in text

    def test_skip_leaves_them_out_and_lists_them(self, workers):
        dataset = FastDataset(Failing(bad=[1, 4, 7], number=9), workers=workers, on_error="skip")
        with pytest.warns(UserWarning, match="batch 1 of Failing: ZeroDivisionError: no batch for 1"):
            first = first_numbers(dataset)
        assert first == [0, 2, 3, 5, 6, 8]
        assert first_numbers(dataset) == [0, 2, 3, 5, 6, 8]
        assert int(dataset.cardinality()) == 6
        assert [(one.path, one.reason) for one in dataset.skipped] == [
            (f"batch {index} of Failing", f"ZeroDivisionError: no batch for {index}.") for index in (1, 4, 7)
        ]
        with pytest.warns(UserWarning, match="reads 2 batches"):
            dataset.resume_at(0, 2)
        assert first_numbers(dataset) == [3, 5, 6, 8]

    @pytest.mark.parametrize(
        ("odd", "message"),
        [
            (np.zeros((2, 5), np.float32), r"has the shape \(2, 5\), where \(any, 3\) was expected"),
            (np.zeros((2, 3, 1), np.float32), "has the shape"),
            (np.zeros((2, 3), np.int64), "has the type int64, where the first had float32"),
            ((np.zeros((2, 3)),), r"its structure is \(array,\), where the first had array"),
            ([[[1.0, 2.0], [3.0]]], "rows of different shapes"),
            (np.array([[1.0], [2.0, 3.0]], dtype=object), "an array of Python objects"),
            (None, "is None"),
            ("text", "scalar|type"),
        ],
    )
    def test_a_batch_that_is_not_like_the_others_is_named(self, workers, odd, message):
        items = [np.zeros((2, 3), np.float32)] * 6
        items[3] = odd
        with pytest.raises(ExampleLoadError, match=f"(?s)^batch 3 of Varied.*{message}"):
            list(FastDataset(Varied(items), workers=workers))

    def test_unequal_numbers_of_rows(self, workers):
        items = [(np.zeros((2, 3)), np.zeros(2))] * 6
        items[3] = (np.zeros((2, 3)), np.zeros(1))
        with pytest.raises(ExampleLoadError, match="unequal numbers of rows"):
            list(FastDataset(Varied(items), workers=workers))

    def test_a_batch_too_large_for_the_cache(self, workers):
        items = [np.zeros((2, 3), np.float32)] * 4
        items[2] = np.zeros((9, 3), np.float32)
        with pytest.raises(ValueError, match=r"Batch 2 has a tensor of shape \(9, 3\)"):
            list(FastDataset(Varied(items), workers=workers, cache="memory"))

    def test_an_endless_one_fails_by_its_index(self, workers):
        source = Failing(bad=[40])
        source.num_batches = None
        with pytest.raises(ExampleLoadError, match="(?s)^batch 40 of Failing.*no batch for 40"):
            list(FastDataset(source, workers=workers))


class TestWorkers:
    @pytest.mark.parametrize(
        ("how", "message"), [("kill", r"was killed by signal 9 \(SIGKILL"), ("exit", "ended with exit code 7")]
    )
    def test_one_that_dies_is_named_and_replaced(self, how, message):
        source = Dying(how, os.getpid())
        dataset = FastDataset(source, workers=2)
        with pytest.raises(process.WorkerError, match=rf"Worker \d of 2 \(process \d+\) {message}.*batch 3 of Dying"):
            list(dataset)
        source.how, source.parent = "not at all", None
        source.__class__ = Sequence
        assert first_numbers(dataset) == [*range(6)]

    @pytest.mark.parametrize("workers", [1, 3])
    def test_random_numbers_are_by_seed_epoch_and_batch(self, workers):
        def epochs(number, seed=3):
            dataset = FastDataset(Noisy(), workers=number, seed=seed)
            return [[batch.numpy().tolist() for batch in dataset] for _ in range(2)]

        expected = epochs(2)
        assert epochs(workers) == expected
        assert expected[0] != expected[1]
        assert len({str(batch) for epoch in expected for batch in epoch}) == 12
        assert epochs(workers, seed=4) != expected

    def test_memory_maps_are_opened_and_not_sent(self, tmp_path):
        path = tmp_path / "numbers ü.bin"
        written = np.memmap(path, np.float32, "w+", shape=(4,))
        written[:] = [5, 6, 7, 8]
        written.flush()
        read = np.memmap(path, np.float32, "r", shape=(4,))
        got = [(float(x[0, 0]), bool(y[0])) for x, y in FastDataset(Large(read), workers=1)]
        assert got == [(5, True), (6, True), (7, True), (8, True)]

    def test_a_part_of_a_memory_map_is_that_part(self, tmp_path):
        whole = np.memmap(tmp_path / "numbers.bin", np.float32, "w+", shape=(8,))
        whole[:] = range(8)
        got = [float(x[0, 0]) for x, y in FastDataset(Large(whole[4:]), workers=1)]
        assert got == [4, 5, 6, 7]

    def test_what_is_changed_between_epochs_is_seen(self):
        source = Large(np.arange(4.0))
        dataset = FastDataset(source, workers=2)
        assert first_numbers(dataset) == [0, 1, 2, 3]
        source.array += 10
        assert first_numbers(dataset) == [10, 11, 12, 13]

    def test_two_iterators_at_a_time(self):
        dataset = FastDataset(Sequence(number=12), workers=2)
        pairs = [(int(a[0, 0]), int(b[0, 0])) for (a, _), (b, _) in zip(dataset, dataset, strict=True)]
        assert pairs == [(index, index) for index in range(12)]

    def test_iterators_that_are_dropped_take_nothing_with_them(self):
        dataset = FastDataset(Sequence(number=50), workers=2)
        for _ in range(20):
            assert int(next(iter(dataset))[0][0, 0]) == 0
        assert first_numbers(dataset) == [*range(50)]

    def test_they_stay_for_the_next_epoch_and_leave_with_the_dataset(self):
        def workers():
            # Others of this process, such as the tests' S3 server, may be there, too.
            return {one for one in psutil.Process().children() if "keras_turbo_worker" in " ".join(one.cmdline())}

        dataset = FastDataset(Sequence(number=50), workers=2)
        list(dataset)
        deadline = time.monotonic() + 60
        while len(begun := workers()) < 2 and time.monotonic() < deadline:
            list(dataset)  # the first worker can have served it all before the second was there
        list(dataset)
        assert workers() == begun
        assert len(begun) == 2
        # The leak guard finds those that stay.

    def test_what_the_system_refuses_is_an_error_and_no_wait(self, monkeypatch):
        source = Large(np.arange(20_000))
        dataset = FastDataset(source, workers=2)
        with monkeypatch.context() as patch:
            patch.setattr(pool, "WorkerProcess", no_more_files)
            with pytest.raises(process.WorkerError, match="Worker 1 of 2 could not be started: "):
                list(dataset)
        assert first_numbers(dataset) == [0, 1, 2, 3]
        # Now the workers are there, and the array must go to them once more.
        source.array = np.arange(10, 20_010)
        with monkeypatch.context() as patch:
            patch.setattr(messages, "Memory", no_more_files)
            with pytest.raises(process.WorkerError, match="arrays can't be copied .*open files"):
                list(dataset)
        assert first_numbers(dataset) == [10, 11, 12, 13]

    def test_a_result_for_which_there_is_no_memory_is_an_error(self, monkeypatch):
        dataset = FastDataset(Sequence(rows=10_000), workers=2)
        with monkeypatch.context() as patch:
            patch.setattr(messages.mmap, "mmap", no_more_files)
            with pytest.raises(process.WorkerError, match="There is no memory for batch 0 of Sequence"):
                list(dataset)

    @pytest.mark.slow
    def test_a_pydataset_of_keras(self, run_python, tmp_path):
        (tmp_path / "own_data.py").write_text(
            "import keras, numpy as np\n"
            "class Photos(keras.utils.PyDataset):\n"
            "    def __len__(self): return 5\n"
            "    def __getitem__(self, index): return np.full((2, 3), index), np.zeros(2)\n"
        )
        source = """
            import sys; sys.path.insert(0, sys.argv[1])
            import keras_turbo as kt
            from own_data import Photos
            data = kt.FastDataset(Photos(), workers=1)
            print([int(x[0, 0]) for x, y in data])
        """
        assert run_python(source, tmp_path) == "[0, 1, 2, 3, 4]\n"


class TestArguments:
    def test_batch_size_is_the_data_s_own(self):
        with pytest.raises(ValueError, match="Sequence makes batches itself.*batch_size=64"):
            FastDataset(Sequence(), batch_size=64)
        assert len(list(FastDataset(Sequence(), batch_size=None, workers=0))) == 6

    def test_drop_remainder(self):
        with pytest.raises(ValueError, match="drop_remainder=True has no meaning"):
            FastDataset(Sequence(), drop_remainder=True)

    def test_no_batch(self):
        with pytest.raises(ValueError, match="Sequence has no batch: its length is 0"):
            FastDataset(Sequence(number=0))

    def test_targets_beside_it(self):
        with pytest.raises(ValueError, match="can't be given beside a PyDataset"):
            FastDataset(Sequence(), np.zeros(3))

    def test_a_first_batch_that_fails(self):
        with pytest.raises(ValueError, match="(?s)Item 0 of Failing can't be made.*no batch for 0"):
            FastDataset(Failing(bad=[0]))

    def test_workers_of_other_data(self):
        with pytest.raises(ValueError, match="must be at least 1.*workers=0"):
            FastDataset(np.zeros((3, 1)), workers=0)

    def test_shuffle_of_an_endless_one(self):
        with pytest.raises(ValueError, match="Endless has no length"):
            FastDataset(Endless(), shuffle=True)

    def test_cache_of_an_endless_one(self):
        with pytest.raises(ValueError, match="PyDataset without a length has infinitely many"):
            FastDataset(Endless(), cache="memory")

    def test_a_local_class(self):
        class Local(Sequence):
            pass

        for workers in (0, 1):
            assert first_numbers(FastDataset(Local(), workers=workers)) == [*range(6)]

    def test_what_can_not_be_sent(self):
        source = Sequence()
        source.lock = threading.Lock()
        with pytest.raises(TypeError, match=r"Sequence can't be sent to worker processes.*workers=0"):
            FastDataset(source, workers=1)
        assert FastDataset(source, workers=0).workers == 0

    def test_the_default_is_not_cached_as_it_may_be_random(self):
        assert FastDataset(Sequence(), workers=0).stored_in is None

    def test_report_says_that_it_can_not(self):
        with pytest.raises(ValueError, match="Python"):
            FastDataset(Sequence(), workers=0).report()


class TestChoice:
    def chosen(self, monkeypatch, caplog, source, cores=4):
        monkeypatch.setattr(choice, "available_cores", lambda: cores)
        with caplog.at_level(logging.INFO, logger="keras_turbo"):
            dataset = FastDataset(source)
        (record,) = [one for one in caplog.records if one.name == "keras_turbo.data.workers.choice"]
        return dataset.workers, record.getMessage()

    def test_quick_batches_are_made_here(self, monkeypatch, caplog):
        number, message = self.chosen(monkeypatch, caplog, Sequence())
        assert number == 0
        assert "Sequence is read in this process: an item takes" in message

    def test_slow_ones_in_as_many_as_there_are_cores(self, monkeypatch, caplog):
        number, message = self.chosen(monkeypatch, caplog, Slow(number=1_000_000))
        assert number == 4
        assert "4 worker processes: an item takes" in message

    def test_one_core(self, monkeypatch, caplog):
        assert self.chosen(monkeypatch, caplog, Slow(number=1_000_000), cores=1)[0] == 0

    def test_short_epochs(self, monkeypatch, caplog):
        assert self.chosen(monkeypatch, caplog, Slow(number=5))[0] == 0

    def test_no_memory(self, monkeypatch, caplog):
        monkeypatch.setattr(choice, "free_memory_bytes", lambda: 3_000_000_000)
        assert self.chosen(monkeypatch, caplog, Slow(number=1_000_000))[0] == 2

    def test_what_can_not_be_sent(self, monkeypatch, caplog):
        source = Slow(number=1_000_000)
        source.lock = threading.Lock()
        number, message = self.chosen(monkeypatch, caplog, source)
        assert number == 0
        assert "can't be sent to worker processes" in message


def test_the_module_of_the_tests_imports_no_tensorflow(run_python):
    assert python_data.__file__
    source = "import sys, tests.data.python_data; print('tensorflow' in sys.modules)"
    assert run_python(source) == "False\n"
