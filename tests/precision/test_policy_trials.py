"""The policy that trains a model fastest is taken, and nothing else is changed by finding out."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_turbo as kt
from keras_turbo.precision import PrecisionWarning, policy, policy_trials, unsafe_layers
from tests.precision.caught import precision_warnings

X, Y = np.random.default_rng(0).normal(size=(40, 6)).astype("float32"), np.arange(40) % 3


def build():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(3, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


@pytest.fixture
def steps_take(monkeypatch):
    """Gives a function that says how long the steps of each policy take; all of these policies are tried."""

    def take(**step_ms):
        monkeypatch.setattr(policy, "hardware_policies", lambda: (list(step_ms), "it is said so"))

        class Timed(policy_trials.Trial):
            def step_ms(self):
                super().step_ms()
                return step_ms[self._model.layers[0].dtype_policy.name]

        monkeypatch.setattr(policy_trials, "Trial", Timed)
        monkeypatch.setattr(policy_trials, "_BUDGET_SECONDS", 0.0)

    return take


@pytest.mark.parametrize(
    ("times", "name"),
    [
        ({"float32": 10.0, "mixed_bfloat16": 6.0, "mixed_float16": 5.0}, "mixed_float16"),
        ({"float32": 10.0, "mixed_bfloat16": 5.0, "mixed_float16": 6.0}, "mixed_bfloat16"),
        ({"float32": 10.0, "mixed_bfloat16": 9.8, "mixed_float16": 30.0}, "float32"),
        ({"float32": 10.0, "mixed_bfloat16": 18.0}, "float32"),
    ],
)
def test_the_fastest_is_taken_and_made_safe(steps_take, times, name, capsys):
    steps_take(**times)
    chosen = kt.use_mixed_precision(build, (X, Y))
    assert chosen.name == name
    assert {one.policy: one.step_ms for one in chosen.steps} == times
    assert chosen.model.layers[0].dtype_policy.name == name
    assert chosen.model.layers[-1].compute_dtype == "float32"
    assert unsafe_layers(chosen.model) == []
    scales = isinstance(chosen.model.optimizer, kt.precision.SafeLossScaleOptimizer)
    assert scales == (name == "mixed_float16")
    assert keras.config.dtype_policy().name == "float32"
    printed = capsys.readouterr().out
    assert f"Dtype policy {name}: measured here" in printed
    assert all(one in printed for one in times)
    assert chosen.to_dict()["steps"][0] == {"policy": "float32", "step_ms": 10.0, "problem": ""}
    chosen.model.fit(X, Y, verbose=0)


def test_weights_names_and_random_states_are_those_of_one_build(steps_take):
    def drawn():
        return [np.random.random(), *keras.random.normal((2,)).numpy(), *tf.random.normal((2,)).numpy()]  # noqa: NPY002

    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    plain = build()
    after = drawn()
    steps_take(float32=10.0, mixed_bfloat16=5.0)
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = kt.use_mixed_precision(build, (X, Y), verbose=False).model
    assert drawn() == after
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [model.name, *(layer.name for layer in model.layers)] == [plain.name, *(one.name for one in plain.layers)]
    assert int(model.optimizer.iterations) == 0


def test_a_fast_dataset_begins_where_it_would_have(steps_take):
    steps_take(float32=10.0, mixed_bfloat16=5.0)
    data = kt.FastDataset(X, Y, batch_size=8, shuffle=True, seed=0)
    kt.use_mixed_precision(build, data, verbose=False)
    same = kt.FastDataset(X, Y, batch_size=8, shuffle=True, seed=0)
    assert data.epochs_begun == 0
    for (x, _), (other, _) in zip(data, same, strict=True):
        np.testing.assert_array_equal(x, other)


def test_a_policy_that_fails_or_loses_the_loss_is_not_taken(steps_take):
    class Fails(keras.layers.Layer):
        def call(self, inputs):
            if self.compute_dtype == "bfloat16":
                raise RuntimeError("no bfloat16 here")
            return inputs * 1e5 if self.compute_dtype == "float16" else inputs

    def build():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), Fails(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    steps_take(float32=10.0, mixed_bfloat16=5.0, mixed_float16=5.0)
    chosen = kt.use_mixed_precision(build, (X, Y), verbose=False)
    assert chosen.name == "float32"
    assert "calling Fails.call()" in chosen.steps[1].problem
    assert "\n" not in chosen.steps[1].problem
    assert chosen.steps[1].step_ms is None
    assert chosen.steps[2].problem == "the loss is not finite"
    assert "no other policy can train this model" in chosen.reason


def test_nothing_is_timed_where_there_is_no_choice(steps_take, monkeypatch, capsys):
    steps_take(float32=1.0)
    monkeypatch.setattr(policy_trials, "Trial", None)
    chosen = kt.use_mixed_precision(build, (X, Y))
    assert (chosen.name, chosen.reason, chosen.steps[0].step_ms) == ("float32", "it is said so", None)
    assert capsys.readouterr().out == "Dtype policy float32: it is said so.\n"


def test_a_real_measurement_of_a_model_that_is_not_built(monkeypatch):
    def build():
        model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=2)
        return model

    monkeypatch.setattr(policy, "hardware_policies", lambda: (["float32", "mixed_bfloat16"], ""))
    monkeypatch.setattr(policy_trials, "_BUDGET_SECONDS", 0.0)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)  # the last batch is not full
    chosen = kt.use_mixed_precision(build, data, verbose=False)
    assert chosen.model.built
    assert all(one.step_ms > 0 and not one.problem for one in chosen.steps)


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (build, None, "needs `data`"),
        ("auto", (X, Y), "goes with a function"),
        (build, [], "at least one batch"),
        (build, (X[:0], Y[:0]), "at least one batch"),
        (lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]), (X, Y), "not compiled"),
        (lambda: 3, (X, Y), "Received: 3"),
    ],
)
def test_what_is_refused(steps_take, make, data, message):
    steps_take(float32=10.0, mixed_bfloat16=5.0)
    with pytest.raises(ValueError, match=message):
        kt.use_mixed_precision(make, data, verbose=False)
    assert keras.config.dtype_policy().name == "float32"


def test_the_same_model_again_is_refused(steps_take):
    steps_take(float32=10.0, mixed_bfloat16=5.0)
    model = build()
    with pytest.raises(ValueError, match="a new model in each call"):
        kt.use_mixed_precision(lambda: model, (X, Y), verbose=False)


def test_bfloat16_on_a_cpu_is_warned_of(monkeypatch, set_dtype_policy):
    monkeypatch.setattr(policy, "fastest_policy", lambda: policy.PolicyChoice("mixed_bfloat16", "it is said so"))
    with pytest.warns(PrecisionWarning, match="Recurrent layers .* depthwise convolutions") as caught:
        kt.use_mixed_precision(verbose=False)
    assert caught[0].filename == __file__
    with precision_warnings() as messages:
        kt.use_mixed_precision("mixed_bfloat16", verbose=False)
    assert messages == []
