"""TFRecord files for the tests, and ways to damage them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

FEATURES = {"number": tf.io.FixedLenFeature([], tf.int64), "values": tf.io.FixedLenFeature([4], tf.float32)}


def example(**values: Any) -> bytes:
    """A serialized `tf.train.Example`: integers, floats, or bytes, one or many of each name."""
    features = {}
    for name, value in values.items():
        array = np.ravel(np.asarray(value, object if isinstance(value, bytes) else None))
        if not array.size:
            feature = tf.train.Feature()
        elif array.dtype.kind in "iub":
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=array.astype(np.int64)))
        elif array.dtype.kind == "f":
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=array))
        else:
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=array.tolist()))
        features[name] = feature
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def numbered(number: int) -> bytes:
    """A record of `FEATURES`, from which its number can be told twice."""
    return example(number=number, values=np.arange(4, dtype=np.float32) + number)


def write_records(path: Path, records: Iterable[bytes], compression: str = "") -> Path:
    """Writes a file by TensorFlow's own writer; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(os.fspath(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def write_shards(folder: Path, counts: Sequence[int], compression: str = "", ending: str = "tfrecord") -> str:
    """Writes files of numbered records, the numbers going on from file to file, and gives their pattern."""
    first = 0
    for index, count in enumerate(counts):
        path = folder / f"part-{index}.{ending}"
        write_records(path, (numbered(first + k) for k in range(count)), compression)
        first += count
    return str(folder / f"part-*.{ending}")


def offsets_of(path: Path) -> list[int]:
    """Where the records of a whole, uncompressed file begin, and its size."""
    data, offset, offsets = path.read_bytes(), 0, [0]
    while offset < len(data):
        offset += struct.unpack_from("<Q", data, offset)[0] + 16
        offsets.append(offset)
    return offsets


def flip_byte(path: Path, offset: int) -> None:
    """Changes one byte of a file, as a bad disk does: its size and time stay what they were."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def truncate(path: Path, size: int) -> None:
    """Cuts a file off."""
    os.truncate(path, size)
