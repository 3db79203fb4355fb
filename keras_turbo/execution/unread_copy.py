"""A copy of a dataset that can be read without moving the dataset on."""

from __future__ import annotations

import tensorflow as tf

from keras_turbo.execution.dataset_graph import GRAPH_ERRORS, dataset_of, graph_of


def unread_copy(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """The same pipeline once more, whose shuffles draw from seeds of their own.

    Each iterator over a shuffled dataset moves its generator of seeds on, so that whoever looks at a few batches
    changes the order of all epochs to come. The copy is made through the serialized graph. That graph refers to the
    dataset's generators of seeds by a handle; where it is replaced by an empty one, each shuffle makes its own, with
    the seed that it was built with. Python functions in the pipeline and tables are the same as in the dataset;
    variables have the values of now.

    Args:
        dataset: any dataset.

    Returns:
        The copy, whose first epoch is that of the dataset; None where a dataset can't be serialized.
    """
    try:
        graph = graph_of(dataset)
        nodes = {node.name: node for node in graph.node}
        for node in graph.node:
            if node.op.startswith("Shuffle"):
                for name in node.input:
                    _make_seed_generator_anew(nodes[name.split(":")[0]])
        return dataset_of(graph, dataset.element_spec)
    except GRAPH_ERRORS:
        return None


def _make_seed_generator_anew(node: tf.compat.v1.NodeDef) -> None:
    if node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum:
        node.op = "DummySeedGenerator"
        node.attr.clear()
        del node.input[:]
