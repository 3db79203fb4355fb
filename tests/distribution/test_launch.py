"""Workers of `launch`: real processes, which fail, hang, are killed and get signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from keras_turbo.cli import main
from keras_turbo.distribution import launch as launching
from keras_turbo.distribution.launch import LaunchError, LaunchOptions, launch
from keras_turbo.distribution.worker_process import PrefixedLines
from keras_turbo.monitor.counters import Gpu

PROJECT = Path(__file__).parents[2]


class Launched:
    """What a run gave."""

    def __init__(self, code, out, err):
        self.code = code
        self.out = out.getvalue().decode()
        self.err = err.getvalue().decode()

    def lines(self, worker):
        prefix = f"[worker {worker}] "
        return [line.removeprefix(prefix) for line in self.out.splitlines() if line.startswith(prefix)]


@pytest.fixture
def run(tmp_path):
    """Launches source code on workers, in a folder of the test's own."""

    def launched(source, *arguments, workers=2, environ=None, when_running=None, **options):
        script = tmp_path / "script.py"
        script.write_text(HEAD + textwrap.dedent(source))
        command = [sys.executable, str(script), str(tmp_path), *arguments]
        out, err = io.BytesIO(), io.BytesIO()
        options = LaunchOptions(workers, **{"grace_seconds": 5.0, **options})
        thread = None
        if when_running is not None:
            thread = threading.Thread(target=when_running, args=(tmp_path, workers))
            thread.start()
        try:
            code = launch(command, options, {**os.environ, **(environ or {})}, (out, err))
        finally:
            if thread is not None:
                thread.join()
        return Launched(code, out, err)

    yield launched
    left = []
    for path in tmp_path.glob("pid*"):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(int(path.read_text())))
    # The kernel may need a moment for what was killed.
    deadline = time.monotonic() + 5
    while any(map(is_alive, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not list(filter(is_alive, left))


def is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        # Who is nobody's child any longer may stay a zombie where the first process does not reap.
        return process.status() != psutil.STATUS_ZOMBIE
    return False


# Each worker leaves its number and those of its children, for the fixture to see that they are gone.
HEAD = """\
import json, os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
restart = int(os.environ["KERAS_TURBO_RESTART"])
(folder / f"pid{restart}-{index}").write_text(str(os.getpid()))

def child(source):
    started = subprocess.Popen([sys.executable, "-c", source])
    (folder / f"pid-child{restart}-{index}").write_text(str(started.pid))

def ready():
    (folder / f"ready{restart}-{index}").touch()
"""


def wait_until_ready(folder, workers, restart=0):
    deadline = time.monotonic() + 60
    while not all((folder / f"ready{restart}-{index}").exists() for index in range(workers)):
        if time.monotonic() > deadline:
            raise TimeoutError("the workers did not start")
        time.sleep(0.02)


def send(number):
    def when_running(folder, workers):
        with contextlib.suppress(TimeoutError):
            wait_until_ready(folder, workers)
        os.kill(os.getpid(), number)

    return when_running


def test_each_worker_knows_its_place(run):
    done = run("print(os.environ['TF_CONFIG']); print(index, sys.argv[2:], file=sys.stderr)", "é a", "-x", workers=3)
    assert done.code == 0
    configs = [json.loads(done.lines(index)[0]) for index in range(3)]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(3)]
    assert configs[0]["cluster"] == configs[1]["cluster"] == configs[2]["cluster"]
    assert len(set(configs[0]["cluster"]["worker"])) == 3
    assert sorted(done.err.splitlines()) == [f"[worker {index}] {index} ['é a', '-x']" for index in range(3)]


def test_lines_that_come_in_pieces_and_bytes_that_are_no_text():
    shown = []
    lines = PrefixedLines(b"> ", shown.append)
    for piece in (b"one ", b"line\nand", b"", b" half\r", b"\n\n", b"\xff\n", b"rest"):
        lines.add(piece)
    lines.end()
    lines.end()
    assert b"".join(shown) == b"> one line\n> and half\n> \n> \xff\n> rest\n"


def test_of_a_progress_bar_some_states_are_shown():
    shown, now = [], 0.0
    lines = PrefixedLines(b"> ", shown.append, lambda: now)
    for percent in range(100):
        now += 0.25
        # Some write the return before the line, and some behind it.
        lines.add(b"\r%d %%" % percent)
    assert shown == [b"> 38 %\n", b"> 78 %\n"]
    lines.add(b"\rdone\n")
    assert shown[2:] == [b"> done\n"]
    for percent in range(3):
        lines.add(b"%d %%\r" % percent)
    lines.end()
    assert shown[3:] == [b"> 2 %\n"]


def test_a_line_without_an_end_is_shown_in_parts():
    shown = []
    lines = PrefixedLines(b"> ", shown.append)
    for _ in range(3):
        lines.add(b"x" * 65536)
    assert len(shown) == 1
    lines.end()
    assert b"".join(shown).count(b"x") == 3 * 65536


def test_a_worker_that_fails_ends_the_others(run):
    done = run(
        """
        if index == 1:
            while not (folder / "ready0-0").exists(): time.sleep(0.02)
            print("no way", file=sys.stderr)
            sys.exit(7)
        child("import time; time.sleep(100)")
        ready()
        time.sleep(100)
        """
    )
    assert done.code == 7
    assert "[worker 1] no way\n" in done.err
    assert "[launch] worker 1 ended with exit code 7; all workers have ended.\n" in done.err


def test_what_a_worker_has_started_ends_with_it(run):
    # Not with the last worker: the number of its group may be another's by then.
    done = run(
        """
        import psutil
        if index == 0:
            child("import time; time.sleep(100)")
            sys.exit()
        path, deadline = folder / "pid-child0-0", time.monotonic() + 20
        while time.monotonic() < deadline:
            text = path.read_text() if path.exists() else ""
            if text and (not psutil.pid_exists(int(text)) or psutil.Process(int(text)).status() == "zombie"):
                sys.exit()
            time.sleep(0.02)
        sys.exit(3)
        """
    )
    assert done.code == 0


def test_one_that_does_not_heed_sigterm_is_killed(run):
    done = run(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready()
        if index == 1:
            while not (folder / "ready0-0").exists(): time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)
        """,
        grace_seconds=0.2,
    )
    assert done.code == 128 + signal.SIGKILL
    assert "worker 1 was ended by SIGKILL" in done.err


def test_a_stopped_worker_is_killed_too(run):
    done = run(
        """
        if index == 0:
            ready()
            os.kill(os.getpid(), signal.SIGSTOP)
        while not (folder / "ready0-0").exists(): time.sleep(0.02)
        sys.exit(3)
        """,
        grace_seconds=0.2,
    )
    assert done.code == 3


def test_restarts(run):
    done = run("print('start', restart); sys.exit(1 if restart < 2 and index == 0 else 0)", max_restarts=5)
    assert done.code == 0
    assert done.lines(0) == ["start 0", "start 1", "start 2"]
    assert "[launch] all 2 workers start again (2 of 5).\n" in done.err


def test_no_more_restarts_than_allowed(run):
    done = run("sys.exit(4 + restart)", max_restarts=1)
    assert done.code == 5
    assert done.err.count("start again") == 1


def test_a_worker_that_was_preempted_is_not_started_again(run):
    done = run("sys.exit(143 if index == 0 else 0)", max_restarts=3)
    assert done.code == 143
    assert "start again" not in done.err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
def test_signals_are_passed_on_and_no_restart_follows(run, name):
    number = getattr(signal, name)
    done = run(
        f"""
        def save(number, frame):
            time.sleep(0.2 * index)  # longer than the grace, which is for failures
            print("saved", signal.Signals(number).name)
            sys.exit(143)
        signal.signal(signal.{name}, save)
        ready()
        time.sleep(100)
        """,
        when_running=send(number),
        max_restarts=3,
        grace_seconds=0.05,
    )
    assert done.lines(0) == done.lines(1) == [f"saved {name}"]
    assert done.code == (130 if name == "SIGINT" else 143)
    assert "start again" not in done.err


def test_a_signal_that_is_ignored_stays_ignored(run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = run("ready(); time.sleep(0.5); print(signal.getsignal(signal.SIGHUP).name)", when_running=hang_up_all)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.code, done.lines(0), done.lines(1)) == (0, ["SIG_IGN"], ["SIG_IGN"])


def hang_up_all(folder, workers):
    """As a terminal that is closed does, under nohup."""
    send(signal.SIGHUP)(folder, workers)
    for index in range(workers):
        os.kill(int((folder / f"pid0-{index}").read_text()), signal.SIGHUP)


def test_sigterm_ends_workers_without_a_handler(run):
    done = run("ready(); time.sleep(100)", when_running=send(signal.SIGTERM), max_restarts=3)
    assert done.code == 143


def test_a_second_ctrl_c_does_not_wait(run):
    def twice(folder, workers):
        send(signal.SIGINT)(folder, workers)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    done = run("signal.signal(signal.SIGINT, signal.SIG_IGN); ready(); time.sleep(100)", when_running=twice)
    assert done.code == 130


def test_the_handlers_of_before_are_put_back(run):
    before = [signal.getsignal(number) for number in launching._PASSED_ON]
    run("pass", workers=1)
    assert [signal.getsignal(number) for number in launching._PASSED_ON] == before


def test_workers_end_with_a_launcher_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(HEAD + "ready(); time.sleep(100)")
    # Not by `python -m keras_turbo`, which takes seconds to start.
    source = f"""
        import sys, types
        # What stands in keras_turbo's __init__ is not needed.
        package = types.ModuleType("keras_turbo"); package.__path__ = [{str(PROJECT / "keras_turbo")!r}]
        sys.modules["keras_turbo"] = package
        from keras_turbo.distribution.launch import LaunchOptions, launch
        launch([sys.executable, {str(script)!r}, {str(tmp_path)!r}], LaunchOptions(2))
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.DEVNULL) as launcher:
        wait_until_ready(tmp_path, 2)
        workers = [psutil.Process(int((tmp_path / f"pid0-{index}").read_text())) for index in range(2)]
        launcher.kill()
    deadline = time.monotonic() + 20
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not list(filter(is_alive, workers))


