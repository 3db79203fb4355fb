"""Stores on disk: read by plain numpy, continued after a kill, rebuilt when stale or damaged, shared by processes."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import subprocess
import sys
import warnings
import weakref
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine import disk_store
from keras_turbo.data.engine.disk_store import DiskStore, open_disk_store, private_disk_store
from keras_turbo.data.engine.elements import Elements
from tests.data.epochs import rows_of
from tests.data.garbage import goes, keep_no_logs
from tests.data.processes import output_of, run_python, start_python

pytestmark = pytest.mark.compatibility

SPEC = {"x": tf.TensorSpec((3,), tf.float32), "y": tf.TensorSpec((), tf.int32)}
ELEMENTS = Elements(SPEC)
NUM_EXAMPLES = 6
RECIPE = {"kind": "test"}
CONTENT = {"files": [["a.bin", 12, 34]]}


def examples_at(positions: list[int]) -> list[np.ndarray]:
    rows = np.asarray(positions, "float32")
    return [rows[:, None] + np.array([0.1, 0.2, 0.3], "float32"), (rows * 10).astype("int32")]


def opened(folder: Path, *, recipe=RECIPE, content=CONTENT, num_examples: int = NUM_EXAMPLES) -> DiskStore:
    return open_disk_store(ELEMENTS, num_examples, folder, recipe, content)


def fill(store: DiskStore, positions: list[int]) -> None:
    store.put(np.array(positions), examples_at(positions))


def assert_has(store: DiskStore, positions: list[int]) -> None:
    for column, expected in zip(store.gather(np.array(positions), None), examples_at(positions), strict=True):
        np.testing.assert_array_equal(column, expected)


def filled_positions(store: DiskStore) -> list[int]:
    return np.flatnonzero(store.has(np.arange(len(store)))).tolist()


def everything_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class TestFolder:
    def test_numpy_and_json_read_it(self, tmp_path):
        store = opened(tmp_path)
        fill(store, [0, 1, 2, 3, 4, 5])
        store.save()
        manifest = json.loads((store.folder / "manifest.json").read_text())
        assert manifest["num_examples"] == NUM_EXAMPLES
        assert manifest["content"] == CONTENT
        assert manifest["recipe"]["how"] == RECIPE
        assert manifest["recipe"]["leaves"] == [[[3], "float32"], [[], "int32"]]
        arrays = [np.load(store.folder / name, allow_pickle=False) for name in ("0.npy", "1.npy", "sums.npy")]
        expected = examples_at(list(range(NUM_EXAMPLES)))
        np.testing.assert_array_equal(arrays[0], expected[0])
        np.testing.assert_array_equal(arrays[1], expected[1])
        rows = [arrays[0][index].tobytes() + arrays[1][index].tobytes() for index in range(NUM_EXAMPLES)]
        assert arrays[2].tolist() == [zlib.crc32(row) for row in rows]
        assert store.folder.parent.parent == tmp_path

    def test_leaves_nothing_else_behind(self, tmp_path):
        store = opened(tmp_path)
        fill(store, [0, 5])
        store.save()
        assert sorted(os.listdir(store.folder)) == ["0.npy", "1.npy", "manifest.json", "sums.npy"]
        assert os.listdir(tmp_path) == [store.folder.parent.name]
        assert os.listdir(store.folder.parent) == [store.folder.name]

    def test_others_may_read_it(self, tmp_path):
        store = opened(tmp_path)
        assert store.folder.stat().st_mode & 0o055 == 0o055

    def test_is_continued_by_the_next_store(self, tmp_path, monkeypatch):
        keep_no_logs(monkeypatch)
        store = opened(tmp_path)
        fill(store, [1, 4])
        marks = store.folder / "sums.npy"
        assert not marks.exists()
        del store
        assert goes(marks.exists)
        again = opened(tmp_path)
        assert filled_positions(again) == [1, 4]
        assert_has(again, [4, 1])

    def test_two_open_stores_add_up(self, tmp_path):
        one, other = opened(tmp_path), opened(tmp_path)
        fill(one, [0, 1])
        fill(other, [3])
        one.save()
        other.save()
        assert filled_positions(opened(tmp_path)) == [0, 1, 3]

    def test_marks_are_saved_now_and_then_while_filling(self, tmp_path, monkeypatch):
        store = opened(tmp_path)
        fill(store, [0])
        assert not (store.folder / "sums.npy").exists()
        monkeypatch.setattr(disk_store, "_SAVE_INTERVAL_SECONDS", 0.0)
        fill(store, [1])
        assert (np.load(store.folder / "sums.npy") >= 0).tolist() == [True, True, False, False, False, False]


class TestStale:
    @pytest.mark.parametrize(
        "change",
        [{"content": {"files": [["a.bin", 13, 34]]}}, {"num_examples": NUM_EXAMPLES + 1}],
        ids=["content", "number"],
    )
    def test_changed_sources_get_a_new_store_and_the_old_goes(self, tmp_path, change):
        old = opened(tmp_path)
        fill(old, [0, 1])
        old.save()
        new = opened(tmp_path, **change)
        assert filled_positions(new) == []
        assert not old.folder.exists()
        assert os.listdir(new.folder.parent) == [new.folder.name]

    def test_another_recipe_is_another_store(self, tmp_path):
        one = opened(tmp_path)
        fill(one, [0])
        one.save()
        other = opened(tmp_path, recipe={"kind": "other"})
        assert filled_positions(other) == []
        assert filled_positions(opened(tmp_path)) == [0]

    def test_other_shapes_are_another_store(self, tmp_path):
        one = opened(tmp_path)
        other = open_disk_store(
            Elements({**SPEC, "x": tf.TensorSpec((4,), tf.float32)}), NUM_EXAMPLES, tmp_path, RECIPE, CONTENT
        )
        assert other.folder != one.folder
        assert one.folder.exists()

    def test_a_store_of_another_format_version_is_not_read(self, tmp_path, monkeypatch):
        store = opened(tmp_path)
        fill(store, [0])
        store.save()
        monkeypatch.setattr(disk_store, "FORMAT_VERSION", disk_store.FORMAT_VERSION + 1)
        assert filled_positions(opened(tmp_path)) == []

    def test_begun_and_abandoned_folders_are_swept(self, tmp_path):
        family = opened(tmp_path).folder.parent
        old, young = family / ".writing-old", family / ".writing-young"
        for folder in (old, young):
            folder.mkdir()
            (folder / "0.npy").write_bytes(b"x")
        os.utime(old, (0, 0))
        opened(tmp_path)
        assert not old.exists()
        assert young.exists()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x00nonsense\xff" * 30)


@pytest.mark.parametrize("damage", [truncate, empty, overwrite, os.unlink], ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", ["manifest.json", "0.npy", "1.npy", "sums.npy"])
def test_a_damaged_store_is_rebuilt(tmp_path, name, damage):
    store = opened(tmp_path)
    fill(store, [0, 1, 2])
    store.save()
    damage(store.folder / name)
    again = opened(tmp_path)
    # Nothing vouches for data any more: everything is made anew.
    assert filled_positions(again) == []
    fill(again, [0, 4])
    assert_has(again, [4, 0])
    again.save()
    # Whoever has the old one open does not vouch for it in the new; but if marks are all that was lost, it can.
    store.save()
    only_marks_are_lost = name == "sums.npy" and damage is os.unlink
    assert filled_positions(opened(tmp_path)) == ([0, 1, 2, 4] if only_marks_are_lost else [0, 4])


def test_a_flipped_bit_is_found_and_the_row_made_anew(tmp_path):
    store = opened(tmp_path)
    fill(store, list(range(NUM_EXAMPLES)))
    store.save()
    content = bytearray((store.folder / "0.npy").read_bytes())
    content[-12 * 2] ^= 1  # in the row before the last
    (store.folder / "0.npy").write_bytes(content)
    again = opened(tmp_path)
    assert not again.is_complete
    assert filled_positions(again) == [0, 1, 2, 3, 5]
    fill(again, [4])
    assert again.is_complete
    assert_has(again, list(range(NUM_EXAMPLES)))


def test_a_folder_removed_under_way_disturbs_nobody(tmp_path):
    store = opened(tmp_path)
    fill(store, [0, 1])
    shutil.rmtree(tmp_path)
    fill(store, [2])
    store.save()
    assert_has(store, [2, 0, 1])
    assert not store.folder.exists()


def test_a_store_that_may_only_be_read_is_used(tmp_path, monkeypatch):
    store = opened(tmp_path)
    fill(store, list(range(NUM_EXAMPLES)))
    store.save()
    folder = store.folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    # What the kernel answers for somebody else's files; the tests may run as root, to whom it answers otherwise.
    really_open = np.lib.format.open_memmap

    def open_memmap(path, mode="r+", **options):
        if mode in ("r+", "w+"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really_open(path, mode=mode, **options)

    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(np.lib.format, "open_memmap", open_memmap)
    monkeypatch.setattr(disk_store.files, "writing", refuse)
    again = opened(tmp_path)
    assert filled_positions(again) == list(range(NUM_EXAMPLES))
    assert_has(again, [5, 3, 0])
    fill(again, [3])
    again.save()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_marks_are_not_saved_for_rows_that_stay_private(tmp_path, monkeypatch):
    """A half-filled store whose arrays belong to somebody else, in a folder that may be written."""
    store = opened(tmp_path)
    fill(store, [0])
    store.save()
    really_open = np.lib.format.open_memmap

    def open_memmap(path, mode="r+", **options):
        if mode == "r+":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really_open(path, mode=mode, **options)

    monkeypatch.setattr(np.lib.format, "open_memmap", open_memmap)
    reader = opened(tmp_path)
    fill(reader, [3])
    assert_has(reader, [0, 3])
    reader.save()
    monkeypatch.undo()
    assert filled_positions(opened(tmp_path)) == [0]


@pytest.fixture
def full_disk(monkeypatch):
    """A disk without room."""

    def posix_fallocate(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)


class TestFullDisk:
    def test_a_shared_store_says_so_and_leaves_nothing(self, tmp_path, full_disk):
        with pytest.raises(OSError, match="No space left on device"):
            opened(tmp_path)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_a_private_store_says_so_and_leaves_nothing(self, tmp_path, full_disk):
        with pytest.raises(OSError, match="No space left on device"):
            private_disk_store(ELEMENTS, NUM_EXAMPLES, tmp_path)
        assert everything_under(tmp_path) == {"private"}

    def test_asked_for_it_is_an_error(self, tmp_path, full_disk):
        x = np.arange(8, dtype="float32")
        with pytest.raises(OSError, match="No space left on device"):
            FastDataset(x, map_fn=lambda x: x * 2, cache="disk", cache_dir=tmp_path)

    def test_not_asked_for_it_is_a_warning(self, tmp_path, full_disk, monkeypatch):
        monkeypatch.setattr("keras_turbo.data.assembly.fits_in_memory", lambda num_bytes: False)
        x = np.arange(8, dtype="float32")
        with pytest.warns(UserWarning, match=r"not cached: .*No space left on device.*`cache_dir`"):
            dataset = FastDataset(x, map_fn=lambda x: x * 2, cache="auto", cache_dir=tmp_path)
        assert dataset.stored_in is None
        for _ in range(2):
            np.testing.assert_array_equal(rows_of(dataset), x * 2)


class TestPrivate:
    def test_goes_with_its_user(self, tmp_path, monkeypatch):
        keep_no_logs(monkeypatch)
        store = private_disk_store(ELEMENTS, NUM_EXAMPLES, tmp_path)
        fill(store, [0, 3])
        assert_has(store, [3, 0])
        assert store.folder.exists()
        del store
        assert goes(lambda: os.listdir(tmp_path / "private") == [])

    def test_two_do_not_meet(self, tmp_path):
        one, other = (private_disk_store(ELEMENTS, NUM_EXAMPLES, tmp_path) for _ in range(2))
        fill(one, [0])
        assert filled_positions(other) == []

    def test_leftovers_of_dead_processes_are_swept(self, tmp_path):
        alive = private_disk_store(ELEMENTS, NUM_EXAMPLES, tmp_path)
        mine = alive.folder.parent
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        dead = mine.with_name(mine.name.replace(str(os.getpid()), str(process.pid)))
        elsewhere = mine.with_name(f"0123456789-{process.pid}-x")
        for folder in (dead, elsewhere):
            folder.mkdir()
            (folder / "0.npy").write_bytes(b"x")
        private_disk_store(ELEMENTS, NUM_EXAMPLES, tmp_path)
        assert not dead.exists()
        assert alive.folder.exists()
        # Another machine's processes can't be seen from here.
        assert elsewhere.exists()

    @pytest.mark.slow
    def test_a_process_that_ends_takes_it_along(self, tmp_path):
        script = """
