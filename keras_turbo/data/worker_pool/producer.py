"""Where a user's Python code runs: in this process, or in others."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from keras_turbo.data.shared_arrays import aligned_zeros
from keras_turbo.data.worker_pool.keras_turbo_worker.item_layout import pack, unpack
from keras_turbo.data.worker_pool.keras_turbo_worker.item_maker import MAPPED, ItemMaker
from keras_turbo.data.worker_pool.object_transfer import transferred
from keras_turbo.data.worker_pool.pool import TASKS_AT_HAND, Result, WorkerPool


class Producer(Protocol):
    """Runs the tasks of `ItemMaker`."""

    #: How many tasks are worth handing in before the result of the first is taken.
    tasks_ahead: int
    #: Among how many workers generators can be spread.
    num_workers: int

    def begin_epoch(self) -> None:
        """Lets the tasks from now on see the user's object as it is now."""
        ...

    def submit(self, task: tuple, what: str, only: int | None = None) -> Any:
        """Hands a task in, as `WorkerPool.submit`."""
        ...

    def result(self, ticket: Any) -> Result:
        """Waits for its result."""
        ...

    def forget(self, ticket: Any) -> None:
        """Says that the result is not wanted any more."""
        ...


@dataclasses.dataclass(frozen=True)
class Work:
    """What a producer makes items of.

    Attributes:
        kind: as `ItemMaker` names it.
        source: the user's object.
        wanted: what items must be like, as `item_layout.check` takes it.
        stacked: whether the items of a task are put together along a new axis.
        name: what an error calls the object.
    """

    kind: str
    source: Any
    wanted: tuple
    stacked: bool
    name: str


class InProcess:
    """Runs tasks in this process, when their results are asked for."""

    tasks_ahead = 1
    num_workers = 1

    def __init__(self, work: Work) -> None:
        self._work = work
        # The global random numbers are the user's own here, and are left alone.
        self._maker = ItemMaker(work.kind, work.source, work.wanted, seed=None)

    def begin_epoch(self) -> None:
        pass

    def submit(self, task: tuple, what: str, only: int | None = None) -> tuple:
        if task[0] in ("open", "close"):  # nobody asks for their results, other than for failures
            return ("done", self._result(task))
        return task

    def result(self, ticket: tuple) -> Result:
        return ticket[1] if ticket[0] == "done" else self._result(ticket)

    def forget(self, ticket: tuple) -> None:
        pass

    def _result(self, task: tuple) -> Result:
        made = self._maker.run(task)
        leaves: list[np.ndarray] = []
        if made.items:
            memory: list[np.ndarray] = []

            def room(num_bytes: int) -> np.ndarray:
                memory.append(aligned_zeros((num_bytes,), np.uint8))
                return memory[0]

            # A copy, since TensorFlow may compute in the memory that it is given, and users in theirs.
            places = pack(made.items, self._work.wanted[1], self._work.stacked, room)
            leaves = list(unpack(places, memory[0]))
        return Result(len(made.items), leaves, made.ended, made.failure)


class InWorkers:
    """Runs tasks in worker processes.

    Args:
        work: what is made.
        num_workers: number of processes.
        seed: of which the global random numbers in them are functions.
    """

    def __init__(self, work: Work, num_workers: int, seed: int) -> None:
        self.num_workers = num_workers
        self.tasks_ahead = num_workers * TASKS_AT_HAND
        self._work = work
        preparation = {"kind": work.kind, "wanted": work.wanted, "stacked": work.stacked, "seed": seed}
        self.pool = WorkerPool(preparation, transferred(work.source, work.name), num_workers)

    def begin_epoch(self) -> None:
        if self._work.kind == MAPPED:
            return  # arrays are what they were when the dataset was made, as elsewhere
        self.pool.use(transferred(self._work.source, self._work.name))

    def submit(self, task: tuple, what: str, only: int | None = None) -> Any:
        return self.pool.submit(task, what, only)

    def result(self, ticket: Any) -> Result:
        return self.pool.result(ticket)

    def forget(self, ticket: Any) -> None:
        self.pool.forget(ticket)
