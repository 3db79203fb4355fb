"""Folders of images -> TFRecord files, in steps that a process which was killed need not repeat.

    OUT/.converting/plan.json              what is converted, and how: a later process goes on only with the same
    PART/.converting/<shard>.json          how many images a shard has, and what was left out of it
    PART/<shard>                           appears whole
    PART/manifest.json                     appears when all shards are there; then `.converting` goes

PART is OUT, or with a validation split OUT/training and OUT/validation. `python -m keras_turbo convert` is
`convert_images` for the command line.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Literal

import simplejpeg
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.engine.disk_store import digest
from keras_turbo.data.engine.failures import reason_of
from keras_turbo.data.images import ImageOptions
from keras_turbo.data.records.manifest import MANIFEST_NAME, Leaf, Manifest, load_manifest, read_json, write_json
from keras_turbo.data.records.shards import CONVERTING_FOLDER, record_files_in
from keras_turbo.data.records.writing import only_writer, shard_name, target_folder, write_tfrecords
from keras_turbo.data.settings import Settings, available_cores, check_count
from keras_turbo.data.sources.class_folders import has_class_folders
from keras_turbo.data.sources.files import statuses_of
from keras_turbo.data.sources.image_decoder import ImageDecoder, image_kind
from keras_turbo.data.sources.image_folder import image_folder_sources
from keras_turbo.files import is_remote, resolved
from keras_turbo.report import progress_bar

__all__ = ["ConversionError", "convert_images", "write_tfrecords"]

FORMAT_VERSION = 1

PART_NAMES = ("training", "validation")
"""The folders of a conversion with a split."""

_PLAN_NAME = "plan.json"

# A shard of about this size is read from a network in a second, and a thousand of them are an ImageNet.
_SHARD_BYTES = 128 << 20

# Images that are encoded before more are begun: some, since the last of them are waited for.
_AT_ONCE = 32


class ConversionError(ValueError):
    """A file can't be converted; the message begins with its path."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(self.told("on_error='skip'"))

    def told(self, option: str) -> str:
        """The message, with the option that leaves out such files as the caller writes it."""
        return f"{self.path}: {self.reason} ({option} leaves such files out.)"


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
    settings = Settings(on_error=on_error, workers=workers)
    check_count("shards", shards, "None, for files of about 128 MB")
    check_count("quality", quality, "leave it out for 95")
    if quality > 100:
        raise ValueError(f"`quality` must lie between 1 and 100. Received: {quality}.")
    source, target = resolved(directory, "directory"), target_folder(out)
    if _lies_in(target, source):
        raise ValueError(
            f"{target!r} lies in {source!r}, where it would be taken for a class of images. Give a folder outside of "
            "it."
        )
    sources, class_names = image_folder_sources(
        source,
        options,
        labels="inferred" if has_class_folders(source) else None,
        label_mode="int",
        class_names=None,
        validation_split=validation_split,
        subset=None if validation_split is None else "both",
        seed=seed,
    )
    parts, images = {}, []
    for name, images_of_part in sources.items():
        paths, labels = images_of_part.paths, images_of_part.files.labels
        statuses = statuses_of(paths)
        images += [[storage.relative_to(path, source), *status] for path, status in zip(paths, statuses, strict=True)]
        number = shards or math.ceil(sum(status.size for status in statuses) / _SHARD_BYTES)
        parts["all" if validation_split is None else name] = _Part(
            folder=target if validation_split is None else storage.join(target, name),
            paths=paths,
            labels=None if labels is None else labels.tolist(),
            num_shards=max(1, min(number, len(paths))),
        )
    plan = {
        "version": FORMAT_VERSION,
        "images": digest(sorted(images)),
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
    if done := _already_done(parts, plan):
        return done
    _require_free(target, parts, plan)
    with only_writer(target, CONVERTING_FOLDER):
        _begin(target, plan)
        encode = _encoder(options, quality)
        with (
            progress_bar("Converting images", len(images)) as advance,
            ThreadPoolExecutor(workers or available_cores()) as pool,
        ):
            for part in parts.values():
                _convert_part(part, source, pool, encode, settings, advance)
        height, width = options.image_size or (None, None)
        image = Leaf("image", "uint8", (height, width, 3), "image")
        manifests = {}
        for name, part in parts.items():
            accounts = {shard: read_json(part.account_of(shard)) for shard in part.shard_names}
            manifests[name] = Manifest(
                files={shard: account["count"] for shard, account in accounts.items()},
                element=image if part.labels is None else (image, Leaf("label", "int32", (), "int64")),
                interleave=part.num_shards,
                class_names=class_names,
                label=None if part.labels is None else "label",
                options=plan,
                skipped=[one for account in accounts.values() for one in account["skipped"]],
            )
            if not manifests[name].num_examples:
                raise ValueError(f"None of {len(part.paths)} files could be converted, {part.paths[0]!r} among them.")
        for name, part in parts.items():
            manifests[name].save(part.folder)
            if part.folder != target:
                storage.remove_folder(storage.join(part.folder, CONVERTING_FOLDER))
        storage.remove_folder(storage.join(target, CONVERTING_FOLDER))
    return manifests


@dataclasses.dataclass(frozen=True)
class _Part:
    """The images of one folder of shards."""

    folder: str
    paths: list[str]
    labels: list[int] | None
    num_shards: int

    @property
    def shard_names(self) -> list[str]:
        return [shard_name(index, self.num_shards) for index in range(self.num_shards)]

    def account_of(self, shard: str) -> str:
        """The file that says what is in a shard."""
        return storage.join(self.folder, CONVERTING_FOLDER, f"{shard}.json")


def _lies_in(target: str, source: str) -> bool:
    if is_remote(target) or is_remote(source):
        return f"{target}/".startswith(f"{source.rstrip('/')}/")
    return os.path.exists(source) and pathlib.Path(target).resolve().is_relative_to(pathlib.Path(source).resolve())


def _encoder(options: ImageOptions, quality: int) -> Callable[[str], bytes]:
    """Of a path, the bytes to be kept."""
    decoder = ImageDecoder(options)

    def encode(path: str) -> bytes:
        data = storage.read_bytes(path)
        if image_kind(data) is None:
            raise ValueError("it is empty." if not data else "its first bytes are those of no image that can be read.")
        if options.image_size is None:
            return data
        return simplejpeg.encode_jpeg(decoder.decode(data, None, None), quality=quality, colorsubsampling="420")

    return encode


def _convert_part(
    part: _Part,
    source: str,
    pool: Executor,
    encode: Callable[[str], bytes],
    settings: Settings,
    advance: Callable[[int], None],
) -> None:
    def result(number: int) -> bytes | Exception:
        try:
            return encode(part.paths[number])
        except Exception as error:  # one file's fault is told with its path, or listed
            return error

    def results(numbers: range) -> Iterator[tuple[int, bytes | Exception]]:
        for begin in range(0, len(numbers), _AT_ONCE):
            some = numbers[begin : begin + _AT_ONCE]
            yield from zip(some, pool.map(result, some), strict=True)

    storage.make_folder(storage.join(part.folder, CONVERTING_FOLDER))
    storage.remove_abandoned(part.folder, after_seconds=0)
    for index, name in enumerate(part.shard_names):
        # Dealt out in turn: shards are of equal length, and each has its share of every class.
        chosen = range(index, len(part.paths), part.num_shards)
        if storage.exists(part.account_of(name)) and storage.exists(storage.join(part.folder, name)):
            advance(len(chosen))
            continue
        skipped = []
        with storage.writing(storage.join(part.folder, name)) as file:
            with tf.io.TFRecordWriter(file.name) as writer:
                for number, image in results(chosen):
                    advance(1)
                    relative = storage.relative_to(part.paths[number], source)
                    if isinstance(image, Exception):
                        if settings.on_error == "raise":
                            raise ConversionError(part.paths[number], reason_of(image)) from image
                        skipped.append([relative, reason_of(image)])
                        continue
                    example = tf.train.Example()
                    features = example.features.feature
                    features["image"].bytes_list.value.append(image)
                    features["filename"].bytes_list.value.append(os.fsencode(relative))
                    if part.labels is not None:
                        features["label"].int64_list.value.append(part.labels[number])
                    writer.write(example.SerializeToString(deterministic=True))
            # Before the shard appears: one without an account would be made again.
            write_json(part.account_of(name), {"count": len(chosen) - len(skipped), "skipped": skipped})


def _already_done(parts: dict[str, _Part], plan: dict[str, Any]) -> dict[str, Manifest] | None:
    """The manifests, if just this has been converted there before."""
    done = {}
    for name, part in parts.items():
        manifest = load_manifest(part.folder)
        if manifest is None or manifest.options != plan or manifest.files.keys() - storage.names_in(part.folder):
            return None
        done[name] = manifest
    return done


def _require_free(target: str, parts: dict[str, _Part], plan: dict[str, Any]) -> None:
    """Raises FileExistsError where there are records of others, or of a conversion with another split."""
    is_begun = storage.exists(storage.join(target, CONVERTING_FOLDER, _PLAN_NAME))
    own = [part.folder for part in parts.values()]
    for folder in [target, *(storage.join(target, name) for name in PART_NAMES)]:
        manifest = load_manifest(folder)
        found = record_files_in(folder) if manifest is None else [MANIFEST_NAME]
        # Which conversion one that was begun is, its plan tells.
        if not found or (folder in own and (is_begun or (manifest is not None and manifest.options == plan))):
            continue
        what, remedy = "of other images, or made with other options", "Give another folder, or remove that one."
        if folder not in own:
            what = "of a conversion with a split" if "all" in parts else "that are not split"
            remedy = f"Give another folder, {'give the split again' if 'all' in parts else 'no split'}, or remove them."
        raise FileExistsError(f"{folder!r} holds records {what} ({found[0]!r} among them). {remedy}")


def _begin(target: str, plan: dict[str, Any]) -> None:
    """Takes up a conversion that was begun, or begins one; raises FileExistsError if what was begun is another one."""
    path = storage.join(target, CONVERTING_FOLDER, _PLAN_NAME)
    try:
        begun = read_json(path)
    except (FileNotFoundError, ValueError):
        write_json(path, plan)
        return
    if begun == plan:
        return
    what = "of other images, or they have changed"
    if isinstance(begun, dict) and begun.get("images") == plan["images"]:
        what = f"with other options ({begun.get('options')}, shards: {begun.get('shards')})"
    raise FileExistsError(
        f"A conversion into {target!r} was begun {what}. Run it again as it was begun, give another folder, or remove "
        "that one."
    )
