"""Arrays in memory, and `numpy.memmap`s on disk, as examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.engine.store import ExampleStore
from keras_turbo.data.sources.source import Identity, Source

_HASH_CHUNK_BYTES = 1 << 24

_REMEDY = "Pad ragged rows, give bucket_by_length=[32, 64, 128] for sequences of unequal lengths, or a tf.data.Dataset."


class ArraySource(Source):
    """One example for each row of `x`, `y` and `sample_weight`.

    Args:
        x: array, or dict, tuple or list of arrays (nested as wanted), each of shape `(num_examples, ...)`: numpy,
            TensorFlow, JAX or torch arrays, pandas frames, lists of numbers or strings. Floats become Keras' `floatx`,
            as `fit(x, y)` makes them. NumPy's arrays are read where they are; a `numpy.memmap` stays on disk.
        y: the same for targets, or None.
        sample_weight: the same for weights, or None; needs `y`.
        memory_maps_stay_on_disk: whether a `numpy.memmap` is left where it is. Default True.

    Raises:
        ValueError: no rows, or arrays of unequal lengths.
        TypeError: something that is no array of numbers or strings.
    """

    loads_together = True
    loading_is_called = "gather"

    def __init__(
        self, x: Any, y: Any = None, sample_weight: Any = None, *, memory_maps_stay_on_disk: bool = True
    ) -> None:
        self._structure, self._arrays = structured_arrays(
            x, y, sample_weight, memory_maps_stay_on_disk=memory_maps_stay_on_disk
        )
        self._has_y = y is not None
        self.elements = Elements(tf.nest.pack_sequence_as(self._structure, [_row_spec(a) for a in self._arrays]))
        # Text as what TensorFlow makes of it; the labels that the user asks for stay as they are.
        rows = [array.astype(object) if array.dtype.kind in "US" else array for array in self._arrays]
        self._store = ExampleStore(rows, np.ones(len(self._arrays[0]), np.bool_))

    def __len__(self) -> int:
        return len(self._arrays[0])

    def as_store(self) -> ExampleStore:
        return self._store

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column], dict[int, Exception]]:
        out = [np.empty((len(positions), *shape), dtype) for shape, dtype in self.elements.arrays]
        return self._store.gather(positions, out), {}

    def name(self, position: int) -> str:
        return f"the example at index {position}"

    def labels_at(self, positions: np.ndarray) -> Any:
        if not self._has_y:
            return None
        return tf.nest.map_structure(
            lambda array: array[positions], tf.nest.pack_sequence_as(self._structure, self._arrays)[1]
        )

    def identity(self) -> Identity:
        # The data is part of the recipe: other arrays are other examples, not a newer state of these.
        return Identity(recipe={"kind": "arrays", "data": digest_of(self._arrays)}, content=None)


def digest_of(arrays: Sequence[np.ndarray]) -> str:
    """A hexadecimal digest of what is in some arrays."""
    hasher = hashlib.blake2b(digest_size=16)
    for array in arrays:
        hasher.update(f"{array.shape}{array.dtype}".encode())
        if array.dtype == object:  # strings: TensorFlow's are bytes objects
            for item in array.ravel():
                encoded = item if isinstance(item, bytes) else str(item).encode()
                hasher.update(len(encoded).to_bytes(8, "little") + encoded)
            continue
        rows = max(1, _HASH_CHUNK_BYTES // max(1, array.nbytes // max(1, len(array))))
        for start in range(0, len(array), rows):
            hasher.update(np.ascontiguousarray(array[start : start + rows]).tobytes())
    return hasher.hexdigest()


def _row_spec(array: np.ndarray) -> tf.TensorSpec:
    if array.dtype.kind in "OUS":
        return tf.TensorSpec(array.shape[1:], tf.string)
    # Memory maps of other floats stay as they are on disk.
    is_float = np.issubdtype(array.dtype, np.floating)
    return tf.TensorSpec(
        array.shape[1:], keras.config.floatx() if is_float else tf.as_dtype(array.dtype.newbyteorder("="))
    )


def structured_arrays(
    x: Any, y: Any, sample_weight: Any, *, memory_maps_stay_on_disk: bool
) -> tuple[Any, list[np.ndarray]]:
    """The structure of `x`, `y` and `sample_weight` as elements have it, and its arrays; raises as `ArraySource`."""
    if y is None and sample_weight is not None:
        raise ValueError("`sample_weight` was given without `y`: weights belong to targets. Give `y` too.")
    named_parts = {"x": x, "y": y, "sample_weight": sample_weight}
    parts = {name: _as_tuples(part, name) for name, part in named_parts.items() if part is not None}
    lengths = {}
    leaves = []
    for name, part in parts.items():
        for leaf_name, leaf in _named_leaves(part, name):
            array = _as_array(leaf, leaf_name, memory_maps_stay_on_disk)
            lengths[leaf_name] = len(array)
            leaves.append(array)
    if not lengths:
        raise ValueError(f"`x` holds no array. Received: x={x!r}.")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ValueError(f"All arrays must have the same number of examples (rows). Received {listed}.")
    if not next(iter(lengths.values())):
        raise ValueError("The arrays hold no example: their first axis has length 0.")
    # x alone stays x, but a tuple x alone would be taken for (x, y).
    if len(parts) > 1 or isinstance(parts["x"], tuple):
        structure: Any = tuple(parts.values())
    else:
        structure = parts["x"]
    return structure, leaves


def _as_tuples(part: Any, name: str) -> Any:
    """Lists of arrays as tuples, since tf.data takes a list for something to stack; lists of numbers as arrays."""
    if isinstance(part, dict):
        return {key: _as_tuples(value, name) for key, value in part.items()}
    if not isinstance(part, (tuple, list)):
        return part
    if part and all(_is_arrays(item) for item in part):
        return tuple(_as_tuples(item, name) for item in part)
    try:
        return np.asarray(part)
    except ValueError as error:
        raise TypeError(f"`{name}` must hold arrays of a regular shape. {error} {_REMEDY}") from error


def _named_leaves(part: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The arrays of a structure in the order of `tf.nest.flatten`, each with what an error calls it."""
    if isinstance(part, dict):
        for key in sorted(part):
            yield from _named_leaves(part[key], f"{name}[{key!r}]")
    elif isinstance(part, tuple):
        for index, item in enumerate(part):
            yield from _named_leaves(item, f"{name}[{index}]")
    else:
        yield name, part


def _is_arrays(item: Any) -> bool:
    if isinstance(item, (tuple, list)):
        return bool(item) and all(_is_arrays(inner) for inner in item)
    return isinstance(item, dict) or (hasattr(item, "shape") and len(item.shape) > 0) or hasattr(item, "iloc")


def _as_array(leaf: Any, name: str, memory_maps_stay_on_disk: bool) -> np.ndarray:
    array = leaf if isinstance(leaf, np.memmap) and memory_maps_stay_on_disk else np.asarray(leaf)
    if array.ndim == 0:
        raise TypeError(f"`{name}` must hold arrays with one row for each example. Received a scalar: {leaf!r}.")
    if array.dtype == object:
        strange = [item for item in array.ravel() if not isinstance(item, (str, bytes))]
        if strange:
            raise TypeError(
                f"`{name}` must hold numbers or strings in arrays of a regular shape. Received an array of Python "
                f"objects (one of them a {type(strange[0]).__name__}). {_REMEDY}"
            )
    if np.issubdtype(array.dtype, np.floating) and array.dtype != keras.config.floatx():
        if isinstance(array, np.memmap):
            return array  # cast row by row: a copy of it may not fit in memory
        array = array.astype(keras.config.floatx())
    return array
