"""Variables -> arrays, by several threads and without a copy between."""

from __future__ import annotations

import collections
import os
import threading
from typing import Any

import numpy as np
import tensorflow as tf

# 403 MB on two cores: 31 ms with one thread, 26 with two, no less with more. The memory is what limits, so that a few
# threads use all of it; more would take cores from the input pipeline.
MAX_THREADS = 4
# Large enough that handing out parts costs nothing (1 MB was slower), small enough that threads end together.
PART_BYTES = 8 << 20


def read_tensor(variable: Any) -> tf.Tensor:
    """The value of a variable, without copying it where TensorFlow shares its memory.

    On a CPU the tensor is the variable's own memory, which TensorFlow doesn't write to while it is held: an update
    goes to new memory. Of a variable with a copy on each replica it is the first one's, or the sum or mean where they
    differ.

    Args:
        variable: TensorFlow's.
    """
    if isinstance(variable, tf.distribute.DistributedValues):
        if variable.synchronization == tf.VariableSynchronization.ON_READ:
            return variable.read_value()
        variable = variable.distribute_strategy.experimental_local_results(variable)[0]
    # `read_value` runs two ops in scopes of their own, 70 µs; this one takes 8.
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def copy_all(pairs: list[tuple[np.ndarray, tf.Tensor]], num_threads: int | None = None) -> None:
    """Copies each tensor into its array.

    Args:
        pairs: arrays and tensors of equal shapes and dtypes. The list is emptied, so that tensors are let go of.
        num_threads: how many threads copy, this one among them. None, the default: as many as are worth it.
    """
    if num_threads is None:
        size = sum(array.nbytes for array, _ in pairs)
        num_threads = min(MAX_THREADS, _num_cpus(), -(-size // PART_BYTES)) or 1
    if num_threads == 1:
        while pairs:
            array, tensor = pairs.pop()
            np.copyto(_as_integers(array), _as_integers(np.asarray(tensor)))
        return
    parts: collections.deque[tuple[np.ndarray, np.ndarray]] = collections.deque()
    while pairs:
        array, tensor = pairs.pop()
        to, source = _as_integers(array), _as_integers(np.asarray(tensor))
        step = PART_BYTES // to.itemsize
        # Small ones come last, when threads look for something to do.
        add = parts.append if to.nbytes < PART_BYTES else parts.appendleft
        for begin in range(0, to.size, step):
            add((to[begin : begin + step], source[begin : begin + step]))

    errors: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                try:
                    to, source = parts.popleft()
                except IndexError:
                    return
                # NumPy lets other threads run meanwhile.
                np.copyto(to, source)
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=work, name="keras_turbo copy") for _ in range(num_threads - 1)]
    try:
        for helper in helpers:
            helper.start()
        work()
    finally:
        # Not one may still write when the caller goes on, whatever has happened.
        parts.clear()
        for helper in helpers:
            if helper.ident is not None:
                helper.join()
    if errors:
        raise errors[0]


def _as_integers(array: np.ndarray) -> np.ndarray:
    """The same memory, flat, in a dtype that NumPy copies fast and without the GIL: bfloat16 is foreign to it."""
    flat = array.reshape(-1)
    return flat.view(f"u{flat.itemsize}") if flat.itemsize in (1, 2, 4, 8) else flat.view(np.uint8)


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
