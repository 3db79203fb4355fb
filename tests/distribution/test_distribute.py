"""distribute() in one process: on one device, and on the two virtual devices of the tests."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_turbo
from keras_turbo import distribute
from keras_turbo.distribution.cluster import ClusterError
from keras_turbo.distribution.workers import is_chief
from tests.distribution.cluster_scenarios import rows, small_model

pytestmark = pytest.mark.compatibility


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    for name in (
        "TF_CONFIG",
        "SLURM_JOB_ID",
        "JOB_COMPLETION_INDEX",
        "TPU_NAME",
        "COLAB_TPU_ADDR",
        "TPU_WORKER_HOSTNAMES",
    ):
        monkeypatch.delenv(name, raising=False)


def fit(model, epochs=1):
    x, y = rows()
    return model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history["loss"]


class TestContext:
    def test_on_one_device_nothing_changes(self, capsys):
        with distribute() as strategy:
            assert strategy is tf.distribute.get_strategy()
            assert not tf.distribute.has_strategy()
            losses = fit(small_model())
        assert capsys.readouterr().out == "distribute(): one device (one_device), 1 worker, 1 replica.\n"
        keras.utils.set_random_seed(20)
        assert losses == fit(small_model())
        assert is_chief(strategy)

    def test_mirrored(self, capsys):
        with distribute("mirrored", timeout_seconds=None) as strategy:
            assert tf.distribute.get_strategy() is strategy
            model = small_model()
        assert capsys.readouterr().out == (
            "distribute(): MirroredStrategy (mirrored), 1 worker, 2 replicas, communication: auto.\n"
        )
        assert not tf.distribute.has_strategy()
        assert strategy.num_replicas_in_sync == 2
        losses = fit(model, 2)
        keras.utils.set_random_seed(20)
        assert small_model().distribute_strategy is tf.distribute.get_strategy()
        keras.utils.set_random_seed(20)
        np.testing.assert_allclose(losses, fit(small_model(), 2), rtol=1e-6)

    def test_models_of_before_and_after_are_left_alone(self):
        before = small_model()
        init = keras.Model.__init__
        with distribute("mirrored"):
            pass
        assert keras.Model.__init__ is init
        for model in (before, small_model()):
            assert model.distribute_strategy is tf.distribute.get_strategy()
            fit(model)

    def test_it_can_be_entered_again(self, capsys):
        distribution = distribute("mirrored")
        with distribution as first:
            pass
        with distribution as second:
            with distribution as third:
                assert tf.distribute.get_strategy() is first
            assert tf.distribute.get_strategy() is first
        assert first is second is third
        assert capsys.readouterr().out.count("\n") == 1
        assert not tf.distribute.has_strategy()

    def test_auto_inside_is_the_one_outside(self):
        with distribute("mirrored") as outer, distribute() as inner:
            assert inner is outer

    def test_another_strategy_inside_is_refused(self):
        with distribute("mirrored") as outer:
            with pytest.raises(RuntimeError, match="inside the scope of another strategy, MirroredStrategy"):
                distribute("mirrored").__enter__()
            assert tf.distribute.get_strategy() is outer
        assert not tf.distribute.has_strategy()

    def test_an_error_inside_leaves_it(self):
        init = keras.Model.__init__
        with pytest.raises(ZeroDivisionError), distribute("mirrored"):
            raise ZeroDivisionError
        assert not tf.distribute.has_strategy()
        assert keras.Model.__init__ is init

    def test_a_strategy_is_taken(self, two_cpu_strategy):
        with distribute(two_cpu_strategy) as strategy:
            assert strategy.extended.worker_devices == two_cpu_strategy.extended.worker_devices
            model = small_model()
        fit(model)
        with distribute(strategy) as again:
            assert again is strategy

    def test_settings_of_a_strategy_that_has_some(self, two_cpu_strategy, capsys):
        """They hold on, and others are refused in place of being passed over in silence."""
        with distribute(two_cpu_strategy, gradient_compression="float16") as strategy:
            pass
        capsys.readouterr()
        with distribute(strategy):
            assert "gradients as float16" in capsys.readouterr().out
        with pytest.raises(ValueError, match=r"has its settings already.* Received: auto, gradients as bfloat16"):
            distribute(strategy, gradient_compression="bfloat16").__enter__()

    def test_a_strategy_of_one_device_is_taken(self):
        one = tf.distribute.OneDeviceStrategy("CPU:0")
        with distribute(one) as strategy:
            assert strategy is one


class TestArguments:
    @pytest.mark.parametrize(
        ("given", "part"),
        [
            (
                "mirorred",
                "`strategy` must be one of 'auto', 'mirrored', 'multi_worker', 'one_device', 'tpu', or a tf.di",
            ),
            (3, r"a tf.distribute.Strategy or a keras.Model. Received: 3 \(of type int\)"),
            (None, "Received: None"),
            ("parameter_server", "Parameter servers are not supported: .* What is: several workers"),
            (tf.distribute.ParameterServerStrategy.__new__(tf.distribute.ParameterServerStrategy), "Parameter servers"),
        ],
        ids=["typo", "number", "None", "name", "strategy"],
    )
    def test_what_is_no_strategy(self, given, part):
        with pytest.raises((TypeError, ValueError), match=part):
            distribute(given)

    def test_options_that_can_not_be(self):
        with pytest.raises(ValueError, match="`communication` must be 'auto', 'ring' or 'nccl'"):
            distribute(communication="gloo")
        with pytest.raises(ValueError, match="`gradient_compression`"):
            distribute(gradient_compression="int8")
        with pytest.raises(ValueError, match="communication='nccl' sends between NVIDIA GPUs"):
            distribute("mirrored", communication="nccl").__enter__()

    def test_workers_that_nobody_has_named(self):
        with pytest.raises(ValueError, match="'multi_worker' needs to know the workers, .* launch --workers 2 SCRIPT"):
            distribute("multi_worker").__enter__()
        assert not tf.distribute.has_strategy()


class TestVariables:
    def enter(self, monkeypatch, value):
        monkeypatch.setenv("TF_CONFIG", value)
        with distribute():
            pytest.fail("entered")

    def test_too_late_in_the_program(self, monkeypatch):
        tf.constant(1)
        value = {"cluster": {"worker": ["localhost:1111", "localhost:1112"]}, "task": {"type": "worker", "index": 1}}
        with pytest.raises(RuntimeError, match=r"TF_CONFIG \(TF_CONFIG\) .* worker 1 of 2, .*distribute\(\):` up"):
            self.enter(monkeypatch, json.dumps(value))
        # What was tried out is as it was.
        assert tf.config.threading.get_inter_op_parallelism_threads() == 0

    def test_json_with_a_fault(self, monkeypatch):
        with pytest.raises(ClusterError, match="TF_CONFIG: no JSON"):
            self.enter(monkeypatch, "{'cluster': {}}")

    def test_an_index_beyond_the_workers(self, monkeypatch):
        value = {"cluster": {"worker": ["localhost:1111", "localhost:1112"]}, "task": {"type": "worker", "index": 2}}
        with pytest.raises(ClusterError, match="TF_CONFIG: task.index is 2, .* 0 to 1 can be"):
            self.enter(monkeypatch, json.dumps(value))

    def test_a_tpu_that_is_not_there(self, monkeypatch):
        monkeypatch.setenv("TPU_NAME", "")
        with pytest.raises(RuntimeError, match="no TPU can be reached"):
            distribute("tpu").__enter__()


class Scaled(keras.layers.Layer):
    """Not registered: it is found by its module."""

    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


def weighted_error(y_true, y_pred):
    return 2 * keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


class TestMovedModel:
    def test_on_one_device_it_is_the_model_itself(self):
        model = small_model()
        assert distribute(model) is model

    def test_it_goes_on_as_on_one_device(self):
        model = small_model(metrics=["mae"], steps_per_execution=2)
        fit(model, 2)
        with distribute("mirrored") as strategy:
            moved = distribute(model)
        assert moved is not model
        assert moved.distribute_strategy is strategy
        assert moved.steps_per_execution == 2
        assert int(moved.optimizer.iterations.numpy()) == int(model.optimizer.iterations) == 8
        for one, other in zip(model.optimizer.variables, moved.optimizer.variables, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
        np.testing.assert_allclose(fit(moved, 2), fit(model, 2), rtol=1e-5)
        for one, other in zip(model.get_weights(), moved.get_weights(), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-6)

    def test_code_of_the_user_s_own(self):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dropout(0.5, seed=3)(Scaled(2.0)(keras.layers.Dense(3)(inputs)))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden), name="own")
        model.layers[1].trainable = False
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), weighted_error)
        fit(model)
        with distribute("mirrored"):
            moved = distribute(model)
        assert moved.name == "own"
        assert [layer.trainable for layer in moved.layers] == [layer.trainable for layer in model.layers]
        assert [np.asarray(one).tolist() for one in moved.non_trainable_variables] == [
            np.asarray(one).tolist() for one in model.non_trainable_variables
        ]
        fit(moved)

    def test_a_loss_without_a_name(self):
        model = small_model(loss=lambda y_true, y_pred: keras.ops.square(y_true - y_pred))
        with distribute("mirrored"):
            moved = distribute(model)
        x, y = rows()
        np.testing.assert_allclose(moved.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-5)

    def test_one_that_was_not_compiled(self):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        with distribute("mirrored"):
            moved = distribute(model)
        x, _ = rows()
        np.testing.assert_allclose(moved(x), model(x), rtol=1e-6)

    def test_one_that_is_not_built(self):
        with pytest.raises(ValueError, match="'lazy' is not built, .* Build and compile it inside"):
            distribute(keras.Sequential([keras.layers.Dense(1)], name="lazy"))

    def test_one_that_can_not_be_made_again(self):
        class Local(keras.Model):
            def __init__(self, size):
                super().__init__(name="local")
                self.dense = keras.layers.Dense(size)

            def call(self, x):
                return self.dense(x)

        model = Local(2)
        model(np.zeros((1, 4), "float32"))
        with distribute("mirrored"), pytest.raises(ValueError, match="'local' can't be made again from its config"):
            distribute(model)


def test_it_is_a_public_name():
    assert keras_turbo.distribute is distribute
