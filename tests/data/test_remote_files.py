"""Files behind a scheme: TensorFlow's in-memory file system, and a real S3 server, where tensorflow-io loads."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset, files
from keras_turbo.cli import main
from keras_turbo.data.convert import convert_images, write_tfrecords
from keras_turbo.data.records import copies as copies_module
from keras_turbo.data.sources import csv_table
from keras_turbo.data.sources import tables as table_sources
from tests.data.epochs import batches_of, bytes_of
from tests.data.noise_images import write_images
from tests.data.record_files import FEATURES, numbered, write_records
from tests.data.sound_files import write_wav
from tests.data.table_files import check_columns, write_tables

HAS_TENSORFLOW_IO = importlib.util.find_spec("tensorflow_io") is not None


@pytest.fixture
def store(tmp_path):
    """A folder in TensorFlow's in-memory file system."""
    yield f"ram://{tmp_path.name}"
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.rmtree(f"ram://{tmp_path.name}")


def upload(folder: Path, target: str) -> None:
    """Copies a local folder to one behind a scheme."""
    for path in folder.rglob("*"):
        if path.is_file():
            name = f"{target}/{path.relative_to(folder)}"
            tf.io.gfile.makedirs(name.rpartition("/")[0])
            if tf.io.gfile.exists(name):
                tf.io.gfile.remove(name)  # this file system appends to what is there
            tf.io.gfile.copy(str(path), name)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    write_images(folder, ["größe 1/b.png", "größe 1/a.png", "größe 1/more/c.png", "zwei/ü.png", "zwei/x.png"])
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's own cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "keras_turbo"


class TestFolders:
    def test_images_are_those_of_the_local_folder(self, photos, store):
        upload(photos, f"{store}/photos")
        options = {"image_size": (8, 8), "batch_size": 2, "shuffle": True, "seed": 1}
        far = FastDataset.from_image_folder(f"{store}/photos/", **options)
        near = FastDataset.from_image_folder(photos, **options)
        assert far.class_names == near.class_names
        assert bytes_of(far) == bytes_of(near)
        flat = FastDataset.from_image_folder(Path(f"{store}/photos"), labels=None, image_size=(8, 8), shuffle=False)
        assert flat.file_paths == sorted(flat.file_paths)
        assert len(flat.file_paths) == 5

    def test_what_is_left_out_is_counted(self, photos, store):
        (photos / "zwei" / "notes.txt").write_text("x")
        (photos / "zwei" / ".hidden.png").write_bytes(b"x")
        (photos / "zwei" / "no ending").write_bytes((photos / "zwei" / "x.png").read_bytes())
        (photos / "beside.png").write_bytes((photos / "zwei" / "x.png").read_bytes())
        upload(photos, store)
        with (
            pytest.warns(UserWarning, match="1 images lie beside the class folders of 'ram://.*'beside.png'") as beside,
            pytest.warns(UserWarning, match=r"1 files under 'ram://.* 1 \.txt") as left_out,
        ):
            dataset = FastDataset.from_image_folder(store, image_size=(8, 8), shuffle=False)
        assert len(dataset.file_paths) == 6
        assert {warning.filename for warning in [*beside, *left_out]} == {__file__}

    def test_the_cache_is_here_and_knows_its_files(self, photos, store, cache):
        upload(photos, store)
        options = {"image_size": (8, 8), "cache": "disk", "batch_size": 5, "shuffle": False}
        dataset = FastDataset.from_image_folder(store, **options)
        ((first, _),) = batches_of(dataset)
        dataset._recipe.store.save()
        assert list(cache.rglob("*.npy"))
        again = FastDataset.from_image_folder(store, **options)
        assert again.is_ready
        replacement = (photos / "größe 1" / "b.png").read_bytes() + b"changed"
        with tf.io.gfile.GFile(f"{store}/größe 1/a.png", "w") as file:
            file.write(b"")
        tf.io.gfile.remove(f"{store}/größe 1/a.png")
        with tf.io.gfile.GFile(f"{store}/größe 1/a.png", "wb") as file:
            file.write(replacement)
        ((changed, _),) = batches_of(FastDataset.from_image_folder(store, **options))
        np.testing.assert_array_equal(changed[0], first[1])
        np.testing.assert_array_equal(changed[1:], first[1:])

    def test_audio(self, tmp_path, store):
        expected = [write_wav(tmp_path / "sounds" / "a" / f"{hertz}.wav", hertz) for hertz in (440, 880)]
        upload(tmp_path / "sounds", store)
        dataset = FastDataset.from_audio_folder(store, sample_rate=16_000, length_samples=1600, shuffle=False)
        ((samples, _),) = batches_of(dataset)
        np.testing.assert_array_equal(samples, expected)

    def test_case_13_nothing_there(self, store):
        tf.io.gfile.makedirs(f"{store}/empty")
        with pytest.raises(ValueError, match="no class folders"):
            FastDataset.from_image_folder(f"{store}/empty", shuffle=False)
        with pytest.raises(ValueError, match="No images under"):
            FastDataset.from_image_folder(f"{store}/empty", labels=None, shuffle=False)
        with pytest.raises(FileNotFoundError, match="There is no folder"):
            FastDataset.from_image_folder(f"{store}/none", shuffle=False)
        with tf.io.gfile.GFile(f"{store}/file", "w") as file:
            file.write("x")
        with pytest.raises(NotADirectoryError, match="is a file"):
            FastDataset.from_image_folder(f"{store}/file", shuffle=False)


