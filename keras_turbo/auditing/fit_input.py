"""What `fit` is given to train on, and how to look at it so that it has not moved on afterwards."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_turbo.data.fast_dataset import FastDataset
from keras_turbo.execution.unread_copy import unread_copy

Kind = Literal["arrays", "FastDataset", "tf.data.Dataset", "PyDataset", "generator"]


class FitInput:
    """The data of a `fit`, with what belongs to it.

    Args:
        x: as `fit` takes it.
        **others: further arguments of `fit` that say what a batch is and how many there are: `y`, `sample_weight`,
            `batch_size`, `class_weight`, `shuffle`, `steps_per_epoch`.

    Attributes:
        kind: what `x` is.
        num_batches: batches in an epoch; None where that is not known, or endless.
        moves_on: why looking at the data moves it on all the same; None where it does not.
    """

    def __init__(self, x: Any, **others: Any) -> None:
        self.x = x
        self._others = {name: value for name, value in others.items() if value is not None}
        self.kind: Kind = _kind_of(x)
        self.moves_on: str | None = None
        self._counts_epochs = isinstance(x, FastDataset)
        self._position = x.position if self._counts_epochs else (0, 0)
        self._looked_at = x
        if self.kind == "tf.data.Dataset" or (self.kind == "FastDataset" and x.is_stream):
            self._looked_at = unread_copy(x) or x
            if self._looked_at is x:
                self.moves_on = (
                    "this dataset can't be copied, so that batches are read from the dataset itself: if it shuffles, "
                    "its epochs from now on have another order"
                )
        elif self.kind == "PyDataset":
            self._looked_at = copy.copy(x)
        self.num_batches = self._count_batches()

    @classmethod
    def of(cls, data: Any, batch_size: int) -> FitInput:
        """The data that `audit` is given.

        Raises:
            TypeError: data of another kind; a generator, which measuring would use up.
            ValueError: arrays of different lengths; data without batches.
        """
        if isinstance(data, (tf.data.Dataset, keras.utils.PyDataset)):
            found = cls(data)
        elif isinstance(data, tuple) and 1 <= len(data) <= 3 and all(_is_array(part) for part in data):
            names = ("x", "y", "sample_weight")
            found = cls(**dict(zip(names, data, strict=False)), batch_size=batch_size)
        elif _is_array(data) and not isinstance(data, (tuple, list)):
            found = cls(data, batch_size=batch_size)
        else:
            hint = ""
            if hasattr(data, "__next__"):
                hint = " A generator would be used up by being measured: `python -m keras_turbo audit SCRIPT` takes it."
            raise TypeError(
                "`data` must be a FastDataset, a tf.data.Dataset of batches, a keras.utils.PyDataset, arrays x or a "
                f"tuple of arrays (x, y) or (x, y, sample_weight). Received: {type(data).__name__}.{hint}"
            )
        if found.kind == "arrays":
            rows = {len(leaf) for part in (found.x, found.y) for leaf in keras.tree.flatten(part) if leaf is not None}
            if len(rows) > 1:
                raise ValueError(f"The arrays in `data` must have equally many examples. Received: {sorted(rows)}.")
        if found.num_batches == 0:
            raise ValueError("`data` has no batches. Expected at least one batch to measure the model with.")
        return found

    @property
    def y(self) -> Any:
        """The targets, where they are given beside `x`."""
        return self._others.get("y")

    @property
    def batch_size(self) -> int:
        """Examples a batch, for arrays."""
        return self._others.get("batch_size") or 32  # the default of fit

    def arguments(self, x: Any = None, **others: Any) -> dict[str, Any]:
        """The arguments of a `fit` that looks at the data.

        Args:
            x: something in place of the data.
            **others: arguments in place of those that there are; None leaves one out.
        """
        merged = {"x": self._looked_at if x is None else x, **self._others, **others}
        return {name: value for name, value in merged.items() if value is not None}

    def with_one_worker(self) -> dict[str, Any]:
        """The same without worker threads and processes of a `PyDataset`, which nothing ends where `fit` raises."""
        if self.kind != "PyDataset":
            return self.arguments()
        alone = copy.copy(self.x)
        alone.workers, alone.use_multiprocessing = 1, False
        return self.arguments(alone)

    def of_dataset(self, change: Any) -> dict[str, Any]:
        """Arguments with the dataset changed by a function; for kinds that are a `tf.data.Dataset`."""
        return self.arguments(change(self._looked_at))

    def put_back(self) -> None:
        """Lets the data be where it was."""
        if self._counts_epochs:
            self.x.resume_at(*self._position)

    def _count_batches(self) -> int | None:
        if "steps_per_epoch" in self._others:
            return self._others["steps_per_epoch"]
        if isinstance(self.x, tf.data.Dataset):
            batches = int(self.x.cardinality())
            return batches if batches >= 0 else None
        if self.kind == "PyDataset":
            return self.x.num_batches
        if self.kind == "arrays":
            leaves = keras.tree.flatten(self.x)
            return math.ceil(len(leaves[0]) / self.batch_size) if leaves else 0
        return None


def held(batches: list[Any], element_spec: Any) -> tf.data.Dataset:
    """A dataset of batches that are there already, with the structure that the data's own dataset declares."""

    def each() -> Iterator[Any]:
        yield from batches

    return tf.data.Dataset.from_generator(each, output_signature=element_spec)


def _kind_of(x: Any) -> Kind:
    if isinstance(x, FastDataset):
        return "FastDataset"
    if isinstance(x, tf.data.Dataset):
        return "tf.data.Dataset"
    if isinstance(x, keras.utils.PyDataset):
        return "PyDataset"
    return "generator" if hasattr(x, "__next__") else "arrays"


def _is_array(part: Any) -> bool:
    leaves = keras.tree.flatten(part)
    return bool(leaves) and all(
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and len(leaf.shape) for leaf in leaves
    )
