from __future__ import annotations

import copy
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.execution.installation import Installation, apply_setting, remove_setting, setting_of
from keras_turbo.execution.retracing import EagerExecutionWarning
from keras_turbo.execution.setting import ExecutionSetting
from tests.execution.models import CLASSES, MODELS, batches, compiled, examples, plain

KERAS = ExecutionSetting()
GRAPH = ExecutionSetting("graph", 3)
GRAPH_XLA = ExecutionSetting("graph", 3, jit_compile=True)
XLA = ExecutionSetting("xla", 3)
OURS = [GRAPH, GRAPH_XLA, XLA]
# What Keras 3.15 says of its own default with any dataset.
KERAS_SHUFFLE = "ignore:`shuffle=True` was passed:UserWarning"
pytestmark = [pytest.mark.compatibility, pytest.mark.filterwarnings(KERAS_SHUFFLE)]

names = functools.partial(pytest.mark.parametrize, ids=lambda setting: setting.name)


def trained(make_model, setting, fit):
    """The model, the histories of a fit, and all variables after it."""
    keras.utils.set_random_seed(4)
    model = make_model()
    apply_setting(model, setting)
    history = fit(model).history
    variables = [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]
    return model, history, variables


def assert_equal_training(make_model, setting, fit, tolerance=0.0):
    """Asserts that training comes to the same as with Keras' own loop, one step at a time."""
    expected_model, expected_history, expected = trained(make_model, KERAS, fit)
    model, history, variables = trained(make_model, setting, fit)
    assert int(model.optimizer.iterations) == int(expected_model.optimizer.iterations) > 0
    assert history.keys() == expected_history.keys()
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, rtol=tolerance, atol=tolerance, err_msg=name)
    assert len(variables) == len(expected)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable, value, rtol=tolerance, atol=tolerance)
    return model


def tolerance_of(setting):
    return 2e-5 if setting.jit_compile else 0.0


@names("setting", [GRAPH, XLA])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "dropped"])
def test_training_equals_one_step_at_a_time(name, setting):
    # 22 examples: five full batches and one of two; two executions, of which the second is short.
    def fit(model):
        return model.fit(batches(22), epochs=2, verbose=0, validation_data=examples(9))

    assert_equal_training(MODELS[name], setting, fit, tolerance_of(setting))


@pytest.mark.parametrize("name", ["plain", "loss_scaling"])
def test_steps_compiled_one_by_one_equal_those_of_a_graph(name):
    assert_equal_training(MODELS[name], GRAPH_XLA, lambda model: model.fit(batches(22), epochs=2, verbose=0), 2e-5)


@names("setting", [GRAPH, XLA])
def test_random_layers_draw_as_often_as_one_step_at_a_time(setting):
    def fit(model):
        return model.fit(batches(22), epochs=2, verbose=0)

    *_, expected = trained(MODELS["dropped"], KERAS, fit)
    model, _, variables = trained(MODELS["dropped"], setting, fit)
    (seed,) = [variable for variable in model.variables if "seed" in variable.path]
    # Key and counter: 12 steps have each drawn once, whatever the algorithm.
    assert [int(part) for part in seed.numpy()] == [3, 12]
    if setting is GRAPH:
        for variable, value in zip(variables, expected, strict=True):
            np.testing.assert_array_equal(variable, value)


