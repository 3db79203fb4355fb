"""FastDataset.from_csv: what it yields, and what it says of rows and cells that are not in order."""

from __future__ import annotations

import bz2
import gc
import gzip
import os
import re
import resource
import shutil
import signal
import time
import warnings
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources import csv_table
from keras_turbo.data.sources import tables as table_sources
from keras_turbo.data.tables import csv_files
from keras_turbo.data.tables import table as table_module
from tests.data.epochs import batches_of

N = 300


def numbered(first: int, count: int) -> str:
    """A table in which each row's number can be told from each of its cells; some are quoted, with a line's end."""
    rows = [f'{k},{k / 2},"name, {k}\nof it",{"true" if k % 2 else "false"}' for k in range(first, first + count)]
    return "\n".join(["number,größe cm,name,odd", *rows, ""])


@pytest.fixture
def tables(tmp_path):
    """Files of numbered rows, such without a row among them, in a folder that is hard to handle."""
    folder = tmp_path / "dä ta (1)"
    folder.mkdir()
    for index, (first, count) in enumerate([(0, 120), (120, 0), (120, 150), (270, 30)]):
        (folder / f"part-{index}.csv").write_text(numbered(first, count), "utf-8")
    (folder / "part-4.csv").touch()
    (folder / "part-5.csv").write_text("number,größe cm,name,odd", "utf-8")
    return str(folder / "part-*.csv")


@pytest.fixture
def small_memory(monkeypatch):
    """A machine in which no table fits; files are looked at and converted in small pieces."""
    monkeypatch.setattr(csv_table, "free_memory_bytes", lambda: 0)
    monkeypatch.setattr(csv_files, "_LOOK_BYTES", 400)
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(csv_table, "_ROWS_IN_GROUP", 32)
    monkeypatch.setattr(table_sources, "_WINDOW_BYTES", 20_000)


@pytest.fixture(params=["in memory", "converted"])
def anywhere(request):
    """Both ways in which a table is read."""
    if request.param == "converted":
        request.getfixturevalue("small_memory")
    return request.param


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, text: str, name: str = "a.csv") -> str:
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def numbers_of(dataset: tf.data.Dataset) -> list[list[int]]:
    batches = []
    for x, y in batches_of(dataset):
        batches.append(y.tolist())
        np.testing.assert_array_equal(x["größe cm"], y.astype(np.float32) / 2)
        np.testing.assert_array_equal(x["name"], np.array([f"name, {k}\nof it".encode() for k in y], object))
        np.testing.assert_array_equal(x["odd"], y % 2 == 1)
    return batches


def flat(batches):
    return [number for batch in batches for number in batch]


def test_rows_in_order(tables, anywhere):
    dataset = FastDataset.from_csv(tables, label="number", batch_size=50)
    for _ in range(2):
        assert numbers_of(dataset) == [list(range(k, k + 50)) for k in range(0, N, 50)]
    assert int(dataset.cardinality()) == 6
    assert dataset.labels.tolist() == list(range(N))
    x, y = dataset.element_spec
    assert {name: spec.dtype for name, spec in x.items()} == {
        "größe cm": tf.float32,
        "name": tf.string,
        "odd": tf.bool,
    }
    assert y.dtype == tf.int64


