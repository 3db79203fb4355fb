"""What `test_remote_files.py` runs in a process of its own, against a real S3 server.

python s3_run.py PHOTOS SOUNDS
"""

from __future__ import annotations

import io
import os
import sys
import urllib.request
from pathlib import Path

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.cli import main
from keras_turbo.data.convert import write_tfrecords
from keras_turbo.data.sources import csv_table
from tests.data.epochs import bytes_of

photos, sounds = map(Path, sys.argv[1:])
endpoint = os.environ["S3_ENDPOINT"]
client = boto3.client("s3", endpoint_url=endpoint)
client.create_bucket(Bucket="bucket")
for folder, prefix in ((photos, "data/photos of größe"), (sounds, "sounds")):
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "bucket", f"{prefix}/{path.relative_to(folder)}")
client.put_object(Bucket="bucket", Key="empty/", Body=b"")  # as consoles make folders
bucket = "s3://bucket/data/photos of größe"

options = {"image_size": (8, 8), "shuffle": True, "seed": 3}
near = FastDataset.from_image_folder(photos, **options)
expected = bytes_of(near)
far = FastDataset.from_image_folder(bucket, cache="disk", **options)
assert far.class_names == near.class_names
assert bytes_of(far) == expected
far._recipe.store.save()
assert FastDataset.from_image_folder(bucket, cache="disk", **options).is_ready
files = FastDataset.from_files(f"{bucket}/**/*.png", lambda path: tf.io.decode_png(tf.io.read_file(path)))
assert len(files.file_paths) == 5
audio = FastDataset.from_audio_folder("s3://bucket/sounds", sample_rate=16_000, length_samples=1600, shuffle=False)
assert next(iter(audio))[0].shape == (1, 1600, 1)

assert main(["convert", bucket, "s3://bucket/records", "--shards", "2"]) == 0
assert sorted(tf.io.gfile.listdir("s3://bucket/records")) == [
    "00000-of-00002.tfrecord",
    "00001-of-00002.tfrecord",
    "manifest.json",
]
records = FastDataset.from_tfrecord("s3://bucket/records", image_size=(8, 8))
assert bytes_of(records) == bytes_of(FastDataset.from_image_folder(photos, image_size=(8, 8), shuffle=False))
numbers = FastDataset(np.arange(20.0), batch_size=4)
write_tfrecords(numbers, "s3://bucket/numbers", shards=2)
assert bytes_of(FastDataset.from_tfrecord("s3://bucket/numbers/*.tfrecord", batch_size=4)) == bytes_of(numbers)

# Rows of about 40 bytes: several requests a row group, and several blocks of text.
rows = pa.table({"größe": np.arange(60_000), "noise": np.random.default_rng(0).random(60_000), "one": np.ones(60_000)})
for part in range(2):
    half = rows.slice(30_000 * part, 30_000)
    stream = io.BytesIO()
    pq.write_table(half, stream, row_group_size=10_000)
    client.put_object(Bucket="bucket", Key=f"täbles/part {part}.parquet", Body=stream.getvalue())
lines = "".join(f"{k},{k / 4},text {k}\n" for k in range(60_000))
client.put_object(Bucket="bucket", Key="täbles/größe.csv", Body=f"größe,quarter,text\n{lines}".encode())
for cache in ("auto", False):
    table = FastDataset.from_parquet(
        "s3://bucket/täbles",
        ["noise", "größe"],
        batch_size=1000,
        shuffle=True,
        seed=1,
        shuffle_row_groups=2,
        cache=cache,
    )
    batches = list(table.as_numpy_iterator())
    numbers_seen = np.concatenate([batch["größe"] for batch in batches])
    noise_seen = np.concatenate([batch["noise"] for batch in batches])
    np.testing.assert_array_equal(noise_seen, rows["noise"].to_numpy()[numbers_seen].astype(np.float32))
    np.testing.assert_array_equal(np.sort(numbers_seen), np.arange(60_000))
for free in (1 << 40, 0):
    csv_table.free_memory_bytes = lambda free=free: free
    table = FastDataset.from_csv("s3://bucket/täbles/*.csv", "text", label="größe", batch_size=60_000)
    ((texts, numbers_seen),) = table.as_numpy_iterator()
    np.testing.assert_array_equal(numbers_seen, np.arange(60_000))
    assert texts.tolist() == [f"text {k}".encode() for k in range(60_000)]
with pytest.raises(FileNotFoundError, match="There is no such bucket"):
    FastDataset.from_parquet("s3://nobucket/t/*.parquet")
for make in (FastDataset.from_parquet, FastDataset.from_csv):
    with pytest.raises(ValueError, match="No file matches the pattern 's3://bucket/none'"):
        make("s3://bucket/none")

for path, error, message in (
    ("s3://bucket/empty", ValueError, "no class folders"),
    ("s3://bucket/none", FileNotFoundError, "There is no folder 's3://bucket/none'"),
    ("s3://nobucket/none", FileNotFoundError, "There is no such bucket"),
    ("s3://bucket/records/manifest.json", NotADirectoryError, "is a file"),
):
    with pytest.raises(error, match=message):
        FastDataset.from_image_folder(path, shuffle=False)
with pytest.raises(ValueError, match="No file matches the pattern"):
    FastDataset.from_files("s3://bucket/none/*", lambda path: path)

# From here on the server looks at credentials, and these are wrong.
request = urllib.request.Request(
    f"{endpoint}/moto-api/reset-auth", data=b"0", method="POST", headers={"Content-Type": "text/plain"}
)
urllib.request.urlopen(request).close()
try:
    for act in (
        lambda: FastDataset.from_image_folder(bucket, shuffle=False),
        lambda: FastDataset.from_files(f"{bucket}/*/*.png", lambda path: path),
        lambda: FastDataset.from_tfrecord("s3://bucket/records"),
        lambda: FastDataset.from_parquet("s3://bucket/täbles"),
        lambda: FastDataset.from_csv("s3://bucket/täbles/*.csv"),
    ):
        with pytest.raises(PermissionError, match="The store refuses. Are the credentials right"):
            act()
finally:
    request.data = b"inf"
    urllib.request.urlopen(request).close()
sys.stdout.write("done\n")
