"""Real trainings that are slow for one reason each, and the verdict on them."""

import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset, GpuUtilization
from keras_turbo.execution.installation import apply_setting
from keras_turbo.execution.setting import ExecutionSetting

ROWS, FEATURES, CLASSES = 8, 16, 4
X = np.random.default_rng(0).normal(size=(ROWS * 40, FEATURES)).astype("float32")
Y = np.random.default_rng(0).integers(0, CLASSES, size=ROWS * 40).astype("int32")


def compiled(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False, **options)
    return model


def tiny():
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(CLASSES)]
    return compiled(keras.Sequential([keras.Input((FEATURES,)), *layers]))


class Sleep(keras.layers.Layer):
    """Computes for a known time."""

    def call(self, inputs):
        def slept(x):
            time.sleep(0.05)
            return x

        return tf.ensure_shape(tf.numpy_function(slept, [tf.stop_gradient(inputs)], inputs.dtype), inputs.shape)


class SlowInput:
    """Batches that take time to make, and how long they took in the last iteration."""

    def __init__(self, seconds, batches=12):
        self.seconds, self.batches = seconds, batches
        self.slept_seconds = 0.0
        signature = (tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None], tf.int32))
        options = tf.data.Options()
        # Else a batch is made while the one before is trained on, and less is waited for.
        options.experimental_optimization.inject_prefetch = False
        dataset = tf.data.Dataset.from_generator(self.generate, output_signature=signature)
        self.dataset = dataset.with_options(options)

    def generate(self):
        slept = []
        for _ in range(self.batches):
            begin = time.perf_counter()
            time.sleep(self.seconds)
            slept.append(time.perf_counter() - begin)
            if len(slept) == self.batches:
                # Keras begins one more iteration at an epoch's end, and drops it.
                self.slept_seconds = sum(slept)
            yield X[:ROWS], Y[:ROWS]


class WallClock(keras.callbacks.Callback):
    """How long the executions of the last epoch took, measured from outside."""

    needs_every_batch = False

    def on_epoch_begin(self, epoch, logs=None):
        self.begin = None

    def on_train_batch_begin(self, batch, logs=None):
        self.begin = self.begin or time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds = time.perf_counter() - self.begin


def verdict_on(model, *data, callbacks=(), epochs=2, warn_below=70, **options):
    """The verdict on the last epoch, the texts of the warnings, and the callback."""
    callback = GpuUtilization(interval=0.1, warn_below=warn_below)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*data, epochs=epochs, verbose=0, callbacks=[callback, *callbacks], **options)
    told = [str(one.message) for one in caught if str(one.message).startswith("Epoch")]
    return callback.verdict, told, callback


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_a_sleep_in_the_input(steps_per_execution):
    data, clock = SlowInput(0.08), WallClock()
    model = tiny()
    model.steps_per_execution = steps_per_execution
    verdict, told, _ = verdict_on(model, data.dataset, callbacks=[clock])
    assert verdict.kind == "input-bound"
    assert verdict.share_percent == pytest.approx(100 * data.slept_seconds / clock.seconds, abs=10)
    assert verdict.share_percent > 70
    assert len(told) == 2
    assert "input-bound" in told[1]
    assert "FastDataset" in told[1]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_half_of_the_time_in_the_input():
    data, clock = SlowInput(0.08), WallClock()
    model = compiled(keras.Sequential([keras.Input((FEATURES,)), Sleep(), keras.layers.Dense(CLASSES)]))
    verdict, _, _ = verdict_on(model, data.dataset, callbacks=[clock])
    assert verdict.kind == "input-bound"
    assert verdict.share_percent == pytest.approx(100 * data.slept_seconds / clock.seconds, abs=10)
    assert 35 < verdict.share_percent < 75


