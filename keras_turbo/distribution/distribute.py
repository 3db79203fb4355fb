"""`distribute()`: the same script on one device, several GPUs or several machines."""

from __future__ import annotations

import contextlib
import os
import sys
from types import TracebackType
from typing import Any, cast, overload

import keras
import tensorflow as tf

from keras_turbo.distribution import fit_on_workers, keras_overrides, scopes
from keras_turbo.distribution.communication import Communication, Implementation, communication_of
from keras_turbo.distribution.gradient_compression import Compression
from keras_turbo.distribution.lost_workers import explained_loss
from keras_turbo.distribution.moving import copy_of, is_under, require_movable
from keras_turbo.distribution.strategies import is_ours
from keras_turbo.distribution.strategy_choice import Name, adapted, make_strategy, require_known, resolved_name
from keras_turbo.distribution.workers import worker_of

# As long as what a chief may do alone while the others wait; PyTorch has the same limit.
TIMEOUT_SECONDS = 600.0

# TensorFlow starts a server for its workers, once in a process, so that a later distribute() goes on with the strategy
# of the first.
_of_workers: list[tf.distribute.Strategy] = []


class Distribution(contextlib.AbstractContextManager["tf.distribute.Strategy"]):
    """What `distribute()` gives: to be entered by `with`, also several times.

    Args:
        strategy: a name or a strategy, as given to `distribute()`.
        communication: how replicas communicate.
    """

    def __init__(self, strategy: Name | tf.distribute.Strategy, communication: Communication) -> None:
        self._given = strategy
        self._communication = communication
        self._strategy: tf.distribute.Strategy | None = None
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> tf.distribute.Strategy:
        if self._strategy is None:
            self._strategy = self._made()
        strategy = self._strategy
        with contextlib.ExitStack() as stack:
            if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy:
                raise RuntimeError(
                    f"distribute() was entered inside the scope of another strategy, "
                    f"{type(tf.distribute.get_strategy()).__name__}: a model can't be under two. Leave that one first."
                )
            if worker_of(strategy)[1] > 1:
                # Models are built here, and their weights sent by the chief.
                stack.enter_context(explained_loss(strategy))
            if is_ours(strategy):
                stack.enter_context(keras_overrides.install(strategy))
            stack.enter_context(scopes.entered(strategy))
            self._entered.append(stack.pop_all())
        return strategy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    def _made(self) -> tf.distribute.Strategy:
        if isinstance(self._given, tf.distribute.Strategy):
            if is_ours(self._given):
                self._require_those_of(self._given, "This strategy has its settings already")
            strategy, source = adapted(self._given, self._communication), "given"
        elif self._given == "auto" and tf.distribute.has_strategy():
            # Inside of another distribute(), it is that one.
            return tf.distribute.get_strategy()
        else:
            name, cluster = resolved_name(cast("Name", self._given), os.environ)
            source = name if cluster is None else cluster.source
            if cluster is None:
                strategy = make_strategy(name, cluster, self._communication)
            elif _of_workers:
                return self._first_of_workers()
            else:
                strategy = make_strategy(name, cluster, self._communication)
                _of_workers.append(strategy)
                fit_on_workers.install()
        _tell(strategy, source, self._communication)
        return strategy

    def _first_of_workers(self) -> tf.distribute.Strategy:
        self._require_those_of(_of_workers[0], "TensorFlow connects workers once in a process")
        return _of_workers[0]

    def _require_those_of(self, strategy: tf.distribute.Strategy, reason: str) -> None:
        first = communication_of(strategy)
        if self._communication not in (first, Communication(timeout_seconds=TIMEOUT_SECONDS)):
            raise ValueError(
                f"{reason}, so that all models of it communicate alike. Received: {self._communication}; the first "
                f"distribute() had {first}. Give it all settings."
            )
        self._communication = first


def _tell(strategy: tf.distribute.Strategy, source: str, communication: Communication) -> None:
    """One line, on the chief: a wrong choice is seen at once, and not by how long an epoch takes."""
    index, number = worker_of(strategy)
    # A program that was started without an output has none.
    if index or sys.stdout is None:
        return
    replicas = strategy.num_replicas_in_sync
    name = type(strategy).__name__ if tf.distribute.get_strategy() is not strategy else "one device"
    text = (
        f"distribute(): {name} ({source}), {number} worker{'' if number == 1 else 's'}, "
        f"{replicas} replica{'' if replicas == 1 else 's'}"
    )
    sys.stdout.write(f"{text}, communication: {communication}.\n" if replicas > 1 else f"{text}.\n")
    sys.stdout.flush()


