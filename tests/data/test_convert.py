"""Writing TFRecord files: equal to the byte when they are read again, whole or not at all, and resumable."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.cli import main
from keras_turbo.data.convert import ConversionError, convert_images, write_tfrecords
from keras_turbo.data.engine.failures import ExampleLoadError
from tests.data.epochs import batches_of
from tests.data.noise_images import write_image, write_images
from tests.data.processes import start_python
from tests.data.record_files import example, truncate, write_records

N = 11
RNG_SEED = 5


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(RNG_SEED)
    return {
        "uint8": rng.integers(0, 256, (N, 5, 3), np.uint8),
        "bool": rng.random(N) > 0.5,
        "bools": rng.random((N, 2, 2)) > 0.5,
        "int32": rng.integers(-5, 5, N, np.int32),
        "uint64": rng.integers(0, 2**64 - 1, (N, 2), np.uint64, endpoint=True),
        "int64s": rng.integers(-(2**62), 2**62, (N, 100)),
        "float16": rng.random((N, 2)).astype(np.float16),
        "float32": rng.random(N).astype(np.float32),
        "float32s": np.where(rng.random((N, 2, 2)) > 0.5, np.nan, np.inf).astype(np.float32),
        "complex64": rng.random((N, 2)).astype(np.complex64),
        "text": np.array([b"a\0b", "grün".encode(), b"", b"\xff"] * N)[:N].astype(object),
    }


def elements() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((arrays(), np.arange(N, dtype=np.uint8)))


def assert_equal_datasets(first: tf.data.Dataset, second: tf.data.Dataset) -> None:
    assert first.element_spec == second.element_spec
    for one, other in zip(first, second, strict=True):
        tf.nest.map_structure(assert_equal_tensors, one, other)


def assert_equal_tensors(one, other):
    assert one.dtype == other.dtype
    if isinstance(one, tf.RaggedTensor):
        assert one.to_list() == other.to_list()
    elif one.dtype == tf.string:
        assert one.numpy().tolist() == other.numpy().tolist()
    else:
        assert one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("shards", [1, 4, 20])
def test_round_trip_of_every_type(tmp_path, shards, compression):
    dataset = FastDataset(elements(), batch_size=4, cache=False)
    manifest = write_tfrecords(dataset, tmp_path / "out", shards=shards, compression=compression)
    assert manifest.num_examples == N
    assert len(manifest.files) == shards
    back = FastDataset.from_tfrecord(tmp_path / "out", batch_size=4, cache=False, cache_dir=tmp_path / "cache")
    assert_equal_datasets(dataset, back)
    assert back.labels.tolist() == list(range(N))
    assert back.labels.dtype == np.uint8
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")) == [
        *manifest.files,
        "manifest.json",
    ]


@pytest.mark.parametrize(
    "structure",
    [
        lambda x, y: x,
        lambda x, y: (x, y, y * 0.5),
        lambda x, y: {"a": x, "b/c": {"d": (x, y)}},
        lambda x, y: ({"feature": x}, {"shape": y, "dtype": x}),
        lambda x, y: ((x, y), y),
    ],
)
def test_round_trip_of_structures(tmp_path, structure):
    elements = tf.data.Dataset.from_tensor_slices((np.ones((5, 2, 2)), np.arange(5.0))).map(structure)
    for batch_size in (2, None):
        out = tmp_path / str(batch_size)
        dataset = FastDataset(elements, batch_size=batch_size)
        write_tfrecords(dataset, out, shards=2)
        assert_equal_datasets(dataset, FastDataset.from_tfrecord(out, batch_size=batch_size, cache=False))


def test_round_trip_of_sizes_that_differ(tmp_path):
    rows = [[1], [], [2, 3]]
    ragged = FastDataset.from_tfrecord(
        write_records(tmp_path / "a.tfrecord", [example(r=row) for row in rows]),
        {"r": tf.io.RaggedFeature(tf.int64)},
        x="r",
        batch_size=2,
    )
    write_tfrecords(ragged, tmp_path / "ragged")
    assert_equal_datasets(ragged, FastDataset.from_tfrecord(tmp_path / "ragged", batch_size=2))

    write_image(tmp_path / "images" / "a" / "0.png", size=(3, 5))
    write_image(tmp_path / "images" / "a" / "1.png", size=(4, 2))
    images = FastDataset.from_image_folder(tmp_path / "images", image_size=None, batch_size=None, shuffle=False)
    write_tfrecords(images, tmp_path / "sizes")
    back = FastDataset.from_tfrecord(tmp_path / "sizes", batch_size=None)
    assert [x.shape for x, _ in batches_of(back)] == [(3, 5, 3), (4, 2, 3)]
    assert_equal_datasets(images, back)


def test_an_epoch_is_written_as_it_is_and_not_used_up(tmp_path):
    def make():
        return FastDataset(
            np.arange(N),
            np.arange(N),
            shuffle=True,
            seed=1,
            augment_fn=lambda x, y, seed: (x + tf.random.stateless_uniform([], seed, 0, 9, x.dtype), y),
        )

    dataset, other = make(), make()
    write_tfrecords(dataset, tmp_path)
    assert dataset.epochs_begun == 0
    assert_equal_datasets(other, FastDataset.from_tfrecord(tmp_path))


def test_a_dataset_that_is_to_go_on_in_the_middle_is_written_whole(tmp_path):
    dataset = FastDataset(np.arange(N), batch_size=2, shuffle=True, seed=1)
    epochs = [np.concatenate(batches_of(dataset)).tolist() for _ in range(2)]
    dataset.resume_at(1, 3)
    write_tfrecords(dataset, tmp_path)
    assert np.concatenate(batches_of(FastDataset.from_tfrecord(tmp_path))).tolist() == epochs[1]
    assert np.concatenate(batches_of(dataset)).tolist() == epochs[1][6:]


def test_class_names_and_what_was_skipped_are_kept(tmp_path):
    write_images(tmp_path / "photos", ["cat/1.png", "cat/2.png", "dög/3.png"])
    (tmp_path / "photos" / "cat" / "1.png").write_bytes(b"")
    dataset = FastDataset.from_image_folder(tmp_path / "photos", image_size=(4, 4), on_error="skip", shuffle=False)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        manifest = write_tfrecords(dataset, tmp_path / "out")
    assert manifest.skipped[0][0].endswith("1.png")
    back = FastDataset.from_tfrecord(tmp_path / "out")
    assert back.class_names == ["cat", "dög"]
    assert back.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (lambda: tf.data.Dataset.range(3), {}, TypeError, "must be a FastDataset"),
        (lambda: FastDataset(np.arange(3)), {"shards": 0}, ValueError, "at least 1"),
        (lambda: FastDataset(np.arange(3)), {"shards": None}, TypeError, "number of files"),
        (lambda: FastDataset(np.arange(3)), {"compression": "zip"}, ValueError, "`compression`"),
        (lambda: FastDataset(tf.data.Dataset.range(3).repeat()), {}, ValueError, "endless"),
        (lambda: FastDataset(tf.data.Dataset.range(3).filter(lambda x: x < 0)), {}, ValueError, "no example"),
    ],
)
def test_what_cannot_be_written(tmp_path, make, options, error, message):
    with pytest.raises(error, match=message):
        write_tfrecords(make(), tmp_path / "out", **options)
    assert not list(tmp_path.rglob("*.tfrecord"))


def test_records_are_not_written_over(tmp_path):
    dataset = FastDataset(np.arange(3))
    write_tfrecords(dataset, tmp_path)
    with pytest.raises(FileExistsError, match="has records already"):
        write_tfrecords(dataset, tmp_path)


def test_what_was_killed_while_it_was_written_is_not_taken_for_whole(tmp_path):
    write_tfrecords(FastDataset(np.arange(10)), tmp_path, shards=2)
    # As a kill leaves it that comes after the first file has its name.
    (tmp_path / "manifest.json").unlink()
    (tmp_path / ".writing").mkdir()
    (tmp_path / "00001-of-00002.tfrecord").rename(tmp_path / ".writing" / "00001-of-00002.tfrecord")
    with pytest.raises(ValueError, match=r"write_tfrecords\(\) into .* is not finished"):
        FastDataset.from_tfrecord(tmp_path)
    write_tfrecords(FastDataset(np.arange(10)), tmp_path, shards=2)
    assert np.concatenate(batches_of(FastDataset.from_tfrecord(tmp_path))).tolist() == list(range(10))


# Reading by the manifest.


def read_manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def damage_manifest(folder: Path, **changes) -> None:
    (folder / "manifest.json").write_text(json.dumps(read_manifest(folder) | changes), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": {"../other.tfrecord": 3}}, "no file in its folder"),
        ({"files": {"/etc/passwd": 3}}, "no file in its folder"),
        ({"files": {"..": 3}}, "no file in its folder"),
        ({"files": {"a.tfrecord": "3"}}, "no file in its folder"),
        ({"files": {}}, "names no files"),
        ({"version": 99}, "version 99"),
        ({"element": {"x": 1}}, "is damaged"),
        ({"element": {"feature": "x", "dtype": "int9", "shape": [], "stored": "int64"}}, "is damaged"),
        ({"element": {"feature": "x", "dtype": "int64", "shape": [], "stored": "pickle"}}, "is damaged"),
        (
            {"element": {"feature": "x", "dtype": "int64", "shape": [10**9], "stored": "int64"}},
            "No record can hold 'x'",
        ),
        (
            {"element": {"feature": "x", "dtype": "float64", "shape": [10**8], "stored": "raw"}},
            "No record can hold 'x'",
        ),
        ({"element": {"feature": "x", "dtype": "int64", "shape": [10**18], "stored": "int64"}}, "is damaged"),
        ({"element": {"feature": "x", "dtype": "int64", "shape": [0, 10**9, 10**9], "stored": "raw"}}, "is damaged"),
        ({"element": {"feature": "x", "dtype": "int64", "shape": [-1], "stored": "raw"}}, "is damaged"),
        ({"element": {"feature": "x", "dtype": "uint8", "shape": [20000, 20000, 3], "stored": "image"}}, "max_pixels"),
        ({"element": {"feature": "x", "dtype": "string", "shape": [], "stored": "raw"}}, "is damaged"),
        ({"class_names": 3}, "is damaged"),
        ({"label": ["x"]}, "is damaged"),
        ({"interleave": 0}, "is damaged"),
        ({"compression": "LZ4"}, "is damaged: compression is 'LZ4'"),
        ({"compression": None}, "is damaged: compression is None"),
        ({"files": {"00000-of-00001.tfrecord": 4}}, "has 3 records, and manifest.json beside it says 4"),
        ({"files": {"gone.tfrecord": 4}}, "are missing"),
    ],
)
def test_a_manifest_that_cannot_be(tmp_path, changes, message):
    write_tfrecords(FastDataset(np.arange(3)), tmp_path)
    damage_manifest(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        FastDataset.from_tfrecord(tmp_path)


@pytest.mark.parametrize(
    "opening", ["[", '{"element":', '{"format": "keras_turbo.tfrecord", "version": 1, "element": [[']
)
def test_a_manifest_that_is_nested_too_deeply(tmp_path, opening):
    write_tfrecords(FastDataset(np.arange(3)), tmp_path)
    (tmp_path / "manifest.json").write_text(opening * 100_000)
    with pytest.raises(ValueError, match=r"manifest.json' is (no JSON|damaged)"):
        FastDataset.from_tfrecord(tmp_path)
    content = json.dumps({"format": "keras_turbo.tfrecord", "version": 1, "files": {"a": 1}, "element": "HERE"})
    (tmp_path / "manifest.json").write_text(content.replace('"HERE"', "[" * 900 + "]" * 900))
    with pytest.raises(ValueError, match=r"manifest.json' is (no JSON|damaged)"):
        FastDataset.from_tfrecord(tmp_path)


def test_a_file_cut_between_two_records_is_noticed(tmp_path):
    write_tfrecords(FastDataset(np.arange(6)), tmp_path)
    (path,) = tmp_path.glob("*.tfrecord")
    truncate(path, path.stat().st_size // 6 * 4)
    with pytest.raises(ValueError, match="has 4 records, and manifest.json beside it says 6"):
        FastDataset.from_tfrecord(tmp_path)
    with pytest.warns(UserWarning, match="has 4 records") as warned:
        dataset = FastDataset.from_tfrecord(tmp_path, on_error="skip")
    assert [warning.filename for warning in warned] == [__file__]
    assert np.concatenate(batches_of(dataset)).tolist() == [0, 1, 2, 3]


def test_a_batch_of_which_no_record_is_whole(tmp_path):
    write_tfrecords(FastDataset(np.ones((6, 3, 2))), tmp_path)
    (path,) = tmp_path.glob("*.tfrecord")
    data = bytearray(path.read_bytes())
    for record in (0, 1, 2):
        data[len(data) // 6 * record + 40] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="An example was left out"):
        batches = batches_of(FastDataset.from_tfrecord(tmp_path, on_error="skip", batch_size=3))
    assert [batch.shape for batch in batches] == [(3, 3, 2)]


def test_some_files_of_a_manifest_and_files_of_several(tmp_path):
    write_tfrecords(FastDataset(np.arange(10)), tmp_path / "a", shards=2)
    write_tfrecords(FastDataset(np.arange(10, 14)), tmp_path / "b", shards=1)
    half = FastDataset.from_tfrecord(tmp_path / "a" / "00001*.tfrecord")
    assert np.concatenate(batches_of(half)).tolist() == [1, 3, 5, 7, 9]
    both = FastDataset.from_tfrecord([tmp_path / "a" / "*.tfrecord", tmp_path / "b" / "*.tfrecord"])
    assert sorted(np.concatenate(batches_of(both)).tolist()) == list(range(14))
    write_tfrecords(FastDataset(np.arange(4.0)), tmp_path / "c")
    with pytest.raises(ValueError, match="of different kinds"):
        FastDataset.from_tfrecord([tmp_path / "a" / "*.tfrecord", tmp_path / "c" / "*.tfrecord"])


# Images.


@pytest.fixture
def photos(tmp_path):
    """Two classes of seven images, with names that are hard to handle; outside of them, where records go."""
    folder = tmp_path / "my phötos"
    write_images(
        folder, [f"{name}/{k} é.{ending}" for name, ending in (("dög", "jpg"), ("cat", "png")) for k in range(7)]
    )
    return folder


def test_images_come_back_as_from_their_folder(photos, tmp_path):
    convert_images(photos, tmp_path / "out", shards=3)
    options = {"image_size": (6, 6), "batch_size": 4, "cache": False}
    assert_equal_datasets(
        FastDataset.from_image_folder(photos, shuffle=False, **options),
        FastDataset.from_tfrecord(tmp_path / "out", **options),
    )
    back = FastDataset.from_tfrecord(tmp_path / "out", **options)
    assert back.class_names == ["cat", "dög"]
    assert back.labels.tolist() == [0] * 7 + [1] * 7
    assert FastDataset.from_tfrecord(tmp_path / "out").element_spec[0].shape.as_list() == [None, 256, 256, 3]
    with pytest.raises(ValueError, match="can't be batched"):
        FastDataset.from_tfrecord(tmp_path / "out", image_size=None)


def test_original_bytes_are_kept(photos, tmp_path):
    convert_images(photos, tmp_path / "out", shards=2)
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("image", "filename")}
    for x in batches_of(FastDataset.from_tfrecord(tmp_path / "out", features, batch_size=None)):
        assert (photos / os.fsdecode(x["filename"])).read_bytes() == x["image"]


def test_images_are_resized_and_split(photos, tmp_path):
    manifests = convert_images(photos, tmp_path / "out", image_size=(4, 6), validation_split=0.3, quality=90)
    assert {name: manifest.num_examples for name, manifest in manifests.items()} == {"training": 10, "validation": 4}
    train, val = FastDataset.from_image_folder(
        photos, image_size=(4, 6), validation_split=0.3, subset="both", batch_size=14, seed=0, shuffle=False
    )
    for part, expected in (("training", train), ("validation", val)):
        back = FastDataset.from_tfrecord(tmp_path / "out" / part, batch_size=14)
        ((images, labels),) = batches_of(back)
        ((originals, original_labels),) = batches_of(expected)
        assert labels.tolist() == original_labels.tolist()
        assert images.shape == originals.shape
        assert np.abs(images.astype(int) - originals).mean() < 40  # noise is what JPEG keeps worst
    with pytest.raises(ValueError, match="in the folders training, validation"):
        FastDataset.from_tfrecord(tmp_path / "out")


def test_images_without_classes(tmp_path):
    write_images(tmp_path / "photos", ["1.png", "2.png"])
    convert_images(tmp_path / "photos", tmp_path / "out")
    (batch,) = batches_of(FastDataset.from_tfrecord(tmp_path / "out", image_size=(8, 8)))
    assert batch.shape == (2, 8, 8, 3)


def test_random_crops_of_converted_images(photos, tmp_path):
    from keras_turbo.data.images import RandomResizedCrop

    convert_images(photos, tmp_path / "out")
    dataset = FastDataset.from_tfrecord(
        tmp_path / "out", image_size=(4, 4), random_resized_crop=RandomResizedCrop(), seed=0
    )
    first, second = batches_of(dataset), batches_of(dataset)
    assert dataset.stored_in is None
    assert not np.array_equal(first[0][0], second[0][0])


@pytest.mark.parametrize("image_size", [None, (4, 4)])
def test_images_that_cannot_be_converted(photos, tmp_path, image_size):
    (photos / "cat" / "3 é.png").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"3 é\.png: .*empty"):
        convert_images(photos, tmp_path / "out", image_size=image_size, shards=2)
    with pytest.raises(FileExistsError, match="with other options"):
        convert_images(photos, tmp_path / "out", image_size=image_size, shards=2, on_error="skip")
    with pytest.raises(ValueError, match="not finished"):
        FastDataset.from_tfrecord(tmp_path / "out")
    manifests = convert_images(photos, tmp_path / "skipped", image_size=image_size, shards=2, on_error="skip")
    assert manifests["all"].num_examples == 13
    assert [path for path, _ in manifests["all"].skipped] == ["cat/3 é.png"]


def test_a_half_of_an_image_is_found_when_it_is_decoded(photos, tmp_path):
    """Case 1 for images that were converted as they are."""
    path = photos / "dög" / "2 é.jpg"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    convert_images(photos, tmp_path / "out", shards=2)
    options = {"image_size": (8, 8), "batch_size": 2}
    with pytest.raises(ExampleLoadError, match="record .* at byte"):
        batches_of(FastDataset.from_tfrecord(tmp_path / "out", **options))
    dataset = FastDataset.from_tfrecord(tmp_path / "out", on_error="skip", **options)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for _ in range(2):
            assert sum(len(y) for _, y in batches_of(dataset)) == 13
    assert len(dataset.skipped) == 1


def test_a_pipe_among_the_images_is_named_and_left_out(photos, tmp_path):
    os.mkfifo(photos / "cat" / "pipe.jpg")
    with pytest.raises(ConversionError, match=r"pipe\.jpg: .*It is a pipe"):
        convert_images(photos, tmp_path / "out")
    manifest = convert_images(photos, tmp_path / "skipped", on_error="skip")["all"]
    assert (manifest.num_examples, [path for path, _ in manifest.skipped]) == (14, ["cat/pipe.jpg"])


def test_nothing_is_written_through_a_link(photos, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.tfrecord").write_bytes(b"somebody's")
    for name in (".converting", ".writing"):
        (tmp_path / name).symlink_to(elsewhere)
    with pytest.raises(FileExistsError, match=r"\.converting' is a link"):
        convert_images(photos, tmp_path)
    with pytest.raises(FileExistsError, match=r"\.writing' is a link"):
        write_tfrecords(FastDataset(np.arange(3)), tmp_path)
    assert [path.name for path in elsewhere.iterdir()] == ["a.tfrecord"]


def test_images_of_which_none_can_be_converted(tmp_path):
    write_images(tmp_path / "photos", ["1.png"])
    (tmp_path / "photos" / "1.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"None of 1 files could be converted, '.*1\.png' among them"):
        convert_images(tmp_path / "photos", tmp_path / "out", on_error="skip")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"quality": 101}, ValueError, "between 1 and 100"),
        ({"validation_split": 1.5}, ValueError, "between 0 and 1"),
        ({"validation_split": 0.01}, ValueError, "leaves none for validation"),
        ({"image_size": (0, 1)}, ValueError, "image_size"),
        ({"resize": "pad"}, ValueError, "needs a size"),
        ({"shards": 0}, ValueError, "shards"),
        ({"on_error": "stop"}, ValueError, "on_error"),
    ],
)
def test_arguments_that_cannot_be(photos, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        convert_images(photos, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_be(photos, tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        convert_images(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ValueError, match="taken for a class"):
        convert_images(photos, photos / "records")
    convert_images(photos, tmp_path / "out")
    with pytest.raises(FileExistsError, match="other images, or made with other options"):
        convert_images(photos, tmp_path / "out", image_size=(4, 4))


def test_a_split_and_none_do_not_meet_in_one_folder(photos, tmp_path):
    split, whole, shards = tmp_path / "split", tmp_path / "whole", tmp_path / "shards"
    first = convert_images(photos, split, validation_split=0.5)
    message = r"split/training' holds records of a conversion with a split.*give the split again"
    with pytest.raises(FileExistsError, match=message):
        convert_images(photos, split)
    assert sorted(os.listdir(split)) == ["training", "validation"]
    assert convert_images(photos, split, validation_split=0.5) == first

    convert_images(photos, whole)
    # Files of somebody else, of which no manifest tells.
    write_records(shards / "part-0.tfrecord", [b"one"])
    for folder, name in ((whole, "manifest.json"), (shards, "part-0.tfrecord")):
        before = sorted(os.listdir(folder))
        with pytest.raises(FileExistsError, match=f"holds records that are not split \\('{name}' among them"):
            convert_images(photos, folder, validation_split=0.5)
        assert sorted(os.listdir(folder)) == before
    with pytest.raises(FileExistsError, match=r"holds records of other images.*'part-0\.tfrecord' among them"):
        convert_images(photos, shards)


def test_what_is_done_is_not_done_again(photos, tmp_path):
    first = convert_images(photos, tmp_path / "out", shards=2)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*")}
    assert convert_images(photos, tmp_path / "out", shards=2) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*")} == times


STOPPING_CONVERSION = """
import itertools, sys, time
from keras_turbo.data import convert

