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

from keras_turbo.data.engine.elements import BatchForm, Column, numpy_dtype
from keras_turbo.data.records.copies import COMPRESSIONS
from keras_turbo.data.records.features import Features, fewest_bytes
from keras_turbo.data.sources.files import read_whole
from keras_turbo.storage import paths as storage

FORMAT = "keras_turbo.tfrecord"
FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"

_KINDS = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string, "raw": tf.string, "image": tf.string}

# A list of sizes of a tensor whose sizes differ from record to record is kept under its name and this.
_SHAPE_SUFFIX = "/shape"

# Integers of up to this many values are lists, which any reader understands; longer ones are kept as their bytes, which
# take less room and are read without decoding each.
_LARGEST_INT64_LIST = 64

# A million names of files take a tenth of it.
_MOST_BYTES = 1 << 28

# More than any memory holds.
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
        """How a tensor is stored: integers and float32 as lists of numbers where they are short, all else as bytes.

        Raises:
            TypeError: a type that has no bytes that could be kept.
        """
        shape, dtype = tuple(spec.shape), spec.dtype
        size = math.prod(side or 0 for side in shape)
        is_list = len(shape) <= 1 and (size > 0 or None in shape or not shape)
        if dtype.is_quantized or not dtype.is_numpy_compatible or dtype in (tf.variant, tf.resource):
            raise TypeError(f"{feature!r} has the type {dtype.name}, which can't be written to a TFRecord.")
        stored = "raw"
        if dtype == tf.string:
            stored = "bytes"
        elif dtype == tf.bool:
            stored = "int64"
        elif dtype == tf.float32 and is_list:
            stored = "float"
        elif dtype.is_integer and dtype != tf.uint64 and is_list and size <= _LARGEST_INT64_LIST:
            stored = "int64"
        return cls(feature, dtype.name, shape, stored)

    @property
    def spec(self) -> tf.TensorSpec:
        """Of the tensor in one example."""
        return tf.TensorSpec(self.shape, self.dtype)

    @property
    def form(self) -> BatchForm:
        """What it is in a batch."""
        return "ragged" if self.shape == (None,) else "dense"

    @property
    def fewest_bytes(self) -> int:
        """What it takes of a record at least."""
        if self.stored == "image":
            return 0
        if self.stored == "raw":
            return (self.spec.shape.num_elements() or 0) * tf.as_dtype(self.dtype).size
        return fewest_bytes(self.spec.shape, _KINDS[self.stored])

    @property
    def has_shape_feature(self) -> bool:
        """Whether the sizes are kept in each record: all but a vector's, whose length tells itself."""
        return None in self.shape and self.stored != "image" and (len(self.shape) > 1 or self.stored == "raw")

    def features(self) -> Features:
        """What `tf.io.parse_example` needs to know of it."""
        kind = _KINDS[self.stored]
        own: Features = {self.feature: tf.io.FixedLenFeature([], kind)}
        if self.stored not in ("raw", "image"):
            is_fixed = None not in self.shape
            own[self.feature] = (
                tf.io.FixedLenFeature(self.shape, kind) if is_fixed else tf.io.RaggedFeature(kind, row_splits_dtype=tf.int64)
            )
        if self.has_shape_feature:
            own[self.feature + _SHAPE_SUFFIX] = tf.io.FixedLenFeature([len(self.shape)], tf.int64)
        return own

    def column(self, parsed: dict[str, Column]) -> Column:
        """Its values for some examples; of an image, those of the file.

        Raises:
            ValueError: a record has another number of values than its shape says.
        """
        column = parsed[self.feature]
        if self.stored == "image":
            return column
        dtype = numpy_dtype(tf.as_dtype(self.dtype))
        if self.stored == "raw":
            column = [np.frombuffer(data, dtype) for data in column]
        shapes = parsed[self.feature + _SHAPE_SUFFIX] if self.has_shape_feature else None
        if shapes is not None:
            return [row.astype(dtype, copy=False).reshape(shape) for row, shape in zip(column, shapes, strict=True)]
        if isinstance(column, np.ndarray):
            return column.astype(dtype, copy=False)
        shape = [-1 if side is None else side for side in self.shape]
        return [row.astype(dtype, copy=False).reshape(shape) for row in column]

    def encoded(self, array: np.ndarray) -> dict[str, tf.train.Feature]:
        """The features of one tensor."""
        flat = array.ravel()
        if self.stored == "int64":
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=flat.astype("int64")))
        elif self.stored == "float":
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
        elif self.stored == "bytes":
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=flat.tolist()))
        else:
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[array.tobytes()]))
        features = {self.feature: feature}
        if self.has_shape_feature:
            sizes = tf.train.Feature(int64_list=tf.train.Int64List(value=array.shape))
            features[self.feature + _SHAPE_SUFFIX] = sizes
        return features


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

    def save(self, folder: str) -> None:
        """Writes it, whole or not at all."""
        content = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "num_examples": self.num_examples,
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "element": tf.nest.map_structure(dataclasses.asdict, self.element),
        }
        write_json(storage.join(folder, MANIFEST_NAME), content)


def load_manifest(folder: str) -> Manifest | None:
    """The manifest of a folder; None where there is none of this package.

    Raises:
        ValueError: it is damaged, of a later version, or names files outside of its folder.
    """
    path = storage.join(folder, MANIFEST_NAME)
    try:
        content = read_json(path)
    except FileNotFoundError:
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
    """The content of a JSON file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no JSON, nested too deeply, or too large.
    """
    if storage.status_of(path).size > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MB")
    try:
        return json.loads(read_whole(path).decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_json(path: str, content: Any) -> None:
    """Writes a JSON file such that its name never stands for half of it."""
    storage.write_whole(path, json.dumps(content, indent=1).encode("utf-8"))


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
    if not manifest.files:
        raise ValueError("it names no files")
    if type(manifest.interleave) is not int or manifest.interleave < 1:
        raise ValueError(f"interleave is {manifest.interleave!r}")
    if not isinstance(manifest.compression, str) or manifest.compression not in COMPRESSIONS:
        raise ValueError(f"compression is {manifest.compression!r}")
    names = manifest.class_names
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"class_names is {names!r}")
    leaves = tf.nest.flatten(manifest.element)
    for leaf in leaves:
        sizes = [side for side in leaf.shape if side is not None]
        is_shape = all(type(side) is int and side >= 0 for side in sizes)
        # TensorFlow ends the process over a shape that it can't count.
        is_shape = is_shape and math.prod(side for side in sizes if side) < _MOST_VALUES
        is_type = tf.as_dtype(leaf.dtype).is_numpy_compatible and (leaf.dtype == "string") == (leaf.stored == "bytes")
        if not is_shape or not is_type or leaf.stored not in _KINDS:
            raise ValueError(f"{leaf} is no way in which tensors are stored")
    if not leaves:
        raise ValueError("its element has no tensors")
    if manifest.label is not None and manifest.label not in [leaf.feature for leaf in leaves]:
        raise ValueError(f"its label {manifest.label!r} is no feature")
