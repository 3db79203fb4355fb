from __future__ import annotations

import random
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.common import global_state

import keras_turbo
from keras_turbo.execution.debug_mode import DebugMode, is_debugging

X = np.linspace(-1, 1, 70 * 4).reshape(70, 4).astype("float32")
Y = np.arange(70) % 3


def small_model(**compile_options):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, **({"jit_compile": False} | compile_options))
    return model


class Batches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.eager = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)
        self.eager.append(tf.config.functions_run_eagerly())


class Spy(keras.layers.Layer):
    """Notes in which dtype and how it is called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = []

    def call(self, x):
        self.seen.append((x.dtype.name if hasattr(x.dtype, "name") else x.dtype, not tf.inside_function()))
        return x


@pytest.fixture(autouse=True)
def keras_is_left_as_it_was():
    methods = {
        keras.Operation: ["__call__"],
        keras.Layer: ["__call__"],
        keras.Loss: ["__call__"],
        keras.optimizers.Optimizer: ["apply"],
        keras.optimizers.LossScaleOptimizer: ["apply"],
        keras.Model: ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"],
    }
    before = {owner: [vars(owner).get(name) for name in names] for owner, names in methods.items()}
    assert before[keras.Model] == [None] * 6  # inherited
    yield
    assert not is_debugging()
    assert {owner: [vars(owner).get(name) for name in names] for owner, names in methods.items()} == before


def test_graph_functions_run_eagerly_until_it_is_closed():
    @tf.function(jit_compile=True)
    def is_eager():
        return not tf.inside_function()

    with keras_turbo.debug_mode():
        assert is_eager() is True
    assert bool(is_eager()) is False


def test_the_function_form_holds_until_close():
    debugging = keras_turbo.debug_mode()
    try:
        assert debugging.is_open
        assert is_debugging()
        assert "close() turns it off" in repr(debugging)
    finally:
        debugging.close()
    assert not debugging.is_open
    assert not is_debugging()
    debugging.close()
    with pytest.raises(RuntimeError, match="closed"), debugging:
        pass


def test_a_callback_sees_each_batch_and_settings_come_back():
    model = small_model(steps_per_execution=4)
    model.fit(X, Y, batch_size=10, verbose=0)
    function, seen = model.train_function, Batches()
    with keras_turbo.debug_mode():
        model.fit(X, Y, batch_size=10, verbose=0, callbacks=[seen], validation_data=(X, Y))
        assert model.predict(X, verbose=0).shape == (70, 3)
        assert model.train_function is function
    assert seen.batches == list(range(7))
    assert all(seen.eager)
    assert (model.steps_per_execution, model.run_eagerly, model.predict_function) == (4, False, None)
    assert model.train_function is function
    later = Batches()
    model.fit(X, Y, batch_size=10, verbose=0, callbacks=[later])
    assert len(later.batches) == 2
    assert int(model.optimizer.iterations) == 21
    assert model.predict(X, verbose=0).shape == (70, 3)


def test_the_same_losses_as_in_a_graph():
    def losses():
        keras.utils.set_random_seed(5)
        return small_model().fit(X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]

    in_graph = losses()
    with keras_turbo.debug_mode():
        np.testing.assert_allclose(losses(), in_graph, rtol=1e-5)


def test_train_step_and_layers_run_eagerly():
    spy = Spy()
    model = keras.Sequential([keras.Input((4,)), spy, keras.layers.Dense(3)])
    model.compile("sgd", "mse", jit_compile=True)
    spy.seen.clear()
    with keras_turbo.debug_mode():
        model.train_on_batch(X[:8], np.ones((8, 3)))
    assert spy.seen == [("float32", True)]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_layers_compute_in_float32(policy, set_dtype_policy):
    set_dtype_policy(policy)
    spy, hidden = Spy(), keras.layers.Dense(4, name="hidden")
    hidden.build((None, 4))

    class Composite(keras.layers.Layer):
        def call(self, x):
            return hidden(spy(x))  # neither is an attribute: no walk over the model finds them

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Composite(), keras.layers.Dense(3)])
    model.compile("sgd", "mse", jit_compile=False)
    weights = model.get_weights()
    spy.seen.clear()
    with keras_turbo.debug_mode():
        assert keras.config.dtype_policy().name == "float32"
        exact = model.predict(X, verbose=0)
        model.fit(X, np.ones((70, 3)), verbose=0)
        made_inside = keras.layers.Dense(1)
    assert {dtype for dtype, _ in spy.seen} == {"float32"}
    assert exact.dtype == np.float32
    assert keras.config.dtype_policy().name == policy
    assert {layer.dtype_policy.name for layer in (*model.layers, spy, hidden)} == {policy}
    assert made_inside.dtype_policy.name == "float32"
    # Exactly what the same weights give in float32.
    kernel, bias, last, last_bias = weights
    by_hand = (X @ kernel + bias) @ hidden.kernel.numpy() + hidden.bias.numpy()
    np.testing.assert_allclose(exact, by_hand @ last + last_bias, atol=1e-5)
    assert model.predict(X, verbose=0).dtype == policy.removeprefix("mixed_")


def test_a_policy_that_is_set_meanwhile_stays(set_dtype_policy):
    set_dtype_policy("mixed_bfloat16")
    layer, other = keras.layers.Dense(2), keras.layers.Dense(2)
    with keras_turbo.debug_mode():
        layer(X)
        other(X)
        layer.dtype_policy = "float64"
    assert layer.dtype_policy.name == "float64"
    assert other.dtype_policy.name == "mixed_bfloat16"


def test_layers_of_half_precision_weights_are_left_alone():
    layer = keras.layers.Dense(2, dtype="bfloat16")
    with keras_turbo.debug_mode():
        assert layer(X).dtype == "bfloat16"


def draws():
    numpy_draw = np.random.rand()  # noqa: NPY002 (the global state is under test)
    return [random.random(), numpy_draw, float(tf.random.uniform(()))]


def test_seeds_are_set_and_random_states_go_on_where_they_were():
    keras.utils.set_random_seed(1)
    expected = [draws(), draws(), draws()]
    keras.utils.set_random_seed(1)
    first = draws()
    with keras_turbo.debug_mode(seed=9):
        inside = draws()
        with keras_turbo.debug_mode(seed=9):
            assert draws() == inside
        following = draws()
    second = draws()
    with keras_turbo.debug_mode(seed=9):
        assert [draws(), draws()] == [inside, following]
    third = draws()
    assert [first, second, third] == expected
    keras.utils.set_random_seed(9)
    assert draws() == inside


def test_the_generator_of_keras_is_seeded_and_put_back():
    keras.random.uniform(())
    generator = global_state.get_global_attribute("global_seed_generator")
    state = generator.state.numpy().copy()
    inside = []
    for _ in range(2):
        with keras_turbo.debug_mode(seed=9):
            inside.append([float(keras.random.uniform(())), float(keras.random.uniform(()))])
    assert inside[0] == inside[1]
    assert len(set(inside[0])) == 2
    assert global_state.get_global_attribute("global_seed_generator") is generator
    np.testing.assert_array_equal(generator.state.numpy(), state)


def test_no_seed_leaves_random_states_alone():
    keras.utils.set_random_seed(1)
    expected = draws()
    keras.utils.set_random_seed(1)
    with keras_turbo.debug_mode(seed=None):
        assert draws() == expected


@pytest.mark.slow
def test_an_unset_seed_stays_unset(run_python):
    out = run_python(
        """
        import keras, keras_turbo
        from tensorflow.python.eager import context
        with keras_turbo.debug_mode(seed=3):
            keras.random.uniform(())
        assert context.global_seed() is None
        import tensorflow as tf
        assert float(tf.random.uniform(())) != float(tf.random.uniform(()))
        print(keras.utils.get_random_seed() if hasattr(keras.utils, "get_random_seed") else None)
        """
    )
    assert out.strip() == "None"


def test_nested_modes_may_close_in_any_order():
    tf.config.run_functions_eagerly(False)
    outer, inner = keras_turbo.debug_mode(), keras_turbo.debug_mode(check_numerics=False)
    outer.close()
    assert is_debugging()
    assert tf.config.functions_run_eagerly()
    assert np.isnan(keras.layers.Lambda(lambda x: x * np.nan)(X)).all()  # the one that looks for NaN is closed
    inner.close()
    assert not tf.config.functions_run_eagerly()


def test_an_exception_restores_everything(set_dtype_policy):
    set_dtype_policy("mixed_bfloat16")
    model = small_model(steps_per_execution=3)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"), keras_turbo.debug_mode():
        model.fit(X, Y, verbose=0, callbacks=[Stop()])
    assert (model.steps_per_execution, model.run_eagerly, model.train_function) == (3, False, None)
    assert {layer.dtype_policy.name for layer in model.layers} == {"mixed_bfloat16"}
    assert not tf.config.functions_run_eagerly()


def test_what_was_eager_before_stays_eager():
    tf.config.run_functions_eagerly(True)
    try:
        with keras_turbo.debug_mode():
            pass
        assert tf.config.functions_run_eagerly()
    finally:
        tf.config.run_functions_eagerly(False)


def test_it_holds_in_every_thread():
    seen = []

    def train():
        seen.append((is_debugging(), small_model().predict(X, verbose=0).shape))

    with keras_turbo.debug_mode():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert seen == [(True, (70, 3))]


def test_modes_opened_and_closed_by_many_threads():
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        for _ in range(5):
            keras_turbo.debug_mode(seed=None).close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not tf.config.functions_run_eagerly()


def test_no_warning_of_tf_data_and_no_filter_left():
    before = list(warnings.filters)
    with keras_turbo.debug_mode():
        small_model().fit(tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x * 2, y)).batch(8), verbose=0)
    assert warnings.filters == before


def test_under_a_strategy(two_cpu_strategy):
    with two_cpu_strategy.scope():
        model = small_model()
    with keras_turbo.debug_mode():
        model.fit(X, Y, batch_size=10, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 7


def test_compiled_meanwhile_by_a_callback():
    class Compile(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.compile("sgd", "mse", jit_compile=False)

    model = small_model()
    model.fit(X, Y, verbose=0)
    with keras_turbo.debug_mode():
        model.fit(X, Y, verbose=0, callbacks=[Compile()])
    assert model.train_function is None


@pytest.mark.parametrize("seed", [True, -1, 2**32, 1.5, "a"])
def test_a_wrong_seed(seed):
    with pytest.raises(ValueError, match="`seed` of debug_mode must be an integer from 0"):
        keras_turbo.debug_mode(seed=seed)


@pytest.mark.parametrize("check_numerics", [1, None, "yes"])
def test_a_wrong_check_numerics(check_numerics):
    with pytest.raises(ValueError, match="`check_numerics` of debug_mode must be True or False"):
        keras_turbo.debug_mode(check_numerics=check_numerics)


def test_its_type():
    with keras_turbo.debug_mode(seed=np.int64(3), check_numerics=np.True_) as debugging:
        assert isinstance(debugging, DebugMode)
