"""What items that Python code makes have in common: declared, or found out from the first of them."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column, Elements, numpy_dtype
from keras_turbo.data.engine.slots import aligned_empty
from keras_turbo.data.functions import PythonFunction
from keras_turbo.data.settings import Settings
from keras_turbo.data.workers.item_maker import ARRAY, ItemError, ItemMaker, Made, is_float

_LOOKED_AT_WHERE_SOME_FAIL = 8


class ItemNotMadeError(ValueError):
    """An item could not be made; `details` is the traceback of the user's code."""

    def __init__(self, reason: str, details: str) -> None:
        super().__init__(reason)
        self.details = details


@dataclasses.dataclass(frozen=True)
class Form:
    """What items have in common: structure, types and shapes."""

    elements: Elements
    are_batches: bool = False  # whether the first axis of each array is that of examples
    is_declared: bool = False  # by the user; else it was found out from some items

    @functools.cached_property
    def _agreed(self) -> tuple[Any, list[tuple[np.dtype, tuple[int | None, ...]]]]:
        """Structure, types and shapes in plain values, which are quicker to compare."""
        structure = tf.nest.map_structure(lambda _: ARRAY, self.elements.spec)
        return structure, [(numpy_dtype(leaf.dtype), tuple(leaf.shape)) for leaf in self.elements.leaves]

    def loaded(
        self, made: Made, count: int, in_place: Sequence[Sequence[np.ndarray]] | None
    ) -> tuple[list[Column] | None, dict[int, Exception]]:
        """What `Source.load` gives, of a task for so many items."""
        if in_place is None:
            return self.columns(made, count)
        good, failures = self._checked(made)
        for index, leaves in good.items():
            for place, leaf in zip(in_place[index], leaves, strict=True):
                np.copyto(place, leaf, casting="unsafe")
        return None, failures

    def columns(self, made: Made, count: int) -> tuple[list[Column], dict[int, Exception]]:
        """For each array of an item those of all, stacked if they have one shape; rows of failures mean nothing."""
        good, failures = self._checked(made)
        blank = [] if len(good) == count else [column[0] for column in self.elements.zeros(1)]
        columns: list[Column] = []
        for number, (shape, dtype) in enumerate(self.elements.arrays):
            rows = [good.get(index, blank)[number] for index in range(count)]
            if self.elements.is_fixed and rows:
                columns.append(np.stack(rows, out=aligned_empty((count, *shape), dtype), casting="unsafe"))
            else:
                columns.append([np.asarray(row, dtype) for row in rows])
        return columns, failures

    def _checked(self, made: Made) -> tuple[dict[int, list[np.ndarray]], dict[int, Exception]]:
        good: dict[int, list[np.ndarray]] = {}
        failures: dict[int, Exception] = {index: ItemNotMadeError(*failure) for index, failure in made.failures.items()}
        for index, (structure, leaves) in made.items.items():
            try:
                if structure is not None:
                    self.check(structure, leaves)
                good[index] = leaves
            except ItemError as error:
                failures[index] = error
        return good, failures

    def check(self, structure: Any, leaves: Sequence[np.ndarray]) -> None:
        """Checks an item; the ItemError says what was expected and what came."""
        expected, agreed = self._agreed
        known_from = "`element_spec` says" if self.is_declared else "the first had"
        if structure != expected:
            raise ItemError(f"its structure is {_written(structure)}, where {known_from} {_written(expected)}.")
        if self.are_batches and not all(leaf.ndim for leaf in leaves):
            raise ItemError("a batch must be made of arrays with a row for each example, and one of its is a scalar.")
        if self.are_batches and len({len(leaf) for leaf in leaves}) > 1:
            raise ItemError(f"its arrays have unequal numbers of rows: {[leaf.shape for leaf in leaves]}.")
        for number, (leaf, (dtype, shape)) in enumerate(zip(leaves, agreed, strict=True)):
            where = f"array {number + 1} of {len(leaves)}" if len(leaves) > 1 else "the array"
            if not self._can_become(leaf, dtype):
                raise ItemError(f"{where} has the type {leaf.dtype}, where {known_from} {dtype}.")
            if leaf.ndim != len(shape) or any(a not in (None, b) for a, b in zip(shape, leaf.shape, strict=True)):
                looked_at = (
                    " from the items that were looked at before. Pad to one shape, or say what varies by "
                    "`element_spec`, such as tf.TensorSpec([None, 3], tf.float32)"
                )
                raise ItemError(
                    f"{where} has the shape {leaf.shape}, where {_written(shape)} was expected"
                    f"{'' if self.is_declared else looked_at}."
                )

    def _can_become(self, leaf: np.ndarray, dtype: np.dtype) -> bool:
        if is_float(dtype):
            return is_float(leaf.dtype) or (self.is_declared and leaf.dtype.kind in "biu")
        if self.is_declared and leaf.dtype.kind in "iu" and dtype.kind in "iu":
            return bool((leaf.astype(dtype) == leaf).all())
        return np.can_cast(leaf.dtype, dtype, "safe")

    def opened(self) -> Form:
        """The same where the first axis of every array may have any length."""
        return self._with_shapes([(None, *leaf.shape[1:]) if leaf.shape.rank else () for leaf in self.elements.leaves])

    def widened(self, leaves: Sequence[np.ndarray]) -> Form:
        """The same where sizes that differ in an item are open; unchanged where it has other axes."""
        shapes = [tuple(spec.shape) for spec in self.elements.leaves]
        for number, (shape, leaf) in enumerate(zip(shapes, leaves, strict=False)):
            if len(shape) == leaf.ndim:
                shapes[number] = tuple(a if a == b else None for a, b in zip(shape, leaf.shape, strict=True))
        return self._with_shapes(shapes)

    def _with_shapes(self, shapes: Sequence[tuple]) -> Form:
        specs = [tf.TensorSpec(shape, leaf.dtype) for shape, leaf in zip(shapes, self.elements.leaves, strict=True)]
        return dataclasses.replace(self, elements=Elements(tf.nest.pack_sequence_as(self.elements.spec, specs)))

    def require_batchable(self, name: str, settings: Settings) -> None:
        """Raises ValueError where items would be batched as they are, and have not one shape."""
        is_changed = settings.augment_fn is not None or not isinstance(settings.map_fn, (PythonFunction, type(None)))
        if self.elements.is_fixed or is_changed or settings.batch_size in (None, 1):
            return
        shapes = [shape for _, shape in self._agreed[1]]
        sequences = (
            "; or have sequences filled up to a few lengths, by FastDataset(FastDataset(..., batch_size=None), "
            "bucket_by_length=[32, 64, 128]); or"
        )
        raise ValueError(
            f"{name} gives items of different shapes, which can't be batched: "
            f"{', '.join(_written(shape).replace(',)', ')') for shape in shapes)}. Pad them to one shape"
            f"{', or' if any(None in shape[1:] for shape in shapes) else sequences} give batch_size=None. Received: "
            f"batch_size={settings.batch_size}."
        )


