"""What is fragile computes in float32 afterwards, the rest as before, and the model is the same one."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_turbo as kt
from keras_turbo.precision import PrecisionWarning, unsafe_layers
from keras_turbo.precision.fragile_layers import LARGE_REDUCTION

pytestmark = pytest.mark.compatibility

MIXED = ["mixed_float16", "mixed_bfloat16"]

# How far probabilities may be from those in float32: some ten layers round to 11 or 8 bits.
TOLERANCE = {"mixed_float16": 5e-3, "mixed_bfloat16": 3e-2}


@pytest.fixture(params=MIXED)
def mixed_policy(request, set_dtype_policy):
    set_dtype_policy(request.param)
    return request.param


@pytest.fixture
def float16(set_dtype_policy):
    set_dtype_policy("mixed_float16")


def safe(model):
    assert kt.make_precision_safe(model, verbose=False) is model
    return model


def policies(model):
    # Of models and inputs, which compute nothing, Keras saves no policy.
    nothing = keras.Model | layers.InputLayer
    every = [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, nothing)]
    return {layer.name: layer.dtype_policy.name for layer in every}


def images(examples=8, size=32):
    return np.random.default_rng(0).uniform(0, 255, (examples, size, size, 3)).astype("float32")


def convolutional():
    """Nested, shared, with operations, and a softmax of its own at the end."""
    block = keras.Sequential(
        [
            keras.Input((32, 32, 8)),
            layers.Conv2D(8, 3, padding="same", name="convolution"),
            layers.BatchNormalization(name="normalization"),
        ],
        name="block",
    )
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(layers.Rescaling(1 / 255, name="rescaling")(inputs))
    x = block(block(x))
    scores = layers.Dense(8, activation="sigmoid", name="excite")(ops.mean(x, axis=(1, 2)))
    x = layers.Multiply(name="scaled")([x, layers.Reshape((1, 1, 8), name="reshaped")(scores)])
    x = layers.GlobalAveragePooling2D(name="pooled")(x)
    x = layers.Dense(16, activation="relu", name="hidden")(x)
    return keras.Model(inputs, layers.Softmax(name="probabilities")(layers.Dense(10, name="logits")(x)))


def float32_twin(build, model, set_dtype_policy):
    before = keras.config.dtype_policy()
    set_dtype_policy("float32")
    twin = build()
    set_dtype_policy(before)
    return twin


def test_what_is_changed_and_why(float16):
    model = convolutional()
    found = {change.layer: (change.kind, change.before, change.reason) for change in unsafe_layers(model)}
    mean = next(name for name in found if name.startswith("mean"))
    assert found == {
        "rescaling": ("Rescaling", "float16", "normalization"),
        "block/normalization": ("BatchNormalization", "float16", "normalization"),
        mean: ("Mean", "float16", "mean over 1024 elements"),
        "excite": ("Dense", "float16", "sigmoid activation"),
        "pooled": ("GlobalAveragePooling2D", "float16", "average over 1024 elements"),
        "logits": ("Dense", "float16", "output"),
        "probabilities": ("Softmax", "float16", "output"),
    }
    assert set(policies(model).values()) == {"mixed_float16"}, "nothing is changed by looking"
    safe(model)
    assert unsafe_layers(model) == []
    half = {name for name, policy in policies(model).items() if policy == "mixed_float16"}
    assert {"stem", "convolution", "scaled", "reshaped", "hidden"} <= half
    assert not half & {name.rpartition("/")[2] for name in found}


def test_predictions_are_those_of_float32(mixed_policy, set_dtype_policy):
    model = convolutional()
    weights = [np.random.default_rng(1).normal(0.1, 0.3, w.shape).astype("float32") for w in model.weights]
    weights = [abs(w) for w in weights]
    model.set_weights(weights)
    safe(model)
    twin = float32_twin(convolutional, model, set_dtype_policy)
    twin.set_weights(weights)
    x = images()
    assert model.outputs[0].dtype == "float32"
    predicted = model.predict(x, verbose=0)
    assert predicted.dtype == np.float32
    np.testing.assert_allclose(predicted, twin.predict(x, verbose=0), atol=TOLERANCE[mixed_policy])


def test_the_model_stays_itself(mixed_policy):
    model = convolutional()
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], steps_per_execution=2)
    x, y = images(16), np.arange(16) % 10
    model.fit(x, y, batch_size=4, verbose=0)
    layers_before = model._flatten_layers(include_self=False)
    variables_before, config_before = list(model.variables), model.get_compile_config()
    values_before = [v.numpy() for v in model.variables]
    names_before = (model.name, [layer.name for layer in model.layers if isinstance(layer, layers.Dense)])
    steps_before = int(model.optimizer.iterations)
    safe(model)
    assert all(before is now for before, now in zip(variables_before, model.variables, strict=True))
    for before, now in zip(values_before, model.variables, strict=True):
        np.testing.assert_array_equal(before, now)
    assert (model.name, [layer.name for layer in model.layers if isinstance(layer, layers.Dense)]) == names_before
    assert set(map(id, layers_before)) <= set(map(id, model._flatten_layers(include_self=False)))
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    assert inner is optimizer
    assert int(model.optimizer.iterations) == steps_before > 0
    kept = {"loss", "metrics", "steps_per_execution", "jit_compile", "run_eagerly"}
    config_after = model.get_compile_config()
    assert {key: config_before[key] for key in kept} == {key: config_after[key] for key in kept}
    model.fit(x, y, batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) > steps_before


def test_shared_layers_stay_shared_and_nested_models_nested(float16):
    shared = layers.Dense(8, activation="softmax", name="shared")
    inner_inputs = keras.Input((8,))
    inner = keras.Model(inner_inputs, layers.LayerNormalization(name="inside")(shared(inner_inputs)), name="inner")
    left, right = keras.Input((8,)), keras.Input((8,))
    both = layers.Concatenate()([inner(left), shared(right), inner(right)])
    model = safe(keras.Model([left, right], layers.Dense(8, name="out")(both)))
    assert model.get_layer("inner") is inner
    assert model.get_layer("shared") is inner.get_layer("shared") is shared
    assert shared.dtype_policy.name == inner.get_layer("inside").dtype_policy.name == "float32"
    assert inner.outputs[0].dtype == "float32"
    assert len(model.trainable_variables) == 2 + 2 + 2
    assert model.predict([np.ones((2, 8))] * 2, verbose=0).dtype == np.float32


def test_it_changes_nothing_twice_and_nothing_in_float32(float16, set_dtype_policy, capsys):
    model = safe(convolutional())
    before = policies(model)
    assert kt.make_precision_safe(model) is model
    set_dtype_policy("float32")
    plain = convolutional()
    kt.make_precision_safe(plain)
    assert policies(model) == before
    assert set(policies(plain).values()) == {"float32"}
    assert capsys.readouterr().out == ""


def test_it_prints_a_table(float16, capsys):
    kt.make_precision_safe(keras.Sequential([keras.Input((8,)), layers.Dense(8, name="only")], name="mine"))
    printed = capsys.readouterr().out
    assert "mine: computed in float32 from now on" in printed
    assert all(word in printed for word in ("only", "Dense", "float16", "output"))


@pytest.mark.parametrize("jit_compile", [True, False])
def test_functions_that_were_traced_are_traced_again(float16, jit_compile):
    """A logit of 80,000 is infinite in float16."""
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    x = np.array([[40_000.0, 40_000.0]], "float32")
    assert np.isinf(model.predict(x, verbose=0)).all()
    model.evaluate(x, x[:, :1], verbose=0)
    safe(model)
    assert model.predict(x, verbose=0) == 80_000
    assert model.evaluate(x, x[:, :1], verbose=0) == 40_000.0**2


@pytest.mark.parametrize("kind", ["functional", "sequential", "without input", "subclassed"])
def test_large_features_reach_the_output_unrounded(float16, kind):
    """70,000 is infinite in float16 (tensorflow 22586)."""
    dense = layers.Dense(1, use_bias=False, kernel_initializer="ones")

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = dense

        def call(self, inputs):
            return self.dense(inputs)

    inputs = keras.Input((2,))
    model = {
        "functional": lambda: keras.Model(inputs, dense(inputs)),
        "sequential": lambda: keras.Sequential([keras.Input((2,)), dense]),
        "without input": lambda: keras.Sequential([dense]),
        "subclassed": Subclassed,
    }[kind]()
    if not model.built:
        model(np.ones((1, 2), "float32"))
    x = np.array([[70_000.0, 1.0]], "float32")
    assert np.isinf(model.predict(x, verbose=0)).all() or kind in ("functional", "sequential")
    assert safe(model).predict(x, verbose=0) == 70_001


class Classifier(keras.Model):
    """A subclassed model whose output is an operation in its `call`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = layers.Embedding(50, 8)
        self.attention = layers.MultiHeadAttention(2, 8)
        self.normalization = layers.LayerNormalization()
        self.logits = layers.Dense(4)

    def call(self, inputs):
        x = self.embedding(inputs)
        x = self.normalization(x + self.attention(x, x))
        return ops.softmax(self.logits(ops.mean(x, axis=1)))


