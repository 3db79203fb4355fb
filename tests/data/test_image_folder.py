"""Which files of a folder are read, what class each has, how they are split, and what is refused."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from keras_turbo import FastDataset
from keras_turbo.data.images import ImageOptions
from keras_turbo.data.sources.class_folders import validation_mask
from keras_turbo.data.sources.image_folder import find_images, image_folder_sources
from tests.data.epochs import batches_of
from tests.data.noise_images import write_image, write_images

ENDINGS = [".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp"]


def found_below(folder: Path, by_class: bool = True, class_names=None) -> list[str]:
    images = find_images(folder, by_class, class_names)
    return [os.path.relpath(path, folder) for path in images.paths]


@pytest.fixture
def photos(tmp_path) -> Path:
    """Two classes with four and two images."""
    folder = tmp_path / "photos"
    write_images(folder, ["dogs/b.png", "dogs/a.png", "dogs/more/c.png", "dogs/d.png", "cats/y.png", "cats/x.png"])
    return folder


class TestFindImages:
    def test_classes_are_folders_in_sorted_order(self, photos):
        images = find_images(photos, by_class=True)
        assert images.class_names == ["cats", "dogs"]
        assert images.class_of == ["cats"] * 2 + ["dogs"] * 4
        names = ["cats/x.png", "cats/y.png", "dogs/a.png", "dogs/b.png", "dogs/d.png", "dogs/more/c.png"]
        assert images.paths == [str(photos / name) for name in names]

    def test_class_names_choose_and_order(self, photos):
        write_image(photos / "birds/z.png")
        images = find_images(photos, by_class=True, class_names=["dogs", "cats"])
        assert images.class_names == ["dogs", "cats"]
        assert images.class_of == ["dogs"] * 4 + ["cats"] * 2

    def test_without_classes_paths_are_sorted(self, photos):
        """As sorted() has them: that is what a list of labels goes by."""
        write_images(photos, ["cats.png", "zebra.png", "cats-and-dogs/a.png"])
        images = find_images(photos, by_class=False)
        assert images.paths == sorted(str(path) for path in photos.rglob("*.png"))
        assert images.class_of == images.class_names == []

    @pytest.mark.parametrize("ending", [*ENDINGS, *(ending.upper() for ending in ENDINGS)])
    def test_endings(self, tmp_path, ending):
        (tmp_path / "class").mkdir()
        (tmp_path / "class" / f"a{ending}").write_bytes(b"what it is shows when it is read")
        assert found_below(tmp_path) == [f"class/a{ending}"]

    @pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "bmp", "webp"])
    @pytest.mark.parametrize("name", ["a", "a.image", "a.2024-01-01", "a.TIFF"])
    def test_other_endings_are_told_by_content(self, tmp_path, kind, name):
        write_image(tmp_path / "class" / name, kind=kind)
        assert found_below(tmp_path) == [f"class/{name}"]

    def test_none_is_left_out_in_silence(self, tmp_path):
        """Case 3: ten are read."""
        write_images(tmp_path, [f"class/{number}.JPG" for number in range(6)])
        write_images(tmp_path, [f"class/{number}.webp" for number in range(6, 10)])
        write_images(tmp_path, ["class/.hidden.jpg", "class/.thumbnails/a.jpg", ".git/a.jpg"])
        (tmp_path / "class" / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
        assert len(found_below(tmp_path)) == 10

    def test_what_is_left_out_is_counted_by_ending(self, photos):
        for name in ("dogs/a.txt", "cats/b.TXT", "dogs/c.csv", "dogs/more/notes", "dogs/e.heic"):
            (photos / name).write_text("BM, as a bitmap begins")
        with pytest.warns(UserWarning, match=r"5 files under '.*photos' .*: 2 \.txt, ") as caught:
            assert len(found_below(photos)) == 6
        (message,) = (str(warning.message) for warning in caught)
        for part in ("1 .csv", "1 (no ending)", "1 .heic", ".jpg"):
            assert part in message
        assert caught[0].filename == __file__ or "left out" in message

    def test_images_beside_the_class_folders_are_counted_too(self, photos):
        write_images(photos, ["stray.png", "other.jpg"])
        (photos / "README.txt").write_text("about the photos")
        with pytest.warns(UserWarning, match=r"2 images lie beside the class folders of '.*photos'"):
            assert len(found_below(photos)) == 6

    def test_without_classes_the_top_folder_is_read(self, photos):
        write_images(photos, ["stray.png"])
        assert len(found_below(photos, by_class=False)) == 7

    def test_a_relative_folder(self, photos, monkeypatch):
        monkeypatch.chdir(photos.parent)
        assert find_images("photos", True).paths[0] == "photos/cats/x.png"

    def test_links_are_followed_once(self, photos, tmp_path):
        write_images(tmp_path, ["elsewhere/birds/a.png"])
        (photos / "birds").symlink_to(tmp_path / "elsewhere" / "birds")
        # This one leads round and round.
        (photos / "dogs" / "more" / "again").symlink_to(photos / "dogs")
        images = find_images(photos, by_class=True)
        assert images.class_names == ["birds", "cats", "dogs"]
        assert len(images.paths) == 7

    def test_a_pipe_is_not_waited_for(self, photos):
        os.mkfifo(photos / "dogs" / "pipe")
        with pytest.warns(UserWarning, match=r"1 files .* 1 \(no ending\)"):
            assert len(found_below(photos)) == 6

    def test_no_such_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(FileNotFoundError, match=r"no folder 'photoz'.*relative to '.*'"):
            find_images("photoz", True)

    def test_a_file_in_place_of_a_folder(self, photos):
        with pytest.raises(NotADirectoryError, match=r"a\.png' is a file. Give the folder"):
            find_images(photos / "dogs" / "a.png", True)

    def test_a_flat_folder(self, tmp_path):
        write_images(tmp_path, ["a.png", "b.png"])
        with pytest.raises(ValueError, match=r"has no class folders.*For a flat folder give `labels`"):
            find_images(tmp_path, True)

    @pytest.mark.parametrize("by_class", [True, False])
    def test_an_empty_folder(self, tmp_path, by_class):
        with pytest.raises(ValueError, match=r"no class folders|No images under"):
            find_images(tmp_path, by_class)

    def test_class_folders_without_images(self, tmp_path):
        (tmp_path / "cats").mkdir()
        (tmp_path / "dogs").mkdir()
        (tmp_path / "dogs" / "a.txt").write_text("a")
        with (
            pytest.warns(UserWarning, match="1 .txt"),
            pytest.raises(ValueError, match=r"No images under .*Looked for .*\.bmp.*by content too"),
        ):
            find_images(tmp_path, True)

    def test_class_names_without_a_folder(self, photos):
        with pytest.raises(ValueError, match=r"`class_names` has \['cows'\], for which .* It has: \['cats', 'dogs'\]"):
            find_images(photos, True, ["cats", "cows"])

    def test_class_names_that_occur_twice(self, photos):
        with pytest.raises(ValueError, match=r"more than once: \['cats'\]|More than once: \['cats'\]"):
            find_images(photos, True, ["cats", "dogs", "cats"])

    def test_a_class_name_in_place_of_a_list(self, photos):
        with pytest.raises(TypeError, match="must be a list of names. Received: 'cats'"):
            find_images(photos, True, "cats")


def images_in(folder: Path, **options) -> FastDataset:
    return FastDataset.from_image_folder(folder, **{"image_size": (8, 8), "batch_size": 4, "shuffle": False, **options})


def sources_in(folder: Path, **options):
    """The sources by name, and the class names: without the graphs of a dataset, which take their time."""
    unsaid = {
        "labels": "inferred",
        "label_mode": "int",
        "class_names": None,
        "validation_split": None,
        "subset": None,
        "seed": None,
    }
    return image_folder_sources(folder, ImageOptions(image_size=(8, 8)), **unsaid | options)


def source_in(folder: Path, **options):
    """The one source, and the class names."""
    sources, names = sources_in(folder, **options)
    (source,) = sources.values()
    return source, names


def labels_of(dataset: FastDataset) -> np.ndarray:
    return np.concatenate([labels for _, labels in batches_of(dataset)])


class TestLabels:
    @pytest.mark.parametrize(
        ("mode", "expected", "dtype"),
        [
            ("int", [0, 0, 1, 1, 1, 1], "int32"),
            ("binary", [[0], [0], [1], [1], [1], [1]], "float32"),
            ("categorical", [[1, 0]] * 2 + [[0, 1]] * 4, "float32"),
        ],
    )
    def test_modes(self, photos, mode, expected, dtype):
        dataset = images_in(photos, label_mode=mode)
        labels = labels_of(dataset)
        assert labels.tolist() == expected
        assert labels.dtype == dtype
        assert dataset.class_names == ["cats", "dogs"]
        assert dataset.labels.tolist() == [0, 0, 1, 1, 1, 1]

    @pytest.mark.parametrize("options", [{"labels": None}, {"label_mode": None}])
    def test_none(self, photos, options):
        dataset = images_in(photos, **options)
        assert [batch.shape for batch in batches_of(dataset)] == [(4, 8, 8, 3), (2, 8, 8, 3)]
        with pytest.raises(ValueError, match="has no labels"):
            _ = dataset.labels

    def test_a_list_goes_by_sorted_paths(self, photos):
        """Folders count for nothing then."""
        paths = sorted(str(path) for path in photos.rglob("*.png"))
        stems = [Path(path).stem for path in paths]
        source, names = source_in(photos, labels=stems)
        assert source.paths == paths
        assert [names[number] for number in source.labels_at(np.arange(6))] == stems

    def test_a_function_of_the_path(self, photos):
        source, names = source_in(photos, labels=lambda path: len(Path(path).parent.name) / 2, label_mode="raw")
        labels = source.labels_at(np.arange(6))
        assert labels.tolist() == [2, 2, 2, 2, 2, 2]
        assert labels.dtype == np.float32
        assert names is None

    def test_a_class_without_images_is_a_class(self, photos):
        (photos / "birds").mkdir()
        source, names = source_in(photos)
        assert names == ["birds", "cats", "dogs"]
        assert source.labels_at(np.arange(6)).tolist() == [1, 1, 2, 2, 2, 2]

    def test_a_list_of_another_length(self, photos):
        with pytest.raises(ValueError, match=r"`labels` has 2 entries for 6 files"):
            images_in(photos, labels=[0, 1])

    def test_a_misspelt_word(self, photos):
        with pytest.raises(TypeError, match="must be 'inferred' .* Received: 'infer'"):
            images_in(photos, labels="infer")

    def test_an_unknown_mode(self, photos):
        with pytest.raises(ValueError, match="`label_mode` must be one of .* Received: 'sparse'"):
            images_in(photos, label_mode="sparse")


@pytest.fixture
def many(tmp_path) -> Path:
    """Two classes of ten images each."""
    write_images(tmp_path / "many", [f"{name}/{number}.png" for name in "ab" for number in range(10)])
    return tmp_path / "many"


class TestSplit:
    def paths_of(self, many: Path, **options) -> list[str]:
        return source_in(many, **{"validation_split": 0.25, "seed": 3, **options})[0].paths

    def test_disjoint_and_complete(self, many):
        training, validation = self.paths_of(many, subset="training"), self.paths_of(many, subset="validation")
        assert len(training) == 15
        assert len(validation) == 5
        assert sorted(training + validation) == find_images(many, True).paths

    def test_the_same_seed_gives_the_same(self, many):
        assert self.paths_of(many, subset="validation") == self.paths_of(many, subset="validation")
        assert self.paths_of(many, subset="validation") != self.paths_of(many, subset="validation", seed=4)

    def test_both_are_the_two(self, many):
        sources, names = sources_in(many, validation_split=0.25, seed=3, subset="both")
        assert list(sources) == ["training", "validation"]
        for part, source in sources.items():
            assert source.paths == self.paths_of(many, subset=part)
            # Labels go with their images.
            numbers = source.labels_at(np.arange(len(source)))
            assert [names[number] for number in numbers] == [Path(path).parent.name for path in source.paths]

    def test_without_a_seed_both_are_disjoint(self, many):
        sources, _ = sources_in(many, validation_split=0.25, subset="both")
        assert not set(sources["training"].paths) & set(sources["validation"].paths)

    @pytest.mark.parametrize("subset", ["training", "validation"])
    def test_a_part_without_a_seed_is_refused(self, many, subset):
        """Case N6: the other part may have been drawn by a seed."""
        with pytest.raises(ValueError, match="must be the same for both parts.*subset='both'"):
            images_in(many, validation_split=0.25, subset=subset)

    def test_of_both_only_training_is_shuffled_and_augmented(self, many):
        training, validation = images_in(
            many, validation_split=0.25, seed=3, subset="both", shuffle=True, augment_fn=lambda image: image * 0
        )
        assert not np.concatenate([images for images, _ in batches_of(training)]).any()
        assert np.concatenate([images for images, _ in batches_of(validation)]).any()
        assert len(validation.file_paths) == 5
        with pytest.raises(ValueError, match="no fixed order"):
            _ = training.file_paths

    def test_seeds_and_shares_of_numpy_s_types(self, many, tmp_path):
        options = {"validation_split": np.float32(0.25), "seed": np.int64(3), "subset": "validation"}
        dataset = images_in(many, cache="disk", cache_dir=tmp_path / "cache", **options)
        assert dataset.file_paths == self.paths_of(many, subset="validation")
        assert dataset.stored_in == "disk"

    @pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, True, "0.2", None])
    def test_impossible_shares(self, many, share):
        with pytest.raises(ValueError, match=r"must lie between 0 and 1. Received: |needs `validation_split`"):
            images_in(many, validation_split=share, subset="both")

    @pytest.mark.parametrize("subset", ["train", None, "test", ["training"]])
    def test_unknown_subsets(self, many, subset):
        with pytest.raises(ValueError, match="`subset` must be 'training', 'validation' or 'both'"):
            images_in(many, validation_split=0.2, subset=subset)

    def test_a_share_that_leaves_nothing(self, photos):
        with pytest.raises(ValueError, match="of 6 images leaves none for validation"):
            images_in(photos, validation_split=0.01, subset="both")

    @pytest.mark.parametrize(("number", "share"), [(10, 0.5), (1000, 0.2), (3, 0.34), (64, 0.2)])
    def test_masks(self, number, share):
        mask = validation_mask(number, share, 7)
        assert mask.sum() == int(number * share)  # as in Keras
        np.testing.assert_array_equal(mask, validation_mask(number, share, 7))
        assert number < 100 or not np.array_equal(mask, validation_mask(number, share, 8))


class TestImages:
    def test_pixels_labels_and_paths_belong_together(self, tmp_path):
        expected = {
            name: write_image(tmp_path / name, seed=seed) for seed, name in enumerate(["b/1.png", "a/3.png", "a/2.png"])
        }
        dataset = FastDataset.from_image_folder(
            tmp_path, image_size=(8, 8), shuffle=True, seed=1, reshuffle_each_epoch=False
        )
        ((images, labels),) = batches_of(dataset)
        names = [os.path.relpath(path, tmp_path) for path in dataset.file_paths]
        assert sorted(names) == sorted(expected)
        assert images.dtype == np.uint8
        for name, image, label in zip(names, images, labels, strict=True):
            np.testing.assert_array_equal(image, expected[name])
            assert label == (name[0] == "b")

    def test_what_is_named_jpg_and_is_something_else(self, tmp_path):
        """Case 2."""
        expected = [
            write_image(tmp_path / "class" / "b.jpg", kind="png", seed=1),
            write_image(tmp_path / "class" / "c.jpg", kind="bmp", seed=2),
        ]
        write_image(tmp_path / "class" / "a.jpg", kind="gif")
        dataset = FastDataset.from_image_folder(tmp_path, image_size=(8, 8), batch_size=3, shuffle=False)
        assert dataset.element_spec[0].shape.as_list() == [None, 8, 8, 3]
        ((images, _),) = batches_of(dataset)
        assert images.shape == (3, 8, 8, 3)
        np.testing.assert_array_equal(images[1:], expected)

    def test_own_sizes_one_by_one(self, tmp_path):
        for height in (5, 7):
            write_image(tmp_path / "class" / f"{height}.png", size=(height, 6))
        dataset = FastDataset.from_image_folder(tmp_path, image_size=None, batch_size=None, shuffle=False)
        assert [image.shape for image, _ in batches_of(dataset)] == [(5, 6, 3), (7, 6, 3)]
        with pytest.raises(ValueError, match="image_size=None keeps each image's own size"):
            FastDataset.from_image_folder(tmp_path, image_size=None, shuffle=False)

    def test_changed_images_are_not_taken_from_the_store(self, photos, tmp_path):
        """Case 4."""
        options = {"cache": "disk", "cache_dir": tmp_path / "cache"}
        batches_of(images_in(photos, **options))
        changed = write_image(photos / "dogs" / "a.png", seed=99)
        (first, _), _ = batches_of(images_in(photos, **options))
        np.testing.assert_array_equal(first[2], changed)

    def test_other_options_do_not_share_a_store(self, photos, tmp_path):
        stores = set()
        for options in ({}, {"channels": 1}, {"resize": "pad"}, {"antialias": True}, {"label_mode": None}):
            dataset = images_in(photos, cache="disk", cache_dir=tmp_path / "cache", **options)
            stores.add(str(dataset._recipe.store.folder))
        assert len(stores) == 5

    def test_a_moved_copy_is_no_stale_store(self, photos, tmp_path):
        options = {"cache": "disk", "cache_dir": tmp_path / "cache"}
        one = images_in(photos, **options)
        shutil.copytree(photos, tmp_path / "copy")
        other = images_in(tmp_path / "copy", **options)
        assert one._recipe.store.folder.exists()
        assert one._recipe.store.folder != other._recipe.store.folder


def test_a_clean_folder_gives_no_warning(photos):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches_of(images_in(photos))
