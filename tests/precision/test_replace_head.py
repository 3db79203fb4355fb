"""The new head gives the logits of the old one, and the loss, optimizer and rest of the model come along."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_turbo as kt
from keras_turbo.precision import SafeLossScaleOptimizer, replace_head

pytestmark = pytest.mark.compatibility

SPARSE = keras.losses.SparseCategoricalCrossentropy


def functional(end=None, **dense):
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, activation="relu", name="hidden")(inputs)
    end = end or (lambda x: layers.Dense(5, **{"activation": "softmax"} | dense, name="out")(x))
    return keras.Model(inputs, end(hidden), name="mine")


def sequential():
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "relu", name="hidden"), layers.Dense(5, "softmax", name="out")],
        name="mine",
    )


def samples():
    rng = np.random.default_rng(0)
    return rng.normal(size=(24, 8)).astype("float32"), rng.integers(0, 5, 24)


ENDS = {
    "softmax in the Dense": None,
    "Softmax layer": lambda x: layers.Softmax(name="out")(layers.Dense(5)(x)),
    "Activation layer": lambda x: layers.Activation("softmax", name="out")(layers.Dense(5)(x)),
    "operation": lambda x: ops.softmax(layers.Dense(5)(x)),
    "without a bias": lambda x: layers.Dense(5, "softmax", use_bias=False, name="out")(x),
}


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("end", ENDS)
def test_the_softmax_of_its_logits_is_the_old_output(set_dtype_policy, policy, end):
    set_dtype_policy(policy)
    model = functional(ENDS[end])
    new = replace_head(model)
    x, _ = samples()
    tolerance = 1e-6 if policy == "float32" else 2e-3
    logits = new.predict(x, verbose=0)
    np.testing.assert_allclose(ops.softmax(logits), model.predict(x, verbose=0), atol=tolerance)
    assert isinstance(new.layers[-1], kt.MixedPrecisionSafeHead)
    assert new.outputs[0].dtype == "float32"
    assert (new.name, new.output_names) == ("mine", model.output_names)
    assert new.get_layer("hidden") is model.get_layer("hidden")


def test_logits_stay_logits():
    model = functional(activation=None)
    model.compile("sgd", SPARSE(from_logits=True))
    new = replace_head(model)
    x, y = samples()
    np.testing.assert_allclose(new.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    assert new.evaluate(x, y, verbose=0) == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-6)


LOSSES = [
    "sparse_categorical_crossentropy",
    keras.losses.sparse_categorical_crossentropy,
    "SparseCategoricalCrossentropy",
    SPARSE(ignore_class=4),
    ["sparse_categorical_crossentropy"],
]


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        *((make, loss) for make in (functional, sequential) for loss in LOSSES),
        # Keras takes no dict of losses for a Sequential model.
        (functional, {"out": "sparse_categorical_crossentropy"}),
    ],
)
def test_a_loss_on_probabilities_becomes_one_on_logits(make, loss):
    model = make()
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], steps_per_execution=2)
    new = replace_head(model)
    assert type(new) is type(model)
    x, y = samples()
    np.testing.assert_allclose(new.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-5)
    (made,) = keras.tree.flatten(new.loss)
    assert made.get_config()["from_logits"] is True
    if isinstance(loss, keras.losses.Loss):
        assert made.get_config()["ignore_class"] == 4
    assert new.steps_per_execution == 2
    assert float(new.optimizer.learning_rate) == pytest.approx(0.01)
    losses = new.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_training_goes_on_with_the_optimizers_state(set_dtype_policy, policy):
    """The next step is the one that the old model would have made."""
    set_dtype_policy(policy)
    model = functional()
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    x, y = samples()
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    new = replace_head(model)
    new.get_layer("hidden")
    steps = int(model.optimizer.iterations)
    assert int(new.optimizer.iterations) == steps > 0
    hidden = [w.copy() for w in model.get_layer("hidden").get_weights()]
    model.fit(x, y, batch_size=24, verbose=0)
    expected = model.get_weights()
    model.get_layer("hidden").set_weights(hidden)
    new.fit(x, y, batch_size=24, verbose=0)
    tolerance = 1e-6 if policy == "float32" else 2e-3
    for value, wanted in zip(new.get_weights(), expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=tolerance)
    if policy == "mixed_float16":
        assert isinstance(new.optimizer, SafeLossScaleOptimizer)


def test_another_number_of_units():
    model = functional()
    model.compile("adam", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="Dense of 5 units can't be kept in a head of 7.*keep_weights=False"):
        replace_head(model, units=7)
    new = replace_head(model, units=7, keep_weights=False)
    assert new.output_shape == (None, 7)
    assert new.layers[-1].normalize
    x, y = samples()
    new.fit(x, y, verbose=0)


def test_with_nested_models_and_saved(tmp_path):
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(16, name="inner_dense")], name="inner")
    model = keras.Sequential([keras.Input((8,)), inner, layers.Dense(5, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    new = replace_head(model)
    assert new.layers[0] is inner
    new.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, y = samples()
    assert loaded.evaluate(x, y, verbose=0) == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-5)


def compiled(**settings):
    model = functional()
    model.compile("sgd", **settings)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compiled(loss="mse"), "compiled with the loss 'mse', which takes the softmax's probabilities"),
        (lambda: compiled(loss=lambda a, b: ops.mean(b)), "has no `from_logits`"),
        (
            lambda: compiled(loss=SPARSE(), metrics=[keras.metrics.AUC(name="area")]),
            "AUC name=area.*takes probabilities",
        ),
        (lambda: functional(activation="sigmoid"), "'out', a Dense with sigmoid"),
        (lambda: functional(lambda x: layers.LayerNormalization(name="last")(x)), "'last', a LayerNormalization"),
        (lambda: functional(lambda x: [layers.Dense(2)(x)] * 2), "must have one output.*has 2"),
        (lambda: keras.Sequential([layers.Dense(3)]), "must be a built functional or Sequential model"),
        (lambda: None, "must be a built functional or Sequential model"),
    ],
)
def test_what_cannot_be_replaced(make, message):
    with pytest.raises(ValueError, match=message):
        replace_head(make())


def test_what_was_switched_off_stays_off():
    model = functional()
    model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=4, jit_compile=False)
    model.steps_per_execution = 1
    assert replace_head(model).steps_per_execution == 1
