"""The head is float32 inside and out under every policy, and behaves as a Keras layer should."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_turbo import MixedPrecisionSafeHead

pytestmark = pytest.mark.compatibility

POLICIES = ["float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16"]
MIXED = ["mixed_float16", "mixed_bfloat16"]


@pytest.fixture(params=POLICIES)
def policy(request, set_dtype_policy):
    set_dtype_policy(request.param)
    return request.param


@pytest.fixture(params=MIXED)
def mixed_policy(request, set_dtype_policy):
    set_dtype_policy(request.param)
    return request.param


def reference(head, inputs):
    """What the head computes before its activation, in float64."""
    x = np.asarray(inputs, "float64")
    weights = {w.name: np.asarray(w.numpy(), "float64") for w in head.weights}
    if head.normalize:
        centered = x - x.mean(-1, keepdims=True)
        x = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + head.epsilon)
        x = x * weights["gamma"] + weights["beta"]
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def with_random_weights(head, shape):
    head.build(shape)
    rng = np.random.default_rng(3)
    head.set_weights([rng.normal(size=w.shape).astype("float32") for w in head.weights])
    return head


def blobs(examples=256, features=16, classes=4):
    """Points around one center a class, which any sound model learns to tell apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, examples)
    centers = rng.normal(size=(classes, features)) * 3
    return (centers[labels] + rng.normal(size=(examples, features))).astype("float32"), labels


def classifier(features=16, classes=4, **kwargs):
    return keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(32, activation="relu"),
            MixedPrecisionSafeHead(classes, **kwargs),
        ]
    )


def compiled(model, jit_compile=False, learning_rate=0.01, from_logits=True):
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )
    return model


# --- float32 under every policy


@pytest.mark.parametrize("activation", [None, "softmax", "relu"])
@pytest.mark.parametrize("input_dtype", ["float16", "bfloat16", "float32", "float64", "int32", "bool"])
def test_output_and_variables_are_float32(policy, activation, input_dtype):
    head = MixedPrecisionSafeHead(3, activation)
    outputs = head(ops.cast(ops.ones((2, 5)), input_dtype))
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    assert {w.name: w.dtype for w in head.weights} == dict.fromkeys(["gamma", "beta", "kernel", "bias"], "float32")
    symbolic = head(keras.KerasTensor((None, 5), dtype=input_dtype))
    assert (symbolic.shape, symbolic.dtype) == ((None, 3), "float32")
    assert (head.dtype, head.compute_dtype, head.variable_dtype) == ("float32",) * 3


def test_output_is_float32_after_an_activation_that_casts():
    head = MixedPrecisionSafeHead(3, lambda x: ops.cast(x, "float16"))
    inputs = np.ones((2, 5), "float32")
    assert keras.backend.standardize_dtype(head(inputs).dtype) == head(keras.KerasTensor((2, 5))).dtype == "float32"


def test_a_model_ends_in_float32(policy):
    """Case 16: the symbolic output, what predict gives and the reloaded model."""
    model = classifier()
    assert model.outputs[0].dtype == "float32"
    assert model.predict(np.ones((2, 16), "float32"), verbose=0).dtype == np.float32


@pytest.mark.parametrize("value", [70_000.0, 3e38])
@pytest.mark.parametrize("make_model", ["functional", "sequential", "layer"])
def test_float32_input_beyond_float16_is_not_rounded(mixed_policy, make_model, value):
    head = MixedPrecisionSafeHead(1, normalize=False, use_bias=False, kernel_initializer="ones")
    inputs = keras.Input((2,))
    model = {
        "functional": lambda: keras.Model(inputs, head(inputs)),
        "sequential": lambda: keras.Sequential([keras.Input((2,)), head]),
        "layer": lambda: head,
    }[make_model]()
    outputs = model(np.array([[value, 1.0], [value, -value]], "float32"))
    np.testing.assert_array_equal(outputs, np.array([[np.float32(value) + 1], [0]], "float32"))


def test_a_dense_head_does_round_it(set_dtype_policy):
    """What the head is for: the same product without it."""
    set_dtype_policy("mixed_float16")
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    assert np.isinf(dense(np.array([[70_000.0, 1.0]], "float32"))).all()


