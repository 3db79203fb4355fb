"""Epochs of a dataset that are counted, run again, and begun in their middle."""

from __future__ import annotations

import abc
import warnings
from typing import Any

import tensorflow as tf

from keras_turbo.data.engine.node import VariantDataset
from keras_turbo.data.engine.order import EpochCounter
from keras_turbo.data.settings import is_integer


class ResumableDataset(VariantDataset):
    """A dataset whose epochs are functions of their numbers: any of them can be had again, from any batch on."""

    _counter: EpochCounter
    _has_warned = False

    @property
    @abc.abstractmethod
    def order_settings(self) -> dict[str, Any]:
        """What decides which examples a batch has: where these are equal, so are the batches of equal data."""

    @property
    @abc.abstractmethod
    def why_batches_are_read(self) -> str | None:
        """Why `resume_at` must read the batches before; None where it need not."""

    @abc.abstractmethod
    def part_of_batches(self, num_workers: int, worker: int, replicas_per_worker: int = 1) -> tf.data.Dataset:
        """What one of several workers needs of every batch."""

    @property
    def epochs_begun(self) -> int:
        """Number of epochs that have begun, each at its first batch. Set it to let the next one be any other again.

        Raises:
            ValueError: when it is set to no integer from 0.
        """
        return self._counter.next_epoch

    @epochs_begun.setter
    def epochs_begun(self, number: int) -> None:
        self._counter.resume_at(_natural_number("epochs_begun", number), 0)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and batch with which the next iteration begins, as `resume_at` takes them."""
        return self._counter.position

    def resume_at(self, epoch: int, batch: int) -> None:
        """Lets the next iteration be an epoch from one of its batches on, byte for byte what would have followed.

        So a training run that ended in the middle of an epoch can go on there. The iterations after it are whole
        epochs: `epoch + 1`, `epoch + 2`, ... `cardinality()` stays that of a whole epoch.

        The batches before are not made, with two exceptions, of which it warns once: a `tf.data.Dataset` without a
        store can only be read from its beginning (`map_fn` and `augment_fn` are not called for what is skipped); and
        with `on_error="skip"` which examples are in the batches before is known only once those are loaded.

        Example:

        ```python
        train.resume_at(epoch=2, batch=150)
        for x, y in train:  # batch 150 of epoch 2, and the rest of it
            ...
        ```

        Args:
            epoch: number of the epoch, from 0: `epochs_begun` before it began.
            batch: number of its batches that are done (of examples with `batch_size=None`). If there are no more, the
                next iteration gives nothing.

        Raises:
            ValueError: a number that is no integer from 0.
        """
        epoch, batch = _natural_number("epoch", epoch), _natural_number("batch", batch)
        if batch and self.why_batches_are_read is not None and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"Resuming in the middle of an epoch reads {batch} batches before the first that is given, since "
                f"{self.why_batches_are_read}.",
                stacklevel=2,
            )
        self._counter.resume_at(epoch, batch)

    def repeat(self, count: Any = None, name: str | None = None) -> tf.data.Dataset:
        """As `tf.data.Dataset.repeat`; where that is for ever, the result has `resume_at`, too."""
        repeated = super().repeat(count, name=name)
        endless = count is None or (isinstance(count, int) and count < 0)
        number = int(self.cardinality())
        return RepeatedEpochs(self, repeated, number) if endless and number > 0 else repeated


class RepeatedEpochs(VariantDataset):
    """The epochs of a dataset one after the other, without end.

    Args:
        epochs: the dataset.
        repeated: the same, repeated by tf.data.
        batches: number of batches in an epoch.
    """

    def __init__(self, epochs: ResumableDataset, repeated: tf.data.Dataset, batches: int) -> None:
        self._epochs = epochs
        self._batches = batches
        variant = tf.data.experimental.to_variant(repeated)
        super().__init__(variant, repeated.element_spec, [epochs], holds=None)

    @property
    def source_of_epochs(self) -> ResumableDataset:
        """The dataset whose epochs these are."""
        return self._epochs

    def part_of_batches(self, num_workers: int, worker: int, replicas_per_worker: int = 1) -> tf.data.Dataset:
        """As `FastDataset.part_of_batches`, without end."""
        return self._epochs.part_of_batches(num_workers, worker, replicas_per_worker).repeat()

    def resume_at(self, epoch: int, batch: int) -> None:
        """As `FastDataset.resume_at`; the batch is counted on over epochs, from the beginning of that one."""
        epoch, batch = _natural_number("epoch", epoch), _natural_number("batch", batch)
        self._epochs.resume_at(epoch + batch // self._batches, batch % self._batches)


def _natural_number(name: str, number: Any) -> int:
    if not is_integer(number) or number < 0:
        raise ValueError(f"`{name}` must be an integer from 0. Received: {number!r}.")
    return int(number)
