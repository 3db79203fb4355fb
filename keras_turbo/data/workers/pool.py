"""Where users' Python code runs, in worker processes or in this one, and for how long."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import types
import weakref
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from keras_turbo.data.engine.slots import aligned_empty
from keras_turbo.data.workers.form import Form
from keras_turbo.data.workers.item_maker import ItemMaker, Made
from keras_turbo.data.workers.process import WorkerError, WorkerProcess
from keras_turbo.data.workers.transfer import TransferredObject


class Work(NamedTuple):
    """What is made: of the user's object, as `ItemMaker` takes it, whose items have a form."""

    source: Any
    name: str  # what an error calls the object
    form: Form
    threads: int = 1  # tasks that a process works on at a time
    may_change: bool = True  # whether the user may change the object between epochs


class ThisProcess:
    """Does tasks in this process, one at a time, when their results are asked for."""

    def __init__(self, work: Work) -> None:
        # The global random numbers are the user's own here, and are left alone.
        self._maker = ItemMaker(work.source, are_batches=work.form.are_batches, seed=None)
        self._lock = threading.Lock()

    def submit(self, task: tuple, what: str, only: int = 0) -> Any:
        """As `Workers.submit`."""
        return types.SimpleNamespace(result=functools.partial(self._done, task))

    def forget(self, stream: int, only: int) -> None:
        """As `Workers.forget`."""
        self._done(("close", stream))

    def _done(self, task: tuple) -> Made:
        with self._lock:
            made = self._maker.run(task)
            for _, leaves in made.items.values():
                # Users may write to theirs again.
                leaves[:] = [_copied(leaf) for leaf in leaves]
            return made


def _copied(array: np.ndarray) -> np.ndarray:
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class Workers:
    """Processes that are started when there is work, and end with this object or with the interpreter."""

    def __init__(self, work: Work, number: int, seed: int | None) -> None:
        self._work, self._number = work, number
        self._options = {"are_batches": work.form.are_batches, "seed": seed}
        self._processes: dict[int, WorkerProcess] = {}
        self._lock = threading.Lock()
        self._has_ended = False
        self.renew()
        weakref.finalize(self, _end, self._processes)
        _all_workers().add(self)

    def renew(self) -> None:
        """Lets the tasks from now on be done by the user's object as it is now."""
        self._source = TransferredObject(self._work.source, self._work.name)

    def submit(self, task: tuple, what: str, only: int = 0) -> Future[Made]:
        """Hands a task of `ItemMaker` in, whose result is waited for then; raises WorkerError if no process starts.

        Args:
            task: what is to be done.
            what: what it makes, for errors.
            only: number of the process that must do it, from 1; 0 for any.
        """
        with self._lock:
            if self._has_ended:
                raise WorkerError("The worker processes were ended while results were waited for.")
            number = only or min(range(1, self._number + 1), key=self._load_of)
            process = self._processes.get(number)
            if process is None or process.has_ended:
                title = f"Worker {number} of {self._number}"
                try:
                    process = WorkerProcess(title, self._work.threads, self._options)
                except OSError as error:  # no more processes, memory or open files
                    raise WorkerError(f"{title} could not be started: {error}.") from error
                self._processes[number] = process
            return process.ask(self._source, task, what)

    def forget(self, stream: int, only: int) -> None:
        """Closes a generator that process `only` reads."""
        process = self._processes.get(only)
        if process is not None and not process.has_ended:
            with contextlib.suppress(WorkerError):
                process.ask(self._source, ("close", stream), "nothing")

    def _load_of(self, number: int) -> tuple[int, bool]:
        process = self._processes.get(number)
        return (0, True) if process is None or process.has_ended else (process.num_asked, False)

    def end(self) -> None:
        """Ends the processes for good; whoever waits for a result is told so."""
        with self._lock:
            self._has_ended = True
        _end(self._processes)


def _end(processes: dict[int, WorkerProcess]) -> None:
    for process in processes.values():
        process.kill()
    for process in processes.values():
        process.wait()


@functools.cache
def _all_workers() -> weakref.WeakSet[Workers]:
    workers: weakref.WeakSet[Workers] = weakref.WeakSet()

    def end_all() -> None:
        for one in list(workers):
            one.end()

    # Before the interpreter waits for the threads of executors, one of which may wait for a worker: what `atexit` calls
    # comes after that. `concurrent.futures` registers itself so, too, and what is registered later is called first.
    getattr(threading, "_register_atexit", atexit.register)(end_all)
    return workers


class MadeInPython:
    """A source whose examples Python code makes, in worker processes or (0) this one, while datasets are over it."""

    most_threads: int | None

    def __init__(self, work: Work, processes: int) -> None:
        self.work = work
        # This process is not asked by two threads at a time; others are asked for the next while one is being made.
        self.most_threads = 2 * processes * work.threads or 1
        self._num_processes = processes
        self._producer: Workers | ThisProcess | None = None
        self._lock = threading.RLock()
        self._num_datasets = 0

    def producer(self, seed: int | None) -> Workers | ThisProcess:
        """What makes items in an epoch that begins; global random numbers in workers are functions of the seed."""
        with self._lock:
            if self._producer is None:
                number = self._num_processes
                self._producer = Workers(self.work, number, seed) if number else ThisProcess(self.work)
            elif isinstance(self._producer, Workers) and self.work.may_change:
                self._producer.renew()
            return self._producer

    def used_by(self, dataset: Any) -> None:
        """Takes note of a dataset over this source. Once the last is gone, so are the processes.

        Its graph, which is full of circles and holds this source, goes at some time. Whoever still reads holds the
        processes.
        """
        with self._lock:
            self._num_datasets += 1
        weakref.finalize(dataset, _let_go, weakref.ref(self))


def _let_go(reference: weakref.ref[MadeInPython]) -> None:
    source = reference()
    if source is not None:
        with source._lock:
            source._num_datasets -= 1
            if not source._num_datasets:
                source._producer = None
