"""Files to attack a reader with: good ones, damaged ones, and small ones that would become very large."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_turbo import FastDataset
from keras_turbo.checkpoint import restore
from keras_turbo.data import write_tfrecords

KINDS = ("jpg", "png", "wav", "tfrecord", "csv", "parquet")
_ROWS = 40
_BLOCK = 16 << 20
_UNPACKED = 2 << 30


def good_file(kind: str, path: Path) -> None:
    """Writes a file of a kind that can be read."""
    rng = np.random.default_rng(0)
    if kind in ("jpg", "png"):
        Image.fromarray(rng.integers(0, 255, (48, 64, 3), np.uint8)).save(path)
    elif kind == "wav":
        path.write_bytes(wav(rng.integers(-9999, 9999, 4000, np.int16).tobytes(), rate=16_000))
    elif kind == "tfrecord":
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in range(_ROWS):
                values = tf.train.Feature(float_list=tf.train.FloatList(value=[row] * 4))
                writer.write(tf.train.Example(features=tf.train.Features(feature={"x": values})).SerializeToString())
    elif kind == "csv":
        path.write_text("a,b,y\n" + "".join(f"{row},word{row % 3},{row % 2}\n" for row in range(_ROWS)))
    else:
        import pyarrow as pa
        import pyarrow.parquet

        table = pa.table({"a": rng.normal(size=_ROWS), "b": ["word"] * _ROWS, "y": np.arange(_ROWS)})
        pa.parquet.write_table(table, path)


def read(path: Path) -> None:
    """Reads a file, or a folder of records, as a user would, to its end."""
    kind = path.name.split(".")[-1 if not path.name.endswith(".gz") else -2]
    options = {"batch_size": 4, "shuffle": False, "cache": False}
    if kind in ("jpg", "png", "bmp"):
        data = FastDataset.from_image_folder(path.parent, labels=None, image_size=(32, 32), **options)
    elif kind == "wav":
        data = FastDataset.from_audio_folder(path.parent, labels=None, sample_rate=16_000, length_samples=99, **options)
    elif kind == "tfrecord":
        features = {"x": tf.io.FixedLenFeature([4], tf.float32)}
        data = FastDataset.from_tfrecord(path, features, cache_dir=path.parent / "cache", **options)
    elif kind == "records":
        data = FastDataset.from_tfrecord(path, cache_dir=path.parent / "cache", **options)
    elif kind == "checkpoint":
        import keras

        restore(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), path)
        return
    else:
        read_table = FastDataset.from_csv if kind == "csv" else FastDataset.from_parquet
        data = read_table(path, label="y", cache_dir=path.parent / "cache", **options)
    for _ in data:
        pass


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """The same with flipped bits, without its end, with a stretch of zeros or noise, or with a part of it twice."""
    data = bytearray(content)
    start, stop = sorted(int(place) for place in rng.integers(0, len(data) + 1, 2))
    how = rng.integers(5)
    if how == 0:
        for place in rng.integers(0, len(data), rng.integers(1, 30)):
            data[place] ^= 1 << int(rng.integers(8))
    elif how == 1:
        del data[stop:]
    elif how == 2:
        data[start:stop] = bytes(stop - start)
    elif how == 3:
        data[start : start + 16] = rng.bytes(16)
    else:
        data[start:start] = data[start:stop]
    return bytes(data)


def wav(samples: bytes, rate: int, declared: int | None = None) -> bytes:
    """A WAV file of one channel of 16 bits; `declared` bytes of samples, where these are to be others."""
    size = len(samples) if declared is None else declared
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, min(2 * rate, 2**32 - 1), 2, 16)
    return b"RIFF" + struct.pack("<I", min(36 + size, 2**32 - 1)) + head + b"data" + struct.pack("<I", size) + samples


def _png(width: int, height: int) -> bytes:
    """A PNG of one color, of which a row is as long as a file of a gigabyte would be."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(_BLOCK), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _gzip(block: bytes, head: bytes = b"") -> bytes:
    """Two gigabytes, packed: the same block again and again."""
    packed = gzip.compress(block * max(1, _BLOCK // len(block)), 6)
    return gzip.compress(head) + packed * (_UNPACKED // _BLOCK)


def _with_word_of(num_bytes: int, rows: int, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * num_bytes]))
    pa.parquet.write_table(pa.table({"a": words, "y": np.zeros(rows)}), path)


def _records(path: Path, manifest: Callable[[str], str]) -> None:
    write_tfrecords(FastDataset(np.zeros((8, 4), np.float32), np.zeros(8)), path)
    described = path / "manifest.json"
    described.write_text(manifest(described.read_text()))


def _of_shape(number: int) -> Callable[[str], str]:
    def changed(text: str) -> str:
        manifest = json.loads(text)
        for feature in next(value for value in manifest.values() if isinstance(value, list) and value):
            feature["shape"] = [number]
        return json.dumps(manifest)

    return changed


def _long_record(path: Path, length: int) -> None:
    import google_crc32c

    head = struct.pack("<Q", length)
    crc = google_crc32c.value(head)
    path.write_bytes(head + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF) + bytes(64))


