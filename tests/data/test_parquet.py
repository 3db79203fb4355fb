"""FastDataset.from_parquet: what it yields, in which order, and what it says of damaged files and missing values."""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
import weakref
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.engine.failures import ExampleLoadError
from keras_turbo.data.sources import tables as table_sources
from keras_turbo.data.tables import parquet_files
from tests.data.epochs import batches_of, bytes_of
from tests.data.table_files import check_columns, damage_row_group, numbered, with_times, write_tables

pytestmark = pytest.mark.compatibility

COUNTS = [40, 0, 50, 10]
N = sum(COUNTS)


@pytest.fixture
def tables(tmp_path):
    """Files of numbered rows in 9 row groups, files without a row among them, in a folder that is hard to handle."""
    pattern = write_tables(tmp_path / "dä ta (1)", COUNTS)
    (tmp_path / "dä ta (1)" / "part-4.parquet").touch()
    return pattern


def dataset_of(pattern, columns=None, **options) -> FastDataset:
    return FastDataset.from_parquet(pattern, columns, **{"label": "class", "batch_size": 8, **options})


def numbers_of(dataset: tf.data.Dataset) -> list[list[int]]:
    """The numbers in each batch of an epoch; checks that all columns belong to them."""
    batches = []
    for x, y in batches_of(dataset):
        batches.append(check_columns(x))
        np.testing.assert_array_equal(np.atleast_1d(y), np.array(batches[-1]) % 3)
        assert y.dtype == np.uint8
    return batches


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def same(x):
    return {**x, "price": x["price"] * 1}


FIXED = ["number", "größe.cm", "even", "price", "pair"]
WAYS = {
    "in memory": {},
    "in memory, one by one": {"map_fn": same},
    "row groups": {"cache": False, "shuffle_row_groups": 3},
    "row groups, one by one": {"cache": False, "map_fn": same, "shuffle_row_groups": 3},
    "row groups, kept": {"cache": "disk", "columns": FIXED, "shuffle_row_groups": 3},
    "row groups, skip": {"cache": False, "on_error": "skip", "shuffle_row_groups": 3},
}
each_way = pytest.mark.parametrize("way", list(WAYS))


@pytest.fixture
def options(way, tmp_path):
    return {"cache_dir": tmp_path / "cache", **WAYS[way]}


@each_way
def test_rows_in_order(tables, options):
    dataset = dataset_of(tables, **options)
    for _ in range(2):
        assert numbers_of(dataset) == [list(range(k, min(k + 8, N))) for k in range(0, N, 8)]
    assert int(dataset.cardinality()) == 13
    assert dataset.labels.tolist() == [k % 3 for k in range(N)]
    assert dataset.skipped == []
    x, y = dataset.element_spec
    assert {name: (spec.shape.as_list(), spec.dtype) for name, spec in x.items() if name in FIXED} == {
        "number": ([None], tf.int64),
        "größe.cm": ([None], tf.float32),
        "even": ([None], tf.bool),
        "price": ([None], tf.float32),
        "pair": ([None, 2], tf.int32),
    }
    assert (y.shape.as_list(), y.dtype) == ([None], tf.uint8)


@each_way
def test_shuffled_by_the_seed(tables, options):
    def epochs(seed, **more):
        dataset = dataset_of(tables, **{**options, "shuffle": True, "seed": seed, **more})
        return [numbers_of(dataset), numbers_of(dataset)]

    first = epochs(7)
    assert first == epochs(7, workers=3)
    assert first[0] != first[1]
    assert first[0] != epochs(8)[0]
    assert all(sorted(flat(epoch)) == list(range(N)) for epoch in first)


def test_the_same_order_in_memory_and_by_row_groups(tables):
    orders = [
        numbers_of(dataset_of(tables, cache=cache, shuffle=True, seed=1, shuffle_row_groups=2))
        for cache in ("memory", False)
    ]
    assert orders[0] == orders[1]
    groups = np.searchsorted([16, 32, 40, 56, 72, 88, 90], flat(orders[0]), "right")
    spans = [np.flatnonzero(groups == group) for group in range(8)]
    assert max(sum(span[0] <= place <= span[-1] for span in spans) for place in range(N)) == 2


@pytest.mark.parametrize("way", ["in memory", "row groups", "row groups, one by one", "row groups, kept"])
def test_resumed_at_each_batch(tables, options):
    whole = dataset_of(tables, shuffle=True, seed=3, **options)
    epochs = [numbers_of(whole) for _ in range(3)]
    for batch in (0, 1, 6, 12, 13):
        resumed = dataset_of(tables, shuffle=True, seed=3, **{**options, "cache_dir": options["cache_dir"] / "other"})
        resumed.resume_at(1, batch)
        assert numbers_of(resumed) == epochs[1][batch:]
        assert numbers_of(resumed) == epochs[2]


