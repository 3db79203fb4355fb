"""What the audit leaves as it was, and what it refuses."""

from __future__ import annotations

import collections
import random
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_turbo
import keras_turbo.auditing.report as report_module
from keras_turbo import FastDataset, audit, debug_mode
from keras_turbo.auditing.audit import audit as its_function
from keras_turbo.auditing.measuring import REMEDIES
from keras_turbo.auditing.remedies.uint8 import _scale_of
from keras_turbo.execution.installation import apply_setting, setting_of
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.fit.random_states import kept_random_states
from tests.auditing.cases import CLASSES, FEATURES, SlowCallback, compiled, examples, model
from tests.auditing.turns import turns_of

pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")


@pytest.fixture(autouse=True)
def turns_of_a_moment():
    # What is measured does not matter here.
    with turns_of(0.02):
        yield


def test_the_function_hides_no_package():
    assert keras_turbo.audit is audit is its_function
    assert report_module.AuditReport is sys.modules["keras_turbo.auditing.report"].AuditReport


def random_model() -> keras.Model:
    """Not built, with all that draws at random and keeps statistics."""
    layers = [keras.layers.Dense(6), keras.layers.Dropout(0.4), keras.layers.BatchNormalization()]
    return compiled(keras.Sequential([*layers, keras.layers.Dense(CLASSES)]))


def test_global_random_states_go_on_where_they_were():
    def drawn():
        numbers = [random.random(), *np.random.rand(2)]  # noqa: NPY002 (the global state is the legacy one)
        return [*numbers, *tf.random.uniform([2]).numpy(), *np.asarray(keras.random.uniform([2]))]

    keras.random.uniform([1])  # makes the global generator
    with kept_random_states():
        first = drawn()
        assert drawn() != first
    assert drawn() == first


def data_of(kind: str):
    x, y = examples(120)
    if kind == "FastDataset":
        return {"x": FastDataset(x, y, batch_size=8, shuffle=True, seed=2)}
    if kind == "tf.data":
        # Its seed is drawn from TensorFlow's global one.
        return {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(120).batch(8)}
    return {"x": x, "y": y, "batch_size": 8}


def state_of(trained: keras.Model) -> list:
    variables = [*trained.variables, *trained.optimizer.variables, *trained.metrics_variables]
    numbers = [random.random(), np.random.rand()]  # noqa: NPY002 (the global state is the legacy one)
    drawn = [*numbers, float(tf.random.uniform([]))]
    return [*(np.asarray(variable) for variable in variables), *drawn]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "is_fitted", "remedies"),
    [
        ("FastDataset", True, tuple(REMEDIES)),
        ("tf.data", False, ("cache", "workers", "multi-step")),
        ("arrays", False, ("FastDataset", "larger batch")),
    ],
)
def test_training_goes_on_as_without_it(kind, is_fitted, remedies):
    states, losses = [], []
    for is_audited in (False, True):
        keras.utils.set_random_seed(4)
        trained, data = random_model(), data_of(kind)
        if is_fitted:
            trained.fit(**data, verbose=0)
        if is_audited:
            before = {name: value for name, value in vars(trained).items() if name in ("history", "train_function")}
            given = (data["x"], data["y"]) if kind == "arrays" else data["x"]
            # Steps may gain or not, whatever is slow here: what counts is what is left behind.
            report = audit(
                trained,
                given,
                batch_size=8,
                steps=5,
                remedies=remedies,
                callbacks=[SlowCallback(0.1)],
            )
            assert {each.name for each in report.remedies} >= set(remedies)
            for name, value in before.items():
                assert vars(trained)[name] is value
        losses.append(trained.fit(**data, epochs=2, verbose=0).history["loss"])
        states.append(state_of(trained))
    assert losses[0] == losses[1]
    for without, with_it in zip(*states, strict=True):
        np.testing.assert_array_equal(with_it, without)


@pytest.mark.slow
def test_the_setting_of_tune_stays():
    tuned, data = model(), FastDataset(*examples(400), batch_size=4)
    setting = ExecutionSetting("graph", 10)
    apply_setting(tuned, setting)
    fit = tuned.fit
    report = audit(tuned, data, steps=5, remedies=("multi-step",))
    assert setting_of(tuned) == setting
    assert tuned.fit.__wrapped__ is fit.__wrapped__
    assert "tune() has set the model" in report.remedies[0].reason
    assert setting.name in report.facts["steps"]
    tuned.fit(data, verbose=0)
    assert int(tuned.optimizer.iterations) == 100


