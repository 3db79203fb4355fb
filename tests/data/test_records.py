"""TFRecord files read by position: offsets, their index, compressed files, and the checks of checksums."""

from __future__ import annotations

import gzip
import os
import stat
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data.records import copies as copies_module
from keras_turbo.data.records import index as index_module
from keras_turbo.data.records.copies import compression_of, local_copies
from keras_turbo.data.records.features import features_as_code, infer_features
from keras_turbo.data.records.index import INDEX_FOLDER, record_offsets
from keras_turbo.data.records.reader import RecordReader
from tests.data.record_files import example, flip_byte, offsets_of, truncate, write_records

pytestmark = pytest.mark.compatibility

CACHE = "cache"
# Shorter and longer than what is read at once while offsets are looked for, and nothing at all.
SIZES = [0, 1, 70_000, 12, 1 << 20, 65_536, 3, (1 << 20) - 16, 5]


def reader_of(*paths: Path, cache: Path) -> RecordReader:
    return RecordReader(list(map(str, paths)), list(map(str, paths)), cache)


def read_all(reader: RecordReader) -> list[bytes]:
    return reader.records(np.arange(len(reader)))


def gathered(reader: RecordReader, positions: np.ndarray) -> list[bytes]:
    """What TensorFlow's reader is given, as it is: from each record's length to its last checksum."""
    with reader.together(positions) as (path, offset):
        data = Path(path).read_bytes()[offset:]
    frames, begin = [], 0
    for _ in positions:
        end = begin + struct.unpack_from("<Q", data, begin)[0] + 16
        frames.append(data[begin:end])
        begin = end
    return frames


def unpacked(path: Path, compression: str, cache: Path, most_bytes: int | None = None) -> Path:
    (copy,) = local_copies([str(path)], [compression], cache, most_bytes)
    return Path(copy)


def offsets_in(path: Path) -> list[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return record_offsets(lambda offset, size: os.pread(descriptor, size, offset), path.stat().st_size).tolist()
    finally:
        os.close(descriptor)


def records_of_sizes() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.bytes(size) for size in SIZES]


def test_offsets_are_those_of_tensorflows_writer(tmp_path):
    path = write_records(tmp_path / "a", records_of_sizes())
    assert offsets_in(path) == offsets_of(path)
    assert offsets_in(write_records(tmp_path / "many", [b"x"] * 100_000)) == list(range(0, 1_700_001, 17))


def test_an_empty_file_has_no_record(tmp_path):
    path = write_records(tmp_path / "a", [])
    assert path.stat().st_size == 0
    reader = reader_of(path, cache=tmp_path / CACHE)
    assert (len(reader), list(reader.damaged_files())) == (0, [])


@pytest.mark.parametrize("left", [1, 11, 12, 15, 16, 20, 39])
def test_offsets_of_a_truncated_file_end_at_its_last_whole_record(tmp_path, left):
    path = write_records(tmp_path / "a", [b"a" * 24] * 5)
    truncate(path, 3 * 40 + left)
    assert offsets_in(path) == [0, 40, 80, 120]
    reader = reader_of(path, cache=tmp_path / CACHE)
    assert (reader.counts, len(reader)) == ([3], 4)
    (problem,) = reader.damaged_files()
    assert problem.startswith(f"{path}, record 3 at byte 120: the file is truncated")
    assert f"{left} are there" in problem


@pytest.mark.parametrize("byte", range(12))
def test_offsets_end_where_a_length_is_damaged(tmp_path, byte):
    path = write_records(tmp_path / "a", [b"a" * 24] * 5)
    flip_byte(path, 80 + byte)
    assert offsets_in(path) == [0, 40, 80]


def test_of_a_damaged_length_no_more_than_the_header_is_read(tmp_path):
    path = write_records(tmp_path / "a", [b"a" * 24] * 5)
    flip_byte(path, 80 + 2)
    reader = reader_of(path, cache=tmp_path / CACHE)
    assert reader.most_bytes == 40
    (problem,) = reader.damaged_files()
    assert problem.startswith(f"{path}, record 2 at byte 80: the record's length does not match")


