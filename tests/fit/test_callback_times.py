import copy
import gc
import time

import keras
import pytest
from keras_turbo.callbacks.callback_list import callback_list_of
from keras_turbo.callbacks.callback_times import CallbackTimes, TimedCallbacks, unwatch_callbacks, watch_callbacks


class Sleeping(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.01)


class Failing(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise RuntimeError("a callback's fault")


class Owner(keras.callbacks.Callback):
    found = None

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.01)
        self.found = callback_list_of(self)


def watched(*callbacks, on_failure=lambda: None):
    owner = Owner()
    callback_list = keras.callbacks.CallbackList([*callbacks, owner], add_history=True, model=keras.Sequential())
    times = CallbackTimes(owner, on_failure)
    watch_callbacks(callback_list, times)
    return callback_list, times, owner


def one_epoch(callback_list, batches=2):
    callback_list.on_train_begin()
    callback_list.on_epoch_begin(0)
    for batch in range(batches):
        callback_list.on_train_batch_begin(batch)
        callback_list.on_train_batch_end(batch)
    callback_list.on_epoch_end(0)


def test_each_callback_is_timed_and_the_owner_comes_first_and_is_left_out():
    sleeping = Sleeping()
    callback_list, times, owner = watched(sleeping)
    assert [type(callback) for callback in callback_list.callbacks] == [Owner, Sleeping, keras.callbacks.History]
    one_epoch(callback_list)
    others, saving = times.seconds_by_name()
    assert set(others) == {"Sleeping"}
    assert others["Sleeping"] >= 0.05
    assert 0.04 <= times.batch_hook_seconds <= others["Sleeping"] - 0.01
    assert saving == {}
    times.reset()
    assert times.seconds_by_name() == ({}, {})
    # Nothing was changed in the callbacks themselves, and they find the list.
    assert vars(sleeping).keys() == vars(Sleeping()).keys()
    assert owner.found is callback_list


def test_callbacks_that_save_are_told_apart(tmp_path):
    class MyCheckpoint(keras.callbacks.ModelCheckpoint):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.01)

        def on_train_batch_end(self, batch, logs=None):
            pass

    callback_list, times, _ = watched(MyCheckpoint(tmp_path / "a.keras"), Sleeping())
    one_epoch(callback_list)
    others, saving = times.seconds_by_name()
    assert set(others) == {"Sleeping"}
    assert set(saving) == {"MyCheckpoint"}
    assert saving["MyCheckpoint"] >= 0.01


def test_hooks_do_not_count_while_paused():
    callback_list, times, _ = watched(Sleeping())
    times.paused = True
    one_epoch(callback_list)
    assert times.seconds_by_name() == ({}, {})


def test_a_callback_that_raises_is_noticed_at_once_and_looking_into_the_list_is_not():
    failures = []
    callback_list, _, _ = watched(Failing(), on_failure=lambda: failures.append(1))
    # Someone who stops in the middle of the list is none that raised.
    assert any(isinstance(callback, Owner) for callback in callback_list.callbacks)
    next(iter(callback_list.callbacks))
    gc.collect()
    assert failures == []
    with pytest.raises(RuntimeError, match="a callback's fault"):
        callback_list.on_epoch_begin(0)
    assert failures == [1]


def test_it_is_a_list_to_all_others():
    sleeping = Sleeping()
    callback_list, times, owner = watched(sleeping)
    callbacks = callback_list.callbacks
    assert isinstance(callbacks, list)
    assert list(callbacks) == [owner, sleeping, callback_list._history]
    assert [*callbacks, 1][:2] == [owner, sleeping]
    assert callbacks.index(sleeping) == 1
    assert len(copy.copy(callbacks)) == 3
    assert times.seconds_by_name() == ({}, {})


def test_two_may_watch_and_each_leaves_itself_out():
    callback_list, first, _ = watched(Sleeping())
    second_owner = Sleeping()
    callback_list.callbacks.append(second_owner)
    second = CallbackTimes(second_owner, lambda: None)
    watch_callbacks(callback_list, second)
    watch_callbacks(callback_list, second)
    assert isinstance(callback_list.callbacks, TimedCallbacks)
    assert callback_list.callbacks.watchers == (first, second)
    one_epoch(callback_list)
    assert first.seconds_by_name()[0]["Sleeping"] >= 0.1
    assert set(second.seconds_by_name()[0]) == {"Owner", "Sleeping"}
    unwatch_callbacks(callback_list, first)
    assert callback_list.callbacks.watchers == (second,)
    unwatch_callbacks(callback_list, second)
    assert type(callback_list.callbacks) is list
    assert len(callback_list.callbacks) == 4
