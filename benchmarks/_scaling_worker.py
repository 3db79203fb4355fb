"""One worker of `scaling.py`: trains with each contender in turn, in step with the other workers, if there are any.

    python benchmarks/_scaling_worker.py SETTINGS OUTPUT

SETTINGS is JSON: `features`, `units`, `layers`, `batch` (the global one), `steps`, `epochs`, `rounds`, `contenders`.
OUTPUT is the file for what worker 0 has measured. Who the workers are stands in TF_CONFIG.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import _measure
import keras
import numpy as np
import psutil
import tensorflow as tf

import keras_turbo
from keras_turbo.distribution import keras_overrides, strategies
from keras_turbo.distribution.communication import Communication, set_communication
from keras_turbo.distribution.gradient_compression import COMPRESSIONS, Compression

ACCUMULATED = 4
# Of all contenders, so that losses can be compared. Ten times faster, differences of rounding grow to a thousandth.
LEARNING_RATE, MOMENTUM = 0.001, 0.9


# Milliseconds and bytes of a step, by epoch, and losses.
Measured = dict[str, list[float]]


def arrays(settings: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = settings["batch"] * settings["steps"]
    x = rng.standard_normal((rows, settings["features"]), dtype=np.float32)
    return x, np.tanh(x[:, :1] + 0.1 * rng.standard_normal((rows, 1), dtype=np.float32))


def new_model(settings: Mapping[str, Any]) -> keras.Model:
    layers = [
        keras.layers.Dense(settings["units"], "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=number))
        for number in range(settings["layers"])
    ]
    head = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=99))
    return keras.Sequential([keras.Input((settings["features"],)), *layers, head])


def new_optimizer(**options: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM, **options)


def sent_bytes() -> int:
    """What has gone over the loopback interface, where every byte that a worker sends passes once."""
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


class Epochs(keras.callbacks.Callback):
    """Milliseconds and bytes of each epoch of a fit."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self.step_ms: list[float] = []
        self.step_bytes: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._begun = time.perf_counter(), sent_bytes()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        seconds, sent = self._begun
        self.step_ms.append((time.perf_counter() - seconds) * 1e3 / self._steps)
        self.step_bytes.append((sent_bytes() - sent) / self._steps)


def fit_contender(settings: Mapping[str, Any], data: Any, **optimizer_options: Any) -> Callable[[], Measured]:
    """A stock `fit`, under whatever is in scope."""
    model = new_model(settings)
    weights = model.get_weights()
    model.compile(new_optimizer(**optimizer_options), "mse", jit_compile=False)
    # As of now, with whatever is in scope here.
    model.optimizer.build(model.trainable_variables)
    fresh = [variable.numpy() for variable in model.optimizer.variables]

    def run() -> Measured:
        model.set_weights(weights)
        for variable, value in zip(model.optimizer.variables, fresh, strict=True):
            variable.assign(value)
        epochs = Epochs(settings["steps"])
        history = model.fit(data, epochs=settings["epochs"], shuffle=False, verbose=0, callbacks=[epochs])
        return Measured(step_ms=epochs.step_ms, step_bytes=epochs.step_bytes, losses=history.history["loss"])

    return run


def loop_by_hand(settings: Mapping[str, Any], strategy: tf.distribute.Strategy) -> Callable[[], Measured]:
    """The loop of TensorFlow's guide to distributed training."""
    x, y = arrays(settings)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(settings["batch"]).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    distributed = strategy.experimental_distribute_dataset(dataset.with_options(options))
    with strategy.scope():
        model = new_model(settings)
        weights = model.get_weights()
        optimizer = new_optimizer()
        optimizer.build(model.trainable_variables)
        total = keras.metrics.Mean()
    fresh = [variable.numpy() for variable in optimizer.variables]

    def replica_step(batch_x: tf.Tensor, batch_y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(model(batch_x, training=True) - batch_y), axis=-1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=settings["batch"])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batch: Any) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)

    def run() -> Measured:
        model.set_weights(weights)
        for variable, value in zip(optimizer.variables, fresh, strict=True):
            variable.assign(value)
        measured = Measured(step_ms=[], step_bytes=[], losses=[])
        for _ in range(settings["epochs"]):
            total.reset_state()
            begun, sent = time.perf_counter(), sent_bytes()
            for batch in distributed:
                total.update_state(step(batch))
            measured["losses"].append(float(total.result()))
            measured["step_ms"].append((time.perf_counter() - begun) * 1e3 / settings["steps"])
            measured["step_bytes"].append((sent_bytes() - sent) / settings["steps"])
        return measured

    return run


def turbo_contender(
    settings: Mapping[str, Any],
    strategy: tf.distribute.Strategy,
    compression: Compression | None = None,
    **optimizer_options: Any,
) -> Callable[[], Measured]:
    """A stock `fit` under a strategy of keras_turbo, on a FastDataset."""
    with keras_overrides.install(strategy), strategy.scope():
        data = keras_turbo.FastDataset(*arrays(settings), batch_size=settings["batch"])
        fit = fit_contender(settings, data, **optimizer_options)
    communication = Communication(gradient_compression=compression)

    def run() -> Measured:
        # A process has one strategy of several workers, which the contenders share.
        set_communication(strategy, communication)
        return fit()

    return run


def made(name: str, settings: Mapping[str, Any], strategy: tf.distribute.Strategy | None) -> Callable[[], Measured]:
    """A contender by its name in the tables."""
    if strategy is None:
        return fit_contender(settings, keras_turbo.FastDataset(*arrays(settings), batch_size=settings["batch"]))
    if name.startswith("by hand"):
        return loop_by_hand(settings, strategy)
    if "accumulated" in name:
        return turbo_contender(settings, strategy, gradient_accumulation_steps=ACCUMULATED)
    return turbo_contender(settings, strategy, next((one for one in COMPRESSIONS if name.endswith(one)), None))


def main() -> None:
    settings = json.loads(sys.argv[1])
    _measure.hide_gpus()
    cluster = json.loads(os.environ.get("TF_CONFIG", "null"))
    workers = len(cluster["cluster"]["worker"]) if cluster else 1
    # Workers on several machines would not take one another's cores.
    cores = max(1, len(os.sched_getaffinity(0)) // workers)
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    strategy = strategies.multi_worker() if cluster else None
    contenders = {name: made(name, settings, strategy) for name in settings["contenders"]}
    measured = _measure.in_turn(contenders, settings["rounds"])
    if not cluster or cluster["task"]["index"] == 0:
        Path(sys.argv[2]).write_text(json.dumps(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
