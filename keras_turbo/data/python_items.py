"""What items that Python code makes have in common, found out from the first of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.python_function import PythonFunction
from keras_turbo.data.settings import Settings
from keras_turbo.data.worker_pool.keras_turbo_worker.item_layout import STRINGS, Leaf, Structure, check, leaf_of
from keras_turbo.data.worker_pool.keras_turbo_worker.item_maker import ItemMaker

_LOOKED_AT_WHERE_SOME_FAIL = 8


@dataclasses.dataclass(frozen=True)
class ItemForm:
    """Structure, types and shapes of items.

    Attributes:
        structure: as `item_layout.flatten` tells it.
        leaves: type and shape of each array; None for sizes that differ.
        are_batches: whether the first axis of each array is that of examples.
    """

    structure: Structure
    leaves: tuple[Leaf, ...]
    are_batches: bool

    @property
    def wanted(self) -> tuple:
        """The same in plain values, as `item_layout.check` takes it."""
        return self.structure, self.leaves, self.are_batches

    @property
    def has_fixed_shape(self) -> bool:
        """Whether all items have one shape, and can be stacked."""
        return all(None not in shape for _, shape in self.leaves)

    @property
    def _are_sequences(self) -> bool:
        """Whether what varies is the first axis alone, as that of sequences does."""
        return all(None not in shape[1:] for _, shape in self.leaves)

    def require_batchable(self, name: str, settings: Settings) -> None:
        """Checks that items have one shape if they are batched as they are.

        Args:
            name: what an error calls what makes them.
            settings: of which `batch_size` and the functions that may bring items to one shape count.

        Raises:
            ValueError: they have not.
        """
        is_changed = settings.augment_fn is not None or not isinstance(settings.map_fn, (PythonFunction, type(None)))
        if self.has_fixed_shape or is_changed or settings.batch_size in (None, 1):
            return
        shapes = ", ".join(
            f"({', '.join('any' if size is None else str(size) for size in shape)})" for _, shape in self.leaves
        )
        remedy = "Pad them to one shape, or give batch_size=None."
        if self._are_sequences:
            remedy = (
                "Pad them to one shape; or have sequences filled up to a few lengths, by FastDataset(FastDataset("
                "..., batch_size=None), bucket_by_length=[32, 64, 128]); or give batch_size=None."
            )
        raise ValueError(
            f"{name} gives items of different shapes, which can't be batched: {shapes}. {remedy} Received: "
            f"batch_size={settings.batch_size}."
        )

    def flat_specs(self, *, stacked: bool = False) -> tuple[tf.TensorSpec, ...]:
        """A `tf.TensorSpec` for each array of an item, with an unknown axis in front if several are stacked."""
        front = [None] if stacked else []
        return tuple(tf.TensorSpec([*front, *shape], tensor_type(dtype)) for dtype, shape in self.leaves)

    def packed(self, tensors: Sequence[Any]) -> Any:
        """Graph code: tensors in the structure of an item, as Keras' floats."""
        floatx = keras.config.floatx()
        remaining = iter([tf.cast(one, floatx) if one.dtype.is_floating else one for one in tensors])

        def pack(structure: Structure) -> Any:
            kind, *inner = structure
            if kind == "dict":
                return {key: pack(part) for key, part in inner[0]}
            if kind == "tuple":
                return tuple(pack(part) for part in inner[0])
            return next(remaining)

        return pack(self.structure)

    def example(self) -> Any:
        """Graph code: an item of zeros that has as much of a shape as is known, for tracing what follows."""
        return self.packed([placeholder(shape, tensor_type(dtype)) for dtype, shape in self.leaves])

    def placeholders(self, number: int | None = None) -> list[np.ndarray]:
        """Arrays of zeros that have the form: of one item, or of several that are stacked."""
        front = () if number is None else (number,)
        shapes = [(*front, *(size or 0 for size in shape)) for _, shape in self.leaves]
        return [
            np.full(shape, b"", object) if dtype == STRINGS else np.zeros(shape, dtype)
            for shape, (dtype, _) in zip(shapes, self.leaves, strict=True)
        ]


