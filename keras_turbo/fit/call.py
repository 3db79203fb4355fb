"""What `fit` was called with: its data, its epochs, and what can be told of its batches before one is read."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_turbo.fit import keras_internals


@dataclasses.dataclass(frozen=True)
class FitCall:
    """The arguments of a `fit` that runs.

    Args:
        x: its data, as given; where `tune()` has put something around a dataset, that dataset.
        arrays: y and sample weights as given beside x.
        validation_data: likewise; also those that `validation_split` has split off. None without.
        epochs: the epoch before which it ends.
        steps_per_epoch: as given; None: an epoch is the data once.
        is_silent: whether it prints nothing.
        shuffle: as given. Keras heeds it for arrays and finite `PyDataset`s.
        epoch_iterator: Keras' own, which counts batches.
    """

    x: Any = None
    arrays: tuple[Any, Any] = (None, None)
    validation_data: Any = None
    epochs: int = 1
    steps_per_epoch: int | None = None
    is_silent: bool = False
    shuffle: bool = False
    epoch_iterator: Any = None

    @classmethod
    def of_frame(cls, names: dict[str, Any]) -> FitCall:
        """The call whose local names these are."""
        return cls(
            x=_as_given(names.get("x")),
            arrays=(names.get("y"), names.get("sample_weight")),
            validation_data=_as_given(names.get("validation_data")),
            epochs=names.get("epochs", 1),
            steps_per_epoch=names.get("steps_per_epoch"),
            is_silent=names.get("verbose") == 0,
            shuffle=bool(names.get("shuffle", False)),
            epoch_iterator=names.get("epoch_iterator"),
        )

    @property
    def steps(self) -> int | None:
        """Batches in an epoch, as Keras counts them; None where it does not know."""
        return getattr(self.epoch_iterator, "num_batches", None)

    @property
    def batches_of_iterator(self) -> int | None:
        """Batches that one iterator over the data gives; None where that can't be known, or is without end."""
        import tensorflow as tf

        if isinstance(self.x, tf.data.Dataset):
            number = int(self.x.cardinality())
            return number if number >= 0 else None
        return self.steps if self.steps_per_epoch is None else None

    @property
    def batch_spec(self) -> Any:
        """Structure of `tf.TensorSpec`s of a batch; None where it can't be told without reading one."""
        import tensorflow as tf

        if isinstance(self.x, tf.data.Dataset):
            return self.x.element_spec
        given = [self.x, *(one for one in self.arrays if one is not None)]
        leaves = tf.nest.flatten(given)
        if leaves and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
            parts = tuple(tf.nest.map_structure(_row_spec, one) for one in given)
            return parts if len(parts) > 1 else next(iter(parts))
        # Of generators and the like Keras makes a dataset; it has looked at their first batch for that.
        made = keras_internals.dataset_of(self.epoch_iterator)
        return made.element_spec if isinstance(made, tf.data.Dataset) else None

    @property
    def draws_order(self) -> bool:
        """Whether each epoch's order is drawn by Keras or tf.data, which can't be told where to go on."""
        import tensorflow as tf

        if isinstance(self.x, tf.data.Dataset):
            return _reshuffles(self.x)
        if isinstance(self.x, keras.utils.PyDataset):
            return self.shuffle and self.x.num_batches is not None
        # Keras gives others than arrays in the order in which they come.
        return self.shuffle and all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(self.x))


def _as_given(data: Any) -> Any:
    # What `tune()` puts around a dataset has the dataset in this attribute.
    return getattr(data, "unstacked", data)


def _row_spec(array: Any) -> Any:
    import tensorflow as tf

    dtype = keras.backend.standardize_dtype(array.dtype)
    # As Keras gives it to the model.
    return tf.TensorSpec([None, *array.shape[1:]], keras.config.floatx() if dtype.startswith("float") else dtype)


def _reshuffles(dataset: Any) -> bool:
    # What tf.data's shuffle() keeps of its arguments, and what each class implements to tell its inputs.
    return bool(getattr(dataset, "_reshuffle_each_iteration", False)) or any(map(_reshuffles, dataset._inputs()))
