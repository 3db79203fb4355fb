"""TFRecord files read by position: offsets, their index, compressed files, and the checks of checksums."""

from __future__ import annotations

import gzip
import itertools
import os
import stat
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data.records import index as index_module
from keras_turbo.data.records.features import features_as_code, infer_features
from keras_turbo.data.records.framing import record_offsets
from keras_turbo.data.records.index import INDEX_FOLDER, index_of
from keras_turbo.data.records.local_copies import compression_of, local_copies
from keras_turbo.data.records.reader import RecordReader, interleaved
from tests.data.record_files import example, flip_byte, numbered, offsets_of, truncate, write_records

CACHE = "cache"
# Shorter and longer than what is read at once while offsets are looked for, and nothing at all.
SIZES = [0, 1, 70_000, 12, 1 << 20, 65_536, 3, (1 << 20) - 16, 5]


def reader_of(*paths: Path, cache: Path, interleave: int = 1) -> RecordReader:
    return RecordReader([index_of(str(path), cache) for path in paths], [str(path) for path in paths], interleave)


def read_all(reader: RecordReader) -> list[bytes]:
    records, are_whole = reader.read(np.arange(reader.num_entries))
    assert are_whole.all()
    return records.numpy().tolist()


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
    index = index_of(str(path), tmp_path / CACHE)
    assert (index.num_entries, index.is_damaged) == (0, False)


@pytest.mark.parametrize("left", [1, 11, 12, 15, 16, 20, 39])
def test_offsets_of_a_truncated_file_end_at_its_last_whole_record(tmp_path, left):
    path = write_records(tmp_path / "a", [b"a" * 24] * 5)
    truncate(path, 3 * 40 + left)
    assert offsets_in(path) == [0, 40, 80, 120]
    index = index_of(str(path), tmp_path / CACHE)
    assert index.is_damaged
    assert index.offsets.tolist() == [0, 40, 80, 120, 120 + left]


@pytest.mark.parametrize("byte", range(12))
def test_offsets_end_where_a_length_is_damaged(tmp_path, byte):
    path = write_records(tmp_path / "a", [b"a" * 24] * 5)
    flip_byte(path, 80 + byte)
    assert offsets_in(path) == [0, 40, 80]


def test_of_a_damaged_length_no_more_than_the_header_is_read(tmp_path):
    path = write_records(tmp_path / "a", [b"a" * 24] * 5)
    flip_byte(path, 80 + 2)
    index = index_of(str(path), tmp_path / CACHE)
    assert index.is_damaged
    assert index.offsets.tolist() == [0, 40, 80, 92]
    (problem,) = reader_of(path, cache=tmp_path / CACHE).damaged_files()
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
    found, are_whole = reader.read(order)
    assert found.numpy().tolist() == [records[position] for position in order]
    assert are_whole.all()
    assert reader.read(np.zeros(0, np.int64))[0].numpy().tolist() == []
    assert reader.read_one(np.int64(2)) == (records[2], b"")


