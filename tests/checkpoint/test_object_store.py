"""Where nothing can be renamed: an in-memory file system of TensorFlow, and a real S3 server."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
import warnings

import pytest
import tensorflow as tf

from keras_turbo.checkpoint import latest, verify
from keras_turbo.checkpoint.directory import DirectoryInUseError, DirectoryLock, claim, delete_checkpoint
from keras_turbo.checkpoint.reading import read_checkpoint
from keras_turbo.files import attempts
from tests.checkpoint.forked import forking
from tests.checkpoint.saved import EXTRA, Watch, assert_equal_arrays, make_arrays, save


@pytest.fixture
def directory(tmp_path):
    path = f"ram://{tmp_path.name}/run"
    yield path
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.rmtree(f"ram://{tmp_path.name}")


def names_in(path):
    return sorted(name.strip("/") for name in tf.io.gfile.listdir(path))


def test_written_verified_read_deleted(directory):
    with claim(directory):
        for step in (1, 2, 3):
            assert save(directory, step) == f"{directory}/step-0000000{step}"
        assert names_in(directory) == [".lock", *(f"step-0000000{step}" for step in (1, 2, 3))]
        delete_checkpoint(directory, "step-00000002")
        delete_checkpoint(directory, "step-00000002")
    assert latest(directory) == f"{directory}/step-00000003"
    weights, extra, state = read_checkpoint(latest(directory))
    assert_equal_arrays(weights, make_arrays(3))
    assert_equal_arrays(extra, EXTRA)
    assert [health.state.optimizer_step for health in verify(directory)] == [1, 3]
    assert state.optimizer_step == 3
    with pytest.raises(FileExistsError):
        save(directory, 3)
    assert names_in(directory) == ["step-00000001", "step-00000003"]


def test_a_failed_save_leaves_nothing(directory):
    save(directory, 1)

    def fail():
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        save(directory, 2, limit=Watch(action=fail))
    assert names_in(directory) == ["step-00000001"]


def test_what_has_no_marker_is_passed_over_and_swept(directory):
    save(directory, 1)
    save(directory, 2)
    tf.io.gfile.remove(f"{directory}/step-00000002/COMMITTED")
    tf.io.gfile.makedirs(f"{directory}/logs")
    with tf.io.gfile.GFile(f"{directory}/logs/events", "w") as file:
        file.write("x")
    with pytest.warns(UserWarning, match="step-00000002: no commit marker"):
        assert latest(directory) == f"{directory}/step-00000001"
    with claim(directory):
        assert names_in(directory) == [".lock", "logs", "step-00000001"]


def test_damage_is_found(directory):
    save(directory, 1)
    path = f"{directory}/step-00000001/model.weights.h5"
    with tf.io.gfile.GFile(path, "rb") as file:
        content = bytearray(file.read())
    content[-1] ^= 1
    tf.io.gfile.remove(path)  # this file system appends to what is there
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(bytes(content))
    assert "model.weights.h5 is damaged" in verify(directory)[0].problems[0]


@pytest.mark.parametrize(("where", "call"), [(tf.io.gfile, "stat"), (tf.io.gfile, "GFile")], ids=["size", "content"])
def test_what_a_store_refuses_for_a_moment_is_no_damage(directory, monkeypatch, where, call):
    monkeypatch.setattr(attempts, "_WAITS_SECONDS", (0.0, 0.0, 0.0))
    for step in (1, 2):
        save(directory, step)
    whole = getattr(where, call)
    met = []

    def refused_once(path, *arguments):
        # For each file of the newest checkpoint.
        if "step-00000002" in path and path not in met:
            met.append(path)
            raise tf.errors.UnavailableError(None, None, "Slow down")
        return whole(path, *arguments)

    monkeypatch.setattr(where, call, refused_once)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest(directory) == f"{directory}/step-00000002"
    assert {path.rpartition("/")[2] for path in met} >= {"model.weights.h5", "extra_state.h5"}


def write_lock(directory, content):
    tf.io.gfile.makedirs(directory)
    if tf.io.gfile.exists(f"{directory}/.lock"):
        tf.io.gfile.remove(f"{directory}/.lock")  # this file system appends to what is there
    with tf.io.gfile.GFile(f"{directory}/.lock", "w") as file:
        file.write(content)


def test_a_second_run_is_told(directory):
    parent = f'{{"host": "{socket.gethostname()}", "pid": {os.getppid()}, "time": 0}}'
    write_lock(directory, parent)
    with pytest.raises(DirectoryInUseError, match=f"process {os.getppid()}"):
        claim(directory)
    write_lock(directory, parent.replace(str(os.getppid()), "99999999"))
    claim(directory).release()


def test_one_of_another_machine_is_told_and_its_files_are_let_be(directory):
    save(directory, 1)
    tf.io.gfile.remove(f"{directory}/step-00000001/COMMITTED")
    write_lock(directory, f'{{"host": "elsewhere", "pid": 1, "time": {time.time()}}}')
    with pytest.warns(UserWarning, match="process 1 on elsewhere"), claim(directory):
        assert "step-00000001" in names_in(directory)
    write_lock(directory, '{"host": "elsewhere", "pid": 1, "time": 0}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with claim(directory):
            assert names_in(directory) == [".lock"]


@pytest.mark.parametrize("renewed", ['"soon"', "null", "true", "1e300"])
def test_a_lock_whose_time_is_none_is_of_no_living_run(directory, renewed):
    write_lock(directory, f'{{"host": "elsewhere", "pid": 1, "time": {renewed}}}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claim(directory).release()


def test_a_save_says_that_the_run_is_alive(directory):
    with DirectoryLock(directory):
        write_lock(directory, "{}")
        save(directory, 1)
        with tf.io.gfile.GFile(f"{directory}/.lock") as file:
            assert str(os.getpid()) in file.read()


S3 = """
import sys
if sys.argv[1] == "fsspec":
    sys.modules["tensorflow_io"] = None  # as if it were not installed
