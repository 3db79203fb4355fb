"""What an audit makes of the samples of devices that are not here."""

from __future__ import annotations

import dataclasses

import pytest

from keras_turbo.auditing import utilization
from keras_turbo.auditing.utilization import BASELINE, Recorder
from tests.monitor.samples import FakeSubscription, counters, sample, subscribing


def recorded(monkeypatch, *samples):
    """What is recorded where the training ran as it is while the samples came."""
    now = iter((100.0, 101.0, 109.0))  # the beginning, and those of the phase's two ends
    monkeypatch.setattr(utilization.time, "monotonic", lambda: next(now))
    taken = [dataclasses.replace(one, time=102.0 + place) for place, one in enumerate(samples)]
    monkeypatch.setattr(utilization, "subscribe", subscribing(FakeSubscription(taken)))
    recorder = Recorder()
    with recorder.phase(BASELINE):
        pass
    return recorder.so_far()


def test_that_somebody_limited_the_clock_is_no_throttling(monkeypatch):
    limited = sample(counters(utilization_percent=40.0, throttle_reasons=("clock_limit", "display")), share=20.0)
    use = recorded(monkeypatch, limited, limited)
    assert use.baseline_gpu_percent == (40.0,)
    assert use.baseline_cpu_percent == 20.0
    assert use.throttled_percent == 0
    assert use.throttle_reasons == ()


def test_heat_in_half_of_the_samples(monkeypatch):
    hot = sample(counters(utilization_percent=80.0, throttle_reasons=("heat",)))
    cool = sample(counters(utilization_percent=60.0, throttle_reasons=("clock_limit",)))
    use = recorded(monkeypatch, hot, cool)
    assert use.baseline_gpu_percent == pytest.approx((70.0,))
    assert use.throttled_percent == 50
    assert use.throttle_reasons == ("heat",)


def test_without_a_gpu_nothing_is_known_of_throttling(monkeypatch):
    use = recorded(monkeypatch, sample(share=30.0))
    assert use.baseline_gpu_percent == ()
    assert use.throttled_percent is None
    assert use.figures()["cpu_share_percent"] == 30.0
