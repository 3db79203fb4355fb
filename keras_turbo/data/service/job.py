"""What the workers of a tf.data service make of one dataset, read in a thread of its own.

TensorFlow's client waits for workers and asks again for as long as it takes, which may be for ever. In a thread, it can
be waited for with a limit, and left.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

# The one way to end a call that waits inside of TensorFlow (2.17 to 2.21); there is no public one.
from tensorflow.python.eager import cancellation  # pyright: ignore[reportMissingImports]

from keras_turbo.data.python_calls import process_is_ending
from keras_turbo.data.service.address import ServiceAddress

# Elements that are ready ahead of who reads; the client of TensorFlow has some more from each worker.
_READ_AHEAD = 2
# A thread that is told to end does so within milliseconds; one that is in the middle of a call is not waited for.
_END_SECONDS = 5.0
# Who waits looks up so often.
_LOOK_SECONDS = 0.2


class NothingArrivedError(TimeoutError):
    """No element came within the time given."""


class JobClosedError(RuntimeError):
    """Nobody is to read the job any more."""


class ServiceJob:
    """One reading of a dataset by all workers of a service. It must be closed.

    Args:
        address: of the dispatcher.
        dataset: what the workers make.
        sharding: DYNAMIC has each element of the dataset's source made by one of the workers, OFF by each of them.
    """

    def __init__(
        self,
        address: ServiceAddress,
        dataset: tf.data.Dataset,
        sharding: tf.data.experimental.service.ShardingPolicy,
    ) -> None:
        self._results: queue.Queue[list[np.ndarray] | Exception | None] = queue.Queue(_READ_AHEAD)
        self._is_closed = threading.Event()
        self._cancellation = cancellation.CancellationManager()
        self._thread = threading.Thread(
            target=self._read, args=(str(address), dataset, sharding), name="keras_turbo data service", daemon=True
        )
        _open_jobs.add(self)
        self._thread.start()

    def next(self, seconds: float) -> list[np.ndarray] | None:
        """The tensors of some element that is ready, flattened; None at the end.

        Args:
            seconds: how long to wait for it.

        Raises:
            NothingArrivedError: none came.
            JobClosedError: it was closed meanwhile, or the process is ending.
            tf.errors.OpError: what the dispatcher or a worker raised.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            try:
                result = self._results.get(timeout=min(_LOOK_SECONDS, max(0.0, left)))
                break
            except queue.Empty:
                if left <= 0:
                    raise NothingArrivedError(f"Nothing came in {seconds:g} s.") from None
            # At the interpreter's end no call of Python may be left that waits.
            if self._is_closed.is_set() or process_is_ending():
                raise JobClosedError("The job was closed.")
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Ends it, also in the middle of a wait."""
        self._is_closed.set()
        self._cancellation.start_cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)
        _open_jobs.discard(self)

    def _read(self, service: str, dataset: tf.data.Dataset, sharding: Any) -> None:
        api = tf.data.experimental.service
        try:
            with tf.device("CPU:0"):
                # Pixels and floats hardly compress, and both sides would work at it.
                dataset_id = api.register_dataset(service, dataset, compression=None)
                made = api.from_dataset_id(sharding, service, dataset_id, element_spec=dataset.element_spec)
                iterator = iter(made)
                # The iterator is an argument: what a function captures lives until the next collection of garbage.
                function = tf.function(lambda one: tf.nest.flatten(one.get_next()), autograph=False)
                pull = self._cancellation.get_cancelable_function(function.get_concrete_function(iterator))
                while not self._is_closed.is_set():
                    self._give([tensor.numpy() for tensor in pull(iterator)])
        except tf.errors.OutOfRangeError:
            self._give(None)
        except Exception as error:  # raised in the thread that reads
            self._give(error)

    def _give(self, result: list[np.ndarray] | Exception | None) -> None:
        while not self._is_closed.is_set():
            try:
                self._results.put(result, timeout=0.2)
            except queue.Full:
                continue
            return


_open_jobs: weakref.WeakSet[ServiceJob] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for job in list(_open_jobs):
        job.close()
