"""What all sources have in common whose examples Python code makes: who makes them, and for how long."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from keras_turbo.data.worker_choice import WorkerChoice
from keras_turbo.data.worker_pool.producer import InProcess, InWorkers, Producer, Work


class MadeInPython:
    """Starts worker processes when there is something to make, and lets go of them with the last dataset.

    Args:
        work: what is made.
        choice: in how many processes.
    """

    def __init__(self, work: Work, choice: WorkerChoice) -> None:
        self.choice = choice
        self.work = work
        self._producer: Producer | None = None
        self._num_datasets = 0
        self._lock = threading.RLock()

    def producer(self, seed: int) -> Producer:
        """What makes the items, for this dataset and all its shards.

        Args:
            seed: of the dataset; the global random numbers in worker processes are functions of it.
        """
        with self._lock:
            if self._producer is None:
                number = self.choice.number
                self._producer = InWorkers(self.work, number, seed) if number else InProcess(self.work)
            else:
                self._producer.begin_epoch()
            return self._producer

    def used_by(self, dataset: Any) -> None:
        """Takes note of a dataset over this source. Once the last is gone, so are the processes.

        Python collects a dataset at once when nobody holds it any more, but its graph, which is full of circles, at
        some time. Whoever still reads holds the processes.
        """
        with self._lock:
            self._num_datasets += 1
        weakref.finalize(dataset, self._let_go)

    def _let_go(self) -> None:
        with self._lock:
            self._num_datasets -= 1
            if self._num_datasets == 0:
                self._producer = None
