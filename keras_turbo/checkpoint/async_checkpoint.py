"""Saving that nobody notices, and a restart that nobody can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import keras

from keras_turbo.checkpoint.location import Directory
from keras_turbo.checkpoint.metric import MonitoredMetric
from keras_turbo.checkpoint.options import DEFAULT_TEMPLATE, CheckpointOptions
from keras_turbo.checkpoint.run import CheckpointRun
from keras_turbo.fit.session import FitSession
from keras_turbo.fit.workers import worker_of_model


class AsyncCheckpoint(keras.callbacks.Callback):
    """Saves checkpoints while training goes on, and resumes exactly where it was, also in the middle of an epoch.

    Training waits for a copy in memory alone; a thread writes it to disk. A checkpoint holds all that training
    depends on: weights, any number of optimizers, the loss scale, seeds of random layers, metrics, the position in the
    data, and what EarlyStopping, ReduceLROnPlateau, the history and other callbacks of Keras have learned. So a run
    that is killed and started again gives the weights and the history that it would have given.

    Example:

    ```python
    train = keras_turbo.FastDataset(x, y, batch_size=64, shuffle=True, seed=0)
    model.fit(train, epochs=10, callbacks=[keras_turbo.AsyncCheckpoint("checkpoints", save_freq="10min")])
    ```

    Run the same script again after a crash: it goes on, and says where. Stock Keras loads a checkpoint too, by
    `model.load_weights("checkpoints/step-00001234/model.weights.h5")`. The best model of a run with `monitor`:

    ```python
    keras_turbo.checkpoint.restore(model, "checkpoints", best=True)
    ```

    A second `fit` on the same object goes on as well: after `fit(epochs=2)`, `fit(epochs=4)` trains two more. Another
    model of the same process (the next fold, a notebook's cell that is run twice) needs a directory of its own, and is
    refused otherwise; see `resume`. Damaged checkpoints are passed over, with a warning, where there are older good
    ones. A training that a callback has stopped stays so until more epochs are asked for.

    An epoch that is resumed in its middle is begun as any other; its first steps go by untrained, with the logs of the
    last one that was trained, and other callbacks see them go by. With a `FastDataset` the next batch is at once the
    one that would have come; any other dataset is read up to there, and must give the same batches again.

    A save at an epoch's end has what all other callbacks did there, wherever this one stands in the list. Besides the
    saves that `save_freq` asks for there is one when `monitor` is better than ever, and one at the end of training;
    where two of these fall on one step, one checkpoint serves both.

    A callback of your own is saved if it declares its state: `get_state()` returns a dict of numbers, text, lists,
    dicts, arrays and variables, and `set_state(state)` takes it. One that changes attributes and declares nothing is
    named in a warning at the first save.

    SIGTERM, SIGUSR1 and `preempt()` save at the end of the step that runs and end the process by `SystemExit` with exit
    code 143; handlers that were there before are called first. Requeue the job on that code, and it goes on.

    The logs of an epoch tell `checkpoint_step` (steps) and `checkpoint_batches` of the last checkpoint that is on disk,
    `checkpoint_stall_ms` for how long it held training up, `checkpoint_write_seconds` in the background, and
    `checkpoint_size_mb`. `history`, CSVLogger and TensorBoard have them; the progress bar does not show them.

    Steps are updates of the weights by `model.optimizer`; a model with several optimizers (a GAN), or with none, counts
    batches.

    Args:
        directory: where checkpoints are kept, one folder each: text or a `Path`; also `s3://` and its like. It is made
            if it is missing. Each run needs one of its own.
        save_freq: "epoch" (default): at the end of each. An integer: after so many steps, at the end of the execution
            that reaches them. "30s", "10min", "2h": after so much time.
        monitor: metric by which one checkpoint is the best, such as "val_loss". Default: none.
        mode: "min", "max" or "auto" (default): by the metric, or its name.
        save_best_only: save only where `monitor` is better than ever, in earlier runs too. A restart then goes back to
            the best. Default False.
        max_to_keep: how many of the newest are kept; None for all. Default 3. Where the loss is NaN in these, the
            newest one in which it is not is kept besides.
        keep_best: how many of the best are kept besides. Default 1; the best one is never deleted.
        keep_every_hours: keep one for good for each span of so many hours. Default: none.
        resume: "auto" (default): `fit` begins with the newest good checkpoint in the directory, unless another model of
            this process has come to the end of a `fit` there: that is an error. True: whoever made the checkpoints.
            False: `fit` begins as it is; the directory must have no later checkpoints.
        save_on_preemption: whether signals are heeded, as described above. Default True.
        on_error: what to do when a checkpoint can't be written: "raise" (default) ends `fit` at its next step; "warn"
            goes on. Earlier checkpoints are intact.
        name_template: names of checkpoints, with `{step}`, `{batches}`, `{epoch}` (from 1) and metrics. Default
            "step-{step:08d}", which is also the name of a save that has no value for one of them: at preemption, or
            after an epoch without validation.
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
        restore: another word for `resume`, of earlier versions. Default: as `resume` says.

    Raises:
        TypeError, ValueError: an argument that can't be; and in `fit`, before its first batch: a metric that there
            won't be, a model that differs from the checkpoint's or can't be saved, checkpoints that are all damaged or
            another model's, another callback that resumes as well.
        DirectoryInUseError, OSError: in `fit`, before its first batch: a directory that another run uses, that can't be
            written, or of which a checkpoint can't be read.
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
        resume: bool | Literal["auto"] = "auto",
        save_on_preemption: bool = True,
        on_error: Literal["raise", "warn"] = "raise",
        name_template: str = DEFAULT_TEMPLATE,
        when_busy: Literal["wait", "skip"] = "wait",
        max_write_mb_per_second: float | None = None,
        max_shard_mb: float | None = None,
        num_shards: int | None = None,
        index: int | None = None,
        restore: bool | None = None,
    ) -> None:
        if restore is not None:
            if resume not in ("auto", restore):
                raise ValueError(f"`restore` is another word for `resume`. Received: {resume=}, {restore=}.")
            resume = restore
        self._options = CheckpointOptions(
            directory=directory,
            save_freq=save_freq,
            monitor=monitor,
            mode=mode,
            save_best_only=save_best_only,
            max_to_keep=max_to_keep,
            keep_best=keep_best,
            keep_every_hours=keep_every_hours,
            resume=resume,
            save_on_preemption=save_on_preemption,
            on_error=on_error,
            name_template=name_template,
            when_busy=when_busy,
            max_write_mb_per_second=max_write_mb_per_second,
            max_shard_mb=max_shard_mb,
            num_shards=num_shards,
            index=index,
        )
        super().__init__()
        self._metric = None if monitor is None else MonitoredMetric(monitor, mode)
        self._run: CheckpointRun | None = None
        self._last_path: Path | str | None = None

    @property
    def save_freq(self) -> str | int:
        """As given."""
        return self._options.save_freq

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
        if run is None or not run.is_running:
            raise RuntimeError("preempt() ends a fit, and none is running with this callback.")
        run.preemption_asked = True

    # What Keras calls.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the newest good checkpoint, if there is one."""
        model: Any = self.model
        self._forget_run()
        ahead = _BeforeOthers()
        session = FitSession.join(self, first=ahead)
        if session is None:
            raise RuntimeError(
                "AsyncCheckpoint follows Keras' own fit, and something else has called it. Give it to "
                "model.fit(callbacks=[...])."
            )
        try:
            _check_for_conflicts(session.others, self._options.resume)
            options = self._options.for_worker(*worker_of_model(model))
            self._run = ahead.run = CheckpointRun(options, self._metric, session)
            self._run.begin()
        except BaseException:
            session.end()
            raise

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
            self._run.close()
            self._last_path = self.last_checkpoint
            self._run = None

    def __getstate__(self) -> dict[str, Any]:
        # Settings and what was learned. A running fit, its threads and its model are of this process.
        return {**vars(self), "_run": None, "_model": None, "_last_path": self.last_checkpoint}


class _BeforeOthers(keras.callbacks.Callback):
    """Stands before all other callbacks of a `fit`, on behalf of one that stands behind them."""

    needs_every_batch = False

    def __init__(self) -> None:
        super().__init__()
        self.run: CheckpointRun | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.run is not None:
            self.run.before_epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.run is not None and logs is not None:
            self.run.add_progress(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.run is not None:
            self.run.before_end()


def _check_for_conflicts(others: list[keras.callbacks.Callback], resume: Any) -> None:
    """Refuses others that bring the same `fit` to where an earlier run was, and maybe to another place."""
    if any(isinstance(one, AsyncCheckpoint) for one in others):
        raise ValueError(
            "This fit has several AsyncCheckpoints, and only one can resume it. One is enough: with `monitor` it keeps "
            "the best (`keep_best`) beside the newest (`max_to_keep`)."
        )
    if resume is not False and any(isinstance(one, keras.callbacks.BackupAndRestore) for one in others):
        raise ValueError(
            "This fit has BackupAndRestore and AsyncCheckpoint, which may resume it at different epochs. Leave "
            "BackupAndRestore out: AsyncCheckpoint does what it does."
        )
