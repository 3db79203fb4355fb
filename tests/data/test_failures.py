"""Examples that can't be loaded: an error with the path, or left out, listed, and counted right."""

from __future__ import annotations

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError, reason_of
from keras_turbo.data.images import RandomResizedCrop
from tests.data.epochs import batches_of
from tests.data.noise_images import write_image, write_images

NUM_FILES = 10
BATCH_SIZE = 3


def load(path: tf.Tensor) -> tf.Tensor:
    """A number from a file of four bytes."""
    data = tf.io.read_file(path)
    with tf.control_dependencies(
        [tf.debugging.assert_equal(tf.strings.length(data), 4, "the file has not four bytes")]
    ):
        return tf.reshape(tf.io.decode_raw(data, tf.float32), [])


@pytest.fixture
def make_files(tmp_path):
    """Makes ten files of which some are damaged, and gives their pattern."""

    def make(damaged=()) -> str:
        for index in range(NUM_FILES):
            content = b"bad" if index in damaged else np.float32(index).tobytes()
            (tmp_path / f"{index}.bin").write_bytes(content)
        return str(tmp_path / "*.bin")

    return make


def path_of(pattern: str, index: int) -> str:
    return str(Path(pattern).parent / f"{index}.bin")


def skipping(pattern: str, **options) -> FastDataset:
    return FastDataset.from_files(pattern, load, **{"batch_size": BATCH_SIZE, "on_error": "skip", **options})


def epoch_of(dataset: tf.data.Dataset) -> tuple[list[float], list[int]]:
    """The numbers of one epoch, and the sizes of its batches."""
    batches = [np.atleast_1d(batch) for batch in batches_of(dataset)]
    return [float(number) for batch in batches for number in batch], [len(batch) for batch in batches]


@pytest.mark.parametrize("text", ["the 'tag' isn't \"one\"", "größe 3 € 4\n(a\\b)"])
def test_the_reason_is_the_text_of_an_assertion(text):
    @tf.function
    def failing(is_right):
        tf.debugging.Assert(is_right, [text])

    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        failing(tf.constant(False))
    assert reason_of(error.value) == " ".join(text.split()) + "."


def skipped_indices(dataset: FastDataset) -> list[int]:
    return [int(Path(example.path).stem) for example in dataset.skipped]


DAMAGED = {
    "first and last": [0, 9],
    "in the middle": [4],
    "the first batch": [0, 1, 2],
    "the last batches": [6, 7, 8, 9],
    "all but one": [0, 1, 2, 3, 4, 5, 6, 8, 9],
}


def make_unsteady():
    """A function that fails once, on the file number 4, and then no more."""
    failures = []

    def check(path):
        if path.endswith(b"4.bin") and not failures:
            failures.append(path)
            raise OSError("the network is down")
        return np.float32(1.0)

    return lambda path: load(path) * tf.ensure_shape(tf.numpy_function(check, [path], tf.float32), [])


