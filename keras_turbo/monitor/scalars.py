"""Figures as scalars for TensorBoard, against the optimizer's step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any


class ScalarWriter:
    """Writes figures under a folder. The file is opened with the first of them."""

    def __init__(self, log_dir: str | os.PathLike) -> None:
        self._log_dir = os.fspath(log_dir)
        # Now, so that a folder that can't be written stops a training at its start.
        _check_writable(self._log_dir)
        self._writer: Any = None
        self._last_steps: dict[str, int] = {}

    def write(self, figures: Mapping[str, float], step: int, prefix: str = "") -> None:
        """Writes each figure at a step, and to the disk."""
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)
        with tf.init_scope(), tf.device("CPU:0"), self._writer.as_default():
            for name, value in figures.items():
                tag = prefix + name
                if step > self._last_steps.get(tag, -1):
                    tf.summary.scalar(tag, value, step=step)
                    self._last_steps[tag] = step
            self._writer.flush()

    def close(self) -> None:
        """Closes the file. Another one is opened when there is more to write."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _check_writable(folder: str) -> None:
    try:
        if "://" in folder:
            _check_remote(folder)
            return
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"No scalars for TensorBoard can be written to `log_dir` {folder!r} ({error}). Give a folder that this "
            "process may write to."
        ) from error


def _check_remote(folder: str) -> None:
    import tensorflow as tf

    try:
        tf.io.gfile.makedirs(folder)
    except tf.errors.OpError as error:
        hint = "; s3:// and others need tensorflow-io" if isinstance(error, tf.errors.UnimplementedError) else ""
        raise OSError(f"{error.message}{hint}") from error
