"""An existing model made safe in half precision: what is fragile in it computes in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_turbo.fit.train_function import forget_functions
from keras_turbo.precision.float32_operation import put_in_float32, refresh_symbolic_dtypes
from keras_turbo.precision.fragile_layers import half_layers, is_half, why_fragile
from keras_turbo.precision.layer_calls import (
    LayerCall,
    ModelTrace,
    all_graphs,
    all_layers,
    graph_of,
    layer_paths,
    trace,
)
from keras_turbo.precision.model_scaling import settle_compiled
from keras_turbo.precision.warn_once import warn_once
from keras_turbo.report import Table, show


@dataclasses.dataclass(frozen=True)
class Change:
    """One layer that computes in float32 now, or would.

    Attributes:
        layer: its name, after those of the models and layers around it.
        kind: its class.
        before: what it computed in.
        reason: why that is not safe.
    """

    layer: str
    kind: str
    before: str
    reason: str


def make_precision_safe(model: keras.Model, *, verbose: bool = True) -> keras.Model:
    """Lets what is fragile in a model compute in float32, and leaves the rest as fast as it is.

    These are

    - outputs: the last layer with weights before each, and all that follows it;
    - softmax and sigmoid activations, but for the gates of recurrent layers;
    - normalizations, of batches, layers and inputs;
    - layers that add losses, by an activity regularizer or in their `call`;
    - averages and sums over more than 256 elements, or over a number that is not known.

    The model itself is changed and returned: its weights, names, layers, optimizer and compile settings are the same
    objects, shared layers stay shared and nested models nested. A layer that is changed is changed wherever it is used.
    Functions that Keras has traced are traced again. Where the model is compiled and Keras scales its loss, the scaling
    is made right (`SafeLossScaleOptimizer`), and what can't work with several devices is switched off with a warning.
    So call it after `compile`, or again after it; it changes nothing that is safe already.

    Example:

    ```python
    keras_turbo.use_mixed_precision()
    model = keras.applications.ResNet50(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy")
    keras_turbo.make_precision_safe(model)
    ```

    Args:
        model: a built functional, Sequential or subclassed model, of any dtype policy. One that computes in float32 is
            returned as it is.
        verbose: whether a table says what was changed. True by default; nothing is printed where nothing was.

    Returns:
        The same model.

    Raises:
        ValueError: `model` is no model, or is not built, or is a subclassed one whose `call` can't be traced.

    Note:
        The layers of a functional or Sequential model keep their dtype policies when it is saved and loaded. Those that
        a subclassed model or a composite layer (the softmax in MultiHeadAttention) makes itself do not: call this again
        after loading. Operations in the `call` of a subclass can't be changed; where an output is half precision
        because of one, a warning says so.
    """
    changes = list(_find_and_change(_checked_model(model), change=True))
    if verbose and changes:
        print_changes(changes, model.name)
    if model.compiled:
        settle_compiled(model)
    return model


def unsafe_layers(model: keras.Model) -> list[Change]:
    """What `make_precision_safe` would change; changes nothing.

    Args:
        model: a built model.

    Returns:
        The layers, in the order in which the model calls them.

    Raises:
        ValueError: as `make_precision_safe`.
    """
    return list(_find_and_change(_checked_model(model), change=False))


def print_changes(changes: Sequence[Change], name: str) -> None:
    """Prints a table of changes to standard output.

    Args:
        changes: the rows.
        name: of the model.
    """
    rows = [(change.layer, change.kind, change.before, change.reason) for change in changes]
    columns = ("layer", "class", "before", "because")
    show([Table(f"{name}: computed in float32 from now on", columns, rows, words=(0, 1, 2, 3))])


def _checked_model(model: Any) -> keras.Model:
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`model` must be a Keras model. Received: {model!r} (of type {type(model).__name__}). For a single layer, "
            "set its `dtype_policy`."
        )
    return model


def _find_and_change(model: keras.Model, change: bool) -> Iterator[Change]:
    if change and graph_of(model) is None:
        # Also where all that follows is float32 already, such as a head.
        _keep_inputs_unrounded(model)
    if not half_layers(model):
        return
    traced = trace(model)
    paths = layer_paths(model)
    calls: dict[int, list[LayerCall]] = {}
    for call in traced.calls:
        calls.setdefault(id(call.layer), []).append(call)
    of_outputs = _output_layers(traced)
    found = []
    for layer in _candidates(model, traced):
        before = _half_dtype(layer, calls.get(id(layer), ()))
        reason = "output" if id(layer) in of_outputs else why_fragile(layer, calls.get(id(layer), ()))
        if before and reason:
            found.append((layer, Change(paths.get(id(layer), str(layer.name)), type(layer).__name__, before, reason)))
    if change and found:
        for layer, _ in found:
            _put_layer_in_float32(model, layer)
        for graph in reversed(all_graphs(model)):
            refresh_symbolic_dtypes(graph)
        forget_functions(model)
        _warn_of_half_outputs(model)
    yield from (one for _, one in found)


def _candidates(model: keras.Model, traced: ModelTrace) -> list[Any]:
    """Layers and operations in the order of their calls, then those that are not called; no models."""
    in_order = {id(call.layer): call.layer for call in traced.calls}
    in_order.update((id(layer), layer) for layer in all_layers(model) if id(layer) not in in_order)
    return [layer for layer in in_order.values() if not isinstance(layer, keras.Model)]


def _half_dtype(layer: Any, calls: Sequence[LayerCall]) -> str | None:
    if isinstance(layer, keras.layers.Layer):
        return layer.compute_dtype if is_half(layer) else None
    dtypes = {keras.backend.standardize_dtype(one.dtype) for call in calls for one in call.inputs}
    return next((dtype for dtype in ("float16", "bfloat16") if dtype in dtypes), None)


def _output_layers(traced: ModelTrace) -> set[int]:
    """Those that give the outputs, and those before them up to one that has weights."""
    found: set[int] = set()
    waiting = list(traced.outputs)
    while waiting:
        # Where code of a subclass follows the last layer, what it computes with comes in float32 at least.
        calls = (
            traced.producers(waiting.pop()) or [one for one in reversed(traced.calls) if _has_weights(one.layer)][:1]
        )
        for call in calls:
            is_new = id(call.layer) not in found
            found.add(id(call.layer))
            if is_new and not _has_weights(call.layer) and len(call.inputs) == 1 and traced.producers(call.inputs[0]):
                waiting.append(call.inputs[0])
    return found


def _has_weights(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Layer) and not isinstance(layer, keras.Model) and bool(layer.weights)


def _put_layer_in_float32(model: keras.Model, layer: Any) -> None:
    if not isinstance(layer, keras.layers.Layer):
        for graph in all_graphs(model):
            if any(one is layer for one in graph.operations):
                put_in_float32(graph, layer)
        return
    # Wrappers such as TimeDistributed compute in the layers that they hold.
    for one in layer._flatten_layers():
        if is_half(one):
            one.dtype_policy = "float32"
            if isinstance(one, keras.layers.Normalization) and one.built:
                _make_statistics_anew(one)


def _make_statistics_anew(layer: keras.layers.Normalization) -> None:
    """Mean and variance, which the layer keeps in its compute dtype, from what it was given or adapted to."""
    if layer.input_mean is None:
        layer.finalize_state()
    else:
        built_with: Any = layer.get_build_config()
        layer.build(built_with["input_shape"])


def _keep_inputs_unrounded(model: keras.Model) -> None:
    """Lets a subclassed model's inputs reach its layers, each of which casts to what it computes in, as they are.

    Keras casts them to the compute dtype of the model first: 70,000 would be infinite in float16 whatever comes after.
    """
    if not is_half(model) or not model.autocast:
        return
    model.autocast = False
    forget_functions(model)
    try:
        trace(model)
        trace(model, training=True)
    except ValueError:
        # Its `call` mixes inputs with what layers give by operations of TensorFlow's own, which take one dtype.
        model.autocast = True


def _warn_of_half_outputs(model: keras.Model) -> None:
    outputs = graph_of(model).outputs if graph_of(model) is not None else trace(model).outputs
    half = sorted({str(keras.backend.standardize_dtype(one.dtype)) for one in outputs} & {"float16", "bfloat16"})
    if half:
        warn_once(
            model,
            "half-precision output",
            f"Model {model.name!r} still gives {half[0]}: its `call` casts or computes after its last layer. End it in "
            "`keras.ops.cast(outputs, 'float32')`.",
        )