def test_a_subclassed_model(mixed_policy):
    model = Classifier()
    x = np.random.default_rng(0).integers(0, 50, (6, 12))
    half = model(x)
    assert keras.backend.standardize_dtype(half.dtype) == mixed_policy.removeprefix("mixed_")
    reasons = {change.layer: change.reason for change in unsafe_layers(model)}
    assert reasons[model.logits.name] == "output"
    assert reasons[model.normalization.name] == "normalization"
    assert [name.partition("/")[0] for name, reason in reasons.items() if reason == "softmax"] == [model.attention.name]
    weights = model.get_weights()
    outputs = safe(model)(x)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    np.testing.assert_allclose(ops.sum(outputs, -1), np.ones(6), rtol=1e-6)
    assert model.embedding.dtype_policy.name == mixed_policy
    for before, now in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, now)


def test_a_subclassed_model_with_dicts(float16):
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.mixed = layers.Dense(8), layers.Dense(8), layers.Dense(8)

        def call(self, inputs):
            hidden = self.mixed(ops.concatenate([inputs["left"], inputs["right"]], axis=-1))
            return {"a": self.a(hidden), "b": self.b(hidden)}

    model = Two()
    x = {"left": np.ones((3, 2), "float32"), "right": np.ones((3, 4), "float32")}
    model(x)
    outputs = safe(model)(x)
    assert {keras.backend.standardize_dtype(one.dtype) for one in outputs.values()} == {"float32"}
    assert model.mixed.dtype_policy.name == "mixed_float16"