def test_resumed_reads_no_row_group_that_is_skipped(tables, tmp_path, monkeypatch):
    read = []
    read_rows = table_sources.read_rows

    def noted(table, group):
        read.append((Path(group.file.name).stem, group.number))
        return read_rows(table, group)

    monkeypatch.setattr(table_sources, "read_rows", noted)
    dataset = dataset_of(tables, cache=False)
    dataset.resume_at(0, 10)
    assert flat(numbers_of(dataset)) == list(range(80, N))
    assert set(read) == {("part-2", 2), ("part-2", 3), ("part-3", 0)}
    read.clear()
    shuffled = dataset_of(tables, cache=False, shuffle=True, seed=0, shuffle_row_groups=2)
    numbers_of(shuffled)
    groups = {"part-0": 3, "part-2": 4, "part-3": 1}
    assert sorted(read) == [(name, number) for name, count in groups.items() for number in range(count)]
    read.clear()
    numbers_of(shuffled.shard(2, 1))
    assert len(set(read)) <= 5


@pytest.mark.parametrize("way", ["in memory", "row groups", "row groups, one by one"])
def test_shards_are_disjoint_complete_and_equal(tables, options):
    dataset = dataset_of(tables, shuffle=True, seed=1, **options)
    parts = [numbers_of(dataset.shard(3, index)) for index in range(3)]
    assert sorted(flat(flat(parts))) == list(range(N))
    for remainder in ("drop", "fill"):
        shards = [dataset.shard(3, index, remainder=remainder) for index in range(3)]
        assert len({int(shard.cardinality()) for shard in shards}) == 1
        assert [len(batches_of(shard)) for shard in shards] == [int(shard.cardinality()) for shard in shards]


def test_what_decides_the_order_is_told(tables):
    loaded = dataset_of(tables, shuffle=True, seed=1).order_settings
    by_groups = dataset_of(tables, shuffle=True, seed=1, cache=False, shuffle_row_groups=2).order_settings
    assert by_groups == {**loaded, "row_groups": 8, "shuffled_within_row_groups": 2}
    assert dataset_of(tables).order_settings == dataset_of(tables, cache=False).order_settings


# What elements are.


def test_parts_of_an_example(tables):
    batch = next(iter(dataset_of(tables, "pair", label="class", sample_weight="größe.cm")))
    assert [tensor.shape.as_list() for tensor in batch] == [[8, 2], [8], [8]]
    assert next(iter(dataset_of(tables, ["name", "number"], label=None))).keys() == {"name", "number"}
    everything = next(iter(dataset_of(tables)))[0]
    assert everything.keys() == set(numbered(0, 0).column_names) - {"class"}
    one = next(iter(dataset_of(tables, "name", label=None, batch_size=None, cache=False)))
    assert one.numpy() == b"name 0"


def test_dtypes(tables):
    dtypes = {"number": "float64", "price": "string", "even": "uint8", "größe.cm": tf.float16, "class": np.int32}
    x, y = next(iter(dataset_of(tables, dtypes=dtypes)))
    assert [x[name].dtype for name in ("number", "price", "even", "größe.cm")] == [
        tf.float64,
        tf.string,
        tf.uint8,
        tf.float16,
    ]
    assert y.dtype == tf.int32
    assert x["price"].numpy()[:2].tolist() == [b"0.00", b"0.25"]
    with pytest.raises(ValueError, match=r"part-0.parquet, row 1: the column 'größe.cm' has 0.5, which is no int8"):
        dataset_of(tables, dtypes={"größe.cm": "int8"})
    with pytest.raises(ValueError, match=r"the column 'name' has 'name 0', which is no float32, as in 15 more"):
        dataset_of(tables, dtypes={"name": "float32"})


@pytest.mark.parametrize("cache", ["auto", False])
def test_all_types_of_numbers(tmp_path, cache):
    kinds = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
    kinds += ["float16", "float32", "float64"]
    path = tmp_path / "a.parquet"
    values = np.array([0, 1, 1])
    pq.write_table(pa.table({kind: values.astype(kind) for kind in kinds}), path)
    options = {"cache": cache, "dtypes": {"float16": "float16", "float64": "float64"}, "batch_size": 2}
    for dataset in (FastDataset.from_parquet(path, **options), FastDataset.from_parquet(path, map_fn=dict, **options)):
        for _ in range(2):
            batches = batches_of(dataset)
            for kind in kinds:
                assert {batch[kind].dtype.name for batch in batches} == {kind}
                assert np.concatenate([batch[kind] for batch in batches]).tolist() == [0, 1, 1]