def test_shuffled_resumed_and_dealt_out(tables, anywhere):
    def dataset_of(seed=3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dataset = FastDataset.from_csv(tables, label="number", batch_size=32, shuffle=True, seed=seed)
        assert [("not a full one" in str(one.message), one.filename) for one in caught] == (
            [(True, __file__)] if anywhere == "converted" else []
        )
        return dataset

    dataset = dataset_of()
    epochs = [numbers_of(dataset) for _ in range(3)]
    assert epochs[0] != epochs[1]
    assert all(sorted(flat(epoch)) == list(range(N)) for epoch in epochs)
    assert numbers_of(dataset_of()) == epochs[0]
    assert numbers_of(dataset_of(4)) != epochs[0]
    resumed = dataset_of()
    resumed.resume_at(1, 4)
    assert numbers_of(resumed) == epochs[1][4:]
    assert numbers_of(resumed) == epochs[2]
    parts = [flat(numbers_of(dataset.shard(4, index))) for index in range(4)]
    assert sorted(flat(parts)) == list(range(N))
    assert {len(part) for part in parts} == {75}


def test_files_are_converted_once_and_again_when_they_change(tables, small_memory, tmp_path, monkeypatch):
    written = []
    write_copy = csv_table._write
    monkeypatch.setattr(csv_table, "_write", lambda path, *rest: written.append(path) or write_copy(path, *rest))
    paths = sorted(str(path) for path in Path(tables).parent.iterdir())[:4]
    for _ in range(2):
        assert flat(numbers_of(FastDataset.from_csv(tables, label="number"))) == list(range(N))
    assert written == paths
    copies = list((tmp_path / "cache").rglob("*.parquet"))
    assert len(copies) == 4
    # What processes have left that were killed, or are at work.
    for copy in copies:
        for hours, name in ((2, "a"), (0.5, "b")):
            leftover = copy.with_name(f".writing-{name}")
            leftover.touch()
            os.utime(leftover, times=(time.time() - 3600 * hours,) * 2)
    write(Path(tables).parent, numbered(1000, 120), "part-0.csv")
    found = flat(numbers_of(FastDataset.from_csv(tables, label="number")))
    assert found == [*range(1000, 1120), *range(120, N)]
    assert written == [*paths, paths[0]]
    assert len(list((tmp_path / "cache").rglob("*.parquet"))) == 4
    # In the folder of the file that changed.
    assert len(list((tmp_path / "cache").rglob(".writing-a"))) == 3
    assert len(list((tmp_path / "cache").rglob(".writing-b"))) == 4
    # One that was damaged is written anew.
    copies = sorted((tmp_path / "cache").rglob("*.parquet"))
    copies[0].write_bytes(copies[0].read_bytes()[:100])
    assert flat(numbers_of(FastDataset.from_csv(tables, label="number"))) == found
    assert len(written) == 6
    assert {path.name[-2:] for path in (tmp_path / "cache").rglob(".writing-*")} == {"-a", "-b"}


def test_a_cache_folder_that_cannot_be_written(tables, small_memory, tmp_path):
    write(tmp_path, "a file", "folder")
    with pytest.raises(OSError, match="does not fit in memory, and is converted in .*`cache_dir`"):
        FastDataset.from_csv(tables, cache_dir=tmp_path / "folder")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_disk_that_is_full_is_no_damage_of_the_file(small_memory, tmp_path, monkeypatch, on_error):
    # Written in pieces that no buffer holds back until the file is closed.
    monkeypatch.setattr(csv_table, "_ROWS_IN_GROUP", 10_000)
    path = write(tmp_path, numbered(0, 30_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, before[0][1]))
    try:
        with pytest.raises(OSError, match="does not fit in memory, and is converted in .*File too large.*`cache_dir`"):
            FastDataset.from_csv(path, on_error=on_error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_copies_of_one_file_with_other_columns_are_kept(tables, small_memory):
    numbers = FastDataset.from_csv(tables, "number", batch_size=N)
    sizes = FastDataset.from_csv(tables, "größe cm", batch_size=N)
    for _ in range(2):
        assert flat(batches_of(numbers)) == list(range(N))
        assert flat(batches_of(sizes)) == [k / 2 for k in range(N)]


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, "gz"), (bz2.compress, "bz2"), (gzip.compress, "")])
def test_packed_files(tmp_path, pack, ending, anywhere):
    path = tmp_path / f"a.csv.{ending}"
    path.write_bytes(pack(numbered(0, 100).encode()))
    assert flat(numbers_of(FastDataset.from_csv(tmp_path, label="number"))) == list(range(100))
    path.write_bytes(pack(numbered(0, 100).encode())[:-20])
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: it can't be read as CSV"):
        FastDataset.from_csv(path)
    whole = write(tmp_path, numbered(0, 10), "b.csv")
    with pytest.warns(UserWarning, match="Left out, since it can't be used"):
        dataset = FastDataset.from_csv([path, whole], label="number", on_error="skip")
    assert flat(numbers_of(dataset)) == list(range(10))
    assert [example.path for example in dataset.skipped] == [str(path)]


