"""Where tf.data meets Python: a dataset whose elements a Python object gives, a new object for each iterator.

Nothing in a graph keeps a dataset alive, since TensorFlow holds what it is given until the process ends. And no call
enters Python once the interpreter ends, since batches are made in threads of TensorFlow, which go on.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.slots import aligned_empty
from keras_turbo.fit.keras_internals import on_one_device

# A thread that has looked at the flag calls Python within microseconds.
_ENTERING_SECONDS = 0.05
# Nothing here takes long; what does is not waited for.
_LONGEST_WAIT_SECONDS = 10.0

# Batches made ahead of the step that takes them. Two, since one hides the making and a second evens out a slow batch.
PREFETCHED_BATCHES = 2

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class Session(Protocol):
    """What is read by one iterator."""

    def next(self) -> list[np.ndarray]:
        """The tensors of the next element, flattened; raises StopIteration at the end."""
        ...

    def close(self) -> None:
        """Called once, when the iterator has read all or is gone."""
        ...


class VariantDataset(tf.data.Dataset):
    """A dataset around a variant tensor.

    `tf.data.experimental.from_variant` does nearly the same, but knows neither what the dataset was made of, of which
    it has its options, nor what must not be collected while it is iterated.

    Args:
        variant: the tensor that stands for the dataset.
        element_spec: structure of `tf.TypeSpec`s of an element; may know less of shapes than the tensor does.
        inputs: the datasets that it was made of.
        holds: further objects that live as long as the dataset, and so as its iterators.
    """

    def __init__(self, variant: tf.Tensor, element_spec: Any, inputs: list[tf.data.Dataset], holds: Any) -> None:
        self._spec = element_spec
        self._made_of = inputs
        self._holds = holds
        # What pyright takes for the base class is a front of it.
        super().__init__(variant)  # pyright: ignore[reportCallIssue]

    @property
    def element_spec(self) -> Any:
        """The structure of `tf.TypeSpec`s of an element."""
        return self._spec

    def _inputs(self) -> list[tf.data.Dataset]:
        return self._made_of


class Sessions:
    """The sessions of a dataset.

    Args:
        begin: makes a session of some integers, when the first element of an iterator is asked for.
    """

    def __init__(self, begin: Callable[..., Session]) -> None:
        self._begin = begin
        self._open: dict[int, Session] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def dataset(self, inputs: Sequence[tf.Tensor], specs: Sequence[tf.TensorSpec]) -> tf.data.Dataset:
        """Graph code: a dataset of the elements of a session, tuples of tensors, a new session for each iterator.

        Args:
            inputs: int64 scalars that `begin` is called with.
            specs: of the tensors of an element.
        """
        number = tf.TensorSpec([], tf.int64)

        def begin(*values: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(call_on(self, Sessions.begin, list(values), tf.int64), [])

        def following(session: tf.Tensor) -> list[tf.Tensor]:
            tensors = call_on(self, Sessions.next, [session], [spec.dtype for spec in specs])
            return [tf.ensure_shape(tensor, spec.shape) for tensor, spec in zip(tensors, specs, strict=True)]

        def end(session: tf.Tensor) -> tf.Tensor:
            # Cleaning up never fails, and calls nobody who is gone.
            return tf.cond(
                _calls().open_view,
                lambda: tf.ensure_shape(call_on(self, Sessions.end, [session], tf.int64, is_needed=False), []),
                lambda: tf.constant(0, tf.int64),
            )

        begun = traced_on_cpu(begin, [number] * len(inputs))
        read = traced_on_cpu(following, [number])
        ended = traced_on_cpu(end, [number])
        # What tf.data.Dataset.from_generator is made of. It tells when an iterator is gone, and does not copy arrays.
        variant = tf.raw_ops.GeneratorDataset(
            init_func_other_args=[*inputs, *begun.captured_inputs],
            next_func_other_args=read.captured_inputs,
            finalize_func_other_args=ended.captured_inputs,
            init_func=begun,
            next_func=read,
            finalize_func=ended,
            output_types=[spec.dtype for spec in specs],
            output_shapes=[spec.shape for spec in specs],
        )
        _keep_freed_memory()
        return VariantDataset(variant, tuple(specs), [], holds=(begun, read, ended, self))

    def begin(self, *values: np.integer) -> np.int64:
        """Begins a session and gives its number."""
        with self._keeping_errors():
            session = self._begin(*map(int, values))
        with self._lock:
            number = next(self._numbers)
            self._open[number] = session
        return np.int64(number)

    def next(self, number: np.integer) -> list[np.ndarray]:
        """The next element of a session."""
        with self._keeping_errors():
            return self._open[int(number)].next()

    def end(self, number: np.integer) -> np.int64:
        """Ends a session."""
        with self._lock:
            session = self._open.pop(int(number), None)
        if session is not None:
            session.close()
        return np.int64(0)

    @contextlib.contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        try:
            yield
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise

    def take_cause_of(self, error: Exception) -> Exception:
        """What a session has raised last, where TensorFlow's error is about that; else the error itself.

        It is not kept: it holds the frames that it came through, which hold whoever asked for an element.
        """
        cause = self._error
        if cause is None or type(cause).__name__ not in str(error):
            return error
        self._error = None
        return cause


@functools.cache
def _keep_freed_memory() -> None:
    """Undoes what TensorFlow (2.21) does to the whole process with its first GeneratorDataset.

    It has glibc give memory back to the system as soon as 128 KB are free, and ask anew for what is larger than that,
    so that the memory of each batch comes with page faults: strings of 32 KB took twice the time. Left alone, glibc
    learns from what is freed, up to 64 and 32 MB; these are a good part of it.
    """
    with contextlib.suppress(OSError, AttributeError):  # there is no glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, num_bytes in ((_M_TRIM_THRESHOLD, 16 << 20), (_M_MMAP_THRESHOLD, 4 << 20)):
            mallopt(option, num_bytes)


def unbatched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """As `dataset.unbatch()` of a tuple of dense tensors, without the function that would make them dense."""
    specs = [tf.TensorSpec(spec.shape[1:], spec.dtype) for spec in tf.nest.flatten(dataset.element_spec)]
    variant = tf.raw_ops.UnbatchDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return VariantDataset(variant, tuple(specs), [dataset], holds=None)


def claim_cardinality(dataset: tf.data.Dataset, number: int) -> tf.data.Dataset:
    """The same elements, as a dataset that tells how many a whole epoch has, and may give fewer.

    `tf.data.experimental.assert_cardinality` fails where an epoch has fewer, as one has that begins in its middle. Here
    nobody fails: tf.data works the number out, from parts that could give so many.

    Args:
        dataset: gives at most `number` elements, whatever tf.data knows of it.
        number: elements of a whole epoch; `tf.data.INFINITE_CARDINALITY` is one, too.
    """

    def nothing_of_it(_: tf.Tensor) -> tf.data.Dataset:
        return dataset.take(0)

    # No element for ever: to tf.data it is infinite, as it does not look into functions, and so is what it ends.
    nothing = tf.data.Dataset.from_tensors(0).flat_map(tf.autograph.experimental.do_not_convert(nothing_of_it)).repeat()
    endless = dataset.concatenate(nothing)
    return endless if number == tf.data.INFINITE_CARDINALITY else endless.take(number)


def data_options(*, rewrites: bool = True) -> tf.data.Options:
    """Options under which the graphs here run; without `rewrites`, those that TensorFlow need not look through.

    tf.data's autotuner is off: with it, the same pipeline ran at half its rate in about every second epoch (on two
    cores, TensorFlow 2.21), and everything that it would tune has a value here.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    if not rewrites:  # which it would say on stderr that it can't do
        options.experimental_optimization.apply_default_optimizations = False
    return options


