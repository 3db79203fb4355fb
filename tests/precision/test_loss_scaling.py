"""Scaled losses give the updates of unscaled ones, on one replica and on two, and what is skipped is counted."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_turbo as kt
from keras_turbo.precision import LossScaleLogs, SafeLossScaleOptimizer
from keras_turbo.precision.loss_scaling import number
from tests.precision.caught import precision_warnings

pytestmark = pytest.mark.compatibility

INFINITY, NAN = float("inf"), float("nan")


class OneVariable:
    """A variable of one number, and an optimizer that is given its gradients, one for each replica."""

    def __init__(self, make_inner, strategy=None, jit_compile=False, **options):
        self.strategy = strategy or tf.distribute.get_strategy()
        self.scale = options.setdefault("initial_scale", options.get("static_loss_scale") or 4.0)
        with self.strategy.scope():
            self.variable = keras.Variable([0.0])
            self.optimizer = SafeLossScaleOptimizer(make_inner(), **options)
            self.optimizer.build([self.variable])
        self.step = tf.function(self._step, jit_compile=jit_compile)

    def _step(self, gradients):
        def on_replica(gradient):
            self.optimizer.apply([gradient * self.optimizer.dynamic_scale], [self.variable])

        self.strategy.run(on_replica, args=(gradients,))

    def __call__(self, *gradients):
        assert len(gradients) == self.strategy.num_replicas_in_sync
        values = [tf.constant([float(one)]) for one in gradients]
        if len(values) == 1:
            self.step(values[0])
        else:
            of_replica = self.strategy.experimental_distribute_values_from_function
            self.step(of_replica(lambda context: values[context.replica_id_in_sync_group]))
        return float(self.variable.numpy()[0])


def sgd(**options):
    """Makes one where the variables are made, in a strategy's scope."""
    return lambda: keras.optimizers.SGD(1.0, **options)


# --- clipping


@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("clip", [{"clipnorm": 0.5}, {"global_clipnorm": 0.5}, {"clipvalue": 0.5}])
def test_one_replica_clips_after_unscaling(clip, jit_compile):
    """Case 17."""
    assert OneVariable(sgd(**clip), jit_compile=jit_compile, initial_scale=2.0**15)(3) == -0.5


