"""What several workers that train one model tell one another while they do."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_turbo.fit.steps import value_of

# Messages are of one size, so that one exchange is enough. Descriptions of datasets take about 300 bytes.
_MESSAGE_BYTES = 2048
# About so long after one exchange comes the next one. What is sent takes some milliseconds, also over a slow network.
_BETWEEN_SECONDS = 1.0
# Where executions become much slower all at once, the next exchange is that many of them away at most.
_MOST_EXECUTIONS = 256
# State goes in parts of this size, so that no worker needs the memory for all of it once more.
_PART_BYTES = 64 * 2**20


def worker_of(strategy: Any) -> tuple[int, int]:
    """The index of this worker and the number of workers; (0, 1) where the model trains in one process."""
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or not resolver.task_type:
        return 0, 1
    tasks = resolver.cluster_spec().as_dict()
    # A chief is the first of all; where there is none, worker 0 is.
    number = sum(len(tasks.get(kind, ())) for kind in ("chief", "worker"))
    index = int(resolver.task_id or 0)
    return (index + len(tasks.get("chief", ())) if resolver.task_type == "worker" else 0), max(1, number)


def worker_of_model(model: Any) -> tuple[int, int]:
    """The same by the model that they train."""
    return worker_of(model.distribute_strategy) if keras.config.backend() == "tensorflow" else (0, 1)


def num_workers(strategy: Any) -> int:
    """Number of processes that train together; 1 for all devices of one machine."""
    return max(1, strategy.num_replicas_in_sync // max(1, len(strategy.extended.worker_devices)))


# All workers must call these, in the same order as other calls.


def summed(strategy: Any, numbers: Sequence[float]) -> list[float]:
    """The sums of some numbers over workers, in float32: equally many on all, and always as many."""
    import tensorflow as tf

    replicas_per_worker = strategy.num_replicas_in_sync // num_workers(strategy)

    def sum_up(mine: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(tf.identity, args=(mine,)), axis=None)

    total = np.asarray(_traced(strategy, "sum", sum_up)(tf.constant(numbers, tf.float32)))
    return (total / replicas_per_worker).tolist()


def gathered(strategy: Any, message: Any) -> list[Any]:
    """What each worker says, in the order of workers: something that JSON knows, the same kind of thing on all."""
    import tensorflow as tf

    text = json.dumps(message, sort_keys=True).encode()
    if len(text) > _MESSAGE_BYTES:
        raise ValueError(f"A message between workers may have {_MESSAGE_BYTES} bytes. Received: {len(text)}.")
    # As numbers that every device and every communication library can send.
    numbers = np.zeros(_MESSAGE_BYTES, np.float32)
    numbers[: len(text)] = np.frombuffer(text, np.uint8)

    def exchange(mine: tf.Tensor) -> tf.Tensor:
        return strategy.gather(strategy.run(tf.identity, args=(mine,)), axis=0)

    everything = _traced(strategy, "gather", exchange)(tf.constant(numbers))
    rows = np.asarray(everything).reshape(strategy.num_replicas_in_sync, _MESSAGE_BYTES).astype(np.uint8)
    replicas_per_worker = strategy.num_replicas_in_sync // num_workers(strategy)
    return [json.loads(row.tobytes().rstrip(b"\0")) for row in rows[::replicas_per_worker]]


def _traced(strategy: Any, name: str, function: Callable[..., Any]) -> Any:
    """A function of a strategy, traced once and kept with it: TensorFlow warns of collectives without one."""
    import tensorflow as tf

    attribute = f"_keras_turbo_{name}"
    if not hasattr(strategy, attribute):
        setattr(strategy, attribute, tf.function(function, autograph=False))
    return getattr(strategy, attribute)


class ChiefsState:
    """Brings what the chief has to all workers."""

    def __init__(self, strategy: Any, is_chief: bool) -> None:
        self._strategy = strategy
        self._is_chief = is_chief

    def of_chief(self, numbers: np.ndarray) -> np.ndarray:
        """The chief's integers, of one shape on all."""
        return self.sum(numbers if self._is_chief else np.zeros_like(numbers))

    def sum(self, numbers: np.ndarray) -> np.ndarray:
        """The sum of integers over workers."""
        import tensorflow as tf

        with tf.init_scope():
            return np.asarray(self._strategy.reduce(tf.distribute.ReduceOp.SUM, tf.identity(numbers), axis=None))

    def assign(self, variables: Sequence[Any]) -> None:
        """Gives variables the chief's values."""
        mine = np.array([len(variables), sum(map(_bytes_of, variables))], np.int64)
        chiefs = self.of_chief(mine)
        if int(self.sum(np.array([not np.array_equal(mine, chiefs)], np.int64))[0]):
            raise ValueError(
                f"The workers have different models: {mine[0]} variables of {mine[1]} bytes here, {chiefs[0]} of "
                f"{chiefs[1]} on the chief. All workers have to build the same model and compile it alike."
            )
        for part in _in_parts(variables):
            content = b"".join(np.ascontiguousarray(value_of(variable)).tobytes() for variable in part)
            # As integers, which no exchange rounds, and all devices can send.
            content = self.of_chief(np.frombuffer(content + bytes(-len(content) % 8), np.int64)).tobytes()
            at = 0
            for variable in part if not self._is_chief else ():
                like = value_of(variable)
                variable.assign(np.frombuffer(content[at : at + like.nbytes], like.dtype).reshape(like.shape))
                at += like.nbytes


