"""FastDataset.from_tfrecord: what it yields, in which order, and what it says of damaged files."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.records.index import INDEX_FOLDER
from tests.data.epochs import batches_of, bytes_of
from tests.data.record_files import (
    FEATURES,
    example,
    flip_byte,
    numbered,
    offsets_of,
    truncate,
    write_records,
    write_shards,
)

COUNTS = [5, 0, 9, 3]
N = sum(COUNTS)


@pytest.fixture
def shards(tmp_path):
    """Files of numbered records, an empty one among them, in a folder with a name that is hard to handle."""
    return write_shards(tmp_path / "dä ta (1)", COUNTS)


def numbers_of(dataset: tf.data.Dataset) -> list[list[int]]:
    """The numbers in each batch of an epoch; checks that values belong to them."""
    batches = []
    for x, y in batches_of(dataset):
        np.testing.assert_array_equal(x - x[..., :1], np.broadcast_to(np.arange(4, dtype=np.float32), x.shape))
        np.testing.assert_array_equal(np.atleast_1d(x[..., 0]), np.atleast_1d(y))
        batches.append(np.atleast_1d(y).tolist())
    return batches


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def dataset_of(pattern, **options) -> FastDataset:
    arguments = {"x": "values", "label": "number", "batch_size": 4, "cache": False}
    return FastDataset.from_tfrecord(pattern, FEATURES, **{**arguments, **options})


def same(x: tf.Tensor) -> tf.Tensor:
    return x * 1


WAYS = {
    "rows": {},
    "rows, kept": {"cache": "memory"},
    "one by one": {"map_fn": same},
    "one by one, kept": {"map_fn": same, "cache": "memory"},
    "rows, skip": {"on_error": "skip"},
    "one by one, skip": {"map_fn": same, "on_error": "skip"},
}
each_way = pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))


@each_way
def test_records_in_order(shards, options):
    dataset = dataset_of(shards, **options)
    for _ in range(2):
        assert numbers_of(dataset) == [list(range(k, min(k + 4, N))) for k in range(0, N, 4)]
    assert int(dataset.cardinality()) == 5
    assert dataset.labels.tolist() == list(range(N))
    x, y = dataset.element_spec
    assert (x.shape.as_list(), x.dtype, y.dtype) == ([None, 4], tf.float32, tf.int64)


@each_way
def test_shuffled_by_the_seed_over_all_files(shards, options):
    def two_epochs(seed):
        dataset = dataset_of(shards, shuffle=True, seed=seed, workers=3, **options)
        return [bytes_of(dataset), bytes_of(dataset)], flat(numbers_of(dataset))

    first, order = two_epochs(7)
    again, _ = two_epochs(7)
    other, _ = two_epochs(8)
    assert first == again
    assert first[0] != first[1]
    assert first[0] != other[0]
    assert sorted(order) == list(range(N))


@pytest.mark.parametrize("way", [way for way, options in WAYS.items() if "on_error" not in options])
def test_resumed_at_each_batch(shards, way):
    options = WAYS[way]
    whole = dataset_of(shards, shuffle=True, seed=3, **options)
    epochs = [numbers_of(whole) for _ in range(3)]
    for batch in range(6):
        resumed = dataset_of(shards, shuffle=True, seed=3, **options)
        resumed.resume_at(1, batch)
        assert numbers_of(resumed) == epochs[1][batch:]
        assert numbers_of(resumed) == epochs[2]


def test_resumed_reads_nothing_that_is_skipped(shards, tmp_path):
    path = sorted((tmp_path / "dä ta (1)").glob("*.tfrecord"))[0]
    flip_byte(path, 30)
    dataset = dataset_of(shards)
    dataset.resume_at(0, 2)
    assert flat(numbers_of(dataset)) == list(range(8, N))


@pytest.mark.parametrize("options", [{}, {"map_fn": same}], ids=["rows", "one by one"])
def test_resumed_where_records_are_skipped(shards, tmp_path, options):
    path = sorted((tmp_path / "dä ta (1)").glob("*.tfrecord"))[0]
    flip_byte(path, 30)
    resumed = dataset_of(shards, on_error="skip", **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed.resume_at(0, 2)
        assert numbers_of(resumed) == [[9, 10, 11, 12], [13, 14, 15, 16]]
    assert any("left out" in str(warning.message) for warning in caught)


@each_way
def test_shards_are_disjoint_and_complete(shards, options):
    dataset = dataset_of(shards, shuffle=True, seed=1, **options)
    parts = [flat(numbers_of(dataset.shard(3, index))) for index in range(3)]
    assert sorted(flat(parts)) == list(range(N))


@pytest.mark.parametrize("interleave", [1, 2, 4, 9])
def test_interleaved_as_tf_data_does_it(shards, interleave):
    folder = Path(shards).parent
    paths = [str(path) for path in sorted(folder.glob("*.tfrecord"))]
    records = tf.data.Dataset.from_tensor_slices(paths).interleave(tf.data.TFRecordDataset, cycle_length=interleave)
    expected = [int(tf.io.parse_single_example(record, FEATURES)["number"]) for record in records]
    dataset = dataset_of(shards, interleave=interleave)
    assert flat(numbers_of(dataset)) == expected
    assert dataset.labels.tolist() == expected


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("given", [True, False])
def test_compressed(tmp_path, compression, given):
    pattern = write_shards(tmp_path / "data", COUNTS, compression)
    (tmp_path / "data" / "part-9.tfrecord").touch()
    for _ in range(2):
        dataset = dataset_of(
            pattern, shuffle=True, cache_dir=tmp_path / "cache", **({"compression": compression} if given else {})
        )
        assert sorted(flat(numbers_of(dataset))) == list(range(N))
    assert len(list((tmp_path / "cache").rglob("*.tfrecord"))) == len(COUNTS)


def test_a_compressed_file_that_unpacks_to_more_than_it_may(tmp_path):
    write_shards(tmp_path, [3])
    path = write_records(tmp_path / "part-1.tfrecord", [bytes(1 << 20)] * 20, "GZIP")
    options = {"cache_dir": tmp_path / "cache", "max_unpacked_bytes": 1 << 23}
    with pytest.raises(ValueError, match=rf"'{path}' unpacks to more than 8 MB.*`max_unpacked_bytes`"):
        dataset_of(tmp_path, **options)
    for wrong in (0, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="`max_unpacked_bytes` must be"):
            dataset_of(tmp_path, max_unpacked_bytes=wrong)


def test_a_pipe_among_the_files_is_named(tmp_path):
    write_shards(tmp_path, [3])
    os.mkfifo(tmp_path / "pipe.tfrecord")
    for options in ({}, {"compression": ""}, {"on_error": "skip"}):
        with pytest.raises(OSError, match=r"It is a pipe, and no file: '.*pipe\.tfrecord'"):
            dataset_of(tmp_path, **options)


@pytest.mark.parametrize("shape", [[10**9], [10**18], [10**5, 10**5]])
def test_a_feature_that_no_record_can_hold(shards, shape):
    features = {**FEATURES, "values": tf.io.FixedLenFeature(shape, tf.float32)}
    with pytest.raises(ValueError, match=r"No record can hold 'values'.*\.tfrecord.*Correct `features`"):
        FastDataset.from_tfrecord(shards, features)


def test_fit_evaluate_and_predict(shards):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = dataset_of(shards, shuffle=True)
    model.fit(dataset, epochs=2, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 10
    assert model.predict(dataset, verbose=0).shape == (N, 1)


def test_features_are_inferred_and_printed(shards, capsys):
    dataset = FastDataset.from_tfrecord(shards, label="number", batch_size=N)
    printed = capsys.readouterr().out
    names: dict = {"tf": tf}
    exec(printed[printed.index("features = ") :], names)
    assert names["features"] == FEATURES
    ((x, y),) = batches_of(dataset)
    assert list(x) == ["values"]
    assert y.tolist() == list(range(N))
    dataset_of(shards)
    assert capsys.readouterr().out == ""


def test_parts_of_an_example(shards):
    def spec(**options):
        return FastDataset.from_tfrecord(shards, FEATURES, cache=False, **options).element_spec

    assert set(spec()) == {"number", "values"}
    assert set(spec(x=["values"])) == {"values"}
    assert spec(x="values").shape.as_list() == [None, 4]
    assert [s.dtype for s in spec(x="values", label="number")] == [tf.float32, tf.int64]
    three = {**FEATURES, "weight": tf.io.FixedLenFeature([], tf.float32, default_value=2.0)}
    dataset = FastDataset.from_tfrecord(shards, three, x="values", label="number", sample_weight="weight")
    _, _, weight = batches_of(dataset)[0]
    assert weight.tolist() == [2.0] * N


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": {}}, "`features` is empty"),
        ({"features": [1]}, "must be a dict"),
        ({"features": {"x": tf.float32}}, r"must be one of tf\.io\.FixedLenFeature"),
        ({"features": {1: tf.io.VarLenFeature(tf.int64)}}, "must have names"),
        ({"features": {"x": tf.io.RaggedFeature(tf.int64, "x", (tf.io.RaggedFeature.RowLengths("y"),))}}, "partitions"),
        ({"features": FEATURES, "x": "pixels"}, "There is no feature 'pixels'"),
        ({"features": FEATURES, "x": "values", "label": "values"}, "Twice"),
        ({"features": FEATURES, "sample_weight": "number"}, "Give `label` too"),
        ({"features": {"number": FEATURES["number"]}, "label": "number"}, "No feature is left"),
        ({"features": FEATURES, "compression": "gzip"}, "`compression` must be"),
        ({"features": FEATURES, "interleave": 0}, "`interleave` must be"),
        ({"features": FEATURES, "interleave": True}, "`interleave` must be"),
        ({"features": FEATURES, "image_size": (8, 8)}, "image_size: images are decoded"),
        ({"features": FEATURES, "shufle": True}, "has no option shufle"),
        ({"features": FEATURES, "cache": "memory", "x": ["r"]}, "There is no feature 'r'"),
    ],
)
def test_arguments_that_cannot_be(shards, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        FastDataset.from_tfrecord(shards, **options)


def test_nothing_to_read(tmp_path):
    with pytest.raises(ValueError, match=r"nothing-\*\.tfrecord"):
        FastDataset.from_tfrecord(str(tmp_path / "nothing-*.tfrecord"))
    with pytest.raises(ValueError, match="No TFRecord files in"):
        FastDataset.from_tfrecord(tmp_path)
    pattern = write_shards(tmp_path / "empty", [0, 0])
    with pytest.raises(ValueError, match="hold no record"):
        FastDataset.from_tfrecord(pattern)


def test_a_folder_without_a_manifest(tmp_path):
    write_shards(tmp_path, [2, 3])
    (tmp_path / "notes.txt").write_text("no records")
    assert flat(numbers_of(dataset_of(tmp_path))) == list(range(5))


def test_ragged_rows(tmp_path):
    rows = [[], [1], [], [2, 3, 4], [5, 6], []]
    path = write_records(tmp_path / "a.tfrecord", [example(r=row, n=k) for k, row in enumerate(rows)])
    features = {
        "r": tf.io.RaggedFeature(tf.int64),
        "s": tf.io.RaggedFeature(tf.int64, value_key="r"),
        "n": tf.io.FixedLenFeature([], tf.int64),
    }
    for options in ({}, {"on_error": "skip"}, {"drop_remainder": True}):
        dataset = FastDataset.from_tfrecord(path, features, label="n", batch_size=4, **options)
        for _ in range(2):
            batches = list(dataset)
            found = [row for x, _ in batches for row in x["r"].to_list()]
            assert found == rows[: 4 if "drop_remainder" in options else 6]
            assert batches[0][0]["s"].to_list() == batches[0][0]["r"].to_list()
    assert isinstance(dataset.element_spec[0]["r"], tf.RaggedTensorSpec)
    shuffled = FastDataset.from_tfrecord(path, features, batch_size=3, shuffle=True, seed=0)
    for batch in shuffled:
        assert batch["r"].to_list() == [rows[n] for n in batch["n"].numpy()]
    with pytest.raises(ValueError, match="a tensor of it is ragged in a batch"):
        FastDataset.from_tfrecord(path, features, cache="memory")


def test_ragged_rows_that_map_fn_pads(tmp_path):
    rows = [[], [1], [2, 3, 4]]
    path = write_records(tmp_path / "a.tfrecord", [example(r=row) for row in rows])
    for feature in (tf.io.RaggedFeature(tf.int64), tf.io.VarLenFeature(tf.int64)):
        dataset = FastDataset.from_tfrecord(
            path,
            {"r": feature},
            x="r",
            map_fn=lambda row: tf.ensure_shape(tf.pad(row, [[0, 3 - tf.size(row)]]), [3]),
        )
        for _ in range(2):
            (batch,) = batches_of(dataset)
            assert batch.tolist() == [[0, 0, 0], [1, 0, 0], [2, 3, 4]]
        assert dataset.stored_in == "memory"
        singles = FastDataset.from_tfrecord(path, {"r": feature}, x="r", batch_size=None)
        assert [row.tolist() for row in batches_of(singles)] == rows


def test_sparse_and_padded_features(tmp_path):
    path = write_records(tmp_path / "a.tfrecord", [example(r=[1, 2]), example(r=[3]), example(r=[])])
    sparse = FastDataset.from_tfrecord(path, {"r": tf.io.VarLenFeature(tf.int64)}, x="r")
    (batch,) = list(sparse)
    assert tf.sparse.to_dense(batch).numpy().tolist() == [[1, 2], [3, 0], [0, 0]]
    padded = tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    (batch,) = batches_of(FastDataset.from_tfrecord(path, {"r": padded}, x="r", cache=False))
    assert batch.tolist() == [[1, 2], [3, 0], [0, 0]]


# Case 1: damaged records.


@pytest.fixture
def damaged(tmp_path):
    """Ten records in two files: the data of record 2 damaged, the second file truncated in its last."""
    pattern = write_shards(tmp_path / "dam aged", [5, 5])
    first, second = sorted((tmp_path / "dam aged").glob("*.tfrecord"))
    flip_byte(first, offsets_of(first)[2] + 20)
    truncate(second, offsets_of(second)[4] + 20)
    return pattern, first, second


@pytest.mark.parametrize("options", [{}, {"map_fn": same}], ids=["rows", "one by one"])
@pytest.mark.parametrize("cache", [False, "memory"])
def test_damaged_records_are_skipped_and_listed(damaged, one_warning, options, cache):
    pattern, first, second = damaged
    dataset = dataset_of(pattern, batch_size=2, on_error="skip", cache=cache, **options)
    for _ in range(2):
        assert numbers_of(dataset) == [[0, 1], [3, 4], [5, 6], [7, 8]]
    assert int(dataset.cardinality()) == 4
    skipped = [(example.path, example.reason) for example in dataset.skipped]
    assert [path for path, _ in skipped] == [
        f"{first}, record 2 at byte {offsets_of(first)[2]}",
        f"{second}, record 4 at byte {second.stat().st_size - 20}",
    ]
    assert skipped[0][1] == (
        "the record's data do not match their checksum: they were damaged after they were written."
    )
    assert skipped[1][1] == "the file is truncated: the record has 67 bytes, and 20 are there."
    assert dataset.labels.tolist() == [0, 1, 3, 4, 5, 6, 7, 8]


def test_a_truncated_file_is_an_error_when_it_is_built(damaged):
    pattern, _, second = damaged
    with pytest.raises(ValueError, match=r"part-1\.tfrecord, record 4 at byte \d+: the file is truncated"):
        dataset_of(pattern)
    assert second.exists()


@pytest.mark.parametrize("options", [{}, {"map_fn": same}], ids=["rows", "one by one"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_damaged_record_is_an_error_that_names_it(damaged, options, shuffle):
    _, first, _ = damaged
    dataset = dataset_of(first, shuffle=shuffle, **options)
    for _ in range(2):
        with pytest.raises(ExampleLoadError) as error:
            batches_of(dataset)
        assert f"{first}, record 2 at byte {offsets_of(first)[2]}: " in str(error.value)
        assert "checksum" in str(error.value)
        assert "on_error='skip'" in str(error.value)


def test_a_damaged_length_ends_its_file_and_no_other(tmp_path, one_warning):
    pattern = write_shards(tmp_path, [5, 5])
    first, _ = sorted(tmp_path.glob("*.tfrecord"))
    flip_byte(first, offsets_of(first)[3] + 2)
    dataset = dataset_of(pattern, on_error="skip", shuffle=True)
    for _ in range(2):
        assert sorted(flat(numbers_of(dataset))) == [0, 1, 2, 5, 6, 7, 8, 9]
    (skipped,) = dataset.skipped
    assert "length does not match its checksum" in skipped.reason
    with pytest.raises(ValueError, match="record 3 at byte"):
        dataset_of(pattern)


@pytest.mark.parametrize("options", [{}, {"map_fn": same}], ids=["rows", "one by one"])
def test_records_that_are_whole_and_do_not_fit_the_features(tmp_path, options):
    records = [numbered(k) for k in range(6)]
    records[1] = example(number=1)
    records[4] = b"\xff\xff no example"
    path = write_records(tmp_path / "a.tfrecord", records)
    with pytest.raises(ExampleLoadError, match=r"record 1 at byte .*values"):
        batches_of(dataset_of(path, **options))
    dataset = dataset_of(path, on_error="skip", **options)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for _ in range(2):
            assert flat(numbers_of(dataset)) == [0, 2, 3, 5]
    assert [example.path.split(", ")[1].split(" at")[0] for example in dataset.skipped] == ["record 1", "record 4"]


def test_nothing_but_damage(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"this is a text and no TFRecord file")
    with pytest.raises(ValueError, match="record 0 at byte 0"):
        dataset_of(path)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        dataset = dataset_of(path, on_error="skip")
        with pytest.raises(ExampleLoadError, match="All 1 examples failed"):
            batches_of(dataset)


@pytest.mark.parametrize("options", [{}, {"map_fn": same}], ids=["rows", "one by one"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_file_that_is_gone_is_named(tmp_path, options, shuffle):
    pattern = write_shards(tmp_path, [5, 5])
    dataset = dataset_of(pattern, shuffle=shuffle, **options)
    path = tmp_path / "part-1.tfrecord"
    path.unlink()
    with pytest.raises(ExampleLoadError) as error:
        batches_of(dataset)
    message = str(error.value)
    assert message.startswith(f"{path}, record ")
    assert "the file can't be read: " in message
    assert "No such file" in message.split("(on_error=", maxsplit=1)[0]
    assert "Traceback" not in message.split("(on_error=", maxsplit=1)[0]


@pytest.mark.parametrize("options", [{}, {"map_fn": same}], ids=["rows", "one by one"])
def test_a_file_whose_name_is_no_text(tmp_path, options):
    path = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"\xff.tfrecord"))
    os.rename(write_records(tmp_path / "a", [numbered(k) for k in range(9)]), path)
    assert flat(numbers_of(dataset_of(path, **options))) == list(range(9))
    assert sorted(flat(numbers_of(dataset_of(path, shuffle=True, **options)))) == list(range(9))


# Case 4: stores.


def test_a_store_left_half_way_is_completed(shards, tmp_path):
    options = {"cache": "disk", "cache_dir": tmp_path / "cache"}
    dataset = dataset_of(shards, **options)
    for _ in dataset.take(2):
        pass
    assert flat(numbers_of(dataset)) == list(range(N))
    assert flat(numbers_of(dataset_of(shards, **options))) == list(range(N))


def test_files_that_change_leave_no_stale_examples(shards, tmp_path):
    options = {"cache": "disk", "cache_dir": tmp_path / "cache"}
    assert flat(numbers_of(dataset_of(shards, **options))) == list(range(N))
    path = sorted((tmp_path / "dä ta (1)").glob("*.tfrecord"))[0]
    write_records(path, [numbered(k) for k in (4, 3, 2, 1, 0)])
    assert flat(numbers_of(dataset_of(shards, **options))) == [4, 3, 2, 1, 0, *range(5, N)]


# Case 5: what is kept is loaded once, and what is random is not kept.


def test_each_record_is_parsed_once_and_augmented_anew(shards):
    calls = []

    def count(x):
        calls.append(1)
        return x

    def counted(x, y):
        return tf.ensure_shape(tf.numpy_function(count, [x], tf.float32), [4]), y

    def noisy(x, y, seed):
        return x + tf.random.stateless_normal([4], seed), y

    dataset = dataset_of(shards, cache="memory", map_fn=counted, augment_fn=noisy, seed=0)
    before = len(calls)
    epochs = [bytes_of(dataset) for _ in range(3)]
    # One call is for the shapes, when the dataset is traced.
    assert len(calls) - before == N
    assert len(set(epochs)) == 3


def test_the_index_is_not_matched_by_a_pattern(shards, tmp_path):
    folder = tmp_path / "dä ta (1)"
    dataset_of(shards)
    assert (folder / INDEX_FOLDER).is_dir()
    paths = [str(path) for path in folder.glob("*") if path.is_file()]
    assert len(paths) == len(COUNTS)
    assert flat(numbers_of(dataset_of(folder))) == list(range(N))


def test_report_measures_it(shards, capsys):
    report = dataset_of(shards, map_fn=lambda x: x + 1).report(seconds=0.4)
    assert [stage.name for stage in report.stages] == ["load", "map", "batch"]
    assert "examples/s" in capsys.readouterr().out


def test_stacks(shards):
    batches = batches_of(dataset_of(shards, batch_size=3))
    stacks = list(iter(dataset_of(shards, batch_size=3)).stacks(2))
    rows = np.concatenate([y.numpy().ravel() for _, y in stacks])
    assert rows.tolist() == flat([y.tolist() for _, y in batches])
    assert stacks[0][1].shape == (2, 3)


def test_batches_larger_and_smaller_than_what_is_read_at_once(tmp_path):
    long = [example(number=k, values=np.full(200_000, k, np.float32)) for k in range(5)]
    features = {**FEATURES, "values": tf.io.FixedLenFeature([200_000], tf.float32)}
    path = write_records(tmp_path / "long", long)
    dataset = FastDataset.from_tfrecord(path, features, x="values", label="number", batch_size=2, cache=False)
    assert [y.tolist() for _, y in batches_of(dataset)] == [[0, 1], [2, 3], [4]]
    pattern = write_shards(tmp_path / "short", [3000])
    found = numbers_of(dataset_of(pattern, batch_size=1300, drop_remainder=True))
    assert flat(found) == list(range(2600))
    assert [len(batch) for batch in found] == [1300, 1300]