def traced_on_cpu(function: Callable[..., Any], signature: Sequence[tf.TensorSpec]) -> Any:
    """A function of tensors for an operation of tf.data, which stays on the CPU.

    TensorFlow instantiates the functions of a dataset anew for each iterator. It does so as if a function could spread
    over several devices: it is placed, split and optimized, which takes 2 to 3 ms each (TensorFlow 2.21, two cores),
    and an epoch of thirty short steps is over in 25. A function that says it stays on one device takes 0.2 ms.
    """
    traced: Any = tf.function(
        function, input_signature=signature, autograph=False, experimental_attributes=on_one_device()
    )
    return traced.get_concrete_function()


@tf.autograph.experimental.do_not_convert
def call_on(
    owner: Any, function: Callable, inputs: Sequence[tf.Tensor], output_types: Any, *, is_needed: bool = True
) -> Any:
    """Graph code: `tf.numpy_function` of `function(owner, *inputs)` that does not keep the owner alive.

    Args:
        owner: what the function works on. Whoever iterates holds its dataset, and that holds the owner.
        function: takes the owner and numpy arrays; must not hold the owner itself.
        inputs: tensors.
        output_types: as `Tout` of `tf.numpy_function`.
        is_needed: whether it is an error that nobody holds the owner any more; else the function gives an int64 0.

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
                if not is_needed:
                    return np.int64(0)
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
        return tf.numpy_function(call, inputs, output_types)


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
    """The account of the calls that run; once the interpreter ends, no new ones are let in.

    A thread of TensorFlow that calls Python while the interpreter is finalized never comes back, and the process hangs
    or aborts.
    """

    def __init__(self) -> None:
        self._open = aligned_empty((), np.bool_)
        self._open[...] = True
        with tf.init_scope(), tf.device("CPU:0"):
            #: bool scalar for graph code, over the same memory: whether Python may be called.
            self.open_view = tf.experimental.dlpack.from_dlpack(self._open.__dlpack__())
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
