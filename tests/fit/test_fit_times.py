import keras
import pytest
from keras_turbo.callbacks.callback_times import CallbackTimes
from keras_turbo.callbacks.fit_times import FitTimes

from keras_turbo.fit.input_wait import Waits
from keras_turbo.monitor.figures import HardwareFigures, figures_for_logs, step_figures, steps_in, total_seconds
from tests.checkpoint.samples import counters, sample


class Fit:
    """Goes through the moments of a fit, on a clock of its own, in seconds."""

    def __init__(self, fetches_in_python=False):
        self.now = 100.0
        self.waits = Waits()
        self.calls_are_seen = True
        self.callbacks = CallbackTimes(keras.callbacks.Callback(), lambda: None)
        self.callbacks.last_loop_ended = self.now
        self.times = FitTimes(
            self.callbacks,
            lambda: self.waits,
            lambda: self.calls_are_seen,
            fetches_in_python=fetches_in_python,
            clock=lambda: self.now,
        )

    def epoch_begins(self):
        self.times.epoch_begins()
        self.callbacks.last_loop_ended = self.now

    def execution(self, before=0.0, inside=0.010, after=0.001, wait=0.002, own=0.0, fetch=0.0):
        self.now += fetch
        self.times.step_begins()
        self.now += before + own
        self.times.own(own)
        self.times.calls()
        self.now += inside
        self.times.returned()
        self.waits += Waits(wait, 1, 8)
        self.now += after
        self.callbacks.last_loop_ended = self.now

    def skipped_execution(self):
        self.times.step_begins()
        self.now += 0.5
        self.callbacks.last_loop_ended = self.now


def test_the_times_of_an_epoch():
    fit = Fit()
    fit.epoch_begins()
    fit.now += 3.0  # makes its iterator: no time of any step
    fit.execution(inside=2.0)  # traces and compiles
    for _ in range(4):
        fit.execution()
    fit.now += 5.0  # validation
    fit.times.steps_end()
    fit.times.steps_end()
    times = fit.times.take()
    assert times.executions == 4
    assert times.execution_seconds == pytest.approx(0.044)
    assert times.function_seconds == pytest.approx(0.040)
    assert times.median_seconds == pytest.approx(0.011)
    assert times.begin_seconds == times.fetch_seconds == 0.0
    assert times.waits.seconds == pytest.approx(0.008)
    assert (times.waits.batches, times.waits.examples) == (4, 32)
    assert fit.times.take() is None


def test_the_first_execution_counts_where_there_is_no_other():
    fit = Fit()
    fit.epoch_begins()
    fit.execution(inside=2.0)
    fit.times.steps_end()
    assert fit.times.take().executions == 1
    fit.epoch_begins()
    fit.execution()
    fit.times.steps_end()
    times = fit.times.take()
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
    fit.times.step_begins()
    fit.times.calls()
    fit.now += 0.3
    fit.times.found_nothing()
    fit.times.steps_end()
    times = fit.times.take()
    assert times.executions == 2
    assert times.execution_seconds == pytest.approx(0.022)


def test_what_measuring_takes_is_left_out():
    fit = Fit()
    fit.epoch_begins()
    fit.execution()
    fit.execution(own=0.5)
    fit.times.steps_end()
    assert fit.times.take().execution_seconds == pytest.approx(0.011)


def test_batches_that_fit_takes_in_python():
    fit = Fit(fetches_in_python=True)
    for _ in range(2):
        fit.epoch_begins()
        for _ in range(3):
            fit.execution(fetch=0.02, wait=0.0)
        fit.times.steps_end()
        times = fit.times.take()
    # Two within executions; the first of the epoch before the first one.
    assert times.executions == 3
    assert times.fetch_seconds == pytest.approx(0.04)
    assert times.begin_seconds == pytest.approx(0.02)
    figures = step_figures(times, HardwareFigures(), steps_per_execution=1, empty_execution_seconds=None)
    assert figures.input_wait_ms == pytest.approx(20.0)
    assert figures.step_ms == pytest.approx(31.0)
    assert figures.dispatch_ms is None


def two_epochs(executions=4, **moments):
    fit = Fit()
    for _ in range(2):
        fit.epoch_begins()
        for _ in range(executions):
            fit.execution(**moments)
        fit.times.steps_end()
        times = fit.times.take()
    return times


def test_figures_of_a_step():
    times = two_epochs(inside=0.008, after=0.002, wait=0.004)
    figures = step_figures(times, HardwareFigures(), steps_per_execution=1, empty_execution_seconds=0.001)
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
    figures = step_figures(two_epochs(), HardwareFigures(), steps_per_execution=1, empty_execution_seconds=1.0)
    assert figures.dispatch_ms == pytest.approx(11.0 - 2.0)


def test_several_steps_an_execution():
    fit = Fit()
    for _ in range(2):
        fit.epoch_begins()
        for _ in range(3):
            fit.execution(wait=0.0)
            # Five batches in each.
            fit.waits += Waits(0.0, 4, 32)
        fit.times.steps_end()
        times = fit.times.take()
    assert steps_in(times, 5) == 15
    figures = step_figures(times, HardwareFigures(), steps_per_execution=5, empty_execution_seconds=0.001)
    assert figures.step_ms == pytest.approx(11.0 / 5)
    assert figures.step_ms_median == pytest.approx(11.0 / 5)
    assert figures.dispatch_ms == pytest.approx(2.0 / 5)


def test_with_a_gpus_utilization_dispatch_is_left_to_the_verdict():
    hardware = HardwareFigures()
    hardware.add([sample(counters(0, utilization_percent=30.0), counters(1, utilization_percent=50.0))])
    figures = step_figures(two_epochs(), hardware, steps_per_execution=1, empty_execution_seconds=0.001)
    assert figures.dispatch_ms is None
    assert figures.utilization_percent == pytest.approx(40.0)


def test_waits_that_were_not_measured_are_absent():
    fit = Fit()
    fit.waits = None
    fit.times.take()
    fit.epoch_begins()
    for _ in range(3):
        fit.times.step_begins()
        fit.times.calls()
        fit.now += 0.01
        fit.times.returned()
        fit.callbacks.last_loop_ended = fit.now
    fit.times.steps_end()
    times = fit.times.take()
    assert times.waits is None
    assert total_seconds(times) == pytest.approx(0.02)
    figures = step_figures(
        times,
        HardwareFigures(),
        steps_per_execution=1,
        empty_execution_seconds=None,
        why_no_input_wait="under a strategy",
    )
    assert figures.input_wait_ms is None
    assert set(figures_for_logs(times, figures)) == {"step_ms_median", "step_ms_p95"}