def test_how_files_are_written(tmp_path):
    path = write(tmp_path, "1;a\n2;b\n")
    batch = next(iter(FastDataset.from_csv(path, delimiter=";", column_names=["x", "s"])))
    assert (batch["x"].numpy().tolist(), batch["s"].numpy().tolist()) == ([1, 2], [b"a", b"b"])
    (tmp_path / "a.csv").write_bytes("x,s\r\n1,Größe\r\n".encode("latin-1"))
    assert next(iter(FastDataset.from_csv(path, "s", encoding="latin-1"))).numpy()[0].decode() == "Größe"
    with pytest.raises(ValueError, match="row 0: the column 's' has bytes that are no text in UTF-8"):
        FastDataset.from_csv(path)
    (tmp_path / "a.csv").write_bytes("x,s\n1,Größe\n".encode("utf-8-sig"))
    assert next(iter(FastDataset.from_csv(path))).keys() == {"x", "s"}
    with pytest.raises(ValueError, match="row 0: it has 2 fields, and not 3"):
        FastDataset.from_csv(write(tmp_path, "1,2\n3,4\n"), column_names=["a", "b", "c"])


def test_a_store_on_disk_is_not_taken_for_that_of_another_encoding(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"s\n\x80\x93\n\xa4\n")

    def lengths(encoding):
        dataset = FastDataset.from_csv(
            path, "s", encoding=encoding, map_fn=lambda s: tf.strings.length(s, unit="BYTE"), cache="disk"
        )
        return batches_of(dataset)[0].tolist()

    assert lengths("latin-1") == [4, 2]
    gc.collect()  # a store that is in use is not shared
    assert lengths("cp1252") == [6, 2]