class TestPatterns:
    def test_files(self, store):
        for number in range(3):
            with tf.io.gfile.GFile(f"{store}/{number} ü.bin", "wb") as file:
                file.write(np.float32([number]).tobytes())
        load = lambda path: tf.io.decode_raw(tf.io.read_file(path), tf.float32)  # noqa: E731
        dataset = FastDataset.from_files(f"{store}/*.bin", load, labels=lambda path: int(path[-7]))
        ((x, y),) = batches_of(dataset)
        assert x.ravel().tolist() == y.tolist() == [0, 1, 2]
        assert dataset.file_paths[0] == f"{store}/0 ü.bin"
        with pytest.raises(ValueError, match=r"No file matches the pattern 'ram://.*\.png'"):
            FastDataset.from_files(f"{store}/*.png", load)


class TestRecords:
    @pytest.mark.parametrize("compression", ["", "GZIP"])
    def test_copies_are_kept_here_and_renewed(self, tmp_path, store, cache, compression):
        for part in range(2):
            write_records(tmp_path / "r" / f"{part}.tfrecord", [numbered(10 * part + n) for n in range(5)], compression)
        upload(tmp_path / "r", store)
        data = FastDataset.from_tfrecord(store, FEATURES, label="number", shuffle=True, seed=1)
        ((_, numbers),) = batches_of(data)
        assert sorted(numbers.tolist()) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
        assert len(list(cache.rglob("*.tfrecord"))) == 2
        assert [entry for entry in tf.io.gfile.listdir(store) if entry.startswith(".")] == []
        write_records(tmp_path / "r" / "1.tfrecord", [numbered(99)], compression)
        tf.io.gfile.remove(f"{store}/1.tfrecord")
        upload(tmp_path / "r", store)
        ((_, numbers),) = batches_of(FastDataset.from_tfrecord(f"{store}/*.tfrecord", FEATURES, label="number"))
        assert numbers.tolist() == [0, 1, 2, 3, 4, 99]
        assert len(list(cache.rglob("*.tfrecord"))) == 2

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_without_room_they_are_read_where_they_are(self, tmp_path, store, cache, monkeypatch, shuffle):
        monkeypatch.setattr(copies_module, "fits_on_disk", lambda size, folder: False)
        for part in range(2):
            write_records(tmp_path / "r" / f"{part}.tfrecord", [numbered(100 * part + n) for n in range(50)])
        upload(tmp_path / "r", store)
        with pytest.warns(UserWarning, match="2 TFRecord files .* would take more") as caught:
            data = FastDataset.from_tfrecord(store, FEATURES, label="number", shuffle=shuffle, seed=1, cache=False)
        assert caught[0].filename == __file__
        numbers = np.concatenate([numbers for _, numbers in batches_of(data)]).tolist()
        expected = [*range(50), *range(100, 150)]
        assert sorted(numbers) == expected
        assert (numbers == expected) is not shuffle
        assert not list(cache.rglob("*.tfrecord"))

    def test_a_truncated_one_is_told_of(self, tmp_path, store, cache):
        path = write_records(tmp_path / "r" / "a.tfrecord", [numbered(n) for n in range(5)])
        os.truncate(path, path.stat().st_size - 3)
        upload(tmp_path / "r", store)
        with pytest.raises(ValueError, match=r"ram://.*/a\.tfrecord, record 4 at byte \d+: the file is truncated"):
            FastDataset.from_tfrecord(store, FEATURES)

    def test_convert_and_back(self, photos, store, cache, capsys):
        assert main(["convert", str(photos), f"{store}/out", "--shards", "2"]) == 0
        assert f"Read them by FastDataset.from_tfrecord('{store}/out')" in capsys.readouterr().out
        names = sorted(tf.io.gfile.listdir(f"{store}/out"))
        assert names == ["00000-of-00002.tfrecord", "00001-of-00002.tfrecord", "manifest.json"]
        far = FastDataset.from_tfrecord(f"{store}/out", image_size=(8, 8))
        near = FastDataset.from_image_folder(photos, image_size=(8, 8), shuffle=False)
        assert bytes_of(far) == bytes_of(near)
        assert far.class_names == near.class_names
        # Again: nothing is left to do. From there to there, with a split:
        assert convert_images(photos, f"{store}/out", shards=2)["all"].num_examples == 5
        upload(photos, f"{store}/photos")
        parts = convert_images(f"{store}/photos", f"{store}/parts", validation_split=0.4)
        assert {name: part.num_examples for name, part in parts.items()} == {"training": 3, "validation": 2}
        with pytest.raises(ValueError, match="lies in"):
            convert_images(f"{store}/photos", f"{store}/photos/out")
        with pytest.raises(FileExistsError, match="holds records of other images"):
            convert_images(f"{store}/photos", f"{store}/out", image_size=(4, 4))
        assert not (cache / "writing").exists() or not list((cache / "writing").iterdir())

    def test_a_conversion_goes_on_where_it_was(self, photos, store, cache):
        bad = photos / "zwei" / "x.png"
        whole = bad.read_bytes()
        bad.write_bytes(b"")
        with pytest.raises(ValueError, match=r"x\.png: it is empty"):
            convert_images(photos, store, shards=5)
        with pytest.raises(ValueError, match="is not finished"):
            FastDataset.from_tfrecord(store)
        # What it was begun with must be what it goes on with.
        with pytest.raises(FileExistsError, match="was begun with other options"):
            convert_images(photos, store, shards=4)
        bad.write_bytes(whole)
        with pytest.raises(FileExistsError, match="was begun of other images"):
            convert_images(photos, store, shards=5)

    def test_write_tfrecords(self, store, cache):
        dataset = FastDataset(np.arange(10, dtype=np.float32)[:, None], np.arange(10), batch_size=4)
        manifest = write_tfrecords(dataset, f"{store}/out", shards=3, compression="GZIP")
        assert manifest.num_examples == 10
        assert bytes_of(FastDataset.from_tfrecord(f"{store}/out", batch_size=4)) == bytes_of(dataset)
        with pytest.raises(FileExistsError, match="has records already"):
            write_tfrecords(dataset, f"{store}/out")
        with pytest.raises(ValueError, match="must name a bucket"):
            write_tfrecords(dataset, "ram://")

    def test_files_of_a_write_that_was_broken_off_are_not_taken_for_all(self, store, cache, monkeypatch):
        dataset = FastDataset(np.arange(10.0), batch_size=4)
        upload_file = tf.io.gfile.copy

        def broken_off(local_path, path, **options):
            if "00001-of" in path:
                raise KeyboardInterrupt
            upload_file(local_path, path, **options)

        monkeypatch.setattr(tf.io.gfile, "copy", broken_off)
        with pytest.raises(KeyboardInterrupt):
            write_tfrecords(dataset, store, shards=3)
        with pytest.raises(ValueError, match="is not finished, or was killed"):
            FastDataset.from_tfrecord(store)
        monkeypatch.undo()
        tf.io.gfile.remove(f"{store}/00000-of-00003.tfrecord")  # this file system appends to what is there
        write_tfrecords(dataset, store, shards=3)
        assert bytes_of(FastDataset.from_tfrecord(store, batch_size=4)) == bytes_of(dataset)
        assert sorted(tf.io.gfile.listdir(store))[-1] == "manifest.json"