def _declaring_index(path: Path) -> None:
    good_file("tfrecord", path)
    folder = path.parent / ".keras_turbo_index"
    folder.mkdir()
    stream = io.BytesIO()
    np.save(stream, np.zeros(4, np.int64))
    (folder / f"{path.name}.npy").write_bytes(stream.getvalue().replace(b"(4,), }" + b" " * 12, b"(1000000000000,), }"))


def _deep_state(path: Path) -> None:
    path.mkdir()
    for name in ("training_state.json", "COMMITTED"):
        (path / name).write_text("[" * 200_000)


def bombs() -> dict[str, tuple[str, Callable[[Path], object]]]:
    """By what they are: the name of the file, and what writes it."""
    silence = bytes(4000)
    return {
        "WAV of 999,983 Hz": ("a.wav", lambda path: path.write_bytes(wav(silence, 999_983))),
        "WAV of 1 Hz": ("a.wav", lambda path: path.write_bytes(wav(silence, 1))),
        "WAV that declares 4 GB": ("a.wav", lambda path: path.write_bytes(wav(silence, 16_000, 2**32 - 1))),
        "pipe as JPEG": ("a.jpg", os.mkfifo),
        "pipe as TFRecord": ("a.tfrecord", os.mkfifo),
        "pipe as CSV": ("a.csv", os.mkfifo),
        "endless device as WAV": ("a.wav", lambda path: path.symlink_to("/dev/zero")),
        "endless device as Parquet": ("a.parquet", lambda path: path.symlink_to("/dev/zero")),
        "PNG of 60,000 by 60,000": ("a.png", lambda path: path.write_bytes(_png(60_000, 60_000))),
        "PNG of 5 by 100,000,000": ("a.png", lambda path: path.write_bytes(_png(5, 100_000_000))),
        "manifest: a shape of 10**9": ("a.records", lambda path: _records(path, _of_shape(10**9))),
        "manifest: a shape of 10**18": ("a.records", lambda path: _records(path, _of_shape(10**18))),
        "manifest: nested 200,000 times": ("a.records", lambda path: _records(path, lambda text: "[" * 200_000)),
        "index that declares 8 TB": ("a.tfrecord", _declaring_index),
        "record that declares 4 EB": ("a.tfrecord", lambda path: _long_record(path, 1 << 62)),
        "checkpoint: nested 200,000 times": ("a.checkpoint", _deep_state),
        "Parquet: a long word, 19 GB": ("a.parquet", lambda path: _with_word_of(1 << 20, 19_000, path)),
        "Parquet: a longer word, 19 GB": ("a.parquet", lambda path: _with_word_of(1 << 24, 1_200, path)),
        "CSV in gzip, 2 GB": ("a.csv.gz", lambda path: path.write_bytes(_gzip(b"0,0\n", b"a,y\n"))),
        "CSV in gzip, one line of 2 GB": ("a.csv.gz", lambda path: path.write_bytes(_gzip(b"0", b"a,y\n0,"))),
        "TFRecord in gzip, 2 GB": ("a.tfrecord.gz", lambda path: path.write_bytes(_gzip(b"\0"))),
    }
