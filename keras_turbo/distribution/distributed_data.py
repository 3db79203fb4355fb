"""The batches of a dataset on all replicas: each example once an epoch, in the batches that one device would have."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from keras_turbo.fit.workers import gathered, num_workers

_logger = logging.getLogger(__name__)

_AutoShardPolicy = tf.data.experimental.AutoShardPolicy

# Operations behind which Python makes the data.
_PYTHON_OPS = frozenset({"GeneratorDataset", "PyFunc", "PyFuncStateless", "EagerPyFunc"})


@runtime_checkable
class DividesBatches(Protocol):
    """A dataset that can tell what one worker needs of each of its batches, as a FastDataset can."""

    @property
    def source_of_epochs(self) -> Any:
        """The dataset whose epochs, seed and order these are."""
        ...

    def part_of_batches(self, num_workers: int, worker: int, replicas_per_worker: int) -> tf.data.Dataset:
        """One worker's part of every batch: an element for each of its replicas."""
        ...


def distribute_dataset(
    strategy: tf.distribute.Strategy,
    dataset: Any,
    options: tf.distribute.InputOptions | None,
    distribute: Callable[..., Any],
) -> Any:
    """As `strategy.experimental_distribute_dataset`, so that several workers train on the batches of one device.

    The batch of the dataset is the global batch, as Keras has it: what all replicas get together in one step. A
    FastDataset gives each worker its rows of each batch, and nothing else is made there. Of any other dataset each
    worker makes everything and keeps its part of each batch (`AutoShardPolicy.DATA`), unless its options say that
    the data are divided in another way. TensorFlow's own default divides files where there are some: other batches than
    on one device, of unequal number, and an error where there are fewer files than workers.

    Args:
        strategy: whose devices get the data.
        dataset: elements are global batches.
        options: as TensorFlow's method takes them.
        distribute: that method.

    Raises:
        ValueError: the workers have different data or different seeds; elements that are no batches.
    """
    if not isinstance(dataset, tf.data.Dataset) or not tf.executing_eagerly():
        return distribute(dataset, options)
    _require_batches(dataset)
    if num_workers(strategy) == 1:
        distributed = distribute(dataset, options)
    else:
        distributed = _distributed_over_workers(strategy, dataset, options, distribute)
    distributed.keras_turbo_epochs = _numbered_in(dataset)
    return distributed


@contextlib.contextmanager
def positions_kept(distributed: Any) -> Iterator[None]:
    """Lets what is read within be read again: no epoch of a FastDataset counts that begins here.

    Args:
        distributed: what `distribute_dataset` gave.
    """
    numbered = getattr(distributed, "keras_turbo_epochs", [])
    positions = [one.position for one in numbered]
    try:
        yield
    finally:
        for one, position in zip(numbered, positions, strict=True):
            one.resume_at(*position)