def test_half_precision_input_is_cast_before_any_arithmetic(mixed_policy):
    """60,000 + 60,000 is infinite in float16; in bfloat16, 256 + 1 is 256."""
    half = mixed_policy.removeprefix("mixed_")
    head = MixedPrecisionSafeHead(1, normalize=False, kernel_initializer="ones")
    x = ops.cast(np.array([[60_000.0, 60_000.0, 1.0], [256.0, 1.0, 0.0]]), half)
    exact = np.asarray(ops.cast(x, "float32")).sum(-1, keepdims=True)
    np.testing.assert_array_equal(head(x), exact)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "mixed_float16", "mixed_bfloat16", "int8_from_float32"]
)
def test_another_dtype_is_refused(dtype):
    with pytest.raises(ValueError, match=r"must be float32. Received: dtype=.*Leave `dtype` out"):
        MixedPrecisionSafeHead(3, dtype=dtype)
    with pytest.raises(ValueError, match="must be float32"):
        MixedPrecisionSafeHead(3, dtype=keras.dtype_policies.get(dtype))
    head = MixedPrecisionSafeHead(3)
    with pytest.raises(ValueError, match="must be float32"):
        head.dtype_policy = dtype
    assert head.compute_dtype == "float32"


@pytest.mark.parametrize("dtype", [None, "float32", tf.float32, keras.DTypePolicy("float32")])
def test_float32_may_be_said(dtype):
    assert MixedPrecisionSafeHead(3, dtype=dtype).dtype_policy == keras.DTypePolicy("float32")


# --- the right values


