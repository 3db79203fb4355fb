"""What is parsed of records: as a user gives it, or inferred from some of them; and the parsing."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_turbo.data.engine.elements import BatchForm, Column
from keras_turbo.data.functions import as_array

Features = dict[str, Any]
"""Name -> `tf.io.FixedLenFeature`, `VarLenFeature`, `RaggedFeature` or `FixedLenSequenceFeature`."""

# What each kind of feature is in a batch.
_FORMS: dict[type, BatchForm] = {
    tf.io.FixedLenFeature: "dense",
    tf.io.VarLenFeature: "sparse",
    tf.io.RaggedFeature: "ragged",
    tf.io.FixedLenSequenceFeature: "padded",
}

KINDS = {tf.string: "bytes_list", tf.float32: "float_list", tf.int64: "int64_list"}
"""The kinds of lists in a record."""

# What TensorFlow reads of a file at once.
_BUFFER_BYTES = 1 << 18

_REMEDY = (
    "Give `features`, or read such records with tf.data.TFRecordDataset and a function of your own, and give that "
    "dataset to FastDataset."
)


@dataclasses.dataclass(frozen=True)
class Field:
    """One tensor of an example.

    Attributes:
        name: of the feature.
        spec: of the tensor in one example.
        form: what it is in a batch.
        features: what is parsed for it: features of fixed length, and ragged ones.
        column: of what is parsed of some examples its values: of fixed features stacked, of ragged ones a list.
        fewest_bytes: what it takes of a record at least.
        is_image: whether what is parsed is an image file, and the tensor its pixels.
    """

    name: str
    spec: tf.TensorSpec
    form: BatchForm
    features: Features
    column: Callable[[dict[str, Column]], Column]
    fewest_bytes: int
    is_image: bool = False


def field_of(name: str, feature: Any) -> Field:
    """A feature as a user gives it. What has no fixed length is parsed as ragged, which tells where a row ends."""
    form = _FORMS[type(feature)]
    shape = tf.TensorShape(getattr(feature, "shape", []))
    if form == "dense":
        fewest = 0 if feature.default_value is not None else fewest_bytes(shape, feature.dtype)
        return Field(
            name, tf.TensorSpec(shape, feature.dtype), form, {name: feature}, lambda parsed: parsed[name], fewest
        )
    ragged = tf.io.RaggedFeature(feature.dtype, getattr(feature, "value_key", None), row_splits_dtype=tf.int64)

    def rows(parsed: dict[str, Column]) -> Column:
        return [row.reshape(-1, *shape) for row in parsed[name]]

    return Field(name, tf.TensorSpec([None, *shape], feature.dtype), form, {name: ragged}, rows, 0)


def fewest_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """What so many values take of a record at least; 0 where there may be none."""
    # Of an integer in a list 7 bits, of a string its length and what is in front of that.
    return (shape.num_elements() or 0) * {tf.int64: 1, tf.string: 2}.get(dtype, dtype.size)


class Parser:
    """Parses many records by one call of `tf.io.parse_example`, without Python's lock.

    What it gives is, by name, a vector of rows, and a list of vectors for a ragged feature.

    Args:
        features: what is parsed.
    """

    def __init__(self, features: Features) -> None:
        self._features = features

        def parse(records: tf.Tensor) -> list[tf.Tensor]:
            parsed = tf.io.parse_example(records, features)
            return tf.nest.flatten([parsed[name] for name in features], expand_composites=True)

        def read(path: tf.Tensor, offset: tf.Tensor, number: tf.Tensor) -> list[tf.Tensor]:
            # tf.data.TFRecordDataset has no offsets.
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=[path], compression_type="", buffer_size=_BUFFER_BYTES, byte_offsets=[offset]
            )
            records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
            return parse(records.take(number).batch(number, drop_remainder=True).get_single_element())

        number = tf.TensorSpec([], tf.int64)
        self._parse = _traced(parse, [tf.TensorSpec([None], tf.string)])
        self._read = _traced(read, [tf.TensorSpec([], tf.string), number, number])

    def of_records(self, records: Sequence[bytes]) -> dict[str, Column]:
        """Of some records; raises what is wrong with one of them."""
        with tf.device("CPU:0"):
            return self._columns(self._parse(tf.constant(records, tf.string)))

    def of_file(self, path: str, offset: int, number: int) -> dict[str, Column]:
        """Of so many records that follow one another in a file; raises what is wrong with one of them."""
        with tf.device("CPU:0"):
            # A name on Linux is any bytes, which are no UTF-8 where others chose them.
            numbers = [tf.constant(value, tf.int64) for value in (offset, number)]
            return self._columns(self._read(tf.constant(os.fsencode(path)), *numbers))

    def _columns(self, tensors: Iterable[tf.Tensor]) -> dict[str, Column]:
        arrays = iter([as_array(tensor) for tensor in tensors])
        columns: dict[str, Column] = {}
        for name, feature in self._features.items():
            column = next(arrays)
            if isinstance(feature, tf.io.RaggedFeature):
                column = [column[begin:end] for begin, end in itertools.pairwise(next(arrays).tolist())]
            columns[name] = column
        return columns


def _traced(function: Callable[..., Any], signature: Sequence[tf.TensorSpec]) -> Any:
    with tf.device("CPU:0"):
        traced: Any = tf.function(function, input_signature=signature, autograph=False)
        return traced.get_concrete_function()


def check_features(features: Any) -> Features:
    """What was given as `features`; raises TypeError and ValueError if it can't be."""
    if not isinstance(features, Mapping):
        raise TypeError(
            "`features` must be a dict of names and features, such as {'label': tf.io.FixedLenFeature([], tf.int64)}. "
            f"Received: {features!r}."
        )
    if not features:
        raise ValueError("`features` is empty: name at least one feature, or leave it out to have them inferred.")
    for name, feature in features.items():
        if not isinstance(name, str):
            raise TypeError(f"`features` must have names (str) as keys. Received: {name!r}.")
        if type(feature) not in _FORMS:
            kinds = ", ".join(f"tf.io.{kind.__name__}" for kind in _FORMS)
            raise TypeError(f"`features[{name!r}]` must be one of {kinds}. Received: {feature!r}.")
        pads = isinstance(feature, tf.io.FixedLenSequenceFeature) and feature.default_value not in (None, 0, "", b"")
        if pads or getattr(feature, "partitions", ()):
            raise ValueError(
                f"`features[{name!r}]` must have no partitions, and no default_value to pad with: examples are put "
                "together in batches as ragged vectors, or padded with zeros. Give a tf.io.RaggedFeature, and do the "
                f"rest in map_fn. Received: {feature!r}."
            )
    return dict(features)