import pathlib, sys
import tensorflow as tf
from keras_turbo import FastDataset

data = FastDataset(tf.data.Dataset.range(4), cache="disk", cache_dir=sys.argv[1])
print([int(v) for batch in data for v in batch], len(list(pathlib.Path(sys.argv[1]).glob("private/*/store/0.npy"))))
"""
        assert run_python(script, str(tmp_path)).strip() == "[0, 1, 2, 3] 1"
        assert os.listdir(tmp_path / "private") == []


# Loads files of four float32 numbers, so that a store is filled as other processes ask for.
LOADING_SCRIPT = """
import sys
import tensorflow as tf
from keras_turbo import FastDataset
from keras_turbo.data.engine import disk_store

disk_store._SAVE_INTERVAL_SECONDS = 0.0


def load(path):
    return tf.ensure_shape(tf.io.decode_raw(tf.io.read_file(path), tf.float32), [4])


data = FastDataset.from_files(
    sys.argv[1] + "/*.bin", load, batch_size=2, workers=1, cache="disk", cache_dir=sys.argv[2]
)
print("ready", flush=True)
"""


def load(path: tf.Tensor) -> tf.Tensor:
    """The same function as in the script."""
    return tf.ensure_shape(tf.io.decode_raw(tf.io.read_file(path), tf.float32), [4])


def loaded_from(folder: Path, cache_dir: Path) -> FastDataset:
    return FastDataset.from_files(f"{folder}/*.bin", load, batch_size=2, workers=1, cache="disk", cache_dir=cache_dir)


@pytest.fixture
def number_files(tmp_path):
    """Twelve files, and what is in them."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    numbers = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
    for index, row in enumerate(numbers):
        (folder / f"{index:02d}.bin").write_bytes(row.tobytes())
    return folder, numbers


