"""Examples that Python code makes by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.python_calls import call_on
from keras_turbo.data.python_items import ItemForm, tensor_type
from keras_turbo.data.sources.made_in_python import MadeInPython
from keras_turbo.data.sources.source import Identity, Source
from keras_turbo.data.worker_choice import WorkerChoice
from keras_turbo.data.worker_pool.producer import InProcess, Work


class PythonSource(MadeInPython, Source):
    """Examples (or batches) that have positions and are made in Python, here or in worker processes.

    Args:
        work: what makes them.
        form: what they are like.
        num_items: number of positions.
        most_rows: rows of the largest batch that was seen, where items are batches.
        choice: how many processes.
    """

    can_fail = True
    can_be_measured = False
    why_not_remote = "Python code of this process makes these examples"

    def __init__(self, work: Work, form: ItemForm, num_items: int, most_rows: int, choice: WorkerChoice) -> None:
        super().__init__(work, choice)
        self.form = form
        self.most_rows = most_rows
        self._num_items = num_items

    @property
    def num_examples(self) -> int:
        return self._num_items

    def load(self, position: tf.Tensor, seed: tf.Tensor) -> Any:
        types = [tensor_type(dtype) for dtype, _ in self.form.leaves]
        tensors = call_on(self, PythonSource.make, [position], types)
        shapes = [shape for _, shape in self.form.leaves]
        return self.form.packed([tf.ensure_shape(one, shape) for one, shape in zip(tensors, shapes, strict=True)])

    def load_row(self, row: list[tf.Tensor], seed: tf.Tensor) -> Any:
        return self.form.packed(row)

    def make(self, position: np.integer) -> list[np.ndarray]:
        """Makes one item in this process; raises what the user's code raises."""
        result = InProcess(self.work).result(("items", 0, (int(position),)))
        if result.failure is not None:
            raise ValueError(result.failure[1])
        return [leaf[0] if self.work.stacked else leaf for leaf in result.leaves]

    def example(self) -> Any:
        """Graph code: an item of zeros, for tracing what follows."""
        return self.form.example()

    def describe(self, position: int) -> str:
        return f"item {position} of {self.work.name}"

    def identity(self) -> Identity | None:
        return None

    @property
    def stacked(self) -> bool:
        """Whether the items of a task come together along a new axis."""
        return self.work.stacked

    def begin_epoch(self, epoch: int) -> None:
        """Called when an epoch begins, before its first item is made."""

    def end_epoch(self, epoch: int) -> None:
        """Called when the last item of an epoch was taken."""