def test_floats_become_floatx(tables):
    keras.config.set_floatx("float64")
    try:
        x, _ = dataset_of(tables).element_spec
        assert (x["größe.cm"].dtype, x["price"].dtype) == (tf.float64, tf.float64)
    finally:
        keras.config.set_floatx("float32")


def test_dates_and_times_are_what_the_user_says(tmp_path):
    path = tmp_path / "times.parquet"
    pq.write_table(with_times(numbered(0, 5)), path)
    with pytest.raises(ValueError, match=r"'day' of .*times.parquet is date32\[day\], and a tensor has no times"):
        dataset_of(path)
    assert check_columns(next(iter(dataset_of(path, ["number", "name"])))[0]) == list(range(5))
    x = next(iter(dataset_of(path, ["day", "time"], dtypes={"day": "int64", "time": "int64"})))[0]
    assert x["day"].numpy().tolist() == [0, 1, 2, 3, 4]
    assert x["time"].numpy().tolist() == [86_400_000 * k for k in range(5)]
    x = next(iter(dataset_of(path, "day", dtypes={"day": "string"})))[0]
    assert x.numpy()[1] == b"1970-01-02"


@pytest.mark.parametrize("cache", ["auto", False])
def test_ragged_rows(tmp_path, cache):
    pattern = write_tables(tmp_path, [20, 13], ragged=True)
    dataset = dataset_of(pattern, cache=cache, shuffle=True, seed=0, shuffle_row_groups=2)
    assert isinstance(dataset.element_spec[0]["some"], tf.RaggedTensorSpec)
    for _ in range(2):
        numbers = [check_columns(x) for x, _ in dataset]
        assert sorted(flat(numbers)) == list(range(33))
    assert sorted(check_columns(x)[0] for x, _ in dataset_of(pattern, cache=cache, batch_size=None)) == list(range(33))

    def padded(x):
        return {"number": x["number"], "some": tf.pad(x["some"], [[0, 3 - tf.size(x["some"])]])}

    padding = dataset_of(pattern, cache=cache, map_fn=lambda x: tf.nest.map_structure(_fixed, padded(x)))
    for _ in range(2):
        for x, _ in padding:
            assert x["some"].shape[1:] == [3]
            np.testing.assert_array_equal(tf.reduce_sum(x["some"], 1), x["number"] * (x["number"] % 4))


def _fixed(tensor):
    return tf.ensure_shape(tensor, [3]) if tensor.shape.rank else tensor


def test_lists_of_fixed_size_and_lists_that_only_seem_so(tmp_path):
    path = tmp_path / "lists.parquet"
    lists = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"v": lists, "w": [["a"], ["b"], ["c"]]}), path)
    x = next(iter(FastDataset.from_parquet(path)))
    np.testing.assert_array_equal(x["v"], [[1, 2], [3, 4], [5, 6]])
    assert x["w"].numpy().tolist() == [[b"a"], [b"b"], [b"c"]]
    # As many values in each row group as if all lists had one length.
    pq.write_table(pa.table({"v": [[1, 2], [3, 4], [5], [6, 7, 8]]}), path, row_group_size=2)
    with pytest.raises(ValueError, match="row 2: the column 'v' has 1 values, and 2 in other rows"):
        FastDataset.from_parquet(path)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"a": 1}, {"a": 2}]),
        pa.array([[[1], [2]], [[3]]]),
        pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    ],
    ids=["struct", "lists of lists", "map"],
)
def test_columns_that_are_no_tensors(tmp_path, column):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0], "strange": column, "v": [[1], [2]]}), path)
    with pytest.raises(ValueError, match="The column 'strange' of .*a.parquet is .*can't be a tensor"):
        FastDataset.from_parquet(path)
    assert next(iter(FastDataset.from_parquet(path, ["x", "v"])))["v"].numpy().tolist() == [[1], [2]]


def test_the_index_of_a_frame_is_no_column(tmp_path):
    path = tmp_path / "frame.parquet"
    table = pa.table({"x": [1.0, 2.0], "__index_level_0__": [5, 6]})
    metadata = {"pandas": '{"index_columns": ["__index_level_0__"], "columns": []}'}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    assert next(iter(FastDataset.from_parquet(path))).keys() == {"x"}
    assert next(iter(FastDataset.from_parquet(path, "__index_level_0__"))).numpy().tolist() == [5, 6]


