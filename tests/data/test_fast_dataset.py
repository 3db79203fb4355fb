"""FastDataset as its users meet it: given to fit, evaluate and predict, iterated, distributed, refused."""

from __future__ import annotations

import collections
import gc
import itertools
import warnings
import weakref
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.engine.order import WHOLE_PERMUTATION_LIMIT
from tests.data.garbage import goes

pytestmark = pytest.mark.compatibility


def batches_of(dataset):
    return list(dataset.as_numpy_iterator())


def bytes_of(dataset) -> bytes:
    return b"".join(leaf.tobytes() for batch in batches_of(dataset) for leaf in tf.nest.flatten(batch))


def linear_model(features: int = 4, classes: int = 3) -> keras.Model:
    model = keras.Sequential([keras.Input((features,)), keras.layers.Dense(classes)])
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], jit_compile=False
    )
    return model


@pytest.fixture
def images(tmp_path):
    """Twelve noisy JPEGs of 10x8 pixels in two class folders."""
    generator = np.random.default_rng(0)
    for index in range(12):
        folder = tmp_path / "photos" / ("cats" if index % 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (10, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02d}.jpg", quality=95)
    return tmp_path / "photos"


class TestFit:
    def test_arrays_train_as_fit_trains_them(self):
        x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
        y = np.arange(50) % 3
        weights = np.linspace(0, 2, 50, dtype="float32")
        first, second = linear_model(), linear_model()
        second.set_weights(first.get_weights())
        expected = first.fit(x, y, sample_weight=weights, batch_size=8, epochs=3, shuffle=False, verbose=0)
        history = second.fit(FastDataset(x, y, weights, batch_size=8), epochs=3, verbose=0)
        for name, values in expected.history.items():
            assert history.history[name] == pytest.approx(values, rel=1e-5)
        for ours, theirs in zip(second.get_weights(), first.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)

    def test_dicts_of_inputs_and_outputs(self):
        left, right = keras.Input((2,), name="left"), keras.Input((3,), name="right")
        hidden = keras.layers.Concatenate()([left, right])
        outputs = {"a": keras.layers.Dense(1, name="a")(hidden), "b": keras.layers.Dense(2, name="b")(hidden)}
        model = keras.Model({"left": left, "right": right}, outputs)
        model.compile("sgd", {"a": "mse", "b": "mse"})
        x = {"left": np.ones((10, 2), "float32"), "right": np.ones((10, 3), "float32")}
        y = {"a": np.zeros((10, 1), "float32"), "b": np.zeros((10, 2), "float32")}
        dataset = FastDataset(x, y, batch_size=4, shuffle=True, seed=0)
        history = model.fit(dataset, epochs=2, verbose=0, validation_data=dataset)
        assert history.history["loss"][1] < history.history["loss"][0]
        assert {name: part.shape for name, part in model.predict(FastDataset(x, batch_size=4), verbose=0).items()} == {
            "a": (10, 1),
            "b": (10, 2),
        }

    def test_predict_with_a_tuple_of_inputs_is_not_taken_for_targets(self):
        one, two = keras.Input((2,)), keras.Input((2,))
        model = keras.Model([one, two], keras.layers.Subtract()([one, two]))
        x = (np.full((5, 2), 3.0, "float32"), np.full((5, 2), 1.0, "float32"))
        np.testing.assert_array_equal(model.predict(FastDataset(x, batch_size=2), verbose=0), np.full((5, 2), 2.0))

    def test_progress_bar_has_a_length_with_class_weight_too(self, capsys):
        x, y = np.zeros((20, 4), "float32"), np.zeros(20, "int32")
        linear_model().fit(FastDataset(x, y, batch_size=4), class_weight={0: 1.0, 1: 2.0, 2: 1.0}, verbose=1)
        assert "1/5" in capsys.readouterr().out

    def test_fit_counts_an_epoch_once(self):
        """Keras makes an iterator more at each epoch's end; it must not use up an order."""
        seen = []

        class Spy(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(1)

            def call(self, x):
                tf.numpy_function(lambda rows: seen.append(rows[:, 0].copy()), [x], [])
                return self.dense(x)

        x = np.arange(10, dtype="float32")[:, None]
        model = Spy()
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(FastDataset(x, x, batch_size=5, shuffle=True, seed=3), epochs=3, verbose=0)
        expected = FastDataset(x, x, batch_size=5, shuffle=True, seed=3)
        orders = [np.concatenate([batch[0][:, 0] for batch in batches_of(expected)]) for _ in range(3)]
        np.testing.assert_array_equal(np.concatenate(seen[-6:]), np.concatenate(orders))

    def test_validation_steps_beyond_the_data(self):
        """Case 10: three validation batches, five steps asked for: three values over three batches each."""
        x, y = np.random.default_rng(0).normal(size=(12, 4)).astype("float32"), np.arange(12) % 3
        model = linear_model()
        model.optimizer.learning_rate = 0.0
        validation = FastDataset(x, y, batch_size=4)
        with pytest.warns(UserWarning, match="ran out of data"):
            history = model.fit(
                FastDataset(x, y, batch_size=4), validation_data=validation, validation_steps=5, epochs=3, verbose=0
            )
        expected = model.evaluate(x, y, batch_size=4, verbose=0)[0]
        assert history.history["val_loss"] == pytest.approx([expected] * 3, rel=1e-5)

    def test_epoch_loss_weighs_a_short_last_batch(self):
        """Case 11: losses 10, 10, 9 in batches of 2 and 1."""
        model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
        model.compile("sgd", keras.losses.MeanAbsoluteError(), jit_compile=False)
        x = np.array([[10.0], [10.0], [9.0]], "float32")
        assert model.evaluate(FastDataset(x, np.zeros_like(x), batch_size=2), verbose=0) == pytest.approx(29 / 3)

    def test_class_weight_as_with_arrays(self):
        """Case 12."""
        y = np.array([0, 1, 2, 2])
        x = np.ones((4, 2), "float32")

        def loss(class_weight, *data, **keywords):
            model = keras.Sequential(
                [keras.Input((2,)), keras.layers.Dense(3, activation="softmax", kernel_initializer="zeros")]
            )
            model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", jit_compile=False)
            history = model.fit(*data, class_weight=class_weight, verbose=0, **keywords)
            return history.history["loss"][0]

        # Keras itself fails on a dataset if the highest classes are not named.
        for class_weight in ({0: 2.0}, {0: 2.0, 1: 1.0, 2: 1.0}, {1: 0.5}):
            from_arrays = loss(class_weight, x, y, batch_size=4)
            assert loss(class_weight, FastDataset(x, y, batch_size=4)) == pytest.approx(from_arrays, rel=1e-6)
        assert loss({0: 2.0}, FastDataset(x, y, batch_size=4)) == pytest.approx(1.3733, abs=1e-4)

    @pytest.mark.parametrize("shape", [(4, 1), (4, 3)])
    def test_class_weight_with_labels_of_two_axes(self, shape):
        classes = np.array([0, 1, 2, 2]) if shape[1] == 3 else np.array([0, 1, 1, 0])
        y = np.eye(3, dtype="float32")[classes] if shape[1] == 3 else classes[:, None].astype("float32")
        weighted = FastDataset(np.ones((4, 2), "float32"), y, batch_size=4)
        seen = []

        class Spy(keras.losses.Loss):
            def call(self, y_true, y_pred):
                return keras.ops.mean(0.0 * y_pred, axis=-1)

            def __call__(self, y_true, y_pred, sample_weight=None):
                tf.numpy_function(lambda weights: seen.append(weights), [sample_weight], [])
                return super().__call__(y_true, y_pred, sample_weight)

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(shape[1])])
        model.compile("sgd", Spy(), jit_compile=False)
        model.fit(weighted, class_weight={0: 2.0}, verbose=0)
        np.testing.assert_array_equal(np.ravel(seen[-1]), np.where(classes == 0, 2.0, 1.0))

    def test_under_a_mirrored_strategy(self, two_cpu_strategy):
        x = np.arange(40, dtype="float32").reshape(10, 4)
        with two_cpu_strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", "mae")
            dataset = FastDataset(x, np.zeros((10, 1), "float32"), batch_size=4, shuffle=True, seed=1)
        model.fit(dataset, epochs=2, verbose=0)
        model.set_weights([np.ones((4, 1)), np.zeros(1)])
        assert model.evaluate(dataset, verbose=0) == pytest.approx(x.sum(axis=1).mean(), rel=1e-5)
        predictions = model.predict(FastDataset(x, batch_size=4), verbose=0)
        np.testing.assert_allclose(predictions[:, 0], x.sum(axis=1), rtol=1e-6)