@dataclasses.dataclass(frozen=True)
class Sample:
    """What was seen of some items."""

    form: Form
    seconds: float  # what the later ones took each, the first one if there is no other
    most_rows: int  # the largest first axis of them


def positions_to_look_at(number: int | None, settings: Settings) -> list[int]:
    """Positions that tell what items are like: two to compare, and the last of so many, which may be shorter."""
    first = _LOOKED_AT_WHERE_SOME_FAIL if settings.on_error == "skip" else 2
    return [*range(first)] if number is None else sorted({*range(min(first, number)), number - 1})


def look_at(source: Any, tasks: Sequence[tuple], name: str, settings: Settings, *, are_batches: bool = False) -> Sample:
    """Makes some items of an object, as `ItemMaker` takes it, to see what they are like.

    Raises:
        ValueError: an item can't be made, or is not like the others; none can be made; or they differ in shape and must
            not.
    """
    spec = settings.element_spec
    form = None if spec is None else Form(Elements(spec), are_batches, is_declared=True)
    seconds, most_rows = [], 0
    maker = ItemMaker(source, are_batches=are_batches, seed=None)
    for task in tasks:
        start = time.perf_counter()
        made = maker.run(task)
        number = task[2][0] if task[0] == "items" else len(seconds)
        for reason, details in made.failures.values() if settings.on_error == "raise" else ():
            raise ValueError(f"Item {number} of {name} can't be made:\n{details or reason}")
        for structure, leaves in made.items.values():
            seconds.append(time.perf_counter() - start)
            most_rows = max([most_rows, *(len(leaf) for leaf in leaves if leaf.ndim)])
            form = form or Form(_elements_of(structure, leaves), are_batches)
            form = form if form.is_declared else form.widened(leaves)
            try:
                form.check(structure, leaves)
            except ItemError as error:
                raise ValueError(f"Item {number} of {name} is not like the others: {error}") from None
    if form is None:
        tried = f" at any of the {len(tasks)} positions that were tried" if settings.on_error == "skip" else ""
        raise ValueError(f"{name} gave no item{tried}.")
    if not are_batches:
        form.require_batchable(name, settings)
    elif not form.is_declared:
        form = form.opened()
    later = seconds[1:] or seconds or [0.0]
    return Sample(form, sum(later) / len(later), most_rows)


def _elements_of(structure: Any, leaves: Sequence[np.ndarray]) -> Elements:
    def of(leaf: np.ndarray) -> tf.TensorSpec:
        dtype = tf.string if leaf.dtype.hasobject else keras.config.floatx() if is_float(leaf.dtype) else leaf.dtype
        return tf.TensorSpec(leaf.shape, tf.as_dtype(dtype))

    return Elements(tf.nest.pack_sequence_as(structure, [of(leaf) for leaf in leaves]))


def _written(structure: Any) -> str:
    """A structure or a shape as an error writes it."""
    return repr(structure).replace(repr(ARRAY), ARRAY).replace("None", "any")
