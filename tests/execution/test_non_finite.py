from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_turbo
from keras_turbo.execution.non_finite import NonFiniteError, non_finite_raises

X = np.linspace(-1, 1, 8 * 4).reshape(8, 4).astype("float32")


@pytest.fixture(autouse=True)
def debugging():
    with keras_turbo.debug_mode() as opened:
        yield opened


def message_of(function, *args, **kwargs):
    with pytest.raises(NonFiniteError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def compiled(model, loss="mse", optimizer="sgd", **options):
    model.compile(optimizer, loss, **options)
    return model


@keras.saving.register_keras_serializable("tests")
class Log(keras.layers.Layer):
    def call(self, x):
        return tf.math.log(x)


def test_the_first_layer_of_nested_ones_is_named_with_what_went_in():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Activation("linear"), Log(name="log")], name="inner")
    model = compiled(keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(2)], name="outer"))
    text = message_of(model.fit, X, np.ones((8, 2)), verbose=0)
    assert text.startswith("NaN in the output of 'outer/inner/log' (Log) at step 1 of the optimizer.")
    assert "output: float32 (8, 4), 16 NaN and 0 Inf of 32, finite values from -3.43399 to 0" in text
    assert "input: float32 (8, 4), all finite, from -1 to 1" in text
    assert "it arises here" in text
    assert "Arguments received" not in text


def test_inf_and_nan_are_told_apart():
    text = message_of(Log(name="log"), tf.constant([0.0, 1.0]))
    assert text.startswith("Inf in the output of 'log' (Log).")
    text = message_of(Log(name="log"), tf.constant([0.0, -1.0]))
    assert text.startswith("NaN and Inf in the output of 'log' (Log).")
    assert "finite values none" in text


def test_the_step_is_told():
    model = compiled(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    x = np.concatenate([np.ones((24, 4)), np.full((8, 4), np.nan)])
    text = message_of(model.fit, x, np.ones((32, 2)), batch_size=8, shuffle=False, verbose=0)
    assert "at step 4 of the optimizer" in text
    assert f"The batch itself, as it was given to {model.name!r}, is not finite: look at the data." in text


def test_nan_in_the_input_is_let_be_where_the_model_fills_it():
    class Fill(keras.layers.Layer):
        def call(self, x):
            return tf.where(tf.math.is_nan(x), 0.0, x)

    model = compiled(keras.Sequential([keras.Input((4,)), Fill(), keras.layers.Dense(2)]))
    x = X.copy()
    x[0, 0] = np.nan
    assert np.isfinite(model.fit(x, np.ones((8, 2)), verbose=0).history["loss"][0])


def test_weights_that_are_not_finite_already():
    model = compiled(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")], name="model"))
    model.layers[0].kernel.assign(np.full((4, 2), np.inf))
    text = message_of(model.predict, X, verbose=0)
    assert "Its weights are not finite: model/dense/kernel." in text


def test_an_operation_between_layers():
    class Model(keras.Model):
        def __init__(self):
            super().__init__(name="subclassed")
            self.one, self.two = keras.layers.Dense(3, name="one"), keras.layers.Dense(2, name="two")

        def call(self, x):
            return self.two(tf.math.log(-tf.square(self.one(x)) - 1.0))

    text = message_of(compiled(Model()).predict, X, verbose=0)
    assert "output of 'subclassed/two' (Dense)" in text
    assert "it arises in an operation between layers" in text


def test_an_operation_of_a_functional_model():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.ops.log(inputs)), name="functional")
    assert "NaN in the output of 'functional/log" in message_of(model.predict, X, verbose=0)


def test_a_loss():
    model = compiled(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),
        loss=lambda y_true, y_pred: tf.math.log(y_true - tf.reduce_mean(tf.square(y_pred))),
    )
    text = message_of(model.fit, X, np.full((8, 2), -1.0), verbose=0)
    assert text.startswith("NaN in the loss ")
    assert "y_true: float32 (8, 2), all finite, from -1 to -1" in text
    assert "What it is given is finite." in text


def test_labels_that_are_not_finite():
    model = compiled(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    text = message_of(model.fit, X, np.full((8, 2), np.nan), verbose=0)
    assert "NaN in the loss 'mse' at step 1" in text
    assert "look at the labels" in text


class Norm(keras.layers.Layer):
    """Finite at 0, with a derivative that is not."""

    def call(self, x):
        return tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True))


def zero_dense(units, **kwargs):
    return keras.layers.Dense(units, kernel_initializer="zeros", **kwargs)


def test_the_layer_whose_derivative_is_not_finite():
    model = keras.Sequential(
        [keras.Input((4,)), zero_dense(3), Norm(name="norm"), keras.layers.Dense(2, name="last")], name="model"
    )
    text = message_of(compiled(model).fit, X, np.ones((8, 2)), verbose=0)
    assert text.startswith("NaN (float32 (8, 3), 24 NaN and 0 Inf of 24, finite values none) in the gradient that ")
    assert "'model/norm' (Norm) passes back to its input at step 1" in text


