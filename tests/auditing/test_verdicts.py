"""What the audit says of trainings of which it is known what is slow, and what its remedies then gain."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest

import keras_turbo
from keras_turbo import FastDataset
from tests.auditing.cases import CLASSES, SlowCallback, compiled, examples, model, slow_input, step_ms
from tests.auditing.turns import turns_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")]


@pytest.fixture(autouse=True)
def short_turns():
    with turns_of(0.2):
        yield


def is_what_it_gains(remedy, applied):
    """Whether the remedy gains what it was said to, within 20 %; a busy machine gets another chance."""
    return any(remedy.times == pytest.approx(applied(), rel=0.2) for _ in range(3))


def is_what_it_takes(told_ms, measured_ms):
    """Whether a part of a step is what it was said to be, within a half; a busy machine gets another chance."""
    return any(told_ms == pytest.approx(measured_ms(), rel=0.5) for _ in range(5))


def step_of_saving_ms(fitted, data, callbacks):
    """How much longer a step of `fit` takes with callbacks that save."""
    x, y = data
    seconds = []
    for given in ([], callbacks):
        fitted.fit(x, y, batch_size=4, verbose=0)
        begin = time.perf_counter()
        fitted.fit(x, y, batch_size=4, verbose=0, callbacks=given)
        seconds.append(time.perf_counter() - begin)
    return (seconds[1] - seconds[0]) / (len(x) / 4) * 1e3


def audited_as(kind, audited):
    """A report with that verdict. What is no sleep is disturbed by a busy machine, which gets another chance."""
    for _ in range(3):
        report = audited()
        if report.verdict.kind == kind:
            return report
    pytest.fail(f"{report.verdict.kind} in place of {kind}: {report.parts}")


def remedy_of(report, name):
    return next(each for each in report.remedies if each.name == name)


def test_a_sleep_in_the_input_is_input_bound_and_a_cache_gains_what_it_was_said_to():
    # fit makes the next batch while a step runs: of 150 ms it waits for 100.
    report = keras_turbo.audit(model(50), slow_input(150, batches=5), steps=4, remedies=("cache", "multi-step"))
    assert report.verdict.kind == "input-bound"
    assert report.verdict.share_percent == pytest.approx(67, abs=10)
    timeline = report.parts.timeline()
    assert sum(timeline.values()) == pytest.approx(report.parts.step_ms, rel=0.1)
    assert report.parts.input_alone_ms == pytest.approx(150, rel=0.3)
    cache = remedy_of(report, "cache")
    assert cache.status == "gain"
    trained, slow = model(50), slow_input(150, batches=5)
    assert is_what_it_gains(cache, lambda: step_ms(trained, slow) / step_ms(trained, slow.cache()))
    # The lines to add are those of the measurement.
    assert "cache()" in cache.code
    # Steps in a graph gain nothing where input is what limits.
    assert remedy_of(report, "multi-step").status != "gain"


class SleepyDataset(keras.utils.PyDataset):
    def __init__(self, **options):
        super().__init__(**options)
        self.x, self.y = examples(32)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.09)
        return self.x[4 * index : 4 * index + 4], self.y[4 * index : 4 * index + 4]


def test_workers_of_a_py_dataset_gain_what_they_were_said_to():
    data = SleepyDataset()
    report = keras_turbo.audit(model(30), data, steps=6, remedies=("cache", "workers"))
    assert report.verdict.kind == "input-bound"
    workers = remedy_of(report, "workers")
    assert workers.status == "gain"
    assert "workers=4" in workers.code
    assert data.workers == 1
    trained = model(30)
    assert is_what_it_gains(
        workers, lambda: step_ms(trained, SleepyDataset()) / step_ms(trained, SleepyDataset(workers=4))
    )
    assert remedy_of(report, "cache").status == "does not apply"


def test_a_slow_callback_is_named():
    callback = SlowCallback(120)
    report = keras_turbo.audit(model(), slow_input(1), steps=6, callbacks=[callback], remedies=("callbacks",))
    assert report.verdict.kind == "callback-bound"
    assert "SlowCallback" in report.verdict.text
    assert report.parts.callbacks_ms["SlowCallback"] == pytest.approx(120, rel=0.3)
    without = remedy_of(report, "callbacks")
    assert without.status == "gain"
    assert without.before_ms - without.after_ms == pytest.approx(120, rel=0.3)
    # It is as it was.
    assert callback.calls == []
    assert set(vars(callback)) == set(vars(SlowCallback(120)))


def test_a_model_that_computes_is_promised_nothing():
    data = FastDataset(*examples(200), batch_size=4, shuffle=True, seed=0)
    remedies = ("cache", "workers", "FastDataset", "multi-step", "uint8 input")
    report = keras_turbo.audit(model(80), data, steps=4, remedies=remedies)
    assert report.verdict.kind == "compute-bound"
    assert report.gains == ()
    assert "No remedy that was measured gained anything." in report.headline
    assert "FastDataset" in remedy_of(report, "workers").reason


def test_a_large_model_is_compute_bound_and_faster_input_promises_nothing():
    layers = [keras.layers.Dense(2048, activation="relu") for _ in range(2)]
    large = compiled(keras.Sequential([keras.Input([1024]), *layers, keras.layers.Dense(CLASSES)]))
    random = np.random.default_rng(1)
    x = random.normal(size=(1024, 1024)).astype("float32")
    data = (x, random.integers(0, CLASSES, len(x)))
    report = audited_as("compute-bound", lambda: keras_turbo.audit(large, data, batch_size=128, steps=3, remedies=()))
    assert report.verdict.share_percent > 70
    assert report.gains == ()


def test_a_tiny_model_is_dispatch_bound_and_several_steps_at_once_gain():
    tiny = model()
    data = FastDataset(*examples(4000), batch_size=4, shuffle=True, seed=0)
    report = audited_as(
        "dispatch-bound", lambda: keras_turbo.audit(tiny, data, steps=200, remedies=("workers", "multi-step"))
    )
    # It takes what is measured to be half of a step away.
    assert remedy_of(report, "multi-step").times > 1.2


def test_a_blocking_checkpoint_stalls(tmp_path):
    # Much to write, and little to compute.
    layers = [keras.layers.Embedding(300_000, 16), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(CLASSES)]
    large = keras.Sequential([keras.Input([8], dtype="int32"), *layers])
    large.layers[0].trainable = False
    large = compiled(large)
    data = np.zeros([24, 8], "int32"), np.zeros(24, "int32")
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "new" / "best.weights.h5", save_weights_only=True, save_freq=2)
    ]
    report = keras_turbo.audit(large, data, batch_size=4, steps=4, callbacks=callbacks, remedies=())
    assert report.verdict.kind == "checkpoint-stalls"
    assert 'AsyncCheckpoint("checkpoints")] in place of ModelCheckpoint' in report.headline
    parts = report.parts
    assert parts.timeline()["checkpoints"] == parts.checkpoints_ms["ModelCheckpoint"] > 0
    assert sum(parts.timeline().values()) == pytest.approx(parts.whole_ms, rel=0.1)
    assert list(tmp_path.iterdir()) == []
    # It is what a fit pays.
    assert is_what_it_takes(parts.checkpoints_ms["ModelCheckpoint"], lambda: step_of_saving_ms(large, data, callbacks))
