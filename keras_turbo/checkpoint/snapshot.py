"""The state of a model at one step, copied into host memory that is ready for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import keras
import numpy as np

from keras_turbo.checkpoint.buffers import BufferPool, BufferSet
from keras_turbo.checkpoint.first_step import build_optimizer
from keras_turbo.checkpoint.host_copy import copy_all, read_tensor
from keras_turbo.checkpoint.model_state import ModelState, collect_state, is_variable, raw
from keras_turbo.checkpoint.structure_watch import StructureWatch

_logger = logging.getLogger(__name__)


class Snapshot:
    """The state of a model at one step, in host memory.

    Whoever has it must release it: until then its memory is not used for another one. It is a context manager that
    does so.

    Attributes:
        weights: as `ModelState.weights`, with arrays for variables. Valid until it is released.
        extra: as `ModelState.extra`, likewise.
        stall_ms: for how long `Snapshots.take` held its caller up.
        nbytes: bytes of the variables, each counted once.
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        extra: Mapping[str, np.ndarray],
        nbytes: int,
        release: Callable[[], None],
    ) -> None:
        self.weights = weights
        self.extra = extra
        self.nbytes = nbytes
        self.stall_ms = 0.0
        self._give_back: Callable[[], None] | None = release
        self._lock = threading.Lock()
        self._copying: threading.Thread | None = None
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Waits until the arrays have their values. At once, unless the snapshot was taken by reference.

        Raises:
            Exception: whatever the copy from the device has failed with.
        """
        if self._copying is not None:
            self._copying.join()
        if self._error is not None:
            raise self._error

    def release(self) -> None:
        """Gives the memory back, from any thread and as often as one likes."""
        if self._copying is not None:
            self._copying.join()
        with self._lock:
            give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _copy_in_background(self, copy: Callable[[], None]) -> None:
        def run() -> None:
            try:
                copy()
            except BaseException as error:
                self._error = error

        # No daemon: a save that is pending when the interpreter ends is written all the same.
        self._copying = threading.Thread(target=run, name="keras_turbo snapshot")
        self._copying.start()


class Snapshots:
    """Takes snapshots of a model between two steps.

    Saving stops training because it writes while training waits. A copy in memory takes a twentieth of that, if the
    memory is there: most of the time of a copy into new arrays goes into page faults. So memory for at most
    `num_buffers` snapshots is allocated and touched once, when this is made; where free memory is short, for one
    then, and for another when both are needed. The optimizer's variables are created for that.

    A snapshot is of one moment: `take` is to be called where `fit` calls its callbacks, between two executions. Ops
    that change variables have ended there, or are ahead of the reads in the same queue.

    On a GPU a snapshot is taken by reference: the tensors behind the variables are kept, and the next step writes into
    new ones, since TensorFlow copies on write. A thread copies them to the host behind the steps. Until it is through,
    the state is on the device twice; set `by_reference=False` where there is no room for that.

    Under a strategy with replicas one copy is taken: the first replica's, or the sum or mean of what differs between
    replicas (metrics).

    Example:

    ```python
    snapshots = Snapshots(model)
    snapshot = snapshots.take()
    with snapshot:
        snapshot.wait()
        write(snapshot.weights, snapshot.extra)
    ```

    Args:
        model: a built model.
        num_buffers: how many snapshots there may be at a time. Default: 2, one being written and one waiting.
        when_busy: what `take` does when there are so many: "wait", the default, until one is released, or "skip".
            Whatever it does is counted and logged.
        by_reference: True, False, or "auto", the default: where a variable is not on a CPU. On a CPU the step that
            follows pays for new memory, which takes longer than the copy.

    Attributes:
        skipped: how many snapshots were skipped.
        waited_ms: for how long `take` has waited for a snapshot to be released, in all.

    Raises:
        ValueError: an argument is out of its range, or the model isn't built.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        num_buffers: int = 2,
        when_busy: Literal["wait", "skip"] = "wait",
        by_reference: bool | Literal["auto"] = "auto",
    ) -> None:
        if isinstance(num_buffers, bool) or not isinstance(num_buffers, int) or num_buffers < 1:
            raise ValueError(f"`num_buffers` must be a positive whole number. Received: {num_buffers!r}.")
        if when_busy not in ("wait", "skip"):
            raise ValueError(f'`when_busy` must be "wait" or "skip". Received: {when_busy!r}.')
        if not isinstance(by_reference, bool) and by_reference != "auto":
            raise ValueError(f'`by_reference` must be True, False or "auto". Received: {by_reference!r}.')
        self.skipped = 0
        self.waited_ms = 0.0
        self._model = model
        self._when_busy = when_busy
        self._by_reference = by_reference
        # So that the memory for it is there before the first step.
        build_optimizer(model)
        self._watch = StructureWatch(model)
        # None where it has to be collected anew.
        self._state: ModelState | None = collect_state(model)
        self._pool = BufferPool(num_buffers)
        self._pool.prepare(_variables(self._state))

    def take(self) -> Snapshot | None:
        """Takes a snapshot of the model as it is now.

        Returns:
            The snapshot; None where it was skipped.

        Raises:
            RuntimeError: after `close`.
        """
        start = time.perf_counter()
        if self._watch.has_changed():
            self._state = None
        if self._state is None:
            self._state = collect_state(self._model)
        state = self._state.refresh()
        variables = _variables(state)
        buffers = self._acquire()
        if buffers is None:
            return None
        try:
            snapshot = self._fill(state, variables, buffers)
        except BaseException:
            self._pool.release(buffers)
            raise
        snapshot.stall_ms = (time.perf_counter() - start) * 1e3
        return snapshot

    def close(self) -> None:
        """Lets go of the memory. Snapshots that are not released yet stay valid."""
        self._pool.close()

    def _acquire(self) -> BufferSet | None:
        buffers = self._pool.acquire(block=False)
        if buffers is not None:
            return buffers
        if self._when_busy == "skip":
            self.skipped += 1
            _logger.warning(
                "Skipped a snapshot, since those before it are still being written (%d skipped so far).", self.skipped
            )
            return None
        start = time.perf_counter()
        buffers = self._pool.acquire(block=True)
        waited_ms = (time.perf_counter() - start) * 1e3
        self.waited_ms += waited_ms
        _logger.warning(
            "Training waited %.0f ms, since the snapshots before this one are still being written. Save less often.",
            waited_ms,
        )
        return buffers

    def _fill(self, state: ModelState, variables: dict[int, Any], buffers: BufferSet) -> Snapshot:
        arrays = buffers.arrays_for(variables)
        weights, extra = (
            {path: arrays[id(raw(value))] if is_variable(value) else value for path, value in part.items()}
            for part in (state.weights, state.extra)
        )
        snapshot = Snapshot(
            MappingProxyType(weights),
            MappingProxyType(extra),
            sum(array.nbytes for array in arrays.values()),
            lambda: self._pool.release(buffers),
        )
        pairs = [(arrays[key], read_tensor(variable)) for key, variable in variables.items()]
        by_reference = self._by_reference
        if by_reference == "auto":
            by_reference = any("CPU" not in tensor.device for _, tensor in pairs)
        if by_reference:
            # The list is emptied as it is copied, so that the device gets its memory back piece by piece.
            snapshot._copy_in_background(lambda: copy_all(pairs, num_threads=1))
        else:
            copy_all(pairs)
        return snapshot


def _variables(state: ModelState) -> dict[int, Any]:
    """TensorFlow's variables of a state, each once, by their ids."""
    values = [*state.weights.values(), *state.extra.values()]
    return {id(raw(value)): raw(value) for value in values if is_variable(value)}
