"""Worker processes that run tasks, and their results in the order of asking."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from keras_turbo.data.python_calls import process_is_ending
from keras_turbo.data.shared_arrays import aligned_zeros
from keras_turbo.data.worker_pool.keras_turbo_worker.item_layout import unpack
from keras_turbo.data.worker_pool.object_transfer import TransferredObject
from keras_turbo.data.worker_pool.worker_process import WorkerProcess

# A worker works on one task and has the next at hand.
TASKS_AT_HAND = 2
# Results of a worker that may exist at a time: those at hand, and those on their way through tf.data to the step.
_SLOTS = 6
# With fewer free ones, results are copied out of shared memory, and not lent, so that who keeps batches stops nothing.
_SLOTS_NEVER_LENT = 2
# Waiting looks up so often: for slots given back by Python's garbage collection, and for the end of the process.
_LOOK_SECONDS = 0.1


class WorkerError(RuntimeError):
    """A worker process can't do its work: it could not start, or died."""


@dataclasses.dataclass
class Result:
    """What came of a task.

    Attributes:
        count: number of items.
        leaves: their arrays, stacked or of the one item. Empty where there is no item.
        ended: whether a generator has no more.
        failure: index, error and traceback of the item after those, or None.
    """

    count: int
    leaves: list[np.ndarray]
    ended: bool
    failure: tuple[int, str, str] | None


class Ticket:
    """A task that was handed in.

    Args:
        task: as `ItemMaker.run` takes it.
        what: what the task makes, for errors.
        only: number of the worker that must do it; None for any.
    """

    def __init__(self, task: tuple, what: str, only: int | None) -> None:
        self.task = task
        self.what = what
        self.only = only
        self.slot = -1
        self.is_wanted = True
        self.result: Result | None = None
        self.error: WorkerError | None = None


