"""The metric by which one checkpoint is the best, and the names of metrics that a `fit` will have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import keras

from keras_turbo.fit.call import FitCall
from keras_turbo.fit.first_step import build_metrics, trains_as_keras_does

Mode = Literal["auto", "min", "max"]

# What names of metrics say about their direction, for those that don't say it themselves.
_UP = ("acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "dice", "r2", "top_k", "similarity", "sensitivity")
_UP += ("specificity", "map", "ndcg", "bleu", "rouge", "psnr", "ssim", "correlation", "kappa", "jaccard")
_DOWN = ("loss", "error", "mse", "mae", "rmse", "mape", "msle", "perplexity", "crossentropy", "divergence", "hinge")
_DOWN += ("distance", "wer", "cer", "fid", "logcosh", "poisson")

# What Keras' own callbacks put into the logs of an epoch.
_ADDED_BY_KERAS = {"ReduceLROnPlateau": "learning_rate", "LearningRateScheduler": "learning_rate"}


class MonitoredMetric:
    """The metric that decides which checkpoint is the best.

    Attributes:
        best: the best value so far, None before the first.
    """

    def __init__(self, name: str, mode: Mode) -> None:
        self.name = name
        self.mode = mode
        self.best: float | None = None
        self._best_before: float | None = None

    def settle_mode(self, model: keras.Model) -> None:
        """Finds out what "auto" means for the metric of a model; ValueError where nothing tells."""
        if self.mode == "auto":
            self.mode = direction_of(self.name, model)

    def judge(self, logs: Mapping[str, Any]) -> bool:
        """Whether the logs have the best value so far, which is then kept. False where they don't have the metric."""
        self._best_before = self.best
        value = logs.get(self.name)
        if value is None or math.isnan(value := float(value)):
            return False
        if self.best is not None and not (value < self.best if self.mode == "min" else value > self.best):
            return False
        self.best = value
        return True

    def take_back(self) -> None:
        """Lets the last value that was judged be as if it had not come: nothing was saved of it."""
        self.best = self._best_before

    def state(self, logs: Mapping[str, Any], *, judged: bool) -> dict[str, Any]:
        """Name, mode, best value, and the value that judges a save; made of JSON's types."""
        value = logs.get(self.name) if judged else None
        value = None if value is None else float(value)
        return {"name": self.name, "mode": self.mode, "best": self.best, "value": value}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Takes over the best value of an earlier run, if it watched the same metric in the same way."""
        if state is not None and (state["name"], state["mode"]) == (self.name, self.mode):
            self.best = state["best"]


def direction_of(name: str, model: keras.Model) -> Literal["min", "max"]:
    """Whether less or more of a metric of a model is better; ValueError where neither it nor its name tells."""
    plain = name.removeprefix("val_")
    if plain == "loss" or plain.endswith("_loss"):
        return "min"
    for metric in _all_metrics(model.metrics):
        # Keras' metrics have an attribute of their own for it, which KerasTuner and EarlyStopping read, too.
        direction = getattr(metric, "_direction", None)
        if metric.name == plain and direction in ("up", "down"):
            return "max" if direction == "up" else "min"
    lowered = plain.lower()
    rises, falls = (any(word in lowered for word in words) for words in (_UP, _DOWN))
    if rises != falls:
        return "max" if rises else "min"
    raise ValueError(
        f"Whether {name!r} is better when it is small or when it is large can't be told from its name. "
        'Give mode="min" or mode="max".'
    )


def _all_metrics(metrics: Iterable[Any]) -> Iterable[Any]:
    for metric in metrics:
        yield metric
        yield from _all_metrics(getattr(metric, "metrics", ()))


class ExpectedMetrics:
    """What is asked of the logs of a `fit`: refused before the first batch, or as soon as it can be known."""

    def __init__(self, metric: MonitoredMetric | None, template: Any) -> None:
        self._metric = metric
        self._template = template
        # None: nobody can know yet.
        self._known: list[str] | None = None

    def check_at_start(self, model: keras.Model, call: FitCall, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        """Raises ValueError for what won't be there, as far as the model, the data and the callbacks tell."""
        if self._metric is None and not self._template.metric_keys():
            return
        validates = call.validation_data is not None
        callbacks = list(callbacks)
        if not any(_may_add_logs(callback) for callback in callbacks) and build_metrics(model, call.batch_spec):
            known = _known_metrics(model, validates=validates)
            if known is not None:
                added = {_ADDED_BY_KERAS.get(type(callback).__name__) for callback in callbacks}
                self._known = [*known, *sorted(name for name in added if name is not None)]
                self._refuse(self._known, validates=validates)
        if self._metric is not None:
            if self._metric.name.startswith("val_") and not validates:
                _refuse_missing(self._metric.name, self._known or ["loss"], validates=False)
            self._metric.settle_mode(model)

    def check_after_epoch(self, logs: Mapping[str, Any], *, validated: bool) -> None:
        """The same, by the logs of an epoch that had its validation, where it could not be known before."""
        if self._known is None and validated:
            self._known = list(logs)
            self._refuse(self._known, validates=any(name.startswith("val_") for name in logs))

    def _refuse(self, known: list[str], *, validates: bool) -> None:
        if self._metric is not None:
            _refuse_missing(self._metric.name, known, validates=validates)
        self._template.check_metrics(known)


def _known_metrics(model: keras.Model, *, validates: bool) -> list[str] | None:
    """The keys that the logs of a model with built metrics will have; None where the model makes them itself."""
    if not trains_as_keras_does(model) or type(model).compute_metrics is not keras.Model.compute_metrics:
        return None
    names = list(model.get_metrics_result())
    return [*names, *(f"val_{name}" for name in names)] if validates else names


def _refuse_missing(name: str, known: list[str], *, validates: bool) -> None:
    if name not in known:
        hint = ""
        if name.startswith("val_") and not validates:
            hint = " Metrics that begin with val_ need fit(validation_data=...) or validation_split."
        raise ValueError(f"There is no metric {name!r} to monitor. There are {', '.join(map(repr, known))}.{hint}")


def _may_add_logs(callback: keras.callbacks.Callback) -> bool:
    """Whether it is somebody's own, with a hook that is given logs which it may change."""
    hooks = ("on_epoch_end", "on_train_batch_end", "on_batch_end")
    return any(not getattr(type(callback), hook).__module__.startswith("keras.") for hook in hooks)