class TestFiles:
    def test_a_second_dataset_loads_nothing(self, tmp_path, number_files):
        folder, numbers = number_files
        first = loaded_from(folder, tmp_path / "cache")
        rows_of(first)
        first._recipe.store.save()
        again = loaded_from(folder, tmp_path / "cache")
        assert again._recipe.store.num_filled == 12
        np.testing.assert_array_equal(rows_of(again), numbers)

    def test_changed_files_are_read_anew(self, tmp_path, number_files):
        folder, numbers = number_files
        rows_of(loaded_from(folder, tmp_path / "cache"))
        numbers[3] = 7
        (folder / "03.bin").write_bytes(numbers[3].tobytes())
        again = loaded_from(folder, tmp_path / "cache")
        assert again._recipe.store.num_filled == 0
        np.testing.assert_array_equal(rows_of(again), numbers)

    def test_another_file_makes_a_new_store(self, tmp_path, number_files):
        folder, numbers = number_files
        rows_of(loaded_from(folder, tmp_path / "cache"))
        (folder / "00a.bin").write_bytes(np.full(4, 9, "float32").tobytes())
        np.testing.assert_array_equal(
            rows_of(loaded_from(folder, tmp_path / "cache")), np.insert(numbers, 1, 9, axis=0)
        )

    @pytest.mark.slow
    def test_a_killed_process_s_store_is_continued(self, tmp_path, number_files):
        folder, numbers = number_files
        script = (
            LOADING_SCRIPT
            + """
for count, batch in enumerate(data):
    if count == 2:
        print("under way", flush=True)
        sys.stdin.read()
"""
        )
        process = start_python(script, str(folder), str(tmp_path / "cache"))
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "under way\n"]
        process.kill()
        process.communicate()
        continued = loaded_from(folder, tmp_path / "cache")
        assert 6 <= continued._recipe.store.num_filled < 12
        np.testing.assert_array_equal(rows_of(continued), numbers)
        assert continued._recipe.store.num_filled == 12

    @pytest.mark.slow
    def test_two_processes_fill_one_store(self, tmp_path, number_files):
        folder, numbers = number_files
        script = (
            LOADING_SCRIPT
            + """
sys.stdin.readline()
for _ in range(2):
    print([batch.numpy().tolist() for batch in data], flush=True)
"""
        )
        processes = [start_python(script, str(folder), str(tmp_path / "cache")) for _ in range(2)]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            epochs = [np.array(json.loads(line), "float32").reshape(12, 4) for line in output_of(process).splitlines()]
            np.testing.assert_array_equal(epochs, [numbers, numbers])
        (store,) = (tmp_path / "cache").glob("*/*")
        np.testing.assert_array_equal(np.load(store / "0.npy", allow_pickle=False), numbers)
        assert (np.load(store / "sums.npy") >= 0).all()


