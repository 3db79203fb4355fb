"""What `test_data_service_s3.py` runs in a process of its own, against a real S3 server and two data services.

python s3_service_run.py PHOTOS GOOD BAD

GOOD and BAD are addresses of dispatchers: of a worker with tensorflow-io, and of one where it does not load.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import boto3
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from tests.data.epochs import bytes_of

photos, good, bad = Path(sys.argv[1]), *sys.argv[2:]
client = boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT"])
client.create_bucket(Bucket="bucket")
for path in photos.rglob("*.png"):
    client.upload_file(str(path), "bucket", f"photos/{path.relative_to(photos)}")

options = {"image_size": (8, 8), "batch_size": 2, "shuffle": True, "seed": 1, "exif_orientation": False}
here = FastDataset.from_image_folder("s3://bucket/photos", cache=False, **options)
there = FastDataset.from_image_folder("s3://bucket/photos", service=good, **options)
for _ in range(2):
    assert bytes_of(there) == bytes_of(here)

with pytest.raises(tf.errors.OpError) as raised:
    bytes_of(FastDataset.from_image_folder("s3://bucket/photos", service=bad, **options))
sys.stdout.write(f"{raised.value.message}\n")
