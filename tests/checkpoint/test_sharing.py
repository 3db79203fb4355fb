"""Several workers write one checkpoint, each its share; one commit when all shares are there."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_turbo.checkpoint import latest, verify, writing
from keras_turbo.checkpoint.commit import plan_files
from keras_turbo.checkpoint.layout import EXTRA as EXTRA_FILE
from keras_turbo.checkpoint.reading import read_checkpoint
from tests.checkpoint.forked import forking
from tests.checkpoint.saved import EXTRA, Watch, assert_equal_arrays, make_arrays, make_state, save


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(writing, "_LONGEST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(writing, "_GONE_SECONDS", 0.3)


def save_together(directory, number, step=5, *, states=None, limits=None, timeout_seconds=20.0, only=None):
    """What each worker's call gave or raised."""

    def work(index):
        state = (states or {}).get(index)
        limit = (limits or {}).get(index)
        try:
            return save(
                directory, step, state=state, limit=limit, shard=(number, index), timeout_seconds=timeout_seconds
            )
        except Exception as error:
            return error

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(work, range(number) if only is None else only))


@pytest.mark.parametrize("number", [2, 3, 8])
def test_all_write_and_one_commits(tmp_path, number):
    watches = {index: Watch(float("inf")) for index in range(number)}
    folder = tmp_path / "step-00000005"
    assert save_together(tmp_path, number, limits=watches) == [folder] * number
    weights, extra, state = read_checkpoint(folder)
    assert_equal_arrays(weights, make_arrays(5))
    assert_equal_arrays(extra, EXTRA)
    assert state.num_shards == number
    assert verify(tmp_path)[0].ok
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", folder.name]
    assert not [path for path in folder.iterdir() if path.name.startswith("share-")]
    if number <= 3:
        assert all(watch.spent for watch in watches.values())
    # Another number of workers goes on from there, in the same directory.
    save_together(tmp_path, 2, step=6)
    save(tmp_path, 7)
    assert [health.state.num_shards for health in verify(tmp_path)] == [number, 2, 1]


def test_shares_are_about_equal():
    weights = {f"layers/{index}/vars/0": np.zeros(100, np.float32) for index in range(12)}
    plan = plan_files(weights, max_shard_mb=1000, num_shards=3)
    sizes = [0, 0, 0]
    for file in plan.files:
        sizes[file.owner] += sum(weights[path].nbytes for path in file.paths)
    assert sizes == [1600, 1600, 1600]
    assert [path for file in plan.files for path in file.paths] == list(weights)
    assert plan.files[-1].name == EXTRA_FILE
    # One array that is most of all doesn't leave the others to one worker.
    plan = plan_files({"big": np.zeros(10_000), **weights}, max_shard_mb=1000, num_shards=2)
    assert {file.owner for file in plan.files if "big" not in file.paths and file.paths} == {1}


def test_only_the_own_share_is_looked_at(tmp_path):
    weights = make_arrays(5)
    owners = {
        path: file.owner for file in plan_files(weights, max_shard_mb=2000, num_shards=2).files for path in file.paths
    }

    def partial(index):
        hidden = {path: np.broadcast_to(np.float32(0).astype(a.dtype), a.shape) for path, a in weights.items()}
        return {path: weights[path] if owners[path] == index else hidden[path] for path in weights}

    from keras_turbo.checkpoint.writing import write_checkpoint

    def work(index):
        return write_checkpoint(tmp_path, "x", partial(index), EXTRA, make_state(5), shard=(2, index))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert_equal_arrays(read_checkpoint(tmp_path / "x")[0], weights)


