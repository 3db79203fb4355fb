"""How many processes make items of Python code, where the user leaves it open."""

from __future__ import annotations

import logging

from keras_turbo.data.settings import available_cores
from keras_turbo.data.workers.pool import Work
from keras_turbo.data.workers.transfer import NotTransferableError, TransferredObject
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


def choose_workers(
    asked_for: int | None, work: Work, *, item_seconds: float, num_items: int | None = None, most: int | None = None
) -> int:
    """Decides on a number of worker processes, 0 being this process, and logs it where the user has not asked for one.

    Args:
        asked_for: what the user asks for.
        work: what is to be done.
        item_seconds: what an item took in this process.
        num_items: items in an epoch; None where that is unknown or endless.
        most: how many processes the source can make use of.

    Raises:
        NotTransferableError: processes were asked for, and the object can't be sent to any.
    """
    if asked_for is not None:
        if asked_for > 0:
            TransferredObject(work.source, work.name)
        return asked_for if most is None else min(asked_for, most)
    number, reason = _choice(work, item_seconds, [limit for limit in (num_items, most) if limit is not None], num_items)
    where = "this process" if number == 0 else f"{number} worker process{'es' * (number > 1)}"
    _logger.info("%s is read in %s: %s. `workers` decides it otherwise.", work.name, where, reason)
    return number


def _choice(work: Work, item_seconds: float, limits: list[int], num_items: int | None) -> tuple[int, str]:
    took = f"an item takes {item_seconds * 1e3:.3g} ms"
    cores = available_cores()
    if cores == 1:
        return 0, "there is one core"
    if item_seconds < _SHORTEST_ITEM_SECONDS:
        return 0, f"{took}, about as much as sending it between processes"
    if num_items is not None and num_items * item_seconds < _SHORTEST_EPOCH_SECONDS:
        return 0, f"{took}, so that an epoch is shorter than the start of a process"
    try:
        TransferredObject(work.source, work.name)
    except NotTransferableError as error:
        return 0, str(error)
    room = int(_SHARE_OF_FREE_MEMORY * free_memory_bytes() / _WORKER_BYTES)
    number = min(cores, _MOST_WORKERS, *limits)
    if room < number:
        return room, f"{took}, and there is memory for {room} on {cores} cores"
    return number, f"{took}, and there are {cores} cores"
