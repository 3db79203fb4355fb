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
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo import files as storage
from keras_turbo.data.records.local_copies import COMPRESSIONS

FORMAT = "keras_turbo.tfrecord"
FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"

STORED = ("int64", "float", "bytes", "raw", "image")

# A list of sizes of a tensor whose sizes differ from record to record is kept under its name and this.
_SHAPE_SUFFIX = "/shape"


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

    @property
    def has_shape_feature(self) -> bool:
        """Whether the sizes are kept in each record: all but a vector's, whose length tells itself."""
        return None in self.shape and self.stored != "image" and (len(self.shape) > 1 or self.stored == "raw")

    @property
    def makes_batches(self) -> bool:
        """Whether many of these can be decoded together."""
        return self.stored != "image" and not self.has_shape_feature

    def features(self) -> dict[str, Any]:
        """What `tf.io.parse_example` needs to know of it."""
        number = 1 if self.stored in ("raw", "image") else None
        kind = {"int64": tf.int64, "float": tf.float32}.get(self.stored, tf.string)
        if number is None and None not in self.shape:
            return {self.feature: tf.io.FixedLenFeature(list(self.shape), kind)}
        own: dict[str, Any] = {
            self.feature: tf.io.RaggedFeature(kind) if number is None else tf.io.FixedLenFeature([], kind)
        }
        if self.has_shape_feature:
            own[self.feature + _SHAPE_SUFFIX] = tf.io.FixedLenFeature([len(self.shape)], tf.int64)
        return own

    def decoded(self, parsed: dict[str, Any], is_batch: bool) -> Any:
        """Graph code: the tensor, out of parsed features; with a first axis for a batch."""
        value = parsed[self.feature]
        dtype = tf.as_dtype(self.dtype)
        if self.stored == "raw":
            value = tf.io.decode_raw(value, tf.uint8)
            if dtype.size > 1:
                split = tf.concat([tf.shape(value)[:-1], [-1, dtype.size]], 0)
                value = tf.bitcast(tf.reshape(value, split), dtype)
            else:
                value = tf.bitcast(value, dtype)
        elif value.dtype != dtype:
            value = tf.cast(value, dtype)
        batch = [tf.shape(value)[0]] if is_batch else []
        if self.has_shape_feature:
            value = tf.reshape(value, parsed[self.feature + _SHAPE_SUFFIX])
        elif self.stored == "raw":
            value = tf.reshape(value, [*batch, *self.shape])
        if isinstance(value, tf.RaggedTensor):
            return value
        return tf.ensure_shape(value, [*([None] if is_batch else []), *self.shape])

    def encoded(self, array: Any) -> dict[str, tf.train.Feature]:
        """The features of one tensor, given as a numpy array."""
        flat = array.ravel()
        if self.stored == "int64":
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=flat.astype("int64")))
        elif self.stored == "float":
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
        elif self.stored == "bytes":
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=flat.tolist()))
        else:
            little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[little.tobytes()]))
        features = {self.feature: feature}
        if self.has_shape_feature:
            sizes = tf.train.Feature(int64_list=tf.train.Int64List(value=array.shape))
            features[self.feature + _SHAPE_SUFFIX] = sizes
        return features


def leaf_of(feature: str, spec: tf.TensorSpec) -> Leaf:
    """How a tensor is stored: integers and float32 as lists of numbers where they are short, all else as bytes.

    Raises:
        TypeError: a type that has no bytes that could be kept.
    """
    shape = tuple(spec.shape)
    size = math.prod(side or 0 for side in shape)
    dtype = spec.dtype
    is_empty = None not in shape and size == 0 and bool(shape)
    if dtype == tf.string:
        stored = "bytes"
    elif dtype == tf.bool:
        stored = "int64"
    elif dtype.is_quantized or not dtype.is_numpy_compatible or dtype in (tf.variant, tf.resource):
        raise TypeError(f"{feature!r} has the type {dtype.name}, which can't be written to a TFRecord.")
    elif dtype == tf.float32 and len(shape) <= 1 and not is_empty:
        stored = "float"
    elif dtype.is_integer and dtype != tf.uint64 and len(shape) <= 1 and size <= _LARGEST_INT64_LIST and not is_empty:
        stored = "int64"
    else:
        stored = "raw"
    return Leaf(feature, dtype.name, shape, stored)


