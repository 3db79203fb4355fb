"""Data in Python for tests; worker processes import this module, so it imports no TensorFlow."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np


class Sequence:
    """The methods of a PyDataset, without importing Keras: a worker process is up in a moment."""

    def __init__(self, number=6, rows=4, last_rows=2):
        self.number, self.rows, self.last_rows = number, rows, last_rows

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        rows = self.last_rows if index == self.number - 1 else self.rows
        return np.full((rows, 3), index, np.float64), np.full(rows, index, np.int64)

    def on_epoch_end(self):
        pass


class Endless(Sequence):
    num_batches = None

    def __getitem__(self, index):
        return np.full((2, 1), index, np.float32), np.full(2, index, np.int64)


class Counted(Sequence):
    """Writes a line for each batch that is made."""

    def __init__(self, path, **options):
        super().__init__(**options)
        self.path = str(path)

    def __getitem__(self, index):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{index} {os.getpid()}\n")
        return super().__getitem__(index)

    def made(self):
        path = Path(self.path)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(int(line.split()[0]) for line in lines)


class Reordering(Sequence):
    """Shuffles at each epoch's end, as many people's PyDatasets do."""

    def __init__(self, seed=0):
        super().__init__(number=8)
        self.order = np.arange(8)
        self.random = np.random.default_rng(seed)
        self.calls = []

    def __getitem__(self, index):
        return np.full((2, 1), self.order[index], np.float32)

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")
        self.random.shuffle(self.order)


class Noisy(Sequence):
    """Draws from the global random numbers."""

    def __getitem__(self, index):
        return np.random.rand(2, 3) + random.random()  # noqa: NPY002


class Failing(Sequence):
    def __init__(self, bad=(3,), **options):
        super().__init__(**options)
        self.bad = set(bad)

    def __getitem__(self, index):
        if index in self.bad:
            raise ZeroDivisionError(f"no batch for {index}")
        return super().__getitem__(index)


class Dying(Sequence):
    """The process that makes batch 3 of it ends, by a signal or by an exit code."""

    def __init__(self, how, parent):
        super().__init__()
        self.how, self.parent = how, parent

    def __getitem__(self, index):
        if index == 3 and os.getpid() != self.parent:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(7)
        return super().__getitem__(index)


class Shrinking(Sequence):
    def on_epoch_end(self):
        self.number -= 1


class BadHooks(Sequence):
    """Fails at the beginning or the end of epoch 1."""

    def __init__(self, hook):
        super().__init__()
        self.hook, self.epoch = hook, 0

    def on_epoch_begin(self):
        if self.hook == "begin" and self.epoch == 1:
            raise LookupError("no beginning")

    def on_epoch_end(self):
        self.epoch += 1
        if self.hook == "end" and self.epoch == 2:
            raise LookupError("no end")


class Varied(Sequence):
    """Gives an item of a list for each index."""

    def __init__(self, items):
        super().__init__(number=len(items))
        self.items = items

    def __getitem__(self, index):
        return self.items[index]


class Slow(Sequence):
    def __getitem__(self, index):
        time.sleep(0.003)
        return super().__getitem__(index)


class Large(Sequence):
    """Holds an array, and tells where in memory its worker has it."""

    def __init__(self, array):
        super().__init__(number=4)
        self.array = array

    def __getitem__(self, index):
        return np.full((1, 1), float(self.array[index])), np.full(1, isinstance(self.array, np.memmap))


def seventy():
    for number in range(70):
        yield np.full(2, number, np.float32), number % 3


def batches():
    for number in range(5):
        yield np.full((number + 1, 2), number, np.float64)


LENGTHS = (3, 3, 1, 0, 5, 2)


def sequences():
    """Of which the first two have one length by chance."""
    for number, length in enumerate(LENGTHS):
        yield np.full(length, number, np.float64), number


def pictures():
    for number in range(5):
        yield np.zeros((number + 1, number + 2, 3), np.uint8)


def failing_at_1000():
    for number in range(2000):
        if number == 1000:
            raise LookupError("item 1,000 is missing")
        yield np.float32([number])


def endless():
    number = 0
    while True:
        yield np.float32([number])
        number += 1


def noisy():
    for _ in range(10):
        yield np.random.rand(2) + random.random()  # noqa: NPY002


def empty():
    return iter(())


def dealt_out(shard_index, num_shards):
    for number in range(shard_index, 20, num_shards):
        yield np.full((1, 1), number, np.float32)


def named():
    for number in range(7):
        yield f"näme {number}", np.uint8(number), number % 2 == 1


def doubled(x):
    return x * 2


def summed(x, y):
    return np.float32([x.sum(), y]), y


def of_other_shape(x):
    return np.zeros(int(x[0]) % 3 + 1, np.float32)


def failing_on_seven(x):
    if x[0] == 7:
        raise ZeroDivisionError("seven")
    return x


def length_of_file(path):
    return np.float32([len(Path(path).read_bytes())])