@names("setting", OURS)
@pytest.mark.parametrize("steps", [1, 2, 5, 6, 7, 100])
def test_any_number_of_batches_and_steps(steps, setting):
    setting = ExecutionSetting(setting.loop, steps, setting.jit_compile)
    model = plain()
    apply_setting(model, setting)
    model.fit(batches(22), epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 12


@names("setting", OURS)
def test_seven_batches_of_three_an_execution_are_seven_steps(setting):
    # Case 37, and with what Keras would go past: an endless dataset.
    def fit(model):
        return model.fit(batches(28).repeat(), epochs=2, steps_per_epoch=7, verbose=0)

    model = assert_equal_training(plain, setting, fit, tolerance_of(setting))
    assert int(model.optimizer.iterations) == 14


@names("setting", OURS)
def test_validation_shorter_than_an_execution_counts_all_its_batches(setting):
    # Case 37: 7 train and 3 validation batches, 7 steps an execution.
    setting = ExecutionSetting(setting.loop, 7, setting.jit_compile)

    def fit(model):
        return model.fit(batches(28), validation_data=batches(12), epochs=2, verbose=0)

    assert_equal_training(plain, setting, fit, tolerance_of(setting))


@names("setting", [GRAPH, XLA])
def test_validation_steps_that_are_no_multiple(setting):
    # Without shuffling: each evaluation reads on where the one before it ended.
    validation = tf.data.Dataset.from_tensor_slices(examples(20)).batch(4).repeat()

    def fit(model):
        return model.fit(batches(12), validation_data=validation, validation_steps=4, epochs=2, verbose=0)

    assert_equal_training(plain, setting, fit, tolerance_of(setting))


def generated():
    yield from (batch for batch in batches(22).as_numpy_iterator())


DATA = {
    "arrays": lambda: {"x": examples(22)[0], "y": examples(22)[1], "batch_size": 4, "shuffle": False},
    "sample weights": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((*examples(22), np.linspace(0, 2, 22, dtype="float32"))).batch(4)
    },
    "class weights": lambda: {"x": batches(22), "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}},
    "drop_remainder": lambda: {"x": tf.data.Dataset.from_tensor_slices(examples(22)).batch(4, drop_remainder=True)},
    "padded by its dataset": lambda: {"x": batches(22).map(lambda x, y: (tf.ensure_shape(x, [None, 8]), y))},
    "FastDataset": lambda: {"x": FastDataset(*examples(22), batch_size=4, shuffle=True, seed=2)},
    "FastDataset, class weights": lambda: {
        "x": FastDataset(*examples(22), batch_size=4, shuffle=True, seed=2),
        "class_weight": {0: 2.0},
    },
    "generator": lambda: {"x": generated(), "steps_per_epoch": 3},
    "fewer batches than steps_per_epoch": lambda: {"x": batches(22), "steps_per_epoch": 3},
}


@names("setting", [GRAPH, XLA])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_every_kind_of_data(data, setting):
    def fit(model):
        return model.fit(**DATA[data](), epochs=2, verbose=0)

    assert_equal_training(plain, setting, fit, tolerance_of(setting))


@names("setting", OURS)
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_data_of_unknown_cardinality(setting):
    # Keras' own loop counts one step too many at the end of such an epoch: its optimizer's counter does not wait for
    # the batch that is not there. So it is compared on data of known cardinality.
    known = tf.data.Dataset.from_tensor_slices(examples(22)).batch(4)
    unknown = known.filter(lambda x, y: True)
    assert int(unknown.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    _, _, expected = trained(plain, KERAS, lambda model: model.fit(known, epochs=2, verbose=0))
    model, _, variables = trained(plain, setting, lambda model: model.fit(unknown, epochs=2, verbose=0))
    assert int(model.optimizer.iterations) == 12
    tolerance = tolerance_of(setting)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable, value, rtol=tolerance, atol=tolerance)


def two_of_each() -> keras.Model:
    left, right = keras.Input([8], name="left"), keras.Input([8], name="right")
    both = keras.layers.Concatenate()([left, right])
    outputs = {"kind": keras.layers.Dense(CLASSES, name="kind")(both), "sum": keras.layers.Dense(1, name="sum")(both)}
    model = keras.Model({"left": left, "right": right}, outputs)
    loss = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "sum": "mse"}
    model.compile("adam", loss, metrics={"kind": ["accuracy"], "sum": ["mae"]}, jit_compile=False)
    return model


