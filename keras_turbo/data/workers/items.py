"""What users' Python code returns: arrays in a structure, checked against what was agreed upon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

#: What stands for an array in the structure of an item, which is made of dicts and tuples.
ARRAY = "array"

# x, y and sample_weight.
_MOST_PARTS = 3


class ItemError(ValueError):
    """An item is not what can be trained on, or not what was agreed upon."""


class Form(NamedTuple):
    """What items have in common, in plain values, as it travels to processes that know this module by another name.

    Attributes:
        structure: dicts with sorted keys and tuples, of `ARRAY`s.
        leaves: type and shape of each array in the order of `tf.nest`; type object for strings, None for sizes that
            differ.
        are_batches: whether the first axis of each array is that of examples.
        is_declared: whether the user has said so; else it was found out from some items.
    """

    structure: Any
    leaves: Sequence[tuple[np.dtype, tuple[int | None, ...]]]
    are_batches: bool
    is_declared: bool

    @property
    def is_fixed(self) -> bool:
        """Whether all items have one shape, and can be stacked."""
        return all(None not in shape for _, shape in self.leaves)

    def check(self, structure: Any, leaves: Sequence[np.ndarray]) -> None:
        """Checks an item: structure, types and shapes.

        Raises:
            ItemError: with what was expected and what came.
        """
        known_from = "`element_spec` says" if self.is_declared else "the first had"
        if structure != self.structure:
            raise ItemError(f"its structure is {written(structure)}, where {known_from} {written(self.structure)}.")
        if self.are_batches and not all(leaf.ndim for leaf in leaves):
            raise ItemError("a batch must be made of arrays with a row for each example, and one of its is a scalar.")
        if self.are_batches and len({len(leaf) for leaf in leaves}) > 1:
            raise ItemError(f"its arrays have unequal numbers of rows: {[leaf.shape for leaf in leaves]}.")
        for number, (leaf, (dtype, shape)) in enumerate(zip(leaves, self.leaves, strict=True)):
            where = f"array {number + 1} of {len(leaves)}" if len(leaves) > 1 else "the array"
            if not self._can_become(leaf, dtype):
                raise ItemError(f"{where} has the type {leaf.dtype}, where {known_from} {dtype}.")
            if leaf.ndim == len(shape) and all(a in (None, b) for a, b in zip(shape, leaf.shape, strict=True)):
                continue
            looked_at = (
                " from the items that were looked at before. Pad to one shape, or say what varies by `element_spec`, "
                "such as tf.TensorSpec([None, 3], tf.float32)"
            )
            raise ItemError(
                f"{where} has the shape {leaf.shape}, where {written(shape)} was expected"
                f"{'' if self.is_declared else looked_at}."
            )

    def columns(self, items: Sequence[Sequence[np.ndarray]]) -> list[Any]:
        """For each array of an item those of all, as this form has them: stacked, or a list where shapes may differ."""
        columns = [(dtype, [item[index] for item in items]) for index, (dtype, _) in enumerate(self.leaves)]
        if self.is_fixed and items:
            return [np.stack(column).astype(dtype, copy=False) for dtype, column in columns]
        return [[np.asarray(array, dtype, order="C") for array in column] for dtype, column in columns]

    def _can_become(self, leaf: np.ndarray, dtype: np.dtype) -> bool:
        if _is_float(dtype):
            return _is_float(leaf.dtype) or (self.is_declared and leaf.dtype.kind in "biu")
        if self.is_declared and leaf.dtype.kind in "iu" and dtype.kind in "iu":
            return bool((leaf.astype(dtype) == leaf).all())
        return np.can_cast(leaf.dtype, dtype, "safe")


def _is_float(dtype: np.dtype) -> bool:
    # bfloat16 and 8-bit floats are no types of NumPy's own.
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float8"))


def leaf_of(array: np.ndarray, floatx: np.dtype) -> tuple[np.dtype, tuple[int | None, ...]]:
    """Type and shape that are agreed upon where this is a typical array, floats as those of Keras."""
    return floatx if _is_float(array.dtype) else array.dtype, array.shape


def written(structure: Any) -> str:
    """A structure or a shape as an error writes it."""
    return repr(structure).replace(repr(ARRAY), ARRAY).replace("None", "any")


def flatten(item: Any, *, is_batch: bool = False) -> tuple[Any, list[np.ndarray]]:
    """The structure of an item, and its arrays in the order of `tf.nest`.

    Lists of arrays are tuples, and other lists arrays; a None behind x and y is left out.

    Args:
        item: what the user's code gave.
        is_batch: whether a list of up to three things is (x, y, sample_weight), as Keras takes what a PyDataset gives.

    Raises:
        ItemError: something in it is no array of numbers or strings.
    """
    if isinstance(item, list) and is_batch:
        item = tuple(item) if len(item) <= _MOST_PARTS else np.asarray(item)
    while isinstance(item, tuple) and len(item) > 1 and item[-1] is None:
        item = item[:-1]
    leaves: list[np.ndarray] = []

    def structure(part: Any, name: str) -> Any:
        if isinstance(part, dict):
            return {key: structure(part[key], f"{name}[{key!r}]") for key in sorted(part)}
        if isinstance(part, tuple) or (isinstance(part, list) and part and all(map(_is_arrays, part))):
            return tuple(structure(one, f"{name}[{index}]") for index, one in enumerate(part))
        leaves.append(_array(part, name))
        return ARRAY

    return structure(item, "item"), leaves


def packed(structure: Any, values: Iterator[Any]) -> Any:
    """Values in a structure, as `tf.nest.pack_sequence_as`."""
    if isinstance(structure, dict):
        return {key: packed(part, values) for key, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(packed(part, values) for part in structure)
    return next(values)


def _is_arrays(part: Any) -> bool:
    if isinstance(part, (list, tuple)):
        return bool(part) and all(map(_is_arrays, part))
    return isinstance(part, dict) or (hasattr(part, "shape") and len(part.shape) > 0)


def _array(leaf: Any, name: str) -> np.ndarray:
    if leaf is None:
        raise ItemError(f"{name} is None, where an array was expected.")
    if any(hasattr(leaf, mark) for mark in ("toarray", "ragged_rank", "dense_shape")):
        raise ItemError(
            f"{name} is a {type(leaf).__name__}; only dense arrays can be batched. Make it dense, or pad it."
        )
    try:
        array = np.asarray(leaf)
    except ValueError as error:
        raise ItemError(f"{name} has rows of different shapes ({error}). Pad them to one length.") from error
    if array.dtype.kind in "SUO":
        strings = np.empty(array.shape, object)
        for index, one in np.ndenumerate(array):
            if not isinstance(one, (str, bytes)):
                raise ItemError(
                    f"{name} is an array of Python objects (one of them a {type(one).__name__}), as rows of different "
                    "lengths make. Pad them to one length."
                )
            strings[index] = one.encode() if isinstance(one, str) else bytes(one)
        return strings
    if array.dtype.kind not in "biufc" and not _is_float(array.dtype):
        raise ItemError(f"{name} has the type {array.dtype}, for which there is no tensor. Make numbers of it.")
    return array
