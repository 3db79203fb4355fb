from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_turbo
from keras_turbo.execution.retracing import (
    EagerExecutionWarning,
    RetraceWatch,
    RetracingWarning,
    warn_if_eager,
    watch_retracing,
)


def sequence_model(**compile_options):
    model = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)], name="sequences")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, **({"jit_compile": False} | compile_options))
    return model


def sequences(rows, length):
    return np.ones((rows, length, 4), "float32"), np.zeros(rows, "int32")


def watched_function(name="train", **options):
    """A function of a batch that is traced for each new input, and its watch."""
    watch = RetraceWatch(name, **options)

    def body(data):
        watch.traced(data)
        return tf.constant(0)

    return tf.function(body), watch


def trace(watch, specs):
    tf.function(watch.traced).get_concrete_function(specs)


def warning_of(function, *batches):
    """The text of the one warning that calls give; all but the last call must be quiet."""
    *before, last = batches
    for batch in before:
        function(batch)
    with pytest.warns(RetracingWarning) as caught:
        function(last)
    (warning,) = caught
    return str(warning.message)


def test_equal_batches_and_a_short_last_one_are_normal():
    function, _ = watched_function()
    for rows in (8, 8, 3, 8, 3):
        function((tf.ones((rows, 5)), tf.zeros(rows)))


def test_a_third_batch_size_is_told():
    function, _ = watched_function()
    text = warning_of(function, *[tf.ones((rows, 5)) for rows in (8, 3, 5)])
    assert "The train function was traced again: x changed along axis 0, from shape (8, 5) to (5, 5)" in text
    assert "drop_remainder=True" in text


@pytest.mark.parametrize(
    ("before", "now", "told", "remedy"),
    [
        (
            {"tokens": tf.ones((8, 10, 2))},
            {"tokens": tf.ones((8, 11, 2))},
            "x['tokens'] changed along axis 1, from shape (8, 10, 2) to (8, 11, 2).",
            "bucket_by_sequence_length",
        ),
        ((tf.ones(8), tf.ones((8, 2))), (tf.ones(8), tf.ones((8, 3))), "y changed along axis 1", "Pad"),
        (
            (tf.ones(8), tf.ones(8), tf.ones(8)),
            (tf.ones(8), tf.ones(8), tf.ones(8, tf.float16)),
            "sample_weight changed its dtype from float32 to float16",
            "Cast",
        ),
        (
            (tf.ones(8), [tf.ones(8), tf.ones(8)]),
            (tf.ones(8), [tf.ones(8), tf.ones((8, 1))]),
            "y[1] changed its rank, from shape (8,) to (8, 1)",
            "same rank",
        ),
        (
            {"a": tf.ones(8)},
            {"b": tf.ones(8)},
            "x['a'] was given before (float32 of shape (8,)) and is not any more; x['b'] is new",
            "under the same names",
        ),
        (
            {"a": tf.ones(8), "steps": 3},
            {"a": tf.ones(8), "steps": 4},
            "the Python value x['steps'] changed from 3 to 4",
            "input_signature",
        ),
        ((tf.ones(8),) * 4, (*(tf.ones(8),) * 3, tf.ones(8, tf.int32)), "data[3] changed its dtype", "Cast"),
    ],
    ids=["axis", "target", "dtype", "rank", "structure", "value", "another structure"],
)
def test_what_changed_and_the_remedy(before, now, told, remedy):
    function, _ = watched_function()
    text = warning_of(function, before, now)
    assert told in text
    assert remedy in text


def test_only_the_first_retrace_is_told():
    function, _ = watched_function()
    warning_of(function, tf.ones((8, 10)), tf.ones((8, 11)))
    function(tf.ones((8, 12)))
    function(tf.ones((8, 12), tf.float16))


def test_a_function_made_anew_has_no_retrace():
    function, watch = watched_function()
    function(tf.ones((8, 10)))
    watch.restart()
    function(tf.ones((8, 11)))


def test_sizes_that_tensorflow_generalized_are_known_from_the_batch():
    watch = RetraceWatch("predict", "m")

    @tf.function(reduce_retracing=True)
    def function(data):
        watch.traced(data)

    function(tf.ones((8, 10)))
    watch.called_with(tf.ones((8, 11)))
    text = warning_of(function, tf.ones((8, 11)))
    assert (
        "The predict function of 'm' was traced again: x changed along axis 1, from shape (8, 10) to (8, 11)." in text
    )


