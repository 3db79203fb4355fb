"""One sampler thread for each process, whatever the driver, the subscribers and the interpreter do."""

from __future__ import annotations

import copy
import gc
import itertools
import queue
import statistics
import textwrap
import threading
import time
import weakref
from fractions import Fraction
from pathlib import Path

import numpy as np
import pynvml
import pytest

import keras_turbo
from keras_turbo.devices import sampler as sampler_module
from keras_turbo.devices.cpu import CpuCounters
from keras_turbo.devices.gpus import Gpu
from keras_turbo.monitor.counters import GpuCounters
from keras_turbo.monitor.sampler import Sampler, subscribe
from tests.monitor.fake_nvml import FakeNvml, gpus, use

GPU = Gpu(0, "GPU-1", "0000:01:00.0", "A100", 40_000.0, (8, 0))
PATIENCE_SECONDS = 30.0


# devices needs nothing of the own __init__ of keras_turbo, which imports TensorFlow: it is left out in new
# processes of tests.
WITHOUT_TENSORFLOW = f"""
import sys, types
sys.modules["keras_turbo"] = types.ModuleType("keras_turbo")
sys.modules["keras_turbo"].__path__ = [{str(Path(keras_turbo.__file__).parent)!r}]
"""


def run_devices(run_python, source, *arguments):
    return run_python(WITHOUT_TENSORFLOW + textwrap.dedent(source), *arguments)


