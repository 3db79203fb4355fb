"""AsyncCheckpoint: when it saves and what, what it refuses, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_turbo
from keras_turbo import AsyncCheckpoint, FastDataset, cli
from keras_turbo.checkpoint import CheckpointSaveError, DirectoryInUseError
from keras_turbo.checkpoint.location import LocalFiles
from keras_turbo.checkpoint.reading import read_checkpoint
from keras_turbo.checkpoint.snapshot import Snapshots
from keras_turbo.fit.first_step import build_for
from tests.checkpoint.callbacks import BrokenOffError, Logging

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def small_model(optimizer="adam", metrics=(), **options) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=list(metrics), **{"jit_compile": False, **options})
    return model


def fit(model, *callbacks, epochs=1, batch_size=4, **options):
    return model.fit(
        X, Y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks], **options
    )


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


class InBatches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[4 * index : 4 * index + 4], Y[4 * index : 4 * index + 4]


def names(directory) -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir() if not path.name.startswith("."))


def steps(directory) -> list[int]:
    return [int(name.removeprefix("step-")) for name in names(directory)]


def state_of(directory, name):
    return read_checkpoint(Path(directory) / name)[2]


@contextlib.contextmanager
def told(match: str, times: int = 1):
    """Some warnings have this in them, so many times; others may come, too."""
    # pytest.warns hands the others on as if this file had given them, where filters by module don't know them.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(one.message) for one in caught]
    assert len([text for text in texts if re.search(match, text)]) == times, texts


class Raising(keras.callbacks.Callback):
    """Ends fit by an error, at the end of its nth execution."""

    needs_every_batch = False

    def __init__(self, execution):
        super().__init__()
        self.left = execution

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise BrokenOffError

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


class TestWhenItSaves:
    def test_at_each_epochs_end(self, tmp_path):
        fit(small_model(), AsyncCheckpoint(tmp_path), epochs=2)
        assert steps(tmp_path) == [4, 8]
        state = state_of(tmp_path, "step-00000004")
        assert (state.epoch, state.batch, state.optimizer_step, state.steps) == (1, 0, 4, 4)
        assert list(state.metrics) == ["loss"]

    @pytest.mark.parametrize("steps_per_execution", [1, 2, 4])
    def test_after_so_many_steps_whatever_an_execution_has(self, tmp_path, steps_per_execution):
        model = small_model(steps_per_execution=steps_per_execution)
        fit(model, AsyncCheckpoint(tmp_path, save_freq=3, max_to_keep=None), epochs=2)
        expected = {1: [3, 6, 8], 2: [4, 6, 8], 4: [4, 8]}[steps_per_execution]
        assert steps(tmp_path) == expected

    def test_multiples_of_an_execution(self, tmp_path):
        x = np.zeros((32, 3), "float32")
        model = small_model(steps_per_execution=16)
        checkpoint = AsyncCheckpoint(tmp_path, save_freq=16, max_to_keep=None)
        model.fit(x, x[:, :1], batch_size=1, epochs=2, verbose=0, callbacks=[checkpoint])
        assert steps(tmp_path) == [16, 32, 48, 64]

    def test_after_so_much_time(self, tmp_path, monkeypatch):
        now = [0.0]
        monkeypatch.setattr("keras_turbo.checkpoint.options.time.monotonic", lambda: now[0])

        class Waiting(keras.callbacks.Callback):
            needs_every_batch = False

            def on_train_batch_end(self, batch, logs=None):
                now[0] += 25.0

        fit(small_model(), AsyncCheckpoint(tmp_path, save_freq="1min", max_to_keep=None), Waiting(), epochs=2)
        assert steps(tmp_path) == [3, 6, 8]

    def test_batches_and_optimizer_steps_are_kept_apart(self, tmp_path):
        inner = keras.optimizers.SGD(0.0)
        model = small_model(keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0, dynamic_growth_steps=100))
        x = np.ones((9, 3), "float32")
        y = np.zeros((9, 1), "float32")
        x[[2, 5]] = np.inf  # the gradients of two batches overflow
        checkpoint = AsyncCheckpoint(tmp_path, max_to_keep=None)
        history = model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[checkpoint])
        model.fit(x, y, batch_size=1, epochs=2, shuffle=False, verbose=0, callbacks=[checkpoint])
        assert names(tmp_path) == ["step-00000007", "step-00000014"]
        state = state_of(tmp_path, "step-00000007")
        assert (state.optimizer_step, state.steps, state.loss_scale) == (7, 9, 1.0)
        assert history.history["checkpoint_step"] == [0]
        assert model.history.history["checkpoint_step"][-1] == 0  # of this fit; the first is written after the logs
        assert state_of(tmp_path, "step-00000014").steps == 18

    def test_the_end_of_training_is_saved(self, tmp_path):
        fit(small_model(), AsyncCheckpoint(tmp_path, save_freq="2h"), epochs=2)
        assert steps(tmp_path) == [8]

    def test_the_last_one_is_never_skipped(self, tmp_path):
        options = {"save_freq": 1, "when_busy": "skip", "max_to_keep": None}
        x = np.zeros((8, 300), "float32")
        model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300)])
        model.compile("sgd", "mse", jit_compile=False)
        checkpoint = AsyncCheckpoint(tmp_path, max_write_mb_per_second=2, **options)
        model.fit(x, x, batch_size=1, verbose=0, callbacks=[checkpoint])
        # The disk is too slow for each.
        assert 8 in steps(tmp_path)
        assert len(steps(tmp_path)) < 8

    @pytest.mark.parametrize("save_freq", [True, 0, -1, 1.5, "10", "day", "0s", "", None, "5 parsecs"])
    def test_what_is_no_rhythm(self, tmp_path, save_freq):
        with pytest.raises((TypeError, ValueError), match="`save_freq` must be .* Received: "):
            AsyncCheckpoint(tmp_path, save_freq=save_freq)
        assert names(tmp_path) == []


class TrainingBeside(keras.callbacks.Callback):
    """Trains on one more batch of its own after each of fit's."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.train_on_batch(X[:4], Y[:4])