@pytest.mark.parametrize("clip", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipvalue": 1.0}])
def test_two_replicas_clip_the_sum(two_cpu_strategy, clip):
    """Case 17: the sum is 4. Keras clips 6 to 1 and -2 to -1 and adds up to 0."""
    assert OneVariable(sgd(**clip), two_cpu_strategy)(6, -2) == -1.0


def test_stock_keras_clips_each_replicas_own(two_cpu_strategy):
    """What it is for."""
    with two_cpu_strategy.scope():
        variable, optimizer = keras.Variable([0.0]), keras.optimizers.LossScaleOptimizer(sgd(clipnorm=1.0)())
        optimizer.build([variable])

    @tf.function
    def step(gradients):
        two_cpu_strategy.run(lambda one: optimizer.apply([one * 2.0**15], [variable]), args=(gradients,))

    of_replica = two_cpu_strategy.experimental_distribute_values_from_function
    step(of_replica(lambda context: tf.constant([[6.0], [-2.0]][context.replica_id_in_sync_group])))
    assert variable.numpy() == 0.0


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "rmsprop", "lion"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_updates_are_those_of_the_inner_optimizer(two_cpu_strategy, name, replicas):
    gradients = [3.0, -1.0, 0.5]
    alone, variable = keras.optimizers.get(name), keras.Variable([0.0])
    for gradient in gradients:
        alone.apply([tf.constant([gradient])], [variable])
    scaled = OneVariable(lambda: keras.optimizers.get(name), two_cpu_strategy if replicas == 2 else None)
    for gradient in gradients:
        # Two replicas' gradients are summed, as Keras divides each replica's loss by their number.
        value = scaled(*[gradient / replicas] * replicas)
    assert value == pytest.approx(float(variable.numpy()[0]), rel=1e-6)


# --- overflow


@pytest.mark.parametrize("bad", [INFINITY, -INFINITY, NAN])
@pytest.mark.parametrize("replica", [0, 1])
def test_an_overflow_in_any_replica_skips_the_step(two_cpu_strategy, replica, bad):
    one = OneVariable(sgd(), two_cpu_strategy)
    gradients = [1.0, 1.0]
    gradients[replica] = bad
    assert one(*gradients) == 0.0
    assert (one.optimizer.loss_scale, one.optimizer.skipped_steps, number(one.optimizer.iterations)) == (2.0, 1, 0)
    assert one(1, 1) == -2.0
    assert (one.optimizer.skipped_in_a_row, one.optimizer.skipped_steps, number(one.optimizer.iterations)) == (0, 1, 1)


@pytest.mark.parametrize("jit_compile", [True, False])
def test_the_scale_moves_between_floor_and_ceiling(jit_compile):
    options = {"dynamic_growth_steps": 2, "minimum_scale": 1.0, "maximum_scale": 8.0}
    one = OneVariable(sgd(), jit_compile=jit_compile, **options)
    seen = []
    for gradient in [1, 1, 1, 1, 1, 1, INFINITY, 1, INFINITY, INFINITY, INFINITY, NAN]:
        one(gradient)
        seen.append((one.optimizer.loss_scale, one.optimizer.good_steps_in_a_row))
    growing = [(4, 1), (8, 0), (8, 1), (8, 0), (8, 1), (8, 0)]
    assert seen == [*growing, (4, 0), (4, 1), (2, 0), (1, 0), (1, 0), (1, 0)]
    assert (one.optimizer.skipped_in_a_row, one.optimizer.skipped_steps) == (4, 5)


def test_a_static_scale_stays(two_cpu_strategy):
    one = OneVariable(sgd(), two_cpu_strategy, static_loss_scale=128.0, dynamic_growth_steps=1)
    assert [one(1, 1), one(INFINITY, 1), one(1, 1)] == [-2.0, -2.0, -4.0]
    assert (one.optimizer.loss_scale, one.optimizer.skipped_steps) == (128.0, 1)


# --- accumulation


@pytest.mark.parametrize("replicas", [1, 2])
def test_accumulated_gradients(two_cpu_strategy, replicas):
    """The mean of two micro-batches that count, clipped once it is known."""
    inner = sgd(gradient_accumulation_steps=2, clipnorm=3.0)
    one = OneVariable(inner, two_cpu_strategy if replicas == 2 else None)
    values = [one(*[sum_of_replicas / replicas] * replicas) for sum_of_replicas in (2, 2, 8, INFINITY, 2, 1, 1)]
    assert values == [0, -2, -2, -2, -5, -5, -6]
    assert (number(one.optimizer.iterations), one.optimizer.skipped_steps) == (3, 1)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Nadam"])
def test_accumulated_updates_are_those_of_the_inner_optimizer(two_cpu_strategy, name):
    """Adam corrects its bias by the number of updates, not of micro-batches."""

    def make():
        return getattr(keras.optimizers, name)(0.1, gradient_accumulation_steps=3)

    own = make()
    variable = keras.Variable([0.0])
    own.build([variable])
    scaled = OneVariable(make, two_cpu_strategy)
    for gradient in (1.0, -3.0, 4.0, 0.5, 0.5, 2.0, -9.0, 1.0, 1.0):
        own.apply([tf.constant([gradient])], [variable])
        assert scaled(gradient / 2, gradient / 2) == pytest.approx(float(variable.numpy()[0]), abs=1e-6)
    assert abs(float(variable.numpy()[0])) > 0.05


def test_accumulation_and_averaged_weights_over_replicas_are_refused(two_cpu_strategy):
    one = OneVariable(sgd(gradient_accumulation_steps=2, use_ema=True), two_cpu_strategy)
    with pytest.raises(ValueError, match="does not go together with `use_ema=True`"):
        one(1, 1)


def test_another_keras_is_named(two_cpu_strategy, monkeypatch):
    """Without the private method that it replaces, gradients would be summed twice in silence."""
    name = "_all_reduce_sum_gradients"
    one = OneVariable(sgd(), two_cpu_strategy)
    owner = next(cls for cls in keras.optimizers.SGD.__mro__ if name in vars(cls))
    monkeypatch.delattr(owner, name)
    with pytest.raises(RuntimeError, match=rf"SGD of Keras {keras.__version__} has no `{name}`"):
        one(1, 1)


def test_outside_of_a_replica_it_is_refused(two_cpu_strategy):
    one = OneVariable(sgd(), two_cpu_strategy)
    with two_cpu_strategy.scope(), pytest.raises(ValueError, match="must be called in a replica"):
        one.optimizer.apply([tf.constant([1.0])], [one.variable])


# --- in fit


def regression(optimizer=None, **options):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
    optimizer = optimizer or SafeLossScaleOptimizer("sgd", initial_scale=2.0**10)
    model.compile(optimizer, "mse", **options)
    return kt.make_precision_safe(model, verbose=False)


def samples(examples=36):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, 4)).astype("float32")
    return x, x.sum(-1, keepdims=True)


