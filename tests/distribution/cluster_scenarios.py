"""What runs in the worker processes of `test_several_workers.py`. Each function runs in two of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import time
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import keras_turbo
from keras_turbo import distribute
from keras_turbo.distribution.distribute import Distribution
from keras_turbo.distribution.lost_workers import WorkerLostError
from keras_turbo.distribution.workers import worker_of


def small_model(**settings):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    model.compile(**{"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", **settings})
    return model


def rows(number=32):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def error_of(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def many_things(folder):
    """One pair of processes for all that can be seen in one; gives what each saw."""
    warnings.simplefilter("ignore")
    folder = Path(folder)
    seen = {}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        with distribute() as strategy:
            index, number = worker_of(strategy)
            seen["worker"] = [index, number, keras_turbo.distribution.is_chief(strategy)]
            x, y = rows()
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
            model = small_model(metrics=["mae"])
            halving = keras.optimizers.SGD(0.05)
            stopped = small_model(optimizer=halving)
        seen["left"] = not tf.distribute.has_strategy()
        seen["said"], said = said.getvalue(), io.StringIO()

    # Callbacks of Keras': files are the chief's alone, History is that of all.
    csv = folder / "log.csv"
    callbacks = [
        keras.callbacks.ModelCheckpoint(
            folder / "best.weights.h5", save_best_only=True, save_weights_only=True, monitor="loss"
        ),
        keras.callbacks.TensorBoard(folder / "tensorboard"),
        keras.callbacks.CSVLogger(csv),
        keras_turbo.GpuUtilization(interval=0.05, warn_below=0),
    ]
    with contextlib.redirect_stdout(said):
        history = model.fit(data, epochs=2, validation_data=data, callbacks=callbacks, verbose=2)
        seen["evaluated"] = model.evaluate(data, return_dict=True)
        seen["predicted"] = model.predict(data)
    seen["shown"] = said.getvalue()
    seen["history"] = {name: history.history[name] for name in ("loss", "mae", "val_loss", "val_mae")}
    seen["workers_figures"] = sorted(name for name in history.history if name.startswith("workers_mean_"))[:1]
    seen["weights"] = model.get_weights()

    # What stops on one worker stops on all; what reduces the learning rate does so on all.
    class StopsOnWorkerOne(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = index == 1 and epoch == 1

    reducing = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=0, min_delta=1e9)
    seen["epochs"] = stopped.fit(data, epochs=9, callbacks=[StopsOnWorkerOne(), reducing], verbose=0).epoch
    seen["learning_rate"] = float(halving.learning_rate.numpy())
    stopping = keras.callbacks.EarlyStopping(monitor="loss", min_delta=1e9, patience=1, restore_best_weights=True)
    seen["early"] = stopped.fit(data, epochs=9, callbacks=[stopping], verbose=0).epoch

    # BackupAndRestore reads its file on the chief; the others get what it read.
    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    backup = folder / "backup"
    with distribute(), contextlib.suppress(InterruptedError):
        crashed = small_model()
        crashed.fit(data, epochs=4, callbacks=[keras.callbacks.BackupAndRestore(backup), Crash()], verbose=0)
    with distribute() as again:
        seen["same"] = again is strategy
        if index == 0:
            model.save(folder / "model.keras")
            crashed.save_weights(folder / "crashed.weights.h5")
        seen["in_scope"] = tf.distribute.get_strategy() is strategy
        restored = small_model()
    seen["resumed"] = restored.fit(
        data, epochs=4, callbacks=[keras.callbacks.BackupAndRestore(backup)], verbose=0
    ).epoch
    seen["resumed_weights"] = restored.get_weights()
    seen["resumed_steps"] = int(restored.optimizer.iterations.numpy())

    # A ready CallbackList, and models of one device, are seen to as well.
    ready = keras.callbacks.CallbackList(
        [keras.callbacks.CSVLogger(folder / "ready.csv")], add_history=True, model=model
    )
    model.fit(data, epochs=1, callbacks=ready, verbose=0)
    seen["ready"] = len(ready.callbacks)
    alone = folder / f"alone-{index}"
    model_alone = small_model()
    model_alone.fit(data, epochs=1, callbacks=[keras.callbacks.CSVLogger(alone)], verbose=0)
    seen["alone"] = alone.exists()

    # An error that is found before anything is sent.
    seen["options"] = error_of(lambda: Distribution("auto", changed_options()).__enter__())
    return seen


def changed_options():
    from keras_turbo.distribution.communication import Communication

    return Communication(bytes_per_pack=1000)


def save_by_the_clock_and_leave(folder, where):
    """Saves by the clock, while worker 1 is slower; then a signal to worker 1 alone ends both, by SystemExit.

    Args:
        folder: for checkpoints and for what each worker says.
        where: "training" or "validation", in which the signal comes.
    """
    folder = Path(folder)
    with distribute() as strategy:
        index, _ = worker_of(strategy)
        x, y = rows()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
        model = small_model()

    class Slower(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.01 * index)

    timed = keras_turbo.AsyncCheckpoint(folder / "timed", save_freq="0.3s", max_to_keep=None)
    model.fit(data, steps_per_epoch=150, callbacks=[Slower(), timed], verbose=0)

    class SendsSignal(keras.callbacks.Callback):
        def send(self, batch):
            if index == 1 and batch == 20:
                os.kill(os.getpid(), signal.SIGUSR1)

        def on_train_batch_end(self, batch, logs=None):
            if where == "training":
                self.send(batch)

        def on_test_batch_end(self, batch, logs=None):
            if where == "validation":
                self.send(batch)

    steps = {"training": 10**6, "validation": 4}[where]
    leaving = keras_turbo.AsyncCheckpoint(folder / "left", save_freq=10**6)
    try:
        model.fit(
            data,
            steps_per_epoch=steps,
            epochs=3,
            validation_data=data,
            validation_steps=10**6,
            callbacks=[SendsSignal(), leaving],
            verbose=0,
        )
    finally:
        said = {"left": leaving.last_checkpoint.name, "steps": int(model.optimizer.iterations.numpy())}
        (folder / f"worker{index}.json").write_text(json.dumps(said), encoding="utf-8")


def save_where_reasons_meet(folder, epochs):
    """Saves by steps and by the best, which are due at the same steps, in a directory that may have checkpoints."""
    with distribute():
        x, y = rows()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
        model = small_model()
    checkpoint = keras_turbo.AsyncCheckpoint(folder, save_freq=25, monitor="val_loss", max_to_keep=None)
    history = model.fit(
        data,
        steps_per_epoch=25,
        epochs=epochs,
        validation_data=data,
        validation_steps=2,
        callbacks=[checkpoint],
        verbose=0,
    )
    return {"epochs": history.epoch, "steps": int(model.optimizer.iterations.numpy())}


def leave_at_any_step(folder, saves_each):
    """Trains without end, saving often; somebody ends it by a signal."""
    with distribute() as strategy:
        index, _ = worker_of(strategy)
        x, y = rows()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
        model = small_model()

    class Begun(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                (Path(folder) / f"begun{index}").touch()

    checkpoint = keras_turbo.AsyncCheckpoint(Path(folder) / "run", save_freq=saves_each, monitor="val_loss")
    callbacks = [Begun(), checkpoint]
    options = {"validation_data": data, "validation_steps": 2, "callbacks": callbacks, "verbose": 0}
    model.fit(data, steps_per_epoch=saves_each, epochs=10**6, **options)


def lose_a_worker(how):
    """Worker 1 is lost, in the middle of an epoch if not "at once". Gives what worker 0 was told, and how soon."""
    timeout = 8.0 if how == "sleep" else 600.0
    since = []
    try:
        with distribute(timeout_seconds=timeout) as strategy:
            since.append(time.monotonic())
            index, _ = worker_of(strategy)
            if how == "at once" and index == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            x, y = rows(64)
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
            model = small_model()
    except WorkerLostError as error:
        return {"error": str(error), "seconds": time.monotonic() - since[0]}
    since.clear()

    class Lost(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 19:
                # Worker 1 can end the next one, which needs both, before worker 0 has all of it.
                since.append(time.monotonic())
            if batch == 20 and index == 1:
                if how == "sleep":
                    time.sleep(60)
                os.kill(os.getpid(), getattr(signal, how))

    try:
        model.fit(data, steps_per_epoch=10**6, callbacks=[Lost()], verbose=0)
    except WorkerLostError as error:
        return {"error": str(error), "seconds": time.monotonic() - since[0]}
    return {"error": None}
