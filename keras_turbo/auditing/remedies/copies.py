"""A second model that trains as the user's does, to try what the user's own must not become."""

from __future__ import annotations

import copy
from typing import Any

import keras

from keras_turbo.precision.compiled_settings import compiled_settings
from keras_turbo.precision.layer_calls import graph_of


def why_not_copyable(model: keras.Model) -> str | None:
    """Why no copy would train as the model does; None if one would."""
    if type(model).train_step is not keras.Model.train_step:
        return f"{type(model).__name__} has a train_step of its own, which a copy would not have"
    if graph_of(model) is None:
        return f"{type(model).__name__} is a subclassed model, which can't be copied layer by layer"
    if not isinstance(model.optimizer, keras.optimizers.Optimizer):
        return "its optimizer is none of Keras'"
    return None


def compile_alike(other: keras.Model, model: keras.Model) -> None:
    """Compiles a model as another one is, with an optimizer and metrics of its own."""
    settings = dict(compiled_settings(model))
    settings["optimizer"] = type(model.optimizer).from_config(model.optimizer.get_config())
    for name in ("metrics", "weighted_metrics"):
        settings[name] = keras.tree.map_structure(_anew, settings.get(name))
    other.compile(**settings)


def _anew(metric: Any) -> Any:
    if isinstance(metric, keras.metrics.Metric):
        return type(metric).from_config(copy.deepcopy(metric.get_config()))
    return metric
