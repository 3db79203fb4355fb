"""The state of loss scaling in the logs of fit."""

from __future__ import annotations

from typing import Any

import keras

from keras_turbo.fit.steps import number
from keras_turbo.precision.loss_scaling import MANY_SKIPPED_IN_A_ROW, SafeLossScaleOptimizer, warn_of_scaling


class LossScaleLogs(keras.callbacks.Callback):
    """Puts the loss scale, its counter and the skipped steps into `logs`, and warns as soon as scaling goes wrong.

    They appear in the progress bar, in `history` and in what callbacks after this one write: give it before TensorBoard
    and before checkpoints whose file names use them. The keys are

    - `loss_scale`: what the loss is multiplied by;
    - `loss_scale_good_steps`: the counter by which it will be doubled;
    - `skipped_steps`: skipped in all since their gradients overflowed (batches, where gradients are accumulated);
    - `optimizer_steps`: steps that changed the weights, `optimizer.iterations`.

    Example:

    ```python
    model.fit(x, y, callbacks=[keras_turbo.precision.LossScaleLogs(), keras.callbacks.TensorBoard("logs")])
    ```

    Where the loss is not scaled, as in bfloat16, it does nothing.

    Args:
        warn_after_skipped: steps skipped in a row from which on to warn, once. Default: 10.

    Raises:
        ValueError: `warn_after_skipped` is no positive whole number.
    """

    def __init__(self, warn_after_skipped: int = MANY_SKIPPED_IN_A_ROW) -> None:
        if isinstance(warn_after_skipped, bool) or not isinstance(warn_after_skipped, int) or warn_after_skipped < 1:
            raise ValueError(f"`warn_after_skipped` must be a positive whole number. Received: {warn_after_skipped!r}.")
        super().__init__()
        self.warn_after_skipped = warn_after_skipped

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the figures to the logs of a batch.

        Args:
            batch: its number.
            logs: changed in place.
        """
        self._add(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the figures to the logs of an epoch.

        Args:
            epoch: its number.
            logs: changed in place.
        """
        self._add(logs)

    def _add(self, logs: dict[str, Any] | None) -> None:
        optimizer = None if self.model is None else self.model.optimizer
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or not optimizer.built:
            return
        figures = {
            "loss_scale": float(number(optimizer.dynamic_scale)),
            "loss_scale_good_steps": int(number(optimizer.step_counter)),
            "optimizer_steps": int(number(optimizer.iterations)),
        }
        if isinstance(optimizer, SafeLossScaleOptimizer):
            figures["skipped_steps"] = optimizer.skipped_steps
            warn_of_scaling(optimizer, optimizer.skipped_in_a_row, self.warn_after_skipped)
        if logs is not None:
            logs.update(figures)