def test_a_subclassed_model_that_mixes_its_inputs_with_what_layers_give(float16):
    class Residual(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = layers.Dense(8), layers.Dense(8)

        def call(self, inputs):
            return self.out(tf.add(inputs, self.hidden(inputs)))

    model = Residual()
    x = np.ones((2, 8), "float32")
    model(x)
    assert safe(model)(x).dtype == tf.float32
    assert model.autocast


def test_an_output_that_code_makes_half_is_warned_of(float16):
    class Casting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(8)

        def call(self, inputs):
            return ops.cast(self.dense(inputs), "float16")

    model = Casting()
    model(np.ones((2, 8), "float32"))
    with pytest.warns(PrecisionWarning, match=r"still gives float16.*ops.cast\(outputs, 'float32'\)"):
        safe(model)


@pytest.mark.parametrize("policy_when_loaded", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("policy_when_saved", ["float32", "mixed_float16"])
def test_loaded_under_another_policy(tmp_path, set_dtype_policy, policy_when_saved, policy_when_loaded):
    set_dtype_policy(policy_when_saved)
    model = safe(convolutional())
    x = images(4)
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    set_dtype_policy(policy_when_loaded)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert policies(loaded) == policies(model)
    assert loaded.outputs[0].dtype == "float32"
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    assert unsafe_layers(loaded) == []


def test_a_model_that_was_saved_unsafe(tmp_path, set_dtype_policy):
    set_dtype_policy("mixed_float16")
    model = convolutional()
    model.save(tmp_path / "model.keras")
    set_dtype_policy("float32")
    loaded = safe(keras.models.load_model(tmp_path / "model.keras"))
    assert loaded.outputs[0].dtype == "float32"
    assert loaded.get_layer("stem").dtype_policy.name == "mixed_float16"


@pytest.mark.slow
def test_a_model_of_keras_applications(mixed_policy, set_dtype_policy):
    def build():
        return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=8)

    model = build()
    twin = float32_twin(build, model, set_dtype_policy)
    twin.set_weights(model.get_weights())
    safe(model)
    x = images(4) / 127.5 - 1
    np.testing.assert_allclose(model.predict(x, verbose=0), twin.predict(x, verbose=0), atol=TOLERANCE[mixed_policy])
    normalizations = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
    assert {layer.dtype_policy.name for layer in normalizations} == {"float32"}
    assert model.get_layer("Conv1").dtype_policy.name == mixed_policy


# --- kinds of layers


def one_layer(layer, shape=(8,)):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layers.Dense(8, name="out")(layers.Flatten()(layer(inputs))))


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (lambda: layers.BatchNormalization(), (8,), "normalization"),
        (lambda: layers.LayerNormalization(), (8,), "normalization"),
        (lambda: layers.GroupNormalization(2), (4, 4, 8), "normalization"),
        (lambda: layers.UnitNormalization(), (8,), "normalization"),
        (lambda: layers.Normalization(mean=1.0, variance=2.0), (8,), "normalization"),
        (lambda: layers.Softmax(), (8,), "softmax"),
        (lambda: layers.Activation("softmax"), (8,), "softmax activation"),
        (lambda: layers.Activation("sigmoid"), (8,), "sigmoid activation"),
        (lambda: layers.Dense(8, "log_softmax"), (8,), "log_softmax activation"),
        (lambda: layers.Conv2D(8, 3, activation="sigmoid"), (4, 4, 8), "sigmoid activation"),
        (lambda: layers.ActivityRegularization(l2=0.1), (8,), "adds a loss: activity regularizer"),
        (lambda: layers.Dense(8, activity_regularizer="l2"), (8,), "adds a loss: activity regularizer"),
        (lambda: layers.GlobalAveragePooling1D(keepdims=True), (LARGE_REDUCTION + 1, 8), "average over 257 elements"),
        (lambda: layers.GlobalAveragePooling1D(keepdims=True), (LARGE_REDUCTION, 8), None),
        (lambda: layers.AveragePooling2D(17), (17, 17, 8), "average over 289 elements"),
        (lambda: layers.AveragePooling2D(2), (4, 4, 8), None),
        (lambda: layers.GlobalMaxPooling2D(), (32, 32, 8), None),
        (lambda: layers.Activation("relu"), (8,), None),
        (lambda: layers.Dense(8, kernel_regularizer="l2"), (8,), None),
        (lambda: layers.LSTM(8), (4, 8), None),
        (lambda: layers.Bidirectional(layers.GRU(8)), (4, 8), None),
        (lambda: layers.TimeDistributed(layers.Dense(8, "softmax")), (4, 8), "softmax activation"),
    ],
)
def test_kinds_of_layers(float16, make, shape, reason):
    found = [change for change in unsafe_layers(one_layer(make(), shape)) if change.layer != "out"]
    assert [change.reason for change in found] == ([reason] if reason else [])


