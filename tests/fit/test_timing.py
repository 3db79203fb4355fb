import random

import keras
import numpy as np
import pytest

from keras_turbo.fit.input_wait import Waits
from keras_turbo.fit.timing import Durations, FitTimes
from keras_turbo.monitor.figures import HardwareFigures, figures_for_logs, step_figures
from tests.monitor.samples import counters, sample

pytestmark = pytest.mark.compatibility


class KnownWaits:
    """Stands for the measurement of waits: what is known of them is given."""

    why_not = None
    reads_fast_dataset = None

    def __init__(self, fit):
        self._fit = fit

    def read(self):
        return self._fit.waits

    def prepare(self, own, data):
        self._fit.now += self._fit.own
        return self._fit.own > 0

    def chosen(self, data, mean_seconds, executions):
        return data

    def forget_iterator(self):
        pass


class Fit:
    """Goes through the moments of a fit, on a clock of its own, in seconds."""

    def __init__(self, fetches_in_python=False):
        self.now = 100.0
        self.own = 0.0
        self.waits = Waits()
        self.times = FitTimes(fetches_in_python=fetches_in_python, clock=lambda: self.now)
        self.times.waits = KnownWaits(self)
        self.times._reset()

    def hook(self, name, *callbacks, seconds=0.0):
        self.times.hook_begins(name)
        for callback in callbacks:
            self.now += seconds
            self.times.callback_took(callback, seconds)
        self.times.hook_ends()

    def epoch_begins(self):
        self.hook("on_epoch_begin")

    def epoch_ends(self):
        """Gives its times."""
        self.hook("on_epoch_end")
        self.hook("on_epoch_begin")
        return self.times.last_epoch

    def execution(self, before=0.0, inside=0.010, after=0.001, wait=0.002, own=0.0, fetch=0.0):
        self.now += fetch
        self.hook("on_train_batch_begin")
        self.now += before

        def run(data):
            self.now += inside
            return {"loss": 0.0}

        self.own = own
        self.times.run(None, run, None)
        if self.waits is not None:
            self.waits = self.waits.plus(Waits(wait, 1, 8))
        self.now += after
        self.hook("on_train_batch_end")

    def skipped_execution(self):
        self.hook("on_train_batch_begin")
        self.now += 0.5
        self.hook("on_train_batch_end")

    def found_nothing(self):
        def run(data):
            self.now += 0.3
            raise StopIteration

        self.hook("on_train_batch_begin")
        with pytest.raises(StopIteration):
            self.times.run(None, run, None)

    def figures(self, times, steps_per_execution=1, empty_execution_seconds=None, hardware=None):
        return step_figures(
            times,
            self.times.waits,
            hardware or HardwareFigures(),
            steps_per_execution=steps_per_execution,
            empty_execution_seconds=empty_execution_seconds,
        )


def test_the_times_of_an_epoch():
    fit = Fit()
    fit.epoch_begins()
    fit.now += 3.0  # makes its iterator: no time of any step
    fit.execution(inside=2.0)  # traces and compiles
    for _ in range(4):
        fit.execution()
    fit.hook("on_test_begin")
    fit.now += 5.0
    fit.hook("on_test_batch_end", keras.callbacks.Callback(), seconds=1.0)
    fit.hook("on_test_end")
    times = fit.epoch_ends()
    assert times.executions == 4
    assert times.execution_seconds == pytest.approx(0.044)
    assert times.function_seconds == pytest.approx(0.040)
    assert times.durations.percentile(50) == pytest.approx(0.011)
    assert times.begin_seconds == times.fetch_seconds == 0.0
    assert times.batch_hooks == times.epoch_hooks == {}
    assert times.waits.seconds == pytest.approx(0.008)
    assert (times.waits.batches, times.waits.examples) == (4, 32)
    assert times.logs == {"loss": 0.0}
    assert fit.epoch_ends() is None


def test_the_first_execution_counts_where_there_is_no_other():
    fit = Fit()
    fit.epoch_begins()
    fit.execution(inside=2.0)
    fit.hook("on_epoch_end")
    assert fit.times.so_far().executions == 1
    assert fit.epoch_ends().executions == 1
    fit.execution()
    times = fit.epoch_ends()
    assert times.executions == 1
    assert times.execution_seconds == pytest.approx(0.011)


def test_skipped_and_empty_executions_do_not_count():
    fit = Fit()
    fit.epoch_begins()
    fit.skipped_execution()
    fit.skipped_execution()
    for _ in range(3):
        fit.execution()
    # The dataset ends: Keras begins an execution, and there is no batch.
    fit.found_nothing()
    times = fit.epoch_ends()
    assert times.executions == 2
    assert times.execution_seconds == pytest.approx(0.022)


def test_what_measuring_takes_is_left_out():
    fit = Fit()
    fit.epoch_begins()
    fit.execution()
    fit.execution(own=0.5)
    assert fit.epoch_ends().execution_seconds == pytest.approx(0.011)


class Slow(keras.callbacks.Callback):
    pass


class MyCheckpoint(keras.callbacks.ModelCheckpoint):
    pass


