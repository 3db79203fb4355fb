"""Runs a function with its stateful random ops replaced by stateless ones.

`tf.random.uniform` and its like draw from a state that lives in the op. In a parallel `Dataset.map` the examples
reach that state in any order, so that equal seeds give unequal bytes; and with a global seed set, each epoch makes
the op anew and draws the same numbers again. A stateless op is a pure function of its seed, and has neither fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""The operations that call Python, behind which anything may be hidden."""

# Stateful op -> the stateless one of the same distribution. All of the latter take `seed` as their second input and
# know no `seed` and `seed2` attributes; other inputs and attributes agree, but for the name in _RENAMED_ATTRIBUTES.
_STATELESS_TWINS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
    "RandomUniformInt": "StatelessRandomUniformInt",
}
_RENAMED_ATTRIBUTES = {"RandomUniformInt": ("Tout", "dtype")}

# Random ops without such a twin, and what else keeps a state: a Keras layer's seed generator writes to a variable, and
# a tf.random.Generator is moved on by an op of its own.
_OTHER_STATEFUL_OPS = {
    "AssignAddVariableOp",
    "AssignVariableOp",
    "LogUniformCandidateSampler",
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomCrop",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RngReadAndSkip",
    "RngSkip",
    "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2",
    "StatefulRandomBinomial",
    "StatefulStandardNormalV2",
    "StatefulTruncatedNormal",
    "StatefulUniform",
    "StatefulUniformFullInt",
    "StatefulUniformInt",
    "UniformCandidateSampler",
}


def random_ops_in(concrete: Any) -> list[str]:
    """The sorted names of the stateful random ops in a traced function (control flow inside it included)."""
    graph_def = concrete.graph.as_graph_def()
    nodes = [*graph_def.node, *(node for inner in graph_def.library.function for node in inner.node_def)]
    return sorted({node.op for node in nodes} & (_STATELESS_TWINS.keys() | _OTHER_STATEFUL_OPS))


def with_stateless_random_ops(
    function: Callable, arguments: list[tf.Tensor], seed: tf.Tensor
) -> tuple[Any, list[str], Any]:
    """Calls a function of tensors as graph code, with its random ops made functions of a seed.

    Args:
        function: takes as many tensors as there are arguments, and returns a structure of tensors.
        arguments: what to call it with.
        seed: int64, shape (2,).

    Returns:
        What the function returns. The names of ops that stayed stateful: those without a stateless twin, any inside a
        branch or a loop, and calls of Python, in which anything may be drawn. And an object to keep as long as the
        graph is in use: branches and loops are functions that TensorFlow forgets together with it.
    """
    concrete = tf.function(function, autograph=True).get_concrete_function(
        *[tf.TensorSpec(argument.shape, argument.dtype) for argument in arguments]
    )
    graph_def = concrete.graph.as_graph_def()
    inner_ops = {node.op for inner in graph_def.library.function for node in inner.node_def}
    leftover = (inner_ops & _STATELESS_TWINS.keys()) | (
        ({node.op for node in graph_def.node} | inner_ops) & (_OTHER_STATEFUL_OPS | PYTHON_OPS)
    )
    random_nodes = [node for node in graph_def.node if node.op in _STATELESS_TWINS]
    if not random_nodes:
        return function(*arguments), sorted(leftover), concrete

    input_map = {}
    for index, node in enumerate(random_nodes):
        if node.op in _RENAMED_ATTRIBUTES:
            old, new = _RENAMED_ATTRIBUTES[node.op]
            node.attr[new].CopyFrom(node.attr[old])
            del node.attr[old]
        node.op = _STATELESS_TWINS[node.op]
        for attribute in ("seed", "seed2"):
            del node.attr[attribute]
        node.attr["Tseed"].type = tf.int64.as_datatype_enum
        placeholder = f"keras_turbo_seed_{index}"
        node.input.insert(1, placeholder)
        graph_def.node.add(name=placeholder, op="Placeholder").attr["dtype"].type = tf.int64.as_datatype_enum
        # Each op has numbers of its own; 64 bits of the seed stay, so that examples do too.
        input_map[placeholder] = tf.random.experimental.stateless_fold_in(seed, tf.constant(index, tf.int64))
    placeholders = [tensor.op.name for tensor in concrete.graph.inputs]
    # Identity brings tensors and variables from outside into the graph at hand.
    captured = [tf.identity(tensor) for tensor in concrete.captured_inputs]
    input_map.update(zip(placeholders, [*arguments, *captured], strict=True))
    outputs = tf.graph_util.import_graph_def(
        graph_def,
        input_map=input_map,
        return_elements=[tensor.name for tensor in concrete.graph.outputs],
        name="augment",
    )
    for output, traced in zip(outputs, concrete.graph.outputs, strict=True):
        output.set_shape(traced.shape)
    return tf.nest.pack_sequence_as(concrete.structured_outputs, outputs), sorted(leftover), concrete