def _distributed_over_workers(
    strategy: tf.distribute.Strategy,
    dataset: tf.data.Dataset,
    options: tf.distribute.InputOptions | None,
    distribute: Callable[..., Any],
) -> Any:
    workers = num_workers(strategy)
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    if options is not None and options.experimental_replication_mode == per_replica:
        return distribute(dataset, options)  # which refuses it
    if not isinstance(dataset, DividesBatches):
        return distribute(_divided_by_tensorflow(strategy, dataset, workers), options)
    _agree_on(strategy, [dataset.source_of_epochs], may_adopt=True)
    _tell_of_batch_size(strategy, dataset)
    replicas = strategy.num_replicas_in_sync // workers

    def part(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return dataset.part_of_batches(context.num_input_pipelines, context.input_pipeline_id, replicas)

    return strategy.distribute_datasets_from_function(part, options)


def _require_batches(dataset: tf.data.Dataset) -> None:
    for leaf in tf.nest.flatten(dataset.element_spec):
        if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank == 0:
            raise ValueError(
                "Each batch is divided among the replicas, and here elements have no batch axis. Give a FastDataset a "
                "batch_size, that of all replicas together, or call batch() on the dataset. Received elements of "
                f"{dataset.element_spec}."
            )


def _numbered_in(dataset: Any) -> list[Any]:
    """The datasets with numbered epochs of which a dataset is made, or which it is."""
    return [one for one in _made_of(dataset) if isinstance(one, DividesBatches) and one.source_of_epochs is one]


def _agree_on(strategy: tf.distribute.Strategy, sources: list[Any], *, may_adopt: bool) -> None:
    """Lets all workers have the data, the seed and the epoch of the chief.

    Args:
        strategy: that of the workers.
        sources: datasets with numbered epochs, this worker's.
        may_adopt: whether a seed that was drawn can be changed.
    """
    said = gathered(
        strategy,
        [
            {
                "order": {name: value for name, value in source.order_settings.items() if name != "seed"},
                "seed": source.order_settings["seed"],
                "drawn": source.seed_was_drawn,
                "position": list(source.position),
            }
            for source in sources
        ],
    )
    chief = said[0]
    for worker, other in enumerate(said):
        for ours, theirs in zip(chief, other, strict=False):
            if ours["order"] != theirs["order"]:
                raise ValueError(_of_other_data(ours["order"], theirs["order"], worker))
            if ours["seed"] != theirs["seed"] and not (may_adopt and theirs["drawn"]):
                raise ValueError(
                    f"The workers' FastDatasets have different seeds: {ours['seed']} on worker 0 and {theirs['seed']} "
                    f"on worker {worker}, so that some examples would be trained on twice in an epoch and others "
                    "never. Give the same seed=... on all workers."
                )
        if len(other) != len(chief):
            raise ValueError(
                f"The data are made of {len(chief)} FastDatasets on worker 0 and of {len(other)} on worker {worker}. "
                "All workers must build the same dataset."
            )
    for source, wanted in zip(sources, chief, strict=True):
        if wanted["seed"] is not None and wanted["seed"] != source.seed:
            source.adopt_seed(wanted["seed"])
        if list(source.position) != wanted["position"]:
            source.resume_at(*wanted["position"])


def _of_other_data(chief: dict[str, Any], other: dict[str, Any], worker: int) -> str:
    differing = "; ".join(
        f"{name}={chief.get(name)!r} on worker 0, {other.get(name)!r} on worker {worker}"
        for name in chief
        if chief.get(name) != other.get(name)
    )
    advice = "Build the same dataset on all workers: each gets its part of every batch by itself."
    if chief.get("shard") != other.get("shard"):
        advice = (
            "Give fit the whole FastDataset, without shard(): each worker gets its part of every batch by itself. For "
            "data that you divide yourself use strategy.distribute_datasets_from_function."
        )
    return f"The workers have different data: {differing}. {advice}"


def _tell_of_batch_size(strategy: tf.distribute.Strategy, dataset: DividesBatches) -> None:
    global_batch_size = dataset.source_of_epochs.order_settings["batch_size"]
    replicas = strategy.num_replicas_in_sync
    if global_batch_size is None:
        return
    if global_batch_size < replicas:
        warnings.warn(
            f"The batch of the FastDataset is the global batch: batch_size={global_batch_size} for {replicas} replicas "
            "leaves some of them without an example in every step. Multiply the batch size that you want on each "
            "device by strategy.num_replicas_in_sync.",
            stacklevel=2,
        )
    _logger.info(
        "global_batch_size=%d is batch_size=%g on each of %d replicas.",
        global_batch_size,
        global_batch_size / replicas,
        replicas,
    )


def _divided_by_tensorflow(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset, workers: int) -> tf.data.Dataset:
    """The dataset with the policy by which TensorFlow divides every batch; warns where that does not do."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (_AutoShardPolicy.AUTO, _AutoShardPolicy.DATA):
        return dataset
    _agree_on(strategy, _numbered_in(dataset), may_adopt=False)
    _warn_of_data_of_their_own(dataset, workers)
    if policy == _AutoShardPolicy.AUTO:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = _AutoShardPolicy.DATA
        dataset = dataset.with_options(options)
    return dataset


def _warn_of_data_of_their_own(dataset: tf.data.Dataset, workers: int) -> None:
    """Says so where workers that run the same code need not have the same data."""
    makes_in_python = draws = False
    for one in _made_of(dataset):
        if isinstance(one, DividesBatches):
            continue  # of which the workers have agreed
        ops = list(_operations_of(one))
        makes_in_python |= any(op.type in _PYTHON_OPS for op in ops)
        draws |= _shuffles_without_seed(one) or any(_draws_without_seed(op) for op in ops)
    whole = f"Each of the {workers} workers makes all the data and trains on its part of each batch, so that all must "
    if makes_in_python:
        warnings.warn(
            f"{whole}get the same batches in the same order from the Python code that makes them (a generator, a "
            "PyDataset): seed what is random in it, alike on all workers. Where workers have data of their own, use "
            "strategy.distribute_datasets_from_function.",
            stacklevel=2,
        )
    elif draws:
        warnings.warn(
            f"{whole}draw the same random order. Here no seed is set, and some examples would be trained on twice in "
            "an epoch and others never. Call keras.utils.set_random_seed with the same number on all workers before "
            "the dataset is made, give shuffle() a seed, or use a FastDataset.",
            stacklevel=2,
        )


def _made_of(dataset: Any) -> Iterator[Any]:
    """A dataset and all that it is made of, but not what a FastDataset is made of."""
    yield dataset
    if isinstance(dataset, DividesBatches) and dataset.source_of_epochs is dataset:
        return
    for part in dataset._inputs():  # what each class of tf.data implements to tell its inputs
        yield from _made_of(part)


def _operations_of(dataset: Any) -> Iterator[Any]:
    """The operations in the functions of a dataset, as far as TensorFlow tells them."""
    for wrapper in dataset._functions():  # as `_inputs`
        graph = getattr(getattr(wrapper, "function", None), "graph", None)
        if graph is not None:
            yield from graph.get_operations()


def _draws_without_seed(op: Any) -> bool:
    """Whether an operation draws numbers that differ from process to process."""
    names = {"seed", "seed2"} & set(op.node_def.attr)
    return len(names) == 2 and all(op.get_attr(name) == 0 for name in names)


def _shuffles_without_seed(dataset: Any) -> bool:
    # tf.data keeps the seeds of shuffle() as two tensors, zeros where there is none.
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    return all(seed is not None and tf.is_tensor(seed) and int(seed) == 0 for seed in seeds)