def until(condition):
    """Waits for something that happens on another thread, as long as it takes on a busy machine."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def sampler_threads():
    return [thread for thread in threading.enumerate() if thread.name == "keras_turbo device sampler"]


class FakeReaders:
    """Counters without a machine."""

    def __init__(self, with_gpus=True, busy=lambda: 50.0):
        self.with_gpus = with_gpus
        self.busy = busy
        self.problem = None
        self.closed = threading.Event()

    def read_gpus(self):
        return (GpuCounters(GPU, utilization_percent=self.busy()),) if self.with_gpus else ()

    def read_cpu(self):
        return CpuCounters(10.0, 5.0, 90.0, 100.0)

    def close(self):
        self.closed.set()


class Clock:
    """Time that passes only while the sampler reads or waits; at the end of the time it waits to be told to end."""

    def __init__(self, end_seconds):
        self.now = 1000.0
        self.end = self.now + end_seconds
        self.ended = threading.Event()

    def __call__(self):
        return self.now

    def wait(self, wake, seconds):
        if self.now + seconds > self.end:
            self.ended.set()
            wake.get(timeout=PATIENCE_SECONDS)
            return
        # Calls to wake it up are let pass: they take no time.
        try:
            wake.get_nowait()
        except queue.Empty:
            # A clock's number may be too coarse for what is left.
            self.now += max(seconds, 1e-6)


def samples_over(seconds, *intervals, readers):
    """The samples of one subscription for each interval, over simulated time."""
    clock = Clock(seconds)
    sampler = Sampler(lambda with_gpus: readers(clock), clock, clock.wait)
    subscriptions = [sampler.subscribe(interval) for interval in intervals]
    assert clock.ended.wait(PATIENCE_SECONDS)
    taken = [one.take() for one in subscriptions]
    for one in subscriptions:
        one.close()
    until(lambda: not sampler_threads())
    return taken


def test_a_2_s_epoch_sampled_each_tenth_of_a_second_has_its_samples_though_each_reading_takes_40_ms():
    def readers(clock):
        class Slow(FakeReaders):
            def read_gpus(self):
                clock.now += 0.04
                return super().read_gpus()

        return Slow()

    (samples,) = samples_over(2.0, 0.1, readers=readers)
    assert 15 <= len(samples) <= 21
    steps = [after.time - before.time for before, after in itertools.pairwise(samples)]
    assert steps == pytest.approx([0.1] * len(steps))


@pytest.mark.parametrize("period_seconds", [0.05, 1.0, 1.7])
def test_busy_90_percent_of_the_time_is_90_percent(period_seconds):
    """The driver gives the mean of the last sixth of a second."""

    def busy_seconds(until):
        return until // period_seconds * 0.9 * period_seconds + min(until % period_seconds, 0.9 * period_seconds)

    def readers(clock):
        return FakeReaders(busy=lambda: 100 * (busy_seconds(clock.now) - busy_seconds(clock.now - 1 / 6)) * 6)

    (samples,) = samples_over(30.0, 0.1, readers=readers)
    assert abs(statistics.mean(sample.gpus[0].utilization_percent for sample in samples) - 90) < 3


def test_a_reading_that_takes_longer_than_the_interval_is_not_made_up_for():
    def readers(clock):
        class Slow(FakeReaders):
            def read_cpu(self):
                clock.now += 0.25
                return super().read_cpu()

        return Slow()

    (samples,) = samples_over(3.0, 0.1, readers=readers)
    steps = [after.time - before.time for before, after in itertools.pairwise(samples)]
    assert steps == pytest.approx([0.3] * len(steps))


def test_each_subscription_has_its_own_rate_and_all_share_the_readings():
    made = []

    def readers(clock):
        class Counted(FakeReaders):
            def read_cpu(self):
                made.append(clock.now)
                return super().read_cpu()

        return Counted()

    fast, slow, slowest = samples_over(10.0, 0.1, 0.5, 2.0, readers=readers)
    assert 99 <= len(fast) <= 102
    assert 20 <= len(slow) <= 22
    assert 5 <= len(slowest) <= 7
    assert len(made) <= 104
    assert {sample.time for sample in slow} <= set(made)


def test_samples_of_a_long_time_are_thinned_out_and_still_cover_it():
    (samples,) = samples_over(2000.0, 0.1, readers=lambda clock: FakeReaders())
    assert 2048 <= len(samples) <= 4096
    assert samples[0].time <= 1001
    assert samples[-1].time >= 2999
    gaps = {round(after.time - before.time, 3) for before, after in itertools.pairwise(samples)}
    assert max(gaps) <= 0.8


def test_taking_begins_anew():
    taken = iter(range(10_000))
    subscription = sampler_module.Subscription(Sampler(), 0.1)
    for _ in range(5000):
        subscription._add(next(taken))
    assert len(subscription._take()) < 4096
    subscription._add(1)
    subscription._add(2)
    assert subscription._take() == [1, 2]
    assert subscription._take() == []


def test_closing_waits_for_nobody():
    # The garbage collector may close one while the very thread that it runs on holds the lock.
    readers = FakeReaders()
    sampler = Sampler(lambda with_gpus: readers)
    subscription = sampler.subscribe(60.0)
    with sampler._lock:
        closing = threading.Thread(target=subscription.close)
        closing.start()
        closing.join(PATIENCE_SECONDS)
        assert not closing.is_alive()
    assert readers.closed.wait(PATIENCE_SECONDS)
    until(lambda: not sampler_threads())


def test_one_thread_whatever_the_number_of_subscriptions():
    with subscribe(0.01) as first, subscribe(0.02) as second, subscribe(0.5) as third:
        for one in (first, second, third):
            until(one.take)
        assert len(sampler_threads()) == 1
        first.close()
        second.close()
        second.close()
        third.take()
        until(lambda: third.take() or len(sampler_threads()) == 1)
    until(lambda: not sampler_threads())


def test_samples_of_this_process():
    with subscribe(0.01) as samples:
        until(lambda: len(samples._samples) >= 3)
        first, *_, last = samples.take()
    assert first.cpu.memory_rss_mb > 50
    assert first.cpu.process_percent is None
    assert last.cpu.process_percent >= 0
    assert 0 <= last.cpu.process_share_percent <= 100
    assert 0 <= last.cpu.free_share_percent <= 100
    assert first.time < last.time <= time.monotonic()


def test_what_was_not_taken_can_be_taken_after_the_end():
    samples = subscribe(0.01)
    until(lambda: samples._samples)
    samples.close()
    assert samples.take()
    assert samples.take() == []


def test_the_library_is_opened_and_closed_once(monkeypatch):
    library = FakeNvml(gpus(4))
    use(monkeypatch, library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with subscribe(0.01) as first, subscribe(0.01) as second:
        until(lambda: len(first._samples) > 2 and len(second._samples) > 2)
        assert [[one.gpu.index for one in sample.gpus] for sample in first.take()[:2]] == [[3, 1]] * 2
        assert first.problem is None
        assert library.calls["nvmlInitWithFlags"] == 1
    until(lambda: not sampler_threads())
    assert library.open_sessions == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("library", "text"),
    [
        (None, "No NVIDIA driver"),
        (FakeNvml(gpus(1), init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH), "different versions"),
    ],
    ids=["missing", "mismatched"],
)
def test_without_figures_of_gpus_those_of_the_cpu_are_there(monkeypatch, library, text):
    use(monkeypatch, library)
    with subscribe(0.01) as samples:
        until(lambda: samples._samples)
        assert samples.take()[0].gpus == ()
        assert text in samples.problem
    assert text in samples.problem


def test_a_gpu_that_is_lost_leaves_a_problem_and_the_samples_go_on(monkeypatch):
    library = FakeNvml(gpus(1))
    use(monkeypatch, library)
    with subscribe(0.01) as samples:
        until(samples.take)
        library.gpus[0].refused["nvmlDeviceGetUtilizationRates"] = pynvml.NVML_ERROR_GPU_IS_LOST
        until(lambda: samples.problem)
        assert "GPU is lost" in samples.problem
        samples.take()
        until(lambda: samples._samples)
        assert samples.take()[-1].gpus[0].utilization_percent is None


def test_an_error_in_a_reading_does_not_end_it():
    class Failing(FakeReaders):
        readings = 0

        def read_gpus(self):
            self.readings += 1
            if self.readings == 2:
                raise RuntimeError("cosmic ray")
            return super().read_gpus()

    sampler = Sampler(lambda with_gpus: Failing())
    with sampler.subscribe(0.01) as samples:
        until(lambda: len(samples._samples) >= 4)
        taken = samples.take()
        assert [len(sample.gpus) for sample in taken[:4]] == [1, 0, 1, 1]
        assert samples.problem == "Counters of devices can't be read: RuntimeError: cosmic ray"


def test_readers_that_can_not_be_made_leave_a_problem_and_a_later_subscription_tries_again():
    tries = []

    def make(with_gpus):
        tries.append(with_gpus)
        if len(tries) == 1:
            raise RuntimeError("no /proc")
        return FakeReaders()

    sampler = Sampler(make)
    with sampler.subscribe(0.01) as samples:
        until(lambda: samples.problem)
        assert samples.problem == "Counters of devices can't be read: RuntimeError: no /proc"
        assert samples.take() == []
        until(lambda: not sampler_threads())
        samples.take()
        assert tries == [True]
        with sampler.subscribe(0.01) as again:
            until(lambda: again._samples)
    assert tries == [True, True]


def test_an_exception_in_the_subscriber_ends_it():
    with pytest.raises(ZeroDivisionError), subscribe(0.01):
        raise ZeroDivisionError
    until(lambda: not sampler_threads())


def test_a_subscription_that_nobody_holds_ends_by_itself():
    held = [subscribe(3600)]
    until(lambda: held[0]._samples)
    gone = weakref.ref(held[0])
    held.clear()
    gc.collect()
    assert gone() is None
    until(lambda: not sampler_threads())


def test_a_subscription_in_a_cycle_with_its_owner_ends_with_it():
    class Owner:
        def __init__(self):
            self.itself = self
            self.samples = subscribe(3600)

    held = [Owner()]
    until(lambda: held[0].samples._samples)
    held.clear()
    gc.collect()
    until(lambda: not sampler_threads())


class Hanging(FakeReaders):
    """A driver that stops answering, until it is let go."""

    def __init__(self, with_gpus, hangs, let_go):
        super().__init__(with_gpus)
        self.hangs, self.let_go = hangs, let_go

    def read_gpus(self):
        if self.with_gpus:
            self.hangs.set()
            self.let_go.wait(PATIENCE_SECONDS)
        return super().read_gpus()


def test_a_query_that_hangs_hangs_nobody_and_the_cpu_is_sampled_on():
    hangs, let_go, made = threading.Event(), threading.Event(), []

    def make(with_gpus):
        made.append(Hanging(with_gpus, hangs, let_go))
        return made[-1]

    now = [0.0]
    sampler = Sampler(make, clock=lambda: now[0] + time.monotonic(), silent_seconds=15)
    samples = sampler.subscribe(0.01)
    assert hangs.wait(PATIENCE_SECONDS)
    assert samples.take() == []
    assert samples.problem is None
    now[0] = 20.0
    samples.take()
    assert "has not answered for more than 15 s" in samples.problem
    until(lambda: samples._samples)
    assert samples.take()[-1].gpus == ()
    assert [one.with_gpus for one in made] == [True, False]
    # Whoever comes next is not sent to the driver either.
    samples.close()
    until(lambda: len(sampler_threads()) == 1)
    with sampler.subscribe(0.01) as again:
        until(again.take)
        assert "has not answered" in again.problem
        assert len(sampler_threads()) == 2
    assert [one.with_gpus for one in made] == [True, False, False]
    # When it answers after all, its thread closes the library and ends, and the GPUs are read again.
    let_go.set()
    assert made[0].closed.wait(PATIENCE_SECONDS)
    until(lambda: not sampler_threads())
    with sampler.subscribe(0.01) as after:
        until(lambda: after._samples)
        assert after.take()[0].gpus


def test_closing_does_not_wait_for_a_query_that_hangs():
    hangs, let_go = threading.Event(), threading.Event()
    sampler = Sampler(lambda with_gpus: Hanging(with_gpus, hangs, let_go))
    with sampler.subscribe(0.01):
        assert hangs.wait(PATIENCE_SECONDS)
    let_go.set()
    until(lambda: not sampler_threads())


def test_a_hang_while_the_library_is_opened(monkeypatch):
    library = FakeNvml(gpus(1))
    library.hang_in = "nvmlInitWithFlags"
    use(monkeypatch, library)
    now = [0.0]
    sampler = Sampler(clock=lambda: now[0] + time.monotonic(), silent_seconds=15)
    with sampler.subscribe(0.01) as samples:
        assert library.hangs.wait(PATIENCE_SECONDS)
        now[0] = 20.0
        until(samples.take)
        assert "has not answered" in samples.problem
    library.let_go.set()
    until(lambda: not sampler_threads())
    assert library.open_sessions == 0


def test_stopping_ends_the_thread_and_a_later_call_starts_another():
    sampler = Sampler(lambda with_gpus: FakeReaders())
    with sampler.subscribe(0.01) as samples:
        until(lambda: samples._samples)
        sampler.stop(PATIENCE_SECONDS)
        assert not sampler_threads()
        until(samples.take)


@pytest.mark.parametrize("interval", [0, -1, 0.001, True, None, "1", float("nan"), float("inf"), 10**400, 1j])
def test_a_bad_interval(interval):
    with pytest.raises(ValueError, match="`interval_seconds` must be a number of at least 0.01. Received: "):
        subscribe(interval)


@pytest.mark.parametrize("interval", [np.float32(0.5), np.int64(2), Fraction(1, 2), 10**300])
def test_numbers_of_any_type(interval):
    with subscribe(interval) as samples:
        assert samples.interval_seconds == float(interval)
        assert type(samples.interval_seconds) is float


def test_the_system_is_asked_to_wait_for_no_longer_than_it_can():
    waits = queue.SimpleQueue()

    def wait(wake, seconds):
        waits.put(seconds)
        wake.get(timeout=PATIENCE_SECONDS)

    sampler = Sampler(FakeReaders, wait=wait)
    with sampler.subscribe(1e300) as samples:
        assert 0 < waits.get(timeout=PATIENCE_SECONDS) <= 86_400
        assert samples.problem is None
    until(lambda: not sampler_threads())


def test_a_copy_of_an_owner_does_not_take_the_samples_with_it():
    """Callbacks are copied and pickled between two fits; a running subscription can't be."""
    with subscribe(1) as samples, pytest.raises(TypeError):
        copy.deepcopy(samples)


