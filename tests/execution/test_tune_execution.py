"""Tuning inside `fit`: faster steps, and the very training of a `fit` without it."""

import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_turbo
from keras_turbo import FastDataset, TuneExecution
from keras_turbo.execution import fit_trial
from tests.execution.models import (
    CLASSES,
    FEATURES,
    accumulating,
    batches,
    compiled,
    dropped,
    examples,
    normalized,
    plain,
)

pytestmark = pytest.mark.compatibility


@pytest.fixture(autouse=True)
def loops_pay(monkeypatch):
    """A loop is tried however few steps are left, and taken whatever it takes: what is chosen is no matter of luck."""
    monkeypatch.setattr(fit_trial, "_TRACE_SECONDS", 0.0)
    monkeypatch.setattr(fit_trial.FitTrial, "_may_pay", lambda *_: True)
    monkeypatch.setattr(fit_trial, "_LEAST_GAIN", -1e9)
    monkeypatch.setattr(fit_trial, "_HOPELESS", 1e9)


def few_steps(monkeypatch, steps):
    """Executions of so many steps."""
    monkeypatch.setattr(fit_trial, "block_lengths", lambda *_: [steps])


def trained(make, data, *, callbacks=(), **options):
    keras.utils.set_random_seed(3)
    model = make()
    history = model.fit(data(), verbose=0, callbacks=list(callbacks), **options)
    return model, history.history


