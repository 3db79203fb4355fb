"""Tables for the tests, and ways to damage their files."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

CITIES = ("Köln", "Paris", "", "Rio de Janeiro")


def numbered(first: int, count: int) -> pa.Table:
    """Rows of all kinds of columns, from each of which its number can be told."""
    numbers = list(range(first, first + count))
    return pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "größe.cm": pa.array([k / 2 for k in numbers], pa.float64()),
            "city": pa.array([CITIES[k % 4] for k in numbers]).dictionary_encode(),
            "name": pa.array([f"name {k}" for k in numbers], pa.string()),
            "even": pa.array([k % 2 == 0 for k in numbers], pa.bool_()),
            "price": pa.array([decimal.Decimal(k) / 4 for k in numbers], pa.decimal128(12, 2)),
            "pair": pa.array([[k, k + 1] for k in numbers], pa.list_(pa.int32())),
            "class": pa.array([k % 3 for k in numbers], pa.uint8()),
        }
    )


def with_ragged(table: pa.Table) -> pa.Table:
    """The same with lists of unequal length: of numbers, and of strings."""
    numbers = table["number"].to_pylist()
    table = table.append_column("some", pa.array([[k] * (k % 4) for k in numbers], pa.list_(pa.int64())))
    return table.append_column("words", pa.array([[f"w{k}"] * (k % 3) for k in numbers], pa.list_(pa.string())))


def with_times(table: pa.Table) -> pa.Table:
    """The same with a date and a time."""
    start = dt.datetime(1970, 1, 1)
    times = [start + dt.timedelta(days=k) for k in table["number"].to_pylist()]
    table = table.append_column("day", pa.array([time.date() for time in times], pa.date32()))
    return table.append_column("time", pa.array(times, pa.timestamp("ms")))


def write_tables(folder: Path, counts: Sequence[int], rows: int = 16, ragged: bool = False, **options: Any) -> str:
    """Writes files of numbered rows in row groups of `rows`, the numbers going on from file to file; their pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for index, count in enumerate(counts):
        table = numbered(first, count)
        path = folder / f"part-{index}.parquet"
        pq.write_table(with_ragged(table) if ragged else table, path, row_group_size=rows, **options)
        first += count
    return str(folder / "part-*.parquet")


def damage_row_group(path: Path, number: int) -> None:
    """Overwrites the first page of one row group's first column."""
    data = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(number).column(0)
    offsets = [column.data_page_offset, column.dictionary_page_offset]
    start = min(offset for offset in offsets if offset is not None)
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)


def check_columns(x: dict[str, Any]) -> list[int]:
    """Checks that all columns of a batch belong to one another, and gives the numbers of the rows."""
    numbers = np.atleast_1d(np.asarray(x["number"]))
    expected = {
        "größe.cm": numbers.astype(np.float32) / 2,
        "city": np.array([CITIES[k % 4].encode() for k in numbers], object),
        "name": np.array([f"name {k}".encode() for k in numbers], object),
        "even": numbers % 2 == 0,
        "price": numbers.astype(np.float32) / 4,
        "pair": np.stack([numbers, numbers + 1], axis=-1),
    }
    for name, values in expected.items():
        if name in x:
            got = np.asarray(x[name])
            np.testing.assert_array_equal(got.reshape(values.shape), values, err_msg=name)
            assert got.dtype == values.dtype or name == "pair"
    ragged = {"some": [[k] * (k % 4) for k in numbers], "words": [[f"w{k}".encode()] * (k % 3) for k in numbers]}
    for name, lists in ragged.items():
        if name in x:
            got = x[name]
            assert (got.to_list() if isinstance(got, tf.RaggedTensor) else [got.numpy().tolist()]) == lists, name
    return numbers.tolist()
