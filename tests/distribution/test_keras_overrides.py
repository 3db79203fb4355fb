"""Keras is overridden for models under a strategy of ours, and for nobody else."""

from __future__ import annotations

import functools
import threading
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras.src.losses import loss as loss_module

import keras_turbo as kt
from keras_turbo.distribution import keras_overrides, strategies
from tests.distribution.scenarios import CROSSENTROPY, batches, number, opened, samples

pytestmark = pytest.mark.compatibility


@pytest.fixture(scope="module")
def strategy():
    return strategies.mirrored(["CPU:0", "CPU:1"])


def classifier(**settings: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
    defaults = {"optimizer": keras.optimizers.SGD(0.1), "loss": CROSSENTROPY(), "metrics": ["accuracy"]}
    model.compile(**defaults | settings)
    return model


class LogsOfBatches(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, Any]] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.logs.append(dict(logs or {}))


def what_can_be_overridden() -> dict[str, Any]:
    optimizers = [keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer, kt.precision.SafeLossScaleOptimizer]
    return {
        **vars(loss_module),
        "init": keras.Model.__init__,
        **{
            f"{one.__name__}.{name}": value
            for one in (*optimizers, keras.layers.BatchNormalization)
            for name, value in vars(one).items()
        },
    }


def test_everything_is_put_back(strategy):
    before = what_can_be_overridden()
    with opened(strategy):
        assert keras.Model.__init__ is not before["init"]
        model = classifier()
    assert what_can_be_overridden() == before
    model.fit(batches(*samples(6)), verbose=0)
    assert what_can_be_overridden() == before
    with pytest.raises(RuntimeError, match="from inside"), opened(strategy):
        raise RuntimeError("from inside")
    assert what_can_be_overridden() == before


def test_put_back_when_a_step_fails(strategy):
    class Failing(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            raise ArithmeticError("in the step")

    before = what_can_be_overridden()
    with opened(strategy):
        model = Failing([keras.Input((8,)), layers.Dense(3)])
        model.compile("sgd", "mse")
    with pytest.raises(ArithmeticError, match="in the step"):
        model.fit(*samples(6), verbose=0)
    assert what_can_be_overridden() == before
    tracker: Any = model.metrics[0]
    assert "update_state" not in vars(tracker)


def test_other_models_stay_as_they_are(strategy, two_cpu_strategy):
    makers = ("make_train_function", "make_test_function", "make_predict_function", "_maybe_symbolic_build")
    outside = classifier()
    with keras_overrides.install(strategy):
        beside = classifier()
        with two_cpu_strategy.scope():
            stock = classifier()
        with strategy.scope():
            adopted = classifier()
    for model in (outside, beside, stock):
        assert not set(makers) & set(vars(model))
    assert set(makers) <= set(vars(adopted))


def test_a_stock_model_trained_while_a_step_is_traced(strategy):
    """In the midst of tracing, everything of ours is in its place; a model of one device must not see it."""
    x, y = samples(6)
    losses = []

    def train_another() -> None:
        keras.utils.set_random_seed(1)
        model = classifier()
        losses.append(model.fit(x, y, verbose=0).history["loss"][0])

    class Tracing(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            if len(losses) == 1:
                thread = threading.Thread(target=train_another)
                thread.start()
                thread.join()
            return super().train_step(data)

    train_another()
    with opened(strategy):
        model = Tracing([keras.Input((8,)), layers.Dense(3)])
        model.compile("sgd", CROSSENTROPY())
    model.fit(x, y, verbose=0)
    assert len(losses) == 2
    assert losses[0] == losses[1]


def test_a_class_that_makes_its_own_train_function_keeps_it(strategy):
    class Own(keras.Sequential):
        def make_train_function(self, force: bool = False) -> None:
            self.train_function = lambda iterator: {"loss": 7.0}

    with opened(strategy):
        model = Own([keras.Input((8,)), layers.Dense(3)])
        model.compile("sgd", "mse")
    assert "make_train_function" not in vars(model)
    assert "make_test_function" in vars(model)


def test_a_saved_model_is_a_stock_one(strategy, tmp_path):
    with opened(strategy):
        model = classifier()
    x, y = samples(6)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert "make_train_function" not in vars(loaded)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6)
    with opened(strategy):
        again = keras.models.load_model(tmp_path / "model.keras")
    assert "make_train_function" in vars(again)


def test_another_keras_is_named(strategy, monkeypatch):
    name = "_all_reduce_sum_gradients"
    monkeypatch.delattr(next(one for one in keras.optimizers.Optimizer.__mro__ if name in vars(one)), name)
    with opened(strategy):
        model = classifier()
    with pytest.raises(RuntimeError, match=rf"Optimizer of Keras {keras.__version__} has no `{name}`"):
        model.fit(*samples(6), verbose=0)


def test_xla_is_switched_off_with_one_warning(strategy):
    x, y = samples(6)
    with opened(strategy):
        model = classifier(jit_compile=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y, validation_data=(x, y), verbose=0)
        model.predict(x, verbose=0)
        model.fit(x, y, verbose=0)
    assert [str(one.message)[:31] for one in caught if "jit" in str(one.message)] == ["jit_compile is switched off for"]
    assert not model.jit_compile


@pytest.mark.parametrize("steps", [1, 2])
def test_eagerly(strategy, steps):
    """For debugging: the same numbers."""
    histories = []
    for eagerly in (True, False):
        keras.utils.set_random_seed(2)
        with opened(strategy):
            model = classifier(run_eagerly=eagerly, steps_per_execution=steps)
        histories.append(model.fit(batches(*samples(5), size=2), verbose=0).history["loss"])
    assert histories[0] == pytest.approx(histories[1], abs=1e-6)


def test_data_without_a_batch(strategy):
    with opened(strategy):
        model = classifier()
    with pytest.raises(ValueError, match="was given data without a batch"):
        model.fit(batches(*samples(0)), verbose=0)


@pytest.mark.parametrize("steps", [1, 3])
def test_logs_of_batches_are_those_of_all_rows(strategy, steps):
    """Not the mean of what each replica has: 5 rows are 3 and 2."""
    x, y = samples(13)
    seen: list[list[dict[str, Any]]] = []
    for scope in (functools.partial(opened, strategy), None):
        keras.utils.set_random_seed(3)
        if scope is None:
            model = classifier(steps_per_execution=steps)
        else:
            with scope():
                model = classifier(steps_per_execution=steps)
        watch = LogsOfBatches()
        model.fit(batches(x, y, size=5), verbose=0, callbacks=[watch])
        seen.append(watch.logs)
    assert len(seen[0]) == len(seen[1])
    for found, expected in zip(*seen, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data) | {"one": 1.0}


@pytest.mark.parametrize("model_class", [keras.Model, OwnStep])
@pytest.mark.parametrize(("steps", "executions_of_an_epoch"), [(1, 4), (3, 2)])
def test_data_of_unknown_length(strategy, model_class, steps, executions_of_an_epoch):
    """10 rows in batches of 3: 4 steps in each epoch, and no more are counted."""
    x, y = samples(10)
    signature = (tf.TensorSpec((8,)), tf.TensorSpec((), tf.int64))
    data = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=signature).batch(3)
    with opened(strategy):
        inputs = keras.Input((8,))
        model = model_class(inputs, layers.Dense(3)(inputs))
        model.compile("sgd", CROSSENTROPY(), metrics=["accuracy"], steps_per_execution=steps)
    executions: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: executions.append(batch))
    with warnings.catch_warnings():
        # Keras says that the input ran out, as it does on one device.
        warnings.simplefilter("ignore")
        model.fit(data, epochs=2, verbose=0, callbacks=[count])
    assert number(model.optimizer.iterations) == 8
    assert len(executions) == 2 * executions_of_an_epoch


