"""The most memory that something takes while it runs."""

from __future__ import annotations

import pathlib

import tensorflow as tf

_PROCESS = pathlib.Path("/proc/self")
# What Linux takes for "begin anew with the peak of resident memory".
_RESET_PEAK = "5"


class PeakMemory:
    """Measures from its construction on: of the GPUs where there are any, else of this process.

    Only the process as a whole can be measured on a CPU, and only where Linux gives its peak.
    """

    def __init__(self) -> None:
        self._gpus = [
            device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices("GPU")
        ]
        self._before: float | None = None
        for gpu in self._gpus:
            tf.config.experimental.reset_memory_stats(gpu)
        if not self._gpus:
            try:
                (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
                self._before = _status_mb("VmRSS")
            except OSError:  # no Linux, or not allowed
                self._before = None

    def peak_mb(self) -> float | None:
        """Megabytes on the GPUs, or megabytes that this process has grown by at its largest; None where unknown."""
        if self._gpus:
            return sum(tf.config.experimental.get_memory_info(gpu)["peak"] for gpu in self._gpus) / 1e6
        peak = None if self._before is None else _status_mb("VmHWM")
        return None if peak is None or self._before is None else max(0.0, peak - self._before)


def _status_mb(key: str) -> float | None:
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    return None
