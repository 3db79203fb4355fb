from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_turbo
from keras_turbo import FastDataset, tune
from keras_turbo.execution.candidates import block_lengths, candidate_settings
from keras_turbo.execution.installation import setting_of
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.execution.tune_report import CandidateFigures, TuneReport
from keras_turbo.fit.random_states import seeded
from tests.execution.models import CLASSES, MODELS, batches, compiled, examples, plain, unbuilt

pytestmark = [pytest.mark.compatibility, pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")]


@pytest.fixture(autouse=True)
def no_results_of_before(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def variables_of(model):
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]


@pytest.mark.slow
def test_a_small_model_is_set_to_several_steps_and_nothing_else_changes():
    model = MODELS["dropped"]()
    model.fit(batches(40), verbose=0)
    history, before, numbers = model.history, variables_of(model), random.getstate()
    report = tune(model, batches(400), budget_seconds=8)
    assert model.history is history
    assert random.getstate() == numbers
    for variable, value in zip(variables_of(model), before, strict=True):
        np.testing.assert_array_equal(variable, value)
    # What takes tens of microseconds in one call from Python is several times slower with a call for each.
    assert report.winner.steps_per_execution > 1
    assert report.speedup > 1.5
    assert setting_of(model) == report.winner
    assert model.steps_per_execution == report.winner.steps_per_execution
    measured = [each for each in report.candidates if each.step_ms is not None]
    assert report.candidates[0].setting == ExecutionSetting()
    assert {each.setting.loop for each in measured} == {"keras", "graph", "xla"}
    winner = next(each for each in measured if each.setting == report.winner)
    assert winner.step_ms == min(each.step_ms for each in measured)
    assert report.speedup == pytest.approx(report.candidates[0].step_ms / winner.step_ms)
    text = str(report)
    assert "(chosen)" in text
    assert f"The model runs {report.winner.name}: {report.speedup:.2f} x stock" in text
    assert TuneReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.slow
def test_training_after_it_is_that_of_an_untuned_model():
    models = [MODELS["normalized"](), MODELS["normalized"]()]
    models[1].set_weights(models[0].get_weights())
    data = [FastDataset(*examples(60), batch_size=4, shuffle=True, seed=1) for _ in models]
    report = tune(models[1], data[1], budget_seconds=2, allow=("multi_step",))
    assert report.winner.loop == "graph"
    assert data[1].epochs_begun == 0
    for model, dataset in zip(models, data, strict=True):
        model.fit(dataset, epochs=2, verbose=0)
    for variable, value in zip(variables_of(models[1]), variables_of(models[0]), strict=True):
        np.testing.assert_array_equal(variable, value)


def test_tune_twice_and_a_second_compile():
    model = plain()
    first = tune(model, batches(40), budget_seconds=0.5, allow=("multi_step",))
    second = tune(model, batches(40), budget_seconds=0.5, allow=("multi_step",))
    # The second measures against Keras' own loop again, not against what the first has set.
    assert first.candidates[0].setting == second.candidates[0].setting == ExecutionSetting()
    assert setting_of(model) == second.winner
    if second.winner.loop != "keras":
        with pytest.warns(UserWarning, match=r"compile\(\) has set the model"):
            compiled(model)
    assert setting_of(model) == ExecutionSetting()
    model.fit(batches(8), verbose=0)


def test_an_unbuilt_model_is_built_with_the_weights_that_fit_would_give_it():
    keras.utils.set_random_seed(8)
    expected = unbuilt()
    expected.fit(batches(40), verbose=0)
    keras.utils.set_random_seed(8)
    model = unbuilt()
    tune(model, batches(40), budget_seconds=0.5, allow=("multi_step",))
    model.fit(batches(40), verbose=0)
    for variable, value in zip(variables_of(model), variables_of(expected), strict=True):
        np.testing.assert_array_equal(variable, value)


def test_a_gain_within_the_noise_keeps_the_stock_setting():
    model = plain()
    report = tune(model, batches(40), budget_seconds=0.5, allow=())
    assert report.winner == ExecutionSetting()
    assert report.speedup == 1.0
    assert "make_train_function" not in vars(model)


def test_steps_per_execution_larger_than_the_data():
    model = compiled(plain(), steps_per_execution=50)
    report = tune(model, batches(22), budget_seconds=0.5)
    assert all(each.setting.steps_per_execution <= 6 for each in report.candidates)
    model.fit(batches(22), epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 12


def test_callbacks_that_need_every_batch_keep_one_step():
    class Each(keras.callbacks.Callback):
        needs_every_batch = True

    report = tune(plain(), batches(40), budget_seconds=0.5, callbacks=[Each()])
    assert {each.setting.steps_per_execution for each in report.candidates} == {1}
    assert report.left_out["steps in a graph loop"] == "a callback needs every batch"


def test_data_of_varying_length_leaves_xla_out_and_says_why():
    # Case 38.
    model = compiled(
        keras.Sequential([keras.layers.Embedding(9, 4), keras.layers.LSTM(4), keras.layers.Dense(CLASSES)])
    )

    def batch(length):
        return tf.zeros([4, length], tf.int32), tf.zeros([4], tf.int32)

    data = tf.data.Dataset.range(2, 8).map(batch)
    report = tune(model, data, budget_seconds=1, allow=("multi_step", "xla_loop"))
    assert "axis 1 of component 0 is of unknown length" in report.left_out["steps in one XLA program"]
    assert not report.winner.jit_compile
    model.fit(data, epochs=1, verbose=0)
    assert int(model.optimizer.iterations) == 6


@pytest.mark.slow
def test_settings_that_fail_are_listed_with_the_reason(capfd):
    class NotForXla(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), x.shape)

    model = compiled(keras.Sequential([keras.Input([8]), NotForXla(), keras.layers.Dense(CLASSES)]))
    before = variables_of(model)
    report = tune(model, batches(40), budget_seconds=20)
    failed = [each for each in report.candidates if each.failed is not None]
    assert {each.setting.loop for each in failed} == {"xla", "graph"}
    assert all(each.setting.jit_compile and "PyFunc" in each.failed for each in failed)
    assert "Failed: " in str(report)
    assert not report.winner.jit_compile
    for variable, value in zip(variables_of(model), before, strict=False):
        np.testing.assert_array_equal(variable, value)
    model.fit(batches(40), verbose=0)
    assert capfd.readouterr().err.count("PyFunc") == 0


def test_slow_data_is_named_as_the_limit():
    def slowly(x, y):
        return tf.numpy_function(lambda x: __import__("time").sleep(0.02) or x, [x], tf.float32), y

    data = batches(40).map(slowly).map(lambda x, y: (tf.ensure_shape(x, [None, 8]), y))
    report = tune(plain(), data, budget_seconds=1, allow=("multi_step",))
    assert report.input_limits
    assert report.input_ms > 15
    assert "The data is what limits" in str(report)


def test_a_cache_that_is_not_full_is_not_called_what_limits(tmp_path):
    paths = [str(tmp_path / f"{number}.bin") for number in range(1_000)]
    for path in paths:
        pathlib.Path(path).write_bytes(b"")

    def load(path):
        time.sleep(0.005)
        return np.zeros(8, "float32")

    data = FastDataset.from_files(paths, load, labels=[0] * 1_000, batch_size=1, cache="memory")
    report = tune(plain(), data, budget_seconds=1, allow=("multi_step",))
    assert (report.input_ms, report.input_limits) == (None, False)
    assert "what limits" not in str(report)


def test_an_eager_model_is_warned_of_and_stays_as_it_is():
    # Case 38.
    model = compiled(plain(), run_eagerly=True)
    with pytest.warns(keras_turbo.execution.retracing.EagerExecutionWarning, match="runs eagerly"):
        report = tune(model, batches(12), budget_seconds=0.5)
    assert report.winner == ExecutionSetting()
    assert "it runs eagerly" in report.left_out["anything but Keras' own loop"]


def test_under_a_strategy_it_falls_back_and_says_so(two_cpu_strategy):
    with two_cpu_strategy.scope():
        model = plain()
    report = tune(model, batches(40, 8), budget_seconds=0.5)
    assert report.winner == ExecutionSetting()
    assert "it is under MirroredStrategy" in report.left_out["anything but Keras' own loop"]
    model.fit(batches(40, 8), verbose=0)


DATA = {
    "arrays": lambda: examples(22),
    "arrays with weights": lambda: (*examples(22), np.ones(22)),
    "float64": lambda: (examples(22)[0].astype("float64"), examples(22)[1]),
    "FastDataset of a stream": lambda: FastDataset(tf.data.Dataset.from_tensor_slices(examples(22)), batch_size=4),
    "endless": lambda: batches(22).repeat(),
    "PyDataset": lambda: Halves(),
}


class Halves(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        x, y = examples(8)
        return x[4 * index : 4 * index + 4], y[4 * index : 4 * index + 4]


@pytest.mark.parametrize("name", DATA)
def test_every_kind_of_data(name):
    model = plain()
    report = tune(model, DATA[name](), batch_size=4, budget_seconds=0.5, allow=("multi_step",))
    assert report.candidates[0].step_ms > 0
    assert int(model.optimizer.iterations) == 0


def test_the_order_of_a_shuffled_dataset_is_what_it_would_have_been():
    expected, data = batches(40), batches(40)
    tune(plain(), data, budget_seconds=0.5, allow=("multi_step",))
    for _ in range(2):
        for (x, _), (other, _) in zip(data, expected, strict=True):
            np.testing.assert_array_equal(x, other)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"model": "model"}, TypeError, "`model` must be a keras.Model. Received: str"),
        ({"model": keras.Sequential([keras.layers.Dense(1)])}, ValueError, "must be compiled before it is tuned"),
        ({"data": iter([])}, TypeError, "A generator would be used up"),
        ({"data": [1, 2]}, TypeError, "`data` must be a FastDataset, a tf.data.Dataset of batches"),
        ({"callbacks": [print]}, TypeError, r"`callbacks` must be those that fit\(\) takes. Received: <built-in"),
        ({"data": (np.zeros([4, 8]), np.zeros(3))}, ValueError, r"equally many examples. Received: \[3, 4\]"),
        ({"data": tf.data.Dataset.range(0)}, ValueError, "`data` has no batches"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be an integer from 1. Received: 0"),
        ({"batch_size": True}, ValueError, "`batch_size` must be an integer from 1. Received: True"),
        ({"budget_seconds": 0}, ValueError, "`budget_seconds` must be a number of seconds above 0"),
        ({"objective": "speed"}, ValueError, "`objective` must be one of .*Received: 'speed'"),
        ({"allow": "jit"}, ValueError, "`allow` must be a tuple with some of"),
        ({"allow": ("jit", "magic")}, ValueError, "`allow` must be a tuple with some of"),
    ],
)
def test_bad_arguments(change, error, told):
    arguments = {"model": plain(), "data": batches(8), "budget_seconds": 0.5, **change}
    with pytest.raises(error, match=told):
        tune(**arguments)