import boto3
from keras_turbo import files
boto3.client("s3", endpoint_url=os.environ['S3_ENDPOINT']).create_bucket(Bucket=sys.argv[1])
bucket = f"s3://{sys.argv[1]}"

for run in (f"{bucket}/run", f"{bucket}/größe/run 2"):
    with claim(run):
        for step in (1, 2, 3):
            save(run, step, max_shard_mb=0.001)
        delete_checkpoint(run, "step-00000001")
        try:
            save(run, 3)
        except FileExistsError:
            pass
        else:
            raise SystemExit("overwritten")
    assert latest(run) == f"{run}/step-00000003", latest(run)
    weights, extra, state = read_checkpoint(latest(run))
    assert_equal_arrays(weights, make_arrays(3))
    assert_equal_arrays(extra, EXTRA)
    assert [health.ok for health in verify(run)] == [True, True]

    # What was interrupted has no marker: it is never taken for a checkpoint, and the next run sweeps it.
    files.remove_file(f"{run}/step-00000003/COMMITTED")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert latest(run) == f"{run}/step-00000002"
    with claim(run):
        pass
    assert files.names_in(run) == ["step-00000002"]

def work(index):
    save(f"{bucket}/workers", 5, shard=(2, index), timeout_seconds=60)

import threading
threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert_equal_arrays(read_checkpoint(latest(f"{bucket}/workers"))[0], make_arrays(5))

# What tensorflow-io brings, stock Keras reads from there, too.
import keras
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
from keras_turbo.checkpoint.writing import write_checkpoint
import numpy as np
arrays = {"layers/dense/vars/0": np.ones((3, 2), np.float32), "layers/dense/vars/1": np.ones(2, np.float32)}
folder = write_checkpoint(Path(f"{bucket}/keras"), "step-1", arrays, EXTRA, make_state(1))
if sys.argv[1] == "tensorflow-io":
    model.load_weights(f"{folder}/model.weights.h5")
    assert (model.get_weights()[0] == 1).all()
try:
    claim("s3://no-such-bucket/run")
except OSError as error:
    assert "no-such-bucket" in str(error), error
else:
    raise SystemExit("a bucket was made up")
assert not os.path.exists("s3:")
print("done")
import atexit
atexit.register(lambda: sys.stdout.write("flushed"))
sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.compatibility
@pytest.mark.parametrize("reader", ["fsspec", "tensorflow-io"])
def test_s3(s3_environment, reader):
    if reader == "tensorflow-io" and importlib.util.find_spec("tensorflow_io") is None:
        pytest.skip("tensorflow-io loads on TensorFlow 2.17 only")
    done = subprocess.run(
        [sys.executable, "-c", forking(S3), reader],
        env={**os.environ, **s3_environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    # tensorflow-io would abort the process at its end, with another exit code.
    assert done.returncode == 7, done.stderr[-3000:]
    assert done.stdout.split() == ["done", "flushed"]
