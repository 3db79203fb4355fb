"""distribute() on two worker processes: callbacks, what all agree on, and a worker that is lost."""

from __future__ import annotations

import json
import random
import sys
import time

import numpy as np
import pytest

from keras_turbo.checkpoint.listing import list_checkpoints
from tests.distribution import cluster_scenarios
from tests.distribution.workers import run_workers, started_workers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def seen(folder):
    # Behind a proxy that does not know them; they go round it.
    return run_workers(cluster_scenarios.many_things, str(folder), environment={"http_proxy": "http://127.0.0.1:9"})


def test_each_knows_its_place(seen):
    assert [one["worker"] for one in seen] == [[0, 2, True], [1, 2, False]]
    assert all(one["left"] for one in seen)


def test_the_chief_alone_prints(seen):
    assert seen[0]["said"].startswith("distribute(): MultiWorkerMirroredStrategy (TF_CONFIG), 2 workers, 2 replicas, ")
    assert seen[1]["said"] == ""
    assert "Epoch 2/2" in seen[0]["shown"]
    assert seen[1]["shown"] == ""


def test_the_history_is_equal_on_all(seen):
    assert seen[0]["history"] == seen[1]["history"]
    assert seen[0]["evaluated"] == seen[1]["evaluated"]
    assert len(seen[0]["history"]["val_mae"]) == 2


def test_weights_are_equal_on_all(seen):
    for name in ("weights", "resumed_weights"):
        for one, other in zip(seen[0][name], seen[1][name], strict=True):
            np.testing.assert_array_equal(one, other)


def test_all_rows_are_predicted(seen):
    assert [one["predicted"].shape for one in seen] == [(32, 1), (32, 1)]


def test_the_chief_alone_writes(seen, folder):
    assert (folder / "best.weights.h5").exists()
    assert (folder / "log.csv").read_text().count("\n") == 3
    assert (folder / "ready.csv").read_text().count("\n") == 2
    # One process has written there.
    assert len(list((folder / "tensorboard" / "train").iterdir())) == 1


def test_the_chief_has_the_figures_of_all(seen):
    assert seen[0]["workers_figures"]
    assert not seen[1]["workers_figures"]


def test_what_one_worker_stops_all_stop(seen):
    assert [one["epochs"] for one in seen] == [[0, 1], [0, 1]]


def test_callbacks_decide_alike(seen):
    assert seen[0]["early"] == seen[1]["early"] == [0, 1]
    assert seen[0]["learning_rate"] == seen[1]["learning_rate"]
    # Halved after each epoch but the first.
    assert seen[0]["learning_rate"] == pytest.approx(0.025)


def test_backup_and_restore_brings_all_back(seen):
    assert [one["resumed"] for one in seen] == [[2, 3], [2, 3]]
    assert [one["resumed_steps"] for one in seen] == [16, 16]


def test_a_second_distribute_goes_on_with_the_workers(seen):
    assert all(one["same"] and one["in_scope"] for one in seen)
    for one in seen:
        assert one["options"].startswith("ValueError: TensorFlow connects workers once in a process")


def test_a_list_of_callbacks_is_as_it_was(seen):
    assert [one["ready"] for one in seen] == [2, 2]


def test_models_of_one_device_are_left_alone(seen):
    assert all(one["alone"] for one in seen)


@pytest.mark.parametrize("where", ["training", "validation"])
def test_workers_agree_when_to_save_and_to_leave(tmp_path, where):
    source = f"""
from tests.distribution.cluster_scenarios import save_by_the_clock_and_leave
save_by_the_clock_and_leave({str(tmp_path)!r}, {where!r})
"""
    with started_workers([sys.executable, "-c", source]) as workers:
        for worker in workers:
            # As one that is to be queued again.
            assert worker.process.wait(180) == 143, worker.output()[-4000:]
    chief, other = (json.loads((tmp_path / f"worker{index}.json").read_text()) for index in range(2))
    assert chief == other
    if where == "validation":
        assert chief["steps"] == 154
    timed, left = (list_checkpoints(str(tmp_path / name), checksums=True) for name in ("timed", "left"))
    # At the end of the epoch, and before by the clock.
    assert len(timed) >= 3
    assert [one.name for one in left] == [chief["left"]] == [f"step-{chief['steps']:08d}"]
    for one in [*timed, *left]:
        assert one.ok, one.problems
        assert one.state.num_shards == 2


def test_one_save_a_step_serves_both_reasons_on_all_workers(tmp_path):
    for epochs in (2, 3):
        for told in run_workers(cluster_scenarios.save_where_reasons_meet, str(tmp_path), epochs):
            assert told == {"epochs": list(range(epochs)), "steps": 25 * epochs}
    found = list_checkpoints(str(tmp_path), checksums=True)
    assert [one.name for one in found] == ["step-00000025", "step-00000050", "step-00000075"]
    assert all(one.ok and one.state.monitor["value"] is not None for one in found)


@pytest.mark.parametrize("trial", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_signal_at_any_step_ends_all_to_be_queued_again(tmp_path, trial):
    source = f"""
from tests.distribution.cluster_scenarios import leave_at_any_step
leave_at_any_step({str(tmp_path)!r}, 10)
"""
    with started_workers([sys.executable, "-c", source]) as workers:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("begun*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.Random(trial).uniform(0, 1))
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            assert worker.process.wait(120) == 143, worker.output()[-4000:]
    assert all(one.ok for one in list_checkpoints(str(tmp_path / "run"), checksums=True))


# How long a worker may take until it has said that another is lost, from then on; beside other work it takes longer.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "most_seconds", "part"),
    [
        ("at once", 60, "has died, was stopped or can't be reached"),
        ("SIGKILL", 30, "has died, was stopped or can't be reached"),
        ("SIGTERM", 30, "has died, was stopped or can't be reached"),
        ("SIGSTOP", 60, "has died, was stopped or can't be reached"),
        ("sleep", 60, "has not come to an exchange within timeout_seconds=8: it hangs"),
    ],
)
def test_a_lost_worker_ends_the_others(how, most_seconds, part):
    source = f"""
import json
from tests.distribution.cluster_scenarios import lose_a_worker
print("RESULT", json.dumps(lose_a_worker({how!r})), flush=True)
"""
    with started_workers([sys.executable, "-c", source]) as workers:
        assert workers[0].process.wait(180) == 0, workers[0].output()[-4000:]
        (line,) = [line for line in workers[0].output().splitlines() if line.startswith("RESULT ")]
    result = json.loads(line.removeprefix("RESULT "))
    assert result["error"].startswith("Worker 0 of 2 can't go on: ")
    assert part in result["error"]
    assert result["seconds"] < most_seconds
