"""Jobs are done in order, behind the caller's back, and none is lost; errors are heard of once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from keras_turbo.checkpoint import writer as writer_module
from keras_turbo.checkpoint.writer import BackgroundWriter, RateLimit


class Recorded:
    """Writes into a list, when it may."""

    def __init__(self):
        self.done = []
        self.may_write = threading.Event()
        self.is_writing = threading.Event()

    def __call__(self, job):
        self.is_writing.set()
        assert self.may_write.wait(60)
        if isinstance(job, BaseException):
            raise job
        self.done.append(job)


@pytest.fixture
def write():
    made = Recorded()
    yield made
    made.may_write.set()


@pytest.fixture
def writer(write):
    made = BackgroundWriter(write, name="test")
    yield made
    write.may_write.set()
    made.close()


def our_threads():
    return [thread for thread in threading.enumerate() if thread.name == "keras_turbo test"]


def test_jobs_are_done_in_order_by_threads_that_end(writer, write):
    assert our_threads() == []
    writer.submit("a")
    writer.submit("b")
    assert writer.pending == 2
    assert not any(thread.daemon for thread in our_threads())
    assert writer.wait(0.01) is False
    write.may_write.set()
    assert writer.wait() is True
    assert (writer.pending, write.done, our_threads()) == (0, ["a", "b"], [])
    writer.submit("c")
    assert writer.wait(60) is True
    assert write.done == ["a", "b", "c"]


def test_a_third_job_waits_until_one_is_done(writer, write):
    writer.submit(0)
    writer.submit(1)
    submitted = threading.Event()

    def submit():
        writer.submit(2)
        submitted.set()

    thread = threading.Thread(target=submit)
    thread.start()
    assert not submitted.wait(0.05)
    assert writer.pending == 2
    write.may_write.set()
    thread.join()
    writer.wait()
    assert write.done == [0, 1, 2]


def test_an_error_is_raised_once_and_the_next_job_is_done(writer, write):
    write.may_write.set()
    writer.submit(OSError("no space"))
    writer.submit("good")
    writer.submit(OSError("later"))
    writer.wait()
    with pytest.raises(OSError, match="no space"):
        writer.raise_error()
    writer.raise_error()
    assert write.done == ["good"]


def test_close_finishes_what_is_pending_and_takes_no_more(writer, write):
    writer.submit(1)
    writer.submit(OSError("kept"))
    write.may_write.set()
    writer.close()
    writer.close()
    assert (write.done, our_threads()) == ([1], [])
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(2)
    with pytest.raises(OSError, match="kept"):
        writer.raise_error()


@pytest.mark.parametrize("has_begun", [False, True])
def test_ctrl_c_while_a_thread_is_started(writer, write, monkeypatch, has_begun):
    start = threading.Thread.start

    def interrupted(thread):
        if has_begun:
            start(thread)
            write.is_writing.wait(60)
        raise KeyboardInterrupt

    write.may_write.set()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        writer.submit(1)
    assert writer.pending == 0
    writer.submit(2)
    writer.close()
    assert write.done == ([1, 2] if has_begun else [2])


def test_each_job_is_prepared_before_its_turn(write):
    prepared = []
    writer = BackgroundWriter(write, prepared.append, name="test")
    writer.submit("a")
    writer.submit("b")
    while len(prepared) < 2:
        time.sleep(0.001)
    assert write.done == []
    write.may_write.set()
    writer.close()
    assert write.done == ["a", "b"]


def test_a_job_may_ask_the_writer(write):
    def ask(job):
        seen.append((writer.pending, job))

    seen = []
    writer = BackgroundWriter(ask, name="test")
    writer.submit("job")
    writer.wait()
    assert seen == [(1, "job")]


# The module alone: TensorFlow takes seconds to import and has no part in this.
LOAD = f"""
    import importlib.util
    spec = importlib.util.spec_from_file_location("writer", {writer_module.__file__!r})
    writer_module = importlib.util.module_from_spec(spec)
    sys.modules["writer"] = writer_module
    spec.loader.exec_module(writer_module)
    from writer import BackgroundWriter, RateLimit
"""

AT_EXIT = (
    """
    import sys
    from pathlib import Path
    """
    + LOAD
    + """

    def write(path):
        limit = RateLimit(1)
        with open(path, "wb") as file:
            for _ in range(10):
                file.write(bytes(40_000))
                limit.spend(40_000)
        Path(path + ".done").touch()

    writer = BackgroundWriter(write, name="saves")
    writer.submit(sys.argv[1])
    writer.submit(sys.argv[2])
    if sys.argv[3] == "raise":
        raise KeyError("the script fails")
    if sys.argv[3] == "exit":
        sys.exit(3)
    """
)


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("raise", 1), ("exit", 3)])
def test_the_interpreter_ends_without_losing_what_is_pending(tmp_path, how, code):
    paths = [str(tmp_path / name) for name in "ab"]
    command = [sys.executable, "-c", textwrap.dedent(AT_EXIT), *paths, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    for path in paths:
        assert os.path.getsize(path) == 400_000
        assert os.path.exists(path + ".done")


FORKED = (
    """
    import os, sys, threading
    """
    + LOAD
    + """

    go, lines = threading.Event(), []
    def write(job):
        go.wait(60)
        lines.append(job)

    writer = BackgroundWriter(write, name="saves")
    writer.submit("of the parent")
    writer.submit("of the parent, too")
    child = os.fork()
    if child == 0:
        go.set()
        assert writer.pending == 0
        assert writer.wait(60)
        writer.submit("of the child")
        assert writer.wait(60)
        writer.close()
        os._exit(0 if lines == ["of the child"] else 5)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go.set()
    writer.close()
    assert lines == ["of the parent", "of the parent, too"], lines
    sys.exit(code)
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_nothing_pending(run_python):
    run_python(FORKED)


def test_a_rate_limit_holds_the_rate():
    limit = RateLimit(10)
    start = time.monotonic()
    for _ in range(20):
        limit.spend(250_000)
    # 5 MB at 10 MB/s, less what a tenth of a second has saved up.
    assert time.monotonic() - start >= 0.4


def test_a_rate_limit_does_not_save_up_for_ever():
    limit = RateLimit(10)
    limit.spend(1)
    time.sleep(0.3)
    start = time.monotonic()
    limit.spend(3_000_000)
    assert time.monotonic() - start >= 0.2


def test_a_lifted_limit_lets_go_at_once():
    limit = RateLimit(0.001)
    waiting = threading.Thread(target=limit.spend, args=(1_000_000,))
    waiting.start()
    limit.lift()
    waiting.join(60)
    assert not waiting.is_alive()
    limit.spend(1_000_000_000)


def test_no_limit():
    RateLimit(None).spend(10**15)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), "fast", True])
def test_bad_rates(rate):
    with pytest.raises(ValueError, match=f"megabytes a second, or None for no limit. Received: {rate!r}"):
        RateLimit(rate)