def test_zeros_are_no_records(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\0" * 4096)
    assert offsets_in(path) == [0]


def test_records_are_read_by_position(tmp_path):
    records = records_of_sizes()
    path = write_records(tmp_path / "a", records)
    reader = reader_of(path, cache=tmp_path / CACHE)
    assert read_all(reader) == records
    order = np.random.default_rng(1).permutation(len(records))
    assert reader.records(order) == [records[position] for position in order]
    frames = gathered(reader, np.arange(len(records)))
    assert b"".join(frames) == path.read_bytes()
    assert gathered(reader, order) == [frames[position] for position in order]


def test_more_records_at_once_than_a_system_call_takes(tmp_path):
    paths = [write_records(tmp_path / str(file), [bytes([k % 256]) * (k % 7) for k in range(2000)]) for file in (0, 1)]
    reader = reader_of(*paths, cache=tmp_path / CACHE)
    order = np.random.default_rng(0).permutation(4000)
    frames = [frame[12:-4] for frame in gathered(reader, order)]
    assert frames == [bytes([k % 256]) * (k % 7) for k in order % 2000]


def test_more_files_than_may_be_open(tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Other tests' files may still be open. A new file gets the lowest free number, which must be below the limit.
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    paths = [write_records(tmp_path / f"{k:03d}", [str(k).encode()]) for k in range(150)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 100, before[1]))
    try:
        reader = reader_of(*paths, cache=tmp_path / CACHE)
        assert read_all(reader) == [str(k).encode() for k in range(150)]
        assert not reader.can_gather
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_damaged_record_is_told_from_those_around_it(tmp_path):
    path = write_records(tmp_path / "a", [b"a" * 24, b"b" * 24, b"c" * 24])
    flip_byte(path, 40 + 20)
    reader = reader_of(path, cache=tmp_path / CACHE)
    assert reader.records(np.array([2, 0])) == [b"c" * 24, b"a" * 24]
    with pytest.raises(ValueError, match="the record's data do not match their checksum"):
        reader.records(np.array([2, 1]))
    assert reader.describe(1) == f"{path}, record 1 at byte 40"


@pytest.mark.parametrize("byte", [*range(12, 36), *range(36, 40)])
def test_each_bit_of_data_and_checksum_counts(tmp_path, byte):
    path = write_records(tmp_path / "a", [b"a" * 24] * 3)
    flip_byte(path, 40 + byte)
    reader = reader_of(path, cache=tmp_path / CACHE)
    reader.records(np.array([0, 2]))
    with pytest.raises(ValueError, match="checksum"):
        reader.records(np.array([1]))


def test_a_file_that_shrinks_after_it_was_indexed(tmp_path):
    """Where a mapped page has no file any more, the process would end if it was touched."""
    path = write_records(tmp_path / "a", [b"a" * 24, b"b" * 50_000, b"c" * 24])
    reader = reader_of(path, cache=tmp_path / CACHE)
    gathered(reader, np.array([2, 0, 1]))
    truncate(path, 100)
    with pytest.raises(OSError, match="has become shorter"):
        gathered(reader, np.array([2, 0, 1]))
    assert reader.records(np.array([0])) == [b"a" * 24]
    with pytest.raises(ValueError, match="the file is truncated: the record has 50016 bytes, and 60 are there"):
        reader.records(np.array([1]))


def kept_index(path: Path) -> Path:
    return path.parent / INDEX_FOLDER / f"{path.name}.npy"


@pytest.fixture
def count_indexing(monkeypatch):
    """Counts the files whose offsets are looked for."""
    calls = []

    def counting(read_at, size, **options):
        calls.append(size)
        return record_offsets(read_at, size, **options)

    monkeypatch.setattr(index_module, "record_offsets", counting)
    return calls


def test_an_index_is_made_once(tmp_path, count_indexing):
    path = write_records(tmp_path / "ü and\nlines.tfrecord", [b"a", b"b"])
    for _ in range(2):
        assert read_all(reader_of(path, cache=tmp_path / CACHE)) == [b"a", b"b"]
    assert len(count_indexing) == 1
    assert kept_index(path).exists()
    assert not (tmp_path / CACHE).exists()
    assert stat.S_IMODE(kept_index(path).stat().st_mode) == 0o644
    assert len(list(kept_index(path).parent.iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write_records(path, [b"c", b"d"]),  # of the same size
        lambda path: write_records(path, [b"a"]),
        lambda path: kept_index(path).write_bytes(b""),
        lambda path: kept_index(path).write_bytes(kept_index(path).read_bytes()[:-8]),
        lambda path: flip_byte(kept_index(path), kept_index(path).stat().st_size - 8),
        lambda path: np.save(kept_index(path), np.array([object()]), allow_pickle=True),
        lambda path: np.save(kept_index(path), np.zeros(3)),
        lambda path: kept_index(path).unlink(),
    ],
    ids=["same size", "other size", "empty", "cut", "flipped", "pickle", "floats", "gone"],
)
def test_an_index_that_does_not_fit_is_made_anew(tmp_path, count_indexing, change):
    path = write_records(tmp_path / "a", [b"a", b"b"])
    reader_of(path, cache=tmp_path / CACHE)
    status = path.stat()
    change(path)
    if path.stat().st_mtime_ns == status.st_mtime_ns and path.stat().st_size != status.st_size:
        pytest.fail("the test needs a clock that ticks")
    assert len(read_all(reader_of(path, cache=tmp_path / CACHE))) == len(offsets_of(path)) - 1
    assert len(count_indexing) == 2


def test_an_index_is_in_the_cache_where_the_data_cannot_be_written(tmp_path, count_indexing):
    path = write_records(tmp_path / "data" / "a", [b"a", b"b"])
    # A file in its place keeps everybody, root too, from making the folder.
    (path.parent / INDEX_FOLDER).write_bytes(b"")
    for _ in range(2):
        assert read_all(reader_of(path, cache=tmp_path / CACHE)) == [b"a", b"b"]
    assert len(count_indexing) == 1
    (tmp_path / "other").write_bytes(b"")
    assert len(reader_of(path, cache=tmp_path / "other")) == 2  # kept nowhere


def test_an_index_is_not_written_through_a_link(tmp_path):
    """The folder of indices may be anybody's link to anywhere."""
    path = write_records(tmp_path / "data" / "a", [b"a", b"b"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (path.parent / INDEX_FOLDER).symlink_to(elsewhere)
    assert read_all(reader_of(path, cache=tmp_path / CACHE)) == [b"a", b"b"]
    assert list(elsewhere.iterdir()) == []
    assert len(list((tmp_path / CACHE).rglob("*.npy"))) == 1


def index_that_declares(count: int, path: Path) -> bytes:
    """An index with a header of its own, as `numpy.save` writes it, that does not go with what follows."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({count},), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + path.read_bytes()[-48:]


@pytest.mark.parametrize("count", [10**12, -3, 10**30, 7])
def test_an_index_that_declares_what_it_has_not(tmp_path, count):
    path = write_records(tmp_path / "a", [b"a", b"b"])
    reader_of(path, cache=tmp_path / CACHE)
    kept_index(path).write_bytes(index_that_declares(count, kept_index(path)))
    assert read_all(reader_of(path, cache=tmp_path / CACHE)) == [b"a", b"b"]


def test_what_is_no_regular_file(tmp_path):
    path = write_records(tmp_path / "a", [b"a", b"b"])
    kept_index(path).parent.mkdir()
    os.mkfifo(kept_index(path))
    assert read_all(reader_of(path, cache=tmp_path / CACHE)) == [b"a", b"b"]
    reader = reader_of(path, cache=tmp_path / CACHE)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match=r"the file can't be read: .*It is a pipe"):
        reader.records(np.arange(2))
    with pytest.raises(OSError, match="It is a pipe"):
        reader_of(path, cache=tmp_path / "other")


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_compression_is_told_by_the_first_bytes(tmp_path, compression):
    for number, records in enumerate(([b"a" * 100], [b"x" * 0x789C], [b"x" * 0x1F8B], [b"x" * 0x8B1F])):
        assert compression_of(str(write_records(tmp_path / f"{number}", records, compression))) == compression
    assert compression_of(str(write_records(tmp_path / "empty", []))) == ""


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_a_compressed_file_is_unpacked_once(tmp_path, compression):
    records = records_of_sizes()
    path = write_records(tmp_path / "ä.gz", records, compression)
    copy = unpacked(path, compression, tmp_path / CACHE)
    before = copy.stat().st_mtime_ns
    assert read_all(reader_of(copy, cache=tmp_path / CACHE)) == records
    assert unpacked(path, compression, tmp_path / CACHE) == copy
    assert copy.stat().st_mtime_ns == before
    write_records(path, [b"other"], compression)
    other = unpacked(path, compression, tmp_path / CACHE)
    assert read_all(reader_of(other, cache=tmp_path / CACHE)) == [b"other"]
    assert not copy.exists()


def test_gzip_files_behind_one_another(tmp_path):
    plain = write_records(tmp_path / "plain", [b"a", b"b"]).read_bytes()
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(plain[:20]) + gzip.compress(plain[20:]))
    assert unpacked(path, "GZIP", tmp_path / CACHE).read_bytes() == plain


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_a_file_that_unpacks_to_more_than_it_may_is_named(tmp_path, compression, monkeypatch):
    path = write_records(tmp_path / "a.gz", [bytes(1 << 20)] * 30, compression)
    assert path.stat().st_size < 1 << 16
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"'{path}' unpacks to more than 20 MB.*larger `max_unpacked_bytes`"):
            unpacked(path, compression, tmp_path / CACHE, 20_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()
    assert [one for one in (tmp_path / CACHE).rglob("*") if one.is_file()] == []
    assert len(read_all(reader_of(unpacked(path, compression, tmp_path / CACHE), cache=tmp_path / CACHE))) == 30
    # Without an argument, the size of the file decides.
    monkeypatch.setattr(copies_module, "_ALWAYS_ALLOWED_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="unpacks to more"):
        unpacked(path, compression, tmp_path / "other")


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_compressed_file_is_unpacked_up_to_there_and_told_of(tmp_path, damage):
    rng = np.random.default_rng(0)
    records = [rng.bytes(50_000) for _ in range(40)]
    path = write_records(tmp_path / "a.gz", records, "GZIP")
    if damage == "cut":
        truncate(path, path.stat().st_size // 2)
    else:
        # The checksum at the end of the file does not match: nothing of the data themselves need be amiss.
        flip_byte(path, path.stat().st_size - 6)
    reader = RecordReader([str(unpacked(path, "GZIP", tmp_path / CACHE))], [str(path)], tmp_path / CACHE)
    (problem,) = reader.damaged_files()
    assert problem.startswith(str(path))
    assert "compressed data" in problem
    (whole,) = reader.counts
    assert 0 < whole <= 40
    assert reader.records(np.arange(whole)) == records[:whole]


def test_a_folder_that_cannot_take_the_copy_is_named(tmp_path):
    path = write_records(tmp_path / "a.gz", [b"a"], "ZLIB")
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(OSError, match="cache_dir"):
        unpacked(path, "ZLIB", tmp_path / "cache")


def test_features_are_inferred():
    records = [
        example(
            scalar=k,
            vector=np.ones(3, np.float32),
            text=b"caf\xc3\xa9",
            ragged=np.arange(k),
            sometimes=[1.5] if k else [],
            **({"rare": k} if k == 2 else {}),
        )
        for k in range(4)
    ]
    features = infer_features((f"record {k}", record) for k, record in enumerate(records))
    assert features == {
        "rare": tf.io.RaggedFeature(tf.int64),
        "ragged": tf.io.RaggedFeature(tf.int64),
        "scalar": tf.io.FixedLenFeature([], tf.int64),
        "sometimes": tf.io.RaggedFeature(tf.float32),
        "text": tf.io.FixedLenFeature([], tf.string),
        "vector": tf.io.FixedLenFeature([3], tf.float32),
    }
    parsed = tf.io.parse_example(records, features)
    assert parsed["ragged"].to_list() == [[], [0], [0, 1], [0, 1, 2]]


def test_features_can_be_pasted():
    features = {
        "it's": tf.io.FixedLenFeature([], tf.int64),
        'a "name"': tf.io.FixedLenFeature([2, 3], tf.float32),
        "ragged": tf.io.RaggedFeature(tf.string),
        "sparse": tf.io.VarLenFeature(tf.int64),
    }
    names: dict = {"tf": tf}
    exec(features_as_code(features), names)
    assert names["features"] == features


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([b"\xff no proto"], "record 0 is no tf.train.Example"),
        ([b""], "hold no values"),
        ([example(a=1), example(a=1.5)], "record 1: the feature 'a' is a float_list here and a int64_list"),
        ([example()], "none can be inferred"),
    ],
)
def test_records_of_which_no_features_can_be_inferred(records, message):
    with pytest.raises(ValueError, match=message):
        infer_features((f"record {k}", record) for k, record in enumerate(records))
