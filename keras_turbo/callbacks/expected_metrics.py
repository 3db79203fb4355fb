"""Refuses metrics that there won't be: before the first batch, or as soon as it can be known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_turbo.callbacks.fit_call import FitCall
from keras_turbo.callbacks.model_building import build_metrics_for
from keras_turbo.callbacks.monitored_metric import MonitoredMetric, known_metrics, refuse_missing
from keras_turbo.checkpoint.names import NameTemplate

# What Keras' own callbacks put into the logs of an epoch.
_ADDED_BY_KERAS = {"ReduceLROnPlateau": "learning_rate", "LearningRateScheduler": "learning_rate"}


class ExpectedMetrics:
    """What is asked of the logs: the metric to monitor, and those in the names of checkpoints.

    Args:
        metric: what is monitored, None if nothing is.
        template: the names of checkpoints.
    """

    def __init__(self, metric: MonitoredMetric | None, template: NameTemplate) -> None:
        self._metric = metric
        self._template = template
        # None: nobody can know yet.
        self._known: list[str] | None = None

    def check_at_start(
        self, model: keras.Model, call: FitCall | None, callbacks: Iterable[keras.callbacks.Callback]
    ) -> None:
        """Refuses what won't be there, as far as the model, the data and the callbacks tell.

        Raises:
            ValueError: a metric that there won't be, with those that there are.
        """
        if self._metric is None and not self._template.metric_keys():
            return
        validates = call is None or call.validation_data is not None
        callbacks = list(callbacks)
        if not any(_may_add_logs(callback) for callback in callbacks) and build_metrics_for(model, call):
            known = known_metrics(model, validates=validates)
            if known is not None:
                added = {_ADDED_BY_KERAS.get(type(callback).__name__) for callback in callbacks}
                self._known = [*known, *sorted(name for name in added if name is not None)]
                self._refuse(self._known, validates=validates)
        if self._metric is not None:
            if self._metric.name.startswith("val_") and not validates:
                refuse_missing(self._metric.name, self._known or ["loss"], validates=False)
            self._metric.settle_mode(model)

    def check_after_epoch(self, logs: Mapping[str, Any], *, validated: bool) -> None:
        """The same, by the logs of an epoch, where it could not be known before.

        Args:
            logs: of the epoch.
            validated: whether this epoch had its validation, or there is none.

        Raises:
            ValueError: as `check_at_start`.
        """
        if self._known is None and validated:
            self._known = list(logs)
            self._refuse(self._known, validates=any(name.startswith("val_") for name in logs))

    def _refuse(self, known: list[str], *, validates: bool) -> None:
        if self._metric is not None:
            refuse_missing(self._metric.name, known, validates=validates)
        self._template.check_metrics(known)


def _may_add_logs(callback: keras.callbacks.Callback) -> bool:
    """Whether it is somebody's own, with a hook that is given logs which it may change."""
    kind = type(callback)
    hooks = ("on_epoch_end", "on_train_batch_end", "on_batch_end")
    return any(not getattr(kind, hook).__module__.startswith("keras.") for hook in hooks)
