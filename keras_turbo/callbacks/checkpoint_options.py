"""What a user asks of AsyncCheckpoint, checked before anything is done."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Literal

from keras_turbo.callbacks.monitored_metric import MODES
from keras_turbo.callbacks.save_schedule import SaveSchedule
from keras_turbo.checkpoint.commit import checked_size
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.names import NameTemplate
from keras_turbo.checkpoint.retention import check_retention
from keras_turbo.checkpoint.writer import RateLimit


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """What `AsyncCheckpoint` documents under these names.

    Raises:
        TypeError, ValueError: an option that can't be, with what it could be.
    """

    directory: Directory
    save_freq: str | int
    monitor: str | None
    mode: Literal["auto", "min", "max"]
    save_best_only: bool
    max_to_keep: int | None
    keep_best: int
    keep_every_hours: float | None
    restore: bool
    save_on_preemption: bool
    on_error: Literal["raise", "warn"]
    name_template: str
    when_busy: Literal["wait", "skip"]
    max_write_mb_per_second: float | None
    max_shard_mb: float | None
    num_shards: int | None
    index: int | None

    def __post_init__(self) -> None:
        # Where it is now: a script may go to another working directory later. That of a frozen dataclass is set so.
        object.__setattr__(self, "directory", locate(self.directory).path)
        schedule = SaveSchedule(self.save_freq)
        template = NameTemplate(self.name_template)
        check_retention(self.max_to_keep, self.keep_best, self.keep_every_hours)
        self._check_workers()
        RateLimit(self.max_write_mb_per_second)
        checked_size(self.max_shard_mb)
        for name in ("save_best_only", "restore", "save_on_preemption"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"`{name}` must be True or False. Received: {name}={getattr(self, name)!r}.")
        for name, choices in (("mode", MODES), ("on_error", ("raise", "warn")), ("when_busy", ("wait", "skip"))):
            if getattr(self, name) not in choices:
                listed = ", ".join(map(repr, choices))
                raise ValueError(f"`{name}` must be one of {listed}. Received: {name}={getattr(self, name)!r}.")
        if self.monitor is not None and (not isinstance(self.monitor, str) or not self.monitor):
            raise TypeError(f"`monitor` must be the name of a metric, or None. Received: monitor={self.monitor!r}.")
        if self.save_best_only and self.monitor is None:
            raise ValueError('`save_best_only=True` needs `monitor`, the metric to compare by, such as "val_loss".')
        self._check_several_in_an_epoch(schedule, template)

    @property
    def shard(self) -> tuple[int, int]:
        """Number of workers and index of this one."""
        return self.num_shards or 1, self.index or 0

    def for_worker(self, index: int, number: int) -> CheckpointOptions:
        """The same where one of several workers saves, unless it was given how many save together.

        Args:
            index: of this worker.
            number: how many train together.
        """
        if self.num_shards is not None:
            return self
        options = copy.copy(self)
        # Not as if somebody had given it: these workers have a strategy, by which they can agree when to save.
        object.__setattr__(options, "num_shards", number)
        object.__setattr__(options, "index", index)
        return options

    def _check_workers(self) -> None:
        if self.num_shards is None and self.index is None:
            return
        if self.num_shards is None or self.index is None:
            raise ValueError(
                f"`num_shards` and `index` belong together. Received: num_shards={self.num_shards!r}, "
                f"index={self.index!r}."
            )
        if type(self.num_shards) is not int or self.num_shards < 1:
            raise ValueError(f"`num_shards` must be an integer from 1. Received: num_shards={self.num_shards!r}.")
        if type(self.index) is not int or not 0 <= self.index < self.num_shards:
            raise ValueError(
                f"`index` must be an integer from 0, below num_shards={self.num_shards}. Received: "
                f"index={self.index!r}."
            )

    def _check_several_in_an_epoch(self, schedule: SaveSchedule, template: NameTemplate) -> None:
        if not schedule.is_every_epoch:
            if not {"step", "batches"} & set(template.keys):
                raise ValueError(
                    f"save_freq={self.save_freq!r} saves several times in an epoch, and the name template "
                    f"{self.name_template!r} would give those one name. Put {{step}} in it."
                )
            validated = [key for key in template.metric_keys() if key.startswith("val_")]
            if validated and not self.save_best_only:
                raise ValueError(
                    f"The name template {self.name_template!r} has {validated[0]!r}, which is known at an epoch's end "
                    f"only, and save_freq={self.save_freq!r} saves in between, too."
                )
        if self.shard[0] > 1 and schedule.seconds is not None:
            raise ValueError(
                f"Several workers must save at the same steps, and their clocks don't agree. Received: save_freq="
                f'{self.save_freq!r} with num_shards={self.num_shards}. Give a number of steps, or "epoch"; or leave '
                "num_shards and index out under keras_turbo.distribute(), by which workers agree."
            )


def options_of(callback_arguments: dict[str, Any]) -> CheckpointOptions:
    """The options among the local names of a constructor."""
    names = [field.name for field in dataclasses.fields(CheckpointOptions)]
    return CheckpointOptions(**{name: callback_arguments[name] for name in names})