def test_batches_that_another_callback_trains_on_are_no_batches_of_the_epoch(tmp_path):
    model = small_model()
    fit(model, TrainingBeside(), AsyncCheckpoint(tmp_path), epochs=2)
    saved = [state_of(tmp_path, name) for name in names(tmp_path)]
    assert [(state.epoch, state.batch, state.steps, state.optimizer_step) for state in saved] == [
        (1, 0, 4, 8),
        (2, 0, 8, 16),
    ]


class TestWhatItSaves:
    def test_weights_of_one_moment(self, tmp_path):
        class Counting(keras.Model):
            """Two weights that grow by one each step."""

            def __init__(self):
                super().__init__()
                self.a = self.add_weight(shape=(2000, 100), initializer="zeros", name="a")
                self.b = self.add_weight(shape=(300,), initializer="zeros", name="b")

            def call(self, inputs):
                return inputs

            def train_step(self, data):
                self.a.assign_add(tf.ones_like(self.a))
                self.b.assign_add(tf.ones_like(self.b))
                self.optimizer.iterations.assign_add(1)
                return {"loss": self.b[0]}

        model = Counting()
        model.build((None, 3))
        model.compile("sgd", "mse")
        # The first is still being written, slowly, while later ones are taken.
        checkpoint = AsyncCheckpoint(tmp_path, save_freq=3, max_to_keep=None, max_write_mb_per_second=4)
        fit(model, checkpoint, epochs=3)
        assert steps(tmp_path) == [3, 6, 9, 12]
        for name, step in zip(names(tmp_path), steps(tmp_path), strict=True):
            weights, _, state = read_checkpoint(tmp_path / name)
            assert state.optimizer_step == step
            assert all((array == step).all() for path, array in weights.items() if not path.startswith("optimizer"))

    def test_stock_keras_loads_it(self, tmp_path):
        model = small_model()
        fit(model, AsyncCheckpoint(tmp_path))
        other = small_model()
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / "step-00000004" / "model.weights.h5")
        np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
        assert int(other.optimizer.iterations) == 4
        with h5py.File(tmp_path / "step-00000004" / "model.weights.h5") as file:
            assert file["layers/dense/vars"].attrs["name"] == model.layers[0].name
            assert file["optimizer/vars"].attrs["name"] == model.optimizer.name

    def test_progress_is_in_logs_history_and_tensorboard(self, tmp_path):
        board = keras.callbacks.TensorBoard(tmp_path / "board")
        checkpoint = AsyncCheckpoint(tmp_path / "checkpoints", save_freq=1)
        history = fit(small_model(), board, checkpoint, epochs=3).history
        names_of_figures = {"step", "batches", "stall_ms", "write_seconds", "size_mb"}
        assert {f"checkpoint_{name}" for name in names_of_figures} <= history.keys()
        assert history["checkpoint_step"][-1] > 4
        assert history["checkpoint_stall_ms"][-1] > 0
        assert history["checkpoint_size_mb"][-1] > 0
        (events,) = (tmp_path / "board" / "train").glob("events*.v2")
        tags = {v.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for v in event.summary.value}
        assert "epoch_checkpoint_stall_ms" in tags
        assert checkpoint.last_checkpoint == tmp_path / "checkpoints" / "step-00000012"

    def test_names_by_a_template(self, tmp_path):
        checkpoint = AsyncCheckpoint(tmp_path, name_template="e{epoch}-step{step}-{val_loss:.1f}")
        fit(small_model("sgd"), checkpoint, validation_data=(X * 0, Y * 0))
        assert names(tmp_path) == ["e1-step4-0.0"]

    def test_a_metric_of_a_name_that_an_epoch_does_not_have(self, tmp_path):
        checkpoint = AsyncCheckpoint(tmp_path, name_template="{epoch}-{val_loss:.1f}")
        fit(small_model("sgd"), checkpoint, epochs=2, validation_data=(X * 0, Y * 0), validation_freq=2)
        assert names(tmp_path) == ["2-0.0", "step-00000004"]

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_under_a_strategy_one_copy(self, tmp_path, replicas, two_cpu_strategy):
        strategy = two_cpu_strategy if replicas == 2 else tf.distribute.get_strategy()

        def run(directory, epochs, crash_at=None):
            keras.utils.set_random_seed(1)
            with strategy.scope():
                model = small_model()
            data = FastDataset(X, Y, batch_size=4, shuffle=True, seed=1)
            callbacks = [AsyncCheckpoint(directory, save_freq=1)]
            if crash_at:
                callbacks.append(crashing(crash_at))
            history = model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
            state = [*model.get_weights(), *(keras.ops.convert_to_numpy(v) for v in model.optimizer.variables)]
            return state, history.history["loss"]

        expected, expected_losses = run(tmp_path / "whole", 2)
        with pytest.raises(CrashError):
            run(tmp_path / "parts", 2, crash_at=6)
        assert steps(tmp_path / "parts")[-1] == 5
        state, losses = run(tmp_path / "parts", 2)
        for value, other in zip(state, expected, strict=True):
            np.testing.assert_array_equal(value, other)
        # The sum of all replicas goes on in the first one, which rounds in another way.
        np.testing.assert_allclose(losses, expected_losses, rtol=0 if replicas == 1 else 1e-6)