def test_a_generalized_size_that_nobody_knows():
    watch = RetraceWatch("train")

    @tf.function(reduce_retracing=True)
    def function(data):
        watch.traced(data)

    text = warning_of(function, tf.ones((8, 10)), tf.ones((8, 11)))
    assert "axis 1, from shape (8, 10) to (8, None) (of any size from now on)" in text


def test_a_trace_that_left_the_size_open_covers_all():
    watch = RetraceWatch("train")
    for shape in ((None, None), (8, 10), (8, 11)):
        trace(watch, tf.TensorSpec(shape))


def test_an_eager_function_has_no_traces():
    function, _ = watched_function()
    tf.config.run_functions_eagerly(True)
    try:
        for length in (10, 11, 12):
            function(tf.ones((8, length)))
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("jit_compile", [True, False])
def test_open_sizes_under_xla_are_told_at_once(jit_compile):
    watch = RetraceWatch("train", jit_compile=jit_compile)
    watch_of_batches = RetraceWatch("train", jit_compile=jit_compile)
    trace(watch_of_batches, tf.TensorSpec((None, 4)))  # only the batch's size is open
    if not jit_compile:
        trace(watch, {"a": tf.TensorSpec((None, None, 4))})
        return
    with pytest.warns(RetracingWarning, match=r"axis 1 of x\['a'\].* compiles it anew for each size"):
        trace(watch, {"a": tf.TensorSpec((None, None, 4))})


@pytest.mark.parametrize("jit_compile", [False, True])
def test_lengths_from_10_to_19_name_the_axis(jit_compile):
    model = sequence_model(jit_compile=jit_compile)
    with watch_retracing(model), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for length in range(10, 20):
            model.train_on_batch(*sequences(8, length))
    (warning,) = [warning for warning in caught if warning.category is RetracingWarning]
    text = str(warning.message)
    assert "The train function of 'sequences' was traced again: x changed along axis 1, from shape (8, 10, 4)" in text
    assert "to (8, 11, 4)." in text
    assert ("XLA compiles it" in text) is jit_compile


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_datasets_of_another_length_in_another_fit(steps_per_execution):
    model = sequence_model(steps_per_execution=steps_per_execution)
    with watch_retracing(model):
        model.fit(*sequences(16, 10), batch_size=8, verbose=0)
        model.fit(*sequences(16, 10), batch_size=8, verbose=0)
        with pytest.warns(RetracingWarning, match=r"x changed along axis 1, from shape \(8, 10, 4\) to \(8, 11, 4\)\."):
            model.fit(*sequences(16, 11), batch_size=8, verbose=0)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_evaluate_and_predict_are_watched(method):
    model = sequence_model()
    name = {"evaluate": "test", "predict": "predict"}[method]
    with watch_retracing(model):
        getattr(model, method)(sequences(12, 10)[0], *([sequences(12, 10)[1]] if name == "test" else []), verbose=0)
        with pytest.warns(RetracingWarning, match=f"The {name} function of .* x changed along axis 1, from shape"):
            getattr(model, method)(sequences(12, 11)[0], *([sequences(12, 11)[1]] if name == "test" else []), verbose=0)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_fit_with_a_short_last_batch_is_quiet(steps_per_execution):
    model = sequence_model(steps_per_execution=steps_per_execution)
    x, y = sequences(20, 10)
    with watch_retracing(model):
        model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0)
        assert model.predict(x, batch_size=8, verbose=0).shape == (20, 3)
        model.train_on_batch(x[:8], y[:8])
        model.train_on_batch(x[:4], y[:4])


def test_fit_under_a_strategy_is_quiet(two_cpu_strategy):
    with two_cpu_strategy.scope():
        model = sequence_model()
    with watch_retracing(model):
        model.fit(*sequences(20, 10), batch_size=8, epochs=2, verbose=0)


class CustomStep(keras.Model):
    def __init__(self):
        super().__init__(name="custom")
        self.dense = keras.layers.Dense(2)
        self.steps_traced = 0

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.steps_traced += 1
        return {"loss": tf.reduce_sum(self(data[0]["features"]))}


