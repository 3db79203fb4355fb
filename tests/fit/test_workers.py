"""How often workers talk of what to do; that they agree is tested with two of them, in `test_several_workers.py`."""

from __future__ import annotations

import pytest
import tensorflow as tf

from keras_turbo.fit.workers import Agreed, AgreedMoments


class Clock:
    """Shows what it is set to."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


def executions_until_told(moments, clock, seconds_each, most=10_000):
    """After how many executions something that is asked for is heard."""
    for count in range(1, most):
        clock.seconds += seconds_each
        if moments.after_execution(asked_to_leave=True, is_due=False).leave:
            return count
    return None


@pytest.mark.parametrize(("seconds_each", "expected"), [(5.0, 1), (0.1, 10), (1e-4, 256)])
def test_workers_talk_about_once_a_second(seconds_each, expected):
    clock = Clock()
    moments = AgreedMoments(tf.distribute.OneDeviceStrategy("CPU:0"), is_chief=True, clock=clock)
    # The first traces and compiles.
    clock.seconds += 30.0
    assert moments.after_execution(asked_to_leave=False, is_due=False) == Agreed()
    clock.seconds += seconds_each
    assert moments.after_execution(asked_to_leave=False, is_due=True) == Agreed(save=True)
    assert executions_until_told(moments, clock, seconds_each) == pytest.approx(expected, abs=1)


def test_the_chiefs_clock_alone_counts():
    moments = AgreedMoments(tf.distribute.OneDeviceStrategy("CPU:0"), is_chief=False)
    assert moments.after_execution(asked_to_leave=False, is_due=True) == Agreed()
    assert moments.at_once(asked_to_leave=True) == Agreed(leave=True)
