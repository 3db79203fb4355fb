"""One `fit` under AsyncCheckpoint: follows it, decides when to save, and cleans up however it ends."""

from __future__ import annotations

import time
import types
import warnings
import weakref
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.callbacks.abandoned_runs import abandoning, note_begin, note_end
from keras_turbo.callbacks.agreed_moments import AgreedMoments
from keras_turbo.callbacks.background_saver import BackgroundSaver, CheckpointSaveError
from keras_turbo.callbacks.before_others import BeforeOthers
from keras_turbo.callbacks.callback_list import is_in_use
from keras_turbo.callbacks.checkpoint_options import CheckpointOptions
from keras_turbo.callbacks.data_position import DataPosition
from keras_turbo.callbacks.expected_metrics import ExpectedMetrics
from keras_turbo.callbacks.figures_over_workers import worker_of_model
from keras_turbo.callbacks.fit_call import FitCall
from keras_turbo.callbacks.fit_description import PROGRESS, FitDescription, FitProgress
from keras_turbo.callbacks.monitored_metric import MonitoredMetric
from keras_turbo.callbacks.preemption import PREEMPTED_EXIT_CODE, PreemptionSignals
from keras_turbo.callbacks.resumption import Resumption, find_checkpoint, refuse_newer_checkpoints
from keras_turbo.callbacks.save_schedule import SaveSchedule
from keras_turbo.callbacks.sibling_states import SiblingStates
from keras_turbo.callbacks.train_function import (
    Run,
    intercept_train_function,
    own_train_function,
    restore_train_function,
)
from keras_turbo.checkpoint.model_state import metric_values
from keras_turbo.checkpoint.pruning import Pruner
from keras_turbo.execution.block_function import BlockFunction


