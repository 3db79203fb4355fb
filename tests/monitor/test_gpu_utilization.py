import copy
import csv
import gc
import math
import os
import pickle
import re
import threading
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import AsyncCheckpoint, FastDataset, GpuUtilization, distribute, tune
from keras_turbo.execution.installation import apply_setting
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.fit import session
from keras_turbo.fit.keras_internals import calling_list
from keras_turbo.fit.session import FitSession
from keras_turbo.fit.train_function import Place, WrappedTrainFunction
from keras_turbo.monitor import gpu_utilization
from tests.monitor.fake_nvml import FakeNvml, use
from tests.monitor.fake_nvml import gpus as machine
from tests.monitor.samples import FakeSubscription, counters, sample, subscribing

# Without a GPU a warning says so, once for each callback.
pytestmark = [pytest.mark.compatibility, pytest.mark.filterwarnings("ignore:GpuUtilization gives no figures of GPUs")]

X = np.random.default_rng(1).normal(size=(42, 4)).astype("float32")
Y = np.random.default_rng(2).normal(size=(42, 1)).astype("float32")

STEP_FIGURES = {"step_ms_median", "step_ms_p95", "examples_per_second", "input_wait_ms", "input_wait_percent"}
CPU_FIGURES = {"cpu_utilization_percent", "cpu_free_percent"}


def small_model(steps_per_execution=1, optimizer="sgd"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution, jit_compile=False)
    return model


def quiet(**options):
    return GpuUtilization(**{"interval": 0.02, "warn_below": 0, **options})


def sampler_threads():
    return [thread for thread in threading.enumerate() if "sampler" in thread.name]


def wait_for_no_threads():
    gc.collect()
    deadline = time.monotonic() + 5
    while sampler_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not sampler_threads()


@pytest.fixture
def gpus(monkeypatch):
    """Gives a function that puts made-up GPUs into the machine."""

    def put(*samples, problem=None):
        subscription = FakeSubscription(samples, problem)
        monkeypatch.setattr(gpu_utilization, "subscribe", subscribing(subscription))
        return subscription

    return put


class PyData(keras.utils.PyDataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return X[index * 6 : index * 6 + 6], Y[index * 6 : index * 6 + 6]


def generated():
    def generate():
        for begin in range(0, 42, 6):
            yield X[begin : begin + 6], Y[begin : begin + 6]

    signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def plain_generator():
    # Keras takes a generator once, for all epochs.
    for _ in range(3):
        for begin in range(0, 42, 6):
            yield X[begin : begin + 6], Y[begin : begin + 6]


DATA = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 5, "shuffle": True},
    "weighted arrays": lambda: {"x": X, "y": Y, "sample_weight": np.arange(42.0), "batch_size": 6},
    "FastDataset": lambda: {"x": FastDataset(X, Y, batch_size=5, shuffle=True, seed=4)},
    "FastDataset over tf.data": lambda: {
        "x": FastDataset(tf.data.Dataset.from_tensor_slices((X, Y)), batch_size=6, shuffle=True, cache="memory", seed=1)
    },
    "tf.data": lambda: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(42, seed=3).batch(6).prefetch(2)},
    "tf.data from a generator": lambda: {"x": generated()},
    "a generator": lambda: {"x": plain_generator(), "steps_per_epoch": 7},
    "PyDataset": lambda: {"x": PyData()},
    "an endless dataset": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(42, seed=3).repeat().batch(6),
        "steps_per_epoch": 5,
    },
}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.parametrize("data", DATA)
def test_training_is_the_same_with_and_without_it(data, steps_per_execution):
    results = []
    for callbacks in ([], [quiet()]):
        model = small_model(steps_per_execution)
        traces = []
        train_step = model.train_step

        def step(batch, traces=traces, train_step=train_step):
            traces.append(1)
            return train_step(batch)

        model.train_step = step
        history = model.fit(**DATA[data](), epochs=3, verbose=0, callbacks=callbacks).history
        results.append((history["loss"], [array.tolist() for array in model.get_weights()], len(traces)))
    assert results[0] == results[1]
    assert history.keys() > STEP_FIGURES


