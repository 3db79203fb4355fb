"""A dataset as the graph that makes it, and a dataset made of such a graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# What goes wrong with datasets that hold something that no graph can, such as an iterator.
GRAPH_ERRORS = (tf.errors.OpError, ValueError, KeyError, TypeError)

_IGNORE_STATE = 1  # of tables and variables, which the copy refers to as well


def graph_of(dataset: tf.data.Dataset) -> Any:
    """The graph (a `GraphDef`) whose operations make a dataset.

    Python functions in the pipeline and tables are the same as in the dataset; variables have the values of now.

    Raises:
        tf.errors.OpError, ValueError, KeyError, TypeError: it can't be serialized.
    """
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=_IGNORE_STATE,
        strip_device_assignment=True,
    )
    return tf.compat.v1.GraphDef.FromString(serialized.numpy())


def dataset_of(graph: Any, element_spec: Any) -> tf.data.Dataset:
    """The dataset that a graph makes.

    Args:
        graph: as `graph_of` gives it.
        element_spec: structure of `tf.TypeSpec`s of an element.

    Raises:
        tf.errors.OpError, ValueError, KeyError, TypeError: it is no such graph.
    """
    (result,) = (node.input[0] for node in graph.node if node.op == "_Retval")

    def imported() -> tf.Tensor:
        name = result if ":" in result else f"{result}:0"
        return tf.graph_util.import_graph_def(graph, return_elements=[name], name="")[0]

    variant = tf.compat.v1.wrap_function(imported, [])()
    return tf.data.experimental.from_variant(variant, element_spec)