@pytest.mark.filterwarnings("ignore:GpuUtilization gives no figures of GPUs", "ignore:Epoch .* is ")
def test_callbacks_of_this_package(strategy, tmp_path):
    x, y = samples(24)
    data = batches(x, y, size=4)

    def made() -> tuple[keras.Model, list[Any]]:
        keras.utils.set_random_seed(4)
        with opened(strategy):
            model = classifier(optimizer=keras.optimizers.Adam(0.05), steps_per_execution=2)
        return model, [kt.AsyncCheckpoint(tmp_path, save_freq=4, resume=True), kt.GpuUtilization()]

    model, callbacks = made()
    history = model.fit(data, epochs=2, verbose=0, callbacks=callbacks).history
    assert number(model.optimizer.iterations) == 12
    assert history["step_ms_median"]
    resumed, callbacks = made()
    resumed.fit(data, epochs=3, verbose=0, callbacks=callbacks)
    model.fit(data, initial_epoch=2, epochs=3, verbose=0)
    for found, expected in zip(resumed.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("moved", [False, True])
def test_make_precision_safe_leaves_several_steps_to_models_that_can(strategy, set_dtype_policy, recwarn, moved):
    set_dtype_policy("mixed_float16")
    settings = {"steps_per_execution": 4, "jit_compile": False}
    if moved:
        plain = classifier(**settings)
    with kt.distribute(strategy):
        model = kt.distribute(plain) if moved else classifier(**settings)
    kt.make_precision_safe(model, verbose=False)
    assert model.steps_per_execution == 4
    assert not [one for one in recwarn if "steps_per_execution" in str(one.message)]


def test_validation_reads_its_data_once_an_epoch(strategy):
    """To build a model Keras takes a batch of its data beforehand; one that is built needs none."""
    x, y = samples(6)
    begun: list[int] = []

    def rows() -> Any:
        begun.append(1)
        yield x, y

    signature = (tf.TensorSpec((None, 8)), tf.TensorSpec((None,), tf.int64))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature).apply(
        tf.data.experimental.assert_cardinality(1)
    )
    with opened(strategy):
        model = classifier()
    model.fit(x, y, verbose=0)
    model.fit(x, y, epochs=3, validation_data=data, verbose=0)
    assert len(begun) == 3


def test_a_loss_without_reduction_is_refused(strategy):
    with opened(strategy):
        model = classifier(loss=CROSSENTROPY(reduction=None))
    with pytest.raises(ValueError, match="reduction=None: what it gives for each row can't be brought together"):
        model.fit(*samples(6), verbose=0)
