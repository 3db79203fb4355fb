"""What a checkpoint of a `fit` has beside the arrays of the model: its name, and where the fit is."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_turbo.callbacks.checkpoint_options import CheckpointOptions
from keras_turbo.callbacks.data_position import DataPosition
from keras_turbo.callbacks.fit_call import FitCall
from keras_turbo.callbacks.model_figures import loss_scale, numbers, optimizer_step
from keras_turbo.callbacks.monitored_metric import MonitoredMetric
from keras_turbo.callbacks.resumption import OWN_STATE
from keras_turbo.callbacks.sibling_states import SiblingStates
from keras_turbo.checkpoint.names import CALLBACKS, NameTemplate
from keras_turbo.checkpoint.training_state import TrainingState

# What the names of the figures of the last save begin with.
PROGRESS = "checkpoint_"


@dataclasses.dataclass
class FitProgress:
    """How far a `fit` is.

    Args:
        epoch: the one that runs, from 0.
        batch: batches done in it.
        batches: batches done in all, in earlier runs too.
        logs: what the train function gave last.
    """

    epoch: int = 0
    batch: int = 0
    batches: int = 0
    logs: dict[str, Any] = dataclasses.field(default_factory=dict)


class FitDescription:
    """Describes a `fit` for a checkpoint.

    Args:
        options: what was asked for.
        metric: what is monitored, None if nothing is.
        model: the model that is trained.
        call: the `fit`; None where something else calls the callbacks.
        steps: batches in an epoch as Keras counts them; None where it does not know.
        position: its data.

    Attributes:
        template: the names of checkpoints.
        siblings: the other callbacks.
    """

    def __init__(
        self,
        options: CheckpointOptions,
        metric: MonitoredMetric | None,
        model: keras.Model,
        call: FitCall | None,
        steps: int | None,
        position: DataPosition,
    ) -> None:
        self.template = NameTemplate(options.name_template)
        self.siblings = SiblingStates([])
        self._options = options
        self._metric = metric
        self._model = model
        self._call = call
        self._steps_in_epoch = steps
        self._position = position

    def step(self, at: FitProgress) -> int:
        """The optimizer's step."""
        return optimizer_step(self._model, otherwise=at.batches)

    def state(
        self,
        at: FitProgress,
        logs: dict[str, Any],
        before_validation: tuple[dict[str, np.ndarray], list[int]] | None,
        *,
        in_epoch: bool,
        judged: bool,
        stopped: bool,
    ) -> tuple[TrainingState, dict[str, np.ndarray]]:
        """Where it is.

        Args:
            at: how far it is.
            logs: at the save.
            before_validation: values of the metrics, and epochs of the validation data, when the validation began that
                is under way; None if none is.
            in_epoch: whether the epoch is under way.
            judged: whether the logs tell whether it is the best.
            stopped: whether a callback has ended training.

        Returns:
            The state; and arrays of `extra` besides those of the model, or in their place.
        """
        values, arrays = self.siblings.state()
        history = values.get("History", {}).pop("history", {})
        data = self._position.state(in_epoch=in_epoch)
        replaced = {f"{CALLBACKS}{path}": array for path, array in arrays.items()}
        if before_validation is not None:
            metrics, data["validation_epochs"] = before_validation
            replaced |= metrics
        values[OWN_STATE] = {
            "stopped": stopped,
            "logs": numbers(at.logs),
            "epochs": None if self._call is None else self._call.epochs,
            "steps_in_epoch": self._steps_in_epoch,
        }
        state = TrainingState(
            epoch=at.epoch + (not in_epoch),
            batch=at.batch if in_epoch else 0,
            optimizer_step=self.step(at),
            steps=at.batches,
            metrics={key: value for key, value in numbers(logs).items() if not key.startswith(PROGRESS)},
            monitor=self._monitor_state(logs, judged=judged),
            data=data,
            callbacks=values,
            history=history,
            loss_scale=loss_scale(self._model),
            num_shards=self._options.shard[0],
        )
        return state, replaced

    def name(self, at: FitProgress, logs: dict[str, Any], step: int) -> str:
        """The name of the checkpoint."""
        known = {**numbers(logs), "step": step, "batches": at.batches, "epoch": at.epoch + 1}
        # Preemption comes when it comes, and not each epoch need have its validation: no save fails for want of a name.
        template = self.template if known.keys() >= set(self.template.keys) else NameTemplate()
        return template.name(known)

    def _monitor_state(self, logs: dict[str, Any], *, judged: bool) -> dict[str, Any] | None:
        if self._metric is None:
            return None
        value = logs.get(self._metric.name) if judged else None
        return {**self._metric.state(), "value": None if value is None else float(value)}