@pytest.fixture
def float16(set_dtype_policy):
    set_dtype_policy("mixed_float16")


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [1, 4])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("jit_compile", [True, False, "auto"])
def test_every_combination_trains(float16, two_cpu_strategy, jit_compile, replicas, steps_per_execution):
    """Case 19. What TensorFlow can't do is off, with one warning each."""
    x, y = samples(32)
    scope = two_cpu_strategy.scope() if replicas == 2 else contextlib.nullcontext()
    with scope, precision_warnings() as messages:
        model = regression(
            keras.optimizers.Adam(0.03), jit_compile=jit_compile, steps_per_execution=steps_per_execution
        )
        history = model.fit(x, y, batch_size=8, epochs=3, verbose=0)
        kt.make_precision_safe(model, verbose=False)
    expected = ["jit_compile is switched off"] if jit_compile is True and replicas == 2 else []
    expected += ["steps_per_execution is set to 1"] if steps_per_execution == 4 and replicas == 2 else []
    messages = [message for message in messages if "multiples of 8" not in message]
    assert [any(message.startswith(text) for text in expected) for message in messages] == [True] * len(expected)
    assert number(model.optimizer.iterations) + model.optimizer.skipped_steps == 12
    assert history.history["loss"][-1] < history.history["loss"][0]


def with_two_overflows(model, callbacks=()):
    """9 batches, of which the 3rd and 7th have infinite targets."""
    x, y = samples()
    y[8:12] = y[24:28] = INFINITY
    return model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=list(callbacks))


def test_skipped_steps_are_counted_apart_from_batches(float16, tmp_path):
    """Case 18: 9 batches, 7 optimizer steps; so do the logs and the files named by them."""
    batches = []
    counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(dict(logs)))
    name = "steps{optimizer_steps}-skipped{skipped_steps}.weights.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / name, save_weights_only=True)
    board = keras.callbacks.TensorBoard(tmp_path / "logs")
    model = regression()
    history = with_two_overflows(model, [LossScaleLogs(), counter, checkpoint, board]).history
    assert (number(model.optimizer.iterations), model.optimizer.skipped_steps, len(batches)) == (7, 2, 9)
    assert [one["optimizer_steps"] for one in batches] == [1, 2, 2, 3, 4, 5, 5, 6, 7]
    assert [one["skipped_steps"] for one in batches] == [0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert [one["loss_scale_good_steps"] for one in batches] == [1, 2, 0, 1, 2, 3, 0, 1, 2]
    assert [one["loss_scale"] for one in batches] == [2.0**10] * 2 + [2.0**9] * 4 + [2.0**8] * 3
    assert history["optimizer_steps"] == [7]
    assert (tmp_path / "steps7-skipped2.weights.h5").exists()
    assert all(np.isfinite(w).all() for w in model.get_weights())
    scalars = {}
    for file in (tmp_path / "logs" / "train").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            scalars.update(
                (value.tag, float(tf.make_ndarray(value.tensor)))
                for value in event.summary.value
                if value.tag in ("epoch_skipped_steps", "epoch_optimizer_steps", "epoch_loss_scale")
            )
    assert scalars == {"epoch_skipped_steps": 2, "epoch_optimizer_steps": 7, "epoch_loss_scale": 2.0**8}


def test_nothing_in_the_logs_without_scaling():
    history = regression("sgd").fit(*samples(), verbose=0, callbacks=[LossScaleLogs()]).history
    assert set(history) == {"loss"}


RESUME = """
    import sys
    import keras, numpy as np
    import keras_turbo as kt

    folder, action = sys.argv[1:]
    keras.config.set_dtype_policy("mixed_float16")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(36, 4)).astype("float32")
    y = x.sum(-1, keepdims=True)
    if action == "train":
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile(kt.precision.SafeLossScaleOptimizer("adam", 2.0**10, dynamic_growth_steps=5), "mse")
        bad = y.copy()
        bad[:4] = np.inf
        model.fit(x, bad, batch_size=4, shuffle=False, verbose=0)
        model.save(folder + "/model.keras")
    else:
        model = keras.models.load_model(folder + "/model.keras")
    optimizer = model.optimizer
    print([optimizer.loss_scale, optimizer.good_steps_in_a_row, optimizer.skipped_steps, int(optimizer.iterations)])
    print([float(np.abs(v.numpy()).sum()) for v in optimizer.variables])
    print(model.fit(x, y, batch_size=36, shuffle=False, epochs=2, verbose=0).history["loss"])
"""


@pytest.mark.slow
def test_another_process_goes_on_where_this_one_was(run_python, tmp_path):
    """Case 20."""
    trained, resumed = run_python(RESUME, tmp_path, "train"), run_python(RESUME, tmp_path, "resume")
    assert trained == resumed
    assert trained.startswith("[1024.0, 3, 1, 8]")


def test_a_stock_optimizers_file_is_taken(float16, tmp_path):
    def built(optimizer):
        variable = keras.Variable([1.0, 2.0])
        optimizer.build([variable])
        return optimizer, variable

    stock, variable = built(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)))
    for _ in range(3):
        stock.apply([tf.constant([1.0, 2.0]) * stock.dynamic_scale], [variable])
    ours, _ = built(SafeLossScaleOptimizer(keras.optimizers.Adam(0.1)))
    store: dict = {}
    stock.save_own_variables(store)
    ours.load_own_variables(store)
    assert (ours.good_steps_in_a_row, ours.loss_scale, number(ours.iterations)) == (3, 2.0**15, 3)
    for expected, found in zip(stock.inner_optimizer.variables, ours.inner_optimizer.variables, strict=True):
        np.testing.assert_array_equal(found, expected)
    again, _ = built(SafeLossScaleOptimizer(keras.optimizers.Adam(0.1)))
    store = {}
    ours.save_own_variables(store)
    again.load_own_variables(store)
    assert again.good_steps_in_a_row == 3


