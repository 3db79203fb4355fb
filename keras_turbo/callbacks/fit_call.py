"""What `fit` was called with, and where it begins: what Keras does not tell a callback."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.execution.stacks import StackingDataset


@dataclasses.dataclass(frozen=True)
class FitCall:
    """The arguments of the `fit` that runs.

    Args:
        x: its data.
        validation_data: its validation data, also those that `validation_split` has split off; None without.
        epochs: the epoch before which it ends.
        steps_per_epoch: as given; None: an epoch is the data once.
        counter: Keras' own count of batches in the data, `epoch_iterator`.
        arrays: y and sample weights as given beside x.
        shuffle: as given; Keras heeds it for arrays and finite `PyDataset`s.
    """

    x: Any
    validation_data: Any
    epochs: int
    steps_per_epoch: int | None
    counter: Any
    arrays: tuple[Any, Any] = (None, None)
    shuffle: bool = False

    @property
    def batch_spec(self) -> Any:
        """Shapes and types of a batch; None where they can't be told without reading one."""
        if isinstance(self.x, tf.data.Dataset):
            return self.x.element_spec
        given = [self.x, *(one for one in self.arrays if one is not None)]
        leaves = tf.nest.flatten(given)
        if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
            # Of generators and the like Keras makes a dataset; it has looked at their first batch for that.
            made = getattr(self.counter, "_distributed_dataset", None)
            return made.element_spec if isinstance(made, tf.data.Dataset) else None
        parts = tuple(tf.nest.map_structure(_row_spec, one) for one in given)
        return parts if len(given) > 1 else parts[0]

    @property
    def draws_order(self) -> bool:
        """Whether each epoch's order is drawn by Keras or tf.data, which can't be told where to go on."""
        if isinstance(self.x, tf.data.Dataset):
            return _reshuffles(self.training_dataset)
        if isinstance(self.x, keras.utils.PyDataset):
            return self.shuffle and self.x.num_batches is not None
        # Keras gives others than arrays in the order in which they come.
        return self.shuffle and all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(self.x))

    @property
    def training_dataset(self) -> Any:
        """The data as they were given, where `tune()` has put something around them."""
        return self.x.dataset if isinstance(self.x, StackingDataset) else self.x

    @property
    def validation_dataset(self) -> Any:
        """The same for validation."""
        data = self.validation_data
        return data.dataset if isinstance(data, StackingDataset) else data


def fit_call_of(model: keras.Model) -> FitCall | None:
    """The call of `fit` that is running just now, on this thread.

    Keras tells a callback its model and the number of steps and epochs. Data and validation data are arguments of
    Keras' `fit`, by names that it documents, so they are read there.

    Args:
        model: the model on which it was called.

    Returns:
        The call, or None where something else than Keras' `fit` calls the callbacks.
    """
    for frame in _callers():
        names = frame.f_locals
        if frame.f_code.co_name != "fit" or names.get("self") is not model or "validation_data" not in names:
            continue
        if not frame.f_globals.get("__name__", "").startswith("keras."):
            continue  # a subclass that calls it
        return FitCall(
            x=names.get("x"),
            validation_data=names["validation_data"],
            epochs=names.get("epochs", 1),
            steps_per_epoch=names.get("steps_per_epoch"),
            counter=names.get("epoch_iterator"),
            arrays=(names.get("y"), names.get("sample_weight")),
            shuffle=bool(names.get("shuffle", False)),
        )
    return None


def _row_spec(array: Any) -> tf.TensorSpec:
    dtype = keras.backend.standardize_dtype(array.dtype)
    # As Keras gives it to the model.
    return tf.TensorSpec([None, *array.shape[1:]], keras.config.floatx() if dtype.startswith("float") else dtype)


def _reshuffles(dataset: tf.data.Dataset) -> bool:
    # What tf.data's shuffle() keeps of its arguments, and what each class implements to tell its inputs.
    return bool(getattr(dataset, "_reshuffle_each_iteration", False)) or any(map(_reshuffles, dataset._inputs()))


def _callers() -> Iterator[Any]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def begin_at_epoch(model: keras.Model, epoch: int | None) -> int | None:
    """Makes the `fit` that is beginning start at an epoch.

    `model._initial_epoch` is the only way in which a callback can do that; Keras' own BackupAndRestore uses it. It is
    read once, after `on_train_begin`, and holds for every later `fit` too if nobody puts it back.

    Args:
        model: the model that `fit` runs.
        epoch: where to start; None: where `fit` was told to.

    Returns:
        What was set before.

    Raises:
        RuntimeError: this version of Keras has no such attribute.
    """
    if not hasattr(model, "_initial_epoch"):
        raise RuntimeError(
            f"Keras {keras.__version__} does not keep the first epoch of fit where 3.12 to 3.15 do, so that training "
            f"can't be resumed at epoch {epoch}. Call fit(initial_epoch={epoch}) with restore=False, after "
            "keras_turbo.checkpoint.restore(model, directory)."
        )
    before = model._initial_epoch
    model._initial_epoch = epoch
    return before


def count_batches_before(call: FitCall, batches: int) -> None:
    """Tells Keras that the iterator of a resumed epoch has given batches in epochs before.

    With `steps_per_epoch`, one iterator over finite data serves several epochs, and Keras makes a new one when it has
    counted as many batches as there are. It counts in an attribute, which nothing else can set.

    Args:
        call: the `fit` that runs.
        batches: batches that the iterator gave in earlier epochs.

    Raises:
        RuntimeError: this version of Keras counts elsewhere.
    """
    if not batches or call.steps_per_epoch is None:
        return
    if not isinstance(getattr(call.counter, "_steps_seen", None), int):
        raise RuntimeError(
            f"Keras {keras.__version__} does not count batches where 3.12 to 3.15 do, so that an epoch in the middle "
            "of the data can't be resumed. Give data that are repeated for ever, or fit without steps_per_epoch."
        )
    call.counter._steps_seen += batches