@overload
def distribute(
    strategy: keras.Model,
    *,
    communication: Implementation = "auto",
    bytes_per_pack: int = 0,
    timeout_seconds: float | None = TIMEOUT_SECONDS,
    gradient_compression: Compression | None = None,
) -> keras.Model: ...


@overload
def distribute(
    strategy: Name | tf.distribute.Strategy = "auto",
    *,
    communication: Implementation = "auto",
    bytes_per_pack: int = 0,
    timeout_seconds: float | None = TIMEOUT_SECONDS,
    gradient_compression: Compression | None = None,
) -> Distribution: ...


def distribute(
    strategy: Any = "auto",
    *,
    communication: Implementation = "auto",
    bytes_per_pack: int = 0,
    timeout_seconds: float | None = TIMEOUT_SECONDS,
    gradient_compression: Compression | None = None,
) -> Distribution | keras.Model:
    """Trains a model on all devices that there are: several GPUs, several machines, or just the one.

    On TensorFlow, Keras 3 fails under MultiWorkerMirroredStrategy, and under MirroredStrategy with several steps per
    execution, XLA or gradient accumulation, and it clips before it sums. Models that are built in this context train
    as on one device with the same batches, by a stock `fit`; all others are left alone.

    Example:

    ```python
    with keras_turbo.distribute() as strategy:
        train = keras_turbo.FastDataset(x, y, batch_size=64 * strategy.num_replicas_in_sync, shuffle=True, seed=0)
        model = build()
        model.compile("adam", "mse")
    model.fit(train, epochs=10, callbacks=[keras_turbo.AsyncCheckpoint("checkpoints")])
    ```

    "auto" looks at TF_CONFIG (Kubeflow, Vertex AI, Ray and `python -m keras_turbo launch` set it), then at an indexed
    job of Kubernetes, a Slurm step, TPUs and the GPUs of this machine. Nothing changes on one device. One line on
    the chief says what was found.

    The batch of a dataset is the global batch: all replicas get a part of each. Every worker runs the same script. The
    chief's weights and seeds hold for all. `ModelCheckpoint`, `TensorBoard` and other callbacks of Keras' that write or
    show something do so on the chief alone.

    On several workers this has to come before the first tensor and dataset. The workers meet first and compare
    versions, addresses and number of GPUs, so that what can't work ends with a sentence, not by hanging.

    Args:
        strategy: "auto" (default), "mirrored" (the GPUs of this machine, or its virtual devices where it has none),
            "multi_worker", "one_device" or "tpu"; a `tf.distribute.Strategy`; or a built model, which is then moved
            under the strategy whose context it is in, or under that of "auto".
        communication: "auto" (default), "ring" or "nccl".
        bytes_per_pack: gradients are sent in packs of about so many bytes. Default 0: all in one.
        timeout_seconds: how long a worker waits for the others: at the start, and whenever they exchange something.
            Default 600. Whoever has died or was stopped is missed after 10 seconds; but whoever hangs in Python (in
            its data, on a disk) is alive, and is waited for so long. It has to be longer than what the chief does
            alone, such as to write a file. None: no limit.
        gradient_compression: "float16" or "bfloat16": gradients are sent in half the bytes, rounded. Default None.

    Returns:
        A context manager that gives the strategy and can be entered again; or, for a model, the model under the
        strategy, with its weights, its optimizer's state and what it was compiled with. The one that was given is as it
        was; on one device it is returned itself.

    Raises:
        TypeError, ValueError: an argument that can't be; parameter servers; a model that can't be moved.
        ClusterError: (a ValueError) of variables that can't be, a port that is taken, workers that don't come or
            differ; with the variable, its value and the remedy.
        RuntimeError: it comes too late in the program; it is inside the scope of another strategy.
    """
    settings = Communication(
        implementation=communication,
        bytes_per_pack=bytes_per_pack,
        timeout_seconds=timeout_seconds,
        gradient_compression=gradient_compression,
    )
    if not isinstance(strategy, keras.Model):
        require_known(strategy)
        return Distribution(strategy, settings)
    require_movable(strategy)
    with Distribution("auto", settings) as chosen:
        return strategy if is_under(strategy, chosen) else copy_of(strategy)
