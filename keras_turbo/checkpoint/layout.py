"""What a checkpoint consists of: the names of its files, and `training_state.json`, for all that isn't arrays."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FORMAT_VERSION = 1

WEIGHTS = "model.weights.h5"
SHARDED_WEIGHTS = "model.weights.json"
EXTRA = "extra_state.h5"
STATE = "training_state.json"
# Written last: what has it is whole.
MARKER = "COMMITTED"
# Files by which workers that write one checkpoint together tell each other how far they are.
SHARE = "share-"

# What begins like this is no checkpoint (yet, or any more), and hidden where folders are listed.
WRITING = ".writing-"
SHARING = ".sharing-"
DELETED = ".deleted-"
LOCK = ".lock"

# Where in the extra arrays those of other callbacks are (EarlyStopping's best weights): no part of the model.
CALLBACKS = "callbacks/"

_STEP = re.compile(r"(?<![A-Za-z])step[-_=]?(\d+)(?!\d)")
# Most file systems allow 255 bytes; what stands before and behind a name while it is hidden takes some of them.
_LONGEST_NAME_BYTES = 200

# JSON has no numbers for these, and Python's own way of writing them is no JSON: other languages refuse the file.
_NON_FINITE = "__float__"


def shard_name(index: int) -> str:
    """The file of one shard of the weights, named as Keras names it."""
    return f"model_{index:05d}.weights.h5"


def is_weights(name: str) -> bool:
    """Whether a file of a checkpoint has weights."""
    return name.endswith(".weights.h5")


def is_ours(name: str) -> bool:
    """Whether a file belongs to a checkpoint, or to one that is being written."""
    return is_weights(name) or name in (SHARDED_WEIGHTS, EXTRA, STATE, MARKER) or name.startswith(SHARE)


def step_in(name: str) -> int | None:
    """The step that the name of a checkpoint tells ("step-00001234" tells 1234), None if it tells none."""
    found = _STEP.findall(name)
    return int(found[0]) if len(found) == 1 else None


def shown(name: str) -> str:
    """A name that somebody else gave, without signs that a terminal would take for commands."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in name)


def check_file_name(name: Any) -> None:
    """Raises ValueError for a name that could stand for something outside its folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        raise ValueError(f"A file of a checkpoint must have a plain name, without folders. Received: {name!r}.")


def check_name(name: Any) -> None:
    """Raises ValueError for a name that no checkpoint can have."""
    check_file_name(name)
    if name.startswith(".") or name != name.strip():
        raise ValueError(
            f"A checkpoint's name must not begin with a dot, or begin or end with a blank. Received: {name!r}."
        )
    if len(name.encode()) > _LONGEST_NAME_BYTES:
        raise ValueError(f"A checkpoint's name must have at most {_LONGEST_NAME_BYTES} bytes. Received: {name!r}.")


class NewerFormatError(ValueError):
    """Something was written by a later version of keras_turbo: it is not damaged, this version just can't read it."""


@dataclass(frozen=True)
class FileRecord:
    """What a file of a checkpoint must be."""

    bytes: int
    checksum: str

    @classmethod
    def of_json(cls, record: Any, name: str) -> FileRecord:
        """The record that stands in a file, of which nothing is taken for granted."""
        if not isinstance(record, dict) or not {"bytes", "checksum"} <= record.keys():
            raise ValueError(f'{name} must have "bytes" and "checksum". Received: {record!r}.')
        _check_integer(f"{name}.bytes", record["bytes"])
        if not isinstance(record["checksum"], str):
            raise ValueError(f"{name}.checksum must be text. Received: {record['checksum']!r}.")
        return cls(record["bytes"], record["checksum"])