def test_workers_at_different_steps_are_refused(tmp_path):
    save(tmp_path, 1)
    results = save_together(tmp_path, 2, states={0: make_state(5), 1: make_state(6)})
    assert isinstance(results[0], ValueError)
    assert "not at the same step: worker 1 is at {'optimizer_step': 6" in str(results[0])
    assert "Worker 0 has given up" in str(results[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "step-00000001"]


def test_a_worker_that_can_not_write_tells_the_others(tmp_path):
    def fail():
        raise OSError(28, "No space left on device", "somewhere")

    results = save_together(tmp_path, 2, limits={1: Watch(action=fail)})
    assert "Worker 1 could not write its share of step-00000005: OSError: [Errno 28] No space left" in str(results[0])
    assert results[1].errno == 28
    assert latest(tmp_path) is None


@pytest.mark.parametrize(
    ("only", "message"), [([0], "for worker 1 to write its share"), ([1], "for worker 0 to begin")]
)
def test_a_worker_that_does_not_come(tmp_path, only, message):
    (result,) = save_together(tmp_path, 2, only=only, timeout_seconds=0.1)
    assert isinstance(result, TimeoutError)
    assert message in str(result)
    assert latest(tmp_path) is None


def leave_stale_share(directory, num_shards):
    """What is left when worker 0 of an earlier run was killed while it waited."""
    stale = directory / ".sharing-step-00000005"
    stale.mkdir(parents=True)
    (stale / "share-token.json").write_text(json.dumps({"token": "old", "num_shards": num_shards}))
    (stale / "model_00001.weights.h5").write_bytes(b"old")
    position = {"optimizer_step": 5, "steps": 6, "epoch": 1, "batch": 2}
    files = {"model_00001.weights.h5": {"bytes": 3, "checksum": "crc32:0"}}
    (stale / "share-1.json").write_text(json.dumps({"token": "old", "position": position, "files": files}))


@pytest.mark.parametrize("num_shards", [2, 3])
def test_shares_of_a_dead_run_do_not_get_in(tmp_path, num_shards):
    leave_stale_share(tmp_path, num_shards)
    # Worker 1 comes first, and can only take the old folder for the new one.
    begun = threading.Event()
    watch = Watch(action=begun.set)

    def first():
        return save(tmp_path, 5, shard=(2, 1), limit=watch, timeout_seconds=20)

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(first)
        begun.wait(0.5)
        folder = save(tmp_path, 5, shard=(2, 0), timeout_seconds=20)
        assert result.result() == folder
    assert_equal_arrays(read_checkpoint(folder)[0], make_arrays(5))
    assert verify(tmp_path)[0].ok


def test_one_that_is_there_is_refused_by_all(tmp_path):
    save(tmp_path, 5)
    assert [type(one) for one in save_together(tmp_path, 2)] == [FileExistsError, FileExistsError]
    assert verify(tmp_path)[0].ok


PROCESSES = """
directory = Path(sys.argv[1])

def work(index, number, steps):
    for step in steps:
        save(directory, step, shard=(number, index), timeout_seconds=60)

children = [fork(work, index, 3, (1, 2, 3)) for index in range(3)]
assert [exit_code(child) for child in children] == [0, 0, 0]

# Worker 2 is killed in its share; the others wait no longer than they are told.
def slowly(index):
    limit = None
    if index == 2:
        limit = Watch(action=lambda: os.kill(os.getpid(), signal.SIGKILL))
    try:
        save(directory, 4, shard=(3, index), limit=limit, timeout_seconds=2)
    except (TimeoutError, OSError) as error:
        os._exit(3)

children = [fork(slowly, index) for index in range(3)]
assert [exit_code(child) for child in children] == [3, 3, -signal.SIGKILL]
assert latest(directory).name == "step-00000003"

# Two go on where three were.
children = [fork(work, index, 2, (4, 5)) for index in range(2)]
assert [exit_code(child) for child in children] == [0, 0]
weights, extra, state = read_checkpoint(latest(directory))
assert_equal_arrays(weights, make_arrays(5))
assert (state.num_shards, [health.ok for health in verify(directory)]) == (2, [True] * 5)
assert sorted(os.listdir(directory)) == [".lock", *(f"step-{step:08d}" for step in range(1, 6))]
print("done")
"""


def test_processes(tmp_path, run_python):
    assert run_python(forking(PROCESSES), tmp_path) == "done\n"
