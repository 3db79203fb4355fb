"""What the chief has, brought to all workers; and what one worker decides, heeded by all."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# The state goes in parts of this size, so that no worker needs the memory for all of it once more.
_PART_BYTES = 64 * 2**20


class SameOnAllWorkers(keras.callbacks.Callback):
    """Lets a `fit` on several workers begin with the chief's state, and end on all where it ends on one.

    What stands before it among the callbacks may have changed the chief alone: BackupAndRestore has read a file that
    the others don't have, say. Weights, the optimizer, seeds of random layers and the first epoch are then the chief's
    on all.

    Args:
        strategy: that of the workers.
        is_chief: whether this worker is the chief.
    """

    # What tune() looks for: it does nothing at batches.
    needs_every_batch = False

    def __init__(self, strategy: tf.distribute.Strategy, is_chief: bool) -> None:
        super().__init__()
        self._strategy = strategy
        self._is_chief = is_chief

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Brings the chief's state to all.

        Raises:
            ValueError: the workers have different models.
        """
        model: Any = self.model
        first_epoch = getattr(model, "_initial_epoch", None)
        chiefs = int(self._of_chief(np.array([-1 if first_epoch is None else first_epoch], np.int64))[0])
        chiefs_epoch = None if chiefs < 0 else chiefs
        if chiefs_epoch != first_epoch:
            # Where Keras' own BackupAndRestore says at which epoch fit begins.
            model._initial_epoch = chiefs_epoch
        variables = state_without_metrics(model)
        if model.optimizer is not None:
            variables += model.optimizer.variables
        self._require_same(variables)
        for part in _in_parts(variables):
            words = _as_words([np.asarray(variable) for variable in part])
            received = self._of_chief(words)
            if not self._is_chief:
                _assign(part, received)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends training on all workers where a callback has ended it on one."""
        model: Any = self.model
        number = int(self._sum(np.array([bool(model.stop_training)], np.int64))[0])
        if number and not model.stop_training:
            warnings.warn(
                f"Training ends after epoch {epoch + 1}: a callback has stopped it on {number} of the other workers.",
                stacklevel=2,
            )
            model.stop_training = True

    def _require_same(self, variables: Sequence[Any]) -> None:
        """Workers that build other models would wait for one another for ever."""
        mine = np.array([len(variables), sum(_bytes_of(variable) for variable in variables)], np.int64)
        chiefs = self._of_chief(mine)
        differing = self._sum(np.array([not np.array_equal(mine, chiefs)], np.int64))
        if int(differing[0]):
            raise ValueError(
                f"The workers have different models: {mine[0]} variables of {mine[1]} bytes here, {chiefs[0]} of "
                f"{chiefs[1]} on the chief. All workers have to build the same model and compile it alike."
            )

    def _of_chief(self, numbers: np.ndarray) -> np.ndarray:
        return self._sum(numbers if self._is_chief else np.zeros_like(numbers))

    def _sum(self, numbers: np.ndarray) -> np.ndarray:
        with tf.init_scope():
            return np.asarray(self._strategy.reduce(tf.distribute.ReduceOp.SUM, tf.identity(numbers), axis=None))


def state_without_metrics(model: Any) -> list[Any]:
    """Weights and seeds of a model, each once. Metrics begin anew with each epoch."""
    of_metrics = {id(variable) for variable in model.metrics_variables}
    return list({id(one): one for one in model.variables if id(one) not in of_metrics}.values())


def _bytes_of(variable: Any) -> int:
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size


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


def _as_words(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The bytes of the arrays as integers, which no exchange rounds, and all devices can send."""
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return np.frombuffer(content + bytes(-len(content) % 8), np.int64)


def _assign(variables: Sequence[Any], words: np.ndarray) -> None:
    content, at = words.tobytes(), 0
    for variable in variables:
        like = np.asarray(variable)
        size = like.nbytes
        variable.assign(np.frombuffer(content[at : at + size], like.dtype).reshape(like.shape))
        at += size
