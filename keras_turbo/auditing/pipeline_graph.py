"""What a tf.data pipeline is made of, and the same pipeline with its maps in parallel."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from keras_turbo.execution.dataset_graph import GRAPH_ERRORS, dataset_of, graph_of

# Operations of datasets that a user of tf.data did not write.
_OF_TENSORFLOW = {"ModelDataset", "OptionsDataset", "MaxIntraOpParallelismDataset", "PrivateThreadPoolDataset"}


@dataclasses.dataclass(frozen=True)
class PipelineGraph:
    """A pipeline.

    Attributes:
        stages: names of its operations from the source to the batch, as tf.data's methods are named.
        has_cache: whether something is cached.
        is_random: whether numbers are drawn at random, by operations of TensorFlow.
        shuffles: whether its order is random.
        from_python: whether a Python generator is the source.
    """

    stages: tuple[str, ...]
    has_cache: bool
    is_random: bool
    shuffles: bool
    from_python: bool


def pipeline_graph(dataset: tf.data.Dataset) -> PipelineGraph | None:
    """What a dataset is made of; None where TensorFlow can't tell."""
    try:
        graph = graph_of(dataset)
    except GRAPH_ERRORS:
        return None
    datasets = _chain(graph)
    inner = [node for function in graph.library.function for node in function.node_def]
    names = {node.op for node in graph.node}
    all_names = names | {node.op for node in inner}
    return PipelineGraph(
        stages=tuple(_stage(node) for node in datasets if node.op not in _OF_TENSORFLOW),
        has_cache=any(name.startswith("CacheDataset") for name in names),
        is_random=any("Random" in name and not name.endswith(("Dataset", "SeedGenerator")) for name in all_names),
        shuffles=any(name.startswith("Shuffle") for name in names),
        from_python="GeneratorDataset" in all_names,
    )


def with_parallel_maps(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """The same pipeline, as if each of its maps had been given `num_parallel_calls=tf.data.AUTOTUNE`.

    Returns:
        The pipeline, whose elements come in the same order; None where it has no such maps, or can't be rewritten.
    """
    try:
        graph = graph_of(dataset)
        maps = [node for node in graph.node if node.op == "MapDataset"]
        if not maps:
            return None
        calls = graph.node.add(name="keras_turbo/num_parallel_calls", op="Const")
        calls.attr["dtype"].type = tf.int64.as_datatype_enum
        calls.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tf.data.AUTOTUNE, tf.int64))
        for node in maps:
            _make_parallel(node, calls.name)
        return dataset_of(graph, dataset.element_spec)
    except GRAPH_ERRORS:
        return None


def _make_parallel(node: Any, calls: str) -> None:
    node.op = "ParallelMapDatasetV2"
    # Data inputs stand before control inputs, whose names begin with ^.
    controls = [name for name in node.input if name.startswith("^")]
    data = [name for name in node.input if not name.startswith("^")]
    del node.input[:]
    node.input.extend([*data, calls, *controls])
    if "force_synchronous" in node.attr:
        del node.attr["force_synchronous"]
    # The order of elements is kept.
    node.attr["deterministic"].s = b"true"


def _chain(graph: Any) -> list[Any]:
    """The datasets on the way from the first source to the end."""
    nodes = {node.name: node for node in graph.node}
    name = next(node.input[0] for node in graph.node if node.op == "_Retval")
    found = []
    while True:
        node = nodes[name.split(":")[0].lstrip("^")]
        if "Dataset" in node.op:
            found.append(node)
        before = [nodes.get(each.split(":")[0].lstrip("^")) for each in node.input]
        datasets = [each for each in before if each is not None and "Dataset" in each.op]
        if not datasets and node.op != "Identity":
            return found[::-1]
        name = datasets[0].name if datasets else node.input[0]


def _stage(node: Any) -> str:
    name = node.op
    while name[-1].isdigit() or name.endswith("V"):
        name = name[:-1]
    name = name.removesuffix("Dataset")
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
