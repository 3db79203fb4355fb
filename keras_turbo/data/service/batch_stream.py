"""Batches that workers make in any order, given in their order: none lost, none twice.

The dispatcher hands out numbers, each to one worker, and forgets about them. So batches come in the order in which they
are done, and what a worker was making when it died never comes. Here they are put in order, and where one is missing
while many later ones are there, the job is begun again at that one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_turbo.data.failures import reason_of
from keras_turbo.data.service.address import DataServiceError
from keras_turbo.data.service.job import NothingArrivedError, ServiceJob

logger = logging.getLogger(__name__)

# After so long without a batch it is asked whether any worker is there. Beginning a job takes up to a second.
PATIENCE_SECONDS = 20.0
# After so long without a batch, though workers are there, a line in the log says so; it goes on waiting.
_SAYS_SO_AFTER_SECONDS = 120.0
# A batch that did not come after so many new jobs will not come.
_MOST_RESTARTS = 4
# Nor will one of which something is not found after so many.
_MOST_NOT_FOUND = 2

# Batches held back while an earlier one is missing, as many as fit in so much memory. A worker has about six in the
# making, so that one ten times as fast as another is that much ahead; beyond, the earlier one counts as lost. Twice as
# many after each new job.
_FEWEST_EARLY, _MOST_EARLY = 16, 64
_EARLY_BYTES = 256 << 20

# What TensorFlow raises where a server went away, or came back without knowing the job.
_GONE = (
    tf.errors.UnavailableError,
    tf.errors.NotFoundError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
)


class BatchStream:
    """Numbered batches from one number on, without end.

    Args:
        start_job: begins a job over the batches from a number on. The first tensor of its elements is their number.
        check_workers: raises DataServiceError where no worker is there.
        first: the number of the first batch.
    """

    def __init__(self, start_job: Callable[[int], ServiceJob], check_workers: Callable[[], None], first: int) -> None:
        self.next_number = first
        self._start_job = start_job
        self._check_workers = check_workers
        self._early: dict[int, list[np.ndarray]] = {}
        self._most_early = _FEWEST_EARLY
        self._restarts = 0
        self._waited_seconds = 0.0
        self._job = start_job(first)

    def next(self) -> list[np.ndarray]:
        """The tensors of the next batch.

        Raises:
            DataServiceError: it can't be had.
            tf.errors.OpError: what a worker raised while it made a batch.
        """
        while self.next_number not in self._early:
            if len(self._early) >= self._most_early:
                self._begin_again(f"batch {self.next_number} is missing where {len(self._early)} later ones are there")
            self._take_one()
        batch = self._early.pop(self.next_number)
        self.next_number += 1
        self._restarts = 0
        return batch

    def waiting_for(self) -> range:
        """Numbers of the batches of which one may have failed when `next` raises."""
        return range(self.next_number, max(self._early, default=self.next_number) + self._most_early)

    def close(self) -> None:
        """Ends the job."""
        self._job.close()

    def _take_one(self) -> None:
        try:
            batch = self._job.next(PATIENCE_SECONDS)
        except NothingArrivedError:
            self._waited_seconds += PATIENCE_SECONDS
            self._check_workers()
            if self._waited_seconds >= _SAYS_SO_AFTER_SECONDS:
                logger.warning("The data service has made no batch for %.0f s.", self._waited_seconds)
            return
        except _GONE as error:
            self._begin_again(reason_of(error), error)
            return
        self._waited_seconds = 0.0
        if batch is None:
            self._begin_again("the job ended")
            return
        number = int(batch[0])
        if number >= self.next_number and number not in self._early:
            num_bytes = max(1, sum(leaf.nbytes for leaf in batch))
            self._most_early = max(self._most_early, min(_MOST_EARLY, _EARLY_BYTES // num_bytes))
            self._early[number] = batch

    def _begin_again(self, reason: str, error: tf.errors.OpError | None = None) -> None:
        self._restarts += 1
        # So says a new dispatcher of a job that it does not know, and a worker of a file that is not there.
        is_not_found = isinstance(error, tf.errors.NotFoundError)
        if error is not None and is_not_found and self._restarts > _MOST_NOT_FOUND:
            raise error
        if self._restarts > _MOST_RESTARTS:
            raise DataServiceError(
                f"The data service did not make batch {self.next_number} in {_MOST_RESTARTS} attempts: {reason}. "
                "See what its workers print."
            )
        logger.info("A new job of the data service begins at batch %d: %s.", self.next_number, reason)
        self._job.close()
        self._most_early *= 2
        self._check_workers()
        self._job = self._start_job(self.next_number)
