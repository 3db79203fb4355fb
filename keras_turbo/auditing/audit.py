"""Measures why a training is slow, and what each remedy would gain."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.auditing.callback_times import each_callback
from keras_turbo.auditing.fit_input import FitInput
from keras_turbo.auditing.measuring import REMEDIES, audit_fit
from keras_turbo.auditing.report import AuditReport


def audit(
    model: keras.Model,
    data: Any,
    *,
    steps: int = 50,
    batch_size: int = 32,
    callbacks: Any = None,
    budget_seconds: float = 60.0,
    remedies: Sequence[str] = tuple(REMEDIES),
) -> AuditReport:
    """Measures why the training of a model is slow, and what each remedy would gain.

    On the user's own model and data, in stock `fit`: what a step takes, the input alone, the steps on batches that are
    ready, many of them in one graph, the callbacks, a save of `ModelCheckpoint` (into a temporary folder beside its
    file), and the use of GPUs and CPU meanwhile. Then it tries the remedies that apply, in turns with the training as
    it is: a cache, workers, a `FastDataset`, uint8 images normalized in the model, several steps in one execution, XLA,
    mixed precision, a larger batch. What gained nothing is not recommended.

    Afterwards weights, the optimizer's variables, metrics, seeds, global random states, the position of the data, the
    train function and the setting of `tune` are as before. Callbacks run as in training, but for their hooks at the end
    of an epoch, and for those that save or restore; what others write to files stays written.

    Example:

    ```python
    report = keras_turbo.audit(model, train)
    print(report)
    report.save("audit.html")
    ```

    Args:
        model: a compiled model. If it is not built yet, it is built from the data, with the weights that `fit` would
            give it.
        data: what `fit` will get: a `FastDataset`, a `tf.data.Dataset` of batches, a `keras.utils.PyDataset`, or a
            tuple `(x, y)` or `(x, y, sample_weight)` of arrays.
        steps: training steps of each measurement, default 50; more where they are short, fewer where they are long.
        batch_size: examples a batch, default 32. For arrays; a dataset has batches of its own.
        callbacks: those that `fit` will get. Default None: none are measured.
        budget_seconds: after which nothing more is begun, default 60. What runs then, such as a compilation, is waited
            for; what was not measured is listed.
        remedies: names of those to try, default all: "cache", "workers", "FastDataset", "callbacks", "multi-step",
            "XLA", "mixed precision", "larger batch", "uint8 input". With `()`, the verdict alone.

    Returns:
        The report, which prints as tables and saves itself as a page.

    Raises:
        TypeError: `model`, `data` or `callbacks` of another kind.
        ValueError: a model that is not compiled, runs eagerly or is under a strategy; data without batches; another
            value of an argument.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: {type(model).__name__}.")
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise ValueError(f"`{name}` must be an integer from 1. Received: {value!r}.")
    if (
        isinstance(budget_seconds, bool)
        or not isinstance(budget_seconds, (int, float))
        or not 0 < budget_seconds < math.inf
    ):
        raise ValueError(f"`budget_seconds` must be a finite number of seconds above 0. Received: {budget_seconds!r}.")
    unknown = [each for each in ([remedies] if isinstance(remedies, str) else remedies) if each not in REMEDIES]
    if isinstance(remedies, str) or unknown:
        raise ValueError(f"`remedies` must be a tuple with some of {tuple(REMEDIES)}. Received: {remedies!r}.")
    each_callback(callbacks)
    require_auditable(model)
    found = FitInput.of(data, int(batch_size))
    return audit_fit(
        model, found, callbacks, steps=int(steps), budget_seconds=float(budget_seconds), remedies=tuple(remedies)
    )


def require_auditable(model: keras.Model) -> None:
    """Checks what can't be measured.

    Raises:
        ValueError: see `audit`.
    """
    if not model.compiled:
        raise ValueError(f"The model {model.name!r} must be compiled before it is audited: call its compile() first.")
    if model.run_eagerly or tf.config.functions_run_eagerly():
        raise ValueError(
            f"The model {model.name!r} runs eagerly, which is slow by itself and hides all else. Compile it without "
            "run_eagerly=True, call tf.config.run_functions_eagerly(False), leave debug_mode(); then audit it."
        )
    strategy = model.distribute_strategy
    if tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy():
        raise ValueError(
            f"The model {model.name!r} is under {type(strategy).__name__}. audit() measures one device: build and "
            "compile the model without the strategy for it. GpuUtilization reports on training under a strategy."
        )
