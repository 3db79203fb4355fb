"""SIGKILL at random moments of real writing processes: nothing that was committed is lost, no part is ever loaded."""

from __future__ import annotations

import pytest

from tests.checkpoint.forked import forking

KILLS = """
directory, number = Path(sys.argv[1]), int(sys.argv[2])
rng = random.Random(0)

def write(pipe, first):
    lock = claim(directory)
    # Slow enough for kills to fall into every part of it.
    slow = Watch(float("inf"))
    slow.spend = lambda nbytes: time.sleep(0.002)
    step = first
    while True:
        save(directory, step, max_shard_mb=0.001, limit=slow)
        os.write(pipe, step.to_bytes(4, "big"))
        if step > 3:
            delete_checkpoint(directory, f"step-{step - 3:08d}")
        step += 1

committed, leftovers = 0, 0
for _ in range(number):
    reading, writing = os.pipe()
    child = fork(write, writing, committed + 1)
    os.close(writing)
    # It has begun when it has committed one; then it is hit anywhere.
    told = os.read(reading, 4)
    time.sleep(rng.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
    while more := os.read(reading, 4096):
        told = (told + more)[-4:]
    os.close(reading)
    newest = latest(directory)
    weights, extra, state = read_checkpoint(newest)
    assert state.optimizer_step in (int.from_bytes(told, "big"), int.from_bytes(told, "big") + 1)
    assert_equal_arrays(weights, make_arrays(state.optimizer_step))
    assert_equal_arrays(extra, EXTRA)
    assert all(health.ok for health in verify(directory))
    committed = state.optimizer_step
    hidden = [name for name in os.listdir(directory) if name.startswith(".") and name != ".lock"]
    leftovers += bool(hidden)
    with claim(directory):
        pass
    assert [name for name in os.listdir(directory) if name.startswith(".")] == [".lock"]
print(leftovers)
"""


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path, run_python):
    leftovers = int(run_python(forking(KILLS), tmp_path, 50))
    # Else the kills fell between the saves, and this tested nothing.
    assert leftovers >= 10