# Integers of up to this many values are lists, which any reader understands; longer ones are kept as their bytes, which
# take less room and are read without decoding each.
_LARGEST_INT64_LIST = 64


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
            "element": _to_json(self.element),
        }
        write_json(storage.join(folder, MANIFEST_NAME), content)


def load_manifest(folder: str) -> Manifest | None:
    """The manifest of a folder; None where there is none of this package.

    Raises:
        ValueError: it is damaged, of a later version, or names files outside of its folder.
    """
    path = storage.join(folder, MANIFEST_NAME)
    try:
        content = json.loads(storage.read_bytes(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, UnicodeDecodeError) as error:
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
        manifest = Manifest(
            **{name: value for name, value in content.items() if name in names and name != "element"},
            element=_from_json(content["element"]),
        )
        _check(manifest)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path!r} is damaged: {error}. Restore it, or give `features`.") from error
    return manifest


def write_json(path: str, content: Any) -> None:
    """Writes a JSON file such that its name never stands for half of it."""
    storage.write_whole(path, json.dumps(content, indent=1).encode("utf-8"))


def with_leaves(structure: Any, function: Callable[[Leaf], Any]) -> Any:
    """A structure in which each leaf is replaced by what a function makes of it."""
    if isinstance(structure, Leaf):
        return function(structure)
    if isinstance(structure, tuple):
        return tuple(with_leaves(item, function) for item in structure)
    return {name: with_leaves(item, function) for name, item in structure.items()}


def leaves_of(structure: Any) -> list[Leaf]:
    """The leaves of a structure, in the order of `tf.nest.flatten`."""
    if isinstance(structure, Leaf):
        return [structure]
    items = structure if isinstance(structure, tuple) else [structure[name] for name in sorted(structure)]
    return [leaf for item in items for leaf in leaves_of(item)]


def _to_json(structure: Any) -> Any:
    if isinstance(structure, tuple):
        return [_to_json(item) for item in structure]
    if isinstance(structure, dict):
        return {name: _to_json(item) for name, item in structure.items()}
    return dataclasses.asdict(structure)


def _from_json(content: Any) -> Any:
    if isinstance(content, list):
        return tuple(_from_json(item) for item in content)
    if not isinstance(content, dict):
        raise TypeError(f"{content!r} is no part of an element")
    if isinstance(content.get("feature"), str):
        return Leaf(**{**content, "shape": tuple(content["shape"])})
    return {name: _from_json(item) for name, item in content.items()}


def _check(manifest: Manifest) -> None:
    if not isinstance(manifest.files, dict) or not manifest.files:
        raise ValueError("it names no files")
    for name, count in manifest.files.items():
        if name != os.path.basename(name) or name in ("", ".", "..") or not isinstance(count, int) or count < 0:
            raise ValueError(f"{name!r}: {count!r} is no file in its folder with a number of records")
    if not isinstance(manifest.interleave, int) or manifest.interleave < 1:
        raise ValueError(f"interleave is {manifest.interleave!r}")
    if not isinstance(manifest.compression, str) or manifest.compression not in COMPRESSIONS:
        raise ValueError(f"compression is {manifest.compression!r}")
    leaves = leaves_of(manifest.element)
    for leaf in leaves:
        tf.as_dtype(leaf.dtype)
        if leaf.stored not in STORED or any(side is not None and not isinstance(side, int) for side in leaf.shape):
            raise ValueError(f"{leaf} is no way in which tensors are stored")
    if manifest.label is not None and manifest.label not in [leaf.feature for leaf in leaves]:
        raise ValueError(f"its label {manifest.label!r} is no feature")
