"""Recognises a user's function in another process, by the graph that TensorFlow traces of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from keras_turbo.data.functions import RowFunction
from keras_turbo.data.stateless_random import PYTHON_OPS

# Names of functions inside a graph end with a number that counts what the process has traced before, and the order in
# which a graph lists its functions depends on these names.
_COUNTED_NAME = re.compile(rb"__(?:inference|forward|backward)_.*?_\d+|cond_(?:true|false)_\d+|while_(?:cond|body)_\d+")

# Attributes that say how something runs, or how its gradient is found, and not what it does.
_IDLE_ATTRIBUTES = {"config_proto", "executor_type", "_construction_context", "_gradient_op_type"}


# Operations that read files, and those that can make another path of the one that a loader is given.
_READING_OPS = {
    "FixedLengthRecordDatasetV2",
    "InitializeTableFromTextFileV2",
    "MatchingFiles",
    "ReadFile",
    "RestoreV2",
    "TFRecordDatasetV2",
    "TextLineDataset",
    "WholeFileReaderV2",
}
_PATH_OPS = {"RegexReplace", "StaticRegexReplace", "StringFormat", "StringJoin", "StringReplace", "Substr"}


def function_fingerprint(function: RowFunction, *, is_loader: bool = False) -> str | None:
    """A digest of what a function of tensors does.

    Constants, and the values of variables and tensors that it takes from outside, are part of it.

    Args:
        function: as TensorFlow traced it.
        is_loader: whether it is given the path of a file, which it may read.

    Returns:
        A hexadecimal digest; None where the function can't be recognised: it calls Python, holds a lookup table or the
        like, or reads other files than the one that it is given, which may change.
    """
    concrete = function.concrete
    graph_def = concrete.graph.as_graph_def()
    nodes = [*graph_def.node, *(node for inner in graph_def.library.function for node in inner.node_def)]
    ops = [node.op for node in nodes]
    if PYTHON_OPS.intersection(ops) or not _reads_only_its_input(nodes, is_loader):
        return None
    hasher = hashlib.blake2b(digest_size=16)
    hasher.update(_GraphDigest(graph_def).of_nodes(graph_def.node))
    variables = {id(variable.handle): variable for variable in concrete.graph.variables}
    for captured in concrete.captured_inputs:
        value = captured
        if captured.dtype == tf.resource:
            variable = variables.get(id(captured))
            if variable is None:
                return None
            value = variable.read_value()
        if value.dtype == tf.variant:
            return None
        hasher.update(_joined([value.dtype.name, str(value.shape)]))
        hasher.update(repr(value.numpy().tolist()).encode() if value.dtype == tf.string else value.numpy().tobytes())
    return hasher.hexdigest()


def _reads_only_its_input(nodes: list[Any], is_loader: bool) -> bool:
    readers = [node for node in nodes if node.op in _READING_OPS]
    if not readers:
        return True
    makes_paths = any(node.op in _PATH_OPS for node in nodes)
    return is_loader and [node.op for node in readers] == ["ReadFile"] and not makes_paths


class _GraphDigest:
    """Digests of nodes and of the functions that they call, in which no function's name counts.

    Args:
        graph_def: with the library in which the functions are.
    """

    def __init__(self, graph_def: Any) -> None:
        self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._digests: dict[str, bytes] = {}

    def of_nodes(self, nodes: Iterable[Any]) -> bytes:
        hasher = hashlib.blake2b(digest_size=16)
        for node in nodes:
            hasher.update(_joined([node.name, node.op, node.device, *node.input]))
            hasher.update(_joined(self._attributes(node.attr)))
        return hasher.digest()

    def _attributes(self, attributes: Any) -> Iterator[bytes]:
        for name in sorted(attributes.keys() - _IDLE_ATTRIBUTES):
            value = attributes[name]
            yield name.encode()
            called = [value.func] if value.WhichOneof("value") == "func" else list(value.list.func)
            if not called:
                yield value.SerializeToString(deterministic=True)
            for function in called:
                yield self._of_function(function.name)
                yield from self._attributes(function.attr)

    def _of_function(self, name: str) -> bytes:
        if name not in self._functions:  # one of TensorFlow's own
            return name.encode()
        if name not in self._digests:
            function = self._functions[name]
            signature = [
                part
                for argument in (*function.signature.input_arg, *function.signature.output_arg)
                for part in (argument.name, str(argument.type))
            ]
            results = [part for pair in sorted(function.ret.items()) for part in pair]
            self._digests[name] = self.of_nodes(function.node_def) + _joined([*signature, *results])
        return self._digests[name]


def _joined(parts: Iterable[str | bytes]) -> bytes:
    """Parts as bytes, each behind its length, without the numbers that count what was traced."""
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join(
        len(part).to_bytes(8, "little") + part for part in (_COUNTED_NAME.sub(b"function", part) for part in encoded)
    )
