"""Models with any number of optimizers, and such that nobody has called: saved, measured, tuned, distributed."""

from __future__ import annotations

import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import AsyncCheckpoint, GpuUtilization, audit, distribute, tune
from keras_turbo.checkpoint import restore, verify
from tests.checkpoint.training_runs import X, Y, assert_same_outcome, compiled_gan, outcome, shuffled, vae

pytestmark = pytest.mark.compatibility


def names(directory) -> list[str]:
    return sorted(path.name for path in Path(directory).glob("step-*"))


@pytest.mark.parametrize("holds", ["attributes", "list", "dict"])
def test_a_gan_is_saved_by_its_batches(tmp_path, holds):
    model = compiled_gan(holds)
    model.fit(shuffled(), epochs=2, verbose=0, callbacks=[AsyncCheckpoint(tmp_path, save_freq=5, max_to_keep=None)])
    # Of two optimizers neither is the one that counts.
    assert names(tmp_path) == [f"step-{step:08d}" for step in (5, 10, 15, 20, 22)]
    assert [health.state.steps for health in verify(tmp_path)] == [5, 10, 15, 20, 22]
    last = outcome(type("Run", (), {"model": model}), model.history)
    again = compiled_gan(holds)
    with pytest.raises(ValueError, match=r"Not built yet: .*optimizer.*Call `build\(variables\)` of each first"):
        restore(again, tmp_path)
    again.d_optimizer.build(again.discriminator.trainable_weights)
    again._held("g_optimizer").build(again._held("generator").trainable_weights)
    restore(again, tmp_path)
    assert_same_outcome(outcome(type("Run", (), {"model": again}), model.history), last)


def test_a_gan_whose_models_are_not_built_is_told_what_to_do(tmp_path):
    def unbuilt():
        model = compiled_gan()
        model.discriminator = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        return model

    class Reads(keras.utils.PyDataset):
        """Of which the shapes are known when a batch is read."""

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return X[4 * index : 4 * index + 4], Y[4 * index : 4 * index + 4]

    unbuilt().fit(Reads(), verbose=0, shuffle=False, callbacks=[AsyncCheckpoint(tmp_path)])
    # Keras itself looks at a first batch, so that the shapes are known here, too.
    again = unbuilt()
    again.fit(Reads(), epochs=2, verbose=0, shuffle=False, callbacks=[AsyncCheckpoint(tmp_path, resume=True)])
    assert names(tmp_path)[-1] == "step-00000006"


def test_a_step_that_can_not_be_traced_says_what_helps(tmp_path):
    class Stubborn(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(1)

        def train_step(self, data):
            x, y = data
            if not tf.executing_eagerly():
                raise TypeError("only eagerly")
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.inner(x) - y) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return {"loss": loss}

    def run(prepare=lambda model: None):
        model = Stubborn()
        model.compile("adam", run_eagerly=True)
        prepare(model)
        checkpoint = AsyncCheckpoint(tmp_path, resume=True)
        model.fit(X, Y, batch_size=22, epochs=2, verbose=0, shuffle=False, callbacks=[checkpoint])
        return model

    first = run()
    with pytest.raises(ValueError, match=r"only eagerly.*call each model in it once on a batch.*`build\(variables\)`"):
        run()

    def as_told(model):
        model.inner(X[:1])
        model.optimizer.build(model.trainable_weights)

    with pytest.warns(UserWarning, match="has ended"):
        again = run(as_told)
    np.testing.assert_array_equal(again.inner.kernel, first.inner.kernel)


def test_what_can_not_be_saved_is_refused_before_the_first_batch(tmp_path):
    model = compiled_gan()
    model.words = tf.Variable(["a", "b"])
    begun = []
    looks = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: begun.append(batch))
    with pytest.raises(ValueError, match=r"can't be saved: it is of string \(2,\).*must be of numbers"):
        model.fit(shuffled(), verbose=0, callbacks=[looks, AsyncCheckpoint(tmp_path)])
    assert begun == []


def test_a_gan_is_measured(tmp_path):
    callback = GpuUtilization(interval=0.02, warn_below=0, log_dir=tmp_path / "logs")
    history = compiled_gan().fit(shuffled(), epochs=2, verbose=0, callbacks=[callback]).history
    assert history.keys() > {"d_loss", "g_loss", "step_ms_median", "input_wait_percent"}
    assert callback.figures.dispatch_ms is not None
    files = list((tmp_path / "logs").iterdir())
    events = [tf.compat.v1.Event.FromString(one.numpy()) for one in tf.data.TFRecordDataset(list(map(str, files)))]
    assert {event.step for event in events if event.summary.value} == {11, 22}


def test_a_gan_that_was_never_called_is_tuned_and_left_as_it_was():
    model = compiled_gan()
    before = [weight.numpy() for weight in model.weights]
    report = tune(model, shuffled(), budget_seconds=2)
    assert len(report.candidates) > 1
    for now, then in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(now.numpy(), then)
    assert int(model.d_optimizer.iterations.numpy()) == 0
    model.fit(shuffled(), epochs=1, verbose=0)
    assert int(model.d_optimizer.iterations.numpy()) == 11


def test_a_vae_that_was_never_called_is_tuned():
    model = vae().model
    assert len(tune(model, shuffled(), budget_seconds=2).candidates) > 1
    assert int(model.optimizer.iterations.numpy()) == 0
    model.fit(shuffled(), epochs=1, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 11


@pytest.mark.slow
@pytest.mark.parametrize("build", [compiled_gan, lambda: vae().model], ids=["gan", "vae"])
def test_a_model_that_was_never_called_is_audited(build):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = audit(build(), shuffled(), steps=4, budget_seconds=20)
    assert report.parts.step_ms > 0


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_a_gan_is_trained_on_two_devices(two_cpu_strategy, steps_per_execution):
    keras.utils.set_random_seed(1)
    with distribute(two_cpu_strategy):
        model = compiled_gan(steps_per_execution=steps_per_execution)
    before = [weight.numpy() for weight in model.weights]
    history = model.fit(shuffled(), epochs=2, verbose=0).history
    assert np.all(np.isfinite(history["d_loss"] + history["g_loss"]))
    assert int(model.d_optimizer.iterations.numpy()) == 22
    assert int(model.g_optimizer.iterations.numpy()) == 22
    changed = [not np.array_equal(now.numpy(), then) for now, then in zip(model.weights, before, strict=True)]
    assert all(changed)


def test_a_gan_is_resumed_on_two_devices(two_cpu_strategy, tmp_path):
    def run(epochs, directory):
        keras.utils.set_random_seed(1)
        with distribute(two_cpu_strategy):
            model = compiled_gan()
        checkpoint = AsyncCheckpoint(directory, save_freq=4, resume=True)
        model.fit(shuffled(), epochs=epochs, verbose=0, callbacks=[checkpoint])
        return [weight.numpy() for weight in model.weights]

    run(1, tmp_path / "twice")
    for one, other in zip(run(2, tmp_path / "twice"), run(2, tmp_path / "once"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_with_averaged_weights_and_all_steps_skipped_the_weights_stay():
    from keras_turbo.precision.loss_scaling import SafeLossScaleOptimizer

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    optimizer = SafeLossScaleOptimizer(keras.optimizers.SGD(0.1, use_ema=True), initial_scale=2.0)
    model.compile(optimizer, "mse", jit_compile=False)
    before = model.get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(np.full_like(X, np.inf), Y, epochs=2, verbose=0)
    assert optimizer.skipped_steps > 0
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
