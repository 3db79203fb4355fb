"""What users' Python code returns, as arrays side by side in memory, checked against what was agreed upon.

Descriptions are tuples of plain values, since they travel between processes that know this module by two names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

#: `("leaf",)`, `("tuple", (structure, ...))` or `("dict", ((key, structure), ...))`, keys in sorted order.
Structure = tuple
#: Type of numpy ("|O" for strings), and sizes, None where they may differ.
Leaf = tuple[str, tuple[int | None, ...]]
#: How one array lies in memory: type, shape, offset; or ("|O", array), which is sent as it is.
Place = tuple

STRINGS = "|O"

# x, y and sample_weight.
_MOST_PARTS = 3

# TensorFlow uses memory as it lies there if it is aligned so.
_ALIGNMENT_BYTES = 64


class ItemError(ValueError):
    """An item is not what can be trained on, or not what the others are."""


def flatten(item: Any, *, is_batch: bool = False) -> tuple[Structure, list[np.ndarray]]:
    """The structure of an item, and its arrays in the order of `tf.nest.flatten`.

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
    return _structure(item, "item", leaves), leaves


def _structure(part: Any, name: str, leaves: list[np.ndarray]) -> Structure:
    if isinstance(part, dict):
        return "dict", tuple((key, _structure(part[key], f"{name}[{key!r}]", leaves)) for key in sorted(part))
    if isinstance(part, tuple) or (isinstance(part, list) and part and all(_is_arrays(one) for one in part)):
        return "tuple", tuple(_structure(one, f"{name}[{index}]", leaves) for index, one in enumerate(part))
    leaves.append(_array(part, name))
    return ("leaf",)


def _is_arrays(part: Any) -> bool:
    if isinstance(part, (list, tuple)):
        return bool(part) and all(_is_arrays(one) for one in part)
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
    if array.dtype.kind in "SU":
        array = array.astype(object)
    if array.dtype == object:
        strange = next((one for one in array.ravel() if not isinstance(one, (str, bytes))), None)
        if strange is not None:
            raise ItemError(
                f"{name} is an array of Python objects (one of them a {type(strange).__name__}), as rows of different "
                "lengths make. Pad them to one length."
            )
        strings = [one.encode() if isinstance(one, str) else one for one in array.ravel()]
        encoded = np.empty(len(strings), object)
        encoded[:] = strings
        return encoded.reshape(array.shape)
    if array.dtype.kind not in "biufc" and not _is_small_float(array.dtype):
        raise ItemError(f"{name} has the type {array.dtype}, for which there is no tensor. Make numbers of it.")
    return array


def _is_small_float(dtype: np.dtype) -> bool:
    # bfloat16 and 8-bit floats are no types of numpy's own.
    return dtype.name.startswith(("bfloat", "float8"))


def leaf_of(array: np.ndarray, float_dtype: str) -> Leaf:
    """What is agreed upon where this is a typical array."""
    is_float = array.dtype.kind == "f" or _is_small_float(array.dtype)
    return np.dtype(float_dtype if is_float else array.dtype).str, array.shape


def check(structure: Structure, leaves: list[np.ndarray], wanted: tuple[Structure, Sequence[Leaf], bool]) -> None:
    """Checks an item against what was agreed upon: structure, types and shapes, and whether items are batches.

    Raises:
        ItemError: with what was expected and what came.
    """
    wanted_structure, wanted_leaves, are_batches = wanted
    if structure != wanted_structure:
        raise ItemError(f"its structure is {described(structure)}, where the first had {described(wanted_structure)}.")
    if are_batches and any(leaf.ndim == 0 for leaf in leaves):
        raise ItemError(
            "a batch must be made of arrays with one row for each example, and one of its arrays is a scalar."
        )
    rows = {len(leaf) for leaf in leaves} if are_batches else set()
    if len(rows) > 1:
        raise ItemError(f"its arrays have unequal numbers of rows: {[leaf.shape for leaf in leaves]}.")
    for number, (leaf, (dtype, shape)) in enumerate(zip(leaves, wanted_leaves, strict=True)):
        where = f"array {number + 1} of {len(leaves)}" if len(leaves) > 1 else "the array"
        if not _can_become(leaf.dtype, np.dtype(dtype)):
            raise ItemError(f"{where} has the type {leaf.dtype}, where the first had {np.dtype(dtype)}.")
        fits = leaf.ndim == len(shape) and all(
            known in (None, size) for known, size in zip(shape, leaf.shape, strict=True)
        )
        if not fits:
            expected = tuple("any" if size is None else size for size in shape)
            raise ItemError(
                f"{where} has the shape {leaf.shape}, where ({', '.join(map(str, expected))}) was expected from the "
                "items that were looked at before. Pad to one shape, or let the first two items show what varies "
                "(`bucket_by_length` then puts sequences of unequal lengths together)."
            )


def _can_become(dtype: np.dtype, wanted: np.dtype) -> bool:
    if wanted.kind == "f":
        return dtype.kind == "f" or _is_small_float(dtype)
    return np.can_cast(dtype, wanted, "safe")


def described(structure: Structure) -> str:
    """A structure as an error writes it."""
    kind, *inner = structure
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {described(part)}" for key, part in inner[0]) + "}"
    if kind == "tuple":
        return "(" + ", ".join(described(part) for part in inner[0]) + ("," if len(inner[0]) == 1 else "") + ")"
    return "array"


def pack(
    items: Sequence[list[np.ndarray]], wanted: Sequence[Leaf], stacked: bool, room: Callable[[int], Any]
) -> list[Place]:
    """Copies items into memory, once, as the types that were agreed upon.

    Args:
        items: the arrays of each item, checked.
        wanted: the leaves that were agreed upon.
        stacked: whether the arrays of all items are put together along a new first axis; else there is one item.
        room: gives writable memory of a number of bytes.

    Returns:
        Where each array is.
    """
    places: list[Place] = []
    offset = 0
    for index, (dtype, _) in enumerate(wanted):
        column = [item[index] for item in items]
        shape = (len(items), *column[0].shape) if stacked else column[0].shape
        if dtype == STRINGS:
            # Not by assigning the list: scalars would stay arrays in the array.
            places.append((STRINGS, np.stack(column) if stacked else column[0]))
            continue
        places.append((dtype, shape, offset))
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        offset += -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    memory = room(max(offset, 1))
    for index, array in enumerate(unpack(places, memory)):
        if wanted[index][0] == STRINGS:
            continue
        if stacked:
            for row, item in zip(array, items, strict=True) if array.ndim > 1 else ():
                np.copyto(row, item[index], casting="unsafe")
            if array.ndim == 1:
                array[:] = [item[index] for item in items]
        else:
            np.copyto(array, items[0][index], casting="unsafe")  # checked before: only floats change size
    return places


def unpack(places: Sequence[Place], memory: Any) -> Iterator[np.ndarray]:
    """The arrays of `pack`, over the same memory."""
    for place in places:
        if place[0] == STRINGS:
            yield place[1]
        else:
            dtype, shape, offset = place
            yield np.ndarray(shape, dtype, memory, offset)
