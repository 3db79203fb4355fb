"""A folder of TFRecord files tells what is in it: `manifest.json`, as this package writes and reads it.

    {"format": "keras_turbo.tfrecord", "version": 1, "compression": "", "interleave": 8,
     "files": {"00000-of-00008.tfrecord": 125, ...}, "class_names": ["cat", "dog"], "label": "label",
     "element": [{"feature": "image", "dtype": "uint8", "shape": [null, null, 3], "stored": "image"},
                 {"feature": "label", "dtype": "int32", "shape": [], "stored": "int64"}],
     "options": {...}, "skipped": [...]}

`element` has the structure of an element: a list stands for a tuple, an object with "feature" for a tensor, and any
other object for a dict. `files` are names in the same folder; one that leads out of it is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.engine.elements import Column, numpy_dtype
from keras_turbo.data.records.copies import COMPRESSIONS
from keras_turbo.data.records.features import KINDS, Features, Field, fewest_bytes

FORMAT = "keras_turbo.tfrecord"
FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"

# Of what a tensor is a list in a record, by how it is stored.
_STORED = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string, "raw": tf.string, "image": tf.string}

# A list of sizes of a tensor whose sizes differ from record to record is kept under its name and this.
_SHAPE_SUFFIX = "/shape"

# Integers of up to this many values are lists, which any reader understands; longer ones are kept as their bytes, which
# take less room and are read without decoding each.
_LARGEST_INT64_LIST = 64

# A million names of files take a tenth of it.
_MOST_BYTES = 1 << 28

# More than any memory holds. Over a shape that it can't count, TensorFlow ends the process.
_MOST_VALUES = 1 << 48


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One tensor of an element.

    Attributes:
        feature: the name under which it is in a record.
        dtype: its type, by TensorFlow's name.
        shape: its sizes; None where they differ.
        stored: "int64", "float" or "bytes": as a list of such values; "raw": as the bytes of the tensor, in
            little-endian order; "image": as an image file.
    """

    feature: str
    dtype: str
    shape: tuple[int | None, ...]
    stored: str

    @classmethod
    def of(cls, feature: str, spec: tf.TensorSpec) -> Leaf:
        """How a tensor is stored: integers and float32 as lists of numbers where they are short, all else as bytes."""
        shape, dtype = tuple(spec.shape), spec.dtype
        size = math.prod(side or 0 for side in shape)
        is_list = len(shape) <= 1 and (size > 0 or None in shape)
        stored = "raw"
        if dtype.is_quantized or not dtype.is_numpy_compatible or dtype in (tf.variant, tf.resource):
            raise TypeError(f"{feature!r} has the type {dtype.name}, which can't be written to a TFRecord.")
        if dtype == tf.string:
            stored = "bytes"
        elif dtype == tf.bool or (is_list and dtype.is_integer and dtype != tf.uint64 and size <= _LARGEST_INT64_LIST):
            stored = "int64"
        elif dtype == tf.float32 and is_list:
            stored = "float"
        return cls(feature, dtype.name, shape, stored)

    @property
    def _has_shape_feature(self) -> bool:
        # All but a vector's, whose length tells itself.
        return None in self.shape and self.stored != "image" and (len(self.shape) > 1 or self.stored == "raw")

    def put(self, array: np.ndarray, example: tf.train.Example) -> None:
        """Writes the tensor of an example into its record."""
        features = example.features.feature
        flat = array.ravel().astype(np.int64) if self.stored == "int64" else array.ravel()
        values = [array.tobytes()] if self.stored == "raw" else flat.tolist()
        getattr(features[self.feature], KINDS[_STORED[self.stored]]).value.extend(values)
        if self._has_shape_feature:
            features[self.feature + _SHAPE_SUFFIX].int64_list.value.extend(array.shape)

    def field(self) -> Field:
        """How it is read; of an image what is parsed is the file."""
        kind, is_list = _STORED[self.stored], self.stored not in ("raw", "image")
        spec = tf.TensorSpec(self.shape, self.dtype)
        features: Features = {self.feature: tf.io.FixedLenFeature(self.shape if is_list else [], kind)}
        if is_list and None in self.shape:
            features[self.feature] = tf.io.RaggedFeature(kind, row_splits_dtype=tf.int64)
        if self._has_shape_feature:
            features[self.feature + _SHAPE_SUFFIX] = tf.io.FixedLenFeature([len(self.shape)], tf.int64)
        return Field(
            self.feature,
            spec,
            "ragged" if self.shape == (None,) else "dense",
            features,
            self._column,
            0 if self.stored == "image" else fewest_bytes(spec.shape, kind if is_list else spec.dtype),
            is_image=self.stored == "image",
        )

    def _column(self, parsed: dict[str, Column]) -> Column:
        column, dtype = parsed[self.feature], numpy_dtype(tf.as_dtype(self.dtype))
        if self.stored == "image":
            return column
        if self.stored == "raw":
            column = [np.frombuffer(data, dtype) for data in column]
        if isinstance(column, np.ndarray):
            return column.astype(dtype, copy=False)
        shapes = parsed[self.feature + _SHAPE_SUFFIX] if self._has_shape_feature else [self.shape] * len(column)
        if self.shape == (None,):
            shapes = [-1] * len(column)
        rows = [row.astype(dtype, copy=False).reshape(shape) for row, shape in zip(column, shapes, strict=True)]
        return rows if None in self.shape else np.stack(rows)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is in a folder of TFRecord files.

    Attributes:
        files: names of the files, in order, with the number of records in each.
        element: structure of dicts and tuples of `Leaf`s.
        compression: "", "GZIP" or "ZLIB".
        interleave: from how many files, in turn, records come in the order in which they were written.
        class_names: of the numbers in the label; None where there are none.
        label: name of the feature that is `y`.
        options: how the records were made.
        skipped: what was left out of them: pairs of path and reason.
    """

    files: dict[str, int]
    element: Any
    compression: str = ""
    interleave: int = 1
    class_names: list[str] | None = None
    label: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    skipped: list[list[str]] = dataclasses.field(default_factory=list)

    @property
    def num_examples(self) -> int:
        """Number of records in all files."""
        return sum(self.files.values())

    @property
    def leaves(self) -> list[Leaf]:
        """The tensors of an element, in the order of `tf.nest`."""
        return tf.nest.flatten(self.element)

    def save(self, folder: str) -> None:
        """Writes it, whole or not at all."""
        content = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "num_examples": self.num_examples,
            **vars(self),
            "element": tf.nest.map_structure(dataclasses.asdict, self.element),
        }
        write_json(storage.join(folder, MANIFEST_NAME), content)


def load_manifest(folder: str) -> Manifest | None:
    """The manifest of a folder; None where there is none of this package. What is wrong with it is a ValueError."""
    path = storage.join(folder, MANIFEST_NAME)
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(f"{path!r} is no JSON ({error}). Restore it, or give `features`.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return None  # somebody else's
    if content.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"{path!r} has version {content.get('version')!r} of its format, and this keras_turbo reads version "
            f"{FORMAT_VERSION}. Install a later keras_turbo, or give `features`."
        )
    try:
        names = {field.name for field in dataclasses.fields(Manifest)}
        own = {name: value for name, value in content.items() if name in names}
        manifest = Manifest(**own | {"element": _from_json(content["element"])})
        _check(manifest)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path!r} is damaged: {error}. Restore it, or give `features`.") from error
    return manifest


def read_json(path: str) -> Any:
    """The content of a JSON file; raises ValueError if it is none, is nested too deeply, or too large."""
    if storage.status_of(path).size > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MB")
    try:
        return json.loads(storage.read_bytes(path))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_json(path: str, content: Any) -> None:
    """Writes a JSON file such that its name never stands for half of it."""
    storage.write_whole(path, json.dumps(content, indent=1).encode())


def _from_json(content: Any) -> Any:
    if isinstance(content, list):
        return tuple(_from_json(item) for item in content)
    if not isinstance(content, dict):
        raise TypeError(f"{content!r} is no part of an element")
    if isinstance(content.get("feature"), str):
        return Leaf(**{**content, "shape": tuple(content["shape"])})
    return {name: _from_json(item) for name, item in content.items()}


def _check(manifest: Manifest) -> None:
    for name, count in manifest.files.items():
        if name != os.path.basename(name) or name in ("", ".", "..") or type(count) is not int or count < 0:
            raise ValueError(f"{name!r}: {count!r} is no file in its folder with a number of records")
    if not manifest.files or not manifest.leaves:
        raise ValueError("it names no files, or no tensors")
    if type(manifest.interleave) is not int or manifest.interleave < 1:
        raise ValueError(f"interleave is {manifest.interleave!r}")
    if not isinstance(manifest.compression, str) or manifest.compression not in COMPRESSIONS:
        raise ValueError(f"compression is {manifest.compression!r}")
    names = manifest.class_names
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"class_names is {names!r}")
    for leaf in manifest.leaves:
        sizes = [side for side in leaf.shape if side is not None]
        is_shape = all(type(side) is int and side >= 0 for side in sizes)
        is_shape = is_shape and math.prod(side for side in sizes if side) < _MOST_VALUES
        is_type = tf.as_dtype(leaf.dtype).is_numpy_compatible and (leaf.dtype == "string") == (leaf.stored == "bytes")
        if not is_shape or not is_type or leaf.stored not in _STORED:
            raise ValueError(f"{leaf} is no way in which tensors are stored")
    if manifest.label is not None and manifest.label not in [leaf.feature for leaf in manifest.leaves]:
        raise ValueError(f"its label {manifest.label!r} is no feature")