def test_files_that_are_something_else(tmp_path):
    path = write(tmp_path, "a;b\n1;2\n")
    with pytest.raises(ValueError, match=r"a.csv has one column, 'a;b', if ',' is its delimiter.*delimiter=';'"):
        FastDataset.from_csv(path)
    pq.write_table(pa.table({"x": np.arange(100.0)}), path)
    with pytest.raises(ValueError, match="a.csv: it can't be read as CSV.*It is Parquet, which from_parquet reads"):
        FastDataset.from_csv(path)
    write(tmp_path, 'a,b\n1,"2\n' + "3,4\n" * 800_000)
    with pytest.raises(ValueError, match="a.csv: .*a row is longer than 1 MB, or a quote is not closed"):
        FastDataset.from_csv(path)
    with pytest.raises(TypeError, match="`pattern` must be a pattern, a path or a list of them. Received: None"):
        FastDataset.from_csv(None)
    (tmp_path / "a.csv").write_bytes("ä,b\n1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match="a.csv: it can't be read as CSV: .*It is no utf-8: give another `encoding`"):
        FastDataset.from_csv(path)
    (tmp_path / "a.csv").write_bytes("a,b\n1,ö\n".encode("utf-16"))
    assert next(iter(FastDataset.from_csv(path, "b", encoding="utf-16"))).numpy()[0].decode() == "ö"


def test_types_are_inferred_over_all_files(tmp_path, anywhere):
    write(tmp_path, "i,f,s,b,d,e\n1,1,x,true,2020-01-01,\n2,2,y,false,2020-01-02,\n", "a.csv")
    write(tmp_path, "f,i,s,d,b,e\n1.5,3,z,2020-01-03,true,7\n", "b.csv")
    dataset = FastDataset.from_csv(tmp_path, missing={"e": 0}, batch_size=3)
    (x,) = dataset
    assert {name: (tensor.dtype.name, tensor.numpy().tolist()) for name, tensor in x.items()} == {
        "i": ("int64", [1, 2, 3]),
        "f": ("float32", [1.0, 2.0, 1.5]),
        "s": ("string", [b"x", b"y", b"z"]),
        "b": ("bool", [True, False, True]),
        "d": ("string", [b"2020-01-01", b"2020-01-02", b"2020-01-03"]),
        "e": ("int64", [0, 0, 7]),
    }
    write(tmp_path, "i,f,s,b,d,e\nyes,1,x,true,2020-01-01,\n", "c.csv")
    with pytest.raises(ValueError, match=r"The column 'i' is int64 in .*a.csv and string in .*c.csv.*dtypes=\{'i'"):
        FastDataset.from_csv(tmp_path)
    x = next(iter(FastDataset.from_csv(tmp_path, "i", dtypes={"i": "string"})))
    assert x.numpy().tolist() == [b"1", b"2", b"3", b"yes"]
    write(tmp_path, "i,f\n1,1\n", "c.csv")
    with pytest.raises(ValueError, match=r"c.csv has no column 'b', which .*a.csv has"):
        FastDataset.from_csv(tmp_path)
    assert next(iter(FastDataset.from_csv(tmp_path, ["f"]))).keys() == {"f"}


def test_integers_that_have_fractions_further_down(tmp_path, small_memory):
    rows = [f"{k},{k if k < 250 else k + 0.5},{k}" for k in range(N)]
    path = write(tmp_path, "\n".join(["n,x,s", *rows]))
    dataset = FastDataset.from_csv(path, dtypes={"s": "string"}, batch_size=N)
    (batch,) = dataset
    assert batch["x"].dtype == tf.float32
    np.testing.assert_array_equal(batch["x"], [k if k < 250 else k + 0.5 for k in range(N)])
    assert batch["n"].dtype == tf.int64
    assert batch["s"].numpy()[7] == b"7"


def test_dtypes(tmp_path):
    path = write(tmp_path, "id,x,y\n007,1.25,0\n008,2,1\n")
    dtypes = {"id": "string", "x": tf.float64, "y": "uint8"}
    x, y = next(iter(FastDataset.from_csv(path, label="y", dtypes=dtypes)))
    assert (x["id"].numpy().tolist(), x["x"].dtype, y.dtype) == ([b"007", b"008"], tf.float64, tf.uint8)
    with pytest.raises(ValueError, match="row 0: the column 'x' has '1.25', which is no int32"):
        FastDataset.from_csv(path, dtypes={"x": "int32"})


# Case 1: rows that are none.


@pytest.fixture
def damaged(tmp_path):
    """Two hundred rows of two numbers: one too long, one too short, one with a word, one without a value."""
    rows = [f"{k},{k * 2}" for k in range(200)]
    rows[50] = "50,100,extra"
    rows[120] = "120"
    rows[150] = "150,a word"
    rows[180] = ",360"
    return write(tmp_path, "\n".join(["n,m", *rows, ""]), "dam aged.csv")


def test_damaged_rows_are_named(damaged, anywhere):
    with pytest.raises(ValueError, match=r"dam aged.csv, row 50: it has 3 fields, and not 2: '50,100,extra'") as error:
        FastDataset.from_csv(damaged)
    assert "on_error='skip'" in str(error.value)


def test_damaged_rows_are_skipped_and_listed(damaged, anywhere):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dtypes = {"m": "int64"}
        dataset = FastDataset.from_csv(damaged, ["m"], label="n", dtypes=dtypes, on_error="skip", batch_size=20)
        epochs = [[y.tolist() for _, y in batches_of(dataset)] for _ in range(2)]
    left = [k for k in range(200) if k not in (50, 120, 150, 180)]
    assert epochs == [[left[k : k + 20] for k in range(0, 196, 20)]] * 2
    assert int(dataset.cardinality()) == 10
    skipped = {int(example.path.rpartition("row ")[2]): example.reason for example in dataset.skipped}
    assert set(skipped) == {50, 120, 150, 180}
    assert skipped[120] == "it has 1 fields, and not 2: '120'."
    assert "the column 'm' has 'a word', which is no int64" in skipped[150]
    assert "the column 'n' has no value" in skipped[180]
    assert all(example.path.startswith(damaged) for example in dataset.skipped)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert dataset.labels.tolist() == left


def test_a_word_among_numbers_makes_strings_of_them_unless_the_type_is_given(tmp_path, anywhere):
    rows = [f"{k},{k * 0.5}" for k in range(400)]
    path = write(tmp_path, "\n".join(["n,m", *rows, "400,oops"]))
    assert FastDataset.from_csv(path).element_spec["m"].dtype == tf.string
    with pytest.raises(ValueError, match=r"row 400: the column 'm' has 'oops', which is no .*dtypes=\{'m': 'string'\}"):
        FastDataset.from_csv(path, dtypes={"m": "float32"})
    with pytest.warns(UserWarning, match="Left out, since it can't be used"):
        dataset = FastDataset.from_csv(path, dtypes={"m": "float32"}, on_error="skip", batch_size=400)
    (batch,) = dataset
    np.testing.assert_array_equal(batch["m"], np.arange(400) * 0.5)
    words = write(tmp_path, "n,m\n1,one\n2,2\n", "words.csv")
    assert FastDataset.from_csv(words).element_spec["m"].dtype == tf.string


def test_a_column_of_another_type_is_no_damage(tmp_path, anywhere):
    rows = [f"{k},word {k}" for k in range(3000)]
    path = write(tmp_path, "\n".join(["n,m", *rows]))
    with pytest.raises(
        ValueError, match="the column 'm' (is of another type: .* values of the first .* are|has 'word 0', which is) no"
    ):
        FastDataset.from_csv(path, dtypes={"m": "float32"}, on_error="skip")


# Sizes.


def test_what_a_packed_file_may_unpack_to(tmp_path, monkeypatch, anywhere):
    monkeypatch.setattr(csv_files, "_UNPACKED_BYTES", 10_000)
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"0,1\n" * 1_000_000))
    bound = 10_000 + 100 * path.stat().st_size
    assert bound < 4_000_000
    with pytest.raises(ValueError, match=r"a.csv.gz: it unpacks to more than .* MB.*larger `max_unpacked_bytes`"):
        FastDataset.from_csv(path)
    with pytest.raises(ValueError, match=r"a.csv.gz: it unpacks to more than 1 MB"):
        FastDataset.from_csv(path, max_unpacked_bytes=1_000_000)
    if anywhere == "in memory":
        dataset = FastDataset.from_csv(path, max_unpacked_bytes=5_000_000)
        assert int(dataset.cardinality()) == 31_250
    whole = write(tmp_path, "a,b\n1,2\n", "b.csv")
    with pytest.warns(UserWarning, match="Left out, since it can't be used: .*a.csv.gz: it unpacks to more than"):
        assert batches_of(FastDataset.from_csv([path, whole], "a", on_error="skip"))[0].tolist() == [1]


