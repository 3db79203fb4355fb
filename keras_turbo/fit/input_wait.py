"""How long `fit` waits for its next batch, measured where it waits: in the graph, between two batches.

A train function takes its batches from an iterator by itself, inside its graph, where Python can't look on. So it is
given another iterator, over a dataset that takes each batch from the first one between two looks at the clock. Nothing
is read ahead, and no second iterator is made of the user's data: the batches and their order are what they were. That
takes 20 to 40 µs a batch between two steps of a `fit`, and 3 ms an epoch to set up (two cores), so that of short
executions a share is measured.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import keras

from keras_turbo.fit.keras_internals import on_one_device

if TYPE_CHECKING:
    import tensorflow as tf

# Measuring a batch takes less than 0.1 % of an execution that is longer than this. Of shorter ones a share is measured,
# once there are enough for a mean.
_SHORT_SECONDS = 0.05
_SHARE_OF_SHORT = 0.2
_MEASURED_AT_FIRST = 100

# What iterators of a FastDataset have besides those of other datasets, for train functions that know them.
_FURTHER_METHODS = ("stacks", "resume")


class Waits(NamedTuple):
    """What was waited for, as sums.

    Args:
        seconds: how long.
        batches: how many batches came.
        examples: how many examples they had: the rows of their first dense tensor; 0 where there is none.
    """

    seconds: float = 0.0
    batches: float = 0
    examples: float = 0

    def plus(self, other: Waits, times: float = 1.0) -> Waits:
        """These and so many times the others."""
        return Waits(*(mine + times * its for mine, its in zip(self, other, strict=True)))


class FitInputWaits:
    """The waits for all batches of a `fit`, whoever takes them from the iterator.

    Keras' train functions and our graph loop take each batch inside a graph, and are given an iterator that measures
    there. Those of a tuned model that run stacks of batches take them in Python, and those under `distribute()` from
    iterators that can't be wrapped: these measure themselves. On JAX and PyTorch batches are taken in Python.

    Of short executions one in five is measured, drawn at random, since waits may come in a rhythm; the sums are then
    those of the measured ones, times how many more there were.

    Attributes:
        why_not: why the waits for an iterator could not be measured, as a clause; None where all could.
        reads_fast_dataset: whether the last iterator was a FastDataset's; None where that can't be seen.
    """

    def __init__(self) -> None:
        self.why_not: str | None = None
        self.reads_fast_dataset: bool | None = None
        self._in_python = Waits()
        self._in_graph: InputWait | None = None
        self._by_itself: Any = None
        self._by_itself_before, self._by_itself_earlier = Waits(), Waits()
        self._given: Any = None
        self._measuring: Any = None
        # Whether some executions are drawn of which the waits are measured; else all are.
        self._draws = False
        # Of the executions since the last look at the sums, how many were measured in the graph, and how many not.
        self._measured = self._skipped = 0
        # The sums up to that look: as they were read, and with those of the executions that were not measured.
        self._read, self._estimated = Waits(), Waits()
        # Of its own: nobody's random numbers change.
        self._random = random.Random(0)

    def prepare(self, train_function: Any, data: Any) -> bool:
        """Gets ready to measure the executions on an iterator; tells whether there was something to do."""
        if keras.config.backend() != "tensorflow" or data is self._given:
            return False
        self._given, self._measuring = data, None
        self.reads_fast_dataset = hasattr(data, "stacks")
        measures = getattr(train_function, "measures_waits_of", None)
        if measures is not None and measures(data):
            self.reads_fast_dataset = self.reads_fast_dataset or None
            if train_function is not self._by_itself:
                # It has counted since it was made; what it counted before this fit is not of this fit.
                self._by_itself_earlier = self._waits_by_itself()
                self._by_itself, self._by_itself_before = train_function, Waits(*train_function.waits)
            return True
        reason = why_not_timeable(data)
        if reason is not None:
            self.why_not = reason
            return True
        self._in_graph = self._in_graph or InputWait()
        self._measuring = self._in_graph.timed(data)
        return True

    def chosen(self, data: Any, mean_seconds: float, executions: int) -> Any:
        """What to give to the train function for one more execution: over the same batches."""
        if keras.config.backend() != "tensorflow":
            if not isinstance(data, list):
                return self._timed(data)
            self._in_python = self._in_python.plus(Waits(0.0, len(data), sum(map(_rows_of, data))))
            return data
        if self._measuring is None:
            return data
        draws = executions >= _MEASURED_AT_FIRST and mean_seconds < _SHORT_SECONDS
        if draws is not self._draws:
            # Those before count for themselves: the first batch of an epoch, say, is no example of others.
            self._waits_in_graph()
            self._draws = draws
        if draws and self._measured and self._random.random() >= _SHARE_OF_SHORT:
            self._skipped += 1
            return data
        self._measured += 1
        return self._measuring

    def forget_iterator(self) -> None:
        """Lets go of the iterator, at an epoch's end."""
        self._given = self._measuring = None

    def read(self) -> Waits | None:
        """The sums so far; None where they could not be measured."""
        if self.why_not is not None:
            return None
        return self._in_python.plus(self._waits_in_graph()).plus(self._waits_by_itself())

    def _timed(self, iterator: Iterator[Any]) -> Iterator[Any]:
        while True:
            begin = time.perf_counter()
            batch = next(iterator, _END)
            if batch is _END:
                return
            self._in_python = self._in_python.plus(Waits(time.perf_counter() - begin, 1, _rows_of(batch)))
            yield batch

    def _waits_in_graph(self) -> Waits:
        if self._in_graph is None:
            return Waits()
        read = self._in_graph.read()
        # The first execution after each look is measured.
        times = 1.0 + self._skipped / self._measured if self._measured else 1.0
        self._estimated = self._estimated.plus(read.plus(self._read, -1.0), times)
        self._read = read
        self._measured = self._skipped = 0
        seconds, batches, examples = self._estimated
        return Waits(seconds, round(batches), round(examples))

    def _waits_by_itself(self) -> Waits:
        if self._by_itself is None:
            return Waits()
        return self._by_itself_earlier.plus(Waits(*self._by_itself.waits)).plus(self._by_itself_before, -1.0)