def test_a_custom_step_is_watched_and_called():
    model = CustomStep()
    model.compile(jit_compile=False)
    dataset = tf.data.Dataset.from_tensors(({"features": tf.ones((4, 3))},))
    other = tf.data.Dataset.from_tensors(({"features": tf.ones((4, 3), tf.float64)},))
    with watch_retracing(model):
        model.fit(dataset, verbose=0, shuffle=False)
        with pytest.warns(RetracingWarning, match=r"x\['features'\] changed its dtype from float32 to float64"):
            model.fit(other, verbose=0, shuffle=False)
    assert model.steps_traced >= 2


def test_afterwards_the_model_is_as_before():
    model = sequence_model()
    model.fit(*sequences(8, 10), verbose=0)
    model.evaluate(*sequences(8, 10), verbose=0)
    attributes, function, test_function = set(vars(model)), model.train_function, model.test_function
    with watch_retracing(model):
        model.fit(*sequences(8, 10), verbose=0)
        assert model.train_function is not function
        model.evaluate(*sequences(8, 10), verbose=0)
        model.predict(sequences(8, 10)[0], verbose=0)
    assert set(vars(model)) - {"stop_predicting"} == attributes  # Keras' own, set by predict
    assert model.train_function is function
    assert model.test_function is test_function
    assert model.predict_function is None
    model.fit(*sequences(8, 10), verbose=0)
    assert int(model.optimizer.iterations) == 3


def test_afterwards_the_model_has_what_others_had_set():
    model = sequence_model()
    calls = []

    def step(data):
        calls.append(data)
        return type(model).train_step(model, data)

    model.train_step = step
    with watch_retracing(model):
        model.fit(*sequences(8, 10), verbose=0)
    assert len(calls) >= 1
    assert model.train_step is step


def test_a_model_that_was_compiled_meanwhile_keeps_no_old_function():
    model = sequence_model()
    model.fit(*sequences(8, 10), verbose=0)
    before = model.get_weights()[0]
    with watch_retracing(model):
        model.fit(*sequences(8, 10), verbose=0)
        model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
        model.fit(sequences(8, 10)[0], np.zeros((8, 3)), verbose=0)
        with pytest.warns(RetracingWarning, match="x changed along axis 1"):
            model.fit(sequences(8, 11)[0], np.zeros((8, 3)), verbose=0)
    assert model.train_function is None
    after = model.get_weights()[0]
    model.fit(sequences(8, 10)[0], np.zeros((8, 3)), verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], after)
    assert not np.array_equal(before, after)


def test_an_exception_restores_the_model():
    model = sequence_model()
    attributes = set(vars(model))
    with pytest.raises(KeyError, match="stop"), watch_retracing(model):
        raise KeyError("stop")
    assert set(vars(model)) == attributes


def test_a_watched_model_is_saved_and_loaded(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    with watch_retracing(model):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
        model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 2)), verbose=0), model.predict(np.ones((1, 2)), verbose=0))


def test_losses_are_the_same_while_watched():
    def losses(watched):
        keras.utils.set_random_seed(3)
        model = sequence_model()
        model.build((None, 10, 4))
        if watched:
            with watch_retracing(model):
                return model.fit(*sequences(20, 10), batch_size=8, epochs=3, verbose=0).history["loss"]
        return model.fit(*sequences(20, 10), batch_size=8, epochs=3, verbose=0).history["loss"]

    assert losses(watched=True) == losses(watched=False)


def test_run_eagerly_is_told_once():
    model = sequence_model(run_eagerly=True)
    with pytest.warns(EagerExecutionWarning, match="'sequences' runs eagerly.*`run_eagerly=True`.*debug_mode"):
        warn_if_eager(model)
    warn_if_eager(model)
    warn_if_eager(sequence_model())


def test_run_functions_eagerly_left_on_is_told_once():
    model = sequence_model()
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.warns(EagerExecutionWarning, match=r"tf.config.run_functions_eagerly\(True\)"):
            warn_if_eager(model)
        warn_if_eager(model)
    finally:
        tf.config.run_functions_eagerly(False)


def test_debug_mode_is_eager_on_purpose():
    with keras_turbo.debug_mode():
        warn_if_eager(sequence_model(run_eagerly=True))