@pytest.mark.parametrize("loop", ["graph", "xla"])
@pytest.mark.parametrize("data", ["FastDataset", "tf.data", "arrays"])
def test_training_of_a_tuned_model_is_the_same(data, loop):
    results = []
    for callbacks in ([], [quiet()]):
        model = small_model()
        apply_setting(model, ExecutionSetting(loop, 3, jit_compile=loop == "xla"))
        callback = callbacks[0] if callbacks else None
        history = model.fit(**DATA[data](), epochs=3, verbose=0, callbacks=callbacks).history
        results.append((history["loss"], [array.tolist() for array in model.get_weights()]))
    assert results[0] == results[1]
    assert history.keys() > STEP_FIGURES
    assert callback.figures.steps_per_execution == 3
    assert callback.figures.reads_fast_dataset in ((True,) if data == "FastDataset" else (False, None))


def test_a_model_that_tune_has_set_is_watched():
    model = small_model()
    tune(model, FastDataset(X, Y, batch_size=6), budget_seconds=1)
    callback = quiet()
    with warnings.catch_warnings():
        # In particular none of batch hooks that are called once for several batches.
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "GpuUtilization gives no figures")
        warnings.filterwarnings("ignore", "`shuffle=True` was passed")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        history = model.fit(FastDataset(X, Y, batch_size=6), epochs=2, verbose=0, callbacks=[callback]).history
    assert history.keys() > STEP_FIGURES


def test_figures_of_an_epoch_and_the_names_they_have(gpus):
    gpus(
        sample(
            counters(
                utilization_percent=80.0,
                memory_used_mb=4_000.0,
                memory_total_mb=80_000.0,
                power_watts=300.0,
                energy_joules=5.0,
                throttle_reasons=(),
            )
        )
    )
    callback = quiet()
    history = small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback]).history
    assert set(history) == {
        "loss",
        "learning_rate",
        *STEP_FIGURES,
        "gpu_utilization_percent",
        "gpu_utilization_p10_percent",
        "gpu_memory_peak_mb",
        "gpu_memory_peak_percent",
        "gpu_power_watts",
        "gpu_energy_wh",
        "gpu_throttled_percent",
    }
    assert history["gpu_utilization_percent"] == [80.0, 80.0]
    assert history["gpu_memory_peak_percent"] == [5.0, 5.0]
    assert history["learning_rate"] == pytest.approx([0.01, 0.01])
    assert all(0 < value < 60_000 for value in history["step_ms_median"])
    assert all(median <= p95 for median, p95 in zip(history["step_ms_median"], history["step_ms_p95"], strict=True))
    # Examples a second and the time of a step are of the same steps: 6 of 6 examples, the first execution left out.
    assert callback.figures.utilization_percent == 80.0
    assert callback.verdict.kind == "compute-bound"


def test_examples_are_counted_also_in_a_last_batch_that_is_not_full():
    counted = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            counted.append(logs["examples_per_second"])

    callback = quiet()
    # Batches of 8: 5 full ones and 2 examples more, of which the first one is left out in the first epoch.
    small_model().fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[Looks(), callback])
    figures = callback.figures
    seconds = figures.step_ms * 6 / 1000
    # The time of the hooks at the epoch's end is in the last figures, and was not yet known in those of the logs.
    assert counted[1] * seconds == pytest.approx(42, rel=0.2)


def test_what_a_real_machine_has_is_in_the_logs():
    history = small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[quiet()]).history
    hardware = {name for name in history if name.startswith(("cpu_", "gpu_"))}
    assert hardware
    assert hardware <= CPU_FIGURES or all(name.startswith("gpu_") for name in hardware)
    lengths = {name: len(values) for name, values in history.items()}
    assert set(lengths.values()) == {2}, lengths


def test_figures_that_come_and_go_have_a_value_in_each_epoch(gpus, monkeypatch):
    subscription = gpus(sample(counters(utilization_percent=80.0, power_watts=100.0)))

    class Loses(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                subscription.samples = [sample(counters(utilization_percent=60.0))]

    history = small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[quiet(), Loses()]).history
    assert history["gpu_power_watts"][0] == 100.0
    # Never 0.
    assert math.isnan(history["gpu_power_watts"][1])
    assert history["gpu_utilization_percent"] == [80.0, 60.0]


