"""The state of a model at one step, copied into host memory that is ready for it.

Saving stops training because it writes while training waits. A copy in memory takes a twentieth of that, if the memory
is there: most of the time of a copy into new arrays goes into page faults. So memory for two snapshots, one that is
being written and one that waits, is allocated and touched once and used again and again.
"""

from __future__ import annotations

import collections
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.fit.keras_internals import global_seed_generator
from keras_turbo.fit.train_function import own_train_function
from keras_turbo.fit.training_state import ModelState, find_state, is_variable, raw
from keras_turbo.machine import free_memory_bytes

# Memory that may never be needed is allocated in advance where it takes no more than this part of what is free.
_PART_OF_FREE = 0.5
# 403 MB on two cores: 31 ms with one thread, 26 with two, no less with more. The memory is what limits, so that a few
# threads use all of it; more would take cores from the input pipeline.
_MAX_THREADS = 4
# Large enough that handing out parts costs nothing (1 MB was slower), small enough that threads end together.
PART_BYTES = 8 << 20


class Snapshot:
    """The state of a model at one step, in host memory.

    Whoever has it must release it: until then its memory is not used for another one. It is a context manager that
    does so.

    Attributes:
        weights: as `ModelState.weights`, with arrays for variables. They have their values after `wait`, until it is
            released.
        extra: as `ModelState.extra`, likewise.
        names: as `ModelState.names`.
        nbytes: bytes of the variables, each counted once.
    """

    def __init__(
        self, found: _Found, arrays: Mapping[int, np.ndarray], pairs: list[Any], release: Callable[[], None]
    ) -> None:
        def filled(part: Mapping[str, Any], keys: Mapping[str, int]) -> Mapping[str, np.ndarray]:
            return MappingProxyType({path: arrays.get(keys.get(path, 0), value) for path, value in part.items()})

        state = found.state
        self.weights, self.extra = filled(state.weights, found.keys), filled(state.extra, found.keys)
        self.names = state.names
        self.nbytes = sum(array.nbytes for array in arrays.values())
        self._pairs = pairs
        self._error: BaseException | None = None
        self._give_back: Callable[[], None] | None = release

    def wait(self) -> None:
        """Gives the arrays their values, where the snapshot was taken by reference. To be called in another thread."""
        if self._error is not None:
            raise self._error
        try:
            # The list is emptied as it is copied, so that the device gets its memory back piece by piece.
            copy_all(self._pairs, num_threads=1)
        except BaseException as error:
            self._error = error
            raise

    def release(self) -> None:
        """Gives the memory back, as often as one likes."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            self._pairs.clear()
            give_back()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Snapshots:
    """Takes snapshots of a model between two steps, where `fit` calls its callbacks.

    Ops that change variables have ended there, or are ahead of the reads in the same queue. On a GPU a snapshot is
    taken by reference: the tensors behind the variables are kept, and the next step writes into new ones, since
    TensorFlow copies on write. `Snapshot.wait` copies them to the host, behind the steps; until then the state is on
    the device twice. On a CPU the step that follows would pay for new memory, which takes longer than the copy.

    Under a strategy with replicas one copy is taken: the first replica's, or the sum or mean of what differs between
    replicas (metrics).

    Attributes:
        skipped: how many snapshots were skipped.
        waited_ms: for how long `take` has waited for a snapshot to be released, in all.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        num_buffers: int = 2,
        when_busy: Literal["wait", "skip"] = "wait",
        by_reference: bool | Literal["auto"] = "auto",
    ) -> None:
        self.skipped = 0
        self.waited_ms = 0.0
        self._model = model
        self._when_busy = when_busy
        self._by_reference = by_reference
        self._num_left = num_buffers
        # None after `close`.
        self._free: queue.LifoQueue[Buffers] | None = queue.LifoQueue()
        self._found_with: tuple[Any, ...] = ()
        self._found = self._find()
        while self._num_left:
            made = self._make()
            self._free.put(made)
            arrays = made.arrays_for(self._found.variables)
            if sum(array.nbytes for array in arrays.values()) > free_memory_bytes() * _PART_OF_FREE:
                break

    def take(self) -> Snapshot | None:
        """Takes a snapshot of the model as it is now; None where it was skipped."""
        found = self._find()
        buffers = self._acquire()
        if buffers is None:
            return None
        try:
            arrays = buffers.arrays_for(found.variables)
            pairs = [(arrays[key], read_tensor(variable)) for key, variable in found.variables.items()]
            by_reference = self._by_reference
            if by_reference == "auto":
                by_reference = any("CPU" not in tensor.device for _, tensor in pairs)
            if not by_reference:
                copy_all(pairs)
        except BaseException:
            self._release(buffers)
            raise
        return Snapshot(found, arrays, pairs, lambda: self._release(buffers))

    def find_again(self) -> None:
        """Finds the variables anew, of which the first step has created some, and gets memory for them."""
        self._found_with = ()
        found, free = self._find(), self._free
        if free is None:
            return
        for _ in range(free.qsize()):
            buffers = free.get_nowait()
            buffers.arrays_for(found.variables)
            free.put(buffers)

    def close(self) -> None:
        """Lets go of the memory. Snapshots that are not released yet stay valid."""
        self._free = None

    def _find(self) -> _Found:
        # A model that is compiled anew gets another train function; TensorFlow refuses variables that one creates after
        # its first call.
        found_with = (own_train_function(self._model), global_seed_generator(create=False))
        if len(self._found_with) != 2 or any(a is not b for a, b in zip(found_with, self._found_with, strict=True)):
            self._found, self._found_with = _Found(find_state(self._model)), found_with
            return self._found
        return self._found.refresh()

    def _acquire(self) -> Buffers | None:
        if self._free is None:
            raise RuntimeError("The memory for snapshots was given back: `close` has been called.")
        try:
            return self._free.get_nowait()
        except queue.Empty:
            if self._num_left:
                return self._make()
        if self._when_busy == "skip":
            self.skipped += 1
            return None
        start = time.perf_counter()
        buffers = self._free.get()
        self.waited_ms += (time.perf_counter() - start) * 1e3
        return buffers

    def _make(self) -> Buffers:
        self._num_left -= 1
        made = Buffers()
        made.arrays_for(self._found.variables)
        return made

    def _release(self, buffers: Buffers) -> None:
        free = self._free
        if free is not None:
            free.put(buffers)