def placeholder(shape: tuple[int | None, ...], dtype: tf.DType) -> tf.Tensor:
    """Graph code: a tensor of zeros of which no more of the shape is known than is said."""
    zeros = tf.zeros([1 if size is None else size for size in shape], dtype)
    return tf.raw_ops.PlaceholderWithDefault(input=zeros, shape=shape)


def tensor_type(dtype: str) -> tf.DType:
    """The type of tensors that arrays of a numpy type become."""
    return tf.string if dtype == STRINGS else tf.as_dtype(np.dtype(dtype))


def float_dtype() -> str:
    """The type of floats on their way: Keras' own, if numpy knows it."""
    floatx = keras.config.floatx()
    return floatx if floatx != "bfloat16" else "float32"


def positions_to_look_at(number: int | None, *, may_fail: bool) -> list[int]:
    """Positions that tell what items are like: two to compare, and the last, which may be shorter.

    Args:
        number: of all items; None for endlessly many.
        may_fail: whether some may not be there, so that more are wanted.
    """
    first = _LOOKED_AT_WHERE_SOME_FAIL if may_fail else 2
    if number is None:
        return [*range(first)]
    return sorted({*range(min(first, number)), number - 1})


@dataclasses.dataclass(frozen=True)
class Sample:
    """Some items, made in this process.

    Attributes:
        form: what they have in common.
        seconds: what the later ones took each, the first one if there is no other.
        most_rows: the largest first axis of them.
    """

    form: ItemForm
    seconds: float
    most_rows: int


def sample_of(
    maker: ItemMaker, tasks: Sequence[tuple], name: str, *, are_batches: bool, may_fail: bool = False
) -> Sample:
    """Makes some items to see what they are like.

    Args:
        maker: of the user's object.
        tasks: what to make.
        name: what an error calls the object.
        are_batches: whether items are batches.
        may_fail: whether items that can't be made are passed over, as they will be later.

    Raises:
        ValueError: an item can't be made, or is not like the others.
    """
    structure: Structure = ()
    leaves: list[Leaf] = []
    seconds: list[float] = []
    most_rows = 0
    for task in tasks:
        start = time.perf_counter()
        made = maker.run(task)
        if made.items:
            seconds.append(time.perf_counter() - start)
        if made.failure is not None and not may_fail:
            index, _, details = made.failure
            raise ValueError(f"Item {index} of {name} can't be made:\n{details}")
        for item, its_structure in zip(made.items, made.structures, strict=True):
            described = [leaf_of(array, float_dtype()) for array in item]
            if not structure:
                structure, leaves = its_structure, described
            leaves = [
                (dtype, _common(shape, other)) for (dtype, shape), (_, other) in zip(leaves, described, strict=False)
            ]
            wanted = (structure, leaves, are_batches)
            try:
                check(its_structure, item, wanted)
            except ValueError as error:
                raise ValueError(f"An item of {name} is not like the first: {error}") from None
            most_rows = max(most_rows, *(len(array) for array in item if array.ndim), 0)
    if not structure:
        tried = f" at any of the {len(tasks)} positions that were tried" if may_fail else ""
        raise ValueError(f"{name} gave no item{tried}.")
    if are_batches:
        leaves = [(dtype, (None, *shape[1:])) for dtype, shape in leaves]
    later = seconds[1:] or seconds
    return Sample(ItemForm(structure, tuple(leaves), are_batches), sum(later) / len(later), most_rows)


def _common(shape: tuple, other: tuple) -> tuple:
    """Sizes of two shapes where they agree, else None; the first where they have other numbers of axes."""
    if len(shape) != len(other):
        return shape
    return tuple(a if a == b else None for a, b in zip(shape, other, strict=True))
