import pytest

from keras_turbo.callbacks.epoch_figures import figures_for_logs, step_figures
from keras_turbo.callbacks.fit_times import EpochTimes
from keras_turbo.callbacks.hardware_figures import HardwareFigures
from keras_turbo.data.input_wait import Waits


def times_with(waited_seconds):
    return EpochTimes(
        executions=10,
        execution_seconds=1.0,
        function_seconds=0.9,
        begin_seconds=0.0,
        fetch_seconds=0.0,
        callback_seconds={},
        epoch_hook_seconds={},
        saving_seconds={},
        batch_hook_seconds=0.0,
        median_seconds=0.1,
        p95_seconds=0.1,
        waits=Waits(waited_seconds, 10, 80),
    )


@pytest.mark.parametrize(("waited_seconds", "wait_ms"), [(0.4, 40.0), (-3600.0, 0.0), (3600.0, 100.0)])
def test_a_clock_that_is_set_anew_ends_no_training(waited_seconds, wait_ms):
    times = times_with(waited_seconds)
    figures = step_figures(times, HardwareFigures(), steps_per_execution=1, empty_execution_seconds=0.001)
    assert figures.step_ms == pytest.approx(100.0)
    assert figures.input_wait_ms == pytest.approx(wait_ms)
    assert figures_for_logs(times, figures)["input_wait_percent"] == pytest.approx(wait_ms)