def test_more_files_than_may_be_open(tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Other tests' files may still be open. A new file gets the lowest free number, which must be below the limit.
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    paths = [write_records(tmp_path / f"{k:03d}", [str(k).encode()]) for k in range(150)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 100, before[1]))
    try:
        assert read_all(reader_of(*paths, cache=tmp_path / CACHE)) == [str(k).encode() for k in range(150)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_damaged_record_is_told_from_those_around_it(tmp_path):
    path = write_records(tmp_path / "a", [b"a" * 24, b"b" * 24, b"c" * 24])
    flip_byte(path, 40 + 20)
    reader = reader_of(path, cache=tmp_path / CACHE)
    records, are_whole = reader.read(np.array([2, 1, 0, 1]))
    assert are_whole.tolist() == [True, False, True, False]
    assert records.numpy().tolist() == [b"c" * 24, b"", b"a" * 24, b""]
    record, problem = reader.read_one(np.int64(1))
    assert record == b""
    assert b"checksum" in problem
    assert reader.describe(1) == f"{path}, record 1 at byte 40"


def test_a_damaged_record_among_many_is_found_in_few_reads(tmp_path, monkeypatch):
    path = write_records(tmp_path / "a", [b"a" * 24] * 1000)
    flip_byte(path, 40 * 300 + 20)
    reader = reader_of(path, cache=tmp_path / CACHE)
    reads = []
    once = reader._checked
    monkeypatch.setattr(reader, "_checked", lambda positions: reads.append(len(positions)) or once(positions))
    records, are_whole = reader.read(np.arange(1000))
    assert np.flatnonzero(~are_whole).tolist() == [300]
    assert records.numpy().tolist() == [b"a" * 24] * 300 + [b""] + [b"a" * 24] * 699
    assert len(reads) < 30


@pytest.mark.parametrize("byte", [*range(12, 36), *range(36, 40)])
def test_each_bit_of_data_and_checksum_counts(tmp_path, byte):
    path = write_records(tmp_path / "a", [b"a" * 24] * 3)
    flip_byte(path, 40 + byte)
    _, are_whole = reader_of(path, cache=tmp_path / CACHE).read(np.arange(3))
    assert are_whole.tolist() == [True, False, True]


def test_a_file_that_shrinks_after_it_was_indexed(tmp_path):
    path = write_records(tmp_path / "a", [b"a" * 24] * 3)
    reader = reader_of(path, cache=tmp_path / CACHE)
    truncate(path, 100)
    _, are_whole = reader.read(np.arange(3))
    assert are_whole.tolist() == [True, True, False]
    assert b"truncated" in reader.read_one(np.int64(2))[1]


@pytest.mark.parametrize("cycle_length", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("counts", [[5], [3, 5, 1, 2], [1, 1, 1, 1, 1, 1], [7, 2, 7, 2], [2, 0, 2, 0, 0, 3], [0, 0]])
def test_interleaved_as_tf_data_does_it(counts, cycle_length):
    first = tf.constant(np.concatenate([[0], np.cumsum(counts)]), tf.int64)
    expected = tf.data.Dataset.range(len(counts)).interleave(
        lambda file: tf.data.Dataset.range(first[file], first[file + 1]), cycle_length=cycle_length
    )
    assert interleaved(counts, cycle_length).tolist() == list(expected.as_numpy_iterator())


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
    first = index_of(str(path), tmp_path / CACHE)
    second = index_of(str(path), tmp_path / CACHE)
    assert len(count_indexing) == 1
    assert first.offsets.tolist() == second.offsets.tolist() == [0, 17, 34]
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
    index_of(str(path), tmp_path / CACHE)
    status = path.stat()
    change(path)
    if path.stat().st_mtime_ns == status.st_mtime_ns and path.stat().st_size != status.st_size:
        pytest.fail("the test needs a clock that ticks")
    index = index_of(str(path), tmp_path / CACHE)
    assert len(count_indexing) == 2
    assert index.offsets.tolist() == offsets_of(path)


def test_an_index_is_in_the_cache_where_the_data_cannot_be_written(tmp_path, count_indexing):
    path = write_records(tmp_path / "data" / "a", [b"a", b"b"])
    # A file in its place keeps everybody, root too, from making the folder.
    (path.parent / INDEX_FOLDER).write_bytes(b"")
    for _ in range(2):
        assert index_of(str(path), tmp_path / CACHE).offsets.tolist() == [0, 17, 34]
    assert len(count_indexing) == 1
    (tmp_path / "other").write_bytes(b"")
    assert index_of(str(path), tmp_path / "other").num_entries == 2  # kept nowhere


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_compression_is_told_by_the_first_bytes(tmp_path, compression):
    for number, records in enumerate(([b"a" * 100], [b"x" * 0x789C], [b"x" * 0x1F8B], [b"x" * 0x8B1F])):
        assert compression_of(str(write_records(tmp_path / f"{number}", records, compression))) == compression
    assert compression_of(str(write_records(tmp_path / "empty", []))) == ""


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_a_compressed_file_is_unpacked_once(tmp_path, compression):
    records = records_of_sizes()
    path = write_records(tmp_path / "ä.gz", records, compression)
    (copy,) = local_copies([str(path)], [compression], tmp_path / CACHE)
    before = os.stat(copy).st_mtime_ns
    assert read_all(reader_of(Path(copy), cache=tmp_path / CACHE)) == records
    assert local_copies([str(path)], [compression], tmp_path / CACHE) == [copy]
    assert os.stat(copy).st_mtime_ns == before
    write_records(path, [b"other"], compression)
    (other,) = local_copies([str(path)], [compression], tmp_path / CACHE)
    assert read_all(reader_of(Path(other), cache=tmp_path / CACHE)) == [b"other"]
    assert not os.path.exists(copy)


def test_gzip_files_behind_one_another(tmp_path):
    plain = write_records(tmp_path / "plain", [b"a", b"b"]).read_bytes()
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(plain[:20]) + gzip.compress(plain[20:]))
    (copy,) = local_copies([str(path)], ["GZIP"], tmp_path / CACHE)
    assert Path(copy).read_bytes() == plain


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
    (copy,) = local_copies([str(path)], ["GZIP"], tmp_path / CACHE)
    reader = RecordReader([index_of(copy, tmp_path / CACHE)], [str(path)])
    (problem,) = reader.damaged_files()
    assert problem.startswith(str(path))
    assert "compressed data" in problem
    whole = reader.num_entries - 1
    assert 0 < whole <= 40
    assert reader.read(np.arange(whole))[0].numpy().tolist() == records[:whole]


def test_what_a_killed_process_left_is_swept(tmp_path):
    path = write_records(tmp_path / "a.gz", [b"a"], "GZIP")
    (copy,) = local_copies([str(path)], ["GZIP"], tmp_path / CACHE)
    old, new = (Path(copy).parent / f".writing-{name}" for name in ("old", "new"))
    for leftover in (old, new):
        leftover.write_bytes(b"x")
    os.utime(old, (1, 1))
    Path(copy).unlink()
    local_copies([str(path)], ["GZIP"], tmp_path / CACHE)
    assert [file.name for file in sorted(Path(copy).parent.iterdir())] == [new.name, Path(copy).name]


def test_a_folder_that_cannot_take_the_copy_is_named(tmp_path):
    path = write_records(tmp_path / "a.gz", [b"a"], "ZLIB")
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(OSError, match="cache_dir"):
        local_copies([str(path)], ["ZLIB"], tmp_path / "cache")
    assert zlib.decompress(path.read_bytes())


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


def test_first_positions_are_from_several_files(tmp_path):
    counts = [3, 0, 50, 2, 9]
    ends = list(itertools.accumulate(counts))
    paths = [write_records(tmp_path / str(k), [numbered(i) for i in range(n)]) for k, n in enumerate(counts)]
    for interleave in (1, 3):
        reader = reader_of(*paths, cache=tmp_path / CACHE, interleave=interleave)
        names = {reader.describe(position).split(",")[0] for position in reader.first_positions(4, 8)}
        assert names == {str(path) for path, count in zip(paths, counts, strict=True) if count}
        assert len(reader.first_positions(1, 100)) == 3
    assert ends[-1] == reader.num_entries


def test_more_records_at_once_than_one_call_writes(tmp_path):
    records = [bytes([k % 256]) * (k % 7) for k in range(os.sysconf("SC_IOV_MAX") + 10)]
    path = write_records(tmp_path / "a", records)
    assert read_all(reader_of(path, cache=tmp_path / CACHE)) == records