def test_a_table_that_turns_out_to_be_too_large_is_converted(tables, monkeypatch, tmp_path):
    # Of text that takes little, and numbers that take more.
    path = write(tmp_path, "a\n" + "1\n" * 100_000)
    monkeypatch.setattr(csv_table, "free_memory_bytes", lambda: 1_000_000)
    dataset = FastDataset.from_csv(path, batch_size=50_000)
    assert isinstance(dataset._source, table_sources.RowGroupSource)
    assert [batch["a"].sum() for batch in batches_of(dataset)] == [50_000, 50_000]
    assert len(list((tmp_path / "cache").rglob("*.parquet"))) == 1


def test_copies_leave_half_of_the_disk(tables, small_memory, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_table.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1000, 0, 1000))
    monkeypatch.setattr(csv_table, "LARGEST_SHARE_OF_FREE", 0.5)
    monkeypatch.setattr(csv_table, "free_memory_bytes", lambda: 0)
    with pytest.raises(OSError, match="converted in .*It takes more than half of what is free there.*`cache_dir`"):
        FastDataset.from_csv(tables)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_many_columns(tmp_path):
    names = [f"c{k}" for k in range(3000)]
    rows = [",".join(str(k + row) for k in range(3000)) for row in range(3)]
    path = write(tmp_path, "\n".join([",".join(names), *rows]))
    request = table_module.Request(None, None, None, None, "raise")
    start = time.process_time()
    source, _ = csv_table.csv_source(path, request, csv_files.CsvFormat(",", None, "utf-8", None), Settings())
    assert time.process_time() - start < 5  # as much for twenty thousand, in which case TensorFlow takes longer
    assert source.labels_at(np.arange(3)) is None
    columns, failed = source.load(np.arange(3), None, None)
    assert not failed
    assert sorted(column.tolist() for column in columns) == sorted([k, k + 1, k + 2] for k in range(3000))


