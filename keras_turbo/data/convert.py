"""Writing TFRecord files: from any FastDataset, and from folders of images.

`python -m keras_turbo convert` is `convert_images` for the command line.
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.conversion.image_conversion import ConversionError, convert_images
from keras_turbo.data.conversion.rows import element_of, rows_of
from keras_turbo.data.conversion.shard_file import open_writer, shard_name, target_folder, working_folder
from keras_turbo.data.fast_dataset import FastDataset
from keras_turbo.data.records.local_copies import check_compression
from keras_turbo.data.records.manifest import MANIFEST_NAME, Leaf, Manifest, leaves_of
from keras_turbo.data.records.shards import WRITING_FOLDER
from keras_turbo.data.settings import check_count
from keras_turbo.files import is_remote
from keras_turbo.report import progress_bar

__all__ = ["ConversionError", "convert_images", "write_tfrecords"]


def write_tfrecords(
    dataset: FastDataset,
    out: str | os.PathLike,
    *,
    shards: int = 1,
    compression: str | None = None,
) -> Manifest:
    """Writes one epoch of a dataset to TFRecord files, from which `FastDataset.from_tfrecord(out)` gives it again.

    What comes back is equal to the byte: structure, types, shapes, order and class names. Examples are written as they
    leave `map_fn` and `augment_fn`, one a record, whatever the batches. They are dealt out to the files in turn, so
    that files are of equal length, and each is a fair sample.

    Example:

    ```python
    prepared = FastDataset(x, y, map_fn=expensive)
    write_tfrecords(prepared, "prepared", shards=8)
    train = FastDataset.from_tfrecord("prepared", shuffle=True)
    ```

    Args:
        dataset: a FastDataset. It goes on afterwards where it would have before (`epochs_begun`, `resume_at`).
        out: folder, made if missing, or `s3://bucket/folder` and its like. Files appear in it when all are written.
        shards: number of files. Default 1.
        compression: None (default), "GZIP" or "ZLIB". Compressed files are unpacked once wherever they are read.

    Returns:
        What `manifest.json` in the folder says: files with their numbers of examples, the structure of an element.

    Raises:
        TypeError: no FastDataset, or a tensor that can't be written.
        ValueError: an endless dataset, or an empty one.
        FileExistsError: the folder has records, or another process is writing there.
        OSError: the folder can't be written, or the store behind its scheme refuses.
    """
    if not isinstance(dataset, FastDataset):
        raise TypeError(f"`dataset` must be a FastDataset. Received: {type(dataset).__name__}. FastDataset(it) is one.")
    if shards is None or isinstance(shards, bool):
        raise TypeError(f"`shards` must be a number of files. Received: {shards!r}.")
    check_count("shards", shards, "leave it out for 1")
    check_compression(compression)
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError("An endless dataset can't be written: apply .take() to the tf.data.Dataset that it is of.")
    folder = target_folder(out)
    is_batched = dataset.order_settings["batch_size"] is not None
    element = element_of(dataset.element_spec, is_batched)
    if storage.exists(storage.join(folder, MANIFEST_NAME)):
        raise FileExistsError(f"{folder!r} has records already. Give another folder, or remove that one.")
    with working_folder(folder, WRITING_FOLDER) as working:
        # Who reads while files appear is told of it.
        marker = storage.join(folder, WRITING_FOLDER)
        try:
            names = [shard_name(index, shards) for index in range(shards)]
            paths, leaves = [working / name for name in names], leaves_of(element)
            with _whole_epoch(dataset):
                counts = _write(dataset, paths, leaves, is_batched, compression)
            if is_remote(folder):
                storage.write_whole(storage.join(marker, "begun"), b"")
            for name in names:
                storage.put_in_place(str(working / name), storage.join(folder, name))
            manifest = Manifest(
                files=dict(zip(names, counts, strict=True)),
                element=element,
                compression=compression or "",
                interleave=shards,
                class_names=dataset.class_names,
                label=_label(element),
                options={"made_by": "write_tfrecords"},
                skipped=[[example.path, example.reason] for example in dataset.skipped],
            )
            manifest.save(folder)
        except BaseException:
            # Behind a scheme files have their final names: those that are there must not be taken for all.
            if not is_remote(folder):
                storage.remove_folder(marker)
            raise
        storage.remove_folder(marker)
    return manifest


@contextmanager
def _whole_epoch(dataset: FastDataset) -> Iterator[None]:
    """Has the next epoch read from its beginning, and puts the dataset back to where training would have gone on."""
    epoch, batch = dataset.position
    dataset.epochs_begun = epoch
    try:
        yield
    finally:
        dataset.resume_at(epoch, batch)


def _write(
    dataset: FastDataset, paths: list[pathlib.Path], leaves: list[Leaf], is_batched: bool, compression: str | None
) -> list[int]:
    """Deals the examples of one epoch out to files, and gives the number in each."""
    written = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(open_writer(path, compression or "")) for path in paths]
        advance = stack.enter_context(progress_bar("Writing TFRecords", max(0, int(dataset.cardinality()))))
        for element in dataset:
            for row in rows_of(element, leaves, is_batched):
                writers[written % len(writers)].write(row)
                written += 1
            advance(1)
    if not written:
        raise ValueError("The dataset gave no example, so that there is nothing to write.")
    return [math.ceil((written - index) / len(paths)) for index in range(len(paths))]


def _label(element: Any) -> str | None:
    y = element[1] if isinstance(element, tuple) and len(element) > 1 else None
    return y.feature if isinstance(y, Leaf) else None