@pytest.mark.parametrize("loop", ["graph", "xla"])
def test_a_sleep_in_the_input_of_a_tuned_model(loop):
    data, clock = SlowInput(0.08, batches=12), WallClock()
    model = tiny()
    apply_setting(model, ExecutionSetting(loop, 4, jit_compile=loop == "xla"))
    dataset = data.dataset.apply(tf.data.experimental.assert_cardinality(12))
    # On a machine that has much else to do, the first execution of an epoch may take as long as all the sleep.
    verdict, _, callback = verdict_on(model, dataset, callbacks=[clock], warn_below=95)
    assert verdict.kind == "input-bound"
    assert verdict.share_percent == pytest.approx(100 * data.slept_seconds / clock.seconds, abs=10)
    assert callback.figures.steps_per_execution == 4


def test_a_fast_dataset_that_is_slow_is_to_be_looked_into():
    def load(path):
        def slept(name):
            time.sleep(0.01)
            return np.zeros(FEATURES, np.float32)

        return tf.ensure_shape(tf.numpy_function(slept, [path], tf.float32), [FEATURES])

    paths = np.array([str(number) for number in range(96)])
    labels = np.zeros(96, np.int32)
    data = FastDataset(
        paths, labels, map_fn=lambda path, label: (load(path), label), batch_size=8, cache=False, workers=1
    )
    verdict, told, callback = verdict_on(tiny(), data)
    assert verdict.kind == "input-bound"
    assert callback.figures.reads_fast_dataset
    assert "train.report()" in told[-1]


def test_a_tiny_model():
    verdict, told, callback = verdict_on(tiny(), X, Y, batch_size=ROWS, epochs=3)
    assert verdict.kind == "dispatch-bound"
    assert "keras_turbo.TuneExecution()" in told[-1]
    # Several steps an execution share the cost that was measured.
    model = tiny()
    model.steps_per_execution = 20
    _, _, shared = verdict_on(model, X, Y, batch_size=ROWS, epochs=3)
    assert shared.figures.dispatch_ms < callback.figures.dispatch_ms / 4


def test_a_slow_callback():
    class WritesMuch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.03)

    class WritesLittle(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.001)

    verdict, told, callback = verdict_on(
        tiny(), X[:160], Y[:160], batch_size=ROWS, callbacks=[WritesLittle(), WritesMuch()]
    )
    assert verdict.kind == "callback-bound"
    assert "WritesMuch" in verdict.text
    assert "WritesMuch" in verdict.remedy
    assert "callback-bound" in told[-1]
    assert callback.figures.callbacks_ms["WritesMuch"] >= 30


def test_a_slow_callback_at_the_end_of_epochs():
    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.5)

    verdict, _, _ = verdict_on(tiny(), X, Y, batch_size=ROWS, callbacks=[Evaluates()])
    assert verdict.kind == "callback-bound"
    assert "Evaluates" in verdict.text
    assert "on_epoch_end" in verdict.remedy


@pytest.mark.parametrize("save_freq", ["epoch", 2])
def test_a_checkpoint_that_blocks(tmp_path, save_freq):
    layers = [keras.layers.Embedding(300_000, 16), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(CLASSES)]
    # Much to write, and little to compute.
    model = compiled(keras.Sequential([keras.Input((FEATURES,), dtype="int32"), *layers]))
    model.layers[0].trainable = False
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    checkpoint = keras.callbacks.ModelCheckpoint(
        tmp_path / "model.weights.h5", save_weights_only=True, save_freq=save_freq
    )
    tokens = np.zeros((ROWS * 6, FEATURES), np.int32)
    verdict, told, _ = verdict_on(model, tokens, Y[: ROWS * 6], batch_size=ROWS, callbacks=[checkpoint])
    assert verdict.kind == "checkpoint-stalls"
    assert "ModelCheckpoint" in verdict.text
    assert "AsyncCheckpoint" in told[-1]


def test_a_large_model():
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
    model = compiled(keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)]))
    verdict, told, _ = verdict_on(model, np.tile(X, (8, 1)), np.tile(Y, 8), batch_size=256)
    assert verdict.kind == "compute-bound"
    assert verdict.remedy == ""
    assert told == []
