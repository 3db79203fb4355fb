"""How long `fit` waits for its next batch, measured where it waits: in the graph, between two batches.

A train function takes its batches from an iterator by itself, inside its graph, where Python can't look on. So it is
given another iterator, over a dataset that takes each batch from the first one between two looks at the clock. Nothing
is read ahead, and no second iterator is made of the user's data: the batches and their order are what they were.

It costs 5 to 10 microseconds a batch (TensorFlow 2.17 and 2.21, two cores), and 3 ms an epoch to set up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_turbo.data.engine.node import VariantDataset, on_one_device

# What iterators of a FastDataset have besides those of other datasets, for train functions that know them.
_FURTHER_METHODS = ("stacks", "resume")


@dataclasses.dataclass(frozen=True)
class Waits:
    """What was waited for, as sums.

    Args:
        seconds: how long.
        batches: how many batches came.
        examples: how many examples they had: the rows of their first dense tensor; 0 where there is none.
    """

    seconds: float = 0.0
    batches: int = 0
    examples: int = 0

    def __add__(self, other: Waits) -> Waits:
        return Waits(self.seconds + other.seconds, self.batches + other.batches, self.examples + other.examples)

    def __sub__(self, other: Waits) -> Waits:
        return Waits(self.seconds - other.seconds, self.batches - other.batches, self.examples - other.examples)


class InputWait:
    """Measures how long batches are waited for, over any number of iterators.

    Example:

    ```python
    input_wait = InputWait()
    iterator = input_wait.timed(iter(dataset))
    train_function(iterator)
    input_wait.read().seconds
    ```
    """

    def __init__(self) -> None:
        # In eager mode even when a train function is being traced, and never on a GPU, of which each reading would
        # wait for what it has to do.
        with tf.init_scope(), tf.device("CPU:0"):
            self._sums = tf.Variable(tf.zeros([3], tf.float64), trainable=False)
        self._pulls: dict[str, Any] = {}

    def timed(self, iterator: tf.data.Iterator) -> tf.data.Iterator:
        """An iterator that takes its batches from this one, and adds up how long each takes.

        Args:
            iterator: of a dataset, unread or not. What it has given is gone; what it gives is asked for one by one, so
                that both iterators may be read in turn.

        Returns:
            An iterator with the same `element_spec`, for which no function is traced anew.

        Raises:
            ValueError: one that can't be timed; see `why_not_timeable`.
        """
        reason = why_not_timeable(iterator)
        if reason is not None:
            raise ValueError(f"The waits for this iterator can't be measured: {reason}.")
        # The graph below runs on the host, and so does what it reads: then batches are not prefetched to a GPU.
        given, iterator = iterator, getattr(iterator, "host_iterator", lambda: iterator)()
        spec = iterator.element_spec
        leaves = _flat_specs(spec)
        pull = self._pull(iterator, leaves)
        # Not its end but that of the iterator ends it.
        endless = tf.data.Dataset.range(tf.int64.max)
        with tf.device("CPU:0"):
            variant = tf.raw_ops.MapDataset(
                input_dataset=tf.data.experimental.to_variant(endless),
                other_arguments=[_resource_of(iterator), *pull.captured_inputs],
                f=pull,
                output_types=[leaf.dtype for leaf in leaves],
                output_shapes=[leaf.shape for leaf in leaves],
                # On the thread that asks: going over to another one would take ten times as long as the rest.
                use_inter_op_parallelism=False,
                # Else the end of the iterator would be an error.
                preserve_cardinality=False,
            )
        dataset = VariantDataset(variant, spec, [endless], holds=(pull, iterator, self._sums))
        options = tf.data.Options()
        # There is nothing in it to tune; the dataset it reads from has its own options.
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        timed = iter(dataset.with_options(options))
        for name in _FURTHER_METHODS:
            if hasattr(given, name):
                setattr(timed, name, getattr(given, name))
        return timed

    def read(self) -> Waits:
        """The sums since this was made."""
        seconds, batches, examples = self._sums.numpy()
        return Waits(float(seconds), int(batches), int(examples))

    def _pull(self, iterator: tf.data.Iterator, leaves: list[tf.TensorSpec]) -> Any:
        """The function that takes one batch from an iterator, traced once for each kind of batch."""
        key = str(leaves)
        if key not in self._pulls:
            function = tf.function(
                _timed_pull(leaves, self._sums), autograph=False, experimental_attributes=on_one_device()
            )
            with tf.device("CPU:0"):
                self._pulls[key] = function.get_concrete_function(
                    tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.resource)
                )
        return self._pulls[key]


def why_not_timeable(iterator: Any) -> str | None:
    """Why the waits for an iterator can't be measured, as a clause; None if they can.

    Args:
        iterator: what `fit` gives to a train function.
    """
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
    if unknown:
        return f"batches hold a {type(unknown[0]).__name__.removesuffix('Spec')}"
    return None


def _timed_pull(leaves: list[tf.TensorSpec], sums: tf.Variable) -> Callable[[Any, Any], list[tf.Tensor]]:
    has_rows = [index for index, leaf in enumerate(leaves) if leaf.dtype != tf.variant and leaf.shape.rank != 0]

    def pull(number: tf.Tensor, resource: tf.Tensor) -> list[tf.Tensor]:
        del number  # Of the batch; it comes from the dataset that this is mapped over.
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

    return pull


def _resource_of(iterator: tf.data.Iterator) -> tf.Tensor:
    # An iterator is a composite tensor of one component.
    return tf.nest.flatten(iterator, expand_composites=True)[0]


def _flat_specs(element_spec: Any) -> list[Any]:
    return [_flat_spec(leaf) for leaf in tf.nest.flatten(element_spec)]


def _flat_spec(leaf: Any) -> tf.TensorSpec | None:
    """The tensor that stands for a component of a batch in tf.data; None where that is not known."""
    unknown: Any = None
    if isinstance(leaf, tf.TensorSpec):
        return leaf
    if isinstance(leaf, (tf.SparseTensorSpec, tf.OptionalSpec)):
        return tf.TensorSpec(unknown, tf.variant)
    if isinstance(leaf, tf.RaggedTensorSpec) and leaf.ragged_rank:
        return tf.TensorSpec(unknown, tf.variant)
    return None
