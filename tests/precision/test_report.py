"""The figures are right where they are known, the model is as before, and the worst layer comes first."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_turbo as kt
from keras_turbo.precision import precision_report


def stack(*of_layers, shape=(8,), loss="mse"):
    model = keras.Sequential([keras.Input(shape), *of_layers], name="mine")
    model.compile("sgd", loss)
    return model


def samples(examples=40, shape=(8,)):
    rng = np.random.default_rng(0)
    return rng.normal(size=(examples, *shape)).astype("float32"), rng.normal(size=(examples, 1)).astype("float32")


def test_errors_of_a_small_model():
    model = stack(layers.Dense(16, "relu", name="hidden"), layers.Dense(1, name="out"))
    report = precision_report(model, samples())
    base, bfloat16, float16 = report.policies
    assert [one.policy for one in report.policies] == ["float32", "mixed_bfloat16", "mixed_float16"]
    assert (base.loss_error, base.layers, base.loss_scale) == (0.0, (), 1.0)
    assert (bfloat16.loss_scale, float16.loss_scale) == (1.0, 2.0**15)
    for figures, unit in ((float16, 2**-11), (bfloat16, 2**-8)):
        assert figures.usable
        assert {one.layer for one in figures.layers} == {"hidden", "out"}
        for one in figures.layers:
            # Rounded once at least, some times at most.
            assert unit / 20 < one.output_error < 10 * unit
            assert unit / 20 < one.gradient_error < 30 * unit
            assert one.overflows == one.gradient_overflows == 0
        assert figures.step_ms > 0
        assert figures.peak_memory_mb is None
        assert report.verdict(figures.policy).startswith(f"{figures.policy}: yes on this batch")
    assert float16.loss_error < bfloat16.loss_error + 1e-3


def test_a_layer_that_overflows_comes_first():
    model = stack(
        layers.Dense(16, name="calm"),
        layers.Dense(16, name="loud", kernel_initializer=keras.initializers.Constant(40_000.0)),
        layers.LayerNormalization(name="normalized", dtype="float32"),
        layers.Dense(1, name="out"),
    )
    report = precision_report(model, (np.ones((4, 8), "float32"), np.ones((4, 1))), policies=["mixed_float16"])
    (loud, *_) = [one for one in report["mixed_float16"].layers if one.layer == "loud"]
    assert loud.overflows > 0
    assert loud.output_error == float("inf")
    assert report["mixed_float16"].layers[0].suffering[0]
    assert not report["mixed_float16"].usable
    assert "overflows in" in report.verdict("mixed_float16")
    assert "mixed_float16: no" in str(report)


def test_gradients_that_vanish():
    """Below 6e-8 there is nothing in float16, scaled or not: the layer after makes them that small."""
    tiny = keras.initializers.Constant(1e-7)
    model = stack(layers.Dense(8, name="first"), layers.Dense(1, name="last", kernel_initializer=tiny))
    (first,) = [one for one in precision_report(model, samples())["mixed_float16"].layers if one.layer == "first"]
    assert first.gradient_error > 0.01
    scaled_away = keras.initializers.Constant(1e-12)
    model = stack(layers.Dense(8, name="first"), layers.Dense(1, name="last", kernel_initializer=scaled_away))
    (first,) = [one for one in precision_report(model, samples())["mixed_float16"].layers if one.layer == "first"]
    assert first.underflow_percent == 100.0
    assert first.gradient_error == 1.0


def test_the_loss_scale_comes_down_until_gradients_fit():
    model = stack(layers.Dense(8), layers.Dense(1))
    x, y = samples()
    figures = precision_report(model, (x, 300 * y))["mixed_float16"]
    assert 1 <= figures.loss_scale < 2.0**15
    assert figures.usable


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [True, False])
def test_the_model_is_as_before(set_dtype_policy, jit_compile):
    set_dtype_policy("mixed_bfloat16")
    model = keras.Sequential(
        [
            keras.Input((6, 8)),
            # XLA takes half a minute to compile a recurrent layer three times.
            layers.Dense(8) if jit_compile else layers.GRU(8, dropout=0.25, return_sequences=True),
            layers.Dropout(0.5, seed=3),
            layers.GaussianNoise(0.1, seed=4),
            layers.BatchNormalization(),
            layers.Flatten(),
            kt.MixedPrecisionSafeHead(1),
        ]
    )
    model.compile("adam", "mse", jit_compile=jit_compile)
    x, y = samples(shape=(6, 8))
    model.fit(x, y, verbose=0)
    weights = [v.numpy() for v in model.variables]
    seeds = [layer.seed_generator.state.numpy() for layer in model.layers if hasattr(layer, "seed_generator")]
    policies = [layer.dtype_policy for layer in model._flatten_layers()]
    optimizer = [v.numpy() for v in model.optimizer.variables]
    report = precision_report(model, (x, y))
    assert [layer.dtype_policy for layer in model._flatten_layers()] == policies
    for before, now in zip(weights, model.variables, strict=True):
        np.testing.assert_array_equal(before, now)
    for before, now in zip(optimizer, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(before, now)
    after = [layer.seed_generator.state.numpy() for layer in model.layers if hasattr(layer, "seed_generator")]
    np.testing.assert_array_equal(after, seeds)
    assert (model.layers[1].rate, model.layers[2].stddev) == (0.5, 0.1)
    assert jit_compile or model.layers[0].cell.dropout == model.layers[0].dropout == 0.25
    # Other masks would be off by about 1.
    assert all(one.output_error < 0.05 for one in report["mixed_float16"].layers if one.output_error is not None)
    assert next(one for one in report["mixed_float16"].layers if one.kind == "MixedPrecisionSafeHead").layer
    model.fit(x, y, verbose=0)


def test_what_is_float32_by_intention_stays(set_dtype_policy):
    set_dtype_policy("mixed_float16")
    model = stack(layers.Dense(8), layers.Dense(1, use_bias=False, kernel_initializer="ones", name="out"))
    kt.make_precision_safe(model, verbose=False)
    x = np.full((4, 8), 30_000.0, "float32")
    model.layers[0].set_weights([np.eye(8), np.zeros(8)])
    figures = precision_report(model, (x, np.full((4, 1), 240_000.0)))["mixed_float16"]
    assert all(one.overflows == 0 for one in figures.layers)
    assert figures.loss == 0.0


@pytest.mark.slow
def test_an_rnn_over_a_long_sequence():
    """What the report is for: may I use float16 for this RNN?"""
    model = stack(layers.LSTM(16, name="lstm"), layers.Dense(1, name="out"), shape=(50, 8))
    report = precision_report(model, samples(shape=(50, 8)))
    cells = [one for one in report["mixed_float16"].layers if one.kind == "LSTMCell"]
    assert [one.layer for one in cells] == ["lstm/lstm_cell"]
    assert 0 < cells[0].gradient_error < 0.1
    assert report["mixed_float16"].usable


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(8), layers.Dense(1)

    def call(self, inputs):
        return self.out(ops.relu(self.hidden(inputs)))


@pytest.mark.parametrize("kind", ["dataset", "list of batches", "with weights", "dict"])
def test_kinds_of_data_and_models(kind):
    x, y = samples()
    model = Subclassed()
    data = {
        "dataset": tf.data.Dataset.from_tensor_slices((x, y)).batch(16),
        "list of batches": iter([(x, y)]),
        "with weights": (x, y, np.ones(40)),
        "dict": (x.astype("float64"), y),
    }[kind]
    model(x)
    model.compile("sgd", "mse")
    report = precision_report(model, data, policies=("mixed_bfloat16",))
    assert [one.policy for one in report.policies] == ["float32", "mixed_bfloat16"]
    assert len(report["mixed_bfloat16"].layers) == 2


def test_it_prints_and_is_json(capsys):
    report = precision_report(stack(layers.Dense(1, name="only")), samples())
    report.print()
    printed = capsys.readouterr().out
    assert "mine: a step by policy" in printed
    assert "mixed_float16 against float32, the worst layer first" in printed
    assert "only" in printed
    assert printed == str(report)
    assert json.loads(json.dumps(report.to_dict()))["policies"][2]["policy"] == "mixed_float16"
    with pytest.raises(KeyError, match="'float64' is not among"):
        report["float64"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": keras.Sequential([layers.Dense(1)])}, "must be a built Keras model"),
        ({"model": None}, "must be a built Keras model"),
        ({"policies": ["float16"]}, r"`policies` must be of .*Received: \['float16'\]"),
        ({"batch_size": 0}, "`batch_size` must be a positive whole number"),
        ({"data": (np.zeros((0, 8)), np.zeros((0, 1)))}, "must give at least one example"),
        ({"data": iter([])}, "must give at least one example"),
    ],
)
def test_arguments(arguments, message):
    defaults = {"model": stack(layers.Dense(1)), "data": samples()}
    with pytest.raises(ValueError, match=message):
        precision_report(**{**defaults, **arguments})


def test_a_model_without_a_loss():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
    with pytest.raises(ValueError, match="must be compiled with a loss"):
        precision_report(model, samples())
    model.compile("sgd")
    with pytest.raises(ValueError, match="must be compiled with a loss"):
        precision_report(model, samples())