@pytest.mark.parametrize("place", ["first", "last"])
def test_csv_and_history_have_the_figures_wherever_the_callback_stands(tmp_path, place):
    others = [keras.callbacks.CSVLogger(tmp_path / "log.csv")]
    callbacks = [quiet(), *others] if place == "first" else [*others, quiet()]
    history = small_model().fit(X, Y, batch_size=6, epochs=3, verbose=0, callbacks=callbacks).history
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    for row in rows:
        assert row.keys() > STEP_FIGURES
        assert all(math.isfinite(float(row[name])) for name in STEP_FIGURES)
    assert [float(row["step_ms_median"]) for row in rows] == pytest.approx(history["step_ms_median"])


@pytest.mark.parametrize("of_hardware", ["step_ms_median", "gpu_utilization_percent"])
def test_the_progress_bar_shows_two_of_them(tmp_path, capsys, gpus, of_hardware):
    if of_hardware.startswith("gpu"):
        gpus(sample(counters(utilization_percent=80.0, power_watts=100.0)))
    callbacks = [quiet(), AsyncCheckpoint(tmp_path)]
    history = small_model().fit(X, Y, batch_size=6, epochs=1, verbose=2, callbacks=callbacks).history
    shown = re.findall(r"(\w+): ", capsys.readouterr().out.partition("\n")[2])
    assert {name for name in shown if name in history} == {"loss", of_hardware, "input_wait_percent"}
    assert history.keys() > {*STEP_FIGURES, "checkpoint_step", "learning_rate"}


def scalars(folder):
    """Steps by tag, in the order in which they were written, over all files of a folder."""
    steps = {}
    for name in sorted(os.listdir(folder), key=lambda name: os.path.getmtime(os.path.join(folder, name))):
        for record in tf.data.TFRecordDataset(os.path.join(folder, name)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    return steps


def test_tensorboard_steps_grow_over_epochs_and_fits(tmp_path):
    callback = quiet(log_dir=tmp_path / "logs")
    model = small_model()
    model.fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback])
    model.fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback])
    steps = scalars(tmp_path / "logs")
    assert {f"epoch_{name}" for name in STEP_FIGURES} < steps.keys()
    assert steps["epoch_step_ms_median"] == [7, 14, 21, 28]
    assert all(np.all(np.diff(one) > 0) for one in steps.values())


def test_a_model_that_does_not_use_its_optimizer_is_written_against_its_batches(tmp_path):
    class OwnStep(keras.Sequential):
        def train_step(self, data):
            self.layers[-1].kernel.assign(self.layers[-1].kernel * 0.9)
            return {"loss": tf.constant(1.0)}

    model = OwnStep([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=6, epochs=3, verbose=0, callbacks=[quiet(log_dir=tmp_path / "logs")])
    steps = scalars(tmp_path / "logs")["epoch_step_ms_median"]
    assert len(steps) == 3
    assert np.all(np.diff(steps) > 0)


def test_within_an_epoch_the_hardware_is_written_now_and_then(tmp_path, gpus, monkeypatch):
    gpus(sample(counters(utilization_percent=80.0)))
    monkeypatch.setattr(gpu_utilization, "_SCALARS_SECONDS", 0.0)
    small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[quiet(log_dir=tmp_path / "logs")])
    steps = scalars(tmp_path / "logs")
    assert steps["gpu_utilization_percent"] == list(range(14))
    assert steps["epoch_gpu_utilization_percent"] == [7, 14]


def test_a_folder_that_can_not_be_made_fails_before_the_first_batch(tmp_path):
    (tmp_path / "file").write_text("")
    batches = []
    looks = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: batches.append(batch))
    with pytest.raises(OSError, match="file"):
        small_model().fit(X, Y, verbose=0, callbacks=[looks, quiet(log_dir=tmp_path / "file" / "logs")])
    assert batches == []
    assert wait_for_no_threads()


def test_a_folder_with_a_scheme_is_of_tensorflows_file_systems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_model().fit(X, Y, epochs=2, verbose=0, callbacks=[quiet(log_dir="ram://gpu_utilization/logs")])
    assert len(tf.io.gfile.listdir("ram://gpu_utilization/logs")) == 1
    assert os.listdir(tmp_path) == []
    batches = []
    looks = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: batches.append(batch))
    with pytest.raises(OSError, match="nowhere://logs"):
        small_model().fit(X, Y, verbose=0, callbacks=[looks, quiet(log_dir="nowhere://logs")])
    assert batches == []
    tf.io.gfile.rmtree("ram://gpu_utilization")