def test_a_model_keeps_the_state_of_its_scaling(float16):
    x, y = samples()
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(x, y, batch_size=4, verbose=0)
    before = [v.numpy() for v in model.optimizer.inner_optimizer.variables]
    good = int(model.optimizer.step_counter)
    kt.make_precision_safe(model, verbose=False)
    assert isinstance(model.optimizer, SafeLossScaleOptimizer)
    assert model.optimizer.good_steps_in_a_row == good > 0
    for value, variable in zip(before, model.optimizer.inner_optimizer.variables, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert model.get_compile_config()["optimizer"]["class_name"] == "SafeLossScaleOptimizer"


# --- as an optimizer of Keras'


def test_config():
    optimizer = SafeLossScaleOptimizer(
        keras.optimizers.AdamW(0.2, clipnorm=1.0), 64.0, 10, minimum_scale=2.0, maximum_scale=128.0, name="mine"
    )
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(copy, SafeLossScaleOptimizer)
    assert copy.get_config() == optimizer.get_config()
    assert copy.inner_optimizer.clipnorm == 1.0
    static = SafeLossScaleOptimizer("sgd", static_loss_scale=1024.0)
    assert keras.optimizers.deserialize(keras.optimizers.serialize(static)).static_loss_scale == 1024.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_scale": 0}, "`initial_scale` must be a positive number"),
        ({"initial_scale": 2.0**30}, "must lie between"),
        ({"static_loss_scale": -1.0}, "`static_loss_scale` must be a positive number"),
        ({"static_loss_scale": True}, "`static_loss_scale` must be a positive number"),
        ({"minimum_scale": NAN}, "`minimum_scale` must be a positive number"),
        ({"maximum_scale": INFINITY}, "`maximum_scale` must be a positive number"),
        ({"dynamic_growth_steps": 0}, "positive whole number"),
        ({"dynamic_growth_steps": True}, "positive whole number"),
        ({"inner_optimizer": 3}, "Could not interpret optimizer"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SafeLossScaleOptimizer(**{"inner_optimizer": "sgd"} | arguments)


def test_an_optimizer_that_scales_already_is_refused():
    with pytest.raises(ValueError, match="must not scale the loss itself"):
        SafeLossScaleOptimizer(keras.optimizers.LossScaleOptimizer(sgd()()))


# --- warnings


def test_a_scale_at_its_floor_is_warned_of_once(float16):
    x, y = samples()
    model = regression(SafeLossScaleOptimizer("sgd", initial_scale=4.0))
    with precision_warnings() as messages:
        model.fit(x, y * INFINITY, batch_size=6, verbose=0)
        model.fit(x, y * INFINITY, batch_size=36, verbose=0)
    assert [message.partition(":")[0] for message in messages] == ["The loss scale has fallen to its floor, 1"]


def test_many_skipped_in_a_row_are_warned_of_once(float16):
    """At the end of fit, or, with the callback, as soon as it happens."""
    x, y = samples()
    model = regression(SafeLossScaleOptimizer("sgd", static_loss_scale=8.0))
    with precision_warnings() as messages:
        model.fit(x, y * INFINITY, batch_size=3, verbose=0)
        model.fit(x, y * INFINITY, batch_size=3, verbose=0)
    assert len(messages) == 1
    assert messages[0].startswith("12 steps in a row were skipped")
    assert "and 12 in all; the loss scale is 8." in messages[0]
    model = regression(SafeLossScaleOptimizer("sgd", static_loss_scale=8.0))
    with precision_warnings() as messages:
        model.fit(x, y * INFINITY, batch_size=3, verbose=0, callbacks=[LossScaleLogs(warn_after_skipped=3)])
    assert [message.partition(",")[0] for message in messages] == ["3 steps in a row were skipped"]


@pytest.mark.parametrize("value", [0, -1, True, 2.5, None])
def test_the_callbacks_argument(value):
    with pytest.raises(ValueError, match="`warn_after_skipped` must be a positive whole number"):
        LossScaleLogs(warn_after_skipped=value)
