"""What is parsed of records: as a user gives it, or inferred from some of them; and the parsing."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import BatchForm, Column, numpy_dtype
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

KINDS = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
"""The kinds of lists in a record."""

# In records as long as this, copying the bytes takes longer than looking at each in Python; numbers, of which each is a
# Python object there, must be few.
_LONG_RECORD_BYTES = 1 << 12
_FEW_VALUES = 64

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


Parser = Callable[[Sequence[bytes]], dict[str, Column]]
"""Of records: by name, vectors of rows, and lists of vectors for ragged features. Raises what is wrong with one."""


def parser_of(features: Features, mean_bytes: float) -> Parser:
    """The faster way to parse such features of records that have so many bytes."""
    is_by_python = mean_bytes > _LONG_RECORD_BYTES and all(
        isinstance(feature, tf.io.FixedLenFeature)
        and feature.default_value is None
        and (feature.dtype == tf.string or (tf.TensorShape(feature.shape).num_elements() or 0) <= _FEW_VALUES)
        for feature in features.values()
    )
    return _python_parser(features) if is_by_python else _graph_parser(features)


def _graph_parser(features: Features) -> Parser:
    """Many records by one call of `tf.io.parse_example`, without Python's lock."""

    def traced(records: tf.Tensor) -> list[tf.Tensor]:
        parsed = tf.io.parse_example(records, features)
        return tf.nest.flatten([parsed[name] for name in features], expand_composites=True)

    with tf.device("CPU:0"):
        function: Any = tf.function(traced, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
        concrete = function.get_concrete_function()

    def parse(records: Sequence[bytes]) -> dict[str, Column]:
        with tf.device("CPU:0"):
            arrays = iter([as_array(tensor) for tensor in concrete(tf.constant(records, tf.string))])
        columns: dict[str, Column] = {}
        for name, feature in features.items():
            column = next(arrays)
            if isinstance(feature, tf.io.RaggedFeature):
                column = [column[begin:end] for begin, end in itertools.pairwise(next(arrays).tolist())]
            columns[name] = column
        return columns

    return parse


def _python_parser(features: Features) -> Parser:
    """Long records one by one: of 32 KB in 5 us each, where TensorFlow, which copies more, takes 25."""
    kind_of = {dtype: kind for kind, dtype in KINDS.items()}
    wanted = []
    for name, feature in features.items():
        shape = [size or 0 for size in tf.TensorShape(feature.shape)]
        wanted.append((name, kind_of[feature.dtype], shape, numpy_dtype(feature.dtype)))

    def parse(records: Sequence[bytes]) -> dict[str, Column]:
        columns: dict[str, Any] = {name: np.empty((len(records), *shape), dtype) for name, _, shape, dtype in wanted}
        for index, record in enumerate(records):
            there = tf.train.Example.FromString(record).features.feature
            for name, kind, shape, dtype in wanted:
                values = getattr(there[name], kind).value
                if len(values) != math.prod(shape):
                    raise ValueError(
                        f"the feature {name!r} has {len(values)} values in its {kind}, and {math.prod(shape)} are "
                        f"needed for the shape {tuple(shape)}."
                    )
                columns[name][index] = np.array(values, dtype).reshape(shape) if shape else values[0]
        return columns

    return parse


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
    for key, kind in sorted(kinds.items()):
        length, *others = {*lengths[key], *([0] if len(lengths[key]) < number else [])}
        if others or not length:
            features[key] = tf.io.RaggedFeature(KINDS[kind])
        else:
            features[key] = tf.io.FixedLenFeature([] if length == 1 else [length], KINDS[kind])
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
