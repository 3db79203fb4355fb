"""Results of `tune()` in a file, looked up by what they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import platform
import warnings
from typing import Any

import keras
import tensorflow as tf

from keras_turbo import files
from keras_turbo.execution.sample import Sample
from keras_turbo.execution.tune_report import TuneReport

_FORMAT = 1


def result_key(model: keras.Model, sample: Sample, asked: dict[str, Any]) -> str:
    """A digest of all that the result of `tune()` depends on: model, batches, devices, versions, arguments.

    Args:
        model: a built, compiled model.
        sample: of its data.
        asked: arguments of `tune` that bear on the choice, as JSON's types.
    """
    optimizer: Any = model.optimizer
    parts = {
        "format": _FORMAT,
        "asked": asked,
        # Without names, which Keras counts up in a process.
        "layers": [
            [type(layer).__module__, type(layer).__qualname__, layer.dtype_policy.name, _name_of(layer, "activation")]
            for layer in tf.train.TrackableView(model).descendants()
            if isinstance(layer, keras.Layer)
        ],
        "variables": [[list(variable.shape), str(variable.dtype), variable.trainable] for variable in model.variables],
        "optimizer": [type(optimizer).__qualname__, [list(variable.shape) for variable in optimizer.variables]],
        "loss": _name_of(model, "loss"),
        "compiled": [str(model.steps_per_execution), str(model.jit_compile)],
        "batch": [repr(sample.element_spec), sample.batch_rows, sample.num_batches],
        "devices": [
            [device.device_type, str(tf.config.experimental.get_device_details(device).get("device_name", ""))]
            for device in tf.config.list_physical_devices()
        ],
        "machine": [platform.machine(), platform.processor(), os.cpu_count()],
        "versions": [tf.__version__, keras.__version__],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _name_of(owner: Any, attribute: str) -> str:
    value = getattr(owner, attribute, None)
    return value if isinstance(value, str) else getattr(value, "__qualname__", type(value).__qualname__)


class ResultsFile:
    """A JSON file of reports by key; other processes may write it, too.

    Args:
        path: the file, which need not exist. Its folder is made.

    Raises:
        ValueError: a file that is no such thing.
        OSError: nothing can be written there.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._path = pathlib.Path(path)
        self._results()
        # Now, and not after the measurement.
        files.require_writable(str(self._path.parent))

    def look_up(self, key: str) -> TuneReport | None:
        """The report kept under a key, marked as reused; None if there is none."""
        values = self._results().get(key)
        if values is None:
            return None
        try:
            return TuneReport.from_dict({**values, "reused": True})
        except (KeyError, TypeError, ValueError):
            warnings.warn(f"A result in {self._path} can't be read, and is measured again.", stacklevel=3)
            return None

    def keep(self, key: str, report: TuneReport) -> None:
        """Adds a report, beside what others have written meanwhile."""
        results = {**self._results(), key: report.to_dict()}
        content = json.dumps({"format": _FORMAT, "results": results}, indent=1)
        files.write_whole(str(self._path), content.encode())

    def _results(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except (ValueError, IsADirectoryError) as error:
            raise ValueError(f"`results_file` must be a file that tune() wrote. {self._path}: {error}.") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(
                f"`results_file` must be a file that tune() wrote, of format {_FORMAT}. {self._path} is none; name "
                "another one, or delete it."
            )
        return content["results"]