def test_a_derivative_of_the_loss():
    model = keras.Sequential([keras.Input((4,)), zero_dense(2)], name="model")
    model = compiled(model, loss=lambda y_true, y_pred: tf.sqrt(tf.abs(y_pred)))
    text = message_of(model.fit, X, np.ones((8, 2)), verbose=0)
    assert "in the gradient that reaches the output of 'model' (Sequential) at step 1" in text


def test_gradients_of_weights():
    class Scale(keras.layers.Layer):
        def build(self, _):
            self.scale = self.add_weight(name="scale", shape=(), initializer="zeros")

        def call(self, x):
            return x * tf.sqrt(self.scale)

    model = keras.Sequential([keras.Input((4,)), Scale(name="scaling"), keras.layers.Dense(2)], name="weighted")
    text = message_of(compiled(model).fit, X, np.ones((8, 2)), verbose=0)
    assert "in the gradients of 1 of 3 weights at step 1 of the optimizer: weighted/scaling/scale." in text


def test_an_update_that_is_too_large():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")])
    model = compiled(model, optimizer=keras.optimizers.SGD(1e38))
    text = message_of(model.fit, X, np.full((8, 2), 1e3), verbose=0)
    assert "in 2 of 2 weights after the update at step 1" in text or "in 1 of 2 weights after the update" in text
    assert "the learning rate is too high" in text


def test_gradients_under_loss_scaling():
    model = keras.Sequential([keras.Input((4,)), zero_dense(3), keras.layers.Dense(2)])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    model = compiled(model, optimizer=optimizer)
    model.fit(X, np.ones((8, 2)), verbose=0)
    gradient = [tf.fill(weight.shape, np.inf) for weight in model.trainable_weights]
    text = message_of(optimizer.apply, gradient)
    assert "Inf in the gradients of 4 of 4 weights at step 2 of the optimizer: number 0" in text


@pytest.mark.slow
def test_masks_and_embeddings_and_recurrent_layers_train_as_in_a_graph(debugging):
    tokens = np.array([[1, 2, 3, 0, 0], [4, 1, 0, 0, 0]] * 4)

    def losses():
        keras.utils.set_random_seed(2)
        inputs = keras.Input((5,), dtype="int32")
        hidden = keras.layers.Embedding(6, 4, mask_zero=True)(inputs)
        hidden = keras.layers.MultiHeadAttention(2, 2)(hidden, hidden)
        hidden = keras.layers.LSTM(3, return_sequences=True)(hidden)
        model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(hidden)))
        model = compiled(model, optimizer="adam", jit_compile=False)
        return model.fit(tokens, np.ones((8, 2)), epochs=2, shuffle=False, verbose=0).history["loss"]

    in_debug_mode = losses()
    debugging.close()
    # Equal losses say that masks arrive.
    np.testing.assert_allclose(in_debug_mode, losses(), rtol=1e-5)


def test_gradients_of_rows_pass():
    class Lookup(keras.layers.Layer):
        def call(self, x):
            return tf.gather(x, [0, 0, 1])

    dense = keras.layers.Dense(2)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(Lookup()(dense(X)) ** 2)
    gradient = tape.gradient(total, dense.kernel.value)
    rows = tf.gather(X, [0, 0, 1])
    expected = 2 * tf.transpose(rows) @ (rows @ dense.kernel + dense.bias)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_a_custom_train_step_is_looked_at():
    class Custom(keras.Model):
        def __init__(self):
            super().__init__(name="custom")
            self.dense = keras.layers.Dense(1, name="dense")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.sqrt(tf.abs(self(data[0])) * 0.0))
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
            )
            return {"loss": loss}

    model = Custom()
    model.compile("sgd")
    text = message_of(model.fit, X, np.ones(8), verbose=0)
    assert "in the gradient that reaches the output of 'custom' (Custom) at step 1" in text


def test_graphs_and_symbolic_calls_are_not_touched(debugging):
    dataset = tf.data.Dataset.from_tensors(X).map(Log())
    assert np.isnan(next(iter(dataset))).any()
    debugging.close()
    with non_finite_raises():
        function = tf.function(Log())
        assert np.isnan(function(tf.constant(X))).any()


def test_finite_training_is_quiet_and_equal(debugging):
    def losses():
        keras.utils.set_random_seed(2)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "gelu"), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
        )
        model = compiled(model, optimizer="adam", run_eagerly=True)
        return model.fit(X, np.ones((8, 2)), epochs=4, batch_size=4, shuffle=False, verbose=0).history["loss"]

    in_debug_mode = losses()
    debugging.close()
    assert in_debug_mode == losses()
