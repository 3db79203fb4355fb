"""A `tf.data.Dataset` out of what TensorFlow's own operations make, which holds what they need."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class VariantDataset(tf.data.Dataset):
    """A dataset around a variant tensor.

    `tf.data.experimental.from_variant` does nearly the same, but knows neither what the dataset was made of, of which
    it has its options, nor what must not be collected while it is iterated.

    Args:
        variant: the tensor that stands for the dataset.
        element_spec: structure of `tf.TensorSpec`s of an element; may know less of shapes than the tensor does.
        inputs: the datasets that it was made of.
        holds: further objects that live as long as the dataset, and so as its iterators.
    """

    def __init__(self, variant: tf.Tensor, element_spec: Any, inputs: list[tf.data.Dataset], holds: Any) -> None:
        self._spec = element_spec
        self._made_of = inputs
        self._holds = holds
        # What pyright takes for the base class is a front of it.
        super().__init__(variant)  # pyright: ignore[reportCallIssue]

    @property
    def element_spec(self) -> Any:
        """The structure of `tf.TensorSpec`s of an element."""
        return self._spec

    def _inputs(self) -> list[tf.data.Dataset]:
        return self._made_of
