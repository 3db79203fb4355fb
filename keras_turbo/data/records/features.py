"""What `tf.io.parse_example` needs to know of records: as a user gives it, or inferred from the first of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

Features = dict[str, Any]
"""Name -> `tf.io.FixedLenFeature`, `VarLenFeature`, `RaggedFeature` or `FixedLenSequenceFeature`."""

FEATURE_KINDS = (
    tf.io.FixedLenFeature,
    tf.io.VarLenFeature,
    tf.io.RaggedFeature,
    tf.io.FixedLenSequenceFeature,
)

_DTYPES = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}

_REMEDY = (
    "Give `features`, or read such records with tf.data.TFRecordDataset and a function of your own, and give that "
    "dataset to FastDataset."
)


def check_features(features: Any) -> Features:
    """What was given as `features`.

    Raises:
        TypeError: it is no dict of features that `tf.io.parse_example` can parse.
        ValueError: it is empty.
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
        if not isinstance(feature, FEATURE_KINDS):
            kinds = ", ".join(f"tf.io.{kind.__name__}" for kind in FEATURE_KINDS)
            raise TypeError(f"`features[{name!r}]` must be one of {kinds}. Received: {feature!r}.")
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
    seen: dict[str, _Seen] = {}
    number = 0
    for name, data in records:
        number += 1
        for key, feature in _features_of(name, data).items():
            kind = feature.WhichOneof("kind")
            values = getattr(feature, kind).value if kind else ()
            one = seen.setdefault(key, _Seen())
            if kind and one.kind and kind != one.kind:
                raise ValueError(
                    f"{name}: the feature {key!r} is a {kind} here and a {one.kind} in records before, so that it "
                    f"can't be inferred what it is. {_REMEDY}"
                )
            one.kind = one.kind or kind
            one.lengths.add(len(values))
            one.number += 1
    features: Features = {}
    for key in sorted(seen):
        one = seen[key]
        if one.kind is None:  # without a value in any of them
            continue
        dtype = _DTYPES[one.kind]
        if one.number < number or len(one.lengths) > 1 or 0 in one.lengths:
            features[key] = tf.io.RaggedFeature(dtype)
        else:
            (length,) = one.lengths
            features[key] = tf.io.FixedLenFeature([] if length == 1 else [length], dtype)
    if not features:
        raise ValueError(f"The first {number} records hold no values, so that no features can be inferred. {_REMEDY}")
    return features


def features_as_code(features: Features) -> str:
    """Features as Python source, to be pasted."""
    lines = [f"    {json.dumps(name, ensure_ascii=False)}: {_as_code(feature)}," for name, feature in features.items()]
    return "\n".join(["features = {", *lines, "}"])


def is_example(data: bytes) -> bool:
    """Whether some bytes are a serialized `tf.train.Example`."""
    from google.protobuf.message import DecodeError

    try:
        tf.train.Example.FromString(data)
    except DecodeError:
        return False
    return True


def has_rows_of_unequal_length(features: Features) -> bool:
    """Whether a batch of these holds ragged or sparse tensors, or such as are padded to the longest in it."""
    kinds = (tf.io.RaggedFeature, tf.io.VarLenFeature, tf.io.FixedLenSequenceFeature)
    return any(isinstance(feature, kinds) for feature in features.values())


@dataclasses.dataclass
class _Seen:
    """What some records had under one name."""

    kind: str | None = None
    lengths: set[int] = dataclasses.field(default_factory=set)
    number: int = 0


def _features_of(name: str, data: bytes) -> Mapping[str, Any]:
    if not is_example(data):
        raise ValueError(f"{name} is no tf.train.Example, so that no features can be inferred. {_REMEDY}")
    example = tf.train.Example.FromString(data)
    if data and not example.features.feature:
        raise ValueError(f"{name} is no tf.train.Example with features: none can be inferred. {_REMEDY}")
    return example.features.feature


def _as_code(feature: Any) -> str:
    dtype = f"tf.{feature.dtype.name}"
    if isinstance(feature, (tf.io.FixedLenFeature, tf.io.FixedLenSequenceFeature)):
        return f"tf.io.{type(feature).__name__}({_shape_of(feature)}, {dtype})"
    return f"tf.io.{type(feature).__name__}({dtype})"


def _shape_of(feature: Any) -> list[int]:
    shape = feature.shape
    return [shape] if isinstance(shape, int) else list(shape)