def test_no_nvml_is_one_warning_and_no_figure(gpus):
    gpus(sample(), problem="No NVIDIA driver on this machine.")
    callback = quiet()
    model = small_model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            history = model.fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback]).history
    told = [str(one.message) for one in caught if "GpuUtilization" in str(one.message)]
    assert told == ["GpuUtilization gives no figures of GPUs, or not all. No NVIDIA driver on this machine."]
    assert not any(name.startswith("gpu_") for name in history)
    assert history.keys() > CPU_FIGURES


def test_a_mig_instance_has_no_utilization_and_no_zero(gpus):
    gpus(sample(counters(memory_used_mb=100.0, memory_total_mb=1000.0)))
    history = small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[quiet()]).history
    assert {name for name in history if name.startswith("gpu_")} == {"gpu_memory_peak_mb", "gpu_memory_peak_percent"}


def test_below_the_limit_each_epoch_ends_with_one_warning(gpus):
    gpus(sample(counters(0, utilization_percent=95.0), counters(1, utilization_percent=15.0)))
    callback = GpuUtilization(warn_below=70)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback])
    told = [str(one.message) for one in caught if "gpu-lagging" in str(one.message)]
    assert [text.partition(" of ")[0] for text in told] == ["Epoch 1", "Epoch 2"]
    assert "GPU 1 of those in use is busy 15 %" in told[0]
    assert callback.verdict.kind == "gpu-lagging"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[GpuUtilization(warn_below=0)])
    assert not [one for one in caught if "gpu-lagging" in str(one.message)]


@pytest.mark.parametrize("optimizer", ["schedule", "scaled schedule"])
def test_the_learning_rate_of_schedules(optimizer):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([6, 13], [0.1, 0.01, 0.001])
    sgd = keras.optimizers.SGD(schedule)
    model = small_model(optimizer=keras.optimizers.LossScaleOptimizer(sgd) if "scaled" in optimizer else sgd)
    history = model.fit(X, Y, batch_size=6, epochs=3, verbose=0, callbacks=[quiet()]).history
    assert history["learning_rate"] == pytest.approx([0.01, 0.001, 0.001])


def test_validation_and_other_loops_inside_fit_do_not_disturb():
    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(X, Y, verbose=0)
            self.model.predict(X, verbose=0)

    steps = []

    class Looks(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            steps.append(batch)

    callback = quiet()
    options = {"verbose": 0, "epochs": 2, "callbacks": [callback, Evaluates(), Looks()]}
    history = small_model().fit(X, Y, batch_size=6, validation_data=(X, Y), validation_batch_size=21, **options).history
    assert steps == [0, 1, 0, 1]
    assert history.keys() > STEP_FIGURES
    # What a callback does counts as its own; the validation's hooks do not.
    assert set(callback.figures.callbacks_ms) == {"Evaluates", "Looks"}
    assert callback.figures.callbacks_ms["Looks"] < 1.0


def test_a_slow_validation_is_no_time_of_a_step():
    def slow():
        for _ in range(3):
            time.sleep(0.3)
            yield X[:6], Y[:6]

    signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    validation = tf.data.Dataset.from_generator(slow, output_signature=signature).apply(
        tf.data.experimental.assert_cardinality(3)
    )
    callback = quiet()
    small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, validation_data=validation, callbacks=[callback])
    # 0.9 s over 7 steps would be 130 ms.
    assert callback.figures.step_ms < 100


class Fails(keras.callbacks.Callback):
    def __init__(self, hook, error=RuntimeError):
        super().__init__()
        self.error = error
        setattr(self, hook, self.fail)

    def fail(self, *_, **__):
        raise self.error("on purpose")


HOOKS = ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"]


