"""TFRecord files, each record of which is one example.

Records are byte ranges by an index of their offsets, whatever the order; as many as are wanted together are parsed by
one call of TensorFlow, and their images decoded as those of an image folder.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.engine.elements import BatchForm, Column, Elements, concatenated
from keras_turbo.data.engine.failures import ExampleLoadError, reason_of
from keras_turbo.data.images import ImageOptions, require_batchable
from keras_turbo.data.records.copies import check_compression, compression_of, local_copies
from keras_turbo.data.records.features import (
    Features,
    Field,
    Parser,
    check_features,
    features_as_code,
    field_of,
    infer_features,
    is_example,
)
from keras_turbo.data.records.manifest import Leaf, Manifest
from keras_turbo.data.records.reader import RecordReader
from keras_turbo.data.records.shards import Shards, find_shards
from keras_turbo.data.settings import Settings, check_count, is_integer
from keras_turbo.data.sources.files import files_content
from keras_turbo.data.sources.image_decoder import ImageDecoder
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.files import default_cache_dir
from keras_turbo.report import listed

# Features are inferred from so many records.
_INFERRED_FROM = 64

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
        features: Features = {}
        for field in self._fields:
            features |= field.features
            # Over some sizes TensorFlow ends the process (2.17 to 2.21).
            if field.fewest_bytes > max(reader.most_bytes, _BYTES_AT_ONCE):
                raise ValueError(
                    f"No record can hold {field.name!r}, which has the shape {field.spec.shape}: the largest one of "
                    f"{listed(files, 1)} has {reader.most_bytes} bytes. Correct `features`, or the manifest."
                )
        forms: tuple[BatchForm, ...] = tuple(field.form for field in self._fields)
        as_parsed = [tf.TensorSpec([], tf.string) if field.is_image else field.spec for field in self._fields]
        specs = as_parsed
        if decoder is not None:
            pixels = tf.TensorSpec(decoder.shape, decoder.dtype)
            specs = [pixels if field.is_image else field.spec for field in self._fields]
        strings = max(1, sum(spec.dtype == tf.string for spec in specs))
        self._parsed = Elements(as_parsed, forms)
        self.elements = Elements(
            tf.nest.pack_sequence_as(structure, specs), forms, string_bytes=int(reader.mean_bytes / strings)
        )
        self._decoder = decoder
        self.is_random = decoder is not None and decoder.is_random
        self.loads_together = decoder is None
        self.loading_is_called = "load" if decoder is None else "decode"
        self._rows_at_once = int(max(1, _BYTES_AT_ONCE // max(1, reader.mean_bytes, self.elements.row_bytes)))
        self._parser = Parser(features)
        self._labels = None if label is None else TfRecordSource(reader, label)
        self._recipe = recipe
        self._files = list(files)

    def __len__(self) -> int:
        return len(self.reader)

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column] | None, dict[int, Exception]]:
        columns, failures = self._parsed_at(positions)
        if self._decoder is None:
            return columns, failures
        made: list[list[Any]] = [list(column) for column in self.elements.zeros(len(positions))]
        for index in sorted(set(range(len(positions))) - failures.keys()):
            out = [None] * len(columns) if in_place is None else in_place[index]
            for number, (field, column, target) in enumerate(zip(self._fields, columns, out, strict=True)):
                value: Any = column[index]
                if field.is_image:
                    try:
                        value = self._decoder.decode(value, None if seeds is None else seeds[index], target)
                    except ValueError as error:
                        failures[index] = error
                        break
                elif target is not None:
                    target[...] = value
                made[number][index] = value
        if in_place is not None:
            return None, failures
        return [np.stack(column) if self.elements.is_fixed else column for column in made], failures

    def name(self, position: int) -> str:
        return self.reader.describe(position)

    def labels_at(self, positions: np.ndarray) -> Any:
        if self._labels is None:
            return None
        columns, failures = self._labels._parsed_at(positions)
        for index, error in failures.items():
            raise ExampleLoadError(f"{self.name(int(positions[index]))}: {reason_of(error)}")
        return columns[0]

    def identity(self) -> Identity:
        return Identity(recipe=self._recipe, content={"files": files_content(self._files)})

    def _parsed_at(self, positions: np.ndarray) -> tuple[list[Column], dict[int, Exception]]:
        """The values at some positions as they are in the records, of images those of the file."""
        parts = []
        failures: dict[int, Exception] = {}
        for begin in range(0, len(positions), self._rows_at_once):
            columns, failed = self._read(positions[begin : begin + self._rows_at_once])
            parts.append(columns)
            failures |= {begin + index: error for index, error in failed.items()}
        return concatenated(parts), failures

    def _read(self, positions: np.ndarray) -> tuple[list[Column], dict[int, Exception]]:
        number = len(positions)
        try:
            if number > 1 and self.reader.can_gather:
                with self.reader.together(positions) as (path, offset):
                    parsed = self._parser.of_file(path, offset, number)
            else:
                parsed = self._parser.of_records(self.reader.records(positions))
            return [field.column(parsed) for field in self._fields], {}
        except Exception as error:  # of files, of TensorFlow, and that of bytes that are no text in the message of one
            if number == 1:
                return self._parsed.zeros(1), {0: self._reason(positions, error)}
        half = number // 2
        (first, failures), (second, others) = map(self._read, (positions[:half], positions[half:]))
        return concatenated([first, second]), failures | {half + index: error for index, error in others.items()}

    def _reason(self, position: np.ndarray, error: Exception) -> Exception:
        if isinstance(error, OSError):
            return error
        with contextlib.suppress(OSError, ValueError):
            if not is_example(self.reader.records(position)[0]):
                return ValueError("it is whole, but no tf.train.Example.")
        return error


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
    compressions = storage.each_path(
        lambda path: compression_of(path) if compression is None else compression, shards.paths
    )
    copies = local_copies(shards.paths, compressions, cache_folder, max_unpacked_bytes)
    cycle = interleave or (manifest.interleave if manifest is not None and shards.are_all else 1)
    # From the root, since this process may change its folder.
    reader = RecordReader([storage.absolute(path) for path in copies], shards.paths, cache_folder, cycle)
    if settings.on_error == "raise":
        for problem in reader.damaged_files():
            raise ExampleLoadError(f"{problem} (on_error='skip' leaves out what is damaged and lists it.)")
    if not len(reader):
        raise ValueError(f"The {len(shards.paths)} files that match {pattern!r} hold no record.")
    shards.check_counts(reader.counts, may_be_damaged=settings.on_error == "skip")
    where = {"kind": "tfrecord", "files": [storage.absolute(path) for path in shards.paths], "interleave": cycle}
    if manifest is not None:
        structure = tf.nest.map_structure(Leaf.field, manifest.element)
        layout = [repr(manifest.element), repr(images)]
        label = manifest.label
    else:
        features = _inferred(reader, shards) if features is None else features
        structure = _structure(features, x, label, sample_weight)
        layout = [repr(features), x if x is None or isinstance(x, str) else list(x), label, sample_weight]
    y = next((field for field in tf.nest.flatten(structure) if field.name == label), None)
    decoder = None if images is None else ImageDecoder(images)
    source = TfRecordSource(reader, structure, decoder, y, where | {"layout": layout}, shards.paths)
    return source, None if manifest is None else manifest.class_names


def _structure(features: Features, x: str | Sequence[str] | None, label: str | None, sample_weight: str | None) -> Any:
    """What an example is made of: `x`, `(x, y)` or `(x, y, sample_weight)`; `x` itself may be a dict."""
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
    fields = {name: field_of(name, features[name]) for name in wanted}
    inputs = fields[x] if isinstance(x, str) else {name: fields[name] for name in names}
    return (inputs, *(fields[name] for name in targets)) if targets else inputs


def _inferred(reader: RecordReader, shards: Shards) -> Features:
    found = []
    for position in np.unique(np.linspace(0, len(reader) - 1, _INFERRED_FROM).astype(np.int64)).tolist():
        with contextlib.suppress(OSError, ValueError):  # those that are damaged tell nothing
            found += [(reader.describe(position), record) for record in reader.records(np.array([position]))]
    features = infer_features(found)
    sys.stdout.write(
        f"Features inferred from {len(found)} of {len(reader)} records in {len(shards.paths)} files. Give them as "
        f"`features` to have them fixed:\n\n{features_as_code(features)}\n\n"
    )
    return features


def _image_options(given: dict[str, Any], manifest: Manifest | None, settings: Settings) -> ImageOptions | None:
    """What pixels are wanted of the images that are kept as files; None where there are none."""
    images = [] if manifest is None else [leaf for leaf in manifest.leaves if leaf.stored == "image"]
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
