"""Brings a model, its callbacks and its data to where an earlier run was."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np

from keras_turbo.callbacks.data_position import DataPosition
from keras_turbo.callbacks.fit_call import FitCall, begin_at_epoch, count_batches_before
from keras_turbo.callbacks.model_building import build_for, build_metrics_for
from keras_turbo.callbacks.sibling_states import SiblingStates
from keras_turbo.callbacks.train_function import own_train_function
from keras_turbo.checkpoint.catalog import newest_first, read_state
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.model_state import METRICS, assign_state
from keras_turbo.checkpoint.names import CALLBACKS
from keras_turbo.checkpoint.restoring import latest, read_checkpoint
from keras_turbo.checkpoint.training_state import TrainingState
from keras_turbo.execution.block_function import BlockFunction

# Under which name a checkpoint has what AsyncCheckpoint itself must know.
OWN_STATE = "AsyncCheckpoint"


class Resumption:
    """A checkpoint on its way into a `fit`.

    `fit` knows nothing of epochs that begin in their middle. So the epoch is begun as any other, and its first
    executions are answered without training, with the logs of then. Whatever callbacks do meanwhile (they reset
    themselves, a schedule sets the learning rate of the epoch once more) is undone after the last of these: model,
    metrics and callbacks get the state of the checkpoint once more.

    Args:
        model: the model that `fit` runs.
        call: the `fit`.
        weights: of the checkpoint.
        extra: of the checkpoint.
        state: of the checkpoint.
    """

    def __init__(
        self,
        model: keras.Model,
        call: FitCall | None,
        weights: dict[str, np.ndarray],
        extra: dict[str, np.ndarray],
        state: TrainingState,
    ) -> None:
        self.state = state
        self._model = model
        self._call = call
        self._weights = weights
        self._extra = {path: array for path, array in extra.items() if not path.startswith(CALLBACKS)}
        self._of_callbacks = {
            path.removeprefix(CALLBACKS): array for path, array in extra.items() if path.startswith(CALLBACKS)
        }
        self._executions = 0
        self._restored = False
        self._entered = False
        self._epoch_before: int | None = None

    @property
    def was_stopped(self) -> bool:
        """Whether a callback had ended training for good, and no more epochs are asked for than were then."""
        own = self.state.callbacks.get(OWN_STATE, {})
        epochs = own.get("epochs")
        asks_for_more = self._call is not None and epochs is not None and self._call.epochs > epochs
        return bool(own.get("stopped", False)) and not asks_for_more

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to train."""
        return self.was_stopped or (self._call is not None and self.state.epoch >= self._call.epochs)

    @property
    def is_in_epoch(self) -> bool:
        """Whether an epoch is to begin in its middle."""
        return self.state.batch > 0

    def begin(self, position: DataPosition, steps: int | None) -> None:
        """Assigns the state for a first time, and sets where `fit` and the data begin. To be called in on_train_begin.

        Args:
            position: the data of this fit.
            steps: executions' batches in an epoch, as Keras counts them; None where it does not know.

        Raises:
            ValueError: the model is another one than that of the checkpoint.
        """
        build_for(self._model, self._call)
        if self.is_in_epoch:
            build_metrics_for(self._model, self._call)
        unassigned = assign_state(self._model, self._weights, self._extra)
        lost = [path for path in unassigned if path.startswith(METRICS)]
        if lost and self.is_in_epoch:
            warnings.warn(
                "The model has other metrics than that of the checkpoint, so that their means over the epoch that is "
                f"resumed begin anew: {', '.join(sorted(lost))}.",
                stacklevel=2,
            )
        if self.state.data is not None:
            position.restore(self.state.data)
            if not self.is_done:
                position.warn_of_drawn_order()
        epoch = self.state.epoch
        if self.was_stopped and self._call is not None:
            epoch = max(epoch, self._call.epochs)
        self._epoch_before = begin_at_epoch(self._model, epoch)
        at_once = self._model.steps_per_execution
        self._executions = self.state.batch // at_once
        if steps is not None and self.state.batch >= steps:
            # The last execution of an epoch may have had fewer.
            self._executions = -(-steps // at_once)
        self._warn_of_other_steps(steps)

    def forget_first_epoch(self) -> None:
        """Puts back what tells Keras where `fit` begins, once it has been read."""
        if self.state.epoch != 0 or self.was_stopped:
            begin_at_epoch(self._model, self._epoch_before)

    @property
    def logs(self) -> dict[str, float]:
        """What the train function gave last."""
        return dict(self.state.callbacks.get(OWN_STATE, {}).get("logs", {}))

    def answer(self) -> dict[str, float] | None:
        """The logs of one more execution that need not be run; None when there are no more."""
        if self._executions == 0:
            return None
        self._executions -= 1
        return self.logs

    def forget_answers(self) -> None:
        """Runs all executions from here on."""
        self._executions = 0

    @property
    def answers_left(self) -> int:
        """How many executions need not be run."""
        return self._executions

    def restore(self, siblings: SiblingStates) -> None:
        """Puts everything back, over what callbacks have done since `begin`. Doing it twice does nothing.

        Args:
            siblings: the other callbacks of this fit.
        """
        if self._restored:
            return
        self._restored = True
        if self.is_in_epoch:
            assign_state(self._model, self._weights, self._extra)
        values = {key: value for key, value in self.state.callbacks.items() if key != OWN_STATE}
        if self.state.history:
            values["History"] = {**values.get("History", {}), "history": self.state.history}
        siblings.restore(values, self._of_callbacks)
        self._weights, self._extra, self._of_callbacks = {}, {}, {}

    def warn_if_done(self, directory: Directory) -> None:
        """Says so where there is nothing left to train.

        Args:
            directory: where the checkpoint was found.
        """
        if self._call is None or not self.is_done:
            return
        how = "a callback had stopped it" if self.was_stopped else f"all {self._call.epochs} epochs are done"
        warnings.warn(
            f"The training of which there are checkpoints in {directory} has ended at step "
            f"{self.state.optimizer_step}: {how}. Its state is restored, and nothing is trained. Give more epochs to "
            "go on, or another directory to train anew.",
            stacklevel=2,
        )

    def _warn_of_other_steps(self, steps: int | None) -> None:
        before = self.state.callbacks.get(OWN_STATE, {}).get("steps_in_epoch")
        if self.is_in_epoch and steps is not None and before is not None and steps != before:
            warnings.warn(
                f"An epoch has {steps} batches here, and had {before} in the run that is resumed, after batch "
                f"{self.state.batch} of one: {max(0, steps - self.state.batch)} are trained of it.",
                stacklevel=2,
            )

    def enter(self, iterator: Any, position: DataPosition) -> None:
        """Leaves out what is done of the data, before the first execution that is run. Doing it twice does nothing.

        Args:
            iterator: what `fit` gives.
            position: the data of this fit.
        """
        if self._entered:
            return
        self._entered = True
        data = self.state.data
        if data is not None:
            position.skip_in(iterator)
            if self._call is not None:
                count_batches_before(self._call, max(0, position.batches - self.state.batch))
        function = own_train_function(self._model)
        if isinstance(function, BlockFunction) and self.is_in_epoch:
            function.resume(iterator, self.state.batch)


def find_checkpoint(model: keras.Model, call: FitCall | None, directory: Directory) -> Resumption | None:
    """Reads the newest good checkpoint of a directory.

    Args:
        model: the model that `fit` runs.
        call: the `fit`.
        directory: where checkpoints are kept.

    Returns:
        What brings it into the model; None where there is none.
    """
    folder = latest(directory)
    if folder is None:
        return None
    return Resumption(model, call, *read_checkpoint(folder))


def refuse_newer_checkpoints(directory: Directory, step: int) -> None:
    """Refuses a directory for a run that does not go on with it: by steps, the new checkpoints would be the older ones.

    Args:
        directory: where checkpoints are kept.
        step: the optimizer's step at which the run begins.

    Raises:
        ValueError: there are checkpoints of later steps.
    """
    location = locate(directory)
    for name in newest_first(location):
        try:
            newest = read_state(location, location.child(name)).optimizer_step
        except (OSError, ValueError):
            continue  # damaged, and of no step
        if newest > step:
            raise ValueError(
                f"{location.path} has checkpoints up to step {newest}, and this run begins at step {step} with "
                "restore=False, so that its checkpoints would pass for older ones. Give it a directory of its own, or "
                "restore=True to go on."
            )
        return
