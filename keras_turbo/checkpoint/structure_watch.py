"""Whether a model still has the variables that it had."""

from __future__ import annotations

from typing import Any

import keras

from keras_turbo.checkpoint.keras_layout import global_seed_generator


class StructureWatch:
    """Notices when a model has other variables than before: after its first step, or when it is compiled anew.

    Args:
        model: any model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._seen = self._structure()

    def has_changed(self) -> bool:
        """Whether it has changed since the last call."""
        before, self._seen = self._seen, self._structure()
        return len(before) != len(self._seen) or any(a is not b for a, b in zip(before, self._seen, strict=True))

    def _structure(self) -> list[Any]:
        # The objects and not their ids, which a later one may have. TensorFlow's own variables that a model holds are
        # not looked for: that takes longer than a copy, and TensorFlow refuses new ones after the first step.
        optimizer = getattr(self._model, "optimizer", None)
        generator = global_seed_generator(create=False)
        return [
            generator,
            optimizer,
            *(() if optimizer is None else optimizer.variables),
            *self._model.variables,
            *self._model.metrics_variables,
        ]