class CrashError(Exception):
    pass


def crashing(execution: int) -> keras.callbacks.Callback:
    seen = []

    def crash(batch, logs):
        seen.append(batch)
        if len(seen) == execution:
            raise CrashError

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=crash)
    callback.needs_every_batch = False
    return callback


class TestTheBest:
    def test_direction_by_name(self, tmp_path):
        checkpoint = AsyncCheckpoint(tmp_path, monitor="val_auc", max_to_keep=1)
        fit(small_model(), Logging(val_auc=[0.5, 0.9, 0.7]), checkpoint, epochs=3, validation_data=(X, Y))
        # The best and the newest.
        assert steps(tmp_path) == [8, 12]
        assert checkpoint.best == 0.9

    def test_only_the_best_and_never_a_worse_one_later(self, tmp_path):
        def run(values, epochs):
            options = {"monitor": "score", "mode": "max", "save_best_only": True, "max_to_keep": None, "resume": True}
            checkpoint = AsyncCheckpoint(tmp_path, **options)
            fit(small_model(), Logging(score=values), checkpoint, epochs=epochs)
            return checkpoint

        run([0.5, 0.9, 0.7], 3)
        assert steps(tmp_path) == [4, 8]
        # It goes on after the best; what comes is worse.
        assert run([0, 0, 0.8, 0.85], 4).best == 0.9
        assert steps(tmp_path) == [4, 8]
        assert run([0, 0, 0.8, 0.95], 4).best == 0.95
        assert steps(tmp_path) == [4, 8, 16]

    def test_a_best_one_that_is_skipped_is_not_the_best(self, tmp_path, monkeypatch):
        take = Snapshots.take
        takes = itertools.count()
        monkeypatch.setattr(Snapshots, "take", lambda snapshots: None if next(takes) == 1 else take(snapshots))
        checkpoint = AsyncCheckpoint(tmp_path, monitor="score", mode="max", save_best_only=True, when_busy="skip")
        fit(small_model(), Logging(score=[0.5, 0.9, 0.7, 0.6]), checkpoint, epochs=4)
        # The second was skipped, so that the third is the best that there is.
        assert steps(tmp_path) == [4, 12]
        assert checkpoint.best == 0.7

    def test_nan_is_never_the_best(self, tmp_path):
        checkpoint = AsyncCheckpoint(tmp_path, monitor="score", mode="min", save_best_only=True)
        fit(small_model(), Logging(score=[float("nan"), 2.0, float("nan")]), checkpoint, epochs=3)
        assert steps(tmp_path) == [8]

    def test_an_unknown_metric_is_refused_before_the_first_batch(self, tmp_path):
        model = small_model(metrics=["mae"])
        with pytest.raises(ValueError, match="no metric 'acuracy' to monitor. There are 'loss', 'mae'"):
            fit(model, AsyncCheckpoint(tmp_path, monitor="acuracy"))
        assert int(model.optimizer.iterations) == 0

    def test_a_metric_of_validation_without_validation(self, tmp_path):
        model = small_model()
        with pytest.raises(ValueError, match=r"'val_loss' to monitor. .* need fit\(validation_data=...\)"):
            fit(model, AsyncCheckpoint(tmp_path, monitor="val_loss"))
        assert int(model.optimizer.iterations) == 0
        fit(model, AsyncCheckpoint(tmp_path, monitor="val_loss"), validation_split=0.5)
        assert len(steps(tmp_path)) == 1

    def test_a_metric_that_a_callback_of_ones_own_might_have_added(self, tmp_path):
        with pytest.raises(ValueError, match="no metric 'scroe' to monitor. There are .*'score'"):
            fit(
                small_model(),
                Logging(score=[1.0, 1.0]),
                AsyncCheckpoint(tmp_path, monitor="scroe", mode="max"),
                epochs=2,
            )

    def test_a_direction_that_nobody_can_know(self, tmp_path):
        with pytest.raises(ValueError, match='Give mode="min" or mode="max"'):
            fit(small_model(), Logging(score=[1.0]), AsyncCheckpoint(tmp_path, monitor="score"))

    def test_a_name_that_no_save_will_know(self, tmp_path):
        model = small_model()
        with pytest.raises(ValueError, match="'val_acc', which no save will know. There are .*'loss'"):
            fit(model, AsyncCheckpoint(tmp_path, name_template="{step}-{val_acc}"))
        assert int(model.optimizer.iterations) == 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"save_best_only": True}, "needs `monitor`"),
            ({"monitor": ""}, "`monitor` must be"),
            ({"monitor": "loss", "mode": "down"}, "`mode` must be one of"),
            ({"on_error": "ignore"}, "`on_error` must be one of 'raise', 'warn'. Received"),
            ({"when_busy": None}, "`when_busy` must be one of"),
            ({"restore": 1}, '`resume` must be "auto", True or False. Received: resume=1'),
            ({"restore": True, "resume": False}, "`restore` is another word for `resume`"),
            ({"max_to_keep": 0}, "max_to_keep must be"),
            ({"keep_every_hours": -1}, "keep_every_hours must be"),
            ({"save_freq": 10, "name_template": "{epoch}"}, r"Put \{step\} in it"),
            ({"save_freq": 10, "name_template": "{step}-{val_loss}"}, "known at an epoch's end only"),
            ({"name_template": "../{step}"}, "plain name"),
            ({"max_write_mb_per_second": 0}, "positive number of megabytes"),
            ({"max_shard_mb": -1}, "positive number of megabytes"),
            ({"num_shards": 2, "index": 2}, "`index` must be .* below num_shards=2. Received: index=2"),
            ({"num_shards": 0, "index": 0}, "`num_shards` must be an integer from 1. Received: num_shards=0"),
            ({"num_shards": 2}, "belong together. Received: num_shards=2, index=None"),
            ({"num_shards": 2, "index": 0, "save_freq": "10s"}, "clocks don't agree"),
        ],
    )
    def test_options_that_can_not_be(self, tmp_path, options, message):
        with pytest.raises((TypeError, ValueError), match=message):
            AsyncCheckpoint(tmp_path / "new", **options)
        assert not (tmp_path / "new").exists()

    def test_an_unknown_scheme(self):
        with pytest.raises(ValueError, match="nowhere://"):
            AsyncCheckpoint("nowhere://bucket/run")