@pytest.mark.parametrize("hook", [*HOOKS, "on_test_batch_end", "on_train_end"])
def test_a_callback_that_raises_leaves_nothing(hook, tmp_path):
    model, callback = small_model(), quiet(log_dir=tmp_path / "logs")
    options = {"batch_size": 6, "verbose": 0, "validation_data": (X, Y)}
    with pytest.raises(RuntimeError, match="on purpose") as raised:
        model.fit(X, Y, callbacks=[callback, Fails(hook)], **options)
    if hook == "on_train_begin":
        # Only the list of callbacks, which the traceback holds, knows that it is over.
        del raised
    assert wait_for_no_threads()
    assert not isinstance(model.train_function, WrappedTrainFunction)
    history = model.fit(X, Y, callbacks=[callback], epochs=2, **options).history
    assert len(history["step_ms_median"]) == 2
    assert wait_for_no_threads()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_fit_leaves_nothing(error):
    model, callback = small_model(), quiet()
    with pytest.raises(error):
        model.fit(X, Y, batch_size=6, verbose=0, callbacks=[callback, Fails("on_train_batch_end", error)])
    assert wait_for_no_threads()
    assert not isinstance(model.train_function, WrappedTrainFunction)


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_test_batch_end"])
def test_an_interrupted_cell_leaves_nothing_while_the_traceback_is_kept(hook, monkeypatch):
    monkeypatch.setattr(session, "_WATCH_SECONDS", 0.05)
    model, callback = small_model(), quiet()
    options = {"batch_size": 6, "verbose": 0, "validation_data": (X, Y)}
    with pytest.raises(KeyboardInterrupt) as kept:
        model.fit(X, Y, callbacks=[callback, Fails(hook, KeyboardInterrupt)], **options)
    assert wait_for_no_threads()
    assert not isinstance(model.train_function, WrappedTrainFunction)
    assert kept.value.__traceback__ is not None


def test_ctrl_c_while_the_sampler_is_started_leaves_nothing(monkeypatch):
    monkeypatch.setattr(session, "_WATCH_SECONDS", 0.05)
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        if thread.name == "keras_turbo device sampler":
            raise KeyboardInterrupt

    model = small_model()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as kept:
        patch.setattr(threading.Thread, "start", interrupted)
        model.fit(X, Y, batch_size=6, verbose=0, callbacks=[quiet()])
    assert wait_for_no_threads()
    assert kept.value.__traceback__ is not None


@pytest.mark.parametrize("where", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetUtilizationRates"])
def test_a_driver_that_hangs_costs_a_second_at_most_and_the_cpu_is_told_of(where, monkeypatch):
    library = FakeNvml(machine(1))
    use(monkeypatch, library)
    library.hang_in = where
    model = small_model()
    model.fit(X, Y, batch_size=6, verbose=0)
    begin = time.monotonic()
    history = model.fit(X, Y, batch_size=6, epochs=5, verbose=0, callbacks=[quiet()]).history
    seconds = time.monotonic() - begin
    begin = time.monotonic()
    model.fit(X, Y, batch_size=6, epochs=5, verbose=0)
    # Once for a fit, and not at the end of each epoch.
    assert seconds - (time.monotonic() - begin) < 2.5
    assert all(np.isfinite(history["cpu_utilization_percent"]))
    assert not any(name.startswith("gpu_") for name in history)
    library.let_go.set()
    assert wait_for_no_threads()


@pytest.mark.parametrize("eager", [False, True])
def test_on_a_machine_without_a_gpu_nothing_is_said_of_one(eager, monkeypatch):
    use(monkeypatch, None)
    monkeypatch.setattr("keras_turbo.monitor.nvml._may_have_gpus", lambda root: False)
    model = small_model()
    model.compile("sgd", "mse", run_eagerly=eager, jit_compile=False)
    callback = GpuUtilization(interval=0.02, warn_below=100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback])
    told = [str(one.message).replace("GpuUtilization", "") for one in caught]
    assert not [text for text in told if "GPU" in text]
    assert "GPU" not in str(callback.verdict)


def test_data_that_fail_leave_nothing_while_the_traceback_is_held():
    def generate():
        yield X[:6], Y[:6]
        raise ValueError("a damaged file")

    signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    model, callback = small_model(), quiet()
    with pytest.raises(tf.errors.InvalidArgumentError, match="a damaged file") as raised:
        model.fit(data, verbose=0, callbacks=[callback])
    assert raised.value is not None
    assert wait_for_no_threads()
    assert not isinstance(model.train_function, WrappedTrainFunction)
    assert model.fit(X, Y, batch_size=6, verbose=0, callbacks=[callback]).history.keys() > STEP_FIGURES