class TestChoice:
    def test_a_store_goes_with_its_dataset(self, monkeypatch):
        """TensorFlow keeps what it calls in Python for good; that must not be the store."""
        keep_no_logs(monkeypatch)
        dataset = FastDataset(np.arange(8, dtype="float32"), map_fn=lambda x: x + 1, cache="memory")
        for _ in range(2):
            rows_of(dataset.map(lambda x: x * 2).take(3))
        store = weakref.ref(dataset._recipe.store)
        failures = weakref.ref(dataset._recipe.failures)
        del dataset
        assert goes(lambda: store() is None and failures() is None)

    def test_a_store_stays_as_long_as_somebody_iterates(self):
        def part() -> tf.data.Dataset:
            return FastDataset(np.arange(6), batch_size=1, map_fn=lambda x: x + 1, cache="memory").skip(1).take(4)

        dataset = part()
        gc.collect()
        assert rows_of(dataset).tolist() == [2, 3, 4, 5]
        iterator = iter(part())
        gc.collect()
        assert [int(batch[0]) for batch in iterator] == [2, 3, 4, 5]

    def test_nothing_is_written_outside_cache_dir(self, tmp_path, monkeypatch):
        home, cache = tmp_path / "home", tmp_path / "cache"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        monkeypatch.chdir(home)
        x = np.arange(8, dtype="float32")
        dataset = FastDataset(x, map_fn=lambda x: x + 1, cache="disk", cache_dir=cache)
        rows_of(dataset)
        dataset.report(seconds=0.1)
        assert dataset.stored_in == "disk"
        assert everything_under(home) == set()
        assert [path.suffix for path in cache.rglob("*.npy")]

    def test_the_default_folder_is_the_user_s_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        dataset = FastDataset(np.arange(8, dtype="float32"), map_fn=lambda x: x + 1, cache="disk")
        rows_of(dataset)
        assert os.listdir(tmp_path) == ["keras_turbo"]
        assert list((tmp_path / "keras_turbo" / "examples").glob("*/*/0.npy"))

    def test_the_same_arrays_and_function_find_their_store(self, tmp_path):
        x = np.arange(8, dtype="float32")

        def build(factor: float, values: np.ndarray) -> FastDataset:
            return FastDataset(values, map_fn=lambda x: x * factor, cache="disk", cache_dir=tmp_path)

        first = build(2.0, x)
        np.testing.assert_array_equal(rows_of(first), x * 2)
        first._recipe.store.save()
        assert build(2.0, x)._recipe.store.num_filled == 8
        for other in (build(3.0, x), build(2.0, x + 1)):
            assert other._recipe.store.num_filled == 0

    def test_a_store_half_filled_is_completed(self, tmp_path):
        """Case 4: take 2 of 5, then iterate all."""
        x = np.arange(5, dtype="float32")
        dataset = FastDataset(x, map_fn=lambda x: x + 1, batch_size=1, workers=1, cache="disk", cache_dir=tmp_path)
        assert [float(batch[0]) for batch in dataset.take(2)] == [1.0, 2.0]
        dataset._recipe.store.save()
        again = FastDataset(x, map_fn=lambda x: x + 1, batch_size=1, workers=1, cache="disk", cache_dir=tmp_path)
        assert again._recipe.store.num_filled >= 2
        np.testing.assert_array_equal(rows_of(again), x + 1)

    def test_small_examples_stay_in_memory_by_default(self, tmp_path):
        dataset = FastDataset(np.arange(8.0), map_fn=lambda x: x + 1, cache_dir=tmp_path)
        assert dataset.stored_in == "memory"
        assert everything_under(tmp_path) == set()

    @pytest.mark.parametrize(
        ("in_memory", "on_disk", "expected"), [(False, True, "disk"), (False, False, None), (True, False, "memory")]
    )
    def test_auto_takes_what_fits(self, tmp_path, monkeypatch, in_memory, on_disk, expected):
        monkeypatch.setattr("keras_turbo.data.assembly.fits_in_memory", lambda num_bytes: in_memory)
        monkeypatch.setattr("keras_turbo.data.assembly.fits_on_disk", lambda num_bytes, folder: on_disk)
        dataset = FastDataset(np.arange(8.0), map_fn=lambda x: x + 1, cache_dir=tmp_path)
        assert dataset.stored_in == expected
        np.testing.assert_array_equal(rows_of(dataset), np.arange(8) + 1)

    def test_more_than_half_of_the_free_disk_is_not_taken(self, tmp_path, monkeypatch):
        usage = shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(disk_store.shutil, "disk_usage", lambda folder: usage)
        assert disk_store.fits_on_disk(500, tmp_path / "not" / "there" / "yet")
        assert not disk_store.fits_on_disk(501, tmp_path)

    def test_memory_that_is_not_there_is_told(self, monkeypatch):
        monkeypatch.setattr("keras_turbo.data.assembly.free_memory_bytes", lambda: 10)
        with pytest.raises(ValueError, match=r"cache='memory' needs 0.00 GB for 8 examples, but 0.00 GB are free"):
            FastDataset(np.arange(8.0), map_fn=lambda x: x + 1, cache="memory")

    @pytest.mark.filterwarnings("ignore:Seed .* from outer graph")
    def test_random_examples_are_not_kept_by_default(self):
        with pytest.warns(UserWarning, match=r"random numbers \(RandomUniform\), and so they are not cached"):
            dataset = FastDataset(np.zeros(8, "float32"), map_fn=lambda x: x + tf.random.uniform([]))
        assert dataset.stored_in is None

    @pytest.mark.filterwarnings("ignore:Seed .* from outer graph")
    def test_random_examples_are_kept_where_that_is_asked_for(self):
        with pytest.warns(UserWarning, match="keeps what was drawn first for all epochs"):
            dataset = FastDataset(np.zeros(8, "float32"), map_fn=lambda x: x + tf.random.uniform([]), cache="memory")
        np.testing.assert_array_equal(rows_of(dataset), rows_of(dataset))

    @pytest.mark.parametrize("cache", ["memory", "disk"])
    def test_examples_of_many_shapes_cannot_be_kept(self, cache, tmp_path):
        x = np.arange(1, 5)
        with pytest.raises(ValueError, match=r"fixed shape and type, but .* shape \(None,\).*cache=False"):
            FastDataset(x, batch_size=None, map_fn=tf.range, cache=cache, cache_dir=tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dataset = FastDataset(x, batch_size=None, map_fn=lambda x: tf.range(x), cache_dir=tmp_path)
        assert [len(row) for row in dataset] == [1, 2, 3, 4]