def test_an_average_over_an_unknown_number(float16):
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, layers.Dense(8)(layers.GlobalAveragePooling1D()(inputs)))
    assert unsafe_layers(model)[0].reason == "average over a number of elements that is not known"


def test_a_layer_of_ones_own_that_adds_a_loss(float16):
    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(ops.sum(ops.square(inputs)))
            return inputs

    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(8)(Penalty(name="penalty")(layers.Dense(8)(inputs))))
    first = unsafe_layers(model)[0]
    assert (first.layer, first.reason) == ("penalty", "adds a loss in its call")
    # 256 * 64 * 8 = 131,072 is infinite in float16.
    model.layers[1].set_weights([np.ones((8, 8)), np.zeros(8)])
    x = np.ones((256, 8), "float32")
    model(x)
    assert np.isinf(float(model.losses[0]))
    safe(model)(x)
    assert float(model.losses[0]) == 131_072


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (lambda x: ops.softmax(x), "softmax operation"),
        (lambda x: ops.sigmoid(x), "sigmoid operation"),
        (lambda x: keras.activations.softmax(x), "softmax operation"),
        (lambda x: ops.logsumexp(x, axis=-1, keepdims=True), "logsumexp operation"),
        (lambda x: ops.sum(x, axis=1), "sum over 300 elements"),
        (lambda x: ops.mean(x, axis=-1), None),
        (lambda x: ops.relu(x), None),
    ],
)
def test_operations_of_a_functional_model(float16, tmp_path, operation, reason):
    inputs = keras.Input((300, 8))
    hidden = layers.Dense(8)(inputs)
    model = keras.Model(inputs, layers.Dense(4)(layers.Flatten()(operation(hidden))))
    found = [change.reason for change in unsafe_layers(model)][:-1]
    assert found == ([reason] if reason else [])
    x = np.random.default_rng(0).normal(size=(2, 300, 8)).astype("float32")
    safe(model)
    outputs = model.predict(x, verbose=0)
    assert outputs.dtype == np.float32
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), outputs)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy.predict(x, verbose=0), outputs)


