"""HDF5 files whose arrays are written without h5py, and what is refused when they are read."""

from __future__ import annotations

import h5py
import ml_dtypes
import numpy as np
import pytest

from keras_turbo.checkpoint.hdf5 import hdf5_layout, read_arrays
from keras_turbo.checkpoint.location import CHUNK_BYTES, LocalFiles
from tests.checkpoint.saved import Watch, assert_equal_arrays

pytestmark = pytest.mark.compatibility


def some_arrays():
    rng = np.random.default_rng(0)
    return {
        "layers/dense/vars/0": rng.normal(size=(30, 20)).astype(np.float32),
        "layers/dense/vars/1": rng.normal(size=20).astype(np.float16),
        "vars/0": np.array(3, np.int64),
        "bfloat/vars/0": rng.normal(size=(3, 5)).astype(ml_dtypes.bfloat16),
        "float8/vars/0": np.ones(3, ml_dtypes.float8_e4m3fn),
        "empty/vars/0": np.zeros((0, 4), np.float32),
        "flags": np.array([True, False, True]),
        "complex": np.array([1 + 2j], np.complex64),
        "text": np.array([b"ab", b"c"]),
        "transposed": np.arange(12, dtype=">i4").reshape(3, 4).T,
        "größe": np.array([1], np.uint8),
    }


def write(path, arrays, attributes=None, limit=None):
    return LocalFiles().write(str(path), hdf5_layout(arrays, attributes).filled(arrays), limit)


def test_h5py_reads_every_type_to_the_bit(tmp_path):
    arrays = some_arrays()
    write(tmp_path / "x.h5", arrays, {"layers/dense/vars": {"name": "dense"}, "layers/dropout/vars": {"name": "drop"}})
    with h5py.File(tmp_path / "x.h5") as file:
        for path, array in arrays.items():
            assert file[path].shape == array.shape
            assert np.asarray(file[path]).tobytes() == array.tobytes(), path
        assert file["layers/dense/vars"].attrs["name"] == "dense"
        assert dict(file["layers/dropout/vars"]) == {}
        assert file["bfloat/vars/0"].attrs["dtype"] == "bfloat16"
    assert_equal_arrays(read_arrays(tmp_path / "x.h5"), arrays)


def test_the_arrays_own_memory_is_written():
    array = np.zeros(1000, np.float32)
    pieces = hdf5_layout({"a": array}).filled({"a": array})
    array[:] = 7
    assert any(bytes(piece) == array.tobytes() for piece in pieces)


def test_no_array_at_all(tmp_path):
    write(tmp_path / "x.h5", {})
    assert read_arrays(tmp_path / "x.h5") == {}


def test_large_arrays_go_out_in_chunks(tmp_path):
    arrays = {f"a{index}": np.random.default_rng(index).bytes(3 * CHUNK_BYTES // 2) for index in range(3)}
    arrays = {path: np.frombuffer(content, np.uint8) for path, content in arrays.items()}
    watch = Watch()
    record = write(tmp_path / "x.h5", arrays, limit=watch)
    assert record.bytes == watch.spent == (tmp_path / "x.h5").stat().st_size
    assert watch.calls >= record.bytes / CHUNK_BYTES
    assert_equal_arrays(read_arrays(tmp_path / "x.h5"), arrays)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(1), "a/b": np.zeros(1)}, "'a' is an array, so 'a/b' can't be below it"),
        ({"a//b": np.zeros(1)}, "must have a path like"),
        ({"./a": np.zeros(1)}, "must have a path like"),
        ({"": np.zeros(1)}, "must have a path like"),
        ({"a": np.array(["text"])}, "can't be saved"),
        ({"a": np.array([object()])}, "can't be saved"),
    ],
)
def test_what_hdf5_can_not_have_is_refused(arrays, message):
    with pytest.raises(ValueError, match=message):
        hdf5_layout(arrays)


def external_link(file):
    file["a"] = h5py.ExternalLink("/etc/passwd", "/")


def soft_link(file):
    file["a"] = h5py.SoftLink("/b")


def loop(file):
    file.create_group("a")["again"] = file["/"]


def external_storage(file):
    file.create_dataset("a", (10,), np.uint8, external=[("/etc/passwd", 0, 10)])


def virtual(file):
    layout = h5py.VirtualLayout((2,), np.uint8)
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", shape=(2,))
    file.create_virtual_dataset("a", layout)


def bomb(file):
    file.create_dataset("a", (10**9,), np.uint8, chunks=(10**6,), compression="gzip")


def never_written(file):
    file.create_dataset("a", (10**12,), np.uint8)


def pickled_kind(file):
    file.create_dataset("a", data=np.array(["x"], object), dtype=h5py.string_dtype())


def unknown_type(file):
    file.create_dataset("a", data=np.zeros(2, np.uint8)).attrs["dtype"] = "finfo"


@pytest.mark.parametrize(
    "make",
    [external_link, soft_link, loop, external_storage, virtual, bomb, never_written, pickled_kind, unknown_type],
)
def test_a_hostile_file_is_refused(tmp_path, make):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        make(file)
    with pytest.raises(ValueError, match="'a"):
        read_arrays(tmp_path / "x.h5")


def test_what_is_no_hdf5_is_refused(tmp_path):
    (tmp_path / "x.h5").write_bytes(b"no HDF5")
    with pytest.raises(ValueError, match="can't be read as HDF5"):
        read_arrays(tmp_path / "x.h5")
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "nowhere.h5")
