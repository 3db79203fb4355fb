"""What a run has to know besides its arrays to go on where it was: `training_state.json`."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FORMAT_VERSION = 1

# JSON has no numbers for these, and Python's own way of writing them is no JSON: other languages refuse the file.
_NON_FINITE = "__float__"


@dataclass(frozen=True)
class FileRecord:
    """What a file of a checkpoint must be.

    Args:
        bytes: its size.
        checksum: algorithm and value, as in `"crc32:89abcdef"`.
    """

    bytes: int
    checksum: str


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
        optimizer_step: the optimizer's iterations.
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
        for name in ("epoch", "batch", "optimizer_step", "steps", "num_shards"):
            _check_integer(name, getattr(self, name), smallest=1 if name == "num_shards" else 0)
        for name in ("metrics", "callbacks", "history", "versions"):
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
        _check_files(self.files)

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
        version = raw.get("format_version")
        if isinstance(version, int) and not isinstance(version, bool) and version > FORMAT_VERSION:
            versions = raw.get("versions")
            writer = versions.get("keras_turbo") if isinstance(versions, dict) else None
            raise ValueError(
                f"The training state has format version {version}, written by keras_turbo {writer}; this version of "
                f"keras_turbo knows {FORMAT_VERSION}. Install a newer one to read it."
            )
        names = [one.name for one in dataclasses.fields(cls)]
        missing = [name for name in names if name not in raw]
        if missing:
            raise ValueError(f"The training state lacks {', '.join(missing)}.")
        # What a later writer of the same format adds is no reason to refuse the rest.
        values = {name: _decoded(raw[name]) for name in names if name != "files"}
        return cls(**values, files=_file_records(raw["files"]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_integer(name: str, value: Any, smallest: int) -> None:
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


def _check_files(files: Any) -> None:
    _check_kind("files", files, dict, "a dict")
    for name, record in files.items():
        check_file_name(name)
        if not isinstance(record, FileRecord):
            raise ValueError(f"files[{name!r}] must be a FileRecord. Received: {record!r}.")
        _check_integer(f"files[{name!r}].bytes", record.bytes, smallest=0)
        if not isinstance(record.checksum, str):
            raise ValueError(f"files[{name!r}].checksum must be text. Received: {record.checksum!r}.")


def check_file_name(name: Any) -> None:
    """Refuses a name that could stand for something outside its folder.

    Raises:
        ValueError: it isn't the plain name of a file.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        raise ValueError(f"A file of a checkpoint must have a plain name, without folders. Received: {name!r}.")


def _file_records(raw: Any) -> dict[str, FileRecord]:
    _check_kind("files", raw, dict, "a dict")
    records = {}
    for name, record in raw.items():
        if not isinstance(record, dict) or not {"bytes", "checksum"} <= record.keys():
            raise ValueError(f'files[{name!r}] must have "bytes" and "checksum". Received: {record!r}.')
        records[name] = FileRecord(record["bytes"], record["checksum"])
    return records


def _plain(value: Any, path: str) -> Any:
    """The value as JSON's own types.

    Raises:
        ValueError: it has something else in it, with the path to that.
    """
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
    if isinstance(value, list):
        return [to_json_values(one) for one in value]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_NON_FINITE} and value[_NON_FINITE] in ("nan", "inf", "-inf"):
            return float(value[_NON_FINITE])
        return {key: _decoded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"A training state must be standard JSON, which has no {name}.")
