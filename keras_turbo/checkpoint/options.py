"""What a user asks of AsyncCheckpoint, checked before anything is done."""

from __future__ import annotations

import copy
import dataclasses
import numbers
import re
import string
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from keras_turbo.checkpoint.commit import checked_size
from keras_turbo.checkpoint.layout import check_name
from keras_turbo.checkpoint.location import Directory, locate
from keras_turbo.checkpoint.retention import check_retention
from keras_turbo.checkpoint.writer import RateLimit

DEFAULT_TEMPLATE = "step-{step:08d}"
# What every save can tell; the other keys of a template are metrics.
_STANDARD_KEYS = ("epoch", "step", "batches")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds?|m|min|minutes?|h|hours?)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}

# What Keras' ModelCheckpoint is given: the path of a file, or a template of paths.
_FILE_PATH = re.compile(r"\.(keras|h5|hdf5)$|\{.*\}")


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
    resume: bool | Literal["auto"]
    save_on_preemption: bool
    on_error: Literal["raise", "warn"]
    name_template: str
    when_busy: Literal["wait", "skip"]
    max_write_mb_per_second: float | None
    max_shard_mb: float | None
    num_shards: int | None
    index: int | None

    def __post_init__(self) -> None:
        _refuse_file_path(self.directory)
        # Where it is now: a script may go to another working directory later. That of a frozen dataclass is set so.
        object.__setattr__(self, "directory", locate(self.directory).path)
        schedule = SaveSchedule(self.save_freq)
        template = NameTemplate(self.name_template)
        check_retention(self.max_to_keep, self.keep_best, self.keep_every_hours)
        self._check_workers()
        RateLimit(self.max_write_mb_per_second)
        checked_size(self.max_shard_mb)
        for name in ("save_best_only", "save_on_preemption"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"`{name}` must be True or False. Received: {name}={getattr(self, name)!r}.")
        if not isinstance(self.resume, bool) and self.resume != "auto":
            raise TypeError(f'`resume` must be "auto", True or False. Received: resume={self.resume!r}.')
        for name, choices in (
            ("mode", ("auto", "min", "max")),
            ("on_error", ("raise", "warn")),
            ("when_busy", ("wait", "skip")),
        ):
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
        """The same for one of several workers that train together, unless it was given how many save together."""
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


def _refuse_file_path(directory: Any) -> None:
    """Refuses what ModelCheckpoint would be given."""
    path = str(directory).rstrip("/")
    if _FILE_PATH.search(path):
        raise ValueError(
            f"`directory` must be a folder, in which AsyncCheckpoint keeps one folder for each checkpoint. Received: "
            f'{path!r}, as ModelCheckpoint takes it. Give AsyncCheckpoint("checkpoints", monitor="val_loss"); names '
            "within it come from `name_template`. The best model is loaded by "
            'keras_turbo.checkpoint.restore(model, "checkpoints", best=True).'
        )


class SaveSchedule:
    """When to save: at each epoch's end, after so many steps, or after so much time.

    Attributes:
        steps: every so many steps, None if it goes by something else.
        seconds: every so many seconds, None if it goes by something else.
    """

    def __init__(self, save_freq: str | int) -> None:
        self.steps: int | None = None
        self.seconds: float | None = None
        refusal = (
            '`save_freq` must be "epoch", a positive number of optimizer steps, or a duration such as "30s", "10min" '
            f'or "2h". Received: {save_freq!r}.'
        )
        if isinstance(save_freq, bool) or not isinstance(save_freq, (str, numbers.Integral)):
            raise TypeError(refusal)
        if isinstance(save_freq, numbers.Integral):  # NumPy's, too
            if save_freq < 1:
                raise ValueError(refusal)
            self.steps = int(save_freq)
        elif save_freq != "epoch":
            match = _DURATION.fullmatch(save_freq.strip())
            if match is None or float(match[1]) == 0:
                raise ValueError(refusal)
            self.seconds = float(match[1]) * _SECONDS[match[2][0]]
        self._step = 0
        self._batches_to_look = 0
        self._time = 0.0

    def begin(self, step: int) -> None:
        """Starts to count from a step, and from now."""
        self._step = step
        self._batches_to_look = 0
        self.saved()

    @property
    def is_every_epoch(self) -> bool:
        """Whether it goes by epochs."""
        return self.steps is None and self.seconds is None

    def is_due(self, batches: int, step: Callable[[], int]) -> bool:
        """Whether a save is due at the end of an execution. To be asked at each."""
        if self.seconds is not None:
            return time.monotonic() - self._time >= self.seconds
        if self.steps is None:
            return False
        # No batch makes more than one step.
        self._batches_to_look -= batches
        if self._batches_to_look > 0:
            return False
        before, self._step = self._step, step()
        self._batches_to_look = self.steps - self._step % self.steps
        # An execution may go past a multiple, or past several.
        return self._step // self.steps > before // self.steps

    def saved(self) -> None:
        """Counts time from here on."""
        # Clocks are set back; this one is not.
        self._time = time.monotonic()


class NameTemplate:
    """How the checkpoints of a run are named."""

    def __init__(self, template: str = DEFAULT_TEMPLATE) -> None:
        if not isinstance(template, str):
            raise ValueError(f"The template of names must be text. Received: {template!r}.")
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
        except ValueError as error:
            raise ValueError(
                f"The template of names must be as for str.format. Received: {template!r}: {error}."
            ) from error
        for field in fields:
            # Attributes and items of numbers are of no use in a name.
            if not field or field.isdigit() or "." in field or "[" in field:
                raise ValueError(
                    f"A field in a template must be the name of a value. Received: {{{field}}} in {template!r}."
                )
        if not fields:
            raise ValueError(
                f"Checkpoints would all be named {template!r}. Put a field in it, as in {DEFAULT_TEMPLATE!r}."
            )
        self.template = template
        self.keys = tuple(dict.fromkeys(fields))
        # What stands around the fields; a number has no separator in it.
        check_name(re.sub(r"\s", "_", self._fill(dict.fromkeys(self.keys, 1))))

    def metric_keys(self) -> tuple[str, ...]:
        """The fields that are metrics."""
        return tuple(key for key in self.keys if key not in _STANDARD_KEYS)

    def check_metrics(self, known: Iterable[str]) -> None:
        """Raises ValueError for a metric that there won't be."""
        known = list(known)
        unknown = [key for key in self.metric_keys() if key not in known]
        if unknown:
            raise ValueError(
                f"The template {self.template!r} has {', '.join(map(repr, unknown))}, which no save will know. There "
                f"are {', '.join(map(repr, [*_STANDARD_KEYS, *known]))}."
            )

    def name(self, values: Mapping[str, Any]) -> str:
        """The name of a checkpoint; ValueError if a field has no value, or the name can't be."""
        missing = [key for key in self.keys if key not in values]
        if missing:
            raise ValueError(
                f"The template {self.template!r} has {', '.join(map(repr, missing))}, of which there is no value. "
                f"There are {', '.join(map(repr, values))}."
            )
        name = self._fill({key: values[key] for key in self.keys})
        check_name(name)
        return name

    def _fill(self, values: dict[str, Any]) -> str:
        try:
            return string.Formatter().vformat(self.template, (), values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"The template {self.template!r} can't be filled with {values!r}: {error}.") from error
