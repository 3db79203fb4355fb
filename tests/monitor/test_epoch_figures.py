import dataclasses

import keras
import pytest

from keras_turbo.distribution.same_on_all_workers import SameOnAllWorkers
from keras_turbo.fit.input_wait import FitInputWaits, Waits
from keras_turbo.fit.timing import EpochTimes
from keras_turbo.monitor.figures import HardwareFigures, figures_for_logs, step_figures
from keras_turbo.monitor.verdict import judge


def times_with(waited_seconds):
    return EpochTimes(
        executions=10,
        execution_seconds=1.0,
        function_seconds=0.9,
        waits=Waits(waited_seconds, 10, 80),
    )


def figures_of(times):
    hardware = HardwareFigures()
    return step_figures(times, FitInputWaits(), hardware, steps_per_execution=1, empty_execution_seconds=0.001)


@pytest.mark.parametrize(("waited_seconds", "wait_ms"), [(0.4, 40.0), (-3600.0, 0.0), (3600.0, 100.0)])
def test_a_clock_that_is_set_anew_ends_no_training(waited_seconds, wait_ms):
    times = times_with(waited_seconds)
    figures = figures_of(times)
    assert figures.step_ms == pytest.approx(100.0)
    assert figures.input_wait_ms == pytest.approx(wait_ms)
    assert figures_for_logs(times, figures)["input_wait_percent"] == pytest.approx(wait_ms)


def test_waiting_for_other_workers_is_not_a_slow_callback():
    """Of 1.5 s, 0.5 s are waited at the epoch's end in the callback that distribute() adds."""

    class Mine(keras.callbacks.Callback):
        pass

    times = dataclasses.replace(times_with(0.0), epoch_hooks={SameOnAllWorkers: 0.5, Mine: 0.01})
    figures = figures_of(times)
    assert figures.workers_wait_ms == pytest.approx(50.0)
    assert figures.callbacks_ms == figures.epoch_hooks_ms == {"Mine": pytest.approx(1.0)}
    assert judge(figures, warn_below=100).kind == "waiting-for-workers"