def test_fits_in_threads_have_each_their_own_figures():
    results, errors = {}, []

    def train(batch_size):
        try:
            model, callback = models[batch_size], quiet()
            results[batch_size] = model.fit(
                X, Y, batch_size=batch_size, epochs=2, verbose=0, callbacks=[callback]
            ).history
        except BaseException as error:
            errors.append(error)

    models = {6: small_model(), 3: small_model()}
    threads = [threading.Thread(target=train, args=(batch_size,)) for batch_size in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for history in results.values():
        assert history.keys() > STEP_FIGURES
        assert len(history["step_ms_median"]) == 2
    assert wait_for_no_threads()


def test_two_in_one_fit():
    first, second = quiet(), quiet(interval=0.05)
    history = small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[first, second]).history
    assert history.keys() > STEP_FIGURES
    assert first.figures is not None
    assert second.figures is not None
    assert wait_for_no_threads()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda callback: pickle.loads(pickle.dumps(callback))])
def test_copies_before_and_after_a_fit(copied, tmp_path):
    callback = GpuUtilization(interval=0.02, warn_below=0, log_dir=tmp_path / "logs")
    for _ in range(2):
        callback = copied(callback)
        assert (callback.interval, callback.warn_below, callback.log_dir) == (0.02, 0, tmp_path / "logs")
        model = small_model()
        assert model.fit(X, Y, batch_size=6, verbose=0, callbacks=[callback]).history.keys() > STEP_FIGURES
    again = copied(callback)
    assert again.figures == callback.figures
    assert again.verdict == callback.verdict


def test_a_copy_made_within_a_fit_is_a_callback_of_its_own():
    copies = []

    class Copies(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            copies.append(copy.deepcopy(callback))
            copies.append(pickle.loads(pickle.dumps(callback)))

    callback = quiet()
    small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback, Copies()])
    assert wait_for_no_threads()
    for one in copies[-2:]:
        assert small_model().fit(X, Y, batch_size=6, verbose=0, callbacks=[one]).history.keys() > STEP_FIGURES


def test_a_list_of_ones_own_is_given_back():
    callback, history = quiet(), keras.callbacks.History()
    model = small_model()
    callback_list = keras.callbacks.CallbackList([history, callback], model=model)
    model.fit(X, Y, batch_size=6, verbose=0, callbacks=callback_list)
    assert type(callback_list.callbacks) is list
    assert set(callback_list.callbacks) == {callback, history}
    assert history.history.keys() > STEP_FIGURES


def test_others_may_order_the_list_anew():
    class Last(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            callback_list = calling_list(self)
            callback_list.callbacks = [*(one for one in callback_list.callbacks if one is not self), self]

        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    for place in ("before", "after"):
        seen, callback = [], quiet()
        callbacks = [Last(), callback] if place == "before" else [callback, Last()]
        small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=callbacks)
        assert all(logs.keys() > STEP_FIGURES for logs in seen)
        assert "Last" in callback.figures.callbacks_ms


def test_a_model_compiled_within_fit_is_watched_on():
    class Unfreezes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.make_train_function(force=True)

    callback = quiet()
    small_model().fit(X, Y, batch_size=6, epochs=3, verbose=0, callbacks=[Unfreezes(), callback])
    assert callback.figures.input_wait_ms is not None


def test_executions_that_another_callback_answers_do_not_count():
    class Resumes(keras.callbacks.Callback):
        left = 4

        def on_train_begin(self, logs=None):
            FitSession.join(self).wrap(Place.RESUME, self.skip)

        def skip(self, run, iterator):
            if self.left:
                self.left -= 1
                next(iterator)
                return {"loss": 0.0}
            return run(iterator)

    callback = quiet()
    model = small_model()
    history = model.fit(X, Y, batch_size=6, verbose=0, callbacks=[callback, Resumes()]).history
    assert int(model.optimizer.iterations.numpy()) == 3
    assert history.keys() > STEP_FIGURES