# Files and arguments that are not in order.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"columns": ["number", "age"]},
            r"0.parquet has no column 'age', as `columns` has it. It has: \['number'",
        ),
        ({"columns": []}, "`columns` is empty"),
        ({"columns": 3}, "`columns` must be names of columns"),
        ({"columns": ["number", "class"]}, r"Twice: \['class'\]"),
        ({"label": None, "sample_weight": "price"}, "`sample_weight` was given without `label`"),
        ({"label": 1}, "`label` must be the name of a column"),
        ({"dtypes": {"number": "complex64"}}, "must be one of bool, int8.*Received: 'complex64'"),
        ({"label": "age"}, "has no column 'age', as `label` has it"),
        ({"dtypes": {"age": "int8"}}, "has no column 'age', as `dtypes` has it"),
        ({"dtypes": "float32"}, "`dtypes` must be a dict"),
        ({"missing": "drop"}, "`missing` must be 'raise', 'nan'"),
        ({"missing": None}, "`missing` must be 'raise', 'nan'"),
        ({"missing": {"age": 0}}, "`missing` names 'age', which is none of the columns that are read"),
        ({"missing": {"number": 0.5}}, "gives 0.5 for the column 'number', which is int64"),
        ({"missing": {"name": 0}}, "gives 0 for the column 'name', which is string"),
        ({"shuffle_row_groups": 0}, "`shuffle_row_groups` must be at least 1"),
        ({"shuffle_buffer": 10}, "no option shuffle_buffer"),
        ({"shuffle": 100}, "`shuffle` must be True or False"),
    ],
)
def test_arguments_that_cannot_be(tables, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        dataset_of(tables, **options)


def test_nothing_to_read(tmp_path):
    pattern = str(tmp_path / "nothing-*.parquet")
    with pytest.raises(ValueError, match=re.escape(pattern)):
        dataset_of(pattern)
    with pytest.raises(ValueError, match="No Parquet files in"):
        dataset_of(tmp_path)
    write_tables(tmp_path / "year=2026", [0])
    with pytest.raises(ValueError, match=r"There are some below: give .*\*\*/\*\.parquet"):
        dataset_of(tmp_path)
    with pytest.raises(ValueError, match="hold no row"):
        dataset_of(tmp_path / "year=2026")


def test_files_that_do_not_agree(tmp_path):
    one, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"x": [1.5], "s": ["a"], "i": pa.array([1], pa.int64())}), one)
    pq.write_table(
        pa.table({"s": pa.array(["b"], pa.large_string()), "x": [2.5], "i": pa.array([2], pa.int32())}), other
    )
    with pytest.raises(ValueError, match=r"The column 'i' is int64 in .*a.parquet and int32 in .*b.parquet"):
        FastDataset.from_parquet(tmp_path)
    batch = next(iter(FastDataset.from_parquet(tmp_path, dtypes={"i": "int64"})))
    assert batch["i"].numpy().tolist() == [1, 2]
    # The order of columns, and how their strings are kept, makes no difference.
    batch = next(iter(FastDataset.from_parquet(tmp_path, ["x", "s"])))
    assert (batch["x"].numpy().tolist(), batch["s"].numpy().tolist()) == ([1.5, 2.5], [b"a", b"b"])
    pq.write_table(pa.table({"x": [3.5]}), other)
    with pytest.raises(ValueError, match=r"b.parquet has no column 'i', which .*a.parquet has"):
        FastDataset.from_parquet(tmp_path)
    pq.write_table(pa.Table.from_arrays([pa.array([1.5]), pa.array([2.5])], ["x", "x"]), other)
    with pytest.raises(ValueError, match=r"b.parquet has several columns of one name: 'x'"):
        FastDataset.from_parquet(tmp_path, ["x"])


@pytest.mark.parametrize("cut", [0.5, 0.0001], ids=["half", "nearly all"])
def test_a_truncated_file(tables, tmp_path, cut):
    path = Path(tables).parent / "part-2.parquet"
    path.write_bytes(path.read_bytes()[: max(3, int(path.stat().st_size * cut))])
    with pytest.raises(ValueError, match=r"part-2.parquet: it can't be read as Parquet.*on_error='skip'"):
        dataset_of(tables)
    with pytest.warns(UserWarning, match="Left out, since it can't be used: .*part-2.parquet") as caught:
        dataset = dataset_of(tables, on_error="skip")
    assert caught[0].filename == __file__
    assert flat(numbers_of(dataset)) == [*range(40), *range(90, N)]
    assert [example.path for example in dataset.skipped] == [str(path)]
    path.write_bytes(b"no table")
    with pytest.raises(ValueError, match="can't be read as Parquet"):
        dataset_of(path)
    with pytest.raises(ValueError, match="None of 1 files can be read"):
        dataset_of(path, on_error="skip")


