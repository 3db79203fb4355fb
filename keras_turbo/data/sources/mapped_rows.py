"""Rows of arrays, or paths of files, and a function in Python that makes an example of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.python_function import PythonFunction
from keras_turbo.data.python_items import positions_to_look_at, sample_of
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.arrays import structured_arrays
from keras_turbo.data.sources.python_source import PythonSource
from keras_turbo.data.user_functions import ElementFunction
from keras_turbo.data.worker_choice import choose_workers
from keras_turbo.data.worker_pool.keras_turbo_worker.item_layout import flatten
from keras_turbo.data.worker_pool.keras_turbo_worker.item_maker import MAPPED, ItemMaker
from keras_turbo.data.worker_pool.producer import Work


class MappedRowsSource(PythonSource):
    """Examples that a Python function makes of rows.

    Args:
        rows: `(structure, arrays)` as `item_layout.flatten` gives them; all arrays have one row for each example.
        function: what is called.
        argument: the name under which the user gave it, for errors.
        settings: of which `workers` counts.
        paths: the files that the examples are of, if they are of files.
        labels: what `FastDataset.labels` gives, by position; None without labels.
    """

    def __init__(
        self,
        rows: tuple[Any, list[np.ndarray]],
        function: PythonFunction,
        argument: str,
        settings: Settings,
        *,
        paths: list[str] | None = None,
        labels: Any = None,
    ) -> None:
        structure, arrays = rows
        number = len(arrays[0])
        name = function.__name__
        num_parts = len(structure[1]) if structure[0] == "tuple" else 1
        takes_all = ElementFunction(function.function, argument).takes_all(num_parts, {}, expects_seed=False)
        source = (rows, function.function, takes_all or num_parts == 1)
        maker = ItemMaker(MAPPED, source, None, seed=None)
        may_fail = settings.on_error == "skip"
        looked_at = positions_to_look_at(number, may_fail=may_fail)
        sample = sample_of(
            maker, [("items", 0, (index,)) for index in looked_at], name, are_batches=False, may_fail=may_fail
        )
        sample.form.require_batchable(name, settings)
        choice = choose_workers(settings.workers, source, name, item_seconds=sample.seconds, num_items=number)
        work = Work(MAPPED, source, sample.form.wanted, sample.form.has_fixed_shape, name)
        super().__init__(work, sample.form, number, sample.most_rows, choice)
        self._paths = paths
        self._label_rows = labels

    @property
    def paths(self) -> list[str] | None:
        """The files, in the order of positions."""
        return self._paths

    def describe(self, position: int) -> str:
        return f"the example at index {position}" if self._paths is None else self._paths[position]

    def labels_at(self, positions: np.ndarray) -> Any:
        if self._label_rows is None:
            return None
        return tf.nest.map_structure(lambda array: array[positions], self._label_rows)


def mapped_arrays_source(
    x: Any, y: Any, sample_weight: Any, function: PythonFunction, settings: Settings
) -> MappedRowsSource:
    """The source of arrays whose `map_fn` is a Python function."""
    structure, arrays = structured_arrays(x, y, sample_weight, memory_maps_stay_on_disk=True)
    packed = tf.nest.pack_sequence_as(structure, arrays)
    layout, _ = flatten(tf.nest.map_structure(lambda array: array[:0], packed))
    labels = None if y is None else packed[1]
    return MappedRowsSource((layout, arrays), function, "map_fn", settings, labels=labels)
