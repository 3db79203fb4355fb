"""Calls from graphs into Python that keep nothing alive, and that end before the interpreter does."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_turbo.data.shared_arrays import aligned_zeros, tensor_view

# A thread that has looked at the flag calls Python within microseconds.
_ENTERING_SECONDS = 0.05
# Nothing here takes long; what does is not waited for.
_LONGEST_WAIT_SECONDS = 10.0

PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""The operations that call Python, behind which anything may be hidden."""


@tf.autograph.experimental.do_not_convert
def call_on(
    owner: Any, function: Callable, inputs: list[tf.Tensor], output_types: Any, *, returns_tensors: bool = False
) -> Any:
    """Graph code: `tf.numpy_function` of `function(owner, *inputs)` that does not keep the owner alive.

    TensorFlow keeps what numpy_function is given until the process ends. A store would stay in memory as long, whose
    dataset is gone.

    Args:
        owner: what the function works on. Whoever iterates holds its dataset, and that holds the owner.
        function: takes the owner and numpy arrays; must not hold the owner itself.
        inputs: tensors.
        output_types: as `Tout` of `tf.numpy_function`.
        returns_tensors: whether the function returns tensors, which are then not copied. It costs a little more a call.

    Raises:
        ReferenceError: when it runs: nobody holds the owner any more.
        tf.errors.InvalidArgumentError: when it runs: the process is ending.
    """
    reference = weakref.ref(owner)
    calls = _calls()

    def call(*arguments: Any) -> Any:
        with calls.running():
            alive = reference()
            if alive is None:
                raise ReferenceError(
                    "The FastDataset is gone that is being iterated. Keep a reference to it until the end."
                )
            try:
                return function(alive, *arguments)
            except Exception as error:
                text = str(error)
                if _is_unicode(text):
                    raise
                # TensorFlow loses such a message, or ends the process over it (2.17 to 2.21).
                readable = text.encode("utf-8", "backslashreplace").decode()
                raise RuntimeError(f"{type(error).__name__}: {readable}") from None

    # The raw op: tf.debugging.Assert makes a branch of it, which each iterator would have to instantiate.
    is_open = tf.raw_ops.Assert(condition=calls.open_view, data=["The process is ending."])
    with tf.control_dependencies([is_open]):
        if returns_tensors:
            return tf.py_function(lambda *tensors: call(*(tensor.numpy() for tensor in tensors)), inputs, output_types)
        return tf.numpy_function(call, inputs, output_types)


@tf.autograph.experimental.do_not_convert
def call_if_alive(owner: Any, function: Callable, inputs: list[tf.Tensor]) -> tf.Tensor:
    """Graph code: as `call_on` of a function that returns nothing, for cleaning up: it fails never, and gives 0.

    Nothing is called if nobody holds the owner any more, or if the process is ending.
    """
    reference = weakref.ref(owner)
    calls = _calls()

    def call(*arguments: Any) -> np.int64:
        with calls.running():
            alive = reference()
            if alive is not None:
                function(alive, *arguments)
        return np.int64(0)

    def called() -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(call, inputs, tf.int64), [])

    return tf.cond(calls.open_view, called, lambda: tf.constant(0, tf.int64))


def process_is_ending() -> bool:
    """Whether the interpreter waits for calls from graphs to return."""
    return not _calls().open


def _is_unicode(text: str) -> bool:
    """Whether nothing in it stands for bytes of a file name that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Calls:
    """Keeps account of the calls that run, and lets no new ones in once the interpreter ends.

    Batches are made in threads of TensorFlow, which go on when the main program is through. One of them that calls
    Python while the interpreter is finalized never comes back, and the process hangs or aborts.
    """

    def __init__(self) -> None:
        self._open = aligned_zeros((), np.bool_)
        self._open[...] = True
        with tf.init_scope(), tf.device("CPU:0"):
            #: bool scalar for graph code: whether Python may be called.
            self.open_view = tensor_view(self._open)
        self._number_running = 0
        self._changed = threading.Condition()
        atexit.register(self._end)

    @property
    def open(self) -> bool:
        return bool(self._open)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A context in which a call runs."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    def _add(self, number: int) -> None:
        with self._changed:
            self._number_running += number
            self._changed.notify_all()

    def _end(self) -> None:
        self._open[...] = False
        time.sleep(_ENTERING_SECONDS)
        with self._changed:
            self._changed.wait_for(lambda: self._number_running == 0, timeout=_LONGEST_WAIT_SECONDS)


@functools.cache
def _calls() -> _Calls:
    # Made by the first dataset, since importing a package is no reason for TensorFlow to begin its work.
    return _Calls()