def test_what_callbacks_train_by_themselves_is_their_own():
    class TrainsMore(keras.callbacks.Callback):
        def more(self, *_, **__):
            self.model.train_on_batch(X[:6], Y[:6])

        on_train_batch_begin = on_train_batch_end = on_epoch_begin = on_epoch_end = more

    callback = quiet()
    history = small_model().fit(X, Y, batch_size=6, epochs=3, verbose=0, callbacks=[callback, TrainsMore()]).history
    assert history.keys() > STEP_FIGURES
    assert all(len(history[name]) == 3 for name in STEP_FIGURES)
    assert callback.figures.why_no_input_wait is None
    # Of fit's own 7 batches alone.
    seconds = callback.figures.step_ms * 7 / 1000
    assert history["examples_per_second"][-1] * seconds <= 2 * 42
    assert callback.figures.callbacks_ms["TrainsMore"] > 0


def test_it_warns_of_nothing_itself():
    # NumPy 2 warns of variables that become arrays by themselves.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "GpuUtilization gives no figures")
        small_model(optimizer="adam").fit(X, Y, epochs=2, verbose=0, callbacks=[quiet()])


def test_without_warnings_there_is_a_verdict_all_the_same():
    class Sleeps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.05)

    callback = quiet(warn_below=0)
    small_model().fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback, Sleeps()])
    assert callback.verdict.kind == "callback-bound"
    assert not callback.verdict.is_warning


def test_eager_steps():
    model = small_model()
    model.compile("sgd", "mse", run_eagerly=True)
    callback = quiet()
    assert model.fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback]).history.keys() > STEP_FIGURES
    # Every operation is dispatched there; how much that takes is not known.
    assert callback.figures.dispatch_ms is None


def test_under_a_strategy_the_input_wait_is_absent_and_the_reason_told(two_cpu_strategy):
    with two_cpu_strategy.scope():
        model = small_model()
    callback = quiet()
    history = model.fit(X, Y, batch_size=6, epochs=2, verbose=0, callbacks=[callback]).history
    assert {"step_ms_median", "step_ms_p95"} < history.keys()
    assert "input_wait_ms" not in history
    assert "keras_turbo.distribute(strategy)" in callback.figures.why_no_input_wait


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_under_distribute_the_input_wait_is_measured(two_cpu_strategy, steps, run_eagerly):
    def generate():
        for begin in range(0, 42, 6):
            time.sleep(0.1)
            yield X[begin : begin + 6], Y[begin : begin + 6]

    spec = (tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    slow = tf.data.Dataset.from_generator(generate, output_signature=spec)
    slow = slow.apply(tf.data.experimental.assert_cardinality(7))
    with distribute(two_cpu_strategy):
        model = small_model()
        model.compile("sgd", "mse", steps_per_execution=steps, run_eagerly=run_eagerly)
    callback = quiet()
    # Without a look at the clock; nothing of it is counted afterwards.
    model.fit(slow, verbose=0)
    history = model.fit(slow, epochs=2, verbose=0, callbacks=[callback]).history
    assert callback.figures.why_no_input_wait is None
    # Eager steps take so long that most of the next batch is made meanwhile.
    assert np.all(np.array(history["input_wait_ms"]) > (0 if run_eagerly else 30))
    assert np.all(np.array(history["examples_per_second"]) < 42 / 0.6)
    assert model.train_function.waits[1:] == (14, 84)


def test_without_keras_list_it_stays_silent():
    callback = quiet()
    callback.set_model(small_model())
    callback.on_epoch_begin(0)
    callback.on_train_batch_begin(0)
    callback.on_test_begin()
    callback.on_test_end()
    logs = {}
    callback.on_epoch_end(0, logs)
    callback.on_train_end()
    assert logs == {}


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 0},
        {"interval": True},
        {"interval": "fast"},
        {"interval": float("nan")},
        {"interval": float("inf")},
        {"warn_below": -1},
        {"warn_below": 101},
        {"warn_below": None},
        {"warn_below": 10**400},
        {"interval": 1e12},
        {"log_dir": 3},
        {"log_dir": ""},
    ],
)
def test_arguments_that_can_not_be(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be .* Received"):
        GpuUtilization(**options)


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(1)])
def test_numbers_of_numpy_are_numbers(number):
    assert GpuUtilization(interval=number, warn_below=number).interval == float(number)
