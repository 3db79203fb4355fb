"""What it means when TensorFlow can't reach another worker any longer.

TensorFlow's workers send heartbeats, by threads that run while Python does something else: whoever dies, is stopped or
is cut off is missed after 10 seconds, and each exchange ends with an error. Whoever hangs in Python goes on sending
them: for that exchanges have a timeout. What these errors say ("Socket closed", "Collective has timed out") tells
nobody what to do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_turbo.distribution.communication import communication_of
from keras_turbo.distribution.workers import worker_of

_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)

# By which errors of exchanges are told from those of files, datasets and devices.
_OF_EXCHANGES = re.compile(r"collective|CoordinationService|/job:(worker|chief)", re.IGNORECASE)
_TASK = re.compile(r"/job:(worker|chief)(?:/replica:\d+)?/task:(\d+)")


class WorkerLostError(RuntimeError):
    """Another worker has died or hangs, so that this one can't train on."""


@contextlib.contextmanager
def explained_loss(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Raises a `WorkerLostError` for what TensorFlow raises inside when another worker is lost.

    Args:
        strategy: that of the workers.
    """
    try:
        yield
    except _ERRORS as error:
        if not _OF_EXCHANGES.search(error.message):
            raise
        raise WorkerLostError(_explanation(strategy, error)) from error


def _explanation(strategy: Any, error: tf.errors.OpError) -> str:
    index, number = worker_of(strategy)
    tasks = strategy.cluster_resolver.cluster_spec()
    named = [(kind, int(task)) for kind, task in _TASK.findall(error.message)]
    others = dict.fromkeys(
        f"{kind} {task} ({tasks.task_address(kind, task)})"
        for kind, task in named
        if task in tasks.task_indices(kind) and (kind, task) != _own_task(strategy)
    )
    who = " or ".join(others) or "another worker"
    timeout = communication_of(strategy).timeout_seconds
    if isinstance(error, tf.errors.DeadlineExceededError) and "timed out" in error.message:
        what = (
            f"{who} has not come to an exchange within timeout_seconds={timeout:g}: it hangs, or does something alone"
        )
    else:
        what = f"{who} has died, was stopped or can't be reached"
    return (
        f"Worker {index} of {number} can't go on: {what}. Its own output says why. All workers have to start again; "
        "with AsyncCheckpoint they go on where the last checkpoint was (python -m keras_turbo launch --max-restarts "
        f"starts them again). TensorFlow says: {_last_line(error)}"
    )


def _own_task(strategy: Any) -> tuple[str, int]:
    resolver = strategy.cluster_resolver
    return resolver.task_type, int(resolver.task_id)


def _last_line(error: tf.errors.OpError) -> str:
    lines = [line.strip() for line in error.message.splitlines() if not line.startswith("Detected at")]
    return next((line for line in lines if re.search(r"collective|heartbeat|timed out", line, re.IGNORECASE)), lines[0])
