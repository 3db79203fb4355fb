"""One run at a time in a directory, told apart from the dead by the system itself."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time

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
    assert len(os.listdir("/proc/self/fd")) == files - 2
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


# What takes a lock away that goes by names alone.


def is_held(directory):
    """Whether another process is refused."""
    code = f"""
        import sys
        from keras_turbo.checkpoint.directory import DirectoryInUseError, claim
        try:
            claim({str(directory)!r})
        except DirectoryInUseError:
            sys.exit(7)
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, timeout=120).returncode == 7


def test_a_copy_of_the_directory_does_not_take_the_lock_along(tmp_path):
    with claim(tmp_path / "run"):
        save(tmp_path / "run", 1)
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        (tmp_path / "run" / ".lock").read_bytes()
        assert is_held(tmp_path / "run")
        # The copy is another directory.
        with claim(tmp_path / "copy"):
            pass


def test_by_a_link_and_in_threads_it_is_one_directory(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    results = []

    def work(name):
        try:
            with claim(tmp_path / name):
                time.sleep(0.3)
                results.append(name)
        except DirectoryInUseError:
            results.append("refused")

    threads = [threading.Thread(target=work, args=(name,)) for name in ("run", "link", "run", "link")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert results.count("refused") == 3


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_directory_that_was_removed_is_said_to_be(tmp_path, comes_back):
    directory = tmp_path / "run"
    with claim(directory) as lock:
        lock.check()
        shutil.rmtree(directory)
        if comes_back:
            directory.mkdir()
        with pytest.raises(OSError, match="removed while the run was going on") as raised:
            lock.check()
        assert raised.value.filename == str(directory)


def test_a_lock_whose_file_was_removed_is_taken_again(tmp_path):
    with claim(tmp_path) as lock:
        (tmp_path / ".lock").unlink()
        lock.check()
        assert (tmp_path / ".lock").exists()
        assert is_held(tmp_path)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(OSError, match=r"\.lock"):
        claim(tmp_path / "run")
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_full_disk_leaves_the_lock(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with claim(tmp_path):
        assert is_held(tmp_path)
