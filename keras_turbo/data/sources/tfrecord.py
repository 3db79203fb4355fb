"""TFRecord files, each record of which is one example.

Records are byte ranges by an index of their offsets, whatever the order; as many as are wanted together are parsed by
one call of TensorFlow, and their images decoded as those of an image folder.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.disk_store import default_cache_dir
from keras_turbo.data.engine.elements import Column, Elements, concatenated, scattered
from keras_turbo.data.engine.failures import ExampleLoadError, reason_of
from keras_turbo.data.images import ImageOptions, require_batchable
from keras_turbo.data.records.copies import check_compression, compression_of, local_copies
from keras_turbo.data.records.features import (
    Features,
    Field,
    NamedField,
    check_features,
    features_as_code,
    infer_features,
    is_example,
    parser_of,
)
from keras_turbo.data.records.manifest import Leaf, Manifest
from keras_turbo.data.records.reader import RecordReader
from keras_turbo.data.records.shards import Shards, find_shards
from keras_turbo.data.settings import Settings, check_count, is_integer
from keras_turbo.data.sources.files import files_content
from keras_turbo.data.sources.image_decoder import ImageDecoder
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.storage import paths as storage
from keras_turbo.storage import remote
from keras_turbo.storage.schemes import is_remote

# Features are inferred from so many records, taken from the beginnings of so many files.
_INFERRED_FROM = 64
_INFERRED_FROM_FILES = 4

# Records that are read together, at most: enough that the calls are little beside them, few enough to be no memory.
_BYTES_AT_ONCE = 1 << 22

# As FastDataset.from_image_folder.
_DEFAULT_IMAGE_SIZE = (256, 256)


class TfRecordSource(Source):
    """One example for each record of some files.

    Args:
        reader: gives the records by position.
        structure: of an example, with a `Field` for each tensor.
        decoder: of those that are image files; None where there are none.
        label: what is `y` of them, or None.
        recipe: JSON-able description of how examples are made.
        files: paths, for the identity.

    Raises:
        ValueError: a tensor is larger than a record.
    """

    can_fail = True

    def __init__(
        self,
        reader: RecordReader,
        structure: Any,
        decoder: ImageDecoder | None = None,
        label: Field | None = None,
        recipe: Any = None,
        files: Sequence[str] = (),
    ) -> None:
        self.reader = reader
        self._fields: list[Field] = tf.nest.flatten(structure)
        for field in self._fields:
            if field.fewest_bytes > reader.most_bytes:
                raise ValueError(
                    f"No record can hold {field.features().popitem()[0]!r}: it has the shape {field.spec.shape}, and "
                    f"the largest record {reader.most_bytes} bytes."
                )
        self._decoder = decoder
        self._are_images = [isinstance(field, Leaf) and field.stored == "image" for field in self._fields]
        specs = [field.spec for field in self._fields]
        parsed = [
            tf.TensorSpec([], tf.string) if is_image else spec
            for spec, is_image in zip(specs, self._are_images, strict=True)
        ]
        if decoder is not None:
            pixels = tf.TensorSpec(decoder.shape, decoder.dtype)
            specs = [
                pixels if is_image else spec for spec, is_image in zip(specs, self._are_images, strict=True)
            ]
        forms = tuple(field.form for field in self._fields)
        strings = sum(spec.dtype == tf.string for spec in specs)
        self._parsed = Elements(parsed, forms)
        self.elements = Elements(
            tf.nest.pack_sequence_as(structure, specs), forms, string_bytes=int(reader.mean_bytes / max(1, strings))
        )
        self.is_random = decoder is not None and decoder.is_random
        self.loads_together = decoder is None
        self.loading_is_called = "load" if decoder is None else "decode"
        # What is large is put where it is wanted row by row, and not once more beside it.
        self.writes_in_place = decoder is not None or any(
            isinstance(field, Leaf) and field.stored == "raw" for field in self._fields
        )
        self._rows_at_once = int(max(1, _BYTES_AT_ONCE // max(1, reader.mean_bytes, self.elements.row_bytes)))
        features: Features = {}
        for field in self._fields:
            features |= field.features()
        self._parse = parser_of(features, reader.mean_bytes)
        self._labels = None if label is None else TfRecordSource(reader, label)
        self._recipe = recipe
        self._files = list(files)

    def __len__(self) -> int:
        return len(self.reader)

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column] | None, dict[int, Exception]]:
        parts = []
        failures: dict[int, Exception] = {}
        for begin in range(0, len(positions), self._rows_at_once):
            columns, failed = self._read(positions[begin : begin + self._rows_at_once])
            parts.append(columns)
            failures |= {begin + index: error for index, error in failed.items()}
        columns = concatenated(parts)
        if not self.writes_in_place:
            return columns, failures
        made = None
        if in_place is None and self.elements.is_fixed:
            made = self.elements.zeros(len(positions))
            in_place = [[column[index, ...] for column in made] for index in range(len(positions))]
        rows = self._put(columns, seeds, in_place, failures)
        return rows if in_place is None else made, failures

    def _put(
        self,
        columns: list[Column],
        seeds: np.ndarray | None,
        in_place: list[list[np.ndarray]] | None,
        failures: dict[int, Exception],
    ) -> list[Column]:
        """Decodes images, and writes the values of each example where they are wanted, or gives them as lists."""
        made: list[Column] = [list(column) for column in self.elements.zeros(len(columns[0]))]
        for index in set(range(len(columns[0]))) - failures.keys():
            out = None if in_place is None else in_place[index]
            for number, column in enumerate(columns):
                value, target = column[index], None if out is None else out[number]
                if self._are_images[number]:
                    try:
                        value = self._decoder.decode(value, None if seeds is None else seeds[index], target)
                    except ValueError as error:
                        failures[index] = error
                        break
                elif target is not None:
                    target[...] = value
                if target is None:
                    made[number][index] = value
        return made

    def name(self, position: int) -> str:
        return self.reader.describe(position)

    def labels_at(self, positions: np.ndarray) -> Any:
        if self._labels is None:
            return None
        columns, failures = self._labels.load(positions, None, None)
        for index, error in failures.items():
            raise ExampleLoadError(f"{self.name(int(positions[index]))}: {reason_of(error)}")
        return columns[0]

    def identity(self) -> Identity:
        return Identity(recipe=self._recipe, content={"files": files_content(self._files)})

    def _read(self, positions: np.ndarray) -> tuple[list[Column], dict[int, Exception]]:
        records, failures = self.reader.read(positions)
        if not failures:
            return self._parsed_columns(records)
        good = np.delete(np.arange(len(positions)), list(failures))
        columns, failed = self._parsed_columns([records[index] for index in good.tolist()])
        failures |= {int(good[index]): error for index, error in failed.items()}
        return scattered(columns, good, len(positions), self._parsed), failures

    def _parsed_columns(self, records: list[bytes]) -> tuple[list[Column], dict[int, Exception]]:
        try:
            parsed = self._parse(records)
            return [field.column(parsed) for field in self._fields], {}
        # The message of TensorFlow's may be bytes that are no text, which is another error.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError, ValueError) as error:
            if len(records) == 1:
                if not is_example(records[0]):
                    error = ValueError("it is whole, but no tf.train.Example.")
                return self._parsed.zeros(1), {0: error}
        half = len(records) // 2
        (first, failures), (second, others) = map(self._parsed_columns, (records[:half], records[half:]))
        return concatenated([first, second]), failures | {half + index: error for index, error in others.items()}


def tfrecord_source(
    pattern: str | os.PathLike | Sequence[str | os.PathLike],
    features: Any,
    *,
    x: str | Sequence[str] | None,
    label: str | None,
    sample_weight: str | None,
    compression: str | None,
    interleave: int | None,
    max_unpacked_bytes: int | None,
    image_options: dict[str, Any],
    settings: Settings,
) -> tuple[TfRecordSource, list[str] | None]:
    """The source of `FastDataset.from_tfrecord`, and its class names."""
    check_compression(compression)
    check_count("max_unpacked_bytes", max_unpacked_bytes, "None, for 100 times the size of the file")
    if features is not None:
        features = check_features(features)
    if interleave is not None and (not is_integer(interleave) or interleave < 1):
        raise ValueError(f"`interleave` must be a number of files, from 1. Received: {interleave!r}.")
    is_named = features is not None or x is not None or label is not None or sample_weight is not None
    shards = find_shards(pattern, reads_manifest=not is_named)
    manifest = shards.manifest
    images = _image_options(image_options, manifest, settings)
    cache_folder = settings.cache_dir_or(default_cache_dir())

    if compression is None and manifest is not None:
        compression = manifest.compression
    each = remote.each_of if any(map(is_remote, shards.paths)) else map
    compressions = each(lambda path: compression_of(path) if compression is None else compression, shards.paths)
    copies = local_copies(shards.paths, list(compressions), cache_folder, max_unpacked_bytes)
    cycle = interleave or (manifest.interleave if manifest is not None and shards.are_all else 1)
    # From the root, since this process may change its folder.
    reader = RecordReader([storage.absolute(path) for path in copies], shards.paths, cache_folder, cycle)
    if settings.on_error == "raise":
        for problem in reader.damaged_files():
            raise ExampleLoadError(f"{problem} (on_error='skip' leaves out what is damaged and lists it.)")
    if not len(reader):
        raise ValueError(f"The {len(shards.paths)} files that match {pattern!r} hold no record.")
    shards.check_counts([index.num_records for index in reader.indices], may_be_damaged=settings.on_error == "skip")
    where = {"kind": "tfrecord", "files": [storage.absolute(path) for path in shards.paths], "interleave": cycle}
    if manifest is not None:
        labels = [leaf for leaf in tf.nest.flatten(manifest.element) if leaf.feature == manifest.label]
        source = TfRecordSource(
            reader,
            manifest.element,
            None if images is None else ImageDecoder(images),
            labels[0] if labels else None,
            where | {"layout": ["manifest", repr(manifest.element), repr(images)]},
            shards.paths,
        )
        return source, manifest.class_names
    if features is None:
        features = _inferred(reader, shards)
    structure = _structure(features, x, label, sample_weight)
    layout = ["features", repr(features), x if x is None or isinstance(x, str) else list(x), label, sample_weight]
    y = structure[1] if isinstance(structure, tuple) else None
    return TfRecordSource(reader, structure, None, y, where | {"layout": layout}, shards.paths), None


def _structure(features: Features, x: str | Sequence[str] | None, label: str | None, sample_weight: str | None) -> Any:
    """What an example is made of: `x`, `(x, y)` or `(x, y, sample_weight)`; `x` itself may be a dict.

    Raises:
        ValueError: a name that is not in `features`, or that has two parts.
    """
    targets = [name for name in (label, sample_weight) if name is not None]
    if sample_weight is not None and label is None:
        raise ValueError("`sample_weight` was given without `label`: weights belong to targets. Give `label` too.")
    names = [x] if isinstance(x, str) else [name for name in features if name not in targets] if x is None else list(x)
    wanted = [*names, *targets]
    unknown = [name for name in wanted if name not in features]
    if unknown:
        raise ValueError(f"There is no feature {', '.join(map(repr, unknown))}. There are: {sorted(features)}.")
    twice = sorted({name for name in wanted if wanted.count(name) > 1})
    if twice:
        raise ValueError(f"A feature can be `x`, `label` or `sample_weight`, and only one of them. Twice: {twice}.")
    if not names:
        raise ValueError(f"No feature is left for `x` beside {targets}.")
    fields = {name: NamedField(name, features[name]) for name in wanted}
    inputs = fields[x] if isinstance(x, str) else {name: fields[name] for name in names}
    return (inputs, *(fields[name] for name in targets)) if targets else inputs


def _inferred(reader: RecordReader, shards: Shards) -> Features:
    names: list[str] = []

    def records() -> Iterator[tuple[str, bytes]]:
        for position in reader.first_positions(_INFERRED_FROM_FILES, _INFERRED_FROM):
            (record,), failures = reader.read(np.array([position]))
            if not failures:
                names.append(reader.describe(position))
                yield names[-1], record

    features = infer_features(records())
    sys.stdout.write(
        f"Features inferred from {len(names)} of {len(reader)} records in {len(shards.paths)} files. Give them as "
        f"`features` to have them fixed:\n\n{features_as_code(features)}\n\n"
    )
    return features


def _image_options(given: dict[str, Any], manifest: Manifest | None, settings: Settings) -> ImageOptions | None:
    """What pixels are wanted of the images that are kept as files; None where there are none."""
    images = [] if manifest is None else [leaf for leaf in tf.nest.flatten(manifest.element) if leaf.stored == "image"]
    if not images:
        if given:
            raise ValueError(
                f"{', '.join(given)}: images are decoded of those files only that `python -m keras_turbo convert` has "
                "made. Decode others in map_fn, by tf.io.decode_jpeg and tf.image.resize."
            )
        return None
    kept = images[0].shape[:2]
    options = ImageOptions(**{"image_size": _DEFAULT_IMAGE_SIZE if None in kept else kept, **given})
    if math.prod(options.image_size or ()) > options.max_pixels:
        raise ValueError(
            f"`image_size` must have at most max_pixels={options.max_pixels} pixels. Received: {options.image_size}."
        )
    require_batchable(options.image_size, settings.batch_size)
    return options