def test_after_a_fork_the_child_has_a_thread_of_its_own_once_it_asks(run_python):
    printed = run_devices(
        run_python,
        """
        import json, os, threading, time
        from keras_turbo.monitor.sampler import subscribe

        def until(condition):
            end = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < end
                time.sleep(0.002)

        samples = subscribe(0.01)
        until(lambda: len(samples._samples) > 2)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            told = {"threads before": threading.active_count(), "old samples": len(samples.take())}
            until(lambda: samples._samples)
            told["samples"] = len(samples.take()) > 0
            told["threads"] = threading.active_count()
            samples.close()
            until(lambda: threading.active_count() == 1)
            with subscribe(0.01) as again:
                until(again.take)
            os.write(write, json.dumps(told).encode())
            os._exit(0)
        os.waitpid(child, 0)
        samples.take()
        until(samples.take)
        print(os.read(read, 1000).decode())
        """,
    )
    assert printed.strip() == '{"threads before": 1, "old samples": 0, "samples": true, "threads": 2}'


@pytest.mark.parametrize("how", ["left open", "exception", "hanging"])
def test_the_interpreter_ends(run_python, how):
    """Also with a subscription that was never closed, and with a driver that never answers."""
    source = """
        import sys, threading, time
        from keras_turbo.devices import sampler

        how, hangs = sys.argv[1], threading.Event()

        class Hanging(sampler.MachineReaders):
            def read_gpus(self):
                hangs.set()
                time.sleep(3600)

        if how == "hanging":
            sampler._SAMPLER._open_readers = Hanging
        samples = sampler.subscribe(0.01)
        while not (hangs.is_set() if how == "hanging" else samples.take()):
            time.sleep(0.002)
        print("reached")
        if how == "exception":
            try:
                1 / 0
            except ZeroDivisionError:
                sys.exit(0)
    """
    assert run_devices(run_python, source, how).strip() == "reached"


