"""Calls into Python keep nothing alive, and a process ends in good order while they run."""

from __future__ import annotations

import traceback
import weakref

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data.engine.node import call_on, process_is_ending
from tests.data.garbage import goes, keep_no_logs
from tests.data.processes import run_python

pytestmark = pytest.mark.compatibility


class Owner:
    def __init__(self) -> None:
        self.called_with: list[int] = []

    def add_one(self, number):
        self.called_with.append(int(number))
        return number + 1


def calling(owner: Owner) -> tf.data.Dataset:
    # The dataset keeps its function, and that would keep the owner.
    held = [owner]
    dataset = tf.data.Dataset.range(3).map(lambda n: call_on(held[0], Owner.add_one, [n], tf.int64))
    held.clear()
    return dataset


def test_the_owner_is_called():
    owner = Owner()
    assert [int(number) for number in calling(owner)] == [1, 2, 3]
    assert owner.called_with == [0, 1, 2]


def test_the_owner_is_not_kept_alive(monkeypatch):
    keep_no_logs(monkeypatch)
    owner = Owner()
    dataset = calling(owner)
    list(dataset)
    reference = weakref.ref(owner)
    del owner
    assert goes(lambda: reference() is None)
    with pytest.raises(tf.errors.OpError, match="FastDataset is gone that is being iterated"):
        list(dataset)


class Failing:
    def fail(self):
        raise ValueError("/data/\udcff.png")


def test_a_message_that_is_no_unicode_is_readable():
    # TensorFlow's own: an empty message, and the end of the process.
    owner = Failing()
    call = tf.function(lambda: call_on(owner, Failing.fail, [], tf.int64))
    with pytest.raises(tf.errors.OpError, match=r"ValueError: /data/\\udcff.png"):
        call()


def test_what_is_called_is_not_rewritten_by_autograph():
    files = []

    class Looking:
        def look(self):
            files.extend(frame.filename for frame in traceback.extract_stack())
            return np.int64(0)

    owner = Looking()
    tf.function(lambda: call_on(owner, Looking.look, [], tf.int64))()
    assert any(file.endswith("node.py") for file in files)


def test_an_array_can_be_the_owner():
    array = np.arange(5)
    dataset = tf.data.Dataset.range(2).map(lambda n: call_on(array, lambda array, n: array[n + 3], [n], tf.int64))
    assert [int(number) for number in dataset] == [3, 4]


def test_this_process_is_not_ending():
    calling(Owner())
    assert not process_is_ending()


# A batch is being made in the background when the main program is through, and another would follow.
ENDING_SCRIPT = """
import threading, time
import numpy as np
import tensorflow as tf
from keras_turbo.data.engine.node import call_on

started = threading.Event()


class Owner:
    calls = 0

    def work(self, number):
        self.calls += 1
        if number == 2:
            started.set()
            time.sleep(1.0)
            print("finished", flush=True)
        if number > 2:
            print("called while ending", flush=True)
        return number


owner = Owner()
dataset = tf.data.Dataset.range(100).map(lambda n: call_on(owner, Owner.work, [n], tf.int64)).prefetch(50)


def hold():
    # As a traceback does that an error in fit() leaves: the iterator goes when the interpreter is finalized.
    iterator = iter(dataset)
    next(iterator)
    yield


held = hold()
next(held)
started.wait()
print("through", flush=True)
"""


@pytest.mark.slow
def test_a_process_ends_while_a_call_runs():
    """Without care it hangs or aborts: the thread that calls Python never comes back."""
    assert run_python(ENDING_SCRIPT).split("\n")[:2] == ["through", "finished"]
