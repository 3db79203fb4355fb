"""Samples come in their rhythm, and nobody waits for a driver, whatever it does."""

from __future__ import annotations

import copy
import gc
import os
import threading
import time
from fractions import Fraction

import numpy as np
import pynvml
import pytest

from keras_turbo.monitor import sampler
from keras_turbo.monitor.cpu import CpuCounters
from keras_turbo.monitor.figures import HardwareFigures
from keras_turbo.monitor.sampler import Sample, Subscription, subscribe
from tests.monitor.fake_nvml import FakeNvml, gpus, use
from tests.monitor.samples import counters

PATIENCE_SECONDS = 30.0


def until(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def our_threads():
    return [
        one for one in threading.enumerate() if one.name in ("keras_turbo device sampler", "keras_turbo GPU reader")
    ]


def none_is_left():
    gc.collect()
    return not our_threads()


class FakeSession:
    """A driver with a GPU; `read` is told how often it was called."""

    may_have_gpus = True
    problem = None

    def __init__(self, read=lambda number: (counters(utilization_percent=float(number)),)):
        self.gpus = (counters().gpu,)
        self._read = read
        self.number = 0

    def read(self):
        self.number += 1
        return self._read(self.number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def middle_interval(taken):
    """Seconds between samples, as most of them have it, however often the machine has made one wait."""
    return float(np.median(np.diff([one.time for one in taken])))


def test_readings_of_40_ms_leave_a_rhythm_of_a_tenth_of_a_second_as_it_is():
    def read(number):
        time.sleep(0.04)
        return (counters(),)

    with Subscription(0.1, lambda: FakeSession(read)) as samples:
        samples.wait_for_first(PATIENCE_SECONDS)
        samples.take()
        time.sleep(2.0)
        taken = samples.take()
    # Where a reading came on top of the rhythm, it would be 0.14.
    assert middle_interval(taken) == pytest.approx(0.1, abs=0.02)
    assert sum(bool(one.gpus) for one in taken) >= len(taken) / 2
    assert until(none_is_left)


def test_a_reading_that_takes_longer_than_the_interval_does_not_hold_up_the_rhythm():
    def read(number):
        time.sleep(0.3)
        return (counters(utilization_percent=float(number)),)

    with Subscription(0.05, lambda: FakeSession(read)) as samples:
        time.sleep(1.5)
        taken = samples.take()
    assert middle_interval(taken) == pytest.approx(0.05, abs=0.02)
    seen = [one.gpus[0].utilization_percent for one in taken if one.gpus]
    # Each is told once.
    assert seen == sorted(set(seen))
    assert len(seen) >= 2
    until(none_is_left)


def test_busy_90_percent_of_the_time_is_90_percent():
    def read(number):
        return (counters(utilization_percent=100.0 if time.monotonic() % 0.2 < 0.18 else 0.0),)

    with Subscription(0.01, lambda: FakeSession(read)) as samples:
        time.sleep(2.0)
        hardware = HardwareFigures()
        hardware.add(samples.take())
    assert hardware.gpu_utilization_percents[0] == pytest.approx(90.0, abs=10.0)


def test_samples_of_this_process():
    with subscribe(0.02) as samples:
        busy_until = time.monotonic() + 0.5
        while time.monotonic() < busy_until:
            pass
        taken = samples.take()
    used = [one.cpu.process_percent for one in taken if one.cpu.process_percent is not None]
    assert max(used) > 30
    assert [one.time for one in taken] == sorted(one.time for one in taken)


def test_samples_of_a_long_time_are_thinned_out_and_still_cover_it():
    samples = Subscription(1000, FakeSession)
    samples.close()
    until(none_is_left)
    samples.take()
    for number in range(20_000):
        samples._add(Sample(float(number), (), CpuCounters(None, None, None, None)))
    times = [one.time for one in samples.take()]
    assert 2048 <= len(times) <= 4096
    assert times[0] < 10
    assert times[-1] > 19_900
    assert max(np.diff(times)) < 30


def test_what_was_not_taken_can_be_taken_after_the_end():
    samples = Subscription(0.01, FakeSession)
    until(lambda: samples._samples)
    samples.close()
    samples.close()
    assert samples.take()
    assert until(none_is_left)


def test_the_library_is_opened_and_closed_once(monkeypatch):
    library = FakeNvml(gpus(2))
    use(monkeypatch, library)
    with subscribe(0.01) as samples:
        samples.wait_for_first(PATIENCE_SECONDS)
        taken = until(lambda: [one for one in samples.take() if one.gpus])
        assert [one.gpu.index for one in taken[0].gpus] == [0, 1]
        assert samples.problem is None
    until(none_is_left)
    assert (library.calls["nvmlInitWithFlags"], library.open_sessions) == (1, 0)


@pytest.mark.parametrize(
    ("library", "text"),
    [
        (FakeNvml([]), "finds no GPU"),
        (FakeNvml(gpus(1), init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED), "modprobe nvidia"),
        (None, None),
    ],
    ids=["no GPU", "no driver", "no library"],
)
def test_without_figures_of_gpus_those_of_the_cpu_are_there(monkeypatch, library, text):
    use(monkeypatch, library)
    monkeypatch.setattr("keras_turbo.monitor.nvml._may_have_gpus", lambda root: library is not None)
    with subscribe(0.01) as samples:
        samples.wait_for_first(PATIENCE_SECONDS)
        taken = until(samples.take)
        # Nothing is said of GPUs on a machine that has none.
        assert samples.problem is None if text is None else text in samples.problem
    assert all(one.gpus == () for one in taken)


def test_a_gpu_that_is_lost_leaves_a_problem_and_the_samples_go_on(monkeypatch):
    library = FakeNvml(gpus(1))
    use(monkeypatch, library)
    with subscribe(0.01) as samples:
        samples.wait_for_first(PATIENCE_SECONDS)
        functions = [name.removeprefix("c_") for name in dir(FakeNvml) if name.startswith("c_nvmlDevice")]
        library.gpus[0].refused = dict.fromkeys(functions, pynvml.NVML_ERROR_GPU_IS_LOST)
        until(lambda: samples.problem)
        assert "GPU is lost" in samples.problem
        samples.take()
        until(samples.take)


@pytest.mark.parametrize("where", ["opening", "reading"])
def test_an_error_of_the_driver_is_a_problem_and_the_cpu_is_sampled_on(where):
    def fail(*_):
        raise RuntimeError("broken")

    with Subscription(0.01, fail if where == "opening" else lambda: FakeSession(fail)) as samples:
        until(lambda: samples.problem)
        assert samples.problem == "Counters of devices can't be read: RuntimeError: broken."
        samples.take()
        assert until(samples.take)[0].gpus == ()


def test_a_subscription_that_nobody_holds_ends_by_itself():
    samples = Subscription(0.01, FakeSession)
    until(samples.take)
    owner = [samples]
    owner.append(owner)
    del samples, owner
    assert until(none_is_left)


@pytest.mark.parametrize("where", ["opening", "reading"])
def test_a_driver_that_hangs_hangs_nobody(where, monkeypatch):
    monkeypatch.setattr(sampler, "_SILENT_SECONDS", 0.3)
    let_go, hangs = threading.Event(), threading.Event()

    def hang(*_):
        hangs.set()
        let_go.wait(PATIENCE_SECONDS)
        return FakeSession() if where == "opening" else (counters(),)

    opened = hang if where == "opening" else lambda: FakeSession(hang)
    samples = Subscription(0.02, opened)
    begin = time.monotonic()
    samples.wait_for_first(0.2)
    assert 0.2 <= time.monotonic() - begin < 1.0
    assert hangs.is_set()
    assert samples.problem is None
    until(lambda: samples.problem)
    assert "has not answered for more than 0.3 s" in samples.problem
    samples.take()
    time.sleep(0.3)
    taken = samples.take()
    assert len(taken) >= 8
    assert all(one.gpus == () for one in taken)
    # A second one does not ask it, and does not wait for it.
    with Subscription(0.02, lambda: pytest.fail("asked")) as again:
        begin = time.monotonic()
        again.wait_for_first(PATIENCE_SECONDS)
        assert time.monotonic() - begin < 1.0
        assert "has not answered" in again.problem
    begin = time.monotonic()
    samples.close()
    assert time.monotonic() - begin < 0.1
    let_go.set()
    assert until(none_is_left)


def test_figures_come_back_when_the_driver_answers_again(monkeypatch):
    monkeypatch.setattr(sampler, "_SILENT_SECONDS", 0.1)
    let_go = threading.Event()

    def hang_once(number):
        if number == 1:
            let_go.wait(PATIENCE_SECONDS)
        return (counters(utilization_percent=float(number)),)

    with Subscription(0.02, lambda: FakeSession(hang_once)) as samples:
        until(lambda: samples.problem)
        let_go.set()
        until(lambda: any(one.gpus and one.gpus[0].utilization_percent > 1 for one in samples.take()))
        assert samples.problem is None


@pytest.mark.parametrize("interval", [0, -1, 0.001, True, None, "1", float("nan"), float("inf"), 10**400, 1j])
def test_a_bad_interval(interval):
    with pytest.raises(ValueError, match="`interval_seconds` must be a number of at least 0.01. Received: "):
        subscribe(interval)


@pytest.mark.parametrize("interval", [np.float32(0.5), np.int64(2), Fraction(1, 2)])
def test_numbers_of_any_type(interval):
    with subscribe(interval) as samples:
        assert samples.interval_seconds == float(interval)
        assert type(samples.interval_seconds) is float


def test_a_copy_of_an_owner_does_not_take_the_samples_with_it():
    """Callbacks are copied and pickled between two fits; a running subscription can't be."""
    with subscribe(1) as samples, pytest.raises(TypeError):
        copy.deepcopy(samples)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_subscription_in_a_forked_child_gives_nothing_and_can_be_closed(run_python):
    source = """
        import os, threading, time
        from keras_turbo.monitor.sampler import subscribe

        samples = subscribe(0.01)
        while not samples.take():
            time.sleep(0.002)
        child = os.fork()
        if child == 0:
            samples.take()
            time.sleep(0.1)
            samples.close()
            os._exit(threading.active_count() + len(samples.take()))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_python(source).strip() == "1"


@pytest.mark.parametrize("how", ["left open", "hanging"])
def test_the_interpreter_ends(run_python, how):
    """Also with a subscription that was never closed, and with a driver that never answers."""
    source = """
        import sys, threading, time
        from keras_turbo.monitor.sampler import Subscription, subscribe

        hangs = threading.Event()

        def hang():
            hangs.set()
            time.sleep(3600)

        samples = Subscription(0.01, hang) if sys.argv[1] == "hanging" else subscribe(0.01)
        while not (hangs.is_set() if sys.argv[1] == "hanging" else samples.take()):
            time.sleep(0.002)
        print("reached")
    """
    assert run_python(source, how).strip() == "reached"


def test_where_no_thread_can_be_started_there_is_a_problem_and_no_exception(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        samples = subscribe(0.01)
    assert samples.take() == []
    assert samples.problem == "Counters of devices can't be read: RuntimeError: can't start new thread."
    samples.wait_for_first(0.01)
    samples.close()
    with subscribe(0.01) as again:
        until(again.take)
