"""A pipeline whose batches the workers of a tf.data service make, on other machines."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import re
import threading
import weakref
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.audio import INSTALLATION
from keras_turbo.data.claimed_cardinality import claim_cardinality
from keras_turbo.data.failures import ExampleLoadError, reason_of
from keras_turbo.data.pipeline import PREFETCHED_BATCHES, Pipeline, as_tensors, data_options
from keras_turbo.data.python_calls import PYTHON_OPS
from keras_turbo.data.service.address import DataServiceError, ServiceAddress
from keras_turbo.data.service.batch_stream import BatchStream
from keras_turbo.data.service.job import NothingArrivedError, ServiceJob
from keras_turbo.data.service.remote_batches import remote_batches
from keras_turbo.data.session_dataset import Sessions
from keras_turbo.data.settings import Settings
from keras_turbo.data.sources.source import Source

# A graph with the data in it goes to the dispatcher, which keeps it, and from there to each worker.
LARGEST_GRAPH_BYTES = 128 << 20

# Far more batches than anybody trains on, and few enough that numbers can be added.
_NO_END = 1 << 62

# What TensorFlow says of a path whose file system is not loaded.
_NO_FILE_SYSTEM = re.compile(r"File system scheme '([^']*)' not implemented")

# A worker that is alive begins a task within a second.
ANSWER_SECONDS = 20.0


def check_for_service(settings: Settings, source: Source) -> None:
    """Checks what can't be together with `service`.

    Raises:
        ValueError: an option or a source that needs this process.
    """
    given = f"service={settings.service!r}"
    if settings.cache not in ("auto", False):
        raise ValueError(
            f"cache={settings.cache!r} keeps examples in this process or on its disk, and with {given} others make "
            "them. Leave `cache` out."
        )
    if settings.on_error != "raise":
        raise ValueError(
            f"on_error='skip' needs an account of what was left out, which can't be kept with {given}. Remove damaged "
            "examples first: an epoch with on_error='skip' and without `service` lists them in `skipped`."
        )
    if settings.batch_size is None:
        raise ValueError(f"{given} sends batches: batch_size=None is not possible. Use .unbatch() behind it.")
    if source.why_not_remote is not None:
        raise ValueError(
            f"{given} runs the pipeline on other machines, and {source.why_not_remote}. Leave `service` out, or give "
            "arrays, images or files that are read by TensorFlow's operations."
        )
    if source.bytes_in_graph > LARGEST_GRAPH_BYTES:
        raise ValueError(_too_large(source.bytes_in_graph))


@dataclasses.dataclass
class ServicePipeline(Pipeline):
    """As `Pipeline`, with batches that come from a tf.data service: the same bytes in the same order.

    What is sent is a graph that makes a batch of its number, so that it does not matter which worker gets which number.
    Numbers are counted over all epochs, and one job goes on from epoch to epoch.
    """

    address: ServiceAddress | None = None

    gives_stacks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._sessions = Sessions(self._begin_session)
        self._idle: BatchStream | None = None
        self._in_use: set[BatchStream] = set()
        self._lock = threading.Lock()

    def used_by(self, dataset: Any) -> None:
        """Takes note of the dataset; when that is gone, so are the jobs."""
        weakref.finalize(dataset, self.close)

    def close(self) -> None:
        """Ends all jobs."""
        with self._lock:
            streams = [*self._in_use, *([] if self._idle is None else [self._idle])]
            self._in_use.clear()
            self._idle = None
        for stream in streams:
            stream.close()

    def check(self) -> None:
        """Sees to it that the graph can be sent, and that there is somebody to send it to.

        Raises:
            ValueError: it calls Python, or is too large.
            DataServiceError: no dispatcher answers.
        """
        self._check_graph()
        self._service.check()

    def dataset(self, *, stacked: int | None = None, only_stored: bool = False) -> tf.data.Dataset:
        whole: Any = self._batches_from(0).element_spec
        spec = whole["out"]
        number = self.num_batches(self.order.num_examples)
        batches = claim_cardinality(self._sessions.dataset([], spec), number, read_to_end=False)
        return batches.prefetch(PREFETCHED_BATCHES).with_options(data_options())

    def only_gathers(self) -> bool:
        return False

    def loaded_example(self, position: tf.Tensor, epoch: tf.Tensor) -> Any:
        seed = self._example_seed(epoch, position)
        example = self.source.load_remotely(position, seed)
        if self.map_fn is not None:
            example = self.map_fn(example)
        return example if self.augment_fn is None else self.augment_fn(example, seed)

    @property
    def _service(self) -> ServiceAddress:
        if self.address is None:
            raise ValueError("A pipeline on a data service needs its address.")
        return self.address

    @property
    def _batches_per_epoch(self) -> int:
        return self.num_batches(self.order.num_examples)

    @functools.cached_property
    def _example(self) -> Any:
        """`loaded_example` as a function that is traced once, and where the dataset is built.

        Jobs begin in threads of TensorFlow, in which neither AutoGraph nor Keras' settings are those of the user.
        """
        number = tf.TensorSpec([], tf.int64)

        def example(position: tf.Tensor, epoch: tf.Tensor) -> Any:
            return as_tensors(self.loaded_example(position, epoch))

        policy = keras.config.dtype_policy()

        def trace() -> Any:
            keras.config.set_dtype_policy(policy)  # each thread has its own
            with tf.device("CPU:0"):
                traced: Any = tf.function(example)
                return traced.get_concrete_function(number, number)

        # In a thread, since AutoGraph keeps errors that it has met, and with them the frames of who called it: the
        # dataset would never be collected.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            return thread.submit(trace).result()

    def _batches_from(self, first: int) -> tf.data.Dataset:
        with tf.device("CPU:0"):
            is_bare = self.source.in_memory and self.map_fn is None and self.augment_fn is None
            batches = remote_batches(
                tf.data.Dataset.range(first, _NO_END),
                self.order,
                self._example,
                self.source.gather if is_bare else None,
                batch_size=self.batch_size or 1,
                batches_per_epoch=max(1, self._batches_per_epoch),
                is_full=self.drop_remainder,
                parallel_calls=self.parallel_calls,
            )
            return batches.prefetch(PREFETCHED_BATCHES).with_options(data_options())

    def _check_graph(self) -> None:
        variant = tf.data.experimental.to_variant(self._batches_from(0))
        serialized: bytes = tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()  # pyright: ignore[reportAttributeAccessIssue]
        if len(serialized) > LARGEST_GRAPH_BYTES:
            raise ValueError(_too_large(len(serialized)))
        graph = tf.compat.v1.GraphDef.FromString(serialized)
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        calls = sorted({node.op for node in nodes} & PYTHON_OPS)
        if calls:
            raise ValueError(
                "`service` runs the pipeline on other machines, which have none of this process' Python code, and it "
                f"calls Python ({', '.join(calls)}): by tf.py_function or tf.numpy_function in a function of yours, or "
                "for a numpy.memmap. Use TensorFlow's operations, or leave `service` out."
            )

    def _start_job(self, first: int) -> ServiceJob:
        self._service.check()
        sharding = tf.data.experimental.service.ShardingPolicy.DYNAMIC
        return ServiceJob(self._service, self._batches_from(first), sharding)

    def _check_workers(self) -> None:
        """Raises DataServiceError where no worker is there."""
        self._service.check()
        job = ServiceJob(self._service, tf.data.Dataset.range(1), tf.data.experimental.service.ShardingPolicy.OFF)
        try:
            job.next(ANSWER_SECONDS)
        except (NothingArrivedError, tf.errors.OpError) as error:
            raise DataServiceError(
                f"The dispatcher at {self._service} answers, but no worker does: {error} Start some by "
                f"`python -m keras_turbo data-service worker --dispatcher {self._service}`, and see that this machine "
                "reaches them under the host that they were given."
            ) from error
        finally:
            job.close()

    def _begin_session(self) -> _ServiceSession:
        epoch, first_batch = self.counter.begin_epoch()
        count = self._batches_per_epoch
        first, end = int(epoch) * count + min(int(first_batch), count), (int(epoch) + 1) * count
        return _ServiceSession(self, first, end)

    def take_stream(self, first: int) -> BatchStream:
        """A job whose next batch has this number: the one that stands there, or a new one."""
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None and idle.next_number != first:
            idle.close()
            idle = None
        stream = idle or BatchStream(self._start_job, self._check_workers, first)
        with self._lock:
            self._in_use.add(stream)
        return stream

    def put_back(self, stream: BatchStream, *, goes_on: bool) -> None:
        """Keeps a job for the epoch that follows, or ends it."""
        with self._lock:
            is_known = stream in self._in_use
            self._in_use.discard(stream)
            keeps = is_known and goes_on and self._idle is None
            if keeps:
                self._idle = stream
        if not keeps:
            stream.close()

    def explain(self, error: tf.errors.OpError, numbers: range) -> Exception:
        """What to raise where one of these batches could not be made."""
        if isinstance(error, tf.errors.UnimplementedError):
            scheme = _NO_FILE_SYSTEM.search(reason_of(error))
            if scheme is not None:
                return DataServiceError(
                    f"A worker of the data service at {self._service} can't read {scheme[1]}:// files, as this process "
                    "can. Install tensorflow-io on the workers' machines too, and start them by `python -m keras_turbo "
                    f"data-service worker`, which loads it: {INSTALLATION}. ({reason_of(error)})"
                )
            return DataServiceError(
                f"What answers at {self._service} is no dispatcher. Give the address that the dispatcher prints, not "
                f"that of a worker. ({reason_of(error)})"
            )
        count, size = self._batches_per_epoch, self.batch_size or 1
        for number in numbers:
            epoch, batch = divmod(number, count)
            ordinals = np.arange(batch * size, min((batch + 1) * size, self.order.num_examples))
            found = self.failures.first_that_fails(self.order.positions(epoch, ordinals), epoch)
            if found is not None:
                return ExampleLoadError(f"{found} (A worker of the data service could not load it either.)")
        return DataServiceError(
            f"A worker of the data service at {self._service} could not make a batch: {reason_of(error)} This process "
            "can. Workers must reach all files under the same paths, and have the same version of TensorFlow."
        )


class _ServiceSession:
    """One epoch, from its first batch that is wanted to its last one."""

    def __init__(self, pipeline: ServicePipeline, first: int, end: int) -> None:
        self._pipeline = pipeline
        self._next, self._end = first, end
        self._stream: BatchStream | None = None
        self._error: Exception | None = None

    def next(self) -> list[np.ndarray]:
        if self._error is not None:
            # tf.data asks for the next batches in the background, and shall not wait for each of them.
            raise self._error
        if self._next >= self._end:
            raise StopIteration
        try:
            if self._stream is None:
                self._stream = self._pipeline.take_stream(self._next)
            _, *leaves = self._stream.next()
        except DataServiceError as error:
            self._error = error
            raise
        except tf.errors.OpError as error:
            numbers = range(self._next, self._end) if self._stream is None else self._stream.waiting_for()
            self._error = self._pipeline.explain(error, numbers)
            raise self._error from None
        self._next += 1
        if self._next == self._end:
            self._let_go(goes_on=True)
        return leaves

    def close(self) -> None:
        self._let_go(goes_on=False)

    def _let_go(self, *, goes_on: bool) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._pipeline.put_back(stream, goes_on=goes_on)


def _too_large(num_bytes: int) -> str:
    return (
        f"The data are {num_bytes / 1e6:.0f} MB, which would go to the dispatcher and to each worker of the data "
        f"service as a part of the graph; up to {LARGEST_GRAPH_BYTES >> 20} MiB may. Write them to files that the "
        "workers reach, and use from_image_folder or from_files, or leave `service` out: arrays in memory are fast by "
        "themselves."
    )
