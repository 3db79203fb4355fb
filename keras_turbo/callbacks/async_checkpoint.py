"""Saving that nobody notices, and a restart that nobody can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import keras

from keras_turbo.callbacks.callback_list import callback_list_of
from keras_turbo.callbacks.checkpoint_options import CheckpointOptions, options_of
from keras_turbo.callbacks.figures_over_workers import worker_of_model
from keras_turbo.callbacks.fit_call import fit_call_of
from keras_turbo.callbacks.fit_run import FitRun
from keras_turbo.callbacks.monitored_metric import MonitoredMetric
from keras_turbo.checkpoint.location import Directory
from keras_turbo.checkpoint.names import DEFAULT_TEMPLATE


class AsyncCheckpoint(keras.callbacks.Callback):
    """Saves checkpoints while training goes on, and resumes exactly where it was, also in the middle of an epoch.

    Training waits for a copy in memory alone; a thread writes it to disk. A checkpoint holds all that training
    depends on: weights, the optimizer, the loss scale, seeds of random layers, metrics, the position in the data, and
    what EarlyStopping, ReduceLROnPlateau, the history and other callbacks have learned. So a run that is killed and
    started again gives the weights and the history that it would have given.

    Example:

    ```python
    train = keras_turbo.FastDataset(x, y, batch_size=64, shuffle=True, seed=0)
    model.fit(train, epochs=10, callbacks=[keras_turbo.AsyncCheckpoint("checkpoints", save_freq="10min")])
    ```

    Run the same script again after a crash: it goes on. Stock Keras loads a checkpoint too, by
    `model.load_weights("checkpoints/step-00001234/model.weights.h5")`.

    Every `fit` with `restore=True` begins with the newest good checkpoint in the directory, a second `fit` on the same
    object as well: after `fit(epochs=2)`, `fit(epochs=4)` trains two more. Damaged checkpoints are passed over, with a
    warning. A training that a callback has stopped stays so until more epochs are asked for.

    An epoch that is resumed in its middle is begun as any other; its first steps go by untrained, with the logs of the
    last one that was trained, and other callbacks see them go by. With a `FastDataset` the next batch is at once the
    one that would have come; any other dataset is read up to there, and must give the same batches again.

    A save at an epoch's end has what all other callbacks did there, wherever this one stands in the list. Besides the
    saves that `save_freq` asks for there is one when `monitor` is better than ever, and one at the end of training.

    SIGTERM, SIGUSR1 and `preempt()` save at the end of the step that runs and end the process by `SystemExit` with exit
    code 143; handlers that were there before are called first. Requeue the job on that code, and it goes on.

    The logs of an epoch tell `checkpoint_step` (optimizer steps) and `checkpoint_batches` of the last checkpoint that
    is on disk, `checkpoint_stall_ms` for how long it held training up, `checkpoint_write_seconds` in the background,
    and `checkpoint_size_mb`; TensorBoard and `history` have them too.

    Args:
        directory: where checkpoints are kept, one folder each: text or a `Path`; `s3://` and its like with
            tensorflow-io. It is made if it is missing. Each run needs one of its own.
        save_freq: "epoch" (default): at the end of each. An integer: after so many optimizer steps, at the end of the
            execution that reaches them. "30s", "10min", "2h": after so much time.
        monitor: metric by which one checkpoint is the best, such as "val_loss". Default: none.
        mode: "min", "max" or "auto" (default): by the metric, or its name.
        save_best_only: save only where `monitor` is better than ever, in earlier runs too. A restart then goes back to
            the best. Default False.
        max_to_keep: how many of the newest are kept; None for all. Default 3. Where the loss is NaN in these, the
            newest one in which it is not is kept besides.
        keep_best: how many of the best are kept besides. Default 1; the best one is never deleted.
        keep_every_hours: keep one for good for each span of so many hours. Default: none.
        restore: whether `fit` begins with the newest good checkpoint. Default True. False needs a directory without
            later checkpoints.
        save_on_preemption: whether signals are heeded, as described above. Default True.
        on_error: what to do when a checkpoint can't be written: "raise" (default) ends `fit` at its next step; "warn"
            goes on. Earlier checkpoints are intact.
        name_template: names of checkpoints, with `{step}` (optimizer steps), `{batches}`, `{epoch}` (from 1) and
            metrics. Default "step-{step:08d}", which is also the name of a save that has no value for one of them: at
            preemption, or after an epoch without validation.
        when_busy: what a save does while two are pending, on a disk that is slower than `save_freq`: "wait" (default)
            or "skip", which the last one of a training never is.
        max_write_mb_per_second: how fast to write at most, so that a shared disk is not taken from others. Default: no
            limit.
        max_shard_mb: size above which weights are split, in the format of `model.save_weights(max_shard_size=...)`.
            Default: 2,000.
        num_shards: workers that save one checkpoint together, each a part, into a directory that all of them see.
            Default: those that train the model together (see `distribute()`), 1 without. These agree, about once a
            second, at which step to save by the chief's clock, and to leave after a signal to any of them. Where
            `num_shards` is given without such a strategy, a signal is heeded at the next save that is due, and
            `save_freq` can't be a time.
        index: which of them this is, from 0. Default: as the strategy counts.

    Raises:
        TypeError, ValueError: an argument that can't be; and in `fit`, before its first batch: a metric that there
            won't be, a model that differs from the checkpoint's, another callback that resumes as well.
        DirectoryInUseError, OSError: in `fit`, before its first batch: a directory that another run uses, or that
            can't be written.
        CheckpointSaveError: in `fit`: a checkpoint could not be written; with its path, step and the reason.
    """

    # What tune() looks for: one call for several steps is enough.
    needs_every_batch = False

    def __init__(
        self,
        directory: Directory,
        *,
        save_freq: str | int = "epoch",
        monitor: str | None = None,
        mode: Literal["auto", "min", "max"] = "auto",
        save_best_only: bool = False,
        max_to_keep: int | None = 3,
        keep_best: int = 1,
        keep_every_hours: float | None = None,
        restore: bool = True,
        save_on_preemption: bool = True,
        on_error: Literal["raise", "warn"] = "raise",
        name_template: str = DEFAULT_TEMPLATE,
        when_busy: Literal["wait", "skip"] = "wait",
        max_write_mb_per_second: float | None = None,
        max_shard_mb: float | None = None,
        num_shards: int | None = None,
        index: int | None = None,
    ) -> None:
        self._options: CheckpointOptions = options_of(locals())
        super().__init__()
        self._metric = None if monitor is None else MonitoredMetric(monitor, mode)
        self._run: FitRun | None = None
        self._last_path: Path | str | None = None

    @property
    def best(self) -> float | None:
        """The best value of `monitor` so far, in earlier runs too; None before the first."""
        return None if self._metric is None else self._metric.best

    @property
    def last_checkpoint(self) -> Path | str | None:
        """The folder of the last checkpoint that this object has written; None before the first."""
        return self._last_path if self._run is None else self._run.last_path or self._last_path

    def preempt(self) -> None:
        """Saves at the end of the step that runs and ends the process, as SIGTERM does. To be called from any thread.

        Raises:
            RuntimeError: no `fit` is running with this callback.
        """
        run = self._run
        if run is None or run.has_ended or run.is_left_behind:
            raise RuntimeError("preempt() ends a fit, and none is running with this callback.")
        run.ask_for_preemption()

    # What Keras calls.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the newest good checkpoint, if there is one."""
        model: Any = self.model
        self._forget_run()
        callback_list = callback_list_of(self)
        _refuse_rivals(self, self._options.restore, callback_list)
        steps = (self.params or {}).get("steps")
        options = self._options.for_worker(*worker_of_model(model))
        run = FitRun(options, self._metric, model, fit_call_of(model), steps)
        self._run = run
        run.begin(self, callback_list)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if that is due."""
        if self._run is not None:
            self._run.after_batch(logs or {})

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Takes note of what validation is about to reset."""
        if self._run is not None:
            self._run.before_validation()

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if preemption was asked for."""
        if self._run is not None:
            self._run.in_validation()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if that is due."""
        if self._run is not None:
            self._run.after_epoch(logs or {})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits until what is pending is on disk."""
        run = self._run
        if run is not None:
            try:
                run.end()
            finally:
                self._forget_run()

    def _forget_run(self) -> None:
        if self._run is not None:
            # Of a fit that an error has ended, if it has not ended yet.
            self._run.abandon()
            self._last_path = self.last_checkpoint
            self._run = None

    def __getstate__(self) -> dict[str, Any]:
        # Settings and what was learned. A running fit, its threads and its model are of this process.
        return {**vars(self), "_run": None, "_model": None, "_last_path": self.last_checkpoint}


def _refuse_rivals(
    callback: AsyncCheckpoint, restore: bool, callback_list: keras.callbacks.CallbackList | None
) -> None:
    """Refuses others that bring the same `fit` to where an earlier run was, and maybe to another place.

    Raises:
        ValueError: with what to do instead.
    """
    others = [] if callback_list is None else [one for one in callback_list.callbacks if one is not callback]
    if any(isinstance(one, AsyncCheckpoint) for one in others):
        raise ValueError(
            "This fit has several AsyncCheckpoints, and only one can resume it. One is enough: with `monitor` it keeps "
            "the best (`keep_best`) beside the newest (`max_to_keep`)."
        )
    if restore and any(isinstance(one, keras.callbacks.BackupAndRestore) for one in others):
        raise ValueError(
            "This fit has BackupAndRestore and AsyncCheckpoint, which may resume it at different epochs. Leave "
            "BackupAndRestore out: AsyncCheckpoint does what it does."
        )
