"""Relative paths are those of the folder in which a dataset is built, wherever the process is when it is iterated."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.convert import write_tfrecords
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.functions import PythonFunction
from keras_turbo.data.sources import csv_table
from tests.data.epochs import batches_of
from tests.data.noise_images import write_images
from tests.data.sound_files import write_wav


def decoded(path):
    return tf.io.decode_png(tf.io.read_file(path))


def first_bytes(path):
    with open(path, "rb") as file:
        return np.frombuffer(file.read(8), np.uint8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that relative paths are of; the process works in it."""
    write_images(tmp_path / "photos", ["a/1.png", "a/2.png", "b/3.png"])
    write_wav(tmp_path / "sounds" / "a" / "1.wav")
    (tmp_path / "tables").mkdir()
    table = pa.table({"n": range(40), "y": range(40)})
    pyarrow.parquet.write_table(table, tmp_path / "tables" / "a.parquet", row_group_size=10)
    pyarrow.csv.write_csv(table, tmp_path / "tables" / "a.csv")
    for name, compression in (("records", None), ("packed", "GZIP")):
        write_tfrecords(FastDataset(np.arange(20)), tmp_path / name, shards=2, compression=compression)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES = {
    "images": lambda: FastDataset.from_image_folder("photos", image_size=(8, 8), cache=False, shuffle=False),
    "images on disk": lambda: FastDataset.from_image_folder(
        "photos", image_size=(8, 8), cache="disk", cache_dir="kept", shuffle=False
    ),
    "files": lambda: FastDataset.from_files("photos/*/*.png", decoded),
    "files by Python": lambda: FastDataset.from_files("photos/*/*.png", PythonFunction(first_bytes), workers=0),
    "records": lambda: FastDataset.from_tfrecord("records", cache=False),
    "a pattern of records": lambda: FastDataset.from_tfrecord("records/*.tfrecord", cache=False),
    "packed records": lambda: FastDataset.from_tfrecord("packed", cache=False, cache_dir="kept"),
    "sounds": lambda: FastDataset.from_audio_folder(
        "sounds", sample_rate=16_000, length_seconds=0.1, cache=False, shuffle=False
    ),
    "Parquet in memory": lambda: FastDataset.from_parquet("tables/*.parquet", label="y"),
    "Parquet by row groups": lambda: FastDataset.from_parquet("tables", label="y", cache=False),
    "CSV": lambda: FastDataset.from_csv("tables/*.csv", label="y"),
    "arrays on disk": lambda: FastDataset(np.arange(20), map_fn=lambda x: x + 1, cache="disk", cache_dir="kept"),
}


def check(make, folder):
    expected = batches_of(make())
    shutil.rmtree("kept", ignore_errors=True)
    dataset = make()
    os.chdir(folder / "elsewhere")
    for _ in range(2):
        tf.nest.map_structure(np.testing.assert_array_equal, batches_of(dataset), expected)
    assert os.listdir() == []
    return dataset


@pytest.mark.parametrize("name", CASES)
def test_the_folder_may_change_before_the_first_epoch(name, folder):
    check(CASES[name], folder)


def test_a_table_that_is_larger_than_memory(folder, monkeypatch):
    monkeypatch.setattr(csv_table, "free_memory_bytes", lambda: 0)
    check(lambda: FastDataset.from_csv("tables/*.csv", label="y", cache_dir="kept"), folder)


def test_files_are_called_what_they_were(folder):
    dataset = check(CASES["files"], folder)
    assert dataset.file_paths == ["photos/a/1.png", "photos/a/2.png", "photos/b/3.png"]
    (folder / "photos" / "a" / "2.png").unlink()
    with pytest.raises(ExampleLoadError, match=r"^photos/a/2\.png: "):
        batches_of(dataset.shard(1, 0))
