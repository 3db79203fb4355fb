"""`from_image_folder` and `from_audio_folder` where Keras' functions stood: the order, and options by Keras' names."""

from __future__ import annotations

import inspect
import warnings

import keras
import numpy as np
import pytest

from keras_turbo import FastDataset
from keras_turbo.data import keras_names
from tests.data.epochs import batches_of, bytes_of
from tests.data.noise_images import write_images
from tests.data.sound_files import write_wav

SOUNDS = {"sample_rate": 16_000, "length_samples": 160}


@pytest.fixture
def photos(tmp_path):
    write_images(tmp_path / "photos", [f"{name}/{number:02}.png" for name in "ab" for number in range(12)])
    return tmp_path / "photos"


@pytest.fixture
def sounds(tmp_path):
    for number in range(8):
        write_wav(tmp_path / "sounds" / "ab"[number % 2] / f"{number}.wav", 400 + 50 * number)
    return tmp_path / "sounds"


def images_in(folder, **options):
    return FastDataset.from_image_folder(folder, **{"image_size": (8, 8), "shuffle": False, **options})


@pytest.fixture
def told(monkeypatch):
    """As if nothing had been said in this process so far."""
    monkeypatch.setattr(keras_names, "_told", set())


class TestOrder:
    def test_it_is_shuffled_by_default_and_says_so_once(self, told, photos, sounds):
        options = {"image_size": (8, 8), "batch_size": 24, "seed": 3}
        with pytest.warns(UserWarning, match=r"from_image_folder\(\) shuffles by default now") as caught:
            by_default = FastDataset.from_image_folder(photos, **options)
        assert [warning.filename for warning in caught] == [__file__]
        expected = bytes_of(FastDataset.from_image_folder(photos, shuffle=True, **options))
        assert bytes_of(by_default) == expected
        assert bytes_of(FastDataset.from_image_folder(photos, **options)) == expected
        assert bytes_of(FastDataset.from_image_folder(photos, **options | {"seed": 4})) != expected
        assert bytes_of(FastDataset.from_image_folder(photos, shuffle=False, **options)) != expected
        with pytest.warns(UserWarning, match=r"from_audio_folder\(\) shuffles by default now"):
            by_default = FastDataset.from_audio_folder(sounds, seed=3, **SOUNDS)
        assert bytes_of(by_default) == bytes_of(FastDataset.from_audio_folder(sounds, shuffle=True, seed=3, **SOUNDS))

    def test_the_defaults_are_those_of_keras(self):
        for function in (keras.utils.image_dataset_from_directory, keras.utils.audio_dataset_from_directory):
            assert inspect.signature(function).parameters["shuffle"].default is True

    def test_of_both_parts_only_the_training_is_shuffled(self, told, photos):
        options = {"image_size": (8, 8), "batch_size": 24, "validation_split": 0.5, "seed": 0}
        with pytest.warns(UserWarning, match="shuffles by default"):
            training, validation = FastDataset.from_image_folder(photos, subset="both", **options)
        ((_, labels),) = batches_of(validation)
        assert labels.tolist() == validation.labels.tolist() == sorted(labels)
        ((_, labels),) = batches_of(training)
        assert labels.tolist() != sorted(labels)

    def test_a_part_alone_is_shuffled_as_in_keras(self, told, photos):
        options = {"image_size": (8, 8), "batch_size": 24, "validation_split": 0.5, "seed": 0, "subset": "validation"}
        with pytest.warns(UserWarning, match="shuffles by default"):
            by_default = FastDataset.from_image_folder(photos, **options)
        assert bytes_of(by_default) == bytes_of(FastDataset.from_image_folder(photos, shuffle=True, **options))

    def test_a_model_has_the_same_weights_with_it_and_without(self, photos):
        def first_weights(make) -> list[np.ndarray]:
            keras.utils.set_random_seed(0)
            for _ in make():
                pass
            return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).get_weights()

        without = first_weights(tuple)
        with_it = first_weights(lambda: FastDataset.from_image_folder(photos, image_size=(8, 8), shuffle=True))
        np.testing.assert_array_equal(with_it[0], without[0])