class TestTables:
    @pytest.fixture(params=["in memory", "by row groups"])
    def anywhere(self, request, monkeypatch):
        """Both ways in which a table is read."""
        if request.param == "by row groups":
            monkeypatch.setattr(csv_table, "free_memory_bytes", lambda: 0)
            monkeypatch.setattr(table_sources, "fits_in_memory", lambda num_bytes: False)
        return request.param

    @staticmethod
    def numbers_of(dataset):
        return [number for x in dataset for number in check_columns(x)]

    def test_parquet_is_that_of_the_local_folder(self, tmp_path, store, anywhere):
        write_tables(tmp_path / "täbles", [50, 30], ragged=True)
        (tmp_path / "täbles" / "_SUCCESS.parquet").touch()
        (tmp_path / "täbles" / "empty ü.parquet").touch()
        (tmp_path / "täbles" / "folder.parquet").mkdir()
        write_tables(tmp_path / "täbles" / "folder.parquet", [5])
        upload(tmp_path / "täbles", f"{store}/täbles")
        options = {"batch_size": 10, "shuffle": True, "seed": 1, "shuffle_row_groups": 2}
        near = FastDataset.from_parquet(tmp_path / "täbles", **options)
        expected = self.numbers_of(near)
        assert sorted(expected) == list(range(80))
        far = FastDataset.from_parquet(Path(f"{store}/täbles"), **options)
        assert self.numbers_of(far) == expected
        far.resume_at(1, 3)
        assert self.numbers_of(far) == self.numbers_of(near)[30:]
        one = FastDataset.from_parquet(f"{store}/t*/part-1.parquet", ["number", "größe.cm"], batch_size=7)
        assert self.numbers_of(one) == list(range(50, 80))

    def test_csv_is_that_of_the_local_file(self, tmp_path, store, cache, anywhere):
        for name, start in (("a ü.csv", 0), ("b.csv.gz", 200)):
            text = "number,name\n" + "".join(f'{k},"name {k}"\n' for k in range(start, start + 200))
            (tmp_path / "t").mkdir(exist_ok=True)
            pack = gzip.compress if name.endswith("gz") else bytes
            (tmp_path / "t" / name).write_bytes(pack(text.encode()))
        upload(tmp_path / "t", store)
        for pattern in (store, f"{store}/*.csv*", [f"{store}/b.csv.gz", f"{store}/a ü.csv"]):
            assert self.numbers_of(FastDataset.from_csv(pattern)) == list(range(400))
        assert len(list(cache.rglob("*.parquet"))) == (0 if anywhere == "in memory" else 2)
        tf.io.gfile.remove(f"{store}/a ü.csv")
        (tmp_path / "t" / "a ü.csv").write_text("number,name\n7,name 7\n")
        upload(tmp_path / "t", store)
        assert self.numbers_of(FastDataset.from_csv(store)) == [7, *range(200, 400)]
        numbers = self.numbers_of(FastDataset.from_csv(store, shuffle=True, seed=0))
        assert numbers != sorted(numbers) == [7, *range(200, 400)]

    def test_a_changed_one_is_told_of(self, tmp_path, store):
        write_tables(tmp_path / "t", [50])
        upload(tmp_path / "t", store)
        dataset = FastDataset.from_parquet(store, ["number"], cache=False)
        write_tables(tmp_path / "t", [51])
        upload(tmp_path / "t", store)
        with pytest.raises(ValueError, match=r"ram://.*part-0\.parquet has changed since the dataset was built"):
            batches_of(dataset)
        with (
            pytest.raises(OSError, match="It has changed while it was read"),
            files.opened(f"{store}/part-0.parquet"),
        ):
            write_tables(tmp_path / "t", [52])
            upload(tmp_path / "t", store)

    @pytest.mark.parametrize("make", [FastDataset.from_parquet, FastDataset.from_csv])
    def test_what_is_not_there_or_damaged(self, tmp_path, store, make):
        kind = make.__name__.removeprefix("from_")
        write_tables(tmp_path / "t", [50, 50])
        (tmp_path / "t" / "part-0.parquet").rename(tmp_path / "t" / "a.csv")
        (tmp_path / "t" / "part-1.parquet").write_bytes(b"PAR1 and no more")
        upload(tmp_path / "t", f"{store}/t/below")
        with pytest.raises(ValueError, match=rf"in it\. There are some below: give 'ram://.*/t/\*\*/\*\.{kind}'"):
            make(f"{store}/t")
        with pytest.raises(ValueError, match=rf"No file matches the pattern 'ram://.*/none/\*\.{kind}'"):
            make(f"{store}/none/*.{kind}")
        with pytest.raises(ValueError, match="No file matches the pattern"):
            make(f"{store}/none")
        with pytest.raises(ValueError, match=r"ram://.*(part-1\.parquet|a\.csv): it can't be read as"):
            make(f"{store}/t/below")