@pytest.mark.parametrize("options", [{}, {"map_fn": same}], ids=["rows", "one by one"])
def test_a_damaged_row_group(tables, options):
    path = Path(tables).parent / "part-0.parquet"
    damage_row_group(path, 1)
    with pytest.raises(ValueError, match="part-0.parquet, row 16: row group 1 can't be read"):
        dataset_of(tables, **options)
    dataset = dataset_of(tables, cache=False, **options)
    for _ in range(2):
        with pytest.raises(ExampleLoadError, match=r"part-0.parquet, row 16: .*row group 1 can't be read"):
            batches_of(dataset)
    dataset = dataset_of(tables, cache=False, on_error="skip", **options)
    with pytest.warns(UserWarning, match="An example was left out"):
        assert flat(numbers_of(dataset)) == [*range(16), *range(32, N)]
    assert flat(numbers_of(dataset)) == [*range(16), *range(32, N)]
    assert [example.path for example in dataset.skipped] == [f"{path}, row {row}" for row in range(16, 32)]
    assert int(dataset.cardinality()) == 11


@pytest.mark.parametrize("cache", ["auto", False])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_damaged_row_group_is_left_out_wherever_the_table_is(tmp_path, cache, ragged):
    lists = [[k] * (k % 3 if ragged else 2) for k in range(48)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": lists, "n": list(range(48))}), path, row_group_size=16)
    damage_row_group(path, 0)
    with pytest.raises(ValueError, match="a.parquet, row group 0 can't be read"):
        dataset_of(path, cache=cache, label="n")  # by its lists, also where it is not loaded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = dataset_of(path, cache=cache, label="n", on_error="skip")
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # in the first epoch, or when it is built, there is one
            batches = list(dataset)
        assert [n for _, y in batches for n in y.numpy().tolist()] == list(range(16, 48))
    values = [x["v"].to_list() if ragged else x["v"].numpy().tolist() for x, _ in batches]
    assert flat(values) == lists[16:]
    assert [example.path for example in dataset.skipped] == [f"{path}, row {row}" for row in range(16)]
    assert {example.reason for example in dataset.skipped}.pop().startswith("row group 0 can't be read")
    damage_row_group(path, 1)
    damage_row_group(path, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ExampleLoadError, match="row group 0 can't be read"):
            list(dataset_of(path, cache=cache, label="n", on_error="skip"))


def test_an_error_that_is_kept_keeps_nothing_alive(tables):
    damage_row_group(Path(tables).parent / "part-0.parquet", 1)
    source = dataset_of(str(Path(tables).parent / "part-0.parquet"), cache=False)._source
    for _ in range(3):
        positions = np.arange(16, 20)
        wanted = weakref.ref(positions)
        assert sorted(source.load(positions, None, None)[1]) == [0, 1, 2, 3]
        del positions
        assert wanted() is None
    assert str(source.load(np.array([16]), None, None)[1][0]).startswith("row group 1 can't be read")


def test_a_value_that_has_changed_is_seen_by_its_checksum(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.arange(1000.0)})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="a.parquet, row 0: row group 0 can't be read.*CRC"):
        FastDataset.from_parquet(path)


def test_a_file_that_changes_while_it_is_read(tables):
    dataset = dataset_of(tables, cache=False)
    path = Path(tables).parent / "part-0.parquet"
    pq.write_table(numbered(0, 41), path)
    with pytest.raises(ExampleLoadError, match="part-0.parquet has changed since the dataset was built"):
        batches_of(dataset)


# Missing values.


@pytest.fixture
def gaps(tmp_path):
    """Two files of ages with a null in row 3 of the second and NaN in row 4, and names without one in row 1."""
    for name, ages, names in (("a", [1.0, 2.0], ["x", "y"]), ("b", [3.0, 4.0, 5.0, None, np.nan], ["z", None, *"uvw"])):
        table = pa.table({"age": pa.array(ages, pa.float32()), "name": names, "n": list(range(len(ages)))})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"cache": False}, {"cache": False, "map_fn": lambda x: x}])
def test_missing_values_are_named(gaps, options):
    with pytest.raises(ExampleLoadError) as error:
        batches_of(FastDataset.from_parquet(gaps, ["age"], **options))
    assert "b.parquet, row 3: the column 'age' has no value" in str(error.value)
    assert "missing={'age': 0}" in str(error.value)
    if not options:
        assert "as in 1 more of the 5 rows read with it" in str(error.value)


