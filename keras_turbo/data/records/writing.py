"""Any FastDataset -> TFRecord files, and what else writes them needs: names, and one writer at a time in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.engine.disk_store import digest
from keras_turbo.data.fast_dataset import FastDataset
from keras_turbo.data.records.copies import check_compression
from keras_turbo.data.records.manifest import MANIFEST_NAME, Leaf, Manifest
from keras_turbo.data.records.shards import WRITING_FOLDER
from keras_turbo.data.settings import check_count
from keras_turbo.files import default_cache_dir, is_remote, resolved
from keras_turbo.report import progress_bar

_PARTS = ("x", "y", "sample_weight")


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
    element = _element_of(dataset.element_spec, is_batched)
    if storage.exists(storage.join(folder, MANIFEST_NAME)):
        raise FileExistsError(f"{folder!r} has records already. Give another folder, or remove that one.")
    with only_writer(folder, WRITING_FOLDER):
        # Who reads while files appear is told of it by the folder with the lock.
        marker = storage.join(folder, WRITING_FOLDER)
        storage.write_whole(storage.join(marker, "begun"), b"")
        epoch, batch = dataset.position
        dataset.epochs_begun = epoch
        try:
            files = _write(dataset, folder, shards, element, is_batched, compression or "")
        finally:
            dataset.resume_at(epoch, batch)
            if shard_name(0, shards) not in storage.names_in(folder):  # else it was broken off among them
                storage.remove_folder(marker)
        y = element[1] if isinstance(element, tuple) and len(element) > 1 else None
        manifest = Manifest(
            files=files,
            element=element,
            compression=compression or "",
            interleave=shards,
            class_names=dataset.class_names,
            label=y.feature if isinstance(y, Leaf) else None,
            options={"made_by": "write_tfrecords"},
            skipped=[[example.path, example.reason] for example in dataset.skipped],
        )
        manifest.save(folder)
        storage.remove_folder(marker)
    return manifest


def shard_name(index: int, number: int) -> str:
    """The name of a shard; sorted by name they are in order."""
    return f"{index:05d}-of-{number:05d}.tfrecord"


def target_folder(out: str | os.PathLike) -> str:
    """The folder to write into, as text."""
    folder = resolved(out, "out", writes=True)
    if not is_remote(folder):
        return str(pathlib.Path(folder))
    if not folder.partition("://")[2].strip("/"):
        raise ValueError(f"out must name a bucket or folder behind its scheme. Received: {folder!r}.")
    return folder.rstrip("/")


@contextlib.contextmanager
def only_writer(target: str, name: str) -> Iterator[None]:
    """A context in which this process alone writes into a folder, by a lock in a folder of that name in it.

    It goes with the process, however that ends. Other machines that write behind a scheme it can't hinder.
    """
    folder = default_cache_dir() / "writing" / digest(target) if is_remote(target) else pathlib.Path(target) / name
    if folder.is_symlink():
        raise FileExistsError(f"{str(folder)!r} is a link, which is not followed. Remove it, or give another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"Another process is writing into {target!r}. Wait for it, or give another folder."
            ) from None
        try:
            yield
        finally:
            if is_remote(target):
                storage.remove_folder(str(folder))


def _write(
    dataset: FastDataset, folder: str, shards: int, element: Any, is_batched: bool, compression: Any
) -> dict[str, int]:
    """Deals the examples of one epoch out to files, which appear when all are written; gives the number in each."""
    written, leaves = 0, tf.nest.flatten(element)
    names = [shard_name(index, shards) for index in range(shards)]
    storage.remove_abandoned(folder, after_seconds=0)
    with contextlib.ExitStack() as stack:
        # Entered in reverse, they are put in place in order.
        paths = [stack.enter_context(storage.writing(storage.join(folder, name))).name for name in reversed(names)]
        advance = stack.enter_context(progress_bar("Writing TFRecords", max(0, int(dataset.cardinality()))))
        writers = [stack.enter_context(tf.io.TFRecordWriter(path, compression)) for path in reversed(paths)]
        for batch in dataset:
            for row in zip(*[_rows(tensor, is_batched) for tensor in tf.nest.flatten(batch)], strict=True):
                example = tf.train.Example()
                for leaf, array in zip(leaves, row, strict=True):
                    leaf.put(array, example)
                # Deterministic: equal examples are equal bytes.
                writers[written % shards].write(example.SerializeToString(deterministic=True))
                written += 1
            advance(1)
        if not written:
            raise ValueError("The dataset gave no example, so that there is nothing to write.")
    return {name: math.ceil((written - index) / shards) for index, name in enumerate(names)}


def _rows(tensor: Any, is_batched: bool) -> list[np.ndarray]:
    if isinstance(tensor, tf.SparseTensor):
        tensor = tf.RaggedTensor.from_sparse(tensor)
    if isinstance(tensor, tf.RaggedTensor):
        return np.split(tensor.values.numpy(), tensor.row_splits.numpy()[1:-1])
    array = np.asarray(tensor)
    return [np.asarray(row) for row in array] if is_batched else [array]


def _element_of(spec: Any, is_batched: bool) -> Any:
    """The structure of one example, of `Leaf`s."""
    if isinstance(spec, tuple) and len(spec) <= len(_PARTS):
        element: Any = tuple(_leaves(part, name, is_batched) for part, name in zip(spec, _PARTS, strict=False))
    else:
        element = _leaves(spec, "x", is_batched)
    names = [name for leaf in tf.nest.flatten(element) for name in leaf.field().features]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Two tensors of an element would have the name {twice[0]!r} in a record. Rename its keys.")
    return element


def _leaves(spec: Any, name: str, is_batched: bool) -> Any:
    if isinstance(spec, dict):
        if not all(isinstance(key, str) for key in spec):
            raise TypeError(f"Names of tensors must be strings to be written. Received: {list(spec)}.")
        return {key: _leaves(inner, f"{name}/{key}", is_batched) for key, inner in spec.items()}
    if isinstance(spec, (tuple, list)):
        return tuple(_leaves(inner, f"{name}/{index}", is_batched) for index, inner in enumerate(spec))
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
        return Leaf.of(name, tf.TensorSpec(spec.shape[1:] if is_batched else spec.shape, spec.dtype))
    is_of_vectors = isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)) and spec.shape.rank == 2
    if is_of_vectors and is_batched:
        return Leaf.of(name, tf.TensorSpec([None], spec.dtype))
    raise TypeError(
        f"{name!r} can't be written to a TFRecord: {spec}. Tensors of known rank can, and batches of ragged or sparse "
        "vectors."
    )