def test_callbacks_are_counted_by_class_and_those_that_save_are_told_apart(tmp_path):
    fit = Fit()
    saving = MyCheckpoint(tmp_path / "a.keras")
    fit.epoch_begins()
    for _ in range(3):
        fit.execution()
        fit.hook("on_train_batch_end", Slow(), saving, keras.callbacks.History(), seconds=0.5)
    fit.hook("on_epoch_end", Slow(), Slow(), seconds=0.25)
    fit.hook("on_epoch_begin")
    times = fit.times.last_epoch
    # Of the two executions that count.
    assert times.seconds_by_name(saving=False) == {"Slow": 1.0 + 0.5}
    assert times.seconds_by_name(saving=False, epoch_hooks_only=True) == {"Slow": 0.5}
    assert times.seconds_by_name(saving=True) == {"MyCheckpoint": 1.0}
    assert times.total_seconds == pytest.approx(2 * (0.011 + 1.5) + 0.5)


def test_batches_that_fit_takes_in_python():
    fit = Fit(fetches_in_python=True)
    fit.epoch_begins()
    for _ in range(2):
        for _ in range(3):
            fit.execution(fetch=0.02, wait=0.0)
        times = fit.epoch_ends()
    # Two within executions; the first of the epoch before the first one.
    assert times.executions == 3
    assert times.fetch_seconds == pytest.approx(0.04)
    assert times.begin_seconds == pytest.approx(0.02)
    figures = fit.figures(times)
    assert figures.input_wait_ms == pytest.approx(20.0)
    assert figures.step_ms == pytest.approx(31.0)
    assert figures.dispatch_ms is None


def two_epochs(executions=4, **moments):
    fit = Fit()
    fit.epoch_begins()
    for _ in range(2):
        for _ in range(executions):
            fit.execution(**moments)
        times = fit.epoch_ends()
    return fit, times


def test_figures_of_a_step():
    fit, times = two_epochs(inside=0.008, after=0.002, wait=0.004)
    figures = fit.figures(times, empty_execution_seconds=0.001)
    assert figures.step_ms == pytest.approx(10.0)
    assert figures.step_ms_median == pytest.approx(10.0)
    assert figures.input_wait_ms == pytest.approx(4.0)
    # Two in Python, and one to call the function.
    assert figures.dispatch_ms == pytest.approx(3.0)
    assert figures_for_logs(times, figures) == pytest.approx(
        {
            "step_ms_median": 10.0,
            "step_ms_p95": 10.0,
            "examples_per_second": 800.0,
            "input_wait_ms": 4.0,
            "input_wait_percent": 40.0,
        }
    )


def test_dispatch_is_never_more_than_what_is_left():
    fit, times = two_epochs()
    assert fit.figures(times, empty_execution_seconds=1.0).dispatch_ms == pytest.approx(11.0 - 2.0)


def test_several_steps_an_execution():
    fit = Fit()
    fit.epoch_begins()
    for _ in range(2):
        for _ in range(3):
            fit.execution(wait=0.0)
            # Five batches in each.
            fit.waits = fit.waits.plus(Waits(0.0, 4, 32))
        times = fit.epoch_ends()
    assert times.steps(5) == 15
    figures = fit.figures(times, steps_per_execution=5, empty_execution_seconds=0.001)
    assert figures.step_ms == pytest.approx(11.0 / 5)
    assert figures.step_ms_median == pytest.approx(11.0 / 5)
    assert figures.dispatch_ms == pytest.approx(2.0 / 5)


def test_with_a_gpus_utilization_dispatch_is_left_to_the_verdict():
    hardware = HardwareFigures()
    hardware.add([sample(counters(0, utilization_percent=30.0), counters(1, utilization_percent=50.0))])
    fit, times = two_epochs()
    figures = fit.figures(times, empty_execution_seconds=0.001, hardware=hardware)
    assert figures.dispatch_ms is None
    assert figures.utilization_percent == pytest.approx(40.0)


def test_waits_that_were_not_measured_are_absent():
    fit = Fit()
    fit.waits = None
    fit.times._reset()
    fit.epoch_begins()
    for _ in range(3):
        fit.execution(after=0.0)
    times = fit.epoch_ends()
    assert times.waits is None
    assert times.total_seconds == pytest.approx(0.02)
    figures = fit.figures(times)
    assert figures.input_wait_ms is None
    assert set(figures_for_logs(times, figures)) == {"step_ms_median", "step_ms_p95"}


def test_percentiles_of_few_durations_are_exact():
    durations = Durations()
    assert durations.percentile(50) is None
    for value in range(1, 101):
        durations.add(float(value))
    assert durations.percentile(50) == pytest.approx(np.percentile(range(1, 101), 50))
    assert durations.percentile(95) == pytest.approx(np.percentile(range(1, 101), 95))


def test_memory_is_bounded_and_every_duration_has_the_same_chance():
    durations = Durations()
    state = random.getstate()
    # Growing values: a selection of the first or of the last ones would be far off.
    for value in range(40_000):
        durations.add(float(value))
    assert len(durations._kept) == 4096
    assert durations.percentile(50) == pytest.approx(20_000, abs=1_500)
    assert durations.percentile(95) == pytest.approx(38_000, abs=900)
    assert random.getstate() == state
