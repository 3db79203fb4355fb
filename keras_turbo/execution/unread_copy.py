"""A copy of a dataset that can be read without moving the dataset on."""

from __future__ import annotations

import tensorflow as tf


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
    ignore_state = 1  # of tables and variables, which the copy refers to as well
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=ignore_state,
            strip_device_assignment=True,
        )
        graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
        nodes = {node.name: node for node in graph.node}
        for node in graph.node:
            if node.op.startswith("Shuffle"):
                for name in node.input:
                    _make_seed_generator_anew(nodes[name.split(":")[0]])
        (result,) = (node.input[0] for node in graph.node if node.op == "_Retval")

        def imported() -> tf.Tensor:
            name = result if ":" in result else f"{result}:0"
            return tf.graph_util.import_graph_def(graph, return_elements=[name], name="")[0]

        variant = tf.compat.v1.wrap_function(imported, [])()
        return tf.data.experimental.from_variant(variant, dataset.element_spec)
    except (tf.errors.OpError, ValueError, KeyError, TypeError):
        return None


def _make_seed_generator_anew(node: tf.compat.v1.NodeDef) -> None:
    if node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum:
        node.op = "DummySeedGenerator"
        node.attr.clear()
        del node.input[:]