def test_several_outputs(float16):
    inputs = keras.Input((8,))
    hidden = layers.Dense(8, name="hidden")(inputs)
    outputs = {
        "dense": layers.Dense(2, name="dense")(hidden),
        "dropped": layers.Dropout(0.5)(layers.Dense(2, name="before")(hidden)),
        "added": layers.Add()([layers.Dense(2, name="left")(hidden), layers.Dense(2, name="right")(hidden)]),
    }
    model = safe(keras.Model(inputs, outputs))
    assert {output.dtype for output in model.outputs} == {"float32"}
    assert model.get_layer("dense").compute_dtype == model.get_layer("before").compute_dtype == "float32"
    assert model.get_layer("hidden").compute_dtype == "float16"


# --- what it is for


def test_masked_softmax_rows_give_no_nan(float16):
    """Also where everything is masked."""
    inputs, mask = keras.Input((6, 8)), keras.Input((6, 6), dtype="bool")
    attended = layers.MultiHeadAttention(2, 8)(inputs, inputs, attention_mask=mask)
    weights = layers.Softmax()(layers.Dense(6)(attended), mask=mask)
    model = safe(keras.Model([inputs, mask], weights))
    x = np.random.default_rng(0).normal(0, 100, (2, 6, 8)).astype("float32")
    allowed = np.zeros((2, 6, 6), bool)
    allowed[0, 0, :3] = True
    outputs = model.predict([x, allowed], verbose=0)
    assert np.isfinite(outputs).all()
    np.testing.assert_allclose(outputs[0, 0].sum(), 1, rtol=1e-5)
    assert (outputs[0, 0, 3:] == 0).all()


def test_dice_over_a_large_mask_of_ones(float16):
    """Sums of 262,144 ones: float16 ends at 65,504."""
    inputs = keras.Input((512, 512, 1))
    model = keras.Model(inputs, layers.Conv2D(1, 1, use_bias=False, kernel_initializer="ones")(inputs))

    def dice(y_true, y_pred):
        both = ops.sum(y_true * y_pred)
        return 2 * both / (ops.sum(y_true) + ops.sum(y_pred))

    ones = np.ones((1, 512, 512, 1), "float32")
    outputs = safe(model)(ones)
    assert float(dice(ops.ones_like(outputs), outputs)) == 1.0
    model.compile("sgd", keras.losses.Dice(), metrics=[dice])
    loss, coefficient = model.evaluate(ones, ones, verbose=0)
    assert (loss, coefficient) == (0.0, 1.0)