@pytest.mark.parametrize("shape", [(7, 12), (3, 5, 12), (2, 3, 4, 12), (2, 1, 3, 2, 12)])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("use_bias", [True, False])
def test_values_for_any_rank(shape, normalize, use_bias):
    head = with_random_weights(MixedPrecisionSafeHead(6, normalize=normalize, use_bias=use_bias), shape)
    x = np.random.default_rng(1).normal(size=shape).astype("float32")
    outputs = head(x)
    assert outputs.shape == (*shape[:-1], 6) == head.compute_output_shape(shape)
    np.testing.assert_allclose(outputs, reference(head, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("features", [64, 4096])
@pytest.mark.parametrize("offset", [0, 1e4, -1e6])
def test_normalization_of_large_inputs_loses_nothing(offset, features, jit_compile):
    """The offset is a million times the spread, or near it: E[x^2] - E[x]^2 would give noise."""
    head = MixedPrecisionSafeHead(features, kernel_initializer="identity")
    head.build((None, features))
    x = (offset + np.random.default_rng(0).uniform(-1, 1, (8, features))).astype("float32")
    outputs = tf.function(head, jit_compile=jit_compile)(x)
    np.testing.assert_allclose(outputs, reference(head, x), rtol=0, atol=5e-6)


def test_normalization_of_large_half_precision_inputs(mixed_policy):
    """Their squares, 3.6e9, are infinite in float16."""
    head = MixedPrecisionSafeHead(2, kernel_initializer="identity")
    head.build((None, 2))
    x = ops.cast(np.array([[60_000.0, -60_000.0]]), mixed_policy.removeprefix("mixed_"))
    np.testing.assert_allclose(head(x), [[1.0, -1.0]], rtol=1e-6)


def test_constant_input_normalizes_to_the_offset():
    head = MixedPrecisionSafeHead(3, kernel_initializer="identity")
    head.build((None, 3))
    head.beta.assign([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(head(np.full((2, 3), 7e4, "float32")), [[1.0, 2.0, 3.0]] * 2)


def test_epsilon_is_added_to_the_variance():
    head = MixedPrecisionSafeHead(2, epsilon=3.0, kernel_initializer="identity")
    np.testing.assert_allclose(head(np.array([[1.0, -1.0]], "float32")), [[0.5, -0.5]], rtol=1e-6)


def test_softmax_keeps_what_half_precision_loses(mixed_policy):
    """Over 4,096 equal classes each probability is 2**-12, and they add up to 1."""
    head = MixedPrecisionSafeHead(4096, "softmax", kernel_initializer="zeros")
    probabilities = np.asarray(head(np.ones((1, 4), "float32")))
    np.testing.assert_allclose(probabilities, 2.0**-12, rtol=1e-6)
    logits = MixedPrecisionSafeHead(2, "softmax", normalize=False, kernel_initializer="identity")
    np.testing.assert_allclose(logits(np.array([[0.0, -20.0]], "float32"))[0, 1], np.exp(-20.0), rtol=1e-5)


def test_gradients_are_finite_for_huge_logits(mixed_policy):
    half = mixed_policy.removeprefix("mixed_")
    for normalize in (True, False):
        head = MixedPrecisionSafeHead(3, normalize=normalize, kernel_initializer="identity")
        x = tf.Variable(ops.cast(np.array([[65_000.0, -65_000.0, 0.0], [0.0, 0.0, 0.0]]), half))
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(np.array([1, 0]), head(x))
        gradients = tape.gradient(loss, [x, *[w.value for w in head.trainable_weights]])
        assert np.isfinite(loss)
        assert all(np.isfinite(np.asarray(ops.cast(g, "float32"))).all() for g in gradients)


# --- training


@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_training_lowers_the_loss(mixed_policy, activation, jit_compile):
    x, y = blobs()
    model = compiled(classifier(activation=activation), jit_compile, from_logits=activation is None)
    losses = model.fit(x, y, batch_size=32, epochs=4, verbose=0).history["loss"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]
    assert all(w.dtype == "float32" for w in model.layers[-1].weights)


def test_labels_beyond_float16_are_kept(set_dtype_policy):
    """Case 15: float16 rounds 2049 to 2048 and 4095 to 4096."""
    set_dtype_policy("mixed_float16")
    labels = np.array([2049, 4095] * 16)
    x = np.where(labels[:, None] == 2049, [[1.0, 0.0]], [[0.0, 1.0]]).astype("float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8), MixedPrecisionSafeHead(4096)])
    compiled(model, learning_rate=0.1)
    model.fit(x, labels, batch_size=8, epochs=5, verbose=0)
    assert model.evaluate(x, labels, batch_size=8, verbose=0, return_dict=True)["accuracy"] == 1.0
    np.testing.assert_array_equal(model.predict(x, verbose=0).argmax(-1), labels)


def test_regularizers_and_constraints_act():
    head = MixedPrecisionSafeHead(
        2,
        normalize=False,
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.5),
        bias_regularizer=keras.regularizers.L1(1.0),
        kernel_constraint="non_neg",
        bias_constraint="non_neg",
    )
    head(np.ones((1, 3), "float32"))
    head.bias.assign([2.0, 0.0])
    assert float(sum(head.losses)) == pytest.approx(0.5 * 6 + 2)
    assert head.kernel.constraint is not None
    assert head.bias.constraint is not None
    active = MixedPrecisionSafeHead(2, normalize=False, kernel_initializer="ones", activity_regularizer="l2")
    active(np.ones((1, 3), "float32"))
    assert float(sum(active.losses)) == pytest.approx(0.01 * 2 * 9)


def test_a_frozen_head_is_not_trained():
    x, y = blobs(64)
    model = compiled(classifier(trainable=False))
    before = model.layers[-1].get_weights()
    model.fit(x, y, epochs=1, verbose=0)
    for old, new in zip(before, model.layers[-1].get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


# --- saving, configs and copies


def test_saved_model_loads_without_custom_objects(policy, tmp_path):
    """Case 16, the reloaded model; it stays float32 whatever policy is set when it is loaded."""
    model = classifier(activation="softmax", kernel_regularizer="l2")
    x = blobs(8)[0]
    model.save(tmp_path / "model.keras")
    for policy_at_loading in (policy, "mixed_float16"):
        keras.config.set_dtype_policy(policy_at_loading)
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert loaded.outputs[0].dtype == "float32"
        predicted = loaded.predict(x, verbose=0)
        assert predicted.dtype == np.float32
        np.testing.assert_array_equal(predicted, model.predict(x, verbose=0))
        assert all(w.dtype == "float32" for w in loaded.layers[-1].weights)


@pytest.mark.parametrize(("from_policy", "to_policy"), [("float32", "mixed_float16"), ("mixed_float16", "float32")])
def test_weights_move_between_policies(from_policy, to_policy, set_dtype_policy, tmp_path):
    set_dtype_policy(from_policy)
    source = classifier()
    source.save_weights(tmp_path / "w.weights.h5")
    set_dtype_policy(to_policy)
    target = classifier()
    target.load_weights(tmp_path / "w.weights.h5")
    for old, new in zip(source.get_weights(), target.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    x = blobs(8)[0]
    np.testing.assert_allclose(target.predict(x, verbose=0), source.predict(x, verbose=0), atol=0.02)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"activation": "softmax", "normalize": False, "epsilon": 1e-3, "use_bias": False, "name": "the_head"},
        {
            "kernel_initializer": keras.initializers.HeNormal(seed=1),
            "bias_initializer": "ones",
            "kernel_regularizer": keras.regularizers.L1L2(1e-3, 1e-4),
            "bias_regularizer": "l1",
            "activity_regularizer": "l2",
            "kernel_constraint": keras.constraints.MaxNorm(2),
            "bias_constraint": "non_neg",
            "trainable": False,
        },
        {"activation": keras.layers.LeakyReLU(negative_slope=0.3, dtype="float32")},
    ],
)
def test_config_round_trip(arguments, policy):
    head = MixedPrecisionSafeHead(np.int64(5), **arguments)
    config = head.get_config()
    assert json.loads(json.dumps(config)) == config
    again = MixedPrecisionSafeHead.from_config(config)
    assert again.get_config() == config
    assert again.dtype_policy == keras.DTypePolicy("float32")
    deserialized = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(head))
    assert deserialized.get_config() == config
    assert config["units"] == 5
    for name, value in arguments.items():
        assert name in config
        if isinstance(value, bool | float | str) and not name.endswith(("initializer", "regularizer", "constraint")):
            assert config[name] == value


def test_a_clone_has_the_same_settings(mixed_policy):
    model = classifier(activation="sigmoid", epsilon=1e-4)
    clone = keras.models.clone_model(model)
    assert clone.layers[-1] is not model.layers[-1]
    assert clone.layers[-1].get_config() == model.layers[-1].get_config()
    clone.set_weights(model.get_weights())
    x = blobs(8)[0]
    np.testing.assert_array_equal(clone.predict(x, verbose=0), model.predict(x, verbose=0))


def test_summary_lists_the_head():
    lines = []
    model = classifier()
    model.summary(print_fn=lines.append, line_length=120)
    assert "MixedPrecisionSafeHead" in "".join(lines)
    assert "Total params: 740 " in "".join(lines)
    # gamma and beta of 32, a kernel of 32 x 4 and a bias of 4
    assert model.layers[-1].count_params() == 196


# --- where it is used


@keras.saving.register_keras_serializable(package="keras_turbo_tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.body = keras.layers.Dense(8, activation="relu")
        self.head = MixedPrecisionSafeHead(4)

    def call(self, inputs):
        return self.head(self.body(inputs))


def test_in_a_subclassed_model(mixed_policy, tmp_path):
    x, y = blobs()
    model = compiled(Subclassed())
    losses = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    predicted = model.predict(x, verbose=0)
    assert predicted.dtype == np.float32
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras").predict(x, verbose=0), predicted)


def test_deferred_build(mixed_policy):
    head = MixedPrecisionSafeHead(3)
    assert not head.built
    assert head.weights == []
    model = keras.Sequential([keras.layers.Dense(4), head])
    assert model(np.ones((2, 7), "float32")).shape == (2, 3)
    assert head.kernel.shape == (4, 3)


def masked_sequences():
    return np.array([[3, 4, 0, 0], [5, 0, 0, 0], [1, 2, 3, 4]])


def test_a_mask_reaches_the_layers_before_and_after(mixed_policy):
    tokens = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(10, 8, mask_zero=True)(tokens)
    states = keras.layers.GRU(6, return_sequences=True)(embedded)
    head = MixedPrecisionSafeHead(3)
    outputs = head(states)
    model = keras.Model(tokens, outputs)
    sequences = masked_sequences()
    result = model(sequences)
    np.testing.assert_array_equal(head.compute_mask(None, sequences != 0), sequences != 0)
    pooled = keras.Model(tokens, keras.layers.GlobalAveragePooling1D(dtype="float32")(outputs))
    steps = np.asarray(result)
    expected = [steps[i, : (sequences[i] != 0).sum()].mean(0) for i in range(3)]
    np.testing.assert_allclose(pooled(sequences), expected, rtol=1e-5, atol=1e-6)


def test_masked_sequences_train(mixed_policy):
    tokens = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(10, 8, mask_zero=True)(tokens)
    model = keras.Model(tokens, MixedPrecisionSafeHead(3)(keras.layers.GRU(6)(embedded)))
    x, y = np.tile(masked_sequences(), (8, 1)), np.tile([0, 1, 2], 8)
    losses = compiled(model, learning_rate=0.05).fit(x, y, batch_size=8, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    # What stands behind the end of a sequence makes no difference.
    short = model.predict(np.array([[3, 4]]), verbose=0)
    np.testing.assert_allclose(short, model.predict(np.array([[3, 4, 0, 0]]), verbose=0), rtol=1e-5, atol=1e-6)


def test_after_a_stateful_gru(mixed_policy):
    inputs = keras.Input(batch_shape=(2, 3, 4))
    gru = keras.layers.GRU(6, stateful=True, return_sequences=True)
    model = keras.Model(inputs, MixedPrecisionSafeHead(3)(gru(inputs)))
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    first, second = model(x), model(x)
    assert first.shape == (2, 3, 3)
    assert keras.backend.standardize_dtype(first.dtype) == "float32"
    assert not np.allclose(first, second)
    gru.reset_states()
    np.testing.assert_array_equal(model(x), first)


def test_symbolic_call_with_unknown_axes(policy):
    for shape in [(None, 8), (None, None, 8), (None, None, None, 8), (2, None, 8)]:
        outputs = MixedPrecisionSafeHead(3)(keras.KerasTensor(shape, dtype="float16"))
        assert (outputs.shape, outputs.dtype) == ((*shape[:-1], 3), "float32")


def test_one_head_for_several_ranks():
    head = with_random_weights(MixedPrecisionSafeHead(3), (None, 4))
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    np.testing.assert_allclose(head(x)[:, 1], head(x[:, 1]), rtol=1e-5, atol=1e-6)


def test_an_empty_batch():
    assert MixedPrecisionSafeHead(3)(np.zeros((0, 4), "float32")).shape == (0, 3)


# --- what is refused, and what the error says


@pytest.mark.parametrize("units", [0, -1, True, False, 2.0, 2.5, "10", None, [10]])
def test_bad_units(units):
    with pytest.raises(ValueError, match=r"`units` .* must be a positive integer. Received: units=.*Pass the number"):
        MixedPrecisionSafeHead(units)


@pytest.mark.parametrize("epsilon", [0, 0.0, -1e-6, float("nan"), float("inf"), 1e-60, 1e60, True, "1e-6", None])
def test_bad_epsilon(epsilon):
    with pytest.raises(ValueError, match=r"`epsilon` .* must be a positive number.* Received: epsilon=.*Leave it out"):
        MixedPrecisionSafeHead(3, epsilon=epsilon)


@pytest.mark.parametrize("argument", ["normalize", "use_bias"])
@pytest.mark.parametrize("value", [None, 1, 0, "yes"])
def test_bad_switches(argument, value):
    with pytest.raises(ValueError, match=f"`{argument}` .* must be True or False. Received: {argument}="):
        MixedPrecisionSafeHead(3, **{argument: value})


def test_a_half_precision_activation_layer_is_refused(set_dtype_policy):
    set_dtype_policy("mixed_float16")
    with pytest.raises(ValueError, match=r"must compute in float32.*computes in float16.*dtype='float32'"):
        MixedPrecisionSafeHead(3, keras.layers.Softmax())
    assert MixedPrecisionSafeHead(3, keras.layers.Softmax(dtype="float32"))(np.ones((1, 2), "float32")).shape == (1, 3)


def test_an_activation_that_changes_the_shape_is_refused():
    with pytest.raises(ValueError, match=r"must keep the shape.*4 units and returned shape \(2, 2\)"):
        MixedPrecisionSafeHead(4, keras.activations.glu)(np.ones((2, 3), "float32"))


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="no_such_activation"):
        MixedPrecisionSafeHead(4, "no_such_activation")


def test_unknown_last_axis_is_refused():
    with pytest.raises(ValueError, match=r"size of its input's last axis.*\(None, None\).*keras.Input"):
        MixedPrecisionSafeHead(3)(keras.Input((None,)))


def test_rank_1_and_another_size_are_refused():
    with pytest.raises(ValueError, match="min_ndim=2"):
        MixedPrecisionSafeHead(3)(np.ones(4, "float32"))
    head = MixedPrecisionSafeHead(3)
    head(np.ones((2, 4), "float32"))
    with pytest.raises(ValueError, match="axis -1"):
        head(np.ones((2, 5), "float32"))


def test_settings_are_by_keyword_only():
    with pytest.raises(TypeError):
        MixedPrecisionSafeHead(3, None, False)