_END = object()


def _rows_of(batch: Any) -> int:
    shapes = (getattr(component, "shape", ()) for component in keras.tree.flatten(batch))
    return next((int(shape[0]) for shape in shapes if len(shape) > 0), 0)


class InputWait:
    """Measures how long batches are waited for, over any number of iterators."""

    def __init__(self) -> None:
        import tensorflow as tf

        # In eager mode even when a train function is being traced, and never on a GPU, of which each reading would
        # wait for what it has to do.
        with tf.init_scope(), tf.device("CPU:0"):
            self._sums = tf.Variable(tf.zeros([3], tf.float64), trainable=False)
        self._pulls: dict[str, Any] = {}

    def timed(self, iterator: tf.data.Iterator) -> tf.data.Iterator:
        """An iterator that takes its batches from this one, and adds up how long each takes."""
        import tensorflow as tf

        reason = why_not_timeable(iterator)
        if reason is not None:
            raise ValueError(f"The waits for this iterator can't be measured: {reason}.")
        # The graph below runs on the host, and so does what it reads: then batches are not prefetched to a GPU.
        given, iterator = iterator, getattr(iterator, "host_iterator", lambda: iterator)()
        leaves = [_flat_spec(leaf) for leaf in tf.nest.flatten(iterator.element_spec)]
        pull = self._pull(iterator, leaves)
        with tf.device("CPU:0"):
            variant = tf.raw_ops.MapDataset(
                # Not its end but that of the iterator ends it.
                input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(tf.int64.max)),
                # An iterator is a composite tensor of one component.
                other_arguments=[tf.nest.flatten(iterator, expand_composites=True)[0], *pull.captured_inputs],
                f=pull,
                output_types=[leaf.dtype for leaf in leaves],
                output_shapes=[leaf.shape for leaf in leaves],
                # On the thread that asks: going over to another one would take ten times as long as the rest.
                use_inter_op_parallelism=False,
                # Else the end of the iterator would be an error.
                preserve_cardinality=False,
            )
        options = tf.data.Options()
        # There is nothing in it to tune; the dataset it reads from has its own options.
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        dataset: Any = tf.data.experimental.from_variant(variant, iterator.element_spec)
        timed = iter(dataset.with_options(options))
        # What must not be collected while it is read.
        timed.keras_turbo_holds = (pull, iterator, self._sums)
        for name in _FURTHER_METHODS:
            if hasattr(given, name):
                setattr(timed, name, getattr(given, name))
        return timed

    def read(self) -> Waits:
        """The sums since this was made."""
        seconds, batches, examples = self._sums.numpy()
        return Waits(float(seconds), int(batches), int(examples))

    def _pull(self, iterator: tf.data.Iterator, leaves: list[Any]) -> Any:
        """The function that takes one batch from an iterator, traced once for each kind of batch."""
        import tensorflow as tf

        key = str(leaves)
        if key not in self._pulls:
            pull = functools.partial(_timed_pull, leaves, self._sums)
            function = tf.function(pull, autograph=False, experimental_attributes=on_one_device())
            with tf.device("CPU:0"):
                self._pulls[key] = function.get_concrete_function(
                    tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.resource)
                )
        return self._pulls[key]