def test_without_an_output(tmp_path, monkeypatch):
    # Python's where they were closed (>&- in a shell).
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert launch([sys.executable, "-c", "print(1); raise SystemExit(4)"], LaunchOptions(1)) == 4


@pytest.fixture
def unread():
    """A pipe: the end that is read, and twice the one that is written, as of `2>&1`."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as reader, open(writing, "wb", buffering=0) as writer:
        yield reader, (writer, writer)


@pytest.mark.parametrize("heeds", [True, False])
def test_signals_end_what_nobody_reads(tmp_path, unread, heeds):
    """One SIGTERM where the workers heed it: they come as far as saving; a second one in any case."""
    script = tmp_path / "script.py"
    handler = "lambda *_: ((folder / f'saved{index}').touch(), os._exit(143))" if heeds else "signal.SIG_IGN"
    endless = "while True: print('x' * 4000, flush=True)"
    script.write_text(HEAD + f"signal.signal(signal.SIGTERM, {handler}); ready()\n{endless}")

    def send_signals():
        wait_until_ready(tmp_path, 2)
        time.sleep(1.5)
        for _ in range(1 if heeds else 2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

    thread = threading.Thread(target=send_signals)
    thread.start()
    code = launch([sys.executable, str(script), str(tmp_path)], LaunchOptions(2), None, unread[1])
    thread.join()
    assert code == (143 if heeds else 137)
    assert [(tmp_path / f"saved{index}").exists() for index in range(2)] == [heeds] * 2
    assert not any(psutil.pid_exists(int(path.read_text())) for path in tmp_path.glob("pid*"))


def test_who_reads_slowly_gets_all(tmp_path, unread):
    script = tmp_path / "script.py"
    script.write_text(HEAD + "for number in range(4000): print(number, 'x' * 1000)")
    reader, outputs = unread
    read = bytearray()

    def read_slowly():
        while not read.endswith(b"end"):
            read.extend(reader.read(20_000))
            time.sleep(0.002)

    thread = threading.Thread(target=read_slowly)
    thread.start()
    assert launch([sys.executable, str(script), str(tmp_path)], LaunchOptions(1), None, outputs) == 0
    outputs[0].write(b"end")
    thread.join()
    lines = [f"[worker 0] {number} {'x' * 1000}" for number in range(4000)]
    assert bytes(read).decode().splitlines() == [*lines, "end"]


def test_what_can_not_be_started(tmp_path):
    with pytest.raises(LaunchError, match="'/nowhere/python' can't be started: No such file"):
        launch(["/nowhere/python"], LaunchOptions(2))


def gpus(number):
    return [Gpu(index, f"GPU-{index}", f"0000:0{index}:00.0", "A100", 40_000.0, (8, 0)) for index in range(number)]


@pytest.mark.parametrize(
    ("workers", "each", "there", "expected"),
    [
        (2, None, 0, ["unset", "unset"]),
        (2, None, 4, ["GPU-0,GPU-1", "GPU-2,GPU-3"]),
        (2, None, 3, ["GPU-0", "GPU-1"]),
        (2, 1, 4, ["GPU-0", "GPU-1"]),
        (2, 0, 4, ["-1", "-1"]),
    ],
)
def test_gpus_are_dealt_out(run, monkeypatch, workers, each, there, expected):
    monkeypatch.setattr(launching, "visible_gpus", lambda environ: gpus(there))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    done = run("print(os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))", workers=workers, gpus_per_worker=each)
    assert [done.lines(index)[0] for index in range(workers)] == expected


@pytest.mark.parametrize(
    ("workers", "each", "there", "part"),
    [
        (4, None, 2, "4 workers can't share 2 GPUs. Start fewer"),
        (2, 2, 3, "2 workers with 2 GPUs each need 4, and this process has 3"),
        (2, 1, 0, "and this process has 0"),
    ],
)
def test_too_few_gpus(monkeypatch, workers, each, there, part):
    monkeypatch.setattr(launching, "visible_gpus", lambda environ: gpus(there))
    with pytest.raises(LaunchError, match=part):
        launch([sys.executable, "-c", "pass"], LaunchOptions(workers, each))


def test_the_command_line(tmp_path, capfdbinary):
    script = tmp_path / "a b.py"
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(6)")
    assert main(["launch", "--workers", "1", "--gpus-per-worker", "0", str(script), "--workers", "x"]) == 6
    assert b"[worker 0] ['--workers', 'x']\n" in capfdbinary.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--workers", "2", "/nowhere.py"], "There is no script '/nowhere.py'."),
        (["--workers", "0", "x.py"], "must be an integer from 1"),
        (["x.py"], "--workers"),
        (["--workers", "2"], "SCRIPT"),
        (["--workers", "2", "--max-restarts", "-1", "x.py"], "must be an integer from 0"),
    ],
)
def test_a_wrong_command_line(capsys, arguments, part):
    with pytest.raises(SystemExit) as exit_info:
        main(["launch", *arguments])
    assert exit_info.value.code == 2
    assert part in capsys.readouterr().err