class Buffers:
    """Arrays for the variables of one snapshot."""

    def __init__(self) -> None:
        # The variables are kept, too: an id is good for as long as its object lives.
        self._arrays: dict[int, tuple[Any, np.ndarray]] = {}

    def arrays_for(self, variables: Mapping[int, Any]) -> dict[int, np.ndarray]:
        """An array for each variable, by its id: the one that it had before, or a new one whose pages are there."""
        kept = {key: self._arrays[key] for key in variables if key in self._arrays}
        # What has gone goes first, so that a model compiled anew does not need room for two optimizers.
        self._arrays = kept
        for key, variable in variables.items():
            if key not in kept:
                kept[key] = (variable, _touched(variable))
        return {key: kept[key][1] for key in variables}


class _Found:
    """A state, with what need not be asked of Keras at each save: that takes 40 µs a variable.

    Attributes:
        state: of the model.
        variables: TensorFlow's, each once, by their ids.
        keys: path to the id of the variable that is there; of those paths that have one.
    """

    def __init__(self, state: ModelState) -> None:
        self.state = state
        found = {path: raw(one) for path, one in {**state.weights, **state.extra}.items() if is_variable(one)}
        self.variables = {id(variable): variable for variable in found.values()}
        self.keys = {path: id(variable) for path, variable in found.items()}

    def refresh(self) -> _Found:
        """The same, with arrays that layers compute from their variables computed anew."""
        state = self.state.refresh()
        return self if state is self.state else _Found(state)


def _touched(variable: Any) -> np.ndarray:
    dtype = variable.dtype
    if dtype in (tf.string, tf.variant, tf.resource) or not variable.shape.is_fully_defined():
        raise ValueError(
            f"The variable {variable.name!r} can't be saved: it is of {dtype.name} {variable.shape}. A variable must "
            "be of numbers and have a fixed shape."
        )
    array = np.empty(variable.shape, dtype.as_numpy_dtype)
    # The kernel gives memory when it is first written to. `zeros` would put that off.
    array.fill(0)
    return array


def read_tensor(variable: Any) -> tf.Tensor:
    """The value of one of TensorFlow's variables, without copying it where TensorFlow shares its memory.

    On a CPU the tensor is the variable's own memory, which TensorFlow doesn't write to while it is held: an update
    goes to new memory. Of a variable with a copy on each replica it is the first one's, or the sum or mean where they
    differ.
    """
    if isinstance(variable, tf.distribute.DistributedValues):
        if variable.synchronization == tf.VariableSynchronization.ON_READ:
            return variable.read_value()
        variable = variable.distribute_strategy.experimental_local_results(variable)[0]
    # `read_value` runs two ops in scopes of their own, 70 µs; this one takes 8.
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def copy_all(pairs: list[tuple[np.ndarray, tf.Tensor]], num_threads: int | None = None) -> None:
    """Copies each tensor into its array, of equal shape and dtype."""
    if num_threads is None:
        size = sum(array.nbytes for array, _ in pairs)
        num_threads = min(_MAX_THREADS, _num_cpus(), -(-size // PART_BYTES)) or 1
    parts: collections.deque[tuple[np.ndarray, np.ndarray]] = collections.deque()
    while pairs:
        array, tensor = pairs.pop()
        to, source = _as_integers(array), _as_integers(np.asarray(tensor))
        if num_threads == 1:
            np.copyto(to, source)
            continue
        step = PART_BYTES // to.itemsize
        # Small ones come last, when threads look for something to do.
        add = parts.append if to.nbytes < PART_BYTES else parts.appendleft
        for begin in range(0, to.size, step):
            add((to[begin : begin + step], source[begin : begin + step]))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while parts:
                to, source = parts.popleft()
                # NumPy lets other threads run meanwhile.
                np.copyto(to, source)
        except IndexError:
            # Another thread has taken the last one.
            return
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