def current_versions() -> dict[str, str]:
    """The versions of what writes a checkpoint."""
    import keras
    import tensorflow as tf

    return {
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        # The package is loaded before any of its modules. It's not imported here, since it imports this one.
        "keras_turbo": sys.modules["keras_turbo"].__version__,
        "python": platform.python_version(),
    }


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Where a run is, as far as it isn't arrays.

    It is checked when it is made, so a state that exists can be written. Values are JSON's: text, numbers (NaN and
    infinities too), booleans, None, lists and dicts with text as keys; NumPy's numbers become Python's, tuples become
    lists. Arrays belong into a checkpoint's arrays.

    Example:

    ```python
    state = TrainingState(epoch=2, batch=100, optimizer_step=1100, steps=1100, metrics={"loss": 0.3})
    state == TrainingState.from_json(state.to_json())  # True
    ```

    Args:
        epoch: number of whole epochs behind it, so the index of the epoch that runs or comes next.
        batch: batches done in that epoch.
        optimizer_step: the optimizer's iterations; batches in all where there are several optimizers, or none.
        steps: batches done in all; more than `optimizer_step` where loss scaling or gradient accumulation left updates
            out.
        metrics: the logs at the save, name to number.
        monitor: the watched metric: `{"name": ..., "mode": "min" or "max", "best": number or None}`, and "value" where
            the number that judges this save is another than that in `metrics`, or None because it isn't judged.
        data: the position of the dataset, as the dataset tells it.
        callbacks: state of other callbacks (EarlyStopping, ReduceLROnPlateau...), key to their values.
        history: what `History` has so far, name to list.
        loss_scale: scale of the loss, None without loss scaling.
        num_shards: workers that wrote it.
        versions: of keras, tensorflow, keras_turbo and python.
        wall_time: of the save, seconds since 1970 by the clock of the machine. No order is made of it alone.
        files: name to size and checksum; filled in when the files are written.
        format_version: of the layout on disk.

    Raises:
        ValueError: a value that can't be, with its name.
    """

    epoch: int
    batch: int
    optimizer_step: int
    steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    monitor: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    callbacks: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[Any]] = field(default_factory=dict)
    loss_scale: float | None = None
    num_shards: int = 1
    versions: dict[str, str] = field(default_factory=current_versions)
    wall_time: float = field(default_factory=time.time)
    files: dict[str, FileRecord] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            if one.name != "files":
                # The only way to set what has been made plain in a frozen dataclass.
                object.__setattr__(self, one.name, _plain(getattr(self, one.name), one.name))
        if self.format_version != FORMAT_VERSION:
            raise ValueError(
                f"The training state has format version {self.format_version!r}; this version of keras_turbo knows "
                f"{FORMAT_VERSION}."
            )
        for name in ("epoch", "batch", "optimizer_step", "steps"):
            _check_integer(name, getattr(self, name))
        _check_integer("num_shards", self.num_shards, smallest=1)
        for name in ("metrics", "callbacks", "history", "versions", "files"):
            _check_kind(name, getattr(self, name), dict, "a dict")
        for name in ("monitor", "data"):
            if getattr(self, name) is not None:
                _check_kind(name, getattr(self, name), dict, "a dict or None")
        for name, value in self.metrics.items():
            if not _is_number(value):
                raise ValueError(f"metrics[{name!r}] must be a number. Received: {value!r}.")
        for name, values in self.history.items():
            _check_kind(f"history[{name!r}]", values, list, "a list")
        if self.monitor is not None:
            _check_monitor(self.monitor)
        if not _is_number(self.wall_time) or not math.isfinite(self.wall_time):
            raise ValueError(f"wall_time must be seconds since 1970. Received: {self.wall_time!r}.")
        if self.loss_scale is not None and not _is_number(self.loss_scale):
            raise ValueError(f"loss_scale must be a number or None. Received: {self.loss_scale!r}.")
        for name, record in self.files.items():
            check_file_name(name)
            if not isinstance(record, FileRecord):
                raise ValueError(f"files[{name!r}] must be a FileRecord. Received: {record!r}.")

    def to_json(self) -> str:
        """The state as JSON that any reader takes: NaN and infinities are written as `{"__float__": "nan"}`."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        values["files"] = {name: dataclasses.asdict(record) for name, record in self.files.items()}
        # The version comes first: who opens the file should see at once what it is.
        ordered = {"format_version": values.pop("format_version"), **values}
        return json.dumps(to_json_values(ordered), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TrainingState:
        """Reads what `to_json` wrote.

        Args:
            text: content of a `training_state.json`. It may come from anywhere: all of it is checked, and names of
                files that lead out of their folder are refused.

        Raises:
            ValueError: it isn't a training state, or of a format that this version doesn't know.
        """
        try:
            raw = json.loads(text, parse_constant=_refuse_constant)
        except RecursionError as error:
            raise ValueError("A training state must not be nested so deep.") from error
        if not isinstance(raw, dict):
            raise ValueError(f"A training state must be a JSON object. Received: {type(raw).__name__}.")
        if is_newer(raw.get("format_version")):
            versions = raw.get("versions")
            writer = versions.get("keras_turbo") if isinstance(versions, dict) else None
            raise NewerFormatError(
                f"The training state has format version {raw['format_version']}, written by keras_turbo {writer}; this "
                f"version of keras_turbo knows {FORMAT_VERSION}. Install a newer one to read it."
            )
        names = [one.name for one in dataclasses.fields(cls)]
        missing = [name for name in names if name not in raw]
        if missing:
            raise ValueError(f"The training state lacks {', '.join(missing)}.")
        _check_kind("files", raw["files"], dict, "a dict")
        files = {name: FileRecord.of_json(record, f"files[{name!r}]") for name, record in raw["files"].items()}
        # What a later writer of the same format adds is no reason to refuse the rest.
        return cls(**{name: _decoded(raw[name]) for name in names if name != "files"}, files=files)


def is_newer(version: Any) -> bool:
    """Whether this stands for a version of the format that comes after this one."""
    return _is_number(version) and version > FORMAT_VERSION


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_integer(name: str, value: Any, smallest: int = 0) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
        raise ValueError(f"{name} must be an integer from {smallest}. Received: {value!r}.")


def _check_kind(name: str, value: Any, kind: type, described: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {described}. Received: {value!r}.")


def _check_monitor(monitor: dict[str, Any]) -> None:
    if not isinstance(monitor.get("name"), str) or monitor.get("mode") not in ("min", "max"):
        raise ValueError(f'monitor must have a "name" and a "mode", "min" or "max". Received: {monitor!r}.')
    for key in ("best", "value"):
        if monitor.get(key) is not None and not _is_number(monitor[key]):
            raise ValueError(f'monitor["{key}"] must be a number or None. Received: {monitor[key]!r}.')


def _plain(value: Any, path: str) -> Any:
    """The value as JSON's own types; ValueError with the path to what it can't have."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{path} must have text as keys. Received: {key!r}.")
        return {str(key): _plain(one, f"{path}[{key!r}]") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, f"{path}[{index}]") for index, one in enumerate(value)]
    raise ValueError(
        f"{path} must be text, a number, a boolean, None, or lists and dicts of these. Received: {value!r} of type "
        f"{type(value).__name__}. (Arrays belong into the arrays of a checkpoint.)"
    )


def to_json_values(value: Any) -> Any:
    """The value with NaN and infinities as `{"__float__": "nan"}`, so that strict JSON can have it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NON_FINITE: repr(value)}
    if isinstance(value, dict):
        return {key: to_json_values(one) for key, one in value.items()}
    return [to_json_values(one) for one in value] if isinstance(value, list) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_NON_FINITE} and value[_NON_FINITE] in ("nan", "inf", "-inf"):
            return float(value[_NON_FINITE])
        return {key: _decoded(one) for key, one in value.items()}
    return [_decoded(one) for one in value] if isinstance(value, list) else value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"A training state must be standard JSON, which has no {name}.")