def test_a_pipe_is_refused_by_name(tmp_path):
    write(tmp_path, "a\n1\n", "b.csv")
    os.mkfifo(tmp_path / "a.csv")
    for pattern in (tmp_path, tmp_path / "*.csv", tmp_path / "a.csv"):
        with pytest.raises((ValueError, OSError), match=r"pipe.*a\.csv|a\.csv.*pipe"):
            FastDataset.from_csv(pattern)
    with pytest.warns(UserWarning, match="Left out, since it can't be used: .*a.csv: .*pipe"):
        assert FastDataset.from_csv(tmp_path, on_error="skip").element_spec["a"].dtype == tf.int64


# Missing values.


def test_missing_values(tmp_path, anywhere):
    path = write(tmp_path, "age,city,n\n1,,0\nNA,x,1\n,y,2\n4,z,3\n")

    def read(columns, **options):
        (batch,) = batches_of(FastDataset.from_csv(path, columns, **options))
        return batch

    with pytest.raises(ValueError, match=r"a.csv, row 1: the column 'age' has no"):
        read(["age"])
    assert read("age", missing={"age": 7}).tolist() == [1, 7, 7, 4]
    assert np.isnan(read("age", missing="nan", dtypes={"age": "float32"})).tolist() == [False, True, True, False]
    # An empty string is a string.
    assert read("city").tolist() == [b"", b"x", b"y", b"z"]
    assert read("city", missing={"city": "nowhere"}).tolist() == [b"nowhere", b"x", b"y", b"z"]
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert read(["age", "n"], on_error="skip")["n"].tolist() == [0, 3]


# Arguments, and nothing to read.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ", "}, "`delimiter` must be one character"),
        ({"delimiter": '"'}, "can't be what quotes or ends a row"),
        ({"column_names": "abc"}, "`column_names` must be a list"),
        ({"column_names": ["a", "a"]}, "must be names that differ"),
        ({"encoding": "utf-99"}, "`encoding` must be one that Python knows"),
        ({"columns": ["age"]}, "has no column 'age', as `columns` has it. It has: "),
        ({"missing": {"name": 0}}, "gives 0 for the column 'name', which is string"),
        ({"dtypes": {"age": "int8"}}, "has no column 'age', as `dtypes` has it"),
        ({"shuffle_row_groups": 3}, "no option shuffle_row_groups"),
        ({"cache": "always"}, "`cache` must be"),
    ],
)
def test_arguments_that_cannot_be(tables, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        FastDataset.from_csv(tables, **options)


def test_nothing_to_read(tmp_path):
    pattern = str(tmp_path / "nothing-*.csv")
    with pytest.raises(ValueError, match=re.escape(pattern)):
        FastDataset.from_csv(pattern)
    with pytest.raises(ValueError, match="No CSV files in"):
        FastDataset.from_csv(tmp_path)
    write(tmp_path, "a,b\n")
    write(tmp_path, "", "b.csv")
    with pytest.raises(ValueError, match="hold no row"):
        FastDataset.from_csv(tmp_path)
    write(tmp_path, "a,a,b\n1,2,3\n")
    with pytest.raises(ValueError, match="has several columns of one name: 'a'"):
        FastDataset.from_csv(tmp_path)
    assert FastDataset.from_csv(tmp_path, "b").element_spec.dtype == tf.int64
    write(tmp_path, "b,b\n1,2\n", "b.csv")
    with pytest.raises(ValueError, match="b.csv has several columns of one name: 'b'"):
        FastDataset.from_csv(tmp_path, "b")


def test_memory_that_does_not_suffice(tables, monkeypatch):
    monkeypatch.setattr(csv_table, "free_memory_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="cache='memory' needs more than the .* GB that are free"):
        FastDataset.from_csv(tables, cache="memory")


def test_fit(tables):
    inputs = {name: keras.Input((1,), name=name) for name in ("größe cm", "number")}
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(list(inputs.values())))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    train = FastDataset.from_csv(tables, ["größe cm", "number"], label="odd", shuffle=True)
    model.fit(train, epochs=2, verbose=0, class_weight={0: 2.0})
    evaluation = FastDataset.from_csv(tables, ["größe cm", "number"], label="odd")
    predicted = model.predict(evaluation, verbose=0)[:, 0] > 0
    evaluated = model.evaluate(evaluation, verbose=0, return_dict=True)
    assert evaluated["accuracy"] == pytest.approx(np.mean(predicted == evaluation.labels), abs=0.02)
