"""Which of two models is the better one, by a metric in the logs of `fit`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import keras

Mode = Literal["auto", "min", "max"]
MODES = ("auto", "min", "max")

# What names of metrics say about their direction, for those that don't say it themselves.
_UP = ("acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "dice", "r2", "top_k", "similarity", "sensitivity")
_UP += ("specificity", "map", "ndcg", "bleu", "rouge", "psnr", "ssim", "correlation", "kappa", "jaccard")
_DOWN = ("loss", "error", "mse", "mae", "rmse", "mape", "msle", "perplexity", "crossentropy", "divergence", "hinge")
_DOWN += ("distance", "wer", "cer", "fid", "logcosh", "poisson")


class MonitoredMetric:
    """The metric that decides which checkpoint is the best.

    Args:
        name: a key of the logs.
        mode: "min", "max", or "auto": by what the metric says of itself, else by its name.

    Attributes:
        best: the best value so far, None before the first.
    """

    def __init__(self, name: str, mode: Mode) -> None:
        self.name = name
        self.mode = mode
        self.best: float | None = None
        self._best_before: float | None = None

    def settle_mode(self, model: keras.Model) -> None:
        """Finds out what "auto" means for the metric of a model.

        Raises:
            ValueError: nothing tells.
        """
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

    def state(self) -> dict[str, Any]:
        """Name, mode and best value, made of JSON's types."""
        return {"name": self.name, "mode": self.mode, "best": self.best}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Takes over the best value of an earlier run, if it watched the same metric in the same way."""
        if state is not None and (state["name"], state["mode"]) == (self.name, self.mode):
            self.best = state["best"]


def direction_of(name: str, model: keras.Model) -> Literal["min", "max"]:
    """Whether less or more of a metric is better.

    Args:
        name: a key of the logs.
        model: the model, whose metrics may say it.

    Raises:
        ValueError: neither the metric nor its name tells.
    """
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


def known_metrics(model: keras.Model, *, validates: bool) -> list[str] | None:
    """The keys that the logs of a model will have.

    Args:
        model: with its metrics built, as far as they can be.
        validates: whether `fit` has validation data.

    Returns:
        The keys of batches, and those of epochs; None where the model makes its logs itself.
    """
    own_step = type(model).train_step is not keras.Model.train_step
    if own_step or type(model).compute_metrics is not keras.Model.compute_metrics:
        return None
    names = list(model.get_metrics_result())
    return [*names, *(f"val_{name}" for name in names)] if validates else names


def refuse_missing(name: str, known: Iterable[str], *, validates: bool) -> None:
    """Refuses a metric that there won't be.

    Raises:
        ValueError: with those that there are, and what may be missing.
    """
    known = list(known)
    if name in known:
        return
    hint = ""
    if name.startswith("val_") and not validates:
        hint = " Metrics that begin with val_ need fit(validation_data=...) or validation_split."
    raise ValueError(f"There is no metric {name!r} to monitor. There are {', '.join(map(repr, known))}.{hint}")


def _all_metrics(metrics: Iterable[Any]) -> Iterable[Any]:
    for metric in metrics:
        yield metric
        yield from _all_metrics(getattr(metric, "metrics", ()))
