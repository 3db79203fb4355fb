"""How many processes make items of Python code, where the user leaves it open."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from keras_turbo.data.settings import available_cores
from keras_turbo.data.worker_pool.object_transfer import NotTransferableError, transferred
from keras_turbo.machine import free_memory_bytes

_logger = logging.getLogger(__name__)

# Sending a task and taking its result costs 0.2 to 0.3 ms (two cores); below this, processes gain little.
_SHORTEST_ITEM_SECONDS = 0.002
# Processes that import TensorFlow, as those of a PyDataset do, take 3 to 6 s to start.
_SHORTEST_EPOCH_SECONDS = 2.0
# What such a process takes for itself, and how much of the free memory all of them may take.
_WORKER_BYTES = 600_000_000
_SHARE_OF_FREE_MEMORY = 0.5
# More never were faster than this where somebody tried; they can be asked for.
_MOST_WORKERS = 16


@dataclasses.dataclass(frozen=True)
class WorkerChoice:
    """How many processes make items.

    Attributes:
        number: 0 is this process itself.
        reason: why, in words.
    """

    number: int
    reason: str


def choose_workers(
    asked_for: int | None,
    source: Any,
    name: str,
    *,
    item_seconds: float,
    num_items: int | None,
    most: int | None = None,
) -> WorkerChoice:
    """Decides on a number of worker processes, and logs it where the user has not.

    Args:
        asked_for: what the user says; None to choose.
        source: the user's object.
        name: what an error calls it.
        item_seconds: what an item took in this process.
        num_items: items in an epoch; None where that is unknown or endless.
        most: how many processes the source can make use of; None for any number.

    Raises:
        NotTransferableError: processes were asked for, and the object can't be sent to any.
    """
    if asked_for is not None:
        if asked_for > 0:
            transferred(source, name)
        return WorkerChoice(asked_for if most is None else min(asked_for, most), f"workers={asked_for} was given")
    choice = _choice(source, name, item_seconds, num_items, most)
    where = "this process" if choice.number == 0 else f"{choice.number} worker process{'es' * (choice.number > 1)}"
    _logger.info("%s is read in %s: %s. `workers` decides it otherwise.", name, where, choice.reason)
    return choice


def _choice(source: Any, name: str, item_seconds: float, num_items: int | None, most: int | None) -> WorkerChoice:
    took = f"an item takes {item_seconds * 1e3:.3g} ms"
    cores = available_cores()
    if cores == 1:
        return WorkerChoice(0, "there is one core")
    if item_seconds < _SHORTEST_ITEM_SECONDS:
        return WorkerChoice(0, f"{took}, about as much as sending it between processes")
    if num_items is not None and num_items * item_seconds < _SHORTEST_EPOCH_SECONDS:
        return WorkerChoice(0, f"{took}, so that an epoch is shorter than the start of a process")
    try:
        transferred(source, name)
    except NotTransferableError as error:
        return WorkerChoice(0, str(error))
    room = int(_SHARE_OF_FREE_MEMORY * free_memory_bytes() / _WORKER_BYTES)
    number = min(cores, _MOST_WORKERS, *(() if most is None else (most,)), *(() if num_items is None else (num_items,)))
    if room < number:
        return WorkerChoice(room, f"{took}, and there is memory for {room} on {cores} cores")
    return WorkerChoice(number, f"{took}, and there are {cores} cores")