def infer_features(records: Iterable[tuple[str, bytes]]) -> Features:
    """The features of some records: of fixed length where all have as many values (a scalar of one), else ragged.

    Of each record there is what an error calls it, and its data.
    """
    kinds: dict[str, str] = {}
    lengths: dict[str, list[int]] = collections.defaultdict(list)
    number = 0
    for name, data in records:
        number += 1
        example = tf.train.Example.FromString(data) if is_example(data) else None
        if example is None or (data and not example.features.feature):
            raise ValueError(f"{name} is no tf.train.Example with features, so that none can be inferred. {_REMEDY}")
        for key, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind and kinds.setdefault(key, kind) != kind:
                raise ValueError(
                    f"{name}: the feature {key!r} is a {kind} here and a {kinds[key]} in records before, so that it "
                    f"can't be inferred what it is. {_REMEDY}"
                )
            lengths[key].append(len(getattr(feature, kind).value) if kind else 0)
    if not kinds:
        raise ValueError(f"The first {number} records hold no values, so that no features can be inferred. {_REMEDY}")
    features: Features = {}
    dtypes = {kind: dtype for dtype, kind in KINDS.items()}
    for key, kind in sorted(kinds.items()):
        length, *others = {*lengths[key], *([0] if len(lengths[key]) < number else [])}
        if others or not length:
            features[key] = tf.io.RaggedFeature(dtypes[kind])
        else:
            features[key] = tf.io.FixedLenFeature([] if length == 1 else [length], dtypes[kind])
    return features


def features_as_code(features: Features) -> str:
    """Features as Python source, to be pasted."""
    lines = []
    for name, feature in features.items():
        shape = f"{list(tf.TensorShape(feature.shape))}, " if hasattr(feature, "shape") else ""
        made = f"tf.io.{type(feature).__name__}({shape}tf.{feature.dtype.name})"
        lines.append(f"    {json.dumps(name, ensure_ascii=False)}: {made},")
    return "\n".join(["features = {", *lines, "}"])


def is_example(data: bytes) -> bool:
    """Whether some bytes are a serialized `tf.train.Example`."""
    from google.protobuf.message import DecodeError

    try:
        tf.train.Example.FromString(data)
    except DecodeError:
        return False
    return True
