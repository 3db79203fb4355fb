"""TFRecord files, each record of which is one example."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.failures import ExampleLoadError, reason_of
from keras_turbo.data.image_options import ImageOptions, require_batchable
from keras_turbo.data.light_operations import light_filter, light_map
from keras_turbo.data.python_calls import call_on
from keras_turbo.data.records.features import check_features, features_as_code, infer_features, is_example
from keras_turbo.data.records.index import index_of
from keras_turbo.data.records.layout import Layout, ManifestLayout, NamedLayout
from keras_turbo.data.records.local_copies import check_compression, compression_of, local_copies
from keras_turbo.data.records.manifest import Manifest, leaves_of
from keras_turbo.data.records.reader import RecordReader
from keras_turbo.data.records.shards import Shards, find_shards
from keras_turbo.data.settings import Settings, is_integer
from keras_turbo.data.sources.files import files_content
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.files import default_cache_dir

# Features are inferred from so many records, taken from the beginnings of so many files.
_INFERRED_FROM = 64
_INFERRED_FROM_FILES = 4

# Records that are read together: enough that a call of Python and TensorFlow's reader, about a millisecond, is little
# beside them, few enough to be no memory.
_MOST_AT_ONCE = 4096
_BYTES_AT_ONCE = 1 << 22

# As FastDataset.from_image_folder.
_DEFAULT_IMAGE_SIZE = (256, 256)


class TfRecordSource(Source):
    """One example for each record of some files.

    Args:
        reader: gives the records by position.
        layout: what is made of one.
        recipe: JSON-able description of the layout.
        files: paths, for the identity.
        checks_records: whether records that can't be parsed are told apart before many are parsed together, at the cost
            of parsing twice: for who wants to leave them out.
    """

    can_fail = True

    def __init__(
        self, reader: RecordReader, layout: Layout, recipe: Any, files: Sequence[str], checks_records: bool
    ) -> None:
        self.reader = reader
        self.layout = layout
        self.is_random = isinstance(layout, ManifestLayout) and layout.is_random
        self.loading_is_called = "load" if layout.makes_batches else "decode"
        self.makes_rows = layout.makes_batches
        # Ragged batches can neither be cut nor joined by what follows, so they are parsed when all is done.
        self._parses_last = layout.is_ragged
        self._checks_records = checks_records or self._parses_last
        if self._parses_last:
            self.why_not_remote = "records whose features have no fixed length are put together in batches by this one"
        elif reader.reads_copies:
            self.why_not_remote = (
                "records that are compressed, or behind a scheme, are copied into the cache folder of this one (write "
                "them without compression, into a folder that all machines have)"
            )
        elif isinstance(layout, ManifestLayout) and layout.has_images:
            self.why_not_remote = (
                "images in records are decoded with the help of Python (use from_image_folder on the images "
                "themselves, or convert without a manifest: give `features` and decode in map_fn)"
            )
        self._recipe = recipe
        self._files = list(files)
        self._example = tf.function(layout.example)
        self._batch = tf.function(layout.batch, input_signature=[tf.TensorSpec([None], tf.string)])

    @property
    def num_examples(self) -> int:
        return self.reader.num_entries

    @property
    def rows_at_once(self) -> int:
        return int(max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(1.0, self.reader.mean_bytes))))

    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        record, problem = call_on(self, TfRecordSource._read_one, [position], [tf.string, tf.string])
        # An assertion, since an error in the Python function would bring that function's traceback along.
        with tf.control_dependencies([tf.debugging.Assert(problem == b"", [problem])]):
            record = tf.ensure_shape(tf.identity(record), [])
        return self._example(record, seed)

    def load_remotely(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        return self._example(self.reader.read_in_graph(position), seed)

    def read_rows(self, positions: tf.Tensor) -> dict[str, tf.Tensor]:
        records, are_whole = self._read(positions, TfRecordSource._read_and_check)
        return {"record": records, "is_whole": are_whole}

    def load_row(self, row: dict[str, tf.Tensor], seed: tf.Tensor) -> Any:
        is_whole = tf.debugging.Assert(row["is_whole"], ["The record is damaged."])
        with tf.control_dependencies([is_whole]):
            return self._example(tf.identity(row["record"]), seed)

    def make_rows(self, chunks: tf.data.Dataset, parallel_calls: int) -> tf.data.Dataset:
        def rows(chunk: dict[str, tf.Tensor]) -> dict[str, Any]:
            records, are_whole = self._read(chunk["position"], TfRecordSource._read_whole)
            whole = {name: tf.boolean_mask(vector, are_whole) for name, vector in chunk.items()}
            return {**whole, "out": records if self._parses_last else self.layout.batch(records)}

        made = light_map(chunks, rows, parallel_calls)
        return light_filter(made, lambda chunk: tf.size(chunk["position"]) > 0)

    def finish(self, batches: tf.data.Dataset, parallel_calls: int) -> tf.data.Dataset:
        if not self._parses_last:
            return batches
        return batches.map(self.layout.batch, num_parallel_calls=parallel_calls, deterministic=True)

    def describe(self, position: int) -> str:
        return self.reader.describe(position)

    def labels_at(self, positions: np.ndarray) -> np.ndarray | None:
        if self.layout.label is None:
            return None
        parts = []
        for start in range(0, len(positions), self.rows_at_once):
            some = positions[start : start + self.rows_at_once]
            records, are_whole = self.reader.read(some)
            if not are_whole.all():
                raise ExampleLoadError(f"{self.describe(int(some[~are_whole][0]))}: the record is damaged.")
            parts.append(np.asarray(self.layout.labels(records)))
        return np.concatenate(parts)

    def identity(self) -> Identity:
        return Identity(recipe=self._recipe, content={"files": files_content(self._files)})

    def _read(self, positions: tf.Tensor, function: Callable) -> tuple[tf.Tensor, tf.Tensor]:
        records, are_whole = call_on(self, function, [positions], [tf.string, tf.bool], returns_tensors=True)
        return tf.ensure_shape(records, [None]), tf.ensure_shape(are_whole, [None])

    def _read_one(self, position: np.integer) -> tuple[bytes, bytes]:
        try:
            record, problem = self.reader.read_one(position)
        except (OSError, tf.errors.OpError) as error:
            # As a value, since an error would bring along where in Python it was raised.
            return b"", f"the file can't be read: {reason_of(error)}".encode()
        if not problem and not is_example(record):
            # TensorFlow would say so too, with the record in the message, whatever bytes those are.
            problem = b"it is whole, but no tf.train.Example."
        return record, problem

    def _read_whole(self, positions: np.ndarray) -> tuple[tf.Tensor, np.ndarray]:
        """As `_read_and_check`, but without the records that are not whole: leaving out copies, so it is done here."""
        records, are_whole = self._read_and_check(positions)
        return records if are_whole.all() else tf.boolean_mask(records, are_whole), are_whole

    def _read_and_check(self, positions: np.ndarray) -> tuple[tf.Tensor, np.ndarray]:
        with tf.device("CPU:0"):
            records, are_whole = self.reader.read(positions)
            if self._checks_records and self.makes_rows:
                are_whole &= self._can_be_parsed(records)
        return records, are_whole

    def _can_be_parsed(self, records: tf.Tensor) -> np.ndarray:
        try:
            self._batch(records)
        # The message of the one may be bytes that are no text, which is the other.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            if len(records) == 1:
                return np.zeros(1, np.bool_)
            half = len(records) // 2
            return np.concatenate([self._can_be_parsed(records[:half]), self._can_be_parsed(records[half:])])
        return np.ones(len(records), np.bool_)


def tfrecord_source(
    pattern: str | os.PathLike | Sequence[str | os.PathLike],
    features: Any,
    *,
    x: str | Sequence[str] | None,
    label: str | None,
    sample_weight: str | None,
    compression: str | None,
    interleave: int | None,
    image_options: dict[str, Any],
    settings: Settings,
) -> tuple[TfRecordSource, list[str] | None]:
    """The source of `FastDataset.from_tfrecord`, and its class names."""
    check_compression(compression)
    if features is not None:
        features = check_features(features)
    if interleave is not None and (not is_integer(interleave) or interleave < 1):
        raise ValueError(f"`interleave` must be a number of files, from 1. Received: {interleave!r}.")
    is_named = features is not None or x is not None or label is not None or sample_weight is not None
    shards = find_shards(pattern, reads_manifest=not is_named)
    manifest = shards.manifest
    images = _image_options(image_options, manifest, settings)
    cache_folder = settings.cache_dir_or(default_cache_dir())
    compression_here = functools.partial(_compression, asked_for=compression, manifest=manifest)
    packed = storage.each_path(compression_here, shards.paths)
    # From the root, since this process may change its folder.
    files = [storage.absolute(path) for path in local_copies(shards.paths, list(packed), cache_folder)]
    cycle = interleave or (manifest.interleave if manifest is not None and shards.are_all else 1)
    reader = RecordReader([index_of(path, cache_folder) for path in files], shards.paths, cycle)
    if settings.on_error == "raise":
        for problem in reader.damaged_files():
            raise ExampleLoadError(f"{problem} (on_error='skip' leaves out what is damaged and lists it.)")
    if not reader.num_entries:
        raise ValueError(f"The {len(shards.paths)} files that match {pattern!r} hold no record.")
    shards.check_counts(reader, may_be_damaged=settings.on_error == "skip")
    class_names = None
    if manifest is not None:
        layout: Layout = ManifestLayout(manifest, images)
        class_names = manifest.class_names
        recipe = ["manifest", repr(manifest.element), repr(images)]
    else:
        if features is None:
            features = _inferred(reader, shards)
        layout = NamedLayout(features, x, label, sample_weight)
        recipe = ["features", repr(layout.features), x if x is None or isinstance(x, str) else list(x), label]
    where = {"kind": "tfrecord", "files": [storage.absolute(path) for path in shards.paths], "interleave": cycle}
    source = TfRecordSource(
        reader, layout, where | {"layout": recipe}, shards.paths, checks_records=settings.on_error == "skip"
    )
    return source, class_names


def _compression(path: str, asked_for: str | None, manifest: Manifest | None) -> str:
    if asked_for is not None:
        return asked_for
    return compression_of(path) if manifest is None else manifest.compression


def _inferred(reader: RecordReader, shards: Shards) -> Any:
    names: list[str] = []

    def records() -> Iterator[tuple[str, bytes]]:
        for position in reader.first_positions(_INFERRED_FROM_FILES, _INFERRED_FROM):
            record, problem = reader.read_one(np.int64(position))
            if not problem:
                names.append(reader.describe(int(position)))
                yield names[-1], record

    features = infer_features(records())
    sys.stdout.write(
        f"Features inferred from {len(names)} of {reader.num_entries} records in {len(shards.paths)} files. Give them "
        f"as `features` to have them fixed:\n\n{features_as_code(features)}\n\n"
    )
    return features


def _image_options(given: dict[str, Any], manifest: Manifest | None, settings: Settings) -> ImageOptions | None:
    """What pixels are wanted of the images that are kept as files; None where there are none."""
    images = [] if manifest is None else [leaf for leaf in leaves_of(manifest.element) if leaf.stored == "image"]
    if not images:
        if given:
            raise ValueError(
                f"{', '.join(given)}: images are decoded of those files only that `python -m keras_turbo convert` has "
                "made. Decode others in map_fn, by tf.io.decode_jpeg and tf.image.resize."
            )
        return None
    height, width, _ = images[0].shape
    size = _DEFAULT_IMAGE_SIZE if height is None or width is None else (height, width)
    options = ImageOptions(**{"image_size": size, **given})
    require_batchable(options.image_size, settings.batch_size)
    return options
