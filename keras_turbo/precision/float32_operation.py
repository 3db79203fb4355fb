"""Operations of a functional model, such as `keras.ops.softmax(x)`, made to compute in float32."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_turbo.precision.layer_calls import graph_of


@keras.saving.register_keras_serializable(package="keras_turbo")
class Float32Operation(keras.layers.Layer):
    """A layer that calls an operation in float32.

    An operation of `keras.ops` in a functional model has no dtype policy: it computes in what it is given.
    `make_precision_safe` puts this layer in its place.

    Args:
        operation: the operation, such as `keras.src.ops.nn.Softmax(axis=-1)`.
        name: of the layer, or None for that of the operation.
        **kwargs: what every Keras layer takes. A `dtype` other than float32 is refused.

    Raises:
        ValueError: `dtype` is not float32.
    """

    def __init__(self, operation: Any, name: str | None = None, **kwargs: Any) -> None:
        policy = keras.dtype_policies.get(kwargs.pop("dtype", None) or "float32")
        if policy.name != "float32":
            raise ValueError(f"`dtype` of Float32Operation must be float32. Received: dtype={policy.name!r}.")
        super().__init__(name=name or operation.name, dtype=policy, **kwargs)
        self.operation = operation
        self.built = True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the operation with what Keras has cast to float32.

        Args:
            *args: what the operation takes.
            **kwargs: likewise.

        Returns:
            What the operation returns.
        """
        return self.operation.call(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Gives what a new layer of the same settings is made from.

        Returns:
            The base layer's settings and the operation.
        """
        return {**super().get_config(), "operation": keras.saving.serialize_keras_object(self.operation)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Float32Operation:
        """Makes a layer from what `get_config` gave.

        Args:
            config: the settings.

        Returns:
            The layer.
        """
        return cls(**{**config, "operation": keras.saving.deserialize_keras_object(config["operation"])})


def put_in_float32(graph: Any, operation: Any) -> Float32Operation:
    """Puts a Float32Operation where an operation is in a functional model's graph.

    Keras has no way to change a graph that exists; building another one would give another model. The private parts
    touched here are the same in Keras 3.12 and 3.15.

    Args:
        graph: of a functional model.
        operation: one of the graph.

    Returns:
        The layer that is in the graph now.
    """
    layer = Float32Operation(operation)
    layer._inbound_nodes, layer._outbound_nodes = operation._inbound_nodes, operation._outbound_nodes
    for index, node in enumerate(layer._inbound_nodes):
        node.operation = layer
        for tensor in node.outputs:
            tensor._keras_history = tensor._keras_history._replace(operation=layer)
        # Keys of nodes are made of the operation's identity.
        key = f"{id(operation)}_ib-{index}"
        if key in graph._nodes:
            graph._nodes.remove(key)
            graph._nodes.add(f"{id(layer)}_ib-{index}")
    for operations in (graph._operations, *graph._operations_by_depth.values()):
        for place, one in enumerate(operations):
            if one is operation:
                operations[place] = layer
    graph._layers.append(layer)
    return layer


def refresh_symbolic_dtypes(model: Any) -> None:
    """Writes into a functional model's symbolic tensors the dtypes that its layers give now.

    `model.outputs[0].dtype`, and the inputs that Keras casts to, are read from there.

    Args:
        model: functional or Sequential, of which models inside have been done before.
    """
    graph = graph_of(model)
    for tensor in graph.inputs:
        if tensor.dtype in ("float16", "bfloat16"):
            # Keras gives a Sequential model without an Input the compute dtype of its first layer, and rounds what the
            # model is fed before any layer sees it.
            tensor._dtype = "float32"
            tensor._keras_history.operation._dtype = "float32"

    def run(inputs: list[Any]) -> None:
        tensors = {id(symbolic): value for symbolic, value in zip(graph.inputs, inputs, strict=True)}
        for depth in sorted(graph._nodes_by_depth, reverse=True):
            for node in graph._nodes_by_depth[depth]:
                if node.is_input or any(id(one) not in tensors for one in node.input_tensors):
                    continue
                args, kwargs = node.arguments.fill_in(tensors)
                values = keras.tree.flatten(node.operation(*args, **kwargs))
                for symbolic, value in zip(node.outputs, values, strict=True):
                    tensors[id(symbolic)] = value
                    symbolic._dtype = keras.backend.standardize_dtype(value.dtype)

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in graph.inputs]
    tf.function(run, autograph=False).get_concrete_function(specs)
