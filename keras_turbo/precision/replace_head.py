"""A softmax head swapped for one that gives float32 logits, together with the loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_turbo.layers import MixedPrecisionSafeHead
from keras_turbo.precision.compiled_settings import compiled_settings, on_logits, only_loss, takes_logits
from keras_turbo.precision.layer_calls import graph_of
from keras_turbo.precision.loss_scaling import SafeLossScaleOptimizer

# What these say of probabilities they say of logits too: they ask for the largest.
_METRICS_OF_ORDER = (
    *("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy", "top_k_categorical_accuracy"),
    "sparse_top_k_categorical_accuracy",
)
_METRIC_CLASSES_OF_ORDER = (
    keras.metrics.CategoricalAccuracy,
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.TopKCategoricalAccuracy,
    keras.metrics.SparseTopKCategoricalAccuracy,
)


@dataclasses.dataclass(frozen=True)
class _OldHead:
    """What is swapped: a Dense, and what applies a softmax to it if that is a layer or operation of its own."""

    dense: keras.layers.Dense
    last: Any
    inputs: Any
    gives_probabilities: bool


def replace_head(model: keras.Model, units: int | None = None, keep_weights: bool = True) -> keras.Model:
    """Swaps a model's `Dense` output for a `MixedPrecisionSafeHead`, which gives float32 logits.

    A loss on probabilities that the model was compiled with becomes the same loss on logits. The model that is returned
    is a new one that shares all other layers with the old one, which is not to be trained any more.

    Example:

    ```python
    model = keras.applications.MobileNetV2(weights=None, classes=10)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model = keras_turbo.precision.replace_head(model)
    model.loss.get_config()["from_logits"]  # True
    ```

    Args:
        model: a built functional or Sequential model with one output: a `Dense` with a softmax, in it or right after
            it, or without an activation.
        units: number of outputs. Default: that of the `Dense`.
        keep_weights: whether the head starts from the weights of the `Dense`, so that the softmax of its logits is what
            the model gave; the head does not normalize its input then. True by default. With False it starts anew, and
            normalizes. Compiled with True, the optimizer keeps its state; with False it starts anew, too.

    Returns:
        The new model, of the same name and class, compiled if the old one was.

    Raises:
        ValueError: there is no such head; `units` does not go together with `keep_weights`; or the model was compiled
            with a loss or metric that takes probabilities and can't take logits.
    """
    old = _old_head(model)
    if units is None:
        units = int(old.dense.units)
    elif keep_weights and units != old.dense.units:
        raise ValueError(
            f"The weights of a Dense of {old.dense.units} units can't be kept in a head of {units}. Pass "
            "`keep_weights=False`, or leave `units` out."
        )
    settings = _settings_on_logits(model) if old.gives_probabilities else compiled_settings(model)
    with model.distribute_strategy.scope():
        head = _new_head(old, units, keep_weights)
        new = _with_head(model, old, head)
        if keep_weights:
            head.kernel.assign(old.dense.kernel)
            if old.dense.use_bias:
                head.bias.assign(old.dense.bias)
        if settings:
            optimizer = _new_optimizer(model, new, keep_state=keep_weights)
            new.compile(**{**settings, "optimizer": optimizer})
            # What was switched off since it was compiled stays off.
            new.steps_per_execution, new.jit_compile = model.steps_per_execution, model.jit_compile
    return new


def _old_head(model: Any) -> _OldHead:
    graph = graph_of(model) if isinstance(model, keras.Model) else None
    if graph is None or not model.built:
        raise ValueError(
            f"`model` must be a built functional or Sequential model. Received: {model!r} (of type "
            f"{type(model).__name__}). In a subclassed model, make a MixedPrecisionSafeHead in place of the last Dense."
        )
    if len(graph.outputs) != 1:
        raise ValueError(f"`model` must have one output. Received: {model.name!r}, which has {len(graph.outputs)}.")
    last = graph.outputs[0]._keras_history.operation
    dense_output, separate_softmax = graph.outputs[0], False
    if _is_softmax(last):
        separate_softmax = True
        dense_output = _inputs_of(graph.outputs[0])[0]
    dense = dense_output._keras_history.operation
    activation = getattr(getattr(dense, "activation", None), "__name__", None)
    if type(dense) is not keras.layers.Dense or activation not in (
        ("linear",) if separate_softmax else ("linear", "softmax")
    ):
        raise ValueError(
            f"The output of {model.name!r} must come from a Dense with a softmax or no activation. It comes from "
            f"{dense.name!r}, a {type(dense).__name__}"
            + (f" with {activation}" if activation else "")
            + ". For other heads, keras_turbo.make_precision_safe(model) keeps the output in float32."
        )
    return _OldHead(dense, last, _inputs_of(dense_output)[0], separate_softmax or activation == "softmax")


def _is_softmax(layer: Any) -> bool:
    inner = getattr(layer, "operation", layer)
    activation = getattr(getattr(layer, "activation", None), "__name__", None)
    return type(inner).__name__ == "Softmax" or (isinstance(layer, keras.layers.Activation) and activation == "softmax")


def _inputs_of(tensor: Any) -> list[Any]:
    history = tensor._keras_history
    return history.operation._inbound_nodes[history.node_index].input_tensors


def _new_head(old: _OldHead, units: int, keep_weights: bool) -> MixedPrecisionSafeHead:
    dense = old.dense
    head = MixedPrecisionSafeHead(
        units,
        normalize=not keep_weights,
        use_bias=dense.use_bias,
        kernel_initializer=dense.kernel_initializer,
        bias_initializer=dense.bias_initializer,
        kernel_regularizer=dense.kernel_regularizer,
        bias_regularizer=dense.bias_regularizer,
        activity_regularizer=dense.activity_regularizer,
        kernel_constraint=dense.kernel_constraint,
        bias_constraint=dense.bias_constraint,
        # Losses and metrics may be given by the name of the output.
        name=old.last.name,
    )
    head.trainable = dense.trainable
    return head


def _with_head(model: keras.Model, old: _OldHead, head: MixedPrecisionSafeHead) -> keras.Model:
    if isinstance(model, keras.Sequential):
        kept = [layer for layer in model.layers if layer is not old.dense and layer is not old.last]
        inputs = keras.Input(batch_shape=model.inputs[0].shape, dtype=model.inputs[0].dtype, name=model.inputs[0].name)
        return type(model)([inputs, *kept, head], name=model.name)
    outputs = keras.tree.map_structure(lambda _: head(old.inputs), model.output)
    try:
        return type(model)(inputs=model.input, outputs=outputs, name=model.name)
    except TypeError as error:
        raise ValueError(
            f"A new {type(model).__name__} can't be made of inputs and outputs: {error}. Make a "
            "MixedPrecisionSafeHead where the model is built."
        ) from error


def _settings_on_logits(model: keras.Model) -> dict[str, Any]:
    settings = dict(compiled_settings(model))
    if not settings:
        return settings
    loss = only_loss(settings.get("loss"))
    if loss is not None and takes_logits(loss) is None:
        raise ValueError(
            f"Model {model.name!r} is compiled with the loss {loss!r}, which takes the softmax's probabilities and "
            "has no `from_logits`. Compile the model with a loss that takes logits afterwards: replace the head "
            "before `compile`."
        )
    for argument in ("metrics", "weighted_metrics"):
        for metric in keras.tree.flatten(settings.get(argument)):
            if metric is not None and not _is_of_order(metric):
                raise ValueError(
                    f"Model {model.name!r} is compiled with the metric {metric!r}, which takes probabilities: of "
                    "logits it would say something else. Replace the head before `compile`, and choose a metric that "
                    "takes logits."
                )
    if loss is not None and not takes_logits(loss):
        settings["loss"] = keras.tree.map_structure(on_logits, settings["loss"])
    return settings


def _is_of_order(metric: Any) -> bool:
    if isinstance(metric, str):
        return metric in _METRICS_OF_ORDER
    if isinstance(metric, keras.metrics.Metric):
        return isinstance(metric, _METRIC_CLASSES_OF_ORDER) or metric.get_config().get("from_logits") is True
    return getattr(metric, "__name__", "") in _METRICS_OF_ORDER


def _new_optimizer(model: keras.Model, new: keras.Model, keep_state: bool) -> Any:
    old = model.optimizer
    if old is None:
        return None
    optimizer = type(old).from_config(old.get_config())
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not isinstance(optimizer, SafeLossScaleOptimizer):
        optimizer = SafeLossScaleOptimizer.adopting(optimizer)
    if keep_state and old.built:
        optimizer.build(new.trainable_variables)
        # The head's variables are where the Dense's were, with the same shapes.
        for variable, value in zip(optimizer.variables, old.variables, strict=False):
            variable.assign(value)
    return optimizer
