"""One `fit` under AsyncCheckpoint: follows it, decides when to save, and cleans up however it ends."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np

from keras_turbo.checkpoint.layout import CALLBACKS, TrainingState, shown
from keras_turbo.checkpoint.location import locate
from keras_turbo.checkpoint.metric import ExpectedMetrics, MonitoredMetric
from keras_turbo.checkpoint.options import CheckpointOptions, NameTemplate, SaveSchedule
from keras_turbo.checkpoint.resuming import OWN_STATE, DataPosition, Resumption, find_resumption, note_finished
from keras_turbo.checkpoint.retention import Pruner
from keras_turbo.checkpoint.saver import CheckpointSaveError, Saver
from keras_turbo.fit.callback_state import CallbackStates
from keras_turbo.fit.first_step import trains_as_keras_does
from keras_turbo.fit.session import FitSession
from keras_turbo.fit.signals import PREEMPTED_EXIT_CODE, PreemptionSignals
from keras_turbo.fit.steps import number, optimizers_of, training_steps
from keras_turbo.fit.train_function import Place, Run
from keras_turbo.fit.training_state import NotBuiltError, build_optimizer, metric_values
from keras_turbo.fit.workers import AgreedMoments, worker_of_model

_logger = logging.getLogger(__name__)

# What the names of the figures of the last save begin with.
_PROGRESS = "checkpoint_"
# Saves that hold training up for less than this part of its time are nobody's trouble.
_WORTH_TELLING = 0.01


class CheckpointRun:
    """One `fit`, from `on_train_begin` until it ends, normally or not."""

    def __init__(self, options: CheckpointOptions, metric: MonitoredMetric | None, session: FitSession) -> None:
        self.preemption_asked = False
        self._options = options
        self._metric = metric
        self._session = session
        model: Any = session.model
        self._model = model
        self._schedule = SaveSchedule(options.save_freq)
        self._template = NameTemplate(options.name_template)
        self._expected = ExpectedMetrics(metric, self._template)
        self._position = DataPosition(session)
        index, workers = worker_of_model(model)
        # Where they save together, each a part, all of them have this callback.
        saves_together = workers > 1 and options.shard[0] > 1
        self._moments = AgreedMoments(model.distribute_strategy, is_chief=index == 0) if saves_together else None
        self._signals = PreemptionSignals(self._on_signal)
        self._saver = Saver(
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
        self._callbacks = CallbackStates([])
        self._begun = time.perf_counter()
        self._is_closed = False
        self._epochs_begun = False
        self._is_prepared_for_all = False
        self._epoch = 0
        # What an earlier run has done: in all, and of the epoch that runs.
        self._batches_before = self._batches_before_in_epoch = 0
        self._batches_counted = 0
        self._saved_at: tuple[int, int, int] | None = None
        self._is_postponed = self._was_answered = self._has_told_undeleted = False
        self._logs: dict[str, Any] = {}
        self._before_validation: tuple[dict[str, np.ndarray], list[int]] | None = None

    @property
    def last_path(self) -> Path | str | None:
        """The folder of the last checkpoint that is on disk."""
        return None if self._saver.last is None else self._saver.last.path

    @property
    def is_running(self) -> bool:
        """Whether its `fit` runs still."""
        return not self._is_closed and self._session.is_running

    # Its beginning and its end.

    def begin(self) -> None:
        """Takes the directory, and restores what is in it."""
        options, session = self._options, self._session
        session.at_end(self.close)
        self._expected.check_at_start(self._model, session.call, session.others)
        self._saver.open()
        resumption = find_resumption(session, options.directory, resume=options.resume)
        if resumption is not None:
            resumption.begin(self._position)
            self._resumption = resumption
            self._batches_before = resumption.state.steps
            self._saved_at = _place(resumption.state)
            self._logs = resumption.logs
            self._saver.goes_on_from(locate(options.directory).files.name_of(resumption.name), resumption.state)
            if self._metric is not None:
                self._metric.restore(resumption.state.monitor)
        self._tell_beginning()
        self._prepare()
        self._schedule.begin(self._step)
        session.wrap(Place.RESUME, self._execute)
        if options.save_on_preemption:
            self._signals.install()

    def _tell_beginning(self) -> None:
        resumption, directory = self._resumption, shown(str(self._options.directory))
        if self._options.shard[1] > 0:
            return
        if resumption is not None and resumption.is_done:
            epochs = self._session.call.epochs
            how = "a callback had stopped it" if resumption.was_stopped else f"all {epochs} epochs are done"
            # Python shows a warning once for each line of code; this one is of each run.
            warnings.warn_explicit(
                f"The training of which there are checkpoints in {directory} has ended at step "
                f"{resumption.state.optimizer_step}: {how}. Its state is restored, and nothing is trained. Give more "
                "epochs to go on, or another directory to train anew.",
                UserWarning,
                __file__,
                1,
                registry={},
            )
        elif not self._session.call.is_silent:
            done = f"starts anew in {directory}" if resumption is None else shown(str(resumption))
            print(f"AsyncCheckpoint: {done}")  # noqa: T201 (one line on where training begins, as fit's own)

    def _prepare(self) -> None:
        """Gets memory for snapshots, where the variables exist, and so refuses those that can't be saved."""
        model = self._model
        if model.built and trains_as_keras_does(model):
            build_optimizer(model)
        # Else the variables are created by the first step.
        with contextlib.suppress(NotBuiltError):
            self._saver.prepare()

    def end(self) -> None:
        """Waits for what is pending, and puts everything back that was changed for this fit."""
        self._close()
        self._raise_error(self._options.on_error)
        if self._options.shard[1] == 0:
            note_finished(locate(self._options.directory), self._model)
        # It came too late to end training, and still wants the process to go.
        self._signals.pass_on()

    def close(self) -> None:
        """The same however the fit has ended; an error is not to be hidden by another one."""
        self._close()
        self._raise_error("warn")

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._resumption is not None and not self._epochs_begun:
                self._resumption.forget_first_epoch()
        finally:
            self._saver.close()
            # The last: who sends a signal while the last checkpoint is being written shall not end the process.
            self._signals.put_back()
        self._tell_at_end()

    def _tell_at_end(self) -> None:
        """What need be told once alone, and holds nobody up."""
        seconds, waited = time.perf_counter() - self._begun, self._saver.waited_ms / 1e3
        if waited > _WORTH_TELLING * seconds:
            _logger.warning(
                "Training waited %.1f of %.1f s, since checkpoints before were still being written. Save less often, "
                'or give when_busy="skip".',
                waited,
                seconds,
            )
        if self._saver.skipped:
            _logger.warning("Skipped %d saves, since those before were still being written.", self._saver.skipped)
        if len(self._saver.undeleted) > 1:
            warnings.warn(f"{len(self._saver.undeleted)} old checkpoints could not be deleted.", stacklevel=2)

    def _raise_error(self, on_error: Literal["raise", "warn"]) -> None:
        """Raises or warns of what went wrong in the background."""
        try:
            self._saver.raise_error()
        except CheckpointSaveError as error:
            if on_error == "raise":
                raise
            warnings.warn(str(error), stacklevel=3)
        if self._saver.undeleted and not self._has_told_undeleted:
            self._has_told_undeleted = True
            name, reason = next(iter(self._saver.undeleted.items()))
            warnings.warn(
                f"The old checkpoint {shown(name)} could not be deleted: {reason}. Others like it are counted, and the "
                "number is told at the end.",
                stacklevel=3,
            )

    # How far it is.

    @property
    def _batch(self) -> int:
        return self._batches_before_in_epoch + self._session.batch

    @property
    def _batches(self) -> int:
        return self._batches_before + self._session.batches

    @property
    def _step(self) -> int:
        return training_steps(self._model, batches=self._batches)

    # What it sees of training.

    def _execute(self, run: Run, iterator: Any) -> Any:
        """Stands around the train function, and answers for what an earlier run has done."""
        self._position.meets(iterator)
        resumption = self._resumption
        if resumption is not None:
            answer = resumption.answer()
            self._was_answered = answer is not None
            if answer is not None:
                return answer
            resumption.restore(self._callbacks)
            resumption.enter(iterator, self._position)
            self._resumption = None
        return run(iterator)

    def before_epoch(self, epoch: int) -> None:
        """At the beginning of an epoch, before all other callbacks."""
        resumption = self._resumption
        if not self._epochs_begun:
            self._epochs_begun = True
            # All have reset themselves in on_train_begin by now.
            self._callbacks = CallbackStates(self._session.others)
            if resumption is not None:
                resumption.forget_first_epoch()
        self._epoch, self._batches_before_in_epoch = epoch, 0
        if resumption is not None and resumption.is_in_epoch and epoch == resumption.state.epoch:
            self._batches_before_in_epoch = resumption.state.batch
        elif resumption is not None:
            resumption.restore(self._callbacks)
            resumption.answers_left = 0

    def after_batch(self, logs: dict[str, Any]) -> None:
        """At the end of an execution, behind all other callbacks."""
        if self._was_answered:
            self._was_answered = False
            if self._resumption is not None and self._resumption.answers_left == 0:
                self._resumption.restore(self._callbacks)
            return
        self._raise_error("warn" if self.preemption_asked else self._options.on_error)
        if not self._is_prepared_for_all:
            # What was not there before the first step is there now.
            self._is_prepared_for_all = True
            self._saver.prepare()
        batches, self._batches_counted = self._session.batches - self._batches_counted, self._session.batches
        is_due = self._schedule.is_due(batches, lambda: self._step)
        leaves = self.preemption_asked
        if self._moments is not None:
            agreed = self._moments.after_execution(asked_to_leave=leaves, is_due=is_due)
            leaves = agreed.leave
            if self._schedule.seconds is not None:
                is_due = agreed.save
        # The save at the epoch's end, which comes now, is one for both.
        self._is_postponed = (is_due or self._is_postponed) and self._ends_epoch
        is_due = is_due and not self._is_postponed
        judged = is_due and self._metric is not None and not self._metric.name.startswith("val_")
        is_better = judged and self._metric is not None and self._metric.judge(logs)
        saves = is_due and (is_better or not self._options.save_best_only)
        if leaves and (saves or not self._waits_for_others):
            self._leave(logs, in_epoch=True, judged=judged)
        if saves:
            self._save(logs, in_epoch=True, judged=judged)

    @property
    def _ends_epoch(self) -> bool:
        steps = self._session.call.steps
        return steps is not None and self._batch >= steps

    @property
    def _waits_for_others(self) -> bool:
        """Whether a signal is heeded at the next save: who trains without a strategy can't agree on an earlier step."""
        return self._options.shard[0] > 1 and self._moments is None

    def before_validation(self) -> None:
        """Before validation, which begins with a reset of the metrics: a save during it must have those of training."""
        if self._options.save_on_preemption and self._epochs_begun:
            self._before_validation = metric_values(self._model), self._position.validation_epochs()

    def in_validation(self) -> None:
        """At the end of a batch of validation."""
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
        names = ("step", "batches", "stall_ms", "write_seconds", "size_mb")
        # From the first epoch on, since CSVLogger and others take the first for all.
        figures: dict[str, float] = {
            f"{_PROGRESS}{name}": 0 if saved is None else getattr(saved, name) for name in names
        }
        self._session.add_figures(logs, figures)

    def after_epoch(self, logs: dict[str, Any]) -> None:
        """At the end of an epoch, behind all other callbacks."""
        self._before_validation = None
        has_validation = self._session.call.validation_data is not None
        validated = not has_validation or any(name.startswith("val_") for name in logs)
        self._raise_error("warn" if self.preemption_asked else self._options.on_error)
        self._expected.check_after_epoch(logs, validated=validated)
        is_better = self._metric is not None and self._metric.judge(logs)
        stops = bool(self._model.stop_training)
        is_last = stops or self._epoch + 1 >= self._session.call.epochs
        is_new = self._saved_at is None or self._batches != self._saved_at[-1]
        was_postponed, self._is_postponed = self._is_postponed, False
        if self._options.save_best_only:
            is_due = is_better
        else:
            is_due = self._schedule.is_every_epoch or was_postponed or is_better or (is_last and is_new)
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

    def before_end(self) -> None:
        """At the end of training, before all other callbacks: EarlyStopping may put the best weights back."""
        if self._resumption is not None:
            if not self._epochs_begun:
                self._callbacks = CallbackStates(self._session.others)
            self._resumption.restore(self._callbacks)

    def _on_signal(self) -> None:
        self.preemption_asked = True
        if not self._session.is_running:
            # There is no step to come, and whoever sent it wants the process to go.
            self._session.end()
            self._signals.pass_on()

    # What it saves.

    def _save(self, logs: dict[str, Any], *, in_epoch: bool, judged: bool, stopped: bool = False) -> None:
        begun = time.perf_counter()
        state, replaced = self._state(logs, in_epoch=in_epoch, judged=judged, stopped=stopped)
        known = {**_numbers(logs), "step": state.optimizer_step, "batches": state.steps, "epoch": self._epoch + 1}
        # Preemption comes when it comes, and not each epoch need have its validation: no save fails for want of a name.
        template = self._template if known.keys() >= set(self._template.keys) else NameTemplate()
        if self._saver.save(template.name(known), state, replaced, begun):
            self._saved_at = _place(state)
        elif judged and self._metric is not None:
            # Skipped: a best value of which there is no checkpoint would keep later ones away.
            self._metric.take_back()
        self._schedule.saved()
        self._callbacks.warn_of_undeclared()

    def _state(
        self, logs: dict[str, Any], *, in_epoch: bool, judged: bool, stopped: bool
    ) -> tuple[TrainingState, dict[str, np.ndarray]]:
        """Where the run is; and arrays of `extra` besides those of the model, or in their place."""
        values, arrays = self._callbacks.state()
        history = values.get("History", {}).pop("history", {})
        data = self._position.state(in_epoch=in_epoch)
        replaced = {f"{CALLBACKS}{path}": array for path, array in arrays.items()}
        if self._before_validation is not None:
            metrics, data["validation_epochs"] = self._before_validation
            replaced |= metrics
        values[OWN_STATE] = {
            "stopped": stopped,
            "logs": _numbers(self._session.logs or self._logs),
            "epochs": self._session.call.epochs,
            "steps_in_epoch": self._session.call.steps,
        }
        scale = next((one.dynamic_scale for one in optimizers_of(self._model) if hasattr(one, "dynamic_scale")), None)
        state = TrainingState(
            epoch=self._epoch + (not in_epoch),
            batch=self._batch if in_epoch else 0,
            optimizer_step=self._step,
            steps=self._batches,
            metrics={key: value for key, value in _numbers(logs).items() if not key.startswith(_PROGRESS)},
            monitor=None if self._metric is None else self._metric.state(logs, judged=judged),
            data=data,
            callbacks=values,
            history=history,
            loss_scale=None if scale is None else float(number(scale)),
            num_shards=self._options.shard[0],
        )
        return state, replaced

    def _leave(self, logs: dict[str, Any], *, in_epoch: bool, judged: bool) -> None:
        """Saves, and ends the process with an exit code that says that it was asked to go, whatever fails meanwhile."""
        self._saver.lift_rate_limit()
        # So that this one is not skipped.
        self._saver.wait()
        try:
            if self._saved_at != (self._epoch + (not in_epoch), self._batch if in_epoch else 0, self._batches):
                self._save(logs, in_epoch=in_epoch, judged=judged)
                self._saver.wait()
            if self._moments is not None:
                # So that none of them is missed by the others while these still write.
                self._moments.at_once(asked_to_leave=True)
        except Exception as error:
            warnings.warn(f"The last checkpoint could not be saved: {error}", stacklevel=2)
        previous = self._signals.previous_handler()
        self.close()
        if previous is not None:
            previous()
        raise SystemExit(PREEMPTED_EXIT_CODE)


def _place(state: TrainingState) -> tuple[int, int, int]:
    return state.epoch, state.batch, state.steps


def _numbers(logs: Any) -> dict[str, float]:
    """The logs that are single numbers, on the host."""
    found = {}
    for name, value in logs.items() if isinstance(logs, dict) else ():
        with contextlib.suppress(TypeError, ValueError):
            found[name] = float(value)
    return found
