"""How the parsed features of a record become an element: `x`, `(x, y)` or `(x, y, sample_weight)`."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_turbo.data.image_options import ImageOptions
from keras_turbo.data.images import decode_image
from keras_turbo.data.records.features import Features, has_rows_of_unequal_length
from keras_turbo.data.records.manifest import Leaf, Manifest, leaves_of, with_leaves


class Layout(abc.ABC):
    """What is parsed of records, and what is made of it.

    Attributes:
        features: for `tf.io.parse_example`.
        label: name of the feature that is `y`, or None.
        makes_batches: whether elements can be made many at a time.
    """

    features: Features
    label: str | None = None
    makes_batches: bool = True

    @property
    def is_ragged(self) -> bool:
        """Whether a batch is more than its rows: ragged, sparse, or padded to the longest of them."""
        return has_rows_of_unequal_length(self.features)

    def example(self, record: tf.Tensor, seed: tf.Tensor) -> Any:
        """Graph code: the element of one record (string scalar); what is ragged in a batch is a vector in it."""
        parsed = tf.io.parse_single_example(record, self.features)
        return self._element({name: _as_dense(tensor) for name, tensor in parsed.items()}, seed)

    def batch(self, records: tf.Tensor) -> Any:
        """Graph code: the elements of some records (string vector) along a first axis."""
        return self._element(tf.io.parse_example(records, self.features), None)

    def labels(self, records: tf.Tensor) -> Any:
        """The labels of some records, where there is a `label`."""
        wanted = {name: feature for name, feature in self.features.items() if name == self.label}
        (labels,) = tf.io.parse_example(records, wanted).values()
        return labels

    @abc.abstractmethod
    def _element(self, parsed: dict[str, Any], seed: tf.Tensor | None) -> Any:
        """Makes an element of parsed features; without a seed, many of them."""


class NamedLayout(Layout):
    """Features by their names, as a user gives them.

    Args:
        features: what to parse.
        x: a name, whose feature is `x` itself; or names, for a dict; None for a dict of all that is nothing else.
        label: name of the feature that is `y`.
        sample_weight: name of the feature that is the weight; needs `label`.

    Raises:
        ValueError: a name that is not in `features`, or that has two parts.
    """

    def __init__(
        self, features: Features, x: str | Sequence[str] | None, label: str | None, sample_weight: str | None
    ) -> None:
        targets = [name for name in (label, sample_weight) if name is not None]
        if sample_weight is not None and label is None:
            raise ValueError("`sample_weight` was given without `label`: weights belong to targets. Give `label` too.")
        names = [x] if isinstance(x, str) else [name for name in features if name not in targets] if x is None else x
        wanted = [*names, *targets]
        unknown = [name for name in wanted if name not in features]
        if unknown:
            raise ValueError(f"There is no feature {', '.join(map(repr, unknown))}. There are: {sorted(features)}.")
        twice = sorted({name for name in wanted if wanted.count(name) > 1})
        if twice:
            raise ValueError(f"A feature can be `x`, `label` or `sample_weight`, and only one of them. Twice: {twice}.")
        if not names:
            raise ValueError(f"No feature is left for `x` beside {targets}.")
        self.features = {name: features[name] for name in wanted}
        self.label = label
        self._x = x if isinstance(x, str) else list(names)
        self._targets = targets

    def _element(self, parsed: dict[str, Any], seed: tf.Tensor | None) -> Any:
        x = parsed[self._x] if isinstance(self._x, str) else {name: parsed[name] for name in self._x}
        return (x, *(parsed[name] for name in self._targets)) if self._targets else x


class ManifestLayout(Layout):
    """Elements as a manifest describes them.

    Args:
        manifest: of the files.
        image_options: what pixels are wanted of images that are kept as files.
    """

    def __init__(self, manifest: Manifest, image_options: ImageOptions | None) -> None:
        self.structure = manifest.element
        leaves = leaves_of(manifest.element)
        self.features = {}
        for leaf in leaves:
            self.features.update(leaf.features())
        self.makes_batches = all(leaf.makes_batches for leaf in leaves)
        self._image_options = image_options
        self.label = manifest.label

    def labels(self, records: tf.Tensor) -> Any:
        (leaf,) = (leaf for leaf in leaves_of(self.structure) if leaf.feature == self.label)
        return leaf.decoded(tf.io.parse_example(records, leaf.features()), is_batch=True)

    @property
    def is_random(self) -> bool:
        """Whether images are cropped at random."""
        return self._image_options is not None and self._image_options.random_resized_crop is not None

    @property
    def has_images(self) -> bool:
        """Whether images are kept as files, and are to be decoded."""
        return any(leaf.stored == "image" for leaf in leaves_of(self.structure))

    def _element(self, parsed: dict[str, Any], seed: tf.Tensor | None) -> Any:
        def decoded(leaf: Leaf) -> Any:
            if leaf.stored == "image":
                return decode_image(parsed[leaf.feature], self._image_options or ImageOptions(), seed)
            return leaf.decoded(parsed, is_batch=seed is None)

        return with_leaves(self.structure, decoded)


def _as_dense(tensor: Any) -> tf.Tensor:
    if isinstance(tensor, tf.SparseTensor):
        return tensor.values
    if isinstance(tensor, tf.RaggedTensor):
        raise ValueError(
            "A RaggedFeature with partitions gives tensors that are ragged in several dimensions, which examples can't "
            "hold one by one. Leave out map_fn and augment_fn, and give a batch_size, to have them in batches."
        )
    return tensor