def test_in_a_thread_and_twice_in_a_process():
    results = []

    def work():
        for _ in range(2):
            with subscribe(0.01) as samples:
                until(lambda: samples._samples)
                results.append(len(samples.take()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert min(results) >= 1
    until(lambda: not sampler_threads())


def test_importing_starts_nothing(run_python):
    source = """
        import sys, threading
        import keras_turbo.monitor.sampler
        print(threading.active_count(), {"pynvml", "psutil", "tensorflow", "keras"} & set(sys.modules))
    """
    assert run_devices(run_python, source).strip() == "1 set()"


def test_where_no_thread_can_be_started_there_is_a_problem_and_no_exception(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    sampler = Sampler(lambda with_gpus: FakeReaders())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        samples = sampler.subscribe(0.01)
        assert samples.take() == []
        assert samples.problem == "Counters of devices can't be read: can't start new thread."
    with sampler.subscribe(0.01) as again:
        until(lambda: again._samples)
        until(samples.take)
    samples.close()


def test_an_inherited_subscription_is_closed_in_a_child_without_a_thread(run_python):
    source = """
        import os, threading, time
        from keras_turbo.monitor.sampler import subscribe

        samples = subscribe(0.01)
        while not samples.take():
            time.sleep(0.002)
        child = os.fork()
        if child == 0:
            samples.close()
            os._exit(threading.active_count())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_devices(run_python, source).strip() == "1"
