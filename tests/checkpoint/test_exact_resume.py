"""A run that breaks off and is started again ends, bit for bit, where the run ends that never broke off."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import keras
import pytest

from keras_turbo import AsyncCheckpoint
from tests.checkpoint.callbacks import BrokenOffError
from tests.checkpoint.training_runs import RUNS, assert_same_outcome, fit, make, outcome


def breaking_off(execution: int) -> keras.callbacks.Callback:
    """Ends fit by an error, at the end of its nth execution; those that go by untrained count, too."""
    executions = itertools.count(1)

    def end(batch, logs):
        if next(executions) == execution:
            raise BrokenOffError

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=end)
    callback.needs_every_batch = False
    return callback


@functools.cache
def never_broken_off(name: str) -> Any:
    run = make(name)
    return outcome(run, fit(run, []))


def check(name: str, directory: Any, executions: list[int], save_freq: Any) -> None:
    for execution in executions:
        run = make(name)
        with pytest.raises(BrokenOffError):
            fit(run, [AsyncCheckpoint(directory, save_freq=save_freq), breaking_off(execution)])
    run = make(name)
    history = fit(run, [AsyncCheckpoint(directory, save_freq=save_freq)])
    assert_same_outcome(outcome(run, history), never_broken_off(name))


pytestmark = [pytest.mark.compatibility, pytest.mark.filterwarnings("ignore:Resuming in the middle of an epoch reads")]


@pytest.mark.parametrize("name", RUNS)
def test_it_ends_where_the_other_ends(name, tmp_path):
    generator = random.Random(name)
    fewest = {"four_steps_per_execution": 3, "tuned": 3, "repeated": 3, "gan_with_dicts": 3}
    executions = next((few for start, few in fewest.items() if name.startswith(start)), 11)
    check(name, tmp_path, [generator.randrange(executions // 2, 2 * executions)], generator.choice([1, 2, 3]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["dropout_and_batch_normalization", "tuned_with_xla", "a_part_of_the_data_an_epoch", "generator"]
)
@pytest.mark.parametrize("save_freq", [5, "epoch"])
def test_at_many_places(name, save_freq, tmp_path):
    executions = 3 if name.startswith("tuned") else 11
    for execution in sorted({1, executions - 1, executions, executions + 1, 2 * executions}):
        check(name, tmp_path / str(execution), [execution], save_freq)
