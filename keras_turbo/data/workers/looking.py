"""What items that Python code makes have in common: declared, or found out from the first of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.data.engine.elements import Elements, numpy_dtype
from keras_turbo.data.functions import PythonFunction
from keras_turbo.data.settings import Settings
from keras_turbo.data.workers.item_maker import ItemMaker
from keras_turbo.data.workers.items import ARRAY, Form, leaf_of, written

_LOOKED_AT_WHERE_SOME_FAIL = 8


@dataclasses.dataclass(frozen=True)
class Sample:
    """Some items, made in this process.

    Attributes:
        form: what items have in common.
        seconds: what the later ones took each, the first one if there is no other.
        most_rows: the largest first axis of them.
    """

    form: Form
    seconds: float
    most_rows: int


def positions_to_look_at(number: int | None, settings: Settings) -> list[int]:
    """Positions that tell what items are like: two to compare, and the last of so many, which may be shorter."""
    first = _LOOKED_AT_WHERE_SOME_FAIL if settings.on_error == "skip" else 2
    return [*range(first)] if number is None else sorted({*range(min(first, number)), number - 1})


def look_at(source: Any, tasks: Sequence[tuple], name: str, settings: Settings, *, are_batches: bool = False) -> Sample:
    """Makes some items to see what they are like.

    Args:
        source: the user's object, as `ItemMaker` takes it.
        tasks: what to make.
        name: what an error calls the object.
        settings: of which `element_spec` counts, and what tells whether items must have one shape.
        are_batches: whether items are batches.

    Raises:
        ValueError: an item can't be made, or is not like the others; none can be made; or they differ in shape and must
            not.
    """
    declared = None
    if settings.element_spec is not None:
        leaves = [(numpy_dtype(leaf.dtype), tuple(leaf.shape)) for leaf in tf.nest.flatten(settings.element_spec)]
        structure = tf.nest.map_structure(lambda _: ARRAY, settings.element_spec)
        declared = Form(structure, leaves, are_batches, is_declared=True)
    form, seconds, most_rows = declared, [], 0
    floatx = numpy_dtype(tf.as_dtype(keras.config.floatx()))
    maker = ItemMaker(source, declared, are_batches=are_batches, seed=None)
    for task in tasks:
        start = time.perf_counter()
        made = maker.run(task)
        if made.items:
            seconds.append(time.perf_counter() - start)
        for _, details in made.failures.values() if settings.on_error == "raise" else ():
            number = task[2][0] if task[0] == "items" else len(seconds)
            raise ValueError(f"Item {number} of {name} can't be made:\n{details}")
        for item, structure in zip(made.items, made.structures, strict=True):
            most_rows = max([most_rows, *(len(array) for array in item if array.ndim)])
            leaves = [leaf_of(array, floatx) for array in item]
            if form is None:
                form = Form(structure, leaves, are_batches, is_declared=False)
            elif declared is None:
                common = [(dtype, _common(a, b)) for (dtype, a), (_, b) in zip(form.leaves, leaves, strict=False)]
                form = form._replace(leaves=common)
            try:
                form.check(structure, item)
            except ValueError as error:
                raise ValueError(f"An item of {name} is not like the first: {error}") from None
    if form is None:
        tried = f" at any of the {len(tasks)} positions that were tried" if settings.on_error == "skip" else ""
        raise ValueError(f"{name} gave no item{tried}.")
    if are_batches and declared is None:
        form = with_open_axes(form)
    if not are_batches:
        _require_batchable(form, name, settings)
    later = seconds[1:] or seconds or [0.0]
    return Sample(form, sum(later) / len(later), most_rows)


def with_open_axes(form: Form) -> Form:
    """The same where the first axis of every array may have any length."""
    return form._replace(leaves=[(dtype, (None, *shape[1:]) if shape else ()) for dtype, shape in form.leaves])


def elements_of(form: Form) -> Elements:
    """The form of items as the engine knows it."""
    specs = [tf.TensorSpec(shape, tf.string if dtype.hasobject else tf.as_dtype(dtype)) for dtype, shape in form.leaves]
    return Elements(tf.nest.pack_sequence_as(form.structure, specs))


def _common(shape: tuple, other: tuple) -> tuple:
    """Sizes of two shapes where they agree, else None; the first where they have other numbers of axes."""
    if len(shape) != len(other):
        return shape
    return tuple(a if a == b else None for a, b in zip(shape, other, strict=True))


def _require_batchable(form: Form, name: str, settings: Settings) -> None:
    is_changed = settings.augment_fn is not None or not isinstance(settings.map_fn, (PythonFunction, type(None)))
    if form.is_fixed or is_changed or settings.batch_size in (None, 1):
        return
    are_sequences = all(None not in shape[1:] for _, shape in form.leaves)
    remedy = "Pad them to one shape, or give batch_size=None."
    if are_sequences:
        remedy = (
            "Pad them to one shape; or have sequences filled up to a few lengths, by FastDataset(FastDataset("
            "..., batch_size=None), bucket_by_length=[32, 64, 128]); or give batch_size=None."
        )
    shapes = ", ".join(written(shape).replace(",)", ")") for _, shape in form.leaves)
    raise ValueError(
        f"{name} gives items of different shapes, which can't be batched: {shapes}. {remedy} Received: "
        f"batch_size={settings.batch_size}."
    )
