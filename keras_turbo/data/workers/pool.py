"""Where users' Python code runs: in worker processes, or in this one."""

from __future__ import annotations

import atexit
import functools
import threading
import weakref
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_turbo.data.engine.elements import Column, Elements, scattered
from keras_turbo.data.engine.slots import aligned_empty
from keras_turbo.data.workers.item_maker import ItemMaker
from keras_turbo.data.workers.items import Form
from keras_turbo.data.workers.process import ItemNotMadeError, Result, WorkerError, WorkerProcess
from keras_turbo.data.workers.transfer import TransferredObject


class Work(NamedTuple):
    """What is made.

    Attributes:
        source: the user's object, as `ItemMaker` takes it.
        name: what an error calls it.
        form: what items must be like.
        threads: how many tasks one process works on at a time.
    """

    source: Any
    name: str
    form: Form
    threads: int = 1


class Pending(Protocol):
    """A task that was handed in."""

    def result(self) -> Result:
        """Waits for what comes of it; raises WorkerError if nothing does."""
        ...


class Producer(Protocol):
    """Does the tasks of `ItemMaker`."""

    def submit(self, task: tuple, what: str, only: int = 0) -> Pending:
        """Hands a task in.

        Args:
            task: as `ItemMaker` knows it.
            what: what it makes, for errors.
            only: number of the process that must do it, from 1; 0 for any.

        Raises:
            WorkerError: a process can't be started.
        """
        ...

    def forget(self, stream: int, only: int) -> None:
        """Closes a generator that process `only` reads."""
        ...


class ThisProcess:
    """Does tasks in this process, one at a time, when their results are asked for."""

    def __init__(self, work: Work) -> None:
        # The global random numbers are the user's own here, and are left alone.
        self._maker = ItemMaker(work.source, work.form, are_batches=work.form.are_batches, seed=None)
        self._form = work.form
        self._lock = threading.Lock()

    def submit(self, task: tuple, what: str, only: int = 0) -> Pending:
        return _Later(functools.partial(self._done, task))

    def forget(self, stream: int, only: int) -> None:
        self._done(("close", stream))

    def _done(self, task: tuple) -> Result:
        with self._lock:
            made = self._maker.run(task)
            columns = self._form.columns(made.items)
        # Users may write to their arrays again.
        kept = [[*map(_copied, one)] if isinstance(one, list) else one for one in columns]
        failures: dict[int, Exception] = {index: ItemNotMadeError(*failure) for index, failure in made.failures.items()}
        return Result(len(made.items), kept, failures, made.ended)


class _Later(NamedTuple):
    result: Any


def _copied(array: np.ndarray) -> np.ndarray:
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class Workers:
    """Processes that are started when there is work, and end with this object or with the interpreter.

    Args:
        work: what they do.
        number: of processes.
        seed: of which the global random numbers in them are functions.
    """

    def __init__(self, work: Work, number: int, seed: int | None) -> None:
        self._work, self._number, self._seed = work, number, seed
        self._processes: dict[int, WorkerProcess] = {}
        self._lock = threading.Lock()
        self._has_ended = False
        self.renew()
        weakref.finalize(self, _end, self._processes)
        _all_workers().add(self)

    def renew(self) -> None:
        """Lets the tasks from now on be done by the user's object as it is now."""
        self._source = TransferredObject(self._work.source, self._work.name)

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [process.pid for process in self._processes.values() if not process.has_ended]

    def submit(self, task: tuple, what: str, only: int = 0) -> Future[Result]:
        with self._lock:
            if self._has_ended:
                raise WorkerError("The worker processes were ended while results were waited for.")
            number = only or min(range(1, self._number + 1), key=self._load_of)
            process = self._processes.get(number)
            if process is None or process.has_ended:
                title = f"Worker {number} of {self._number}"
                try:
                    process = WorkerProcess(title, self._work.form, self._seed, self._work.threads)
                except OSError as error:  # no more processes, memory or open files
                    raise WorkerError(f"{title} could not be started: {error}.") from error
                self._processes[number] = process
            return process.ask(self._source, task, what)

    def forget(self, stream: int, only: int) -> None:
        process = self._processes.get(only)
        if process is not None and not process.has_ended:
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
    """Lets the user's code run somewhere, as long as there are datasets over it.

    Args:
        work: what it makes.
        processes: worker processes; 0 for this one.
    """

    #: Whether the user may change the object between epochs.
    may_change = True

    def __init__(self, work: Work, processes: int) -> None:
        self.work = work
        self._num_processes = processes
        self.processes: int | None = processes
        # What is this process's own is not asked by two threads at a time. Processes are asked for the next while one
        # is being made.
        self.most_threads: int | None = 2 * processes or 1
        self._producer: Producer | None = None
        self._lock = threading.RLock()
        self._num_datasets = 0

    def producer(self, seed: int | None) -> Producer:
        """What makes the items of an epoch that begins, for this dataset and all its shards.

        Args:
            seed: of the dataset; the global random numbers in worker processes are functions of it.
        """
        with self._lock:
            if self._producer is None:
                number = self._num_processes
                self._producer = Workers(self.work, number, seed) if number else ThisProcess(self.work)
            elif isinstance(self._producer, Workers) and self.may_change:
                self._producer.renew()
            return self._producer

    def used_by(self, dataset: Any) -> None:
        """Takes note of a dataset over this source. Once the last is gone, so are the processes.

        Python collects a dataset at once when nobody holds it any more, but its graph, which is full of circles, at
        some time. Whoever still reads holds the processes.
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


def placed(
    result: Result, positions: np.ndarray, elements: Elements, in_place: list[list[np.ndarray]] | None
) -> tuple[list[Column] | None, dict[int, Exception]]:
    """What `Source.load` gives, of the result of a task that made examples at some positions."""
    columns, failures = result.columns, result.failures
    if failures:
        good = np.delete(np.arange(len(positions)), list(failures))
        columns = scattered(columns, good, len(positions), elements)
    if in_place is None:
        return columns, failures
    for number, column in enumerate(columns):
        for arrays, value in zip(in_place, column, strict=True):
            arrays[number][...] = value
    return None, failures
