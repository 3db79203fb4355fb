"""Recognises a user's function in another process, by the graph that TensorFlow traces of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Ops behind which anything may be hidden.
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}

# Names of functions inside a graph end with a number that counts what the process has traced before.
_COUNTED_NAME = re.compile(r"__(?:inference|forward|backward)_[\w.]*?_\d+|cond_(?:true|false)_\d+|while_(?:cond|body)_\d+")


def function_fingerprint(function: Callable, specs: list[Any]) -> str | None:
    """A digest of what a function of tensors does.

    Constants, and the values of variables and tensors that it takes from outside, are part of it.

    Args:
        function: takes one tensor for each spec.
        specs: `tf.TensorSpec`s.

    Returns:
        A hexadecimal digest; None where the function can't be recognised: it calls Python, or holds a lookup table or
        the like.
    """
    concrete = tf.function(function, autograph=True).get_concrete_function(*specs)
    graph_def = concrete.graph.as_graph_def()
    nodes = [*graph_def.node, *(node for inner in graph_def.library.function for node in inner.node_def)]
    if any(node.op in _PYTHON_OPS for node in nodes):
        return None
    hasher = hashlib.blake2b(digest_size=16)
    ordinals: dict[str, str] = {}
    text = _COUNTED_NAME.sub(lambda match: ordinals.setdefault(match[0], f"function_{len(ordinals)}"), str(graph_def))
    hasher.update(text.encode())
    variables = {id(variable.handle): variable for variable in concrete.graph.variables}
    for captured in concrete.captured_inputs:
        if captured.dtype == tf.resource:
            variable = variables.get(id(captured))
            if variable is None:
                return None
            captured = variable.read_value()
        hasher.update(repr(captured.numpy().tolist()).encode() if captured.dtype == tf.string else captured.numpy().tobytes())
    return hasher.hexdigest()
