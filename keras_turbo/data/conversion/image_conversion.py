"""A folder of images -> TFRecord shards, in steps that a process which was killed need not repeat.

    OUT/.converting/plan.json              what is converted, and how: a later process goes on only with the same
    PART/.converting/<shard>.json          how many images a shard has, and what was left out of it
    PART/<shard>                           appears whole
    PART/manifest.json                     appears when all shards are there; then `.converting` goes

PART is OUT, or with a validation split OUT/training and OUT/validation.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.conversion.plan import Part, already_done, begin, refuse_other_files
from keras_turbo.data.conversion.shard_file import open_writer, target_folder, working_folder
from keras_turbo.data.disk_store import digest
from keras_turbo.data.failures import ON_ERROR, reason_of
from keras_turbo.data.image_options import ImageOptions
from keras_turbo.data.images import decode_image, image_kind
from keras_turbo.data.records.manifest import Leaf, Manifest, write_json
from keras_turbo.data.records.shards import CONVERTING_FOLDER
from keras_turbo.data.settings import available_cores, check_count
from keras_turbo.data.sources.class_folders import has_class_folders, validation_mask
from keras_turbo.data.sources.files import statuses_of
from keras_turbo.data.sources.image_folder import find_images
from keras_turbo.files import is_remote, resolved
from keras_turbo.report import progress_bar

FORMAT_VERSION = 1

# A shard of about this size is read from a network in a second, and a thousand of them are an ImageNet.
_SHARD_BYTES = 128 << 20

_HEADER_BYTES = 16

# Images that are encoded ahead of the one that is written, for each worker.
_AHEAD = 4


class ConversionError(ValueError):
    """A file can't be converted; the message begins with its path.

    Args:
        path: of the file.
        reason: a sentence.
        can_be_left_out: whether the option is of help that leaves out such files.
    """

    def __init__(self, path: str, reason: str, *, can_be_left_out: bool = True) -> None:
        self.path, self.reason, self.can_be_left_out = path, reason, can_be_left_out
        super().__init__(self.told("on_error='skip'"))

    def told(self, option: str) -> str:
        """The message, with the option that leaves out such files as the caller writes it."""
        text = f"{self.path}: {self.reason}"
        return f"{text} ({option} leaves such files out.)" if self.can_be_left_out else text


def convert_images(
    directory: str | os.PathLike,
    out: str | os.PathLike,
    *,
    shards: int | None = None,
    image_size: tuple[int, int] | None = None,
    resize: Literal["stretch", "pad", "crop"] = "stretch",
    quality: int = 95,
    workers: int | None = None,
    validation_split: float | None = None,
    seed: int = 0,
    on_error: Literal["raise", "skip"] = "raise",
) -> dict[str, Manifest]:
    """Writes the images under a folder to TFRecord files, which `FastDataset.from_tfrecord(out)` reads by itself.

    Without `image_size` the bytes of each file are kept as they are. A call that was interrupted, even by a kill, is
    made again to go on with the shards that are missing.

    Example:

    ```python
    convert_images("photos", "records", image_size=(256, 256), validation_split=0.1)
    train = FastDataset.from_tfrecord("records/training", shuffle=True)
    ```

    Args:
        directory: the folder. Each folder in it is a class; where there is none, images have no labels.
        out: folder for the files, made if missing; not one inside of `directory`. Both may be `s3://bucket/folder` and
            its like.
        shards: number of files, of each part with `validation_split`. Default: such that one has about 128 MB.
        image_size: (height, width) in pixels: images are decoded, resized, and kept as JPEG. Default None.
        resize: as in `from_image_folder`.
        quality: of these JPEGs, 1 to 100. Default 95.
        workers: images prepared at a time, default one for each core.
        validation_split: share of the images held out, between 0 and 1: parts "training" and "validation", which
            become folders in `out`. The same as `from_image_folder` holds out with this seed.
        seed: of the split. Default 0.
        on_error: "raise" (default): a file that is no image, or can't be resized, ends the conversion. "skip": it is
            left out, and listed in the manifest.

    Returns:
        The manifest of each part; of "all" without `validation_split`.

    Raises:
        FileNotFoundError, NotADirectoryError: no such folder.
        TypeError, ValueError: an argument that can't be; no images.
        FileExistsError: `out` holds other records, such as those of a conversion with a split where there is none now,
            or another process is converting into it.
        ConversionError: with `on_error="raise"`, with the path and what is wrong.
    """
    options = ImageOptions(image_size=image_size, resize=resize)
    check_count("shards", shards, "None, for files of about 128 MB")
    check_count("workers", workers, "None, for one for each core")
    check_count("quality", quality, "leave it out for 95")
    if quality > 100:
        raise ValueError(f"`quality` must lie between 1 and 100. Received: {quality}.")
    if on_error not in ON_ERROR:
        raise ValueError(f"`on_error` must be 'raise' or 'skip'. Received: on_error={on_error!r}.")
    if validation_split is not None and (isinstance(validation_split, bool) or not 0 < validation_split < 1):
        raise ValueError(f"`validation_split` must lie between 0 and 1. Received: {validation_split!r}.")
    source, target = resolved(directory, "directory"), target_folder(out)
    if _lies_in(target, source):
        raise ValueError(
            f"{target!r} lies in {source!r}, where it would be taken for a class of images. Give a folder outside of "
            "it."
        )
    by_class = has_class_folders(source)
    found = find_images(source, by_class)
    statuses = statuses_of(found.paths)
    labels = [found.class_names.index(name) for name in found.class_of] if by_class else None
    parts = _parts(target, found.paths, labels, [status.size for status in statuses], shards, validation_split, seed)
    plan = {
        "version": FORMAT_VERSION,
        "images": digest(
            [[storage.relative_to(path, source), *status] for path, status in zip(found.paths, statuses, strict=True)]
        ),
        "options": {
            "image_size": None if image_size is None else list(options.image_size or ()),
            "resize": resize,
            "quality": quality,
            "validation_split": validation_split,
            "seed": seed,
            "on_error": on_error,
        },
        "shards": {name: part.num_shards for name, part in parts.items()},
    }
    if done := already_done(parts, plan):
        return done
    refuse_other_files(target, parts, plan)
    encode = _as_they_are if image_size is None else _resizing(options, quality)
    converting = storage.join(target, CONVERTING_FOLDER)
    with working_folder(target, CONVERTING_FOLDER) as working:
        begin(converting, plan, target)
        num_workers = workers or available_cores()
        with (
            progress_bar("Converting images", len(found.paths)) as advance,
            concurrent.futures.ThreadPoolExecutor(num_workers) as pool,
        ):
            encoded = functools.partial(_in_order, pool, encode, _AHEAD * num_workers)
            for part in parts.values():
                _convert_part(part, source, working, encoded, on_error, advance)
        manifests = {name: _manifest(part, plan, found.class_names, by_class, options) for name, part in parts.items()}
        for name, part in parts.items():
            manifests[name].save(part.folder)
            if part.converting != converting:
                storage.remove_folder(part.converting)
        storage.remove_folder(converting)
    return manifests


def _lies_in(target: str, source: str) -> bool:
    if is_remote(target) or is_remote(source):
        return f"{target}/".startswith(f"{source.rstrip('/')}/")
    return os.path.exists(source) and pathlib.Path(target).resolve().is_relative_to(pathlib.Path(source).resolve())


def _parts(
    target: str,
    paths: list[str],
    labels: list[int] | None,
    sizes: list[int],
    shards: int | None,
    validation_split: float | None,
    seed: int,
) -> dict[str, Part]:
    held_out = np.zeros(len(paths), bool)
    masks = {"all": ~held_out}
    if validation_split is not None:
        held_out = validation_mask(len(paths), validation_split, seed)
        masks = {"training": ~held_out, "validation": held_out}
    parts: dict[str, Part] = {}
    for name, mask in masks.items():
        chosen = np.flatnonzero(mask).tolist()
        if not chosen:
            raise ValueError(
                f"validation_split={validation_split} of {len(paths)} images leaves none for {name}. Use more images "
                "or another share."
            )
        number = shards or math.ceil(sum(sizes[index] for index in chosen) / _SHARD_BYTES)
        parts[name] = Part(
            folder=target if name == "all" else storage.join(target, name),
            paths=[paths[index] for index in chosen],
            labels=None if labels is None else [labels[index] for index in chosen],
            num_shards=max(1, min(number, len(chosen))),
        )
    return parts


def _convert_part(
    part: Part,
    source: str,
    working: pathlib.Path,
    encoded: Callable[[list[str]], Iterator[tuple[int, bytes | Exception]]],
    on_error: str,
    advance: Callable[[int], None],
) -> None:
    storage.make_folder(part.converting)
    for index, name in enumerate(part.shard_names):
        # Dealt out in turn: shards are of equal length, and each has its share of every class.
        chosen = range(index, len(part.paths), part.num_shards)
        account = storage.join(part.converting, f"{name}.json")
        if storage.exists(account) and storage.exists(storage.join(part.folder, name)):
            advance(len(chosen))
            continue
        skipped = []
        count = 0
        with open_writer(working / name, "") as writer:
            for number, result in encoded([part.paths[k] for k in chosen]):
                path = part.paths[chosen[number]]
                advance(1)
                if isinstance(result, Exception):
                    reason = reason_of(result)
                    if on_error == "raise":
                        raise ConversionError(path, reason) from result
                    skipped.append([storage.relative_to(path, source), reason])
                    continue
                label = None if part.labels is None else part.labels[chosen[number]]
                writer.write(_record(result, label, storage.relative_to(path, source)))
                count += 1
        # The shard last: one that is there has its account, and is not made again.
        write_json(account, {"count": count, "skipped": skipped})
        storage.put_in_place(str(working / name), storage.join(part.folder, name))


def _in_order(
    pool: concurrent.futures.Executor, encode: Callable[[str], bytes], ahead: int, paths: list[str]
) -> Iterator[tuple[int, bytes | Exception]]:
    """Numbers and results in the order of paths, up to `ahead` of them before they are taken."""
    pending: collections.deque[concurrent.futures.Future[bytes]] = collections.deque()
    given = 0
    try:
        for path in paths:
            pending.append(pool.submit(encode, path))
            if len(pending) >= ahead:
                yield given, _result(pending.popleft())
                given += 1
        while pending:
            yield given, _result(pending.popleft())
            given += 1
    finally:
        for future in pending:
            future.cancel()


def _result(future: concurrent.futures.Future[bytes]) -> bytes | Exception:
    try:
        return future.result()
    except Exception as error:  # one file's fault is told with its path, or listed
        return error


def _record(image: bytes, label: int | None, name: str) -> bytes:
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "filename": tf.train.Feature(bytes_list=tf.train.BytesList(value=[os.fsencode(name)])),
    }
    if label is not None:
        features["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def _as_they_are(path: str) -> bytes:
    data = storage.read_bytes(path)
    if image_kind(data[:_HEADER_BYTES]) is None:
        raise ValueError("it is empty." if not data else "its first bytes are those of no image that can be read.")
    return data


def _resizing(options: ImageOptions, quality: int) -> Callable[[str], bytes]:
    def encoded(path: tf.Tensor) -> tf.Tensor:
        return tf.io.encode_jpeg(decode_image(tf.io.read_file(path), options), quality=quality)

    with tf.device("CPU:0"):
        function: Any = tf.function(encoded, input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
        concrete = function.get_concrete_function()
    return lambda path: concrete(tf.constant(os.fsencode(path))).numpy()


def _manifest(
    part: Part, plan: dict[str, Any], class_names: list[str], by_class: bool, options: ImageOptions
) -> Manifest:
    files, skipped = {}, []
    for name in part.shard_names:
        account = json.loads(storage.read_bytes(storage.join(part.converting, f"{name}.json")).decode("utf-8"))
        files[name] = account["count"]
        skipped += account["skipped"]
    if not any(files.values()):
        reason = f"none of the {len(part.paths)} files could be converted."
        raise ConversionError(part.paths[0], reason, can_be_left_out=False)
    height, width = options.image_size or (None, None)
    image = Leaf("image", "uint8", (height, width, 3), "image")
    return Manifest(
        files=files,
        element=(image, Leaf("label", "int32", (), "int64")) if by_class else image,
        interleave=part.num_shards,
        class_names=class_names if by_class else None,
        label="label" if by_class else None,
        options=plan,
        skipped=skipped,
    )