class TestTfData:
    def test_is_a_dataset_and_takes_its_methods(self):
        dataset = FastDataset(np.arange(10), batch_size=4)
        assert isinstance(dataset, tf.data.Dataset)
        assert len(dataset) == 3
        assert dataset.element_spec == tf.TensorSpec([None], tf.int64)
        doubled = dataset.unbatch().map(lambda x: x * 2).filter(lambda x: x > 4).batch(3).repeat(2)
        np.testing.assert_array_equal(np.concatenate(batches_of(doubled)), [*range(6, 20, 2)] * 2)
        assert int(dataset.map(lambda x: x).cardinality()) == 3
        zipped = tf.data.Dataset.zip((dataset, dataset))
        for left, right in batches_of(zipped):
            np.testing.assert_array_equal(left, right)

    @pytest.mark.parametrize("drop_remainder", [False, True])
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("how", ["arrays", "mapped", "augmented", "one by one", "not cached"])
    @pytest.mark.parametrize(("count", "batch_size"), [(1, 1), (7, 3), (300, 2)])
    def test_every_example_once(self, count, batch_size, how, shuffle, drop_remainder):
        options = {
            "arrays": {},
            "mapped": {"map_fn": lambda x: x + 0},
            "augmented": {"augment_fn": lambda x: x + 0},
            "one by one": {"batch_size": None, "drop_remainder": False},
            "not cached": {"map_fn": lambda x: x + 0, "cache": False},
        }[how]
        options = {"batch_size": batch_size, "shuffle": shuffle, "drop_remainder": drop_remainder, "seed": 5} | options
        dataset = FastDataset(np.arange(count), **options)
        whole = count // batch_size * batch_size if options["drop_remainder"] else count
        for _ in range(2):
            got = batches_of(dataset)
            assert len(got) == len(dataset)
            rows = np.concatenate([np.atleast_1d(batch) for batch in got]) if got else np.array([], int)
            assert len(rows) == whole == len(np.unique(rows))
            if not shuffle:
                np.testing.assert_array_equal(rows, np.arange(whole))
        if options["drop_remainder"]:
            assert dataset.element_spec.shape[0] == batch_size

    def test_no_warning_and_no_state_left_by_building_one(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            FastDataset(np.arange(10), np.arange(10), map_fn=lambda x, y: (x, y), shuffle=True, seed=0)


class TestOrder:
    def test_two_builds_agree_to_the_byte(self, images):
        """Case 6, with decoding, augmentation and shuffling in parallel."""

        def build(seed):
            return FastDataset.from_image_folder(
                images,
                image_size=(6, 6),
                batch_size=5,
                shuffle=True,
                seed=seed,
                map_fn=lambda image: tf.cast(image, tf.float32),
                augment_fn=lambda image: tf.image.random_flip_left_right(image) + tf.random.normal([6, 6, 3]),
            )

        one, same, other = build(7), build(7), build(8)
        epochs = [bytes_of(one), bytes_of(one)]
        assert epochs == [bytes_of(same), bytes_of(same)]
        assert epochs[0] != epochs[1]
        assert bytes_of(other) != epochs[0]

    def test_the_cache_changes_nothing(self, images, tmp_path):
        def build(cache):
            return FastDataset.from_image_folder(
                images,
                image_size=(6, 6),
                batch_size=5,
                shuffle=True,
                seed=7,
                augment_fn=lambda image, seed: tf.image.stateless_random_flip_left_right(image, seed),
                cache=cache,
                cache_dir=tmp_path / "cache",
            )

        in_memory, on_disk, nowhere = build("memory"), build("disk"), build(False)
        assert (in_memory.stored_in, on_disk.stored_in, nowhere.stored_in) == ("memory", "disk", None)
        for _ in range(3):
            assert bytes_of(in_memory) == bytes_of(on_disk) == bytes_of(nowhere)

    def test_keras_seed_decides_where_none_is_given(self):
        def build():
            keras.utils.set_random_seed(11)
            return FastDataset(np.arange(30), shuffle=True)

        one, same = build(), build()
        assert one.seed == same.seed
        assert bytes_of(one) == bytes_of(same)

    def test_reshuffling_can_be_turned_off(self):
        dataset = FastDataset(np.arange(30), shuffle=True, seed=0, reshuffle_each_epoch=False)
        assert bytes_of(dataset) == bytes_of(dataset) != np.arange(30).tobytes()

    def test_large_orders_are_permutations(self):
        count = WHOLE_PERMUTATION_LIMIT + 10
        rows = np.concatenate(batches_of(FastDataset(np.arange(count), batch_size=1000, shuffle=True, seed=0)))
        np.testing.assert_array_equal(np.sort(rows), np.arange(count))
        assert np.count_nonzero(rows == np.arange(count)) < 20

    def test_a_look_at_the_data_takes_one_epoch(self):
        dataset = FastDataset(np.arange(30), shuffle=True, seed=0, batch_size=30)
        next(iter(dataset))
        again = FastDataset(np.arange(30), shuffle=True, seed=0, batch_size=30)
        first, second = bytes_of(again), bytes_of(again)
        assert first != second == bytes_of(dataset)

    def test_shards_are_disjoint_complete_and_keep_the_store(self, images):
        whole = FastDataset.from_image_folder(images, image_size=(4, 4), batch_size=3, shuffle=True, seed=0)
        parts = [whole.shard(5, index) for index in range(5)]
        for _ in range(2):
            images_seen = [image.tobytes() for part in parts for batch, _ in batches_of(part) for image in batch]
            assert len(images_seen) == len(set(images_seen)) == 12
        assert [len(part) for part in parts] == [1, 1, 1, 1, 1]
        with pytest.raises(ValueError, match="would be empty"):
            whole.shard(13, 12)
        with pytest.raises(ValueError, match="num_shards=5, index=5"):
            whole.shard(5, 5)

    @pytest.mark.parametrize(
        "options", [{}, {"cache": False}, {"augment_fn": lambda x, y: (x + 0, y)}, {"on_error": "skip"}]
    )
    def test_shards_with_equally_many_batches(self, images, options):
        options = {"image_size": (4, 4), "batch_size": 2, "shuffle": True, "seed": 0, **options}
        whole = FastDataset.from_image_folder(images, **options)
        for remainder, number in (("drop", 2), ("fill", 3)):
            parts = [whole.shard(5, index, remainder=remainder) for index in range(5)]
            for _ in range(3):
                epochs = [[image.tobytes() for batch, _ in batches_of(part) for image in batch] for part in parts]
                assert [len(images_seen) for images_seen in epochs] == [number] * 5
                seen = collections.Counter(itertools.chain.from_iterable(epochs))
                assert sorted(seen.values()) == ([1] * 10 if remainder == "drop" else [1] * 9 + [2] * 3)
        with pytest.raises(ValueError, match="would be empty"):
            whole.shard(13, 0, remainder="drop")
        with pytest.raises(ValueError, match="`remainder` must be one of"):
            whole.shard(2, 0, remainder="pad")


class TestImages:
    def test_damaged_files_are_skipped_and_listed(self, tmp_path):
        """Case 1."""
        for index in range(10):
            Image.new("RGB", (8, 8), (index * 20, 0, 0)).save(tmp_path / f"{index}.jpg")
        (tmp_path / "3.jpg").write_bytes((tmp_path / "3.jpg").read_bytes()[:300])
        (tmp_path / "6.jpg").write_bytes(b"")
        options = {"labels": None, "image_size": (8, 8), "batch_size": 2, "shuffle": False}
        dataset = FastDataset.from_image_folder(tmp_path, on_error="skip", **options)
        assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        with pytest.warns(UserWarning, match="3.jpg") as caught:
            epochs = [[len(batch) for batch in batches_of(dataset)] for _ in range(2)]
        assert len(caught) == 1
        assert epochs == [[2, 2, 2, 2]] * 2
        assert int(dataset.cardinality()) == 4
        assert [skipped.path for skipped in dataset.skipped] == [str(tmp_path / "3.jpg"), str(tmp_path / "6.jpg")]
        assert "empty" in dataset.skipped[1].reason
        assert all(len(skipped.reason) > 10 for skipped in dataset.skipped)
        with pytest.raises(ExampleLoadError, match="3.jpg"):
            batches_of(FastDataset.from_image_folder(tmp_path, on_error="raise", **options))

    def test_kinds_by_content(self, tmp_path):
        """Case 2."""
        red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
        red.save(tmp_path / "a.jpg", format="JPEG")
        red.save(tmp_path / "b.jpg", format="PNG")
        red.save(tmp_path / "c.jpg", format="GIF", save_all=True, append_images=[blue])
        dataset = FastDataset.from_image_folder(tmp_path, labels=None, image_size=(8, 8), batch_size=3, shuffle=False)
        assert dataset.element_spec.shape.as_list() == [None, 8, 8, 3]
        (batch,) = batches_of(dataset)
        assert batch.shape == (3, 8, 8, 3)
        assert batch.dtype == np.uint8
        np.testing.assert_allclose(batch, np.broadcast_to(np.array([255, 0, 0]), (3, 8, 8, 3)), atol=2)

    def test_endings_in_capitals_and_webp(self, tmp_path):
        """Case 3."""
        folder = tmp_path / "class"
        folder.mkdir()
        for index in range(10):
            name = f"{index}.JPG" if index < 6 else f"{index}.webp"
            Image.new("RGB", (8, 8), "green").save(folder / name, format="JPEG" if index < 6 else "WEBP")
        (folder / ".DS_Store").write_bytes(b"Bud1")
        (folder / ".hidden.jpg").write_bytes(b"no image")
        dataset = FastDataset.from_image_folder(tmp_path, image_size=(8, 8), shuffle=False)
        assert sum(len(images) for images, _ in batches_of(dataset)) == 10

    def test_a_store_left_half_way_is_completed_and_a_stale_one_rebuilt(self, tmp_path):
        """Case 4."""
        folder = tmp_path / "photos"
        folder.mkdir()
        for index in range(5):
            Image.new("L", (4, 4), index).save(folder / f"{index}.png")

        def build():
            return FastDataset.from_image_folder(
                folder,
                labels=None,
                channels=1,
                image_size=(4, 4),
                batch_size=1,
                cache="disk",
                cache_dir=tmp_path / "cache",
                shuffle=False,
            )

        def pixels(dataset):
            return [int(batch[0, 0, 0, 0]) for batch in batches_of(dataset)]

        dataset = build()
        assert pixels(dataset.take(2)) == [0, 1]
        assert pixels(dataset) == [0, 1, 2, 3, 4]
        Image.new("L", (4, 4), 99).save(folder / "2.png")
        assert pixels(build()) == [0, 1, 99, 3, 4]
        assert pixels(build()) == [0, 1, 99, 3, 4]

    @pytest.mark.parametrize("cache", ["memory", "disk"])
    def test_augmentation_is_new_each_epoch_and_decoding_is_not(self, tmp_path, cache):
        """Case 5: three epochs over six files decode six times."""
        for index in range(6):
            (tmp_path / f"{index}.txt").write_text(str(index))
        decoded = []

        def read(path):
            decoded.append(path)
            return np.float32(Path(path.decode()).read_text())

        def load(path):
            return tf.ensure_shape(tf.numpy_function(read, [path], tf.float32), [])

        keras.utils.set_random_seed(0)
        dataset = FastDataset.from_files(
            str(tmp_path / "*.txt"),
            load,
            augment_fn=lambda x: x + tf.random.normal([]),
            batch_size=2,
            cache=cache,
            cache_dir=tmp_path / "cache",
        )
        epochs = [np.concatenate(batches_of(dataset)) for _ in range(3)]
        assert len(decoded) == 6
        assert len(np.unique(np.stack(epochs))) == 18

    def test_labels_agree_with_evaluate(self, images):
        """Case 7."""
        dataset = FastDataset.from_image_folder(images, image_size=(6, 6), batch_size=5, shuffle=False)
        model = keras.Sequential([keras.Input((6, 6, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], jit_compile=False
        )
        _, accuracy = model.evaluate(dataset, verbose=0)
        predicted = model.predict(dataset, verbose=0).argmax(axis=1)
        assert accuracy == pytest.approx(np.mean(predicted == dataset.labels))
        for label, path in zip(dataset.labels, dataset.file_paths, strict=True):
            assert f"/{dataset.class_names[label]}/" in path
        shuffled = FastDataset.from_image_folder(images, image_size=(6, 6), shuffle=True, seed=0)
        with pytest.raises(ValueError, match="no fixed order"):
            _ = shuffled.labels
        fixed = FastDataset.from_image_folder(
            images,
            image_size=(6, 6),
            batch_size=5,
            shuffle=True,
            seed=0,
            reshuffle_each_epoch=False,
            drop_remainder=True,
        )
        np.testing.assert_array_equal(fixed.labels, np.concatenate([labels for _, labels in batches_of(fixed)]))

    @pytest.mark.parametrize(
        ("label_mode", "shape", "dtype"),
        [("int", (4,), "int32"), ("categorical", (4, 2), "float32"), ("binary", (4, 1), "float32")],
    )
    def test_label_modes_as_keras_gives_them(self, images, label_mode, shape, dtype):
        dataset = FastDataset.from_image_folder(
            images, image_size=(4, 4), batch_size=4, label_mode=label_mode, shuffle=False
        )
        theirs = keras.utils.image_dataset_from_directory(
            images, image_size=(4, 4), batch_size=4, label_mode=label_mode, shuffle=False, verbose=False
        )
        assert dataset.class_names == theirs.class_names == ["cats", "dogs"]
        for (_, ours), (_, expected) in zip(batches_of(dataset), batches_of(theirs), strict=True):
            np.testing.assert_array_equal(ours, expected)
            assert ours.dtype == dtype
            assert ours.shape == shape

    def test_pixels_as_keras_gives_them(self, images):
        dataset = FastDataset.from_image_folder(images, image_size=(5, 7), batch_size=4, shuffle=False)
        theirs = keras.utils.image_dataset_from_directory(
            images, image_size=(5, 7), batch_size=4, shuffle=False, verbose=False
        )
        for (ours, _), (expected, _) in zip(batches_of(dataset), batches_of(theirs), strict=True):
            # Rounded, and by a resizing that differs by one level at most.
            np.testing.assert_allclose(ours, expected, atol=1.5)

    def test_labels_by_a_function_of_the_path_for_regression(self, images):
        dataset = FastDataset.from_image_folder(
            images,
            labels=lambda path: float(path[-6:-4]) / 10,
            label_mode="raw",
            image_size=(4, 4),
            batch_size=12,
            shuffle=False,
        )
        ((_, labels),) = batches_of(dataset)
        assert labels.dtype == np.float32
        np.testing.assert_allclose(np.sort(labels), np.arange(12) / 10, rtol=1e-6)

    def test_split_is_disjoint_and_complete(self, images):
        options = {"image_size": (4, 4), "validation_split": 0.25, "seed": 4}
        train = FastDataset.from_image_folder(images, subset="training", shuffle=False, **options)
        held_out = FastDataset.from_image_folder(images, subset="validation", shuffle=False, **options)
        assert len(train.file_paths) == 9
        assert len(held_out.file_paths) == 3
        assert len({*train.file_paths, *held_out.file_paths}) == 12
        both = FastDataset.from_image_folder(images, subset="both", shuffle=True, augment_fn=lambda x: x + 1, **options)
        assert both[1].file_paths == held_out.file_paths
        np.testing.assert_array_equal(batches_of(both[1])[0][0], batches_of(held_out)[0][0])

    def test_random_crops_are_new_each_epoch_and_never_cached(self, images):
        from keras_turbo.data.images import RandomResizedCrop

        options = {
            "image_size": (6, 6),
            "random_resized_crop": RandomResizedCrop(),
            "batch_size": 12,
            "shuffle": False,
            "seed": 0,
        }
        dataset = FastDataset.from_image_folder(images, **options)
        assert dataset.stored_in is None
        first, second = bytes_of(dataset), bytes_of(dataset)
        assert first != second
        assert first == bytes_of(FastDataset.from_image_folder(images, **options))
        with pytest.raises(ValueError, match="one random crop"):
            FastDataset.from_image_folder(images, cache="memory", **options)

    def test_own_sizes_one_by_one(self, tmp_path):
        Image.new("RGB", (8, 4)).save(tmp_path / "a.png")
        Image.new("RGB", (2, 6)).save(tmp_path / "b.png")
        dataset = FastDataset.from_image_folder(tmp_path, labels=None, image_size=None, batch_size=None, shuffle=False)
        assert [image.shape for image in batches_of(dataset)] == [(4, 8, 3), (6, 2, 3)]
        with pytest.raises(ValueError, match="batch_size=None"):
            FastDataset.from_image_folder(tmp_path, labels=None, image_size=None, shuffle=False)


class TestIterators:
    def test_once_all_is_stored_only_the_store_is_iterated(self, images):
        dataset = FastDataset.from_image_folder(images, image_size=(4, 4), batch_size=5, shuffle=True, seed=0)
        other = FastDataset.from_image_folder(
            images, image_size=(4, 4), batch_size=5, shuffle=True, seed=0, cache=False
        )
        assert not dataset.is_ready
        assert bytes_of(dataset) == bytes_of(other)
        assert dataset.is_ready
        for path in sorted(images.rglob("*.jpg")):
            path.unlink()
        iterator = iter(dataset)
        recipe = weakref.ref(dataset._recipe)
        del dataset
        gc.collect()
        assert len(list(iterator)) == 3
        del iterator
        assert goes(lambda: recipe() is None)

    def test_a_shard_is_stored_when_all_that_it_may_want_is(self, images):
        options = {"image_size": (4, 4), "batch_size": 5, "seed": 0, "shuffle": True}
        fixed = FastDataset.from_image_folder(images, reshuffle_each_epoch=False, **options).shard(2, 0)
        assert bytes_of(fixed) == bytes_of(fixed)
        assert fixed.is_ready
        one, other = (FastDataset.from_image_folder(images, **options).shard(2, index) for index in range(2))
        batches_of(one)
        assert not one.is_ready
        assert not other.is_ready

    def test_the_train_function_is_traced_once(self, images):
        traced = []

        class Spy(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(2)

            def call(self, images):
                traced.append(images.shape)
                return self.dense(keras.ops.reshape(images, (-1, 48)))

        dataset = FastDataset.from_image_folder(images, image_size=(4, 4), batch_size=4, shuffle=False)
        model = Spy()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        model.fit(dataset, verbose=0)
        assert dataset.is_ready
        before = len(traced)
        model.fit(dataset, epochs=2, verbose=0)
        assert len(traced) == before


class TestCacheAuto:
    def test_memory_then_disk_then_nothing(self, images, monkeypatch, tmp_path):
        def stored_in():
            dataset = FastDataset.from_image_folder(
                images, image_size=(4, 4), cache_dir=tmp_path / "cache", shuffle=False
            )
            assert sum(len(batch) for batch, _ in batches_of(dataset)) == 12
            return dataset.stored_in

        num_bytes = 12 * (4 * 4 * 3 + 4)
        assert stored_in() == "memory"
        free = "keras_turbo.data.engine.store.free_memory_bytes"
        monkeypatch.setattr(free, lambda: 2 * num_bytes)
        assert stored_in() == "memory"
        monkeypatch.setattr(free, lambda: 2 * num_bytes - 1)
        assert stored_in() == "disk"
        monkeypatch.setattr("keras_turbo.data.assembly.fits_on_disk", lambda *_: False)
        assert stored_in() is None

    # TensorFlow's own, of the global seed that all tests have.
    @pytest.mark.filterwarnings("ignore:Seed 20 from outer graph")
    def test_random_map_fn_is_not_frozen(self, images):
        with pytest.warns(UserWarning, match="RandomStandardNormal.*not cached.*augment_fn"):
            dataset = FastDataset.from_image_folder(
                images,
                image_size=(4, 4),
                map_fn=lambda image: tf.cast(image, tf.float32) + tf.random.normal([]),
                shuffle=False,
            )
        assert dataset.stored_in is None


class TestRefusals:
    x, y = np.zeros((6, 2), "float32"), np.zeros(6)

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"batch_size": -1}, ValueError, "batch_size=-1"),
            ({"batch_size": 0}, ValueError, "at least 1"),
            ({"batch_size": 2.5}, TypeError, "batch_size=2.5"),
            ({"batch_size": True}, TypeError, "batch_size=True"),
            ({"cache": "ram"}, ValueError, "'auto', 'memory', 'disk' or False"),
            ({"cache": True}, ValueError, "'auto' picks"),
            ({"cache": 0}, ValueError, "cache=0"),
            ({"shuffle": 1000}, TypeError, "no buffer to size"),
            ({"seed": "a"}, TypeError, "seed='a'"),
            ({"seed": -3}, ValueError, "seed=-3"),
            ({"workers": 0}, ValueError, "workers=0"),
            ({"on_error": "ignore"}, ValueError, "on_error='ignore'"),
            ({"map_fn": 3}, TypeError, "map_fn=3"),
            ({"augment_fn": lambda a, b, c, d: a}, TypeError, "2 positional arguments"),
            ({"drop_remainder": True, "batch_size": None}, ValueError, "no meaning"),
        ],
    )
    def test_bad_options(self, options, error, words):
        with pytest.raises(error, match=words):
            FastDataset(self.x, self.y, **options)

    def test_targets_of_another_length(self):
        with pytest.raises(ValueError, match="x: 6, y: 5"):
            FastDataset(self.x, self.y[:5])

    def test_no_such_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            FastDataset.from_image_folder(tmp_path / "nowhere", shuffle=False)

    def test_a_pattern_that_matches_nothing(self, tmp_path):
        """Case 13."""
        with pytest.raises(ValueError, match=r"\*\.flac"):
            FastDataset.from_files(str(tmp_path / "*.flac"), tf.io.read_file)

    def test_unknown_options_of_a_constructor(self, images):
        with pytest.raises(TypeError, match="no option bathc_size"):
            FastDataset.from_image_folder(images, bathc_size=3, shuffle=False)

    def test_a_python_generator(self):
        with pytest.raises(TypeError, match="Give the function that makes it"):
            FastDataset(iter([1, 2]))