class TestAnotherFit:
    def test_a_second_fit_goes_on(self, tmp_path):
        model, checkpoint = small_model(), AsyncCheckpoint(tmp_path)
        fit(model, checkpoint, epochs=2)
        history = fit(model, checkpoint, epochs=4)
        assert history.epoch == [0, 1, 2, 3]
        assert len(history.history["loss"]) == 4
        assert int(model.optimizer.iterations) == 16
        assert model._initial_epoch is None

    def test_a_run_that_is_done_is_not_trained_again(self, tmp_path):
        model = small_model()
        fit(model, AsyncCheckpoint(tmp_path), epochs=2)
        again = small_model()
        with told("has ended at step 8: all 2 epochs are done"):
            fit(again, AsyncCheckpoint(tmp_path, resume=True), epochs=2)
        np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
        assert again._initial_epoch is None

    def test_a_run_that_was_stopped_stays_stopped(self, tmp_path):
        def run():
            stopping = keras.callbacks.EarlyStopping("score", mode="max", patience=1, restore_best_weights=True)
            model = small_model()
            fit(
                model,
                Logging(score=[0.5, 0.9, 0.1, 0.2, 0.3]),
                stopping,
                AsyncCheckpoint(tmp_path, resume=True),
                epochs=5,
            )
            return model, stopping

        model, stopping = run()
        assert stopping.stopped_epoch == 2
        with told("a callback had stopped it"):
            again, stopping_again = run()
        assert stopping_again.stopped_epoch == 2
        np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])

    def test_a_run_that_was_stopped_goes_on_with_more_epochs(self, tmp_path):
        def stop(epoch, logs):
            model.stop_training = epoch == 1

        model = small_model()
        fit(model, keras.callbacks.LambdaCallback(on_epoch_end=stop), AsyncCheckpoint(tmp_path), epochs=3)
        with told("Give more epochs to go on"):
            assert fit(small_model(), AsyncCheckpoint(tmp_path, resume=True), epochs=3).epoch == [0, 1]
        assert fit(small_model(), AsyncCheckpoint(tmp_path, resume=True), epochs=4).epoch == [0, 1, 2, 3]

    @pytest.mark.parametrize("kind", ["arrays", "FastDataset"])
    def test_larger_batches_than_before(self, tmp_path, kind):
        def run(batch_size, *callbacks):
            model = small_model()
            data = {"x": X, "y": Y, "batch_size": batch_size, "shuffle": False}
            if kind == "FastDataset":
                data = {"x": FastDataset(X, Y, batch_size=batch_size)}
            checkpoint = AsyncCheckpoint(tmp_path, save_freq=1)
            return model.fit(**data, epochs=3, verbose=0, callbacks=[checkpoint, *callbacks]), model

        with pytest.raises(BrokenOffError):
            run(2, Raising(execution=8 + 6))
        with told("An epoch has 4 batches here, and had 8 in the run that is resumed, after batch 5 of one: 0 are"):
            history, model = run(4)
        assert history.epoch == [0, 1, 2]
        # The epoch that was under way has no batch left, and the last one is whole.
        assert int(model.optimizer.iterations) == 13 + 4
        assert state_of(tmp_path, names(tmp_path)[-1]).steps == 13 + 4

    def test_without_restore_a_directory_of_ones_own(self, tmp_path):
        fit(small_model(), AsyncCheckpoint(tmp_path))
        before = names(tmp_path)
        with pytest.raises(ValueError, match="up to step 4, and this run begins at step 0 with resume=False"):
            fit(small_model(), AsyncCheckpoint(tmp_path, restore=False))
        assert names(tmp_path) == before

    def test_another_model_is_refused(self, tmp_path):
        fit(small_model(), AsyncCheckpoint(tmp_path))
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        before = model.get_weights()
        with pytest.raises(ValueError, match=r"layers/dense/vars/0: float32 \(3, 2\) in the model, float32 \(3, 1\)"):
            fit(model, AsyncCheckpoint(tmp_path, resume=True))
        np.testing.assert_array_equal(model.get_weights()[0], before[0])
        fit(model)  # nothing of the callback is left

    def test_what_resumes_as_well_is_refused(self, tmp_path):
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        with pytest.raises(ValueError, match="Leave BackupAndRestore out"):
            fit(small_model(), backup, AsyncCheckpoint(tmp_path / "a"))
        with pytest.raises(ValueError, match="several AsyncCheckpoints"):
            fit(small_model(), AsyncCheckpoint(tmp_path / "a"), AsyncCheckpoint(tmp_path / "b"))
        assert not (tmp_path / "a").exists()
        fit(small_model(), backup, AsyncCheckpoint(tmp_path / "a", restore=False))

    def test_a_damaged_checkpoint_is_passed_over_and_written_anew(self, tmp_path):
        fit(small_model(), AsyncCheckpoint(tmp_path), epochs=2)
        file = tmp_path / "step-00000008" / "model.weights.h5"
        file.write_bytes(file.read_bytes()[:-100])
        with told("passed over .*step-00000008.*step-00000004 is used instead"):
            history = fit(small_model(), AsyncCheckpoint(tmp_path, resume=True), epochs=2)
        assert history.epoch == [0, 1]
        assert [health.ok for health in keras_turbo.checkpoint.verify(tmp_path)] == [True, True]

    def test_a_model_that_nobody_can_build(self, tmp_path):
        class Loose(keras.Model):
            def train_step(self, data):
                return {"loss": 0.0}

        model = Loose()
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match="isn't built, so that no checkpoint can be restored into it"):
            build_for(model, None, ["vars/0"])

    def test_a_loss_that_is_nan_leaves_one_from_before(self, tmp_path):
        model, checkpoint = small_model("sgd"), AsyncCheckpoint(tmp_path, max_to_keep=1)
        fit(model, checkpoint, epochs=2)
        callbacks = [checkpoint, keras.callbacks.TerminateOnNaN()]
        model.fit(X * np.nan, Y, batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
        assert steps(tmp_path) == [8, 9]
        assert np.isnan(state_of(tmp_path, "step-00000009").metrics["loss"])

    @pytest.mark.parametrize("when", ["new", "fitted"])
    @pytest.mark.parametrize(
        "how", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"]
    )
    def test_copies(self, tmp_path, when, how):
        checkpoint = AsyncCheckpoint(tmp_path, monitor="loss", save_freq=2, resume=True)
        if when == "fitted":
            fit(small_model(), checkpoint)
        other = how(checkpoint)
        assert (other.best, other.last_checkpoint) == (checkpoint.best, checkpoint.last_checkpoint)
        fit(small_model(), other, epochs=2)
        assert steps(tmp_path)[-1] == 8

    @pytest.mark.parametrize(
        ("data", "times"),
        [
            (lambda: {"x": X, "y": Y, "batch_size": 4}, 1),
            (lambda: {"x": X, "y": Y, "batch_size": 4, "shuffle": False}, 0),
            (lambda: {"x": InBatches()}, 1),
            (lambda: {"x": rows().shuffle(16, seed=1).batch(4).prefetch(1)}, 1),
            (lambda: {"x": rows().shuffle(16, seed=1, reshuffle_each_iteration=False).batch(4)}, 0),
            (lambda: {"x": rows().batch(4)}, 0),
            (lambda: {"x": FastDataset(X, Y, batch_size=4, shuffle=True, seed=1)}, 0),
        ],
        ids=[
            "arrays",
            "arrays in order",
            "PyDataset",
            "tf.data",
            "tf.data in one order",
            "tf.data in order",
            "FastDataset",
        ],
    )
    def test_an_order_that_is_drawn_anew_is_told(self, tmp_path, data, times):
        def run(epochs):
            checkpoint = AsyncCheckpoint(tmp_path, resume=True)
            small_model().fit(**data(), epochs=epochs, verbose=0, callbacks=[checkpoint])

        run(1)
        with told("don't have the order that they would have had", times=times):
            run(2)
        with told("has ended|have the order"):
            run(2)

    def test_data_that_are_others_are_told(self, tmp_path):
        def run(**options):
            data = FastDataset(X, Y, batch_size=4, shuffle=True, **options)
            small_model().fit(data, epochs=2, verbose=0, callbacks=[AsyncCheckpoint(tmp_path, save_freq=3)])

        with pytest.raises(CrashError):
            data = FastDataset(X, Y, batch_size=4, shuffle=True, seed=1)
            callbacks = [AsyncCheckpoint(tmp_path, save_freq=3), crashing(4)]
            small_model().fit(data, verbose=0, callbacks=callbacks)
        with told("seed=2, was 1.* Give it a seed."):
            run(seed=2)


class TestFaults:
    def test_a_missing_folder_is_made(self, tmp_path):
        directory = tmp_path / "größe" / "new"
        fit(small_model(), AsyncCheckpoint(directory))
        assert steps(directory) == [4]

    def test_a_folder_that_can_not_be_written_fails_at_the_start(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        model = small_model()
        with pytest.raises(OSError, match="file"):
            fit(model, AsyncCheckpoint(tmp_path / "file" / "checkpoints"))
        assert int(model.optimizer.iterations) == 0
        fit(model)

    def test_a_working_directory_that_changes(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "other").mkdir()
        go = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: os.chdir(tmp_path / "other"))
        fit(small_model(), go, AsyncCheckpoint("checkpoints"), epochs=2)
        assert steps(tmp_path / "checkpoints") == [4, 8]
        assert names(tmp_path / "other") == []

    def test_what_others_have_in_the_directory_stays(self, tmp_path):
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "thesis.txt").write_text("mine")
        (tmp_path / "2").write_text("mine")
        (tmp_path / "3").symlink_to(tmp_path / "1")
        fit(small_model(), AsyncCheckpoint(tmp_path, name_template="{epoch}", max_to_keep=1), epochs=3)
        assert names(tmp_path) == ["1", "2", "3", "3-2"]
        assert (tmp_path / "1" / "thesis.txt").read_text() == "mine"
        assert (tmp_path / "2").read_text() == "mine"

    @pytest.mark.filterwarnings("ignore:Resuming in the middle of an epoch reads")
    @pytest.mark.filterwarnings("ignore:The run that is resumed had callbacks")
    @pytest.mark.parametrize("same_model", [True, False])
    def test_again_after_an_error_whose_traceback_is_kept(self, tmp_path, same_model):
        # As in a notebook, where the cell is run again.
        model = small_model()
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.raises(BrokenOffError) as kept:
            fit(model, AsyncCheckpoint(tmp_path, save_freq=1), Raising(execution=3))
        fit(model if same_model else small_model(), AsyncCheckpoint(tmp_path), epochs=2)
        assert steps(tmp_path)[-1] == 8
        assert signal.getsignal(signal.SIGTERM) == handler
        assert type(model.train_function).__name__ != "WrappedTrainFunction" or not same_model
        assert kept.value is not None

    def test_fit_without_it_after_an_error_whose_traceback_is_kept(self, tmp_path):
        model = small_model()
        with pytest.raises(BrokenOffError) as kept:
            fit(model, AsyncCheckpoint(tmp_path, save_freq=1), Raising(execution=3))
        fit(model)
        assert int(model.optimizer.iterations) == 3 + 4
        assert type(model.train_function).__name__ != "WrappedTrainFunction"
        assert kept.value is not None

    def test_two_runs_in_one_directory(self, tmp_path):
        first = AsyncCheckpoint(tmp_path)

        class Second(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                with pytest.raises(DirectoryInUseError, match="already used by another callback"):
                    fit(small_model(), AsyncCheckpoint(tmp_path))

        fit(small_model(), first, Second())
        fit(small_model(), AsyncCheckpoint(tmp_path, resume=True), epochs=2)

    @pytest.fixture
    def full_disk(self, monkeypatch):
        """From the second checkpoint on, the disk is full."""
        write = LocalFiles.write
        begun = []

        def write_if_there_is_room(self, path, content, limit=None):
            if path.endswith("model.weights.h5"):
                begun.append(path)
                if len(begun) > 1:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return write(self, path, content, limit)

        monkeypatch.setattr(LocalFiles, "write", write_if_there_is_room)

    @pytest.mark.usefixtures("full_disk")
    def test_a_full_disk_is_raised(self, tmp_path):
        with pytest.raises(CheckpointSaveError, match=r"step 8 could not be saved as .*step-00000008: .*No space left"):
            fit(small_model(), AsyncCheckpoint(tmp_path), epochs=3)
        assert steps(tmp_path) == [4]
        assert keras_turbo.checkpoint.latest(tmp_path) == tmp_path / "step-00000004"

    @pytest.mark.usefixtures("full_disk")
    def test_a_full_disk_is_warned_of(self, tmp_path):
        model = small_model()
        with told("could not be saved", times=2):
            fit(model, AsyncCheckpoint(tmp_path, on_error="warn"), epochs=3)
        assert int(model.optimizer.iterations) == 12
        assert steps(tmp_path) == [4]

    def test_an_old_one_that_can_not_be_deleted(self, tmp_path, monkeypatch):
        def refuse(directory, name):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

        monkeypatch.setattr("keras_turbo.checkpoint.retention.delete_checkpoint", refuse)
        with told("step-00000004 could not be deleted: .*Permission denied|^4 old checkpoints could not be", times=2):
            fit(small_model(), AsyncCheckpoint(tmp_path, max_to_keep=1), epochs=5)
        assert steps(tmp_path) == [4, 8, 12, 16, 20]

    def test_a_full_disk_at_the_start_is_told_with_the_path(self, tmp_path, monkeypatch):
        def full(path, *arguments, **options):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("filelock.FileLock.acquire", full)
        with pytest.raises(OSError, match="No space left on device") as raised:
            fit(small_model(), AsyncCheckpoint(tmp_path, on_error="warn"))
        assert str(raised.value.filename).startswith(str(tmp_path))

    def test_weights_that_may_not_be_read_are_named(self, tmp_path, monkeypatch):
        fit(small_model(), AsyncCheckpoint(tmp_path))
        opened = os.open

        def refuse(path, *arguments, **options):
            if str(path).endswith("model.weights.h5"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return opened(path, *arguments, **options)

        monkeypatch.setattr(os, "open", refuse)
        (health,) = keras_turbo.checkpoint.verify(tmp_path)
        assert len(health.problems) == 1
        assert health.problems[0].startswith("model.weights.h5 can't be read: ")
        assert health.unreadable.filename.endswith("model.weights.h5")
        assert not health.is_damaged

    def test_names_are_told_without_what_a_terminal_obeys(self, tmp_path, capsys):
        folder = "step-00000001\x1b[2J\nall is well"
        fit(small_model(), AsyncCheckpoint(tmp_path))
        (tmp_path / "step-00000004").rename(tmp_path / folder)
        (tmp_path / folder / "COMMITTED").write_text("damaged")
        with pytest.warns(UserWarning, match="passed over") as told:
            assert keras_turbo.checkpoint.latest(tmp_path) is None
        assert cli.main(["checkpoints", str(tmp_path)]) == 1
        for text in (str(told[0].message), capsys.readouterr().out):
            assert "\x1b" not in text
            assert r"step-00000001\x1b[2J\nall is well" in text

    def test_training_that_waited_is_told_of_once_and_from_one_per_cent_on(self, tmp_path, caplog, monkeypatch):
        write = LocalFiles.write

        def slow(self, path, pieces, limit=None):
            if path.endswith("model.weights.h5"):
                time.sleep(0.2)
            return write(self, path, pieces, limit)

        monkeypatch.setattr(LocalFiles, "write", slow)
        fit(small_model(), AsyncCheckpoint(tmp_path / "often", save_freq=1), epochs=2)
        told = [record.getMessage() for record in caplog.records if "Training waited" in record.getMessage()]
        assert len(told) == 1
        assert re.search(r"waited \d\.\d of \d+\.\d s.*Save less often", told[0])
        caplog.clear()
        fit(small_model(), AsyncCheckpoint(tmp_path / "seldom", save_freq=8), epochs=2)
        assert caplog.records == []

    @pytest.mark.parametrize("comes_back", [False, True])
    def test_a_folder_that_goes_under_way(self, tmp_path, comes_back):
        directory = tmp_path / "checkpoints"

        class Removing(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                shutil.rmtree(directory, ignore_errors=True)
                if comes_back:
                    directory.mkdir(exist_ok=True)

        with pytest.raises(CheckpointSaveError, match="The directory was removed while the run was going on"):
            fit(small_model(), AsyncCheckpoint(directory), Removing(), epochs=2)
        assert list(tmp_path.rglob("step-*")) == []

    @pytest.mark.filterwarnings("ignore:Resuming in the middle of an epoch reads")
    @pytest.mark.parametrize("where", ["in the step", "in another callback"])
    def test_an_error_leaves_nothing(self, tmp_path, where):
        model = small_model()
        handler = signal.getsignal(signal.SIGTERM)
        checkpoint = AsyncCheckpoint(tmp_path, save_freq=1)
        if where == "in the step":

            def batches():
                for start in range(0, 8, 4):
                    yield X[start : start + 4], Y[start : start + 4]
                raise CrashError

            data = tf.data.Dataset.from_generator(
                batches, output_signature=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
            )
            with pytest.raises(tf.errors.OpError):
                model.fit(data, verbose=0, callbacks=[checkpoint])
            assert steps(tmp_path) == [1, 2]
        else:
            with pytest.raises(CrashError):
                fit(model, checkpoint, crashing(3))
        assert signal.getsignal(signal.SIGTERM) == handler
        assert not [thread for thread in threading.enumerate() if "keras_turbo" in thread.name]
        fit(model, checkpoint, epochs=2)
        assert steps(tmp_path)[-1] == 8
        assert type(model.train_function).__name__ != "WrappedTrainFunction"


class TestPreemption:
    @pytest.mark.parametrize("how", ["SIGTERM", "SIGUSR1", "preempt"])
    def test_it_saves_at_the_steps_end_and_exits(self, tmp_path, how):
        checkpoint = AsyncCheckpoint(tmp_path)
        called = []
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

        def ask(batch, logs):
            if batch == 1:
                checkpoint.preempt() if how == "preempt" else signal.raise_signal(getattr(signal, how))

        asking = keras.callbacks.LambdaCallback(on_train_batch_begin=ask)
        signal.signal(signal.SIGTERM, lambda number, frame: called.append(steps(tmp_path)))
        try:
            mine = signal.getsignal(signal.SIGTERM)
            with pytest.raises(SystemExit) as exit_of:
                fit(small_model(), checkpoint, asking)
            assert signal.getsignal(signal.SIGTERM) is mine
            assert signal.getsignal(signal.SIGUSR1) == before[signal.SIGUSR1]
        finally:
            signal.signal(signal.SIGTERM, before[signal.SIGTERM])
        assert exit_of.value.code == 143
        assert steps(tmp_path) == [2]
        assert called == ([[2]] if how == "SIGTERM" else [])
        state = state_of(tmp_path, "step-00000002")
        assert (state.epoch, state.batch) == (0, 2)

    @pytest.mark.parametrize(("save_freq", "expected"), [("epoch", [4]), (3, [3])])
    def test_several_workers_leave_at_the_next_save(self, tmp_path, save_freq, expected):
        codes = {}

        def work(index, model):
            checkpoint = AsyncCheckpoint(tmp_path, save_freq=save_freq, num_shards=2, index=index)
            # The signal reaches them at different steps.
            ask = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: checkpoint.preempt() if batch == index else None
            )
            try:
                fit(model, ask, checkpoint, epochs=3)
            except SystemExit as exit_of:
                codes[index] = exit_of.code

        threads = [threading.Thread(target=work, args=(index, small_model())) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert codes == {0: 143, 1: 143}
        assert steps(tmp_path) == expected
        (health,) = keras_turbo.checkpoint.verify(tmp_path)
        assert health.ok

    def test_during_validation(self, tmp_path):
        def run(directory, *callbacks):
            keras.utils.set_random_seed(0)
            model = small_model(metrics=["mae"])
            data = FastDataset(X, Y, batch_size=4, shuffle=True, seed=1)
            validation = FastDataset(X, Y, batch_size=2, shuffle=True, seed=2)
            callbacks = [AsyncCheckpoint(directory), *callbacks]
            history = model.fit(data, epochs=2, verbose=0, validation_data=validation, callbacks=callbacks).history
            return {name: values for name, values in history.items() if not name.startswith("checkpoint")}

        def ask(batch, logs):
            if batch == 3:
                signal.raise_signal(signal.SIGTERM)

        expected = run(tmp_path / "whole")
        with pytest.raises(SystemExit):
            run(tmp_path / "parts", keras.callbacks.LambdaCallback(on_test_batch_begin=ask))
        assert state_of(tmp_path / "parts", "step-00000004").batch == 4
        assert run(tmp_path / "parts") == expected

    def test_names_that_need_a_validation_are_no_reason_to_lose_it(self, tmp_path):
        checkpoint = AsyncCheckpoint(tmp_path, name_template="{epoch}-{val_loss:.3f}")
        leave = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: checkpoint.preempt())
        with pytest.raises(SystemExit):
            fit(small_model(), leave, checkpoint, validation_data=(X, Y))
        assert names(tmp_path) == ["step-00000001"]

    def test_a_signal_after_an_error_whose_traceback_is_kept(self, tmp_path):
        called = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
        try:
            with pytest.raises(BrokenOffError) as kept:
                fit(small_model(), AsyncCheckpoint(tmp_path), Raising(execution=2))
            assert not called
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert called == [signal.SIGTERM]
        assert kept.value is not None

    def test_no_handlers_without_it_or_in_another_thread(self, tmp_path):
        handlers = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda *_: handlers.append(signal.getsignal(signal.SIGTERM))
        )
        fit(small_model(), AsyncCheckpoint(tmp_path / "a", save_on_preemption=False), note)
        thread = threading.Thread(target=lambda: fit(small_model(), AsyncCheckpoint(tmp_path / "b"), note))
        thread.start()
        thread.join()
        assert handlers == [signal.getsignal(signal.SIGTERM)] * 2
        assert steps(tmp_path / "b") == [4]

    def test_without_a_fit(self, tmp_path):
        with pytest.raises(RuntimeError, match="none is running"):
            AsyncCheckpoint(tmp_path).preempt()


def test_it_is_exported_and_the_state_is_json(tmp_path):
    assert keras_turbo.AsyncCheckpoint is AsyncCheckpoint
    fit(small_model(), AsyncCheckpoint(tmp_path))
    state = json.loads((tmp_path / "step-00000004" / "training_state.json").read_text())
    assert state["epoch"] == 1