class TestNames:
    @pytest.mark.parametrize(
        ("by_keras", "ours"),
        [
            ({"color_mode": "grayscale"}, {"channels": 1}),
            ({"color_mode": "rgba"}, {"channels": 4}),
            ({"color_mode": "rgb", "data_format": "channels_last", "format": "tf"}, {}),
            ({"crop_to_aspect_ratio": True, "image_size": (4, 8)}, {"resize": "crop", "image_size": (4, 8)}),
            ({"pad_to_aspect_ratio": True, "image_size": (4, 8)}, {"resize": "pad", "image_size": (4, 8)}),
            ({"pad_to_aspect_ratio": False, "crop_to_aspect_ratio": False, "data_format": None}, {}),
            ({"interpolation": "NEAREST", "image_size": 6}, {"interpolation": "nearest", "image_size": (6, 6)}),
        ],
    )
    def test_those_of_images(self, photos, by_keras, ours):
        assert bytes_of(images_in(photos, **by_keras)) == bytes_of(images_in(photos, **ours))

    @pytest.mark.parametrize("length", ["output_sequence_length", "length_samples"])
    def test_those_of_sounds(self, sounds, length):
        named = FastDataset.from_audio_folder(
            sounds, sampling_rate=16_000, **{length: 160}, ragged=False, shuffle=False, verbose=False
        )
        assert bytes_of(named) == bytes_of(FastDataset.from_audio_folder(sounds, shuffle=False, **SOUNDS))

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"color_mode": "cmyk"}, ValueError, "grayscale, rgb, rgba. Received: color_mode='cmyk'"),
            ({"color_mode": "rgba", "channels": 1}, ValueError, "exclude one another: channels=1 and color_mode"),
            ({"crop_to_aspect_ratio": True, "pad_to_aspect_ratio": True}, ValueError, "exclude one another"),
            ({"crop_to_aspect_ratio": 1}, TypeError, "must be True or False"),
            ({"data_format": "channels_first"}, ValueError, "transpose in `map_fn`"),
            ({"format": "grain"}, ValueError, "Received: format='grain'"),
            ({"follow_links": "yes"}, TypeError, "`follow_links` must be True or False"),
            (
                {"bach_size": 3},
                TypeError,
                "no option bach_size. Did you mean batch_size.* labels, .*, image_size, .*seed",
            ),
        ],
    )
    def test_what_is_refused_of_images(self, photos, options, error, message):
        with pytest.raises(error, match=message):
            images_in(photos, **options)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"ragged": True}, ValueError, "`length_seconds`, or batch_size=None"),
            ({"sampling_rate": 8000}, ValueError, "exclude one another: sample_rate=16000 and sampling_rate=8000"),
            ({"sample_rate": None}, TypeError, "needs `sample_rate`"),
            ({"length": 3}, TypeError, "Did you mean length_s.* sample_rate, length_seconds"),
        ],
    )
    def test_what_is_refused_of_sounds(self, sounds, options, error, message):
        with pytest.raises(error, match=message):
            FastDataset.from_audio_folder(sounds, **{**SOUNDS, "shuffle": False, **options})

    @pytest.mark.parametrize(
        ("function", "make", "values"),
        [
            (
                keras.utils.image_dataset_from_directory,
                lambda photos, sounds, **options: images_in(photos, **options),
                {"image_size": (8, 8)},
            ),
            (
                keras.utils.audio_dataset_from_directory,
                lambda photos, sounds, **options: FastDataset.from_audio_folder(sounds, **options),
                {"sampling_rate": 16_000, "output_sequence_length": 160},
            ),
        ],
    )
    def test_all_options_of_keras_are_known(self, photos, sounds, function, make, values):
        """With Keras' own defaults, where these are values that a FastDataset can have."""
        parameters = inspect.signature(function).parameters
        options = {name: one.default for name, one in parameters.items() if name != "directory"} | values
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dataset = make(photos, sounds, **options)
        assert len(list(dataset)) == 1

    def test_links(self, photos, tmp_path):
        write_images(tmp_path, ["elsewhere/more/x.png"])
        (photos / "a" / "linked").symlink_to(tmp_path / "elsewhere" / "more")
        (photos / "c").symlink_to(tmp_path / "elsewhere" / "more")
        assert len(images_in(photos).file_paths) == 26
        # As Keras does: a class may be a link.
        assert len(images_in(photos, follow_links=False).file_paths) == 25

    def test_it_tells_what_it_found(self, photos, capsys):
        images_in(photos)
        assert capsys.readouterr().out == ""
        images_in(photos, verbose=True)
        assert capsys.readouterr().out == "Found 24 files belonging to 2 classes.\n"
        images_in(photos, verbose=True, validation_split=0.25, subset="both")
        assert capsys.readouterr().out.endswith("2 classes (18 for training, 6 for validation).\n")
        images_in(photos, verbose=True, labels=None)
        assert capsys.readouterr().out == "Found 24 files.\n"