@pytest.mark.slow
@pytest.mark.parametrize("cache", [False, "memory", "disk"])
def test_memory_stays_over_epochs(tmp_path, cache, run_python):
    """Case 14: resident memory after the fourth epoch is at most 1.3 times that after the first."""
    generator = np.random.default_rng(0)
    for index in range(300):
        Image.fromarray(generator.integers(0, 256, (200, 200, 3), np.uint8)).save(tmp_path / f"{index}.jpg")
    figures = run_python(
        """
        import sys, psutil
        from keras_turbo import FastDataset

        cache = {"False": False}.get(sys.argv[2], sys.argv[2])
        data = FastDataset.from_image_folder(
            sys.argv[1],
            labels=None,
            image_size=(160, 160),
            shuffle=True,
            seed=0,
            cache=cache,
            cache_dir=sys.argv[1] + "/c",
        )
        for epoch in range(4):
            for batch in data:
                pass
            print(psutil.Process().memory_info().rss)
        """,
        tmp_path,
        cache,
    )
    resident = [int(line) for line in figures.split()]
    assert len(resident) == 4
    assert resident[3] <= 1.3 * resident[0]


class TestEpochsBegun:
    def test_an_epoch_can_be_run_again(self):
        data = FastDataset(np.arange(20), batch_size=4, shuffle=True, seed=1)
        epochs = [[batch.numpy().tolist() for batch in data] for _ in range(3)]
        assert data.epochs_begun == 3
        data.epochs_begun = 1
        assert [batch.numpy().tolist() for batch in data] == epochs[1] != epochs[0]
        assert data.epochs_begun == 2

    @pytest.mark.parametrize("number", [-1, True, 1.0, None])
    def test_what_is_no_number_of_epochs(self, number):
        data = FastDataset(np.arange(20), batch_size=4)
        with pytest.raises(ValueError, match="`epochs_begun` must be an integer from 0. Received: "):
            data.epochs_begun = number
        assert data.epochs_begun == 0