class TestSchemes:
    @pytest.fixture(autouse=True)
    def elsewhere(self, tmp_path, monkeypatch):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        yield
        assert os.listdir(tmp_path / "here") == []

    def test_one_that_nothing_here_reads_says_what_brings_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "s3fs", None)
        path = "s3a://bucket/data"  # TensorFlow does not have this one
        message = rf"No file system is installed for '{path}.*pip install \"keras_turbo\[remote\]\""
        for act in (
            lambda: FastDataset.from_image_folder(path, shuffle=False),
            lambda: FastDataset.from_image_folder(Path(path), shuffle=False),
            lambda: FastDataset.from_audio_folder(path, sample_rate=1, length_samples=1, shuffle=False),
            lambda: FastDataset.from_files([f"{path}/a"], lambda p: p),
            lambda: FastDataset.from_tfrecord(path),
            lambda: FastDataset.from_parquet(path),
            lambda: FastDataset.from_parquet(Path(f"{path}/*.parquet")),
            lambda: FastDataset.from_csv([f"{path}/a.csv"]),
            lambda: convert_images(path, "out"),
            lambda: convert_images("photos", path),
            lambda: write_tfrecords(FastDataset(np.zeros(3)), path),
        ):
            with pytest.raises(ValueError, match=message):
                act()

    def test_others(self, capsys):
        with pytest.raises(ValueError, match="No file system is installed for 'foo://x'"):
            FastDataset.from_image_folder("foo://x", shuffle=False)
        with pytest.raises(ValueError, match=r"Meant: s3://bucket\?"):
            FastDataset.from_image_folder("s3:/bucket", shuffle=False)
        with pytest.raises(ValueError, match="`cache_dir` must be a folder of this machine"):
            FastDataset(np.zeros(3), cache_dir="ram://cache")
        with pytest.raises(SystemExit):
            main(["convert", "photos", "foo://x"])
        assert "No file system is installed for 'foo://x'" in capsys.readouterr().err

    def test_file_is_this_machine(self, photos):
        dataset = FastDataset.from_image_folder(f"file://{photos}", image_size=(8, 8), shuffle=False)
        assert dataset.file_paths == FastDataset.from_image_folder(photos, image_size=(8, 8), shuffle=False).file_paths


S3 = Path(__file__).with_name("s3_run.py")


@pytest.mark.slow
@pytest.mark.compatibility
@pytest.mark.skipif(not HAS_TENSORFLOW_IO, reason="tensorflow-io, which brings s3://, loads on TensorFlow 2.17 only")
def test_s3(s3_environment, photos, tmp_path):
    """One process, which loads TensorFlow once, tries it all; what it asserts fails this test."""
    write_wav(tmp_path / "sounds" / "a" / "1.wav")
    environment = {**os.environ, **s3_environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(S3), str(photos), str(tmp_path / "sounds")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"
    assert sorted(os.listdir(tmp_path)) == ["cache", "photos", "sounds"]
