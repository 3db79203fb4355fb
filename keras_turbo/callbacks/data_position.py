"""Where a training run is in its data, and how it gets there again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_turbo.callbacks.fit_call import FitCall
from keras_turbo.data.resuming import RepeatedEpochs, ResumableDataset
from keras_turbo.execution.stacks import StackIterator


class DataPosition:
    """Follows the data of one `fit`, batch by batch.

    A `FastDataset` is a function of the number of its epoch, so its position is that number and a batch. What was made
    of one by methods of tf.data has the position of the `FastDataset` and as many batches to read.

    Args:
        call: the `fit` that runs; None where it can't be found, and with it no dataset.
        steps: batches in an epoch as Keras counts them; None where it does not know.
    """

    def __init__(self, call: FitCall | None, steps: int | None) -> None:
        self._data = None if call is None else call.training_dataset
        self._draws_order = call is not None and call.draws_order
        self._steps_per_epoch = None if call is None else call.steps_per_epoch
        self._datasets = list(_resumable_in(self._data))
        self._validation = [] if call is None else list(_resumable_in(call.validation_dataset))
        self._iterator: Any = None
        self._begun = self._epochs()
        self._batches = 0
        self._resumed: tuple[list[int], int] = ([], 0)
        self._batches_to_skip = 0
        self._steps = steps
        self._number = self._cardinality()

    def meets(self, iterator: Any) -> bool:
        """Takes note of the iterator that `fit` gives, which is unread if it is a new one; tells whether it is."""
        if iterator is self._iterator:
            return False
        self._iterator = iterator
        self._begun = self._epochs()
        self._batches = 0
        self._number = self._cardinality()
        return True

    def took(self, batches: int) -> None:
        """Counts batches that were trained on."""
        self._batches += batches

    def ended(self) -> None:
        """Takes note that the iterator has nothing left, so that the next epoch begins with another one."""
        self._iterator = None

    def batches_left(self) -> int | None:
        """Batches that the iterator still has, None where that can't be known."""
        return None if self._number is None else max(0, self._number - self._batches)

    def state(self, *, in_epoch: bool) -> dict[str, Any]:
        """The position, made of JSON's types.

        Args:
            in_epoch: whether an epoch of `fit` is under way. Between two of them the next iterator may be a new one.
        """
        goes_on = self._iterator is not None and self.batches_left() != 0
        if not in_epoch:
            # With steps_per_epoch, Keras goes on with the same iterator in the next epoch.
            goes_on = goes_on and self._steps_per_epoch is not None
        return {
            "epochs": self._begun if goes_on else self._epochs(),
            "batches": self._batches if goes_on else 0,
            "order": [dataset.order_settings for dataset in self._datasets],
            "validation_epochs": self.validation_epochs(),
        }

    def validation_epochs(self) -> list[int]:
        """How many epochs of the validation data have begun."""
        return [dataset.epochs_begun for dataset in self._validation]

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position, before `fit` has read anything.

        Args:
            state: what `state()` gave in the run that is resumed.
        """
        batches, begun = state["batches"], state["epochs"]
        self._warn_of_other_data(state["order"])
        if self._number is not None and batches >= self._number > 0:
            # Other data, or larger batches: there are not so many, so that the epoch is over.
            batches, begun = 0, [epoch + 1 for epoch in begun]
        self._resumed = begun, batches
        for datasets, epochs in ((self._datasets, begun), (self._validation, state["validation_epochs"])):
            for dataset, epoch in zip(datasets, epochs, strict=False):
                dataset.epochs_begun = epoch
        if isinstance(self._data, (ResumableDataset, RepeatedEpochs)) and begun:
            self._data.resume_at(begun[0], batches)
            return
        self._batches_to_skip = batches
        if batches:
            self._warn_of_reading(batches)

    def warn_of_drawn_order(self) -> None:
        """Says so where the epochs to come have other orders than those of a run that was never ended."""
        if self._draws_order and not self._datasets and not self._batches_to_skip:
            warnings.warn(
                f"The epochs that follow don't have the order that they would have had: {type(self._data).__name__} is "
                "shuffled by Keras or tf.data, which begin anew. All else goes on exactly; so does the order with a "
                "FastDataset, with shuffle=False, or with reshuffle_each_iteration=False.",
                stacklevel=2,
            )

    @property
    def batches(self) -> int:
        """How many of its batches the iterator has given."""
        return self._batches

    def skip_in(self, iterator: Any) -> None:
        """Leaves out what was trained on before, in the first iterator of the run that resumes."""
        count, self._batches_to_skip = self._batches_to_skip, 0
        if isinstance(iterator, StackIterator):
            iterator.skip(count)
        else:
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                for _ in range(count):
                    next(iterator)
        if count and hasattr(iterator, "host_iterator"):
            # No other iterator can take its place any more.
            iterator.host_iterator = None
        # From here on it counts as if this iterator were the one of the run before.
        self._begun, self._batches = self._resumed

    def _cardinality(self) -> int | None:
        if not isinstance(self._data, tf.data.Dataset):
            return self._steps if self._steps_per_epoch is None else None
        number = int(self._data.cardinality())
        return number if number >= 0 else None

    def _epochs(self) -> list[int]:
        return [dataset.epochs_begun for dataset in self._datasets]

    def _warn_of_reading(self, batches: int) -> None:
        if self._datasets:
            remedy, order = "a FastDataset itself, and not what was made of it, begins there at once", ""
        else:
            remedy = "a FastDataset begins there at once"
            order = (
                " They are the right ones only if the data come in the same order again: not with a shuffle that is "
                "drawn anew (tf.data's shuffle() without reshuffle_each_iteration=False, fit(x, y, shuffle=True))."
            )
        warnings.warn(
            f"Resuming in the middle of an epoch reads {batches} batches of {type(self._data).__name__} and drops "
            f"them; {remedy}.{order}",
            stacklevel=2,
        )

    def _warn_of_other_data(self, order: list[dict[str, Any]]) -> None:
        here = [dataset.order_settings for dataset in self._datasets]
        if here == order:
            return
        differing = [
            f"{name}={now.get(name)!r}, was {before.get(name)!r}"
            for now, before in zip(here, order, strict=False)
            for name in now
            if now.get(name) != before.get(name)
        ]
        what = "; ".join(differing) or f"{len(here)} FastDatasets, where there were {len(order)}"
        hint = " Give it a seed." if any(text.startswith("seed=") for text in differing) else ""
        warnings.warn(
            f"The data are not those of the run that is resumed ({what}): it does not go on with the batches that "
            f"would have come.{hint}",
            stacklevel=2,
        )


def _resumable_in(data: Any) -> Iterator[Any]:
    """The datasets with numbered epochs of which a dataset is made, or which it is."""
    if isinstance(data, ResumableDataset):
        yield data
    elif isinstance(data, tf.data.Dataset):
        for part in data._inputs():  # what each class of tf.data implements to tell its inputs
            yield from _resumable_in(part)
