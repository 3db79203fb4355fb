"""Saves a model behind its training: snapshot, thread, disk, retention."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from keras_turbo.checkpoint.directory import DirectoryLock, claim
from keras_turbo.checkpoint.layout import TrainingState, shown
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.retention import Pruner
from keras_turbo.checkpoint.snapshot import Snapshot, Snapshots
from keras_turbo.checkpoint.writer import BackgroundWriter, RateLimit
from keras_turbo.checkpoint.writing import write_checkpoint


class CheckpointSaveError(RuntimeError):
    """A checkpoint could not be written; what is whole on the disk is as it was."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """The last checkpoint that is on disk."""

    path: Path | str
    step: int
    batches: int
    stall_ms: float
    write_seconds: float
    size_mb: float


@dataclasses.dataclass
class _Job:
    name: str
    snapshot: Snapshot
    replaced: Mapping[str, np.ndarray]
    state: TrainingState
    stall_ms: float


class Saver:
    """Writes the checkpoints of a run into a directory.

    Attributes:
        last: what was written last, None before the first.
        superseded: the name of the checkpoint that this run goes on from, which a save of the same step replaces.
    """

    def __init__(
        self,
        model: keras.Model,
        directory: Directory,
        *,
        pruner: Pruner,
        when_busy: Literal["wait", "skip"],
        max_write_mb_per_second: float | None,
        max_shard_mb: float | None,
        shard: tuple[int, int],
    ) -> None:
        self.last: Saved | None = None
        self._model = model
        self._location = locate(directory)
        self._pruner = pruner
        self._when_busy: Literal["wait", "skip"] = when_busy
        self._limit = RateLimit(max_write_mb_per_second)
        self._max_shard_mb = max_shard_mb
        self._shard = shard
        self._snapshots: Snapshots | None = None
        self._writer = BackgroundWriter(self._write, lambda job: job.snapshot.wait(), name="checkpoints")
        self._lock: DirectoryLock | None = None
        # The name of the newest checkpoint, and how many batches had been trained on.
        self._newest: tuple[str, int] | None = None

    @property
    def skipped(self) -> int:
        """How many saves were left out because those before were still pending."""
        return 0 if self._snapshots is None else self._snapshots.skipped

    @property
    def waited_ms(self) -> float:
        """For how long training has waited because those before were still pending."""
        return 0.0 if self._snapshots is None else self._snapshots.waited_ms

    @property
    def undeleted(self) -> dict[str, str]:
        """The checkpoints that could not be deleted, with the reasons."""
        return self._pruner.failed

    def open(self) -> None:
        """Takes the directory."""
        if self._shard[1] == 0:
            self._lock = claim(self._location.path)

    def goes_on_from(self, name: str, state: TrainingState) -> None:
        """To be told which checkpoint the run resumes: a save at the same step takes its place."""
        self._newest = name, state.steps

    def prepare(self) -> None:
        """Gets memory for snapshots, so that the first save does not wait for it; once more after the first step."""
        if self._snapshots is None:
            self._snapshots = Snapshots(self._model, when_busy=self._when_busy)
        else:
            self._snapshots.find_again()

    def save(self, name: str, state: TrainingState, replaced: Mapping[str, np.ndarray], begun: float) -> bool:
        """Takes a snapshot and leaves the rest to a thread."""
        if self._snapshots is None:
            self.prepare()
        snapshots: Any = self._snapshots
        snapshot = snapshots.take()
        if snapshot is None:
            return False
        try:
            self._writer.submit(_Job(name, snapshot, replaced, state, (time.perf_counter() - begun) * 1e3))
        except BaseException:
            snapshot.release()
            raise
        return True

    def wait(self) -> None:
        """Waits until what is pending is on disk."""
        self._writer.wait()

    def lift_rate_limit(self) -> None:
        """Writes what is pending as fast as it can be, whatever limit was set."""
        self._limit.lift()

    def raise_error(self) -> None:
        """Raises what went wrong in the background, once."""
        self._writer.raise_error()

    def close(self) -> None:
        """Waits for what is pending, and gives back memory and directory. Doing it twice does nothing."""
        self._writer.close()
        if self._snapshots is not None:
            self._snapshots.close()
        if self._lock is not None:
            self._lock.release()

    def _write(self, job: _Job) -> None:
        start = time.perf_counter()
        state = job.state
        try:
            with job.snapshot as snapshot:
                # The copy from the device is done, or says why it is not.
                snapshot.wait()
                if self._lock is not None:
                    self._lock.check()
                path = write_checkpoint(
                    self._location.path,
                    job.name,
                    snapshot.weights,
                    {**snapshot.extra, **job.replaced},
                    state,
                    max_shard_mb=self._max_shard_mb,
                    limit=self._limit,
                    shard=self._shard,
                    layer_names=snapshot.names,
                    finds_name=True,
                )
            nbytes = snapshot.nbytes + sum(array.nbytes for array in job.replaced.values())
            seconds = time.perf_counter() - start
            self.last = Saved(path, state.optimizer_step, state.steps, job.stall_ms, seconds, nbytes / 1e6)
        except Exception as error:
            where = shown(self._location.child(job.name))
            raise CheckpointSaveError(
                f"The checkpoint of step {state.optimizer_step} could not be saved as {where}: {error}"
            ) from error
        if self._shard[1] == 0:
            name = self._location.files.name_of(str(path))
            before, self._newest = self._newest, (name, state.steps)
            # Not by the optimizer's steps, which Keras counts once too often where data ends without notice.
            superseded = before[0] if before is not None and before[1] == state.steps and before[0] != name else None
            self._pruner.saved(name, state, superseded)