numbers = itertools.count()

def stopping(*options, encoder=convert._encoder):
    # Two files of two images are made; then it waits to be killed.
    encode = encoder(*options)
    return lambda path: time.sleep(600) if next(numbers) >= 5 else encode(path)

convert._encoder = stopping
convert.convert_images(sys.argv[1], sys.argv[2], shards=7)
"""


def test_a_conversion_that_is_killed_goes_on_with_what_is_missing(photos, tmp_path):
    out, expected = tmp_path / "out", tmp_path / "expected"
    process = start_python(STOPPING_CONVERSION, str(photos), str(out))
    deadline = time.monotonic() + 250
    while len(list(out.glob("*.tfrecord"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    with pytest.raises(FileExistsError, match="Another process is writing"):
        convert_images(photos, out, shards=7)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = {path: path.stat().st_ino for path in out.glob("*.tfrecord")}
    assert len(done) == 2
    assert not (out / "manifest.json").exists()
    with pytest.raises(ValueError, match="not finished"):
        FastDataset.from_tfrecord(out)
    convert_images(photos, out, shards=7)
    assert all(path.stat().st_ino == inode for path, inode in done.items())
    convert_images(photos, expected, shards=7)
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    assert all((out / name).read_bytes() == (expected / name).read_bytes() for name in names)


def test_images_that_changed_meanwhile_are_another_conversion(photos, tmp_path):
    (photos / "cat" / "0 é.png").write_bytes(b"")
    with pytest.raises(ConversionError):
        convert_images(photos, tmp_path / "out")
    write_image(photos / "cat" / "0 é.png")
    with pytest.raises(FileExistsError, match="have changed"):
        convert_images(photos, tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    assert convert_images(photos, tmp_path / "out")["all"].num_examples == 14


def test_the_command_line(photos, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["convert", str(photos), str(out), "--shards", "2", "--workers", "1", "--validation-split", "0.5"]
    assert main([*arguments, "--image-size", "4x6", "--quality", "80"]) == 0
    printed = capsys.readouterr().out
    assert "7 images in 2 files" in printed
    assert "validation" in printed
    assert FastDataset.from_tfrecord(out / "training").element_spec[0].shape.as_list() == [None, 4, 6, 3]
    for wrong, message in (
        (["--image-size", "4"], "224x224"),
        (["--shards", "0"], "integer from 1"),
        (["--quality", "200"], "between 1 and 100"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            main(["convert", str(photos), str(tmp_path / "other"), *wrong])
        assert exit_info.value.code == 2
        assert message in capsys.readouterr().err


def test_each_place_names_its_own_option(photos, tmp_path, capsys):
    (photos / "cat" / "3 é.png").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"3 é\.png: it is empty\. \(on_error='skip' leaves such files out\.\)"):
        convert_images(photos, tmp_path / "out")
    with pytest.raises(SystemExit) as exit_info:
        main(["convert", str(photos), str(tmp_path / "other")])
    assert exit_info.value.code == 2
    assert "3 é.png: it is empty. (--on-error skip leaves such files out.)" in capsys.readouterr().err
