"""Decoders in processes of several threads each, where one lock of Python's is not enough for all cores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from keras_turbo.data.engine.elements import Column
from keras_turbo.data.engine.order import ExampleOrder
from keras_turbo.data.settings import Settings, available_cores
from keras_turbo.data.sources.source import ExampleSource, Identity, Load, Source
from keras_turbo.data.workers.form import Form
from keras_turbo.data.workers.pool import MadeInPython, Work

# `benchmarks/loader_gil.py`: of the 0.9 ms that a photo takes, the lock is held for 0.03. So 30 threads would hold it
# all the time; up to half of that, they hardly wait for it.
CORES_OF_A_PROCESS = 16
# What it takes to start processes, which import TensorFlow, is gained back by about so many photos.
FEWEST_EXAMPLES = 100_000
# Sending a task and taking its result holds the lock of the process that asks about as long as eight photos do.
_ROWS_A_TASK = 32


class InProcesses(MadeInPython, Source):
    """The examples of a source that can be pickled, equal to the byte, loaded by threads of worker processes."""

    rows_a_job = _ROWS_A_TASK

    def __init__(self, source: Source, processes: int, threads: int) -> None:
        work = Work(source, type(source).__name__, Form(source.elements), threads, may_change=False)
        super().__init__(work, processes)
        self.source = source
        self.elements, self.is_random, self.can_fail = source.elements, source.is_random, source.can_fail
        self.random_ops, self.left_out = source.random_ops, source.left_out
        self.loading_is_called = source.loading_is_called

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    def begin_epoch(self, epoch: int, seed: int) -> Load:
        producer, form = self.producer(None), self.work.form

        def load(positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None) -> Any:
            made = producer.submit(("load", positions, seeds), self.name(int(positions[0]))).result()
            return form.loaded(made, len(positions), in_place)

        return load

    def load(
        self, positions: np.ndarray, seeds: np.ndarray | None, in_place: list[list[np.ndarray]] | None
    ) -> tuple[list[Column] | None, dict[int, Exception]]:
        return self.begin_epoch(0, 0)(positions, seeds, in_place)

    def name(self, position: int) -> str:
        return self.source.name(position)

    def identity(self) -> Identity | None:
        return self.source.identity()

    def order(self, *, shuffle: bool, seed: int, reshuffle_each_epoch: bool) -> ExampleOrder:
        return self.source.order(shuffle=shuffle, seed=seed, reshuffle_each_epoch=reshuffle_each_epoch)

    def labels_at(self, positions: np.ndarray) -> Any:
        return self.source.labels_at(positions)


def on_many_cores(source: Any, settings: Settings) -> Any:
    """A source as it loads fastest on this machine: in this process, or in several of so many threads each."""
    cores = min(available_cores(), settings.workers or available_cores())
    if not isinstance(source, ExampleSource) or cores <= CORES_OF_A_PROCESS or len(source) < FEWEST_EXAMPLES:
        return source
    processes = math.ceil(cores / CORES_OF_A_PROCESS)
    return InProcesses(source, processes, math.ceil(settings.parallel_calls / processes))