def test_an_error_in_the_middle_leaves_all_as_it_was():
    class Failing(SlowCallback):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch)
            if len(self.calls) == 3:
                raise ArithmeticError("in the callback")

    trained, data, callback = model(), FastDataset(*examples(80), batch_size=4, shuffle=True, seed=0), Failing(0)
    weights = trained.get_weights()
    with pytest.raises(ArithmeticError, match="in the callback"):
        audit(trained, data, callbacks=[callback], remedies=())
    for after, before in zip(trained.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(after, before)
    assert data.epochs_begun == 0
    assert callback.calls == []
    assert "on_train_batch_end" not in vars(callback)
    assert trained.train_function is None
    assert not [thread for thread in threading.enumerate() if "sampler" in thread.name and not thread.daemon]


def test_epochs_of_a_single_batch():
    report = audit(model(), examples(8), batch_size=8, steps=np.int64(4), remedies=())
    assert any("An epoch has 1 batch, so that what fit does between epochs" in note for note in report.notes)


class Collecting(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = [-1]
        self.by_name = {"losses": [0.5], "last": collections.deque([1, 2], maxlen=2)}
        self.sums = np.zeros(2)

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)
        self.by_name["losses"].append(logs["loss"])
        self.by_name["last"].append(batch)
        self.by_name[f"batch {batch}"] = batch
        self.sums += 1
        self.new = self.batches


def test_what_callbacks_collect_is_forgotten_and_those_that_save_do_not_run(tmp_path):
    (tmp_path / "log.csv").write_text("of an earlier training")
    callback = Collecting()
    batches, losses = callback.batches, callback.by_name["losses"]
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", save_weights_only=True, save_freq=1),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        callback,
    ]
    report = audit(model(), FastDataset(*examples(40), batch_size=4), steps=4, callbacks=callbacks, remedies=())
    # In the very same objects, which may have other names outside.
    assert callback.batches is batches
    assert batches == [-1]
    assert callback.by_name["losses"] is losses
    assert callback.by_name == {"losses": [0.5], "last": collections.deque([1, 2])}
    np.testing.assert_array_equal(callback.sums, [0, 0])
    assert "new" not in vars(callback)
    assert [each.name for each in tmp_path.iterdir()] == ["log.csv"]
    assert (tmp_path / "log.csv").read_text() == "of an earlier training"
    assert any("Not run: ModelCheckpoint, CSVLogger" in note for note in report.notes)
    assert report.gains == ()
    assert report.remedies == ()


def test_which_images_uint8_can_hold():
    levels = np.random.default_rng(0).integers(0, 256, [2, 8, 8, 3])
    assert _scale_of((levels / 255).astype("float32")) == pytest.approx(1 / 255)
    assert _scale_of(levels.astype("float32")) == 1.0
    assert _scale_of((levels / 127.5 - 1).astype("float32")) is None
    assert _scale_of((levels / 256).astype("float32")) is None


def test_images_that_come_as_floats_are_tried_as_uint8():
    layers = [keras.Input([8, 8, 3]), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
    x = np.random.default_rng(0).integers(0, 256, [80, 8, 8, 3]) / 255
    data = (x.astype("float32"), np.zeros(80, int))
    report = audit(compiled(keras.Sequential(layers)), data, steps=4, remedies=("uint8 input",))
    found = report.remedies[0]
    assert found.status in ("gain", "no gain")
    assert "Rescaling(1 / 255)" in found.code


def eager():
    return_model = model()
    return_model.run_eagerly = True
    return return_model


def uncompiled():
    return keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(CLASSES)])


@pytest.mark.parametrize(
    ("make", "data", "options", "error", "message"),
    [
        (lambda: "model", examples(8), {}, TypeError, "`model` must be a keras.Model. Received: str"),
        (uncompiled, examples(8), {}, ValueError, "must be compiled before it is audited"),
        (eager, examples(8), {}, ValueError, "runs eagerly.*Compile it without"),
        (model, [1, 2], {}, TypeError, "`data` must be a FastDataset.*Received: list"),
        (model, (each for each in ()), {}, TypeError, "A generator would be used up.*audit SCRIPT"),
        (model, examples(0), {}, ValueError, "`data` has no batches"),
        (model, (examples(8)[0], examples(7)[1]), {}, ValueError, r"equally many examples. Received: \[7, 8\]"),
        (model, tf.data.Dataset.from_tensor_slices(examples(8)).batch(4).take(0), {}, ValueError, "has no batches"),
        (
            model,
            tf.data.Dataset.from_tensor_slices(examples(8)).batch(4).filter(lambda x, y: False),
            {},
            ValueError,
            "has no batches",
        ),
        (model, examples(8), {"steps": 0}, ValueError, "`steps` must be an integer from 1. Received: 0"),
        (model, examples(8), {"steps": True}, ValueError, "`steps` must be an integer from 1"),
        (model, examples(8), {"batch_size": 0}, ValueError, "`batch_size` must be an integer from 1"),
        (model, examples(8), {"budget_seconds": 0}, ValueError, "`budget_seconds` must be a finite number of seconds"),
        (model, examples(8), {"budget_seconds": float("inf")}, ValueError, "`budget_seconds` must be a finite number"),
        (model, examples(8), {"callbacks": [1]}, TypeError, "`callbacks` must be those that fit"),
        (model, examples(8), {"remedies": "cache"}, ValueError, "`remedies` must be a tuple"),
        (model, examples(8), {"remedies": ("magic",)}, ValueError, "`remedies` must be a tuple.*magic"),
    ],
)
def test_what_can_not_be_audited(make, data, options, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        audit(make(), data, **options)


def test_a_strategy_and_debug_mode_are_refused(two_cpu_strategy):
    with two_cpu_strategy.scope():
        distributed = model()
    with pytest.raises(ValueError, match=r"under MirroredStrategy. audit\(\) measures one device"):
        audit(distributed, examples(8))
    with debug_mode(), pytest.raises(ValueError, match=r"leave debug_mode\(\)"):
        audit(model(), examples(8))


def test_what_fit_raises_is_raised():
    wrong = keras.Sequential([keras.Input([FEATURES + 1]), keras.layers.Dense(CLASSES)])
    with pytest.raises(ValueError, match="incompatible"):
        audit(compiled(wrong), examples(16), batch_size=4)