def _timed_pull(leaves: list[Any], sums: Any, number: tf.Tensor, resource: tf.Tensor) -> list[tf.Tensor]:
    import tensorflow as tf

    del number  # Of the batch; it comes from the dataset that this is mapped over.
    has_rows = [index for index, leaf in enumerate(leaves) if leaf.dtype != tf.variant and leaf.shape.rank != 0]
    begin = tf.timestamp()
    with tf.control_dependencies([begin]):
        # Waits on this thread. The operation that frees it meanwhile goes over to another one and back.
        batch = tf.raw_ops.IteratorGetNextSync(
            iterator=resource,
            output_types=[leaf.dtype for leaf in leaves],
            output_shapes=[leaf.shape for leaf in leaves],
        )
    with tf.control_dependencies(batch):
        end = tf.timestamp()
        rows = tf.shape(batch[has_rows[0]], tf.int64)[0] if has_rows else tf.constant(0, tf.int64)
        news = tf.stack([end - begin, tf.constant(1.0, tf.float64), tf.cast(rows, tf.float64)])
        sums.assign_add(news, read_value=False)
    return batch


def why_not_timeable(iterator: Any) -> str | None:
    """Why the waits for an iterator can't be measured, as a clause; None if they can."""
    import tensorflow as tf

    if getattr(iterator, "host_iterator", iterator) is None:
        return "its batches are on the GPU already"
    if isinstance(iterator, tf.distribute.DistributedIterator):
        return (
            "under this distribution strategy batches reach the devices through iterators of its own; "
            "keras_turbo.distribute(strategy) has a train function that measures"
        )
    if not isinstance(iterator, tf.data.Iterator) or not tf.nest.flatten(iterator, expand_composites=True):
        return f"batches come from a {type(iterator).__name__}, which is no iterator over a tf.data.Dataset"
    unknown = [leaf for leaf in tf.nest.flatten(iterator.element_spec) if _flat_spec(leaf) is None]
    return f"batches hold a {type(unknown[0]).__name__.removesuffix('Spec')}" if unknown else None


def _flat_spec(leaf: Any) -> Any:
    """The tensor that stands for a component of a batch in tf.data; None where that is not known."""
    import tensorflow as tf

    unknown: Any = None
    if isinstance(leaf, tf.TensorSpec):
        return leaf
    is_ragged = isinstance(leaf, tf.RaggedTensorSpec) and leaf.ragged_rank
    if is_ragged or isinstance(leaf, (tf.SparseTensorSpec, tf.OptionalSpec)):
        return tf.TensorSpec(unknown, tf.variant)
    return None