@pytest.mark.usefixtures("one_warning")
class TestSkip:
    @pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
    @pytest.mark.parametrize("cache", ["memory", False])
    def test_what_is_good_comes_in_order_in_full_batches(self, make_files, damaged, cache):
        dataset = skipping(make_files(damaged), cache=cache)
        good = [float(index) for index in range(NUM_FILES) if index not in damaged]
        sizes = [min(BATCH_SIZE, len(good) - start) for start in range(0, len(good), BATCH_SIZE)]
        assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        for _ in range(3):
            assert epoch_of(dataset) == (good, sizes)
            assert int(dataset.cardinality()) == len(sizes)
            assert skipped_indices(dataset) == damaged

    @pytest.mark.parametrize(
        ("cache", "damaged"), [("memory", [0, 9]), ("disk", [3, 4, 5]), (False, [3, 4, 5])], ids=str
    )
    def test_with_a_shuffle(self, make_files, tmp_path, damaged, cache):
        dataset = skipping(make_files(damaged), cache=cache, cache_dir=tmp_path / "cache", shuffle=True, seed=1)
        good = [float(index) for index in range(NUM_FILES) if index not in damaged]
        orders = []
        for _ in range(3):
            numbers, sizes = epoch_of(dataset)
            assert sorted(numbers) == good
            assert sizes == [BATCH_SIZE] * (len(good) // BATCH_SIZE) + [len(good) % BATCH_SIZE] * bool(len(good) % 3)
            orders.append(tuple(numbers))
        assert len(set(orders)) == 3
        assert skipped_indices(dataset) == damaged

    @pytest.mark.parametrize(("cache", "damaged"), [("memory", [9]), (False, [1, 8])], ids=str)
    def test_with_the_remainder_dropped(self, make_files, damaged, cache):
        dataset = skipping(make_files(damaged), cache=cache, drop_remainder=True)
        good = [float(index) for index in range(NUM_FILES) if index not in damaged]
        whole = len(good) // BATCH_SIZE * BATCH_SIZE
        for _ in range(2):
            assert epoch_of(dataset) == (good[:whole], [BATCH_SIZE] * (whole // BATCH_SIZE))
        assert int(dataset.cardinality()) == whole // BATCH_SIZE
        assert dataset.element_spec.shape.as_list() == [BATCH_SIZE]
        assert [Path(path).stem for path in dataset.file_paths] == [str(int(number)) for number in good[:whole]]

    @pytest.mark.parametrize(("cache", "damaged"), [("memory", [0, 9]), (False, [3, 4, 5])], ids=str)
    def test_one_by_one(self, make_files, damaged, cache):
        dataset = skipping(make_files(damaged), cache=cache, batch_size=None)
        good = [float(index) for index in range(NUM_FILES) if index not in damaged]
        for _ in range(2):
            assert epoch_of(dataset) == (good, [1] * len(good))
        assert int(dataset.cardinality()) == len(good)
        assert skipped_indices(dataset) == damaged

    def test_on_disk_what_is_good_is_kept_for_the_next_process(self, make_files, tmp_path):
        pattern = make_files([2, 3])
        options = {"cache": "disk", "cache_dir": tmp_path / "cache"}
        dataset = skipping(pattern, **options)
        good = epoch_of(dataset)
        dataset._recipe.store.save()
        again = skipping(pattern, **options)
        assert again._recipe.store.num_filled == 8
        # It finds out for itself what fails; the warning is given once by each of the two datasets.
        with pytest.warns(UserWarning, match="An example was left out"):
            assert epoch_of(again) == good
        assert skipped_indices(again) == [2, 3]

    def test_reasons_and_labels(self, make_files):
        pattern = make_files([1, 7])
        dataset = skipping(pattern, labels=list(range(100, 110)), label_mode="raw")
        with pytest.raises(ValueError, match="can't be known before one epoch is through.*Iterate once"):
            _ = dataset.labels
        with pytest.raises(ValueError, match="can't be known before one epoch is through"):
            _ = dataset.file_paths
        labels = np.concatenate([batch[1] for batch in batches_of(dataset)])
        assert dataset.labels.tolist() == labels.tolist() == [100, 102, 103, 104, 105, 106, 108, 109]
        assert len(dataset.file_paths) == 8
        assert [example.path for example in dataset.skipped] == [path_of(pattern, 1), path_of(pattern, 7)]
        for example in dataset.skipped:
            assert "the file has not four bytes" in example.reason
            # What is in it is for a person: no names of graph nodes, no stack.
            for noise in ("{{", "[Op:", "Traceback", "node", "Detected at"):
                assert noise not in example.reason

    def test_left_early_an_epoch_says_nothing_of_the_rest(self, make_files):
        dataset = skipping(make_files([0, 9]), workers=1)
        next(iter(dataset))
        assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        assert skipped_indices(dataset)[:1] == [0]
        assert len(epoch_of(dataset)[0]) == 8
        assert int(dataset.cardinality()) == 3

    def test_fit_sees_the_right_number_of_steps(self, make_files):
        dataset = skipping(make_files([0, 5, 6, 9]), labels=np.zeros(NUM_FILES), batch_size=2).map(
            lambda x, y: (x[:, None], y[:, None])
        )
        steps = []
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
        model.fit(dataset, epochs=2, verbose=0, callbacks=[record])
        assert steps == [0, 1, 2, 0, 1, 2]

    def test_a_file_deleted_after_construction(self, make_files):
        pattern = make_files()
        dataset = skipping(pattern)
        Path(path_of(pattern, 4)).unlink()
        assert epoch_of(dataset)[0] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        (example,) = dataset.skipped
        assert example.path == path_of(pattern, 4)
        assert "No such file" in example.reason

    def test_a_map_fn_that_fails(self, make_files):
        def reciprocal(x):
            return tf.debugging.check_numerics(1 / (x - 3), "divided by nothing")

        dataset = skipping(make_files(), map_fn=reciprocal)
        for _ in range(2):
            assert len(epoch_of(dataset)[0]) == 9
        assert skipped_indices(dataset) == [3]
        assert "divided by nothing" in dataset.skipped[0].reason

    @pytest.mark.parametrize("cache", ["memory", False])
    def test_an_augment_fn_that_fails(self, make_files, cache):
        def noisy(x):
            return tf.debugging.check_numerics(x / (x - 3) + tf.random.uniform([]), "divided by nothing")

        dataset = skipping(make_files(), augment_fn=noisy, cache=cache)
        for _ in range(3):
            assert len(epoch_of(dataset)[0]) == 9
        assert skipped_indices(dataset) == [3]
        assert "divided by nothing" in dataset.skipped[0].reason

    @pytest.mark.parametrize("cache", ["memory", False])
    def test_an_augment_fn_that_fails_in_a_later_epoch(self, make_files, cache):
        """It is random, so it may; the store is complete by then."""
        calls = []

        def check(x):
            calls.append(x)
            if x == 3 and calls.count(3) > 1:
                raise ValueError("bad luck")
            return x

        def unlucky(x):
            return tf.ensure_shape(tf.numpy_function(check, [x], tf.float32), [])

        dataset = skipping(make_files(), augment_fn=unlucky, cache=cache)
        assert len(epoch_of(dataset)[0]) == 10
        assert int(dataset.cardinality()) == 4
        assert len(epoch_of(dataset)[0]) == 9
        assert int(dataset.cardinality()) == 3
        assert "bad luck" in dataset.skipped[0].reason

    def test_shards_share_what_they_know(self, make_files):
        dataset = skipping(make_files([0, 1, 2]))
        even, odd = dataset.shard(2, 0), dataset.shard(2, 1)
        assert epoch_of(even)[0] == [4, 6, 8]
        # Only its own examples are known to it.
        assert int(even.cardinality()) == 1
        assert int(odd.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        assert epoch_of(odd)[0] == [3, 5, 7, 9]
        assert int(odd.cardinality()) == 2
        assert int(dataset.cardinality()) == 3
        assert skipped_indices(dataset) == skipped_indices(even) == [0, 1, 2]

    def test_shards_of_a_shuffle_have_no_fixed_number(self, make_files):
        part = skipping(make_files([0, 1, 2]), shuffle=True, seed=0).shard(2, 0)
        for _ in range(4):
            assert 2 <= len(epoch_of(part)[0]) <= 5
        assert int(part.cardinality()) == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize("name", ["map_fn", "augment_fn"])
def test_arrays_can_fail_in_a_function(name):
    def reciprocal(x):
        return tf.debugging.check_numerics(1 / x, "divided by nothing")

    dataset = FastDataset(np.array([1, 0, 2, 4], "float32"), batch_size=2, on_error="skip", **{name: reciprocal})
    assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    with pytest.warns(UserWarning, match="the example at index 1: .*divided by nothing"):
        assert epoch_of(dataset) == ([1.0, 0.5, 0.25], [2, 1])
    assert epoch_of(dataset) == ([1.0, 0.5, 0.25], [2, 1])
    assert int(dataset.cardinality()) == 2


def test_without_failures_nothing_is_warned_of(make_files):
    dataset = skipping(make_files())
    for _ in range(2):
        assert epoch_of(dataset) == ([float(index) for index in range(NUM_FILES)], [3, 3, 3, 1])
    assert dataset.skipped == []
    assert int(dataset.cardinality()) == 4


@pytest.mark.parametrize("cache", ["memory", "disk", False])
@pytest.mark.filterwarnings("ignore:An example was left out")
def test_if_all_fail_there_is_an_error_and_an_end(make_files, tmp_path, cache):
    pattern = make_files(range(NUM_FILES))
    dataset = skipping(pattern, cache=cache, cache_dir=tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(
            ExampleLoadError, match=r"All 10 examples failed to load.*The first: .*0\.bin: .*four bytes"
        ):
            batches_of(dataset)
    assert skipped_indices(dataset) == list(range(NUM_FILES))
    assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY


class TestRaise:
    @pytest.mark.parametrize(
        ("cache", "batch_size", "damaged"),
        [("memory", BATCH_SIZE, [0]), ("memory", None, [9]), (False, BATCH_SIZE, [9]), (False, None, [4, 5])],
        ids=str,
    )
    def test_the_path_is_in_the_error(self, make_files, damaged, cache, batch_size):
        pattern = make_files(damaged)
        dataset = FastDataset.from_files(pattern, load, batch_size=batch_size, cache=cache)
        for _ in range(2):
            with pytest.raises(ExampleLoadError) as caught:
                batches_of(dataset)
            text = str(caught.value)
            assert f"{path_of(pattern, damaged[0])}: " in text
            assert "the file has not four bytes" in text
            assert "on_error='skip' leaves such examples out" in text
        assert dataset.skipped == []
        assert int(dataset.cardinality()) == (10 if batch_size is None else 4)

    def test_what_comes_before_is_yielded(self, make_files):
        iterator = FastDataset.from_files(make_files([7]), load, batch_size=BATCH_SIZE).as_numpy_iterator()
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
        with pytest.raises(ExampleLoadError, match=r"7\.bin"):
            next(iterator)

    def test_the_path_reaches_fit(self, make_files):
        pattern = make_files([7])
        dataset = FastDataset.from_files(pattern, load, labels=np.zeros(NUM_FILES), batch_size=2, shuffle=True, seed=0)
        model = keras.Sequential([keras.layers.Lambda(lambda x: x[:, None]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        with pytest.raises(Exception, match=r"7\.bin.*the file has not four bytes"):
            model.fit(dataset, epochs=2, verbose=0)

    def test_a_file_deleted_after_construction(self, make_files):
        pattern = make_files()
        dataset = FastDataset.from_files(pattern, load, batch_size=BATCH_SIZE)
        Path(path_of(pattern, 4)).unlink()
        with pytest.raises(ExampleLoadError, match=r"4\.bin.*No such file"):
            batches_of(dataset)

    def test_a_store_does_not_need_its_files_any_more(self, make_files, tmp_path):
        pattern = make_files()
        dataset = FastDataset.from_files(pattern, load, batch_size=BATCH_SIZE, cache="memory")
        first = epoch_of(dataset)
        for path in tmp_path.glob("*.bin"):
            path.unlink()
        assert epoch_of(dataset) == first

    @pytest.mark.parametrize("name", ["map_fn", "augment_fn"])
    @pytest.mark.parametrize("cache", ["memory", False])
    def test_functions_that_fail_name_the_example(self, make_files, name, cache):
        def fail(x):
            return tf.debugging.check_numerics(x / (x - 3) + tf.zeros_like(x), "divided by nothing")

        dataset = FastDataset.from_files(make_files(), load, batch_size=BATCH_SIZE, cache=cache, **{name: fail})
        for _ in range(2):
            with pytest.raises(ExampleLoadError, match=r"3\.bin: .*divided by nothing"):
                batches_of(dataset)

    def test_an_augment_fn_that_fails_on_stored_examples_names_them(self):
        def fail(x):
            return tf.debugging.check_numerics(1 / x + tf.random.uniform([]), "divided by nothing")

        dataset = FastDataset(np.array([1.0, 0.0], "float32"), augment_fn=fail)
        with pytest.raises(ExampleLoadError, match="the example at index 1: .*divided by nothing"):
            batches_of(dataset)
        in_store = FastDataset(tf.data.Dataset.from_tensor_slices([1.0, 0.0]), augment_fn=fail, cache="memory")
        with pytest.raises(ExampleLoadError, match=r"element 1 of the tf.data.Dataset: .*divided by nothing"):
            batches_of(in_store)

    def test_python_errors_are_named(self, make_files):
        def check(path):
            if path.endswith(b"3.bin"):
                raise KeyError("no such key")
            return np.float32(1.0)

        dataset = FastDataset.from_files(
            make_files(), lambda path: tf.ensure_shape(tf.numpy_function(check, [path], tf.float32), [])
        )
        with pytest.raises(ExampleLoadError, match=r"3\.bin: .*no such key"):
            batches_of(dataset)

    def test_what_fails_once_is_tried_again(self, make_files):
        dataset = FastDataset.from_files(make_files(), make_unsteady(), batch_size=BATCH_SIZE)
        assert epoch_of(dataset)[0] == [float(index) for index in range(NUM_FILES)]

    def test_a_long_message_is_cut(self, make_files):
        def fail(x):
            with tf.control_dependencies([tf.debugging.Assert(x < 3, ["x" * 5000])]):
                return tf.identity(x)

        dataset = FastDataset.from_files(make_files(), load, map_fn=fail, on_error="skip")
        with pytest.warns(UserWarning, match="An example was left out"):
            batches_of(dataset)
        assert len(dataset.skipped) == 7
        assert len(dataset.skipped[0].reason) < 400

    def test_a_mended_file_is_read_again(self, make_files):
        pattern = make_files([3])
        dataset = FastDataset.from_files(pattern, load, batch_size=BATCH_SIZE)
        with pytest.raises(ExampleLoadError):
            batches_of(dataset)
        Path(path_of(pattern, 3)).write_bytes(np.float32(3).tobytes())
        assert epoch_of(dataset)[0] == [float(index) for index in range(NUM_FILES)]


class TestImages:
    @pytest.fixture
    def photos(self, tmp_path) -> Path:
        """Case 1: ten JPEGs, of which one is cut in half and one is empty."""
        folder = tmp_path / "photos"
        write_images(folder, [f"{'ab'[number % 2]}/{number}.jpg" for number in range(10)])
        whole = (folder / "a" / "4.jpg").read_bytes()
        (folder / "a" / "4.jpg").write_bytes(whole[: len(whole) // 2])
        (folder / "b" / "7.jpg").write_bytes(b"")
        return folder

    @pytest.mark.parametrize("cache", ["memory", False])
    @pytest.mark.usefixtures("one_warning")
    def test_damaged_ones_are_skipped(self, photos, cache):
        dataset = FastDataset.from_image_folder(
            photos, image_size=(8, 8), batch_size=2, cache=cache, on_error="skip", shuffle=True, seed=0
        )
        for _ in range(2):
            assert [len(images) for images, _ in batches_of(dataset)] == [2, 2, 2, 2]
        assert [Path(example.path).name for example in dataset.skipped] == ["4.jpg", "7.jpg"]
        cut, empty = (example.reason for example in dataset.skipped)
        assert "0 bytes" in empty
        assert cut != empty

    def test_a_damaged_one_is_named(self, photos):
        dataset = FastDataset.from_image_folder(photos, image_size=(8, 8), batch_size=2, shuffle=False)
        with pytest.raises(ExampleLoadError, match=r"photos/a/4\.jpg: "):
            batches_of(dataset)

    def test_a_random_crop_of_a_damaged_one(self, photos):
        shutil.rmtree(photos / "a")
        write_image(photos / "a" / "0.jpg", size=(40, 40))
        dataset = FastDataset.from_image_folder(
            photos,
            image_size=(8, 8),
            batch_size=2,
            random_resized_crop=RandomResizedCrop(),
            on_error="skip",
            shuffle=False,
        )
        with pytest.warns(UserWarning, match=r"7\.jpg"):
            sizes = [len(images) for images, _ in batches_of(dataset)]
        assert sizes == [2, 2, 1]