def test_errors_of_the_model_itself_are_raised():
    model = plain()
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 8"):
        tune(model, (np.zeros([8, 3], "float32"), np.zeros(8)), budget_seconds=0.5)


def test_results_are_kept_in_a_file_and_looked_up(tmp_path):
    path = tmp_path / "folder" / "tuned.json"
    options = {"budget_seconds": 0.5, "allow": ("multi_step",), "results_file": path}
    measured = tune(plain(), batches(40), **options)
    model = plain()
    known = tune(model, batches(40), **options)
    assert (measured.reused, known.reused) == (False, True)
    assert known.winner == measured.winner == setting_of(model)
    assert known.candidates == measured.candidates
    assert not tune(MODELS["normalized"](), batches(40), **options).reused
    assert not tune(plain(), batches(40, 5), **options).reused
    assert tune(plain(), batches(40), **options).reused
    assert len(json.loads(path.read_text())["results"]) == 3
    assert [each.name for each in path.parent.iterdir()] == ["tuned.json"]


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"format": 2}'])
def test_a_file_that_is_something_else_is_left_alone(content, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"`results_file` must be a file that tune\(\) wrote.*notes.txt"):
        tune(plain(), batches(40), budget_seconds=0.5, results_file=path)
    assert path.read_text() == content


def test_a_damaged_result_is_measured_again(tmp_path):
    path = tmp_path / "tuned.json"
    options = {"budget_seconds": 0.5, "allow": (), "results_file": path}
    tune(plain(), batches(40), **options)
    content = json.loads(path.read_text())
    (key,) = content["results"]
    content["results"][key] = {"winner": "?"}
    path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="can't be read, and is measured again"):
        assert not tune(plain(), batches(40), **options).reused
    assert tune(plain(), batches(40), **options).reused