@pytest.mark.parametrize("cache", ["auto", False])
def test_missing_values_are_filled_or_left_out(gaps, cache):
    def read(columns, **options):
        (batch,) = batches_of(FastDataset.from_parquet(gaps, columns, cache=cache, batch_size=10, **options))
        return batch

    ages = read(["age"], missing={"age": -1})["age"].tolist()
    assert ages == [1, 2, 3, 4, 5, -1, -1]
    assert read("age", missing=0).tolist() == [1, 2, 3, 4, 5, 0, 0]
    assert read(["age", "n"], missing=0.5)["age"].tolist() == [1, 2, 3, 4, 5, 0.5, 0.5]
    for missing in ("nan", {"age": "nan"}, {"age": np.nan}):
        assert np.isnan(read("age", missing=missing)).tolist() == [False] * 5 + [True] * 2
    assert read("name", missing={"name": "nobody"}).tolist() == [b"x", b"y", b"z", b"nobody", b"u", b"v", b"w"]
    with pytest.raises(ExampleLoadError, match="row 1: the column 'name' has no value"):
        read("name", missing="nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = FastDataset.from_parquet(gaps, cache=cache, on_error="skip", batch_size=10)
        (batch,) = batches_of(dataset)
    assert len(caught) == 1
    assert batch["n"].tolist() == [0, 1, 0, 2]
    b = str(gaps / "b.parquet")
    assert [example.path for example in dataset.skipped] == [f"{b}, row {row}" for row in (1, 3, 4)]
    assert int(dataset.cardinality()) == 1


def test_a_column_without_a_value_in_one_file_or_in_all(tmp_path):
    pq.write_table(pa.table({"x": pa.nulls(2), "v": pa.nulls(2)}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="'x' of .*a.parquet is null: it has no value in any row"):
        FastDataset.from_parquet(tmp_path, "x")
    assert next(iter(FastDataset.from_parquet(tmp_path, "x", dtypes={"x": "int8"}, missing=3))).numpy().tolist() == [
        3,
        3,
    ]
    pq.write_table(pa.table({"x": ["a"], "v": [[1, 2]]}), tmp_path / "b.parquet")
    batch = next(iter(FastDataset.from_parquet(tmp_path, "x", missing={"x": "?"})))
    assert batch.numpy().tolist() == [b"?", b"?", b"a"]
    with pytest.raises(ValueError, match="a.parquet, row 0: the column 'v' has no list, as in 1 more"):
        FastDataset.from_parquet(tmp_path, ["v"])


def test_missing_values_in_lists(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": [[1.0, 2.0], [3.0, None], [5.0, 6.0]], "r": [["a"], [], ["b", None]]}), path)
    with pytest.raises(ValueError, match="row 1: the column 'v' has no value"):
        FastDataset.from_parquet(path, ["v"])
    with pytest.raises(ExampleLoadError, match="row 2: the column 'r' has no value"):
        batches_of(FastDataset.from_parquet(path, ["r"], cache=False))
    batch = next(iter(FastDataset.from_parquet(path, missing={"v": 0.5, "r": "?"})))
    np.testing.assert_array_equal(batch["v"], [[1, 2], [3, 0.5], [5, 6]])
    assert batch["r"].to_list() == [[b"a"], [], [b"b", b"?"]]
    pq.write_table(pa.table({"v": [[1.0, 2.0], None]}), path)
    with pytest.raises(ValueError, match="row 1: the column 'v' has no list"):
        FastDataset.from_parquet(path, missing={"v": 0.5})


# Memory.


def test_a_table_that_does_not_fit_is_read_by_row_groups(tables, monkeypatch):
    monkeypatch.setattr(table_sources, "fits_in_memory", lambda num_bytes: False)
    monkeypatch.setattr(table_sources, "_WINDOW_BYTES", 5000)
    with pytest.warns(UserWarning, match=r"read by row groups.*windows of 2 of the 8.*shuffle_row_groups=2") as caught:
        dataset = dataset_of(tables, shuffle=True, seed=0)
    assert caught[0].filename == __file__
    assert sorted(flat(numbers_of(dataset))) == list(range(N))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset_of(tables)
        dataset_of(tables, shuffle=True, shuffle_row_groups=3)


def test_a_table_in_memory_is_there_once(tables, monkeypatch):
    joined, seen = table_sources.joined, []

    def noted(parts):
        seen.append([weakref.ref(part) for part in parts])
        return joined(parts)

    monkeypatch.setattr(table_sources, "joined", noted)
    dataset = dataset_of(tables, label="name")
    gc.collect()
    # Beside the arrays nothing is left of the columns of its row groups.
    assert [len(parts) for parts in seen] == [8] * 8
    assert not any(ref() is not None for parts in seen for ref in parts)
    assert dataset.labels.tolist() == [f"name {k}".encode() for k in range(N)]


def test_row_groups_that_are_larger_than_memory(tables, monkeypatch):
    monkeypatch.setattr(table_sources, "free_memory_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"row group \d has 16 rows.*smaller row groups"):
        dataset_of(tables, cache=False)
    with pytest.raises(ValueError, match="cache='memory' needs about .* GB to load 100 rows"):
        dataset_of(tables, cache="memory")


def test_few_row_groups_are_kept(tables, monkeypatch):
    monkeypatch.setattr(table_sources, "_LITTLE_BYTES", 0)
    dataset = dataset_of(tables, cache=False, shuffle=True, seed=0, shuffle_row_groups=2)
    numbers_of(dataset)
    assert len(dataset._source._kept) <= 4
    in_order = dataset_of(tables, cache=False)
    numbers_of(in_order)
    assert len(in_order._source._kept) <= 3


@pytest.mark.parametrize("cache", ["auto", False])
def test_a_long_word_that_all_rows_have_is_in_memory_once(tmp_path, cache):
    path = tmp_path / "a.parquet"
    words = pa.DictionaryArray.from_arrays(np.zeros(200_000, np.int32), ["x" * 300_000])
    pq.write_table(pa.table({"s": words, "n": np.arange(200_000)}), path)
    assert path.stat().st_size < 2_000_000  # and 60 GB, if each row had its own
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    dataset = FastDataset.from_parquet(path, cache=cache, batch_size=4)
    batch = next(iter(dataset))
    assert [len(word) for word in batch["s"].numpy()] == [300_000] * 4
    # By this, no more batches are made at once than are little memory.
    assert dataset._source.elements.row_bytes == 300_000 + 8
    assert pa.total_allocated_bytes() - before < 20e6


def test_strings_that_a_file_does_not_tell_the_size_of_are_bounded(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    texts = [f"{'x' * 1000}{k}" for k in range(5000)]
    options = {"use_dictionary": False, "column_encoding": {"s": "DELTA_BYTE_ARRAY"}}
    pq.write_table(pa.table({"s": texts}), path, **options)
    dataset = FastDataset.from_parquet(path, batch_size=5000)
    assert next(iter(dataset))["s"].numpy().tolist() == [text.encode() for text in texts]
    monkeypatch.setattr(parquet_files, "free_memory_bytes", lambda: 2_000_000)
    with pytest.raises(
        ValueError, match=r"a.parquet, row .*row group 0 takes more than half of the free memory.*columns"
    ):
        FastDataset.from_parquet(path)


def test_many_equal_rows_in_a_small_file(tmp_path):
    path = tmp_path / "a.parquet"
    schema = pa.schema([("n", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(20):
            writer.write_table(pa.table({"n": np.zeros(1_000_000, np.int64)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_sources, "free_memory_bytes", lambda: 100_000_000)
        patch.setattr(table_sources, "fits_in_memory", lambda num_bytes: num_bytes < 50_000_000)
        # 160 MB are not half of 100, and three row groups of 8 MB are.
        assert isinstance(FastDataset.from_parquet(path)._source, table_sources.RowGroupSource)
        patch.setattr(table_sources, "free_memory_bytes", lambda: 10_000_000)
        with pytest.raises(
            ValueError, match=r"row group 0 has 1000000 rows, about 0.01 GB in memory.*smaller row groups"
        ):
            FastDataset.from_parquet(path)


def test_a_pipe_is_refused_by_name(tmp_path):
    write_tables(tmp_path, [20])
    os.mkfifo(tmp_path / "part-1.parquet")
    (tmp_path / "endless.parquet").symlink_to("/dev/zero")
    for pattern in (tmp_path, tmp_path / "*.parquet", [tmp_path / "part-0.parquet", tmp_path / "part-1.parquet"]):
        name = r"(part-1|endless)\.parquet"
        with pytest.raises((ValueError, OSError), match=rf"(pipe|device).*{name}|{name}.*(pipe|device)"):
            dataset_of(pattern)
    with pytest.warns(UserWarning, match="Left out, since it can't be used: .*endless.parquet.* and 1 more"):
        dataset = dataset_of(tmp_path, on_error="skip")
    assert flat(numbers_of(dataset)) == list(range(20))


# Cases 4 and 5: stores.


def test_a_store_left_half_way_is_completed(tables, tmp_path):
    options = {"columns": FIXED, "cache": "disk", "cache_dir": tmp_path / "cache"}
    dataset = dataset_of(tables, **options)
    for _ in dataset.take(2):
        pass
    assert flat(numbers_of(dataset)) == list(range(N))
    assert flat(numbers_of(dataset_of(tables, **options))) == list(range(N))


@pytest.mark.parametrize("cache", ["auto", "disk", False])
def test_files_that_change_leave_no_stale_rows(tables, tmp_path, cache):
    options = {"columns": FIXED, "cache": cache, "cache_dir": tmp_path / "cache"}
    assert flat(numbers_of(dataset_of(tables, **options))) == list(range(N))
    pq.write_table(numbered(500, 40), Path(tables).parent / "part-0.parquet")
    assert flat(numbers_of(dataset_of(tables, **options))) == [*range(500, 540), *range(40, N)]


def test_each_row_is_mapped_once_and_augmented_anew(tables):
    calls = []

    def count(x):
        calls.append(1)
        return x

    def counted(x):
        return {"number": x["number"], "v": tf.ensure_shape(tf.numpy_function(count, [x["price"]], tf.float32), [])}

    def noisy(x, y, seed):
        return {"number": x["number"], "v": x["v"] + tf.random.stateless_normal([], seed)}, y

    def epochs(seed):
        dataset = dataset_of(tables, ["number", "price"], map_fn=counted, augment_fn=noisy, seed=seed)
        before = len(calls)
        three = [bytes_of(dataset) for _ in range(3)]
        # One call is for the shapes, when the dataset is traced.
        assert len(calls) - before == N
        return three

    first = epochs(0)
    assert len(set(first)) == 3
    assert first == epochs(0)
    assert first != epochs(1)


# What takes it.


def test_functional_models_and_feature_spaces_take_it(tables):
    space = keras.utils.FeatureSpace(
        features={"cm": "float_normalized", "city": "string_categorical", "number": "float"}, output_mode="concat"
    )

    def renamed(x):
        return {"cm": x["größe.cm"], "city": x["city"], "number": x["number"]}

    columns = ["größe.cm", "city", "number"]
    space.adapt(dataset_of(tables, columns, label=None, map_fn=renamed))
    train = dataset_of(tables, columns, map_fn=renamed, shuffle=True, seed=0)
    # Keras (3.12 to 3.15) warns of the kind of dict that this is.
    inputs = dict(space.get_inputs())
    assert all(tensor.shape == (None, 1) for tensor in inputs.values())
    outputs = keras.layers.Dense(3)(space.get_encoded_features())
    model = keras.Model(inputs, outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    # Labels of uint8, for which Keras itself has no class weights.
    model.fit(train, epochs=2, verbose=0, class_weight={0: 2.0})
    assert model.predict(dataset_of(tables, columns, map_fn=renamed), verbose=0).shape == (N, 3)


@pytest.mark.parametrize("cache", ["auto", False])
def test_fit_evaluate_and_predict(tables, cache):
    inputs = {
        "price": keras.Input((1,), name="price"),
        "even": keras.Input((1,), name="even"),
        "pair": keras.Input((2,), name="pair"),
    }
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(list(inputs.values())))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), weighted_metrics=["mse"])
    train = dataset_of(tables, ["price", "even", "pair"], sample_weight="größe.cm", cache=cache, batch_size=9)
    history = model.fit(train, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    evaluated = model.evaluate(train, verbose=0, return_dict=True)
    predicted = model.predict(train, verbose=0)
    assert predicted.shape == (N, 1)
    weights = np.arange(N) / 2
    expected = np.sum(weights * (predicted[:, 0] - train.labels) ** 2) / weights.sum()
    assert evaluated["mse"] == pytest.approx(expected, rel=1e-4)


def test_stacks_and_report(tables, capsys):
    stacks = list(iter(dataset_of(tables, "number", cache=False)).stacks(5))
    assert [stack.shape.as_list() for stack, _ in stacks] == [[5, 8], [5, 8], [2, 8], [1, 4]]
    report = dataset_of(tables).report(seconds=0.3)
    assert [stage.name for stage in report.stages] == ["gather", "batch"]
    assert "examples/s" in capsys.readouterr().out
    with pytest.raises(ValueError, match="report"):
        dataset_of(tables, cache=False).report(seconds=0.3)


def test_without_pyarrow_the_error_says_what_brings_it(tables, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'pip install "keras_turbo\[tabular\]"'):
        dataset_of(tables)
