"""Which layers a model calls, in order, with which tensors, whether it is functional, Sequential or subclassed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# What Function keeps of its graph; read and changed here and in float32_operation.py.
_PRIVATE_PARTS = ("_nodes", "_nodes_by_depth", "_operations", "_operations_by_depth", "_layers")


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """One call of a layer, or of an operation of a functional model.

    Attributes:
        layer: what was called.
        inputs: tensors it was given, in order.
        outputs: tensors it gave, in order.
    """

    layer: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """All layers below a model, at any depth, each once: shared ones, those of nested models and of composite layers.

    Args:
        model: is not in the list itself.

    Returns:
        The layers, in no promised order.
    """
    # Keras has no public way to sublayers of layers that are no models.
    return model._flatten_layers(include_self=False)


def graph_of(model: Any) -> Any:
    """The functional graph of a functional or Sequential model; None for a subclassed one.

    Args:
        model: any layer.
    """
    # A Sequential model keeps its graph in an attribute of its own.
    graph = getattr(model, "_functional", None) or model
    # A Function that is no layer is an operation like others.
    if not isinstance(graph, keras.Function) or not isinstance(graph, keras.layers.Layer):
        return None
    missing = [name for name in _PRIVATE_PARTS if not hasattr(graph, name)]
    if missing:
        raise RuntimeError(
            f"A functional model of Keras {keras.__version__} has no {missing}, which hold its graph in Keras 3.12 "
            "to 3.15."
        )
    return graph


def all_graphs(model: keras.Model) -> list[Any]:
    """The functional graphs of a model and of the models in it, innermost last.

    Args:
        model: any model.
    """
    graphs = [graph_of(one) for one in (model, *all_layers(model))]
    return list({id(graph): graph for graph in graphs if graph is not None}.values())


def layer_paths(model: keras.Model) -> dict[int, str]:
    """Names of a model's layers as users read them: those of the models and layers around it, and its own.

    Args:
        model: any model.

    Returns:
        By `id` of the layer or operation.
    """
    paths: dict[int, str] = {}

    def walk(layer: Any, prefix: str) -> None:
        graph = graph_of(layer)
        below = list(layer._layers) if isinstance(layer, keras.layers.Layer) else []
        for one in [*below, *(graph.operations if graph is not None else [])]:
            # The graph of a Sequential model is in it once more, as a model of its own.
            if one is graph or id(one) in paths:
                continue
            paths[id(one)] = prefix + one.name
            walk(one, f"{prefix}{one.name}/")

    walk(model, "")
    return paths


@contextlib.contextmanager
def recorded_calls(model: keras.Model) -> Iterator[list[LayerCall]]:
    """Records the calls of all layers and operations of a model, while it lasts, in the order in which they end.

    Only these very objects are watched, and are as before afterwards. A layer inside a composite one comes before it.

    Args:
        model: any built model.

    Yields:
        A list that grows with each call.
    """
    calls: list[LayerCall] = []
    watched = {id(one): one for one in all_layers(model)}
    for graph in all_graphs(model):
        watched.update((id(one), one) for one in graph.operations)

    def recording(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            calls.append(LayerCall(layer, _tensors((args, kwargs)), _tensors(outputs)))
            return outputs

        return recorded

    # Not through setattr: Keras and TensorFlow track what is set on a layer.
    own_calls = {key: layer.__dict__.get("call") for key, layer in watched.items()}
    for layer in watched.values():
        layer.__dict__["call"] = recording(layer, layer.call)
    try:
        yield calls
    finally:
        for key, layer in watched.items():
            if own_calls[key] is None:
                del layer.__dict__["call"]
            else:
                layer.__dict__["call"] = own_calls[key]


@dataclasses.dataclass(frozen=True)
class ModelTrace:
    """What happens in a model when it is called; nothing is computed for it.

    Attributes:
        calls: of layers, in the order in which they ended.
        outputs: of the model, flat.
        graph: TensorFlow's graph of the call.
    """

    calls: tuple[LayerCall, ...]
    outputs: tuple[Any, ...]
    graph: Any

    def producers(self, tensor: Any) -> list[LayerCall]:
        """The calls that gave a tensor, the innermost first, and those that passed it on, as Dropout may do.

        Args:
            tensor: one of the trace.

        Returns:
            None of them where code between layers made it.
        """
        return [call for call in self.calls if any(one is tensor for one in call.outputs)]


def trace(model: keras.Model, training: bool = False) -> ModelTrace:
    """Calls a model with symbolic tensors of TensorFlow.

    Args:
        model: a built model.
        training: whether as in training. False by default.

    Returns:
        The calls and the outputs.

    Raises:
        ValueError: the model is not built, or can't be called with what is known of its inputs.
    """
    signature = _input_signature(model)
    traced: dict[str, Any] = {}

    def call(inputs: Any) -> Any:
        with recorded_calls(model) as calls:
            outputs = model(inputs, training=training) if model._call_has_training_arg else model(inputs)
        traced.update(calls=tuple(calls), outputs=_tensors(outputs))
        return [tf.convert_to_tensor(output) for output in traced["outputs"]]

    try:
        # A constant beyond float16 is what some look for in the graph; NumPy's warning of it is not theirs.
        with np.errstate(over="ignore"):
            function = tf.function(call, autograph=False).get_concrete_function(signature)
    except Exception as error:
        raise ValueError(
            f"Model {model.name!r} can't be called with symbolic inputs {signature}: {type(error).__name__}: {error}"
        ) from error
    return ModelTrace(traced["calls"], traced["outputs"], function.graph)


def _tensors(structure: Any) -> tuple[Any, ...]:
    return tuple(one for one in keras.tree.flatten(structure) if tf.is_tensor(one))


def _input_signature(model: keras.Model) -> Any:
    if not model.built:
        raise ValueError(
            f"Model {model.name!r} must be built: its layers are not known before. Declare its inputs with "
            "`keras.Input`, or call the model once on a batch, or `model.build(input_shape)`."
        )
    graph = graph_of(model)
    if graph is not None:
        return keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype, x.name), graph.input)
    # Of a subclassed model Keras keeps the shapes of its first call, and no dtypes: layers that want integers, such as
    # Embedding, cast what they get. `build(input_shape)` leaves them too.
    shapes = getattr(model, "_build_shapes_dict", None)
    if not shapes:
        raise ValueError(
            f"The shapes of the inputs of model {model.name!r} are not known. Call the model once on a batch."
        )
    if len(shapes) > 1:
        raise ValueError(
            f"The call of model {model.name!r} has several arguments, {sorted(shapes)}. Give it one: a dict or a tuple "
            "of tensors."
        )
    return _specs(next(iter(shapes.values())))


def _specs(shapes: Any) -> Any:
    if isinstance(shapes, dict):
        return {name: _specs(shape) for name, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        # The size of the batch is that of the first one.
        return tf.TensorSpec((None, *shapes[1:]), tf.float32)
    return type(shapes)(_specs(shape) for shape in shapes)
