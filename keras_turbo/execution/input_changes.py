"""What differs between the inputs of two traces, in the words of the person who made the inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import keras
import tensorflow as tf

Kind = Literal["batch", "axis", "rank", "dtype", "structure", "value"]


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    """What a trace depends on in one input.

    Attributes:
        shape: with None where a size is unknown; None for an unknown rank and for what is no tensor.
        dtype: name of the dtype; None for what is no tensor.
        value: the Python value of what is no tensor.
    """

    shape: tuple[int | None, ...] | None = None
    dtype: str | None = None
    value: Any = None

    def __str__(self) -> str:
        return f"the value {self.value!r}" if self.dtype is None else f"{self.dtype} of shape {self.shape}"


Specs = dict[str, LeafSpec]


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference between two traces.

    Attributes:
        kind: of difference, on which the remedy depends.
        text: what changed, from what to what.
    """

    kind: Kind
    text: str


def specs_of(data: Any) -> Specs:
    """Gives the spec of each input, by its path.

    Args:
        data: A batch, of tensors (symbolic ones too), arrays, `tf.TypeSpec`s or Python values, in the form that a
            `train_step` takes; or an iterator of `tf.data`, for its element.

    Returns:
        Specs under paths such as `x`, `x['tokens']`, `y[0]` and `sample_weight`; under `data[3]` where the structure is
        none that Keras knows. Absent inputs (None) are left out.
    """
    if isinstance(data, tf.data.Iterator | tf.distribute.DistributedIterator):
        data = data.element_spec
    try:
        named = dict(zip(("x", "y", "sample_weight"), keras.utils.unpack_x_y_sample_weight(data), strict=True))
    except ValueError:
        named = {"data": data}
    return {
        name + "".join(f"[{key!r}]" for key in path): _leaf_spec(leaf)
        for name, part in named.items()
        for path, leaf in keras.tree.flatten_with_path(part)
        if leaf is not None and not isinstance(leaf, tf.experimental.Optional)
    }


def completed(specs: Specs, sizes_from: Specs) -> Specs:
    """Fills unknown sizes from other specs of the same inputs.

    TensorFlow generalizes a size that changed to an unknown one before it traces again; the batch that the caller holds
    tells which it was.

    Args:
        specs: as a trace sees them.
        sizes_from: of the batch that caused the trace; inputs that do not agree with it are left as they are.
    """
    return {path: _completed_leaf(spec, sizes_from.get(path)) for path, spec in specs.items()}


def changes(old: Specs, new: Specs) -> Iterator[Change]:
    """Yields each difference that makes TensorFlow trace again.

    A size that the old trace left open is none, whatever it is now.

    Args:
        old: specs of an earlier trace.
        new: specs of the present one.
    """
    for path in [*old, *(path for path in new if path not in old)]:
        if path not in new:
            yield Change("structure", f"{path} was given before ({old[path]}) and is not any more")
        elif path not in old:
            yield Change("structure", f"{path} is new ({new[path]})")
        else:
            yield from _leaf_changes(path, old[path], new[path])


def unknown_axes(specs: Specs) -> Iterator[tuple[str, int]]:
    """Yields path and axis of each size that is unknown, but for those of batches."""
    for path, spec in specs.items():
        for axis, size in enumerate(spec.shape or ()):
            if axis > 0 and size is None:
                yield path, axis


def _leaf_spec(leaf: Any) -> LeafSpec:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return LeafSpec(value=leaf)
    shape = tf.TensorShape(leaf.shape)
    return LeafSpec(None if shape.rank is None else tuple(shape), tf.as_dtype(leaf.dtype).name)


def _completed_leaf(spec: LeafSpec, source: LeafSpec | None) -> LeafSpec:
    if source is None or spec.shape is None or source.shape is None or len(spec.shape) != len(source.shape):
        return spec
    sizes = zip(spec.shape, source.shape, strict=True)
    return dataclasses.replace(spec, shape=tuple(other if size is None else size for size, other in sizes))


def _leaf_changes(path: str, old: LeafSpec, new: LeafSpec) -> Iterator[Change]:
    if (old.dtype is None) != (new.dtype is None):
        yield Change("structure", f"{path} changed from {old} to {new}")
        return
    if old.dtype is None:
        # What has no dtype is a Python value; one that can't be compared counts by identity.
        if old.value is not new.value and not _equal(old.value, new.value):
            yield Change("value", f"the Python value {path} changed from {old.value!r} to {new.value!r}")
        return
    if old.dtype != new.dtype:
        yield Change("dtype", f"{path} changed its dtype from {old.dtype} to {new.dtype}")
    if old.shape is None or old.shape == new.shape:
        return
    if new.shape is None or len(old.shape) != len(new.shape):
        yield Change("rank", f"{path} changed its rank, from shape {old.shape} to {new.shape}")
        return
    for axis, (before, now) in enumerate(zip(old.shape, new.shape, strict=True)):
        if before not in (None, now):
            varies = " (of any size from now on)" if now is None else ""
            text = f"{path} changed along axis {axis}, from shape {old.shape} to {new.shape}{varies}"
            yield Change("axis" if axis else "batch", text)


def _equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except (TypeError, ValueError):
        return False
