"""A script for one device, on two workers, and with one of them killed: the same losses and weights."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_turbo.checkpoint.listing import list_checkpoints
from keras_turbo.distribution.launch import LaunchOptions, launch

PROJECT = Path(__file__).parents[2]
TUTORIAL = PROJECT / "docs" / "multi_worker_tutorial.py"
ENVIRON = {**os.environ, "PYTHONPATH": str(PROJECT)}


class Run:
    """What a run of the tutorial has left."""

    def __init__(self, folder, code, output):
        self.folder = folder
        self.code = code
        self.output = output

    @property
    def history(self):
        return json.loads((self.folder / "result.json").read_text())

    @property
    def weights(self):
        found = {}
        with h5py.File(self.folder / "result.weights.h5") as file:
            file.visititems(lambda name, one: found.update({name: one[()]}) if isinstance(one, h5py.Dataset) else None)
        return {name: value for name, value in found.items() if name.startswith(("layers", "optimizer"))}


def arguments(folder, *, saves):
    result = ["--result", str(folder / "result.json"), "--epochs", "3"]
    return [*result, "--checkpoints", str(folder / "checkpoints")] if saves else result


def on_two_workers(folder, command, *, saves, **options):
    folder.mkdir()
    out, err = io.BytesIO(), io.BytesIO()
    code = launch(
        [sys.executable, *command, *arguments(folder, saves=saves)], LaunchOptions(2, **options), ENVIRON, (out, err)
    )
    return Run(folder, code, out.getvalue().decode() + err.getvalue().decode())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("tutorial")
    alone = base / "one"
    alone.mkdir()
    command = [sys.executable, str(TUTORIAL), *arguments(alone, saves=False)]
    with subprocess.Popen(command, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as one:
        try:
            two = on_two_workers(base / "two", [str(TUTORIAL)], saves=True)
            output, _ = one.communicate(timeout=200)
        finally:
            one.kill()
    # In the middle of the second epoch, which has 23 steps.
    killer = [str(PROJECT / "tests" / "distribution" / "killed_script.py"), "1", "38", str(TUTORIAL)]
    killed = on_two_workers(base / "killed", killer, saves=True, max_restarts=1)
    return {"one": Run(alone, one.returncode, output.decode()), "two": two, "killed": killed}


@pytest.mark.parametrize("name", ["one", "two", "killed"])
def test_it_ends_well(runs, name):
    assert runs[name].code == 0, runs[name].output[-6000:]


def test_two_workers_give_the_losses_and_weights_of_one(runs):
    one, two = runs["one"], runs["two"]
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        np.testing.assert_allclose(two.history[name], one.history[name], rtol=1e-6, atol=1e-6, err_msg=name)
    assert one.weights.keys() == two.weights.keys()
    for name, value in one.weights.items():
        np.testing.assert_allclose(two.weights[name], value, rtol=0, atol=1e-6, err_msg=name)


def test_it_has_learned(runs):
    assert runs["one"].history["accuracy"][-1] > 0.8


def test_one_line_on_the_chief_says_what_is_there(runs):
    line = "distribute(): MultiWorkerMirroredStrategy (TF_CONFIG), 2 workers, 2 replicas, communication: auto"
    assert [one for one in runs["two"].output.splitlines() if line in one] == [f"[worker 0] {line}, timeout 600 s."]
    assert "distribute(): one device (one_device), 1 worker, 1 replica.\n" in runs["one"].output


def test_the_chief_alone_shows_progress(runs):
    assert "[worker 0] Epoch 3/3" in runs["two"].output
    assert "[worker 1] Epoch" not in runs["two"].output


def test_a_worker_was_killed_and_all_went_on(runs):
    output = runs["killed"].output
    # On a busy machine the other may have failed for it by then.
    told = f"[launch] worker 1 was ended by {signal.SIGKILL.name}"
    assert any(one in output for one in (f"{told}; all", f"{told} and worker 0 ended with exit code 1; all"))
    assert "[launch] all 2 workers start again (1 of 1).\n" in output


def test_the_other_worker_said_what_had_happened(runs):
    assert "WorkerLostError: Worker 0 of 2 can't go on: " in runs["killed"].output


def test_the_run_with_a_kill_has_the_weights_of_the_run_without(runs):
    killed, never = runs["killed"], runs["two"]
    assert killed.weights.keys() == never.weights.keys()
    for name, value in never.weights.items():
        np.testing.assert_array_equal(killed.weights[name], value, err_msg=name)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        # The mean over the epoch that was resumed is summed in another order: what it was so far is one number.
        np.testing.assert_allclose(killed.history[name], never.history[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["two", "killed"])
def test_what_was_saved_is_complete(runs, name):
    found = list_checkpoints(str(runs[name].folder / "checkpoints"), checksums=True)
    assert [health.ok for health in found] == [True] * len(found)
    assert found[-1].state.optimizer_step == 69
    assert found[-1].state.num_shards == 2


def test_each_worker_alone_leaves_no_files(runs):
    names = {path.name for path in runs["two"].folder.iterdir()}
    assert names == {"checkpoints", "result.json", "result.weights.h5"}