class FitRun:
    """One `fit`, from `on_train_begin` until it ends, normally or not.

    It holds no reference to the list of callbacks, a local variable of `fit`: with that list it ends at the latest.

    Args:
        options: what was asked for.
        metric: what is monitored, None if nothing is.
        model: the model that is trained.
        call: the `fit`; None where something else calls the callbacks.
        steps: batches in an epoch as Keras counts them; None where it does not know.
    """

    def __init__(
        self,
        options: CheckpointOptions,
        metric: MonitoredMetric | None,
        model: keras.Model,
        call: FitCall | None,
        steps: int | None,
    ) -> None:
        self.preemption_asked = False
        self._options = options
        self._metric = metric
        self._model = model
        self._call = call
        self._steps_in_epoch = steps
        self._schedule = SaveSchedule(options.save_freq)
        index, workers = worker_of_model(model)
        # Where they save together, each a part, all of them have this callback.
        saves_together = workers > 1 and options.shard[0] > 1
        self._moments = AgreedMoments(model.distribute_strategy, is_chief=index == 0) if saves_together else None
        self._position = DataPosition(call, steps)
        self._description = FitDescription(options, metric, model, call, steps, self._position)
        self._expected = ExpectedMetrics(metric, self._description.template)
        self._signals = PreemptionSignals(self._on_signal)
        self._saver = BackgroundSaver(
            model,
            options.directory,
            pruner=Pruner(
                options.directory,
                max_to_keep=options.max_to_keep,
                keep_best=options.keep_best,
                keep_every_hours=options.keep_every_hours,
                metric=metric,
            ),
            when_busy=options.when_busy,
            max_write_mb_per_second=options.max_write_mb_per_second,
            max_shard_mb=options.max_shard_mb,
            shard=options.shard,
        )
        self._resumption: Resumption | None = None
        self._finalizer: Any = None
        self._callback_list: weakref.ref[keras.callbacks.CallbackList] | None = None
        self._callbacks_before: list[keras.callbacks.Callback] = []
        self._others: list[keras.callbacks.Callback] = []
        self.has_ended = False
        self._epochs_begun = False
        self._at = FitProgress()
        self._batches_at_save: int | None = None
        self._was_answered = False
        self._steps_of_execution = 0
        self._before_validation: tuple[dict[str, np.ndarray], list[int]] | None = None

    # Its beginning and its end.

    def begin(self, callback: keras.callbacks.Callback, callback_list: keras.callbacks.CallbackList | None) -> None:
        """Takes the directory, restores what is in it, and puts itself before and behind all other callbacks."""
        others = [] if callback_list is None else callback_list.callbacks
        self._others = [one for one in others if one is not callback and not isinstance(one, BeforeOthers)]
        note_begin(self)
        try:
            self._expected.check_at_start(self._model, self._call, self._others)
            self._saver.open()
            options = self._options
            if options.restore:
                self._restore()
            else:
                refuse_newer_checkpoints(options.directory, self._step())
            optimizer = self._model.optimizer
            if self._model.built and optimizer is not None and optimizer.built:
                self._saver.prepare()
            self._schedule.begin(self._step())
            # First, so that the others see only what is trained.
            intercept_train_function(self._model, self._intercept, first=True)
            if options.save_on_preemption:
                self._signals.install()
            if callback_list is not None:
                self._callback_list = weakref.ref(callback_list)
                self._callbacks_before = callback_list.callbacks
                # A new list, since Keras is going through this one. Behind the others, a save has what they have done
                # at the end of an epoch (a lower learning rate, another best value, a line of the history).
                callback_list.callbacks = [BeforeOthers(self), *self._others, callback]
                # `fit` says nothing when an error of another callback ends it; its list of callbacks goes all the same.
                self._finalizer = weakref.finalize(callback_list, self.abandon)
        except BaseException:
            self.abandon()
            raise

    def end(self) -> None:
        """Waits for what is pending, and puts everything back that was changed for this fit.

        Raises:
            CheckpointSaveError: a checkpoint could not be written, with `on_error="raise"`.
        """
        self._end()
        self.raise_error()
        # It came too late to end training, and still wants the process to go.
        self._signals.pass_on()

    def abandon(self) -> None:
        """The same after an error, which is not to be hidden by another one."""
        self._end()
        self._raise_or_warn("warn")

    @property
    def is_left_behind(self) -> bool:
        """Whether its `fit` has ended by an error and it has not: the traceback is kept, and with it all of `fit`."""
        callback_list = None if self._callback_list is None else self._callback_list()
        return not self.has_ended and callback_list is not None and not is_in_use(callback_list)

    def _end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        note_end(self)
        if self._finalizer is not None:
            self._finalizer.detach()
        try:
            restore_train_function(self._model, self._intercept)
            callback_list = None if self._callback_list is None else self._callback_list()
            if callback_list is not None:
                callback_list.callbacks = self._callbacks_before
            if self._resumption is not None and not self._epochs_begun:
                self._resumption.forget_first_epoch()
        finally:
            self._saver.close()
            # The last: who sends a signal while the last checkpoint is being written shall not end the process.
            self._signals.put_back()

    def raise_error(self) -> None:
        """Raises or warns of what went wrong in the background, as `on_error` says.

        Raises:
            CheckpointSaveError: a checkpoint could not be written, with `on_error="raise"`.
        """
        self._raise_or_warn(self._options.on_error)

    def _raise_or_warn(self, on_error: Literal["raise", "warn"]) -> None:
        try:
            self._saver.raise_error()
        except CheckpointSaveError as error:
            if on_error == "raise":
                raise
            warnings.warn(str(error), stacklevel=3)

    # What it restores.

    def _restore(self) -> None:
        resumption = find_checkpoint(self._model, self._call, self._options.directory)
        if resumption is None:
            return
        resumption.begin(self._position, self._steps_in_epoch)
        self._resumption = resumption
        state = resumption.state
        self._at.batches = self._batches_at_save = state.steps
        self._at.logs = dict(resumption.logs)
        if self._metric is not None:
            self._metric.restore(state.monitor)
        resumption.warn_if_done(self._options.directory)

    @property
    def last_path(self) -> Path | str | None:
        """The folder of the last checkpoint that is on disk."""
        return None if self._saver.last is None else self._saver.last.path

    # What it sees of training.

    def _intercept(self, run: Run, iterator: Any) -> Any:
        """Stands before the train function, and counts; answers for what an earlier run has done."""
        if isinstance(iterator, types.GeneratorType):
            # What train_on_batch gives: another callback trains on batches of its own.
            return run(iterator)
        if self._position.meets(iterator) and self.is_left_behind:
            # It is not this one's `fit` that calls.
            try:
                return run(iterator)
            finally:
                self.abandon()
        resumption = self._resumption
        if resumption is not None:
            answer = resumption.answer()
            self._was_answered = answer is not None
            if answer is not None:
                return answer
            resumption.restore(self._description.siblings)
            resumption.enter(iterator, self._position)
            self._resumption = None
        try:
            logs = run(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            # The end of an epoch whose length nobody knew.
            self._position.ended()
            raise
        except BaseException:
            self.abandon()
            raise
        steps = self._steps_of_last_execution()
        self._steps_of_execution = steps
        self._position.took(steps)
        self._at.batch += steps
        self._at.batches += steps
        self._at.logs = logs
        return logs

    def _steps_of_last_execution(self) -> int:
        function = own_train_function(self._model)
        if isinstance(function, BlockFunction):
            return function.steps_of_last_call
        at_once, left = self._model.steps_per_execution, self._position.batches_left()
        return at_once if left is None else max(1, min(at_once, left))

    @abandoning
    def before_epoch(self, epoch: int) -> None:
        """At the beginning of an epoch, before all other callbacks."""
        resumption = self._resumption
        if not self._epochs_begun:
            self._epochs_begun = True
            # All have reset themselves in on_train_begin by now.
            self._description.siblings = SiblingStates(self._others)
            if resumption is not None:
                resumption.forget_first_epoch()
        self._at.epoch = epoch
        self._at.batch = 0
        if resumption is not None and resumption.is_in_epoch and epoch == resumption.state.epoch:
            self._at.batch = resumption.state.batch
        elif resumption is not None:
            resumption.restore(self._description.siblings)
            resumption.forget_answers()

    @abandoning
    def after_batch(self, logs: dict[str, Any]) -> None:
        """At the end of an execution, behind all other callbacks.

        Raises:
            SystemExit: preemption was asked for, and the checkpoint is on disk.
        """
        if self._was_answered:
            self._was_answered = False
            if self._resumption is not None and self._resumption.answers_left == 0:
                self._resumption.restore(self._description.siblings)
            return
        self.raise_error()
        is_due = self._schedule.is_due(self._steps_of_execution, self._step)
        leaves = self.preemption_asked
        if self._moments is not None:
            agreed = self._moments.after_execution(asked_to_leave=leaves, is_due=is_due)
            leaves = agreed.leave
            if self._schedule.seconds is not None:
                is_due = agreed.save
        judged = is_due and self._metric is not None and not self._metric.name.startswith("val_")
        is_better = judged and self._metric is not None and self._metric.judge(logs)
        saves = is_due and (is_better or not self._options.save_best_only)
        if leaves and (saves or not self._waits_for_others):
            self._leave(logs, in_epoch=True, judged=judged)
        if saves:
            self._save(logs, in_epoch=True, judged=judged)

    @property
    def _waits_for_others(self) -> bool:
        """Whether a signal is heeded at the next save: who trains without a strategy can't agree on an earlier step."""
        return self._options.shard[0] > 1 and self._moments is None

    def before_validation(self) -> None:
        """Before validation, which begins with a reset of the metrics: a save during it must have those of training."""
        if not self._options.save_on_preemption or not self._epochs_begun:
            return
        self._before_validation = metric_values(self._model), self._position.validation_epochs()

    @abandoning
    def in_validation(self) -> None:
        """At the end of a batch of validation.

        Raises:
            SystemExit: preemption was asked for, and the checkpoint is on disk.
        """
        if self._before_validation is None or self._waits_for_others:
            return
        leaves = self.preemption_asked
        if self._moments is not None:
            leaves = self._moments.after_execution(asked_to_leave=leaves, is_due=False).leave
        if leaves:
            self._leave({}, in_epoch=True, judged=False)

    def add_progress(self, logs: dict[str, Any]) -> None:
        """Puts what was saved last into the logs of an epoch, before other callbacks write these somewhere."""
        saved = self._saver.last
        for name in ("step", "batches", "stall_ms", "write_seconds", "size_mb"):
            # From the first epoch on, since CSVLogger and others take the first for all.
            logs[f"{PROGRESS}{name}"] = 0 if saved is None else getattr(saved, name)

    @abandoning
    def after_epoch(self, logs: dict[str, Any]) -> None:
        """At the end of an epoch, behind all other callbacks.

        Raises:
            SystemExit: preemption was asked for, and the checkpoint is on disk.
        """
        self._before_validation = None
        has_validation = self._call is None or self._call.validation_data is not None
        validated = not has_validation or any(name.startswith("val_") for name in logs)
        self.raise_error()
        self._expected.check_after_epoch(logs, validated=validated)
        is_better = self._metric is not None and self._metric.judge(logs)
        stops = bool(self._model.stop_training)
        is_last = stops or (self._call is not None and self._at.epoch + 1 >= self._call.epochs)
        is_new = self._at.batches != self._batches_at_save
        if self._options.save_best_only:
            is_due = is_better
        else:
            is_due = self._schedule.is_every_epoch or is_better or (is_last and is_new)
        if not is_last:
            if self._moments is not None:
                leaves = self._moments.at_once(asked_to_leave=self.preemption_asked).leave
            else:
                leaves = self.preemption_asked and self._waits_for_others and is_due
            if leaves:
                self._leave(logs, in_epoch=False, judged=True)
        if is_due:
            if is_last:
                # There is no later one, so that this one is not skipped.
                self._saver.wait()
            self._save(logs, in_epoch=False, judged=True, stopped=stops)

    @abandoning
    def before_end(self) -> None:
        """At the end of training, before all other callbacks: EarlyStopping may put the best weights back."""
        if self._resumption is not None:
            if not self._epochs_begun:
                self._description.siblings = SiblingStates(self._others)
            self._resumption.restore(self._description.siblings)

    def ask_for_preemption(self) -> None:
        """Lets training end after the step that runs."""
        self.preemption_asked = True

    def _on_signal(self) -> None:
        self.ask_for_preemption()
        if self.is_left_behind:
            # There is no step to come, and whoever sent it wants the process to go.
            self.abandon()
            self._signals.pass_on()

    # What it saves.

    def _save(self, logs: dict[str, Any], *, in_epoch: bool, judged: bool, stopped: bool = False) -> None:
        begun = time.perf_counter()
        state, replaced = self._description.state(
            self._at, logs, self._before_validation, in_epoch=in_epoch, judged=judged, stopped=stopped
        )
        name = self._description.name(self._at, logs, state.optimizer_step)
        if self._saver.save(name, state, replaced, begun):
            self._batches_at_save = self._at.batches
        elif judged and self._metric is not None:
            # Skipped: a best value of which there is no checkpoint would keep later ones away.
            self._metric.take_back()
        self._schedule.saved()

    def _leave(self, logs: dict[str, Any], *, in_epoch: bool, judged: bool) -> None:
        self._saver.hurry()
        # So that this one is not skipped.
        self._saver.wait()
        self._save(logs, in_epoch=in_epoch, judged=judged)
        self._saver.wait()
        if self._moments is not None:
            # So that none of them is missed by the others while these still write.
            self._moments.at_once(asked_to_leave=True)
        previous = self._signals.previous_handler()
        self._end()
        self.raise_error()
        if previous is not None:
            previous()
        raise SystemExit(PREEMPTED_EXIT_CODE)

    def _step(self) -> int:
        return self._description.step(self._at)
