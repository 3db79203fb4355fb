"""One run at a time in a directory, told apart from the dead by the system itself."""

from __future__ import annotations

import errno
import fcntl
import gc
import os

import pytest

from keras_turbo.checkpoint.directory import DirectoryInUseError, DirectoryLock, claim
from tests.checkpoint.forked import forking
from tests.checkpoint.saved import save


def test_two_in_one_process(tmp_path):
    with claim(tmp_path), pytest.raises(DirectoryInUseError, match="another callback of this process"):
        claim(f"{tmp_path}/.")
    with claim(tmp_path):
        save(tmp_path, 1)
    save(tmp_path, 2)


def test_a_lock_that_is_dropped_is_given_back(tmp_path):
    lock = claim(tmp_path)
    files = len(os.listdir("/proc/self/fd"))
    del lock
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files - 1
    with claim(tmp_path):
        pass


def test_releasing_twice_does_nothing(tmp_path):
    lock = claim(tmp_path)
    lock.release()
    with claim(tmp_path) as second:
        lock.release()
        with pytest.raises(DirectoryInUseError):
            claim(tmp_path)
        second.release()
    claim(tmp_path).release()


def test_a_file_system_without_locks_warns(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="file system without locks"), DirectoryLock(tmp_path):
        pass


PROCESSES = """
directory = Path(sys.argv[1])
ready = directory / "ready"

def hold():
    lock = claim(directory)
    (directory / ".writing-step-2-x").mkdir()
    ready.touch()
    time.sleep(100)

save(directory, 1)
holder = fork(hold)
while not ready.exists():
    time.sleep(0.01)
for attempt in (lambda: claim(directory), lambda: save(directory, 3)):
    try:
        attempt()
    except DirectoryInUseError as error:
        assert f"used by another run: process {holder} on" in str(error), error
    else:
        raise SystemExit("both had it")
# What the living run is writing is not swept, and reading needs no lock.
assert (directory / ".writing-step-2-x").exists()
assert latest(directory).name == "step-00000001"
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)

lock = claim(directory)
assert not (directory / ".writing-step-2-x").exists()

def inherits_nothing():
    try:
        claim(directory)
    except DirectoryInUseError as error:
        assert f"process {os.getppid()}" in str(error)
    else:
        raise SystemExit("the child had it, too")
    lock.release()

assert exit_code(fork(inherits_nothing)) == 0
# The child that is gone took nothing of it along.
assert exit_code(fork(inherits_nothing)) == 0

def outlive():
    time.sleep(100)

def die_with_a_child():
    lock = claim(directory)
    (directory / "child").write_text(str(fork(outlive)))
    os.kill(os.getpid(), signal.SIGKILL)

lock.release()
assert exit_code(fork(die_with_a_child)) == -signal.SIGKILL
# A forked child that outlives a run doesn't keep its directory.
with claim(directory):
    save(directory, 4)
os.kill(int((directory / "child").read_text()), signal.SIGKILL)
print("done")
"""


def test_two_processes(tmp_path, run_python):
    assert run_python(forking(PROCESSES), tmp_path) == "done\n"