class _Worker:
    """One process and what is under way in it."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.under_way: dict[int, Ticket] = {}
        self.free_slots = list(range(_SLOTS))
        self.memory: list[mmap.mmap | None] = [None] * _SLOTS
        #: Slots that came back; appended to by finalizers, which must not wait for a lock.
        self.given_back: collections.deque[int] = collections.deque()
        self.failure: str | None = None
        self.is_alive = True
        self.digest = b""
        self.thread: threading.Thread | None = None


class WorkerPool:
    """Processes that make items; they are started when there is work, and end with the pool or the process.

    Args:
        preparation: what workers are told when they start: kind, wanted, seed, stacked.
        source: the user's object.
        num_workers: number of processes.
    """

    def __init__(self, preparation: dict[str, Any], source: TransferredObject, num_workers: int) -> None:
        self._state = _PoolState(preparation | {"num_slots": _SLOTS}, source, num_workers)
        self._finalizer = weakref.finalize(self, self._state.close)

    def use(self, source: TransferredObject) -> None:
        """Lets the tasks from now on be done by the object as it is now."""
        self._state.use(source)

    def submit(self, task: tuple, what: str, only: int | None = None) -> Ticket:
        """Hands a task in.

        Args:
            task: as `ItemMaker.run` takes it.
            what: what it makes, for errors.
            only: number of the worker that must do it, from 0; None for any.
        """
        return self._state.submit(Ticket(task, what, only))

    def result(self, ticket: Ticket) -> Result:
        """Waits for the result of a task.

        Raises:
            WorkerError: the worker died, could not start, or the pool is closed.
        """
        return self._state.result(ticket)

    def forget(self, ticket: Ticket) -> None:
        """Says that the result of a task is not wanted any more."""
        self._state.forget(ticket)

    def close(self) -> None:
        """Ends the processes."""
        self._finalizer()

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [worker.process.pid for worker in self._state.workers if worker is not None and worker.is_alive]


class _PoolState:
    """The pool as its own threads see it, which must not keep it alive."""

    def __init__(self, preparation: dict[str, Any], source: TransferredObject, num_workers: int) -> None:
        self.workers: list[_Worker | None] = [None] * num_workers
        self._preparation = preparation
        self._source = source
        self._pending: collections.deque[Ticket] = collections.deque()
        self._numbers = itertools.count()
        self._is_closed = False
        # Reentrant, since garbage collection may close a pool from anywhere.
        self._changed = threading.Condition(threading.RLock())

    def use(self, source: TransferredObject) -> None:
        with self._changed:
            self._source = source

    def submit(self, ticket: Ticket) -> Ticket:
        with self._changed:
            self._pending.append(ticket)
            self._dispatch()
        return ticket

    def result(self, ticket: Ticket) -> Result:
        with self._changed:
            while ticket.result is None and ticket.error is None:
                if self._is_closed or process_is_ending():
                    raise WorkerError("The worker processes were ended while results were waited for.")
                self._dispatch()
                if ticket.result is None and ticket.error is None:
                    self._changed.wait(_LOOK_SECONDS)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.result is not None  # noqa: S101 (the loop ends so)
        return ticket.result

    def forget(self, ticket: Ticket) -> None:
        with self._changed:
            ticket.is_wanted = False
            ticket.result = None
            if ticket in self._pending:
                self._pending.remove(ticket)

    def close(self) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            workers = [worker for worker in self.workers if worker is not None]
            self._pending.clear()
            self._changed.notify_all()
        for worker in workers:
            worker.process.channel.shut_down()
        for worker in workers:
            worker.process.end()
            if worker.thread is not None and worker.thread is not threading.current_thread():
                worker.thread.join()

    def _dispatch(self) -> None:
        """Gives tasks to workers that have room for them; the lock is held."""
        if self._is_closed:
            return
        waiting: collections.deque[Ticket] = collections.deque()
        while self._pending:
            ticket = self._pending.popleft()
            number = self._number_of_idlest() if ticket.only is None else ticket.only
            worker = None
            if number is not None:
                try:
                    worker = self._running(number)
                except OSError as error:  # no more processes, memory or open files
                    # Told to who waits for it: threads that receive results get here, too, and must go on.
                    text = f"Worker {number + 1} of {len(self.workers)} could not be started: {error}."
                    ticket.error = WorkerError(text)
                    self._changed.notify_all()
                    continue
            if worker is None or not self._has_room(worker):
                waiting.append(ticket)
                if ticket.only is None:
                    break
                continue
            self._send(worker, ticket)
        self._pending.extendleft(reversed(waiting))

    def _number_of_idlest(self) -> int | None:
        loads = [len(worker.under_way) if worker is not None and worker.is_alive else 0 for worker in self.workers]
        with_room = [
            number
            for number, worker in enumerate(self.workers)
            if worker is None or not worker.is_alive or self._has_room(worker)
        ]
        return min(with_room, key=loads.__getitem__, default=None)

    @staticmethod
    def _has_room(worker: _Worker) -> bool:
        while worker.given_back:
            worker.free_slots.append(worker.given_back.popleft())
        return bool(worker.free_slots) and len(worker.under_way) < TASKS_AT_HAND

    def _running(self, number: int) -> _Worker:
        """The worker of a number, started if there is none, or if it died."""
        worker = self.workers[number]
        if worker is not None and worker.is_alive:
            return worker
        process = WorkerProcess(number + 1, self._preparation)
        worker = self.workers[number] = _Worker(process)
        worker.thread = threading.Thread(
            target=self._receive, args=(worker,), name=f"keras_turbo worker {number + 1}", daemon=True
        )
        worker.thread.start()
        return worker

    def _send(self, worker: _Worker, ticket: Ticket) -> None:
        places: list[tuple[int, int]] | None = None
        descriptor = None
        if worker.digest != self._source.digest:
            try:
                places, descriptor = self._source.in_shared_memory()
            except (OSError, MemoryError) as error:
                ticket.error = WorkerError(f"The object's arrays can't be copied for the workers: {error}.")
                self._changed.notify_all()
                return
        number = next(self._numbers)
        # The slot that was used last: its memory is there already, and in the processor's cache.
        ticket.slot = worker.free_slots.pop()
        worker.under_way[number] = ticket
        try:
            if places is not None:
                descriptors = () if descriptor is None else (descriptor,)
                worker.process.channel.send(("object", self._source.stream, places), descriptors)
                worker.digest = self._source.digest
            worker.process.channel.send(("run", number, ticket.slot, ticket.task))
        except OSError:
            pass  # it died, which the thread that receives from it finds out and tells
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _receive(self, worker: _Worker) -> None:
        """Takes in what a worker sends, in a thread of its own."""
        while True:
            try:
                (what, *arguments), descriptors = worker.process.channel.receive()
            except (EOFError, OSError):
                break
            if what == "failed":
                worker.failure = arguments[0]
                continue
            self._take_in(worker, arguments, descriptors)
        if self._is_closed:
            return
        ended = worker.process.how_it_ended()
        with self._changed:
            if self._is_closed:
                return
            worker.is_alive = False
            lost = list(worker.under_way.values())
            worker.under_way.clear()
            for ticket in lost:
                # They are worked on in the order of asking, so it was at the first.
                ticket.error = WorkerError(self._obituary(worker, ended, lost[0].what))
            self._changed.notify_all()
        worker.process.end()

    def _obituary(self, worker: _Worker, ended: str, at_work: str) -> str:
        name = f"Worker {worker.process.number} of {len(self.workers)} (process {worker.process.pid})"
        if worker.failure is not None:
            return f"{name} could not start:\n{worker.failure}"
        return f"{name} {ended} while it made {at_work}."

    def _take_in(
        self,
        worker: _Worker,
        arguments: list[Any],
        descriptors: list[int],
    ) -> None:
        number, count, places, ended, failure = arguments
        with self._changed:
            ticket = worker.under_way.pop(number)
            try:
                for descriptor in descriptors:
                    worker.memory[ticket.slot] = mmap.mmap(descriptor, 0)
                leaves = []
                if count and ticket.is_wanted:
                    leaves = self._leaves(worker, ticket.slot, places)
                else:
                    worker.free_slots.append(ticket.slot)
                if ticket.is_wanted:
                    ticket.result = Result(count, leaves, ended, failure)
            except (OSError, MemoryError) as error:
                # The slot is not used again: its memory here may not be that of the worker.
                ticket.error = WorkerError(f"There is no memory for {ticket.what}: {error}.")
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            self._dispatch()
            self._changed.notify_all()

    def _leaves(self, worker: _Worker, slot: int, places: list[tuple]) -> list[np.ndarray]:
        """The arrays of a result where they lie, or copied where slots are short."""
        memory = worker.memory[slot]
        self._has_room(worker)  # counts what has come back
        if memory is None or len(worker.free_slots) < _SLOTS_NEVER_LENT:
            leaves = [_copied(leaf) for leaf in unpack(places, memory)]
            worker.free_slots.append(slot)
            return leaves
        whole = np.frombuffer(memory, np.uint8)
        lent = weakref.finalize(whole, worker.given_back.append, slot)
        lent.atexit = False
        # Views of `whole` keep it alive, and with it the loan.
        return list(unpack(places, whole))


def _copied(leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype == object:
        return leaf
    copy = aligned_zeros(leaf.shape, leaf.dtype)
    copy[...] = leaf
    return copy
