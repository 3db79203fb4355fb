"""What the chief has, brought to all workers; and what one worker decides, heeded by all."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.fit.training_state import GLOBAL_SEED, METRICS, NotBuiltError, find_state, is_variable, raw
from keras_turbo.fit.workers import ChiefsState


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
        self._chiefs = ChiefsState(strategy, is_chief)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Brings the chief's state to all.

        Raises:
            ValueError: the workers have different models.
        """
        model: Any = self.model
        first_epoch = getattr(model, "_initial_epoch", None)
        chiefs = int(self._chiefs.of_chief(np.array([-1 if first_epoch is None else first_epoch], np.int64))[0])
        chiefs_epoch = None if chiefs < 0 else chiefs
        if chiefs_epoch != first_epoch:
            # Where Keras' own BackupAndRestore says at which epoch fit begins.
            model._initial_epoch = chiefs_epoch
        self._chiefs.assign(_state_of(model))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends training on all workers where a callback has ended it on one."""
        model: Any = self.model
        number = int(self._chiefs.sum(np.array([bool(model.stop_training)], np.int64))[0])
        if number and not model.stop_training:
            warnings.warn(
                f"Training ends after epoch {epoch + 1}: a callback has stopped it on {number} of the other workers.",
                stacklevel=2,
            )
            model.stop_training = True


def _state_of(model: Any) -> list[Any]:
    """The variables that all workers must have alike. Metrics begin anew with each epoch; all draw the same seeds."""
    try:
        state = find_state(model)
    except NotBuiltError:
        return []
    extra = [value for path, value in state.extra.items() if not path.startswith(METRICS) and path != GLOBAL_SEED]
    found = [value for value in [*state.weights.values(), *extra] if is_variable(value)]
    return list({id(raw(value)): value for value in found}.values())
