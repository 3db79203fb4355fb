"""Saves a model behind its training: snapshot, thread, disk, retention."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import keras
import numpy as np

from keras_turbo.checkpoint.commit import foreign_names, write_checkpoint
from keras_turbo.checkpoint.directory import claim, delete_checkpoint
from keras_turbo.checkpoint.keras_layout import saved_names
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.lock import DirectoryLock
from keras_turbo.checkpoint.pruning import Pruner
from keras_turbo.checkpoint.snapshot import Snapshot, Snapshots
from keras_turbo.checkpoint.training_state import TrainingState
from keras_turbo.checkpoint.verification import examine
from keras_turbo.checkpoint.writer import BackgroundWriter, RateLimit


class CheckpointSaveError(RuntimeError):
    """A checkpoint could not be written, or older ones not deleted; what is whole on the disk is as it was."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """The last checkpoint that is on disk.

    Args:
        path: its folder.
        step: the optimizer's step.
        batches: batches done in all.
        stall_ms: for how long training was held up.
        write_seconds: how long it took in the background.
        size_mb: millions of bytes of its files' arrays.
    """

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
    stall_ms: float = 0.0


class BackgroundSaver:
    """Writes the checkpoints of a run into a directory.

    Args:
        model: what is saved. It need not be built before the first save.
        directory: where checkpoints are kept; made if it is missing.
        pruner: deletes what is no longer needed.
        when_busy: what a save does while two others are pending: "wait" or "skip".
        max_write_mb_per_second: how fast to write at most; None for no limit.
        max_shard_mb: size above which weights are written in Keras' sharded format; None for its default.
        shard: number of workers that save together, and the index of this one.

    Attributes:
        last: what was written last, None before the first.
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
        self._directory = directory
        self._pruner = pruner
        self._when_busy: Literal["wait", "skip"] = when_busy
        self._limit = RateLimit(max_write_mb_per_second)
        self._max_shard_mb = max_shard_mb
        self._shard = shard
        self._snapshots: Snapshots | None = None
        self._layer_names: dict[str, str] = {}
        self._writer = BackgroundWriter(self._write, name="checkpoints")
        self._lock: DirectoryLock | None = None

    @property
    def skipped(self) -> int:
        """How many saves were left out because those before were still pending."""
        return 0 if self._snapshots is None else self._snapshots.skipped

    def open(self) -> None:
        """Takes the directory.

        Raises:
            DirectoryInUseError: another run saves there.
            OSError: the directory can't be made or written.
        """
        if self._shard[1] == 0:
            self._lock = claim(self._directory)

    def prepare(self) -> Snapshots:
        """Gets memory for a snapshot, so that the first save does not wait for it."""
        if self._snapshots is None:
            self._snapshots = Snapshots(self._model, when_busy=self._when_busy)
            self._layer_names = saved_names(self._model)
        return self._snapshots

    def save(self, name: str, state: TrainingState, replaced: Mapping[str, np.ndarray], begun: float) -> bool:
        """Takes a snapshot and leaves the rest to the thread.

        Args:
            name: of the checkpoint.
            state: where the run is.
            replaced: arrays of `extra` besides those of the model, or in their place.
            begun: when training was held up first, of `time.perf_counter()`.

        Returns:
            Whether it will be written; False where it is skipped.
        """
        snapshot = self.prepare().take()
        if snapshot is None:
            return False
        job = _Job(name, snapshot, replaced, state)
        job.stall_ms = (time.perf_counter() - begun) * 1e3
        try:
            self._writer.submit(job)
        except BaseException:
            snapshot.release()
            raise
        return True

    def wait(self) -> None:
        """Waits until what is pending is on disk."""
        self._writer.wait()

    def hurry(self) -> None:
        """Writes what is pending as fast as it can be, whatever limit was set."""
        self._limit.lift()

    def raise_error(self) -> None:
        """Raises what went wrong in the background, once.

        Raises:
            CheckpointSaveError: a checkpoint could not be written.
        """
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
                snapshot.wait()
                name = self._free_name(job.name) if self._shard[0] == 1 else job.name
                path = write_checkpoint(
                    self._directory,
                    name,
                    snapshot.weights,
                    {**snapshot.extra, **job.replaced},
                    state,
                    max_shard_mb=self._max_shard_mb,
                    limit=self._limit,
                    shard=self._shard,
                    layer_names=self._layer_names,
                )
            nbytes = snapshot.nbytes + sum(array.nbytes for array in job.replaced.values())
            seconds = time.perf_counter() - start
            self.last = Saved(path, state.optimizer_step, state.steps, job.stall_ms, seconds, nbytes / 1e6)
        except Exception as error:
            where = locate(self._directory).child(job.name)
            raise CheckpointSaveError(
                f"The checkpoint of step {state.optimizer_step} could not be saved as {where}: {error}"
            ) from error
        if self._shard[1] == 0:
            try:
                self._pruner.saved(name, state)
            except Exception as error:
                raise CheckpointSaveError(
                    f"The checkpoint {path} is saved, and older ones that are no longer needed could not be deleted: "
                    f"{error}"
                ) from error

    def _free_name(self, name: str) -> str:
        """The name, or the next one like it where something has it; only a damaged checkpoint makes room."""
        location = locate(self._directory)
        free, number = name, 1
        while location.files.exists(location.child(free)):
            folder = location.child(free)
            is_ours = location.files.is_folder(folder) and not foreign_names(location, free)
            health = examine(location, folder) if is_ours else None
            if health is not None and not health.ok and not health.newer:
                # It was passed over when this run was resumed, and its steps are done anew.
                delete_checkpoint(self._directory, free)
                break
            number += 1
            free = f"{name}-{number}"
        return free