def require_same(one, other):
    for mine, its in zip(one[0].get_weights(), other[0].get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    for mine, its in zip(one[0].optimizer.variables, other[0].optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert one[1] == other[1]


@pytest.mark.parametrize("make", [plain, normalized, dropped, accumulating])
@pytest.mark.parametrize("steps", [5, 7])  # of 30 in an epoch: a divisor, and none
def test_training_is_the_same_to_the_bit(make, steps, monkeypatch):
    few_steps(monkeypatch, steps)
    tuned = TuneExecution()
    options = {"epochs": 4, "validation_data": examples(24)}
    with_it = trained(make, lambda: batches(120), callbacks=[tuned], **options)
    require_same(with_it, trained(make, lambda: batches(120), **options))
    assert tuned.setting.steps_per_execution == steps


def unknown_length():
    return batches(120).filter(lambda x, y: True)


@pytest.mark.parametrize(
    "data",
    [
        unknown_length,
        lambda: batches(120).repeat(),
        lambda: FastDataset(*examples(120), batch_size=4, shuffle=True, seed=1),
        lambda: batches(118),
    ],
    ids=["unknown length", "endless", "FastDataset", "short last batch"],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_every_kind_of_data(data, monkeypatch):
    few_steps(monkeypatch, 6)
    tuned = TuneExecution()
    options = {
        "epochs": 4,
        "steps_per_epoch": 30 if int(data().cardinality()) == tf.data.INFINITE_CARDINALITY else None,
    }
    with_it = trained(plain, data, callbacks=[tuned], **options)
    require_same(with_it, trained(plain, data, **options))
    assert tuned.setting.steps_per_execution == 6


def test_arrays_and_class_weights(monkeypatch):
    few_steps(monkeypatch, 5)
    x, y = examples(120)
    options = {"batch_size": 4, "epochs": 3, "class_weight": {0: 1.0, 1: 2.0, 2: 3.0}}

    def run(*callbacks):
        keras.utils.set_random_seed(3)
        model = plain()
        return model, model.fit(x, y, verbose=0, callbacks=list(callbacks), **options).history

    require_same(run(TuneExecution()), run())


def test_stacks_in_one_xla_program(monkeypatch):
    few_steps(monkeypatch, 5)
    monkeypatch.setattr(fit_trial, "_SHORT_SECONDS", 1e9)
    monkeypatch.setattr(fit_trial, "XLA_TRACINGS", 0.0)
    tuned = TuneExecution(allow=("multi_step", "xla_loop"))

    def data():
        return FastDataset(*examples(120), batch_size=4, shuffle=True, seed=1)

    with_it, without = trained(plain, data, callbacks=[tuned], epochs=5), trained(plain, data, epochs=5)
    assert tuned.setting.loop == "xla"
    assert int(with_it[0].optimizer.iterations) == 150
    for mine, its in zip(with_it[0].get_weights(), without[0].get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-5)
    assert with_it[1]["loss"] == pytest.approx(without[1]["loss"], rel=1e-4)


def test_an_xla_program_that_is_slower_runs_its_stacks_step_by_step(monkeypatch):
    few_steps(monkeypatch, 5)
    monkeypatch.setattr(fit_trial, "_SHORT_SECONDS", 1e9)
    monkeypatch.setattr(fit_trial, "XLA_TRACINGS", 0.0)
    tuned = TuneExecution(allow=("multi_step", "xla_loop"))

    class NothingIsFaster(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            monkeypatch.setattr(fit_trial, "_LEAST_GAIN", -1e9 if epoch == 0 else 1.0)

    with_it = trained(plain, lambda: batches(120), callbacks=[NothingIsFaster(), tuned], epochs=4)
    assert tuned.setting.loop == "graph"
    assert int(with_it[0].optimizer.iterations) == 120
    without = trained(plain, lambda: batches(120), epochs=4)
    assert with_it[1]["loss"] == pytest.approx(without[1]["loss"], rel=1e-4)


@pytest.mark.parametrize("allow", [("xla_loop",), ("multi_step", "xla_loop")])
def test_a_step_that_xla_can_t_compile_trains_on(allow, monkeypatch):
    few_steps(monkeypatch, 5)
    monkeypatch.setattr(fit_trial, "_SHORT_SECONDS", 1e9)
    monkeypatch.setattr(fit_trial, "XLA_TRACINGS", 0.0)

    class NotForXla(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), x.shape)

    def make():
        return compiled(keras.Sequential([keras.Input([FEATURES]), NotForXla(), keras.layers.Dense(CLASSES)]))

    tuned = TuneExecution(allow=allow)
    with_it = trained(make, lambda: batches(120), callbacks=[tuned], epochs=4)
    assert tuned.setting.loop == ("graph" if "multi_step" in allow else "keras")
    assert int(with_it[0].optimizer.iterations) == 120
    without = trained(make, lambda: batches(120), epochs=4)
    assert with_it[1]["loss"] == pytest.approx(without[1]["loss"], rel=1e-4)


class OneCycle(keras.callbacks.Callback):
    """As people write it: another learning rate for each batch."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.01 * (1 + math.sin(self.calls / 10))
        self.calls += 1


def test_a_callback_that_sets_the_learning_rate_sees_every_batch(monkeypatch):
    few_steps(monkeypatch, 5)
    one, other, tuned = OneCycle(), OneCycle(), TuneExecution()
    require_same(
        trained(plain, lambda: batches(120), callbacks=[one, tuned], epochs=20),
        trained(plain, lambda: batches(120), callbacks=[other], epochs=20),
    )
    assert one.calls == other.calls == 600
    assert tuned.setting.steps_per_execution == 1
    assert "one step at a time, for OneCycle to be called for each batch, which costs about" in tuned.summary


def test_it_tells_what_it_did_in_one_line(monkeypatch, capsys):
    few_steps(monkeypatch, 5)
    model, tuned = plain(), TuneExecution()
    model.fit(batches(120), epochs=3, verbose=2, callbacks=[tuned])
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("TuneExecution")]
    assert told == [tuned.summary]
    assert tuned.summary.startswith("TuneExecution: 5 steps in a graph loop, ")
    model.fit(batches(120), verbose=0, callbacks=[tuned])
    assert "TuneExecution" not in capsys.readouterr().out


def test_a_second_fit_goes_on_with_what_the_first_chose(monkeypatch):
    few_steps(monkeypatch, 5)
    tuned = TuneExecution()
    seen = Executions()
    keras.utils.set_random_seed(3)
    model = plain()
    for _ in range(2):
        model.fit(batches(120), epochs=2, verbose=0, callbacks=[tuned, seen])
    assert seen.begun[-12:] == [0, 5, 10, 15, 20, 25] * 2
    keras.utils.set_random_seed(3)
    stock = plain()
    for _ in range(2):
        stock.fit(batches(120), epochs=2, verbose=0)
    require_same((model, {}), (stock, {}))
    assert model.steps_per_execution == 1


class Executions(keras.callbacks.Callback):
    needs_every_batch = False

    def on_train_begin(self, logs=None):
        self.begun = []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(batch)


def test_from_the_next_epoch_on_callbacks_are_called_once_for_an_execution(monkeypatch):
    few_steps(monkeypatch, 10)
    seen = Executions()
    trained(plain, lambda: batches(240), callbacks=[seen, TuneExecution()], epochs=2)
    assert seen.begun == [*range(60), 0, 10, 20, 30, 40, 50]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras' own saving
def test_callbacks_that_save_by_batches_save_what_they_would_have(monkeypatch, tmp_path):
    few_steps(monkeypatch, 5)

    def saved(name, *callbacks):
        path = str(tmp_path / (name + "-{epoch}-{batch}.weights.h5"))
        saves = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=7)
        trained(plain, lambda: batches(120), callbacks=[saves, *callbacks], epochs=3)
        made = sorted(path.name.removeprefix(name) for path in tmp_path.glob(f"{name}*"))
        model, weights = plain(), []
        model.optimizer.build(model.trainable_variables)
        for each in made:
            model.load_weights(tmp_path / (name + each))
            weights += model.get_weights()
        return made, weights

    (names, weights), (other_names, other_weights) = saved("tuned", TuneExecution()), saved("stock")
    assert names == other_names
    assert len(names) == 12
    for mine, its in zip(weights, other_weights, strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.filterwarnings("ignore:Epoch . of:UserWarning")  # what the figures of such a small model tell
def test_with_checkpoints_and_figures(monkeypatch, tmp_path):
    few_steps(monkeypatch, 5)

    def run(directory, *callbacks):
        saves = keras_turbo.AsyncCheckpoint(directory, save_freq=10, max_to_keep=None)
        return trained(
            plain, lambda: batches(120), callbacks=[saves, keras_turbo.GpuUtilization(), *callbacks], epochs=3
        )

    with_it, without = run(tmp_path / "tuned", TuneExecution()), run(tmp_path / "stock")
    for mine, its in zip(with_it[0].get_weights(), without[0].get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert with_it[1]["loss"] == without[1]["loss"]
    assert [path.name for path in sorted((tmp_path / "tuned").glob("*-0*"))] == [
        path.name for path in sorted((tmp_path / "stock").glob("*-0*"))
    ]


def test_an_interrupted_run_goes_on_as_the_one_never_interrupted(monkeypatch, tmp_path):
    few_steps(monkeypatch, 5)

    class Interrupt(keras.callbacks.Callback):
        needs_every_batch = False

        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) >= 75:
                raise KeyboardInterrupt

    def data():
        return FastDataset(*examples(120), batch_size=4, shuffle=True, seed=1)

    def run(*callbacks):
        saves = keras_turbo.AsyncCheckpoint(tmp_path, save_freq=10)
        return trained(dropped, data, callbacks=[saves, TuneExecution(), *callbacks], epochs=4)

    with pytest.raises(KeyboardInterrupt):
        run(Interrupt())
    (resumed, _), (stock, _) = run(), trained(dropped, data, epochs=4)
    require_same((resumed, {}), (stock, {}))


class ChecksInItsStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.control_dependencies([tf.debugging.assert_all_finite(x, "not finite")]):
            return super().train_step((tf.identity(x), y))


def test_a_step_with_assertions(monkeypatch):
    few_steps(monkeypatch, 5)
    tuned = TuneExecution()

    def make():
        return compiled(ChecksInItsStep())

    require_same(
        trained(make, lambda: batches(120), callbacks=[tuned], epochs=3), trained(make, lambda: batches(120), epochs=3)
    )


def test_a_step_that_can_only_be_traced_by_keras_is_left_alone(monkeypatch):
    few_steps(monkeypatch, 5)

    class Refuses(keras.callbacks.Callback):
        needs_every_batch = False

        def on_train_batch_end(self, batch, logs=None):
            self.model.refuses = True

    class Once(keras.Sequential):
        refuses = False

        def train_step(self, data):
            if self.refuses:
                raise RuntimeError("only once")
            return super().train_step(data)

    tuned, model = TuneExecution(), compiled(Once([keras.Input([FEATURES]), keras.layers.Dense(CLASSES)]))
    model.fit(batches(120), epochs=2, verbose=0, callbacks=[tuned, Refuses()])
    assert int(model.optimizer.iterations) == 60
    assert "its step can't be traced in a loop (RuntimeError: only once)" in tuned.summary


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"run_eagerly": True}, "it runs eagerly"),
        ({"steps_per_execution": 4}, "it runs 4 steps an execution already"),
    ],
)
def test_what_is_left_as_it_is(options, told):
    model, tuned = compiled(plain(), **options), TuneExecution()
    model.fit(batches(32), verbose=0, callbacks=[tuned])
    assert told in tuned.summary


def test_errors_in_fit_leave_a_model_that_trains(monkeypatch):
    few_steps(monkeypatch, 5)

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("on purpose")

    model, tuned = plain(), TuneExecution()
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(batches(120), verbose=0, callbacks=[tuned, Fails()])
    assert not isinstance(model.train_function, fit_trial.FitTrial)
    model.fit(batches(120), verbose=0)
    assert int(model.optimizer.iterations) == 60


@pytest.mark.parametrize("allow", ["multi_step", ("jit",)])
def test_bad_arguments(allow):
    with pytest.raises(ValueError, match="`allow` must be a tuple with some of"):
        TuneExecution(allow=allow)


@pytest.mark.slow
def test_a_short_fit_is_left_alone_and_prints_nothing_on_stderr():
    source = """
import keras, numpy as np, sys
model = keras.Sequential([keras.Input([8]), keras.layers.Dense(3)])
model.compile("sgd", "mse")
callbacks = []
if sys.argv[1] == "tuned":
    import keras_turbo
    callbacks = [keras_turbo.TuneExecution()]
model.fit(np.zeros([320, 8], "float32"), np.zeros([320, 3], "float32"), verbose=0, callbacks=callbacks)
print(callbacks[0].summary if callbacks else "")
"""
    tuned, stock = (
        subprocess.run([sys.executable, "-c", source, name], capture_output=True, text=True, check=True, timeout=200)
        for name in ("tuned", "stock")
    )
    assert "TuneExecution: left as it is: the fit was too short to tell" in tuned.stdout
    assert len(tuned.stderr.splitlines()) <= len(stock.stderr.splitlines())