def _bytes_of(variable: Any) -> int:
    return value_of(variable).nbytes


def _in_parts(variables: Sequence[Any]) -> list[list[Any]]:
    parts: list[list[Any]] = []
    left = 0
    for variable in variables:
        size = _bytes_of(variable)
        if not parts or size > left:
            parts.append([])
            left = _PART_BYTES
        parts[-1].append(variable)
        left -= size
    return parts


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What all workers do now.

    Attributes:
        leave: whether one of them was asked to.
        save: whether a save is due by the chief's clock.
    """

    leave: bool = False
    save: bool = False


class AgreedMoments:
    """The moments at which workers agree to save, or to leave after a signal that may have reached one of them alone.

    They end the same executions, each at its own time. So now and then, after the same execution, all tell one another
    who was asked to leave, and the chief whether its clock says that a save is due, and after how many executions they
    talk again: three numbers, about once a second. All must call its methods after the same executions.
    """

    def __init__(self, strategy: Any, *, is_chief: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._strategy = strategy
        self._is_chief = is_chief
        self._clock = clock
        self._executions = 1
        self._left = 1
        self._last = clock()

    def after_execution(self, *, asked_to_leave: bool, is_due: bool) -> Agreed:
        """What to do at the end of an execution: nothing, unless it is one after which they talk."""
        self._left -= 1
        if self._left > 0:
            return Agreed()
        now = self._clock()
        seconds_each = max(1e-9, now - self._last) / self._executions
        wanted = min(_MOST_EXECUTIONS, max(1, int(_BETWEEN_SECONDS / seconds_each)))
        agreed, self._executions = self._exchange(asked_to_leave, is_due, wanted)
        self._left, self._last = self._executions, self._clock()
        return agreed

    def at_once(self, *, asked_to_leave: bool) -> Agreed:
        """The same at a moment at which they talk in any case, such as the end of an epoch."""
        return self._exchange(asked_to_leave, False, 1)[0]

    def _exchange(self, asked_to_leave: bool, is_due: bool, executions: int) -> tuple[Agreed, int]:
        of_chief = (float(is_due), float(executions)) if self._is_chief else (0.0, 0.0)
        leaving, due, chiefs_executions = summed(self._strategy, [float(asked_to_leave), *of_chief])
        return Agreed(leave=leaving > 0, save=due > 0), max(1, round(chiefs_executions))
