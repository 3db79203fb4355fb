"""What several workers tell one another before they train together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Messages are of one size, so that one exchange is enough. Descriptions of datasets take about 300 bytes.
_MESSAGE_BYTES = 2048
# Where a strategy keeps the functions that exchange them.
_EXCHANGE = "_keras_turbo_exchange"
_SUM = "_keras_turbo_sum"


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Number of processes that train together; 1 for all devices of one machine."""
    return max(1, strategy.num_replicas_in_sync // max(1, len(strategy.extended.worker_devices)))


def gathered(strategy: tf.distribute.Strategy, message: Any) -> list[Any]:
    """What each worker says, in the order of workers. All of them must call it, in the same order as other calls.

    Args:
        strategy: that of the workers.
        message: something that JSON knows; the same kind of thing on all.

    Raises:
        ValueError: the message is too long.
    """
    text = json.dumps(message, sort_keys=True).encode()
    if len(text) > _MESSAGE_BYTES:
        raise ValueError(f"A message between workers may have {_MESSAGE_BYTES} bytes. Received: {len(text)}.")
    # As numbers that every device and every communication library can send.
    numbers = np.zeros(_MESSAGE_BYTES, np.float32)
    numbers[: len(text)] = np.frombuffer(text, np.uint8)
    everything = _exchange_of(strategy)(tf.constant(numbers))
    rows = np.asarray(everything).reshape(strategy.num_replicas_in_sync, _MESSAGE_BYTES).astype(np.uint8)
    replicas_per_worker = strategy.num_replicas_in_sync // num_workers(strategy)
    return [json.loads(row.tobytes().rstrip(b"\0")) for row in rows[::replicas_per_worker]]


def summed(strategy: tf.distribute.Strategy, numbers: Sequence[float]) -> list[float]:
    """The sums of some numbers over workers, in float32. All of them must call it, in the same order as other calls.

    Args:
        strategy: that of the workers.
        numbers: equally many on all, and always as many.
    """
    replicas_per_worker = strategy.num_replicas_in_sync // num_workers(strategy)
    total = np.asarray(_sum_of(strategy)(tf.constant(numbers, tf.float32)))
    return (total / replicas_per_worker).tolist()


def _sum_of(strategy: tf.distribute.Strategy) -> Any:
    if not hasattr(strategy, _SUM):

        @tf.function(autograph=False)
        def summed_up(mine: tf.Tensor) -> tf.Tensor:
            return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(tf.identity, args=(mine,)), axis=None)

        setattr(strategy, _SUM, summed_up)
    return getattr(strategy, _SUM)


def _exchange_of(strategy: tf.distribute.Strategy) -> Any:
    """The function that gathers messages under a strategy, traced once: TensorFlow warns of collectives without one."""
    if not hasattr(strategy, _EXCHANGE):

        @tf.function(autograph=False)
        def exchanged(mine: tf.Tensor) -> tf.Tensor:
            return strategy.gather(strategy.run(tf.identity, args=(mine,)), axis=0)

        setattr(strategy, _EXCHANGE, exchanged)
    return getattr(strategy, _EXCHANGE)