@names("setting", [GRAPH, XLA])
def test_several_inputs_and_outputs(setting):
    x, y = examples(22)
    data = ({"left": x, "right": -x}, {"kind": y, "sum": x.sum(1)})

    def fit(model):
        return model.fit(tf.data.Dataset.from_tensor_slices(data).batch(4), epochs=2, verbose=0)

    model = assert_equal_training(two_of_each, setting, fit, tolerance_of(setting))
    predicted = model.predict(data[0], batch_size=4, verbose=0)
    expected = model(data[0])
    for name in ("kind", "sum"):
        np.testing.assert_allclose(predicted[name], expected[name], rtol=1e-5, atol=1e-6)


@names("setting", OURS)
@pytest.mark.parametrize("rows", [3, 4, 9, 12, 26])
def test_predictions_in_order_for_any_number_of_rows(rows, setting):
    model, (x, _) = plain(), examples(rows)
    expected = model.predict(x, verbose=0)
    apply_setting(model, setting)
    np.testing.assert_allclose(model.predict(x, batch_size=4, verbose=0), expected, rtol=1e-5, atol=1e-6)


@names("setting", OURS)
@pytest.mark.parametrize("steps", [1, 4])
def test_predicts_the_steps_that_are_asked_for_and_all_rows_afterwards(steps, setting):
    model, (x, _) = plain(), examples(26)
    expected = model.predict(x, batch_size=4, verbose=0)
    apply_setting(model, setting)
    assert model.predict(batches(20).repeat(), steps=steps, verbose=0).shape == (4 * steps, CLASSES)
    np.testing.assert_allclose(model.predict(x, batch_size=4, verbose=0), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        model.predict(x, batch_size=4, steps=steps, verbose=0), expected[: 4 * steps], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(model.predict(x, batch_size=4, verbose=0), expected, rtol=1e-5, atol=1e-6)


class Iterations(keras.callbacks.Callback):
    needs_every_batch = False

    def on_train_begin(self, logs=None):
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(int(self.model.optimizer.iterations))


@names("setting", [KERAS, *OURS])
@pytest.mark.parametrize("steps", [7, 19, 5])
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_epochs_that_are_parts_of_finite_data(steps, setting):
    setting = setting if setting is KERAS else ExecutionSetting(setting.loop, 10, setting.jit_compile)
    seen, model = Iterations(), plain()
    apply_setting(model, setting)
    model.fit(batches(76), epochs=4, steps_per_epoch=steps, verbose=0, callbacks=[seen])
    # 19 batches: an epoch that finds fewer than it wants ends early, and the next one begins the data anew.
    assert seen.seen == {7: [7, 14, 19, 26], 19: [19, 38, 57, 76], 5: [5, 10, 15, 19]}[steps]


@names("setting", OURS)
def test_weights_that_only_a_second_fit_has_are_no_retracing(setting):
    model = plain()
    apply_setting(model, setting)
    model.fit(batches(22), verbose=0)
    # Warnings are errors here.
    model.fit(batches(22), class_weight={0: 1.0, 1: 2.0, 2: 3.0}, verbose=0)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras' own saving
def test_a_checkpoint_that_is_saved_elsewhere_is_warned_of(tmp_path):
    model = plain()
    apply_setting(model, GRAPH)
    saves = keras.callbacks.ModelCheckpoint(tmp_path / "{batch}.weights.h5", save_weights_only=True, save_freq=4)
    with pytest.warns(UserWarning, match="A callback with save_freq=4 is asked once for 3 batches"):
        model.fit(batches(28), verbose=0, callbacks=[saves])
    saves = keras.callbacks.ModelCheckpoint(tmp_path / "{batch}.weights.h5", save_weights_only=True, save_freq=6)
    model.fit(batches(24), verbose=0, callbacks=[saves])


@names("setting", [KERAS, *OURS])
def test_single_batches_after_it(setting):
    x, y = examples(4)
    model = plain()
    apply_setting(model, setting)
    loss, accuracy = model.evaluate(x, y, verbose=0)
    assert model.test_on_batch(x, y) == pytest.approx([loss, accuracy], rel=1e-5)
    assert model.train_on_batch(x, y) == pytest.approx([loss, accuracy], rel=1e-5)
    assert int(model.optimizer.iterations) == 1
    np.testing.assert_allclose(model.predict_on_batch(x), model(x), rtol=1e-5, atol=1e-6)
    model.fit(batches(22), verbose=0)
    model.reset_metrics()  # as Keras 3.15 does before each batch, and 3.12 does not
    assert model.train_on_batch(x, y, sample_weight=np.zeros(4))[0] == 0.0


@names("setting", [GRAPH, XLA])
def test_stop_training_ends_after_the_execution(setting):
    class Stop(keras.callbacks.Callback):
        needs_every_batch = False

        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    model = plain()
    apply_setting(model, setting)
    model.fit(batches(28), epochs=5, verbose=0, callbacks=[Stop()])
    assert int(model.optimizer.iterations) == 3
    model.fit(batches(28), epochs=1, verbose=0)
    assert int(model.optimizer.iterations) == 10


class Seen(keras.callbacks.Callback):
    needs_every_batch = False

    def __init__(self):
        super().__init__()
        self.calls, self.logs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append((batch, int(self.model.optimizer.iterations)))
        self.logs.append(logs)


@names("setting", OURS)
def test_callbacks_see_the_last_step_of_each_execution(setting):
    x, y = examples(24)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    stock, model, seen, expected = plain(), plain(), Seen(), Seen()
    model.set_weights(stock.get_weights())
    apply_setting(model, setting)
    model.fit(data, verbose=0, callbacks=[seen])
    stock.fit(data, verbose=0, callbacks=[expected])
    assert seen.calls == [(2, 3), (5, 6)]
    for logs, other in zip(seen.logs, [expected.logs[2], expected.logs[5]], strict=True):
        assert logs == pytest.approx(other, rel=1e-5)


@names("setting", OURS)
def test_a_callback_that_needs_every_batch_gets_it(setting):
    class Each(Seen):
        needs_every_batch = True

    each, model = Each(), plain()
    apply_setting(model, setting)
    model.fit(batches(22), verbose=0, callbacks=each)
    assert each.calls == [(i, i + 1) for i in range(6)]
    assert model.steps_per_execution == 3


def test_a_callback_that_does_not_say_is_warned_of_once():
    class Silent(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            pass

    model = plain()
    apply_setting(model, GRAPH)
    with pytest.warns(UserWarning, match="Silent is called for each batch, so fit runs one step at a time and not 3"):
        model.fit(batches(8), verbose=0, callbacks=[Silent()])
    # Warnings are errors here.
    model.fit(batches(8), verbose=0, callbacks=[Silent(), keras.callbacks.TerminateOnNaN()])


@names("setting", OURS)
def test_exception_in_fit_leaves_a_model_that_trains(setting):
    class Fails(keras.callbacks.Callback):
        needs_every_batch = False

        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("stop here")

    model = plain()
    apply_setting(model, setting)
    with pytest.raises(RuntimeError, match="stop here"):
        model.fit(batches(28), verbose=0, callbacks=[Fails()])
    model.fit(batches(28), verbose=0)
    assert int(model.optimizer.iterations) == 3 + 7


def test_data_that_does_not_stack_runs_in_a_graph_with_one_warning():
    model = compiled(keras.Sequential([keras.layers.Embedding(9, 4), keras.layers.GlobalAveragePooling1D()]))
    apply_setting(model, XLA)
    lengths = tf.data.Dataset.range(2, 8).map(lambda n: (tf.zeros([4, n], tf.int32), tf.zeros([4], tf.int32)))
    with pytest.warns(UserWarning, match=r"axis 1 of component 0 is of unknown length, \(4, None\)"):
        model.fit(lengths, verbose=0)
    assert int(model.optimizer.iterations) == 6
    model.fit(lengths, verbose=0)


@names("setting", OURS)
def test_another_batch_size_than_before(setting):
    model = plain()
    apply_setting(model, setting)
    for batch_size in (4, 5, 2, 4):
        model.fit(batches(20, batch_size), verbose=0)
    assert int(model.optimizer.iterations) == 5 + 4 + 10 + 5


def test_compile_gives_keras_loop_back():
    model = plain()
    apply_setting(model, XLA)
    model.fit(batches(8), verbose=0)
    with pytest.warns(UserWarning, match=r"compile\(\) has set the model .* it ran 3 steps in one XLA program"):
        compiled(model, "sgd", steps_per_execution=2)
    assert setting_of(model) == KERAS
    assert model.steps_per_execution == 2
    assert not set(vars(model)) & {"fit", "compile", "evaluate", "predict", "make_train_function"}
    model.fit(batches(8), verbose=0)
    assert int(model.optimizer.iterations) == 2


def test_removing_gives_back_what_compile_set():
    model = compiled(plain(), steps_per_execution=2, jit_compile=True)
    before = set(vars(model))
    apply_setting(model, GRAPH)
    assert (model.steps_per_execution, model.jit_compile) == (3, False)
    apply_setting(model, XLA)
    remove_setting(model)
    assert (model.steps_per_execution, model.jit_compile) == (2, True)
    assert set(vars(model)) == before
    remove_setting(model)


@names("setting", [GRAPH, XLA])
def test_saving_keeps_nothing_of_it(setting, tmp_path):
    model = MODELS["normalized"]()
    apply_setting(model, setting)
    model.fit(batches(22), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert setting_of(loaded) == KERAS
    assert loaded.steps_per_execution == 1
    for variable, value in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(variable, value)
    loaded.fit(batches(22), verbose=0)
    assert int(loaded.optimizer.iterations) == 12


def test_a_tuned_model_can_be_copied_and_exported(tmp_path):
    model = plain()
    apply_setting(model, XLA)
    model.fit(batches(22), verbose=0)
    x, _ = examples(4)
    copied = copy.deepcopy(model)
    np.testing.assert_allclose(copied(x), model(x))
    assert setting_of(copied) == KERAS
    model.export(str(tmp_path / "exported"), verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(x), model(x), rtol=1e-6)


def test_run_eagerly_wins():
    model = plain()
    apply_setting(model, XLA)
    seen = []

    class Step(keras.layers.Layer):
        def call(self, x):
            seen.append(tf.executing_eagerly())
            return x

    model.add(Step())
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.warns(EagerExecutionWarning, match="runs eagerly"):
            model.fit(batches(8), verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)
    assert all(seen[1:])
    assert int(model.optimizer.iterations) == 2
    model.fit(batches(8), verbose=0)
    assert int(model.optimizer.iterations) == 4


def test_what_only_keras_can_run(two_cpu_strategy):
    with two_cpu_strategy.scope():
        distributed = plain()
    eager = compiled(plain(), run_eagerly=True)
    uncompiled = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])

    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            return super().make_train_function(force)

    own = compiled(Own([keras.Input([2]), keras.layers.Dense(1)]))
    for model, reason in [
        (distributed, "it is under MirroredStrategy"),
        (eager, "it runs eagerly"),
        (uncompiled, "it is not compiled"),
        (own, "it has a make_train_function of its own"),
    ]:
        with pytest.raises(ValueError, match=reason):
            apply_setting(model, GRAPH)
        assert not {"fit", "compile"} & set(vars(model))
        apply_setting(model, KERAS)
    with pytest.raises(ValueError, match="that is Keras' own loop"):
        Installation(plain(), KERAS)


@names("setting", OURS)
def test_functions_that_are_out_of_date_are_made_anew(setting):
    model = compiled(plain(), keras.optimizers.SGD(0.0))
    apply_setting(model, setting)
    model.fit(batches(22), verbose=0)
    step = model.train_step
    model.train_step = lambda data: {**step(data), "another": tf.constant(3.0)}
    # What make_precision_safe does to a model that it changes, as Keras itself in compile().
    model.train_function = None
    assert model.fit(batches(22), verbose=0).history["another"] == [3.0]