@pytest.mark.parametrize("label_dtype", ["int32", "int64", "float32"])
def test_labels_are_never_rounded_to_float16(float16, label_dtype):
    """float16 has no 2049 (keras 15012)."""
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(4096, activation="softmax", use_bias=False)(inputs))
    kernel = np.zeros((8, 4096), "float32")
    kernel[0, 2049] = kernel[1, 4095] = 30
    model.set_weights([kernel])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    safe(model)
    loss, accuracy = model.evaluate(np.eye(8, dtype="float32")[:2], np.array([2049, 4095], label_dtype), verbose=0)
    assert accuracy == 1.0
    assert loss < 1e-6


def test_a_stateful_gru_with_the_head(float16):
    def run(make):
        inputs = keras.Input(batch_shape=(2, 5, 4))
        hidden = layers.GRU(8, stateful=True, kernel_initializer="ones", name="gru")(inputs)
        return make(keras.Model(inputs, kt.MixedPrecisionSafeHead(3, kernel_initializer="ones", name="head")(hidden)))

    model = run(safe)
    assert model.get_layer("gru").dtype_policy.name == "mixed_float16"
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    first, second = model.predict(x, verbose=0), model.predict(x, verbose=0)
    assert first.dtype == np.float32
    assert not np.array_equal(first, second)
    model.reset_states() if hasattr(model, "reset_states") else model.get_layer("gru").reset_state()
    np.testing.assert_array_equal(model.predict(x, verbose=0), first)


def test_it_trains_where_the_plain_model_gives_nan(float16):
    def classifier():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        x = layers.Dense(512, kernel_initializer="ones", trainable=False)(inputs)
        x = ops.sum(x, axis=-1, keepdims=True)
        model = keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.BatchNormalization()(x)))
        model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
        return model

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 96)
    x = (100 * y[:, None] + rng.uniform(0, 40, (96, 4))).astype("float32")
    plain, made_safe = classifier(), safe(classifier())
    assert np.isnan(plain.fit(x, y, epochs=2, verbose=0).history["loss"][-1])
    losses = made_safe.fit(x, y, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.8 < losses[0]


# --- what is refused


@pytest.mark.parametrize("value", [None, "model", layers.Dense(3)])
def test_what_is_no_model(value):
    with pytest.raises(ValueError, match="`model` must be a Keras model. Received"):
        kt.make_precision_safe(value)


def test_a_model_that_is_not_built(float16):
    with pytest.raises(ValueError, match="must be built"):
        kt.make_precision_safe(keras.Sequential([layers.Dense(3)]))
    with pytest.raises(ValueError, match="must be built"):
        kt.make_precision_safe(Classifier())


@pytest.mark.parametrize("given", [False, True])
def test_statistics_of_an_adapted_normalization_are_made_anew(given, set_dtype_policy):
    x = (np.random.default_rng(0).normal(size=(64, 4)) * 300 + 1000).astype("float32")
    set_dtype_policy("mixed_float16")
    if given:
        layer = keras.layers.Normalization(mean=1000.0, variance=90_000.0)
    else:
        layer = keras.layers.Normalization()
        layer.adapt(x)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3)(layer(inputs)))
    assert not np.isfinite(keras.ops.convert_to_numpy(layer.variance)).all()
    kt.make_precision_safe(model, verbose=False)
    variance = x.var(axis=0) if not given else np.full(4, 90_000.0)
    np.testing.assert_allclose(np.ravel(layer.variance), variance, rtol=1e-4)
    mean = x.mean(axis=0) if not given else 1000.0
    expected = ((x - mean) / np.sqrt(variance)) @ model.layers[-1].kernel.numpy()
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=2e-2, atol=2e-2)


def test_large_inputs_reach_the_head_of_a_subclassed_model(set_dtype_policy):
    class OnlyHead(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = kt.MixedPrecisionSafeHead(2, normalize=False, kernel_initializer="ones")

        def call(self, x):
            return self.head(x)

    set_dtype_policy("mixed_float16")
    model, x = OnlyHead(), np.full((2, 3), 70_000.0, "float32")
    assert not np.isfinite(model.predict(x, verbose=0)).all()
    kt.make_precision_safe(model, verbose=False)
    np.testing.assert_array_equal(model.predict(x, verbose=0), np.full((2, 2), 210_000.0))