def test_memory_as_the_objective_chooses_nothing_slower():
    report = tune(plain(), batches(80), budget_seconds=1, objective="memory", allow=("multi_step",))
    chosen = next(each for each in report.candidates if each.setting == report.winner)
    assert chosen.step_ms <= 1.03 * report.candidates[0].step_ms


@pytest.mark.parametrize(
    ("stock_ms", "num_batches", "lengths"),
    [
        (1.0, None, [128, 16]),
        (1.0, 600, [120, 15]),
        (1.0, 6, [6]),
        (1.0, 47, [47, 16]),  # no divisor near 16
        (20.0, None, [5, 1]),
        (600.0, None, [1]),
    ],
)
def test_block_lengths(stock_ms, num_batches, lengths):
    assert block_lengths(stock_ms, num_batches) == lengths


def test_stacks_stay_small():
    settings, _ = candidate_settings(
        allow=("xla_loop",),
        stock_ms=1.0,
        num_batches=None,
        batch_bytes=20 << 20,
        element_spec=tf.TensorSpec([None, 3]),
        every_batch=False,
    )
    assert settings == [ExecutionSetting("xla", 3)]


class TwoOptimizers(keras.Model):
    """Two optimizers, as of a GAN, and variables that Keras does not know of."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.table = [tf.Variable(0.0, trainable=False)]

    def call(self, x):
        return self.dense(x)

    def compile(self, first, second):
        super().compile(jit_compile=False)
        self.first, self.second = first, second

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x + keras.random.normal(keras.ops.shape(x))) ** 2)
        kernel, bias = tape.gradient(loss, self.trainable_variables)
        self.first.apply_gradients([(kernel, self.dense.kernel)])
        self.second.apply_gradients([(bias, self.dense.bias)])
        self.table[0].assign_add(1.0)
        GLOBAL_COUNT.assign_add(1.0)
        return {"loss": loss}


GLOBAL_COUNT = tf.Variable(0.0, trainable=False)


def test_what_others_hold_is_put_back():
    def trained(tuned):
        GLOBAL_COUNT.assign(0.0)
        model = TwoOptimizers()
        model.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
        x = examples(20)[0]
        if tuned:
            tune(model, x, batch_size=4, budget_seconds=0.5, allow=("multi_step",))
            assert [int(model.first.iterations), int(model.second.iterations)] == [0, 0]
            assert float(model.table[0]) == float(GLOBAL_COUNT) == 0.0
        model.fit(x, batch_size=4, epochs=2, shuffle=False, verbose=0)
        assert float(model.table[0]) == float(GLOBAL_COUNT) == 10.0
        return [*model.get_weights(), keras.ops.convert_to_numpy(keras.random.uniform([3]))]

    def trained_from_a_seed(tuned):
        # Keras 3.12 goes on with the global generator that there is when a seed is set.
        with seeded(5):
            return trained(tuned)

    for value, expected in zip(trained_from_a_seed(tuned=True), trained_from_a_seed(tuned=False), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_states_of_rnns_are_put_back():
    inputs = keras.Input((5, 2), batch_size=4)
    lstm = keras.layers.LSTM(4, stateful=True)
    model = compiled(keras.Model(inputs, keras.layers.Dense(CLASSES)(lstm(inputs))))
    data = tf.data.Dataset.from_tensor_slices((np.ones([8, 5, 2], "float32"), np.zeros(8))).batch(
        4, drop_remainder=True
    )
    tune(model, data, budget_seconds=0.5, allow=("multi_step",))
    assert [float(np.abs(state).sum()) for state in lstm.states] == [0.0, 0.0]


def test_text_keeps_xla_out():
    # TensorFlow aborts the process where a step with text in it is compiled for the second time.
    words = np.array(["a", "b", "c", "d"] * 4)
    vectorize = keras.layers.TextVectorization(output_sequence_length=2)
    vectorize.adapt(words)
    inputs = keras.Input((), dtype="string")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(10, 4)(vectorize(inputs)))
    model = compiled(keras.Model(inputs, keras.layers.Dense(CLASSES)(hidden)))
    data = tf.data.Dataset.from_tensor_slices((words, np.zeros(16))).batch(4)
    for _ in range(2):
        report = tune(model, data, budget_seconds=0.5)
        assert not any(each.setting.jit_compile for each in report.candidates)
        assert report.left_out["steps compiled by XLA"] == "a part of the data is text, which XLA does not know"
    model.fit(data, verbose=0)


def test_results_are_of_the_layers_that_train(tmp_path):
    options = {"budget_seconds": 0.5, "allow": (), "results_file": tmp_path / "tuned.json"}
    tune(MODELS["normalized"](), batches(40), **options)
    frozen = MODELS["normalized"]()
    frozen.layers[0].trainable = False
    assert not tune(compiled(frozen), batches(40), **options).reused


def test_a_file_that_cannot_be_written_is_told_before_the_measurement():
    model = plain()
    with pytest.raises(OSError, match="/proc"):
        tune(model, batches(40), budget_seconds=60, results_file="/proc/tuned.json")
    assert setting_of(model) == ExecutionSetting()


def test_results_are_remembered_by_default_and_not_where_nobody_wants_it():
    options = {"budget_seconds": 0.5, "allow": ("multi_step",)}
    assert not tune(plain(), batches(40), **options, results_file=None).reused
    measured, known = tune(plain(), batches(40), **options), tune(plain(), batches(40), **options)
    assert (measured.reused, known.reused) == (False, True)
    assert known.winner == measured.winner
    assert not tune(plain(), batches(40), budget_seconds=0.6, allow=("multi_step",)).reused


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not tune(plain(), batches(40), budget_seconds=0.5, allow=("multi_step",)).reused


def test_a_step_that_computes_long_is_measured_alone():
    class Long(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.numpy_function(lambda x: time.sleep(0.05) or x, [x], tf.float32), x.shape)

    model = compiled(keras.Sequential([keras.Input([8]), Long(), keras.layers.Dense(CLASSES)]))
    report = tune(model, batches(40))
    assert [each.setting for each in report.candidates] == [ExecutionSetting()]
    assert "at most is dispatch" in report.left_out["multi_step"]
    assert report.pays_back_steps is None
    assert report.seconds < 5


def test_what_a_choice_pays_back():
    stock, fast = ExecutionSetting(), ExecutionSetting("graph", 8)
    figures = [CandidateFigures(stock, 1.0, 0.0, 0.0, None, None), CandidateFigures(fast, 0.5, 0.0, 0.0, None, None)]
    report = TuneReport(tuple(figures), fast, 2.0, None, False, {}, (), seconds=2.0)
    assert report.pays_back_steps == 4_000
    assert str(report).rstrip().endswith("That pays back after 4,000 steps.")
    assert dataclasses.replace(report, reused=True).pays_back_steps == 0
