"""`class_weight` that names only some classes, for a dataset as for arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.data.device_prefetch import device_iterator
from keras_turbo.data.engine.node import VariantDataset
from keras_turbo.data.resuming import ResumableDataset


def weights_classes(map_func: Callable) -> bool:
    """Whether a function for `Dataset.map` is the one that Keras makes of `class_weight`."""
    return getattr(map_func, "__name__", "") == "class_weights_map_fn" and map_func.__module__.startswith("keras.")


class WeightedEpochs(VariantDataset):
    """The epochs of a dataset with weights by class, which go onto a GPU and to several workers as the dataset does.

    Args:
        epochs: the dataset.
        weighted: the same with weights.
        weigh: makes the one of the other, or of a part of it.
    """

    def __init__(
        self,
        epochs: ResumableDataset,
        weighted: tf.data.Dataset,
        weigh: Callable[[tf.data.Dataset], tf.data.Dataset],
    ) -> None:
        self._epochs = epochs
        self._weigh = weigh
        super().__init__(tf.data.experimental.to_variant(weighted), weighted.element_spec, [weighted], holds=None)

    def prefetch(self, buffer_size: Any, name: str | None = None) -> tf.data.Dataset:
        """As `tf.data.Dataset.prefetch`, which Keras calls next."""
        weigh = self._weigh
        return WeightedEpochs(
            self._epochs, super().prefetch(buffer_size, name=name), lambda part: weigh(part).prefetch(buffer_size)
        )

    def __iter__(self) -> tf.data.Iterator:
        return device_iterator(self, super().__iter__)

    @property
    def source_of_epochs(self) -> ResumableDataset:
        """The dataset whose epochs these are."""
        return self._epochs

    def part_of_batches(self, num_workers: int, worker: int, replicas_per_worker: int = 1) -> tf.data.Dataset:
        """As `FastDataset.part_of_batches`, with weights."""
        return self._weigh(self._epochs.part_of_batches(num_workers, worker, replicas_per_worker))


def with_all_classes(map_func: Callable) -> Callable:
    """What `Dataset.map` is given, with the function that Keras makes of `class_weight` completed.

    Keras (3.12 to 3.15, its issue 23071) gathers each example's weight from a tensor that ends with the highest class
    named. With arrays, classes above weigh 1; in a dataset they are an error. This is the one place where that private
    function is looked at. Where it has another form, it is left as it is, and so is every other function.

    Args:
        map_func: any function for `Dataset.map`.
    """
    if not weights_classes(map_func):
        return map_func
    weights = inspect.getclosurevars(map_func).nonlocals.get("class_weight_tensor")
    if weights is None:
        return map_func

    def weighted(*data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None or not isinstance(y, tf.Tensor) or y.shape.rank is None:
            return map_func(*data)  # which refuses what can't be weighted
        if y.shape.rank < 2:
            classes = _rounded(y)
        elif y.shape[-1] == 1:
            classes = _rounded(tf.squeeze(y, axis=-1))
        elif y.shape[-1] is not None:
            classes = tf.argmax(y, axis=-1, output_type=tf.int32)
        else:
            return map_func(*data)
        others = tf.ones([1], weights.dtype)
        return x, y, tf.gather(tf.concat([weights, others], 0), tf.minimum(classes, tf.size(weights)))

    return weighted


def _rounded(numbers: tf.Tensor) -> tf.Tensor:
    # tf.round takes neither booleans nor unsigned integers.
    return tf.cast(tf.round(numbers) if numbers.dtype.is_floating else numbers, tf.int32)
