"""What is parsed of records: as a user gives it, or inferred from the first of them; and the parsing."""

from __future__ import annotations

import collections
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

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

_DTYPES = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
_KINDS = {dtype: kind for kind, dtype in _DTYPES.items()}
# The fewest bytes that a value takes in a record: a length and a key, a number of 4 bytes, a number of 7 bits.
_FEWEST_BYTES = {tf.string: 2, tf.float32: 4, tf.int64: 1}

# In records as long as this, copying the bytes takes longer than looking at each in Python; numbers, of which each is a
# Python object there, must be few.
_LONG_RECORD_BYTES = 1 << 12
_FEW_VALUES = 64

_REMEDY = (
    "Give `features`, or read such records with tf.data.TFRecordDataset and a function of your own, and give that "
    "dataset to FastDataset."
)


class Field(Protocol):
    """One tensor of an example."""

    #: Of the tensor in one example.
    spec: tf.TensorSpec
    #: What it is in a batch.
    form: BatchForm

    @property
    def fewest_bytes(self) -> int:
        """What it takes of a record at least."""
        ...

    def features(self) -> Features:
        """What is parsed for it: features of fixed length, and ragged ones."""
        ...

    def column(self, parsed: dict[str, Column]) -> Column:
        """Its values for some examples: of fixed features stacked, of ragged ones a list of vectors."""
        ...


class NamedField:
    """A feature as a user gives it. What has no fixed length is parsed as ragged, which tells where a row ends."""

    def __init__(self, name: str, feature: Any) -> None:
        self.name = name
        self._feature = feature
        self.form: BatchForm = _FORMS[type(feature)]
        inner = tf.TensorShape(getattr(feature, "shape", []))
        self.spec = tf.TensorSpec(inner if self.form == "dense" else [None, *inner], feature.dtype)

    @property
    def fewest_bytes(self) -> int:
        has_default = getattr(self._feature, "default_value", None) is not None
        return 0 if has_default else fewest_bytes(self.spec.shape, self.spec.dtype)

    def features(self) -> Features:
        feature = self._feature
        if self.form != "dense":
            value_key = getattr(feature, "value_key", None)
            feature = tf.io.RaggedFeature(feature.dtype, value_key, row_splits_dtype=tf.int64)
        return {self.name: feature}

    def column(self, parsed: dict[str, Column]) -> Column:
        column = parsed[self.name]
        if self.form == "padded":
            return [row.reshape(-1, *self.spec.shape[1:]) for row in column]
        return column


Parser = Callable[[Sequence[bytes]], dict[str, Column]]
"""Of records: by name, vectors of rows, and lists of vectors for ragged features. Raises what is wrong with one."""


def parser_of(features: Features, mean_bytes: float) -> Parser:
    """The faster way to parse such features of records that have so many bytes."""
    is_by_python = mean_bytes > _LONG_RECORD_BYTES and all(
        isinstance(feature, tf.io.FixedLenFeature)
        and feature.default_value is None
        and (feature.dtype == tf.string or tf.TensorShape(feature.shape).num_elements() <= _FEW_VALUES)
        for feature in features.values()
    )
    return _PythonParser(features) if is_by_python else _GraphParser(features)


class _GraphParser:
    """Parses many records by one call of `tf.io.parse_example`, without Python's lock."""

    def __init__(self, features: Features) -> None:
        self._is_ragged = {name: isinstance(feature, tf.io.RaggedFeature) for name, feature in features.items()}

        def parse(records: tf.Tensor) -> list[tf.Tensor]:
            parsed = tf.io.parse_example(records, features)
            return tf.nest.flatten([parsed[name] for name in features], expand_composites=True)

        with tf.device("CPU:0"):
            traced: Any = tf.function(parse, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
            self._parse = traced.get_concrete_function()

    def __call__(self, records: Sequence[bytes]) -> dict[str, Column]:
        with tf.device("CPU:0"):
            arrays = iter([as_array(tensor) for tensor in self._parse(tf.constant(records, tf.string))])
        columns: dict[str, Column] = {}
        for name, is_ragged in self._is_ragged.items():
            column = next(arrays)
            if is_ragged:
                column = [column[begin:end] for begin, end in itertools.pairwise(next(arrays).tolist())]
            columns[name] = column
        return columns


class _PythonParser:
    """Parses long records one by one: of 32 KB in 5 us each, where TensorFlow, which copies more, takes 25."""

    def __init__(self, features: Features) -> None:
        self._wanted = [
            (name, _KINDS[feature.dtype], tf.TensorShape(feature.shape).as_list(), numpy_dtype(feature.dtype))
            for name, feature in features.items()
        ]

    def __call__(self, records: Sequence[bytes]) -> dict[str, Column]:
        columns = {name: np.empty((len(records), *shape), dtype) for name, _, shape, dtype in self._wanted}
        for index, record in enumerate(records):
            features = tf.train.Example.FromString(record).features.feature
            for name, kind, shape, dtype in self._wanted:
                values = getattr(features[name], kind).value
                if len(values) != math.prod(shape):
                    raise ValueError(
                        f"the feature {name!r} has {len(values)} values in its {kind}, and {math.prod(shape)} are "
                        f"needed for the shape {shape}."
                    )
                columns[name][index] = np.array(values, dtype).reshape(shape) if shape else values[0]
        return columns


def fewest_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """What a list of so many values takes of a record at least; 0 where it may have none."""
    return (shape.num_elements() or 0) * _FEWEST_BYTES.get(dtype, 1)


def check_features(features: Any) -> Features:
    """What was given as `features`.

    Raises:
        TypeError: it is no dict of features that `tf.io.parse_example` can parse.
        ValueError: it is empty, or asks for what examples can't be.
    """
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
        if getattr(feature, "partitions", ()):
            raise ValueError(
                f"The feature {name!r} has partitions, and is ragged in several dimensions, which examples can't be one "
                "by one. Leave the partitions out, or read the records with tf.data.TFRecordDataset."
            )
        if isinstance(feature, tf.io.FixedLenSequenceFeature) and feature.default_value not in (None, 0, "", b""):
            raise ValueError(
                f"The feature {name!r} is padded with zeros, and can't be with {feature.default_value!r}. Give a "
                "tf.io.RaggedFeature, and pad in map_fn."
            )
    return dict(features)


def infer_features(records: Iterable[tuple[str, bytes]]) -> Features:
    """The features that some records have in common.

    A feature with the same number of values in all of them has a fixed length, and a single value is a scalar; any
    other is ragged.

    Args:
        records: what an error calls each, and its data; at least one.

    Raises:
        ValueError: a record is no `tf.train.Example`, or a feature has values of two kinds.
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
            features[key] = tf.io.RaggedFeature(_DTYPES[kind])
        else:
            features[key] = tf.io.FixedLenFeature([] if length == 1 else [length], _DTYPES[kind])
    return features


def features_as_code(features: Features) -> str:
    """Features as Python source, to be pasted."""
    lines = []
    for name, feature in features.items():
        shape = f"{list(tf.TensorShape(feature.shape))}, " if hasattr(feature, "shape") else ""
        lines.append(
            f"    {json.dumps(name, ensure_ascii=False)}: "
            f"tf.io.{type(feature).__name__}({shape}tf.{feature.dtype.name}),"
        )
    return "\n".join(["features = {", *lines, "}"])


def is_example(data: bytes) -> bool:
    """Whether some bytes are a serialized `tf.train.Example`."""
    from google.protobuf.message import DecodeError

    try:
        tf.train.Example.FromString(data)
    except DecodeError:
        return False
    return True
