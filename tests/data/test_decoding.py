"""Decoders in worker processes: the bytes and the failures of threads."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from PIL import Image

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.images import RandomResizedCrop
from keras_turbo.data.workers import decoding
from keras_turbo.data.workers.decoding import InProcesses


@pytest.fixture(autouse=True)
def collected():
    """Processes go with the dataset, which an exception may hold in a circle."""
    yield
    gc.collect()


@pytest.fixture
def photos(tmp_path):
    random = np.random.default_rng(0)
    for number in range(14):
        folder = tmp_path / "photos" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        ending = "png" if number == 5 else "jpg"
        size = (int(random.integers(20, 60)), int(random.integers(20, 60)), 3)
        Image.fromarray(random.integers(0, 256, size, np.uint8)).save(folder / f"{number:02}.{ending}")
    return tmp_path / "photos"


def in_processes(monkeypatch, *arguments, **options):
    """The dataset as it would be on a machine with more cores."""
    monkeypatch.setattr(decoding, "CORES_OF_A_PROCESS", 1)
    monkeypatch.setattr(decoding, "FEWEST_EXAMPLES", 1)
    monkeypatch.setattr(decoding, "available_cores", lambda: 2)
    dataset = FastDataset.from_image_folder(*arguments, **{"shuffle": False, **options})
    assert isinstance(dataset._source, InProcesses)
    return dataset


def halved(x):
    return x[:8] / 2


@pytest.mark.parametrize(
    "options",
    [
        {"image_size": (32, 24), "batch_size": 4, "shuffle": True, "random_resized_crop": RandomResizedCrop()},
        {"image_size": (32, 24), "batch_size": 4, "cache": "memory", "map_fn": halved},
        {"image_size": None, "batch_size": None},
    ],
)
def test_bytes_are_those_of_threads(photos, monkeypatch, options):
    threads = FastDataset.from_image_folder(photos, seed=3, **{"shuffle": False, **options})
    processes = in_processes(monkeypatch, photos, seed=3, **options)
    assert processes.element_spec == threads.element_spec
    assert processes.order_settings == threads.order_settings
    assert (processes.class_names, processes.workers) == (threads.class_names, None)
    for _ in range(2):
        for (x, y), (expected_x, expected_y) in zip(processes, threads, strict=True):
            np.testing.assert_array_equal(x, expected_x)
            np.testing.assert_array_equal(y, expected_y)
    resumed = [x.numpy().tobytes() for x, _ in threads]
    processes.resume_at(2, 2)
    assert [x.numpy().tobytes() for x, _ in processes] == resumed[2:]


def test_failures_are_those_of_threads(photos, monkeypatch):
    damaged = sorted(photos.glob("*/*.jpg"))[3]
    damaged.write_bytes(damaged.read_bytes()[:200])
    options = {"image_size": (32, 24), "batch_size": 4, "cache": False, "shuffle": False}
    texts = []
    for make in (FastDataset.from_image_folder, lambda *args, **kw: in_processes(monkeypatch, *args, **kw)):
        with pytest.raises(ExampleLoadError, match=str(damaged)) as raised:
            list(make(photos, **options))
        dataset = make(photos, on_error="skip", **options)
        with pytest.warns(UserWarning, match="An example was left out"):
            batches = [x.numpy().tobytes() for x, _ in dataset]
        texts.append((str(raised.value), dataset.skipped, batches))
    assert texts[0] == texts[1]


def test_parts_and_labels(photos, monkeypatch):
    dataset = in_processes(monkeypatch, photos, image_size=(32, 24), batch_size=4)
    plain = FastDataset.from_image_folder(photos, image_size=(32, 24), batch_size=4, shuffle=False)
    assert dataset.file_paths == plain.file_paths
    assert dataset.labels.tolist() == plain.labels.tolist()
    for index in range(2):
        parts = zip(dataset.shard(2, index), plain.shard(2, index), strict=True)
        assert all(np.array_equal(x, expected) for (x, _), (expected, _) in parts)


@pytest.mark.parametrize(
    ("cores", "workers", "number", "kind"),
    [(8, None, 10**6, None), (64, None, 1000, None), (64, 4, 10**6, None), (64, None, 10**6, InProcesses)],
)
def test_which_kind_is_chosen(photos, monkeypatch, cores, workers, number, kind):
    monkeypatch.setattr(decoding, "available_cores", lambda: cores)
    monkeypatch.setattr(decoding, "FEWEST_EXAMPLES", decoding.FEWEST_EXAMPLES * 14 // number)
    dataset = FastDataset.from_image_folder(photos, image_size=(32, 24), workers=workers, shuffle=False)
    assert isinstance(dataset._source, InProcesses) == (kind is not None)
