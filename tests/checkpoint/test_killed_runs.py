"""Real processes and real kills: what was committed is never lost, and the end is that of a run never killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_turbo
from tests.checkpoint.killed_run import forkserver, run_in_process, train
from tests.checkpoint.training_runs import assert_same_outcome


def committed(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("step-*")}


def run_to_its_end(name: str, directory: Path, options: dict[str, Any]) -> dict[str, np.ndarray]:
    result = directory.with_suffix(".npz")
    assert run_in_process(forkserver(), name, directory, result, options, None, 0) == 0
    with np.load(result) as arrays:
        return dict(arrays)


def kill_and_compare(name: str, tmp_path: Path, kills: int, seconds: float) -> None:
    options = {"save_freq": 1, "max_to_keep": None}
    directory = tmp_path / "killed"
    lasts = []
    for seed in range(kills):
        before = committed(directory)
        code = run_in_process(forkserver(), name, directory, tmp_path / "none.npz", options, seconds, seed)
        after = committed(directory)
        assert code == -signal.SIGKILL or after == before, "it was not killed, and had steps to do"
        lasts.append(max(after, default=""))
        assert before <= after
        newest = keras_turbo.checkpoint.latest(directory)
        # A kill before the first one leaves none.
        assert newest == (directory / max(after) if after else None)
    found = run_to_its_end(name, directory, options)
    # Else this machine is so fast that every kill came after the end.
    assert min(lasts) < max(committed(directory))
    assert all(health.ok for health in keras_turbo.checkpoint.verify(directory))
    assert not [path.name for path in directory.iterdir() if not path.name.startswith(("step-", ".lock"))]
    assert_same_outcome(found, run_to_its_end(name, tmp_path / "whole", {"save_freq": "epoch"}))


@pytest.mark.parametrize(("name", "seconds"), [("dropout_and_batch_normalization", 0.3), ("tuned_graph_loop", 0.03)])
def test_killed_twice(name, seconds, tmp_path):
    kill_and_compare(name, tmp_path, kills=2, seconds=seconds)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path):
    kill_and_compare("eager", tmp_path, kills=50, seconds=0.12)


@pytest.mark.parametrize("how", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_the_interpreter_exits_while_a_save_is_pending(tmp_path, how):
    source = f"""
        import sys
        import keras, numpy as np
        from keras_turbo import AsyncCheckpoint

        def leave(batch, logs):
            if batch == 1:
                {how}

        model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000)])
        model.compile("sgd", "mse")
        x = np.zeros((4, 1000), "float32")
        checkpoint = AsyncCheckpoint({str(tmp_path)!r}, save_freq=1, max_write_mb_per_second=8)
        leaving = keras.callbacks.LambdaCallback(on_train_batch_end=leave)
        model.fit(x, x, batch_size=1, verbose=0, callbacks=[leaving, checkpoint])
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (3 if "exit" in how else 128 + signal.SIGINT) or done.returncode == -signal.SIGINT
    assert [health.ok for health in keras_turbo.checkpoint.verify(tmp_path)] == [True]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_ends_a_process_with_the_documented_code(tmp_path, name):
    source = f"""
        import os, signal
        import keras, numpy as np
        from keras_turbo import AsyncCheckpoint

        def ask(batch, logs):
            if batch == 2:
                os.kill(os.getpid(), signal.{name})

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.zeros((8, 3), "float32")
        asking = keras.callbacks.LambdaCallback(on_train_batch_begin=ask)
        model.fit(x, x[:, :1], batch_size=1, verbose=0, callbacks=[asking, AsyncCheckpoint({str(tmp_path)!r})])
        print("not reached")
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (143, "")
    assert committed(tmp_path) == {"step-00000003"}


def test_two_workers_write_one_checkpoint(tmp_path):
    def worker(index: int) -> Any:
        options = {"save_freq": 8, "num_shards": 2, "index": index}
        arguments = ("repeated", tmp_path / "c", tmp_path / f"{index}.npz", options, None, 0)
        return forkserver().Process(target=train, args=arguments)

    processes = [worker(0), worker(1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0]
    healths = keras_turbo.checkpoint.verify(tmp_path / "c")
    assert [(health.name, health.ok) for health in healths] == [(f"step-{step:08d}", True) for step in (8, 16, 24)]
    assert healths[-1].state is not None
    assert healths[-1].state.num_shards == 2
    # One worker goes on with it.
    assert "epochs" in run_to_its_end("repeated", tmp_path / "c", {})
