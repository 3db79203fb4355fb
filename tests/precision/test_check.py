"""Each thing that is likely to go wrong is said once, and what is right is not."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_turbo as kt
from keras_turbo.precision import PrecisionWarning, SafeLossScaleOptimizer, check_precision, silence_warnings
from keras_turbo.precision.fragile_layers import half_layers
from tests.precision.caught import precision_warnings


@pytest.fixture
def float16(set_dtype_policy):
    set_dtype_policy("mixed_float16")


def warned(model, **compiled):
    if compiled:
        model.compile(**compiled)
    with precision_warnings() as messages:
        check_precision(model)
        check_precision(model)
    return messages


def stack(*of_layers, shape=(8,)):
    # NumPy warns of -1e9 in float16 wherever it is, with luck.
    with np.errstate(over="ignore"):
        return keras.Sequential([keras.Input(shape), *of_layers])


def test_a_model_without_faults(float16):
    model = stack(layers.Dense(16, "relu"), kt.MixedPrecisionSafeHead(3))
    assert warned(model, optimizer="sgd", loss="mse") == []


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_recurrent_layers_are_let_be_outside_of_float16(set_dtype_policy, policy):
    set_dtype_policy(policy)
    assert warned(stack(layers.LSTM(8), kt.MixedPrecisionSafeHead(3), shape=(4, 8))) == []


def test_recurrent_layers_in_float16(float16):
    model = stack(
        layers.LSTM(8, return_sequences=True, name="first"),
        layers.Bidirectional(layers.GRU(8), name="second"),
        kt.MixedPrecisionSafeHead(3),
        shape=(4, 8),
    )
    (message,) = warned(model)
    assert "recurrent layers compute in float16: " in message
    assert all(name in message for name in ("first", "second", "precision_report", "mixed_bfloat16"))
    assert "cell" not in message


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        ("sparse_categorical_crossentropy", 1),
        (keras.losses.SparseCategoricalCrossentropy(), 1),
        (["sparse_categorical_crossentropy"], 1),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), 0),
        ("mse", 0),
    ],
)
@pytest.mark.parametrize("separate", [True, False])
def test_a_softmax_output(float16, loss, count, separate):
    end = [layers.Dense(8), layers.Softmax()] if separate else [layers.Dense(8, "softmax")]
    model = stack(*end)
    messages = warned(model, optimizer="sgd", loss=loss)
    assert len(messages) == count
    assert all("its output is a softmax in float16, under a loss with from_logits=False" in one for one in messages)
    kt.make_precision_safe(model, verbose=False)
    assert len(warned(stack(*[layers.Dense(8, "softmax", dtype="float32")]), optimizer="sgd", loss=loss)) == 0


class Masked(layers.Layer):
    def __init__(self, constant, by="keras", **kwargs):
        super().__init__(**kwargs)
        self.constant, self.by = constant, by

    def call(self, inputs):
        mask = ops.cast(inputs > 0, inputs.dtype)
        if self.by == "keras":
            return inputs + (1 - mask) * self.constant
        if self.by == "cast":
            return inputs + (1 - mask) * tf.cast(tf.constant(self.constant), inputs.dtype)
        return tf.map_fn(lambda one: one + one * self.constant, inputs)


@pytest.mark.parametrize("by", ["keras", "cast", "inside a loop"])
def test_a_large_negative_constant(float16, by):
    model = stack(Masked(-1e9, by, name="masked"), kt.MixedPrecisionSafeHead(3))
    (message,) = warned(model)
    assert "constants below -65504 are minus infinity in float16" in message
    assert "-3e4" in message
    assert warned(stack(Masked(-3e4, by), kt.MixedPrecisionSafeHead(3))) == []
    assert warned(stack(Masked(-1e9, by, dtype="float32"), layers.Dense(8), kt.MixedPrecisionSafeHead(3))) == []


def test_attention_of_keras_has_no_such_constant(float16):
    inputs = keras.Input((4, 8))
    x = layers.MultiHeadAttention(2, 8)(inputs, inputs, use_causal_mask=True)
    assert warned(keras.Model(inputs, kt.MixedPrecisionSafeHead(3)(layers.Attention()([x, x])))) == []


def test_sizes_that_are_no_multiples_of_8(float16):
    model = stack(
        layers.Conv2D(6, 3, name="six"),
        layers.Flatten(),
        layers.Dense(16),
        layers.Dense(100, name="hundred"),
        kt.MixedPrecisionSafeHead(3),
        shape=(8, 8, 3),
    )
    (message,) = warned(model)
    assert "2 half-precision layers have sizes that are no multiples of 8: six (6), hundred (100)" in message


class Trained(keras.Model):
    """Has a train_step of its own."""

    def __init__(self):
        super().__init__()
        self.dense, self.head = layers.Dense(8), kt.MixedPrecisionSafeHead(3)

    def call(self, inputs):
        return self.head(self.dense(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.scaled(self.compute_loss(x, y, self(x, training=True)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

    def scaled(self, loss):
        return loss


class Scaling(Trained):
    def scaled(self, loss):
        return self.optimizer.scale_loss(loss)


class Calling(Trained):
    def train_step(self, data):
        return super().train_step(data)


class CallingKeras(Trained):
    def train_step(self, data):
        return keras.Model.train_step(self, data)


@pytest.mark.parametrize(("make", "warns"), [(Trained, True), (Scaling, False), (CallingKeras, False)])
def test_a_train_step_that_never_scales(float16, make, warns):
    model = make()
    model(np.ones((2, 8), "float32"))
    messages = warned(model, optimizer="sgd", loss="mse")
    assert [f"the train_step of {make.__name__} never scales its loss" in message for message in messages] == [
        True
    ] * warns


@pytest.mark.parametrize("scales", [False, True])
def test_a_train_step_that_never_scales_where_no_layer_is_left_in_half_precision(float16, scales):
    class OneLayer(Scaling if scales else Trained):
        def __init__(self):
            keras.Model.__init__(self)
            self.head = layers.Dense(3)

        def call(self, inputs):
            return self.head(inputs)

    model = OneLayer()
    model(np.ones((2, 8), "float32"))
    model.compile("sgd", "mse")  # Keras scales the loss by the policy of the model
    with precision_warnings() as messages:
        kt.make_precision_safe(model, verbose=False)
    assert half_layers(model) == []
    assert isinstance(model.optimizer, SafeLossScaleOptimizer)
    assert ["the train_step of OneLayer never scales its loss" in one for one in messages] == [True] * (not scales)


def test_float16_without_scaling(float16):
    model = stack(layers.Dense(8), kt.MixedPrecisionSafeHead(3))
    (message,) = warned(model, optimizer="sgd", loss="mse", auto_scale_loss=False)
    assert "its loss is not scaled" in message
    assert (
        warned(model, optimizer=keras.optimizers.SGD(loss_scale_factor=128.0), loss="mse", auto_scale_loss=False) == []
    )
    assert warned(model, optimizer=SafeLossScaleOptimizer("sgd"), loss="mse") == []


def test_a_compiled_model_is_checked_when_it_is_made_safe(float16):
    model = stack(layers.LSTM(8), layers.Dense(3, "softmax"), shape=(4, 8))
    model.compile("sgd", "sparse_categorical_crossentropy")
    with precision_warnings() as messages:
        kt.make_precision_safe(model, verbose=False)
    assert len(messages) == 1
    assert "recurrent" in messages[0]


def test_they_are_turned_off_together(float16):
    def model():
        made = stack(layers.LSTM(6), Masked(-1e9), layers.Dense(3, "softmax"), shape=(4, 8))
        made.compile("sgd", "sparse_categorical_crossentropy")
        return made

    assert len(warned(model())) == 4
    with silence_warnings():
        assert warned(model()) == []
        with silence_warnings(False):
            assert len(warned(model())) == 4
        assert warned(model()) == []
    silence_warnings()
    try:
        assert warned(model()) == []
    finally:
        silence_warnings(False)
    assert len(warned(model())) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrecisionWarning)
        check_precision(model())


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_silence_is_true_or_false(value):
    with pytest.raises(ValueError, match="`silenced` must be True or False"):
        silence_warnings(value)


def test_a_model_that_is_not_built(float16):
    with pytest.raises(ValueError, match="must be built"):
        check_precision(keras.Sequential([layers.Dense(3)]))
