"""Resuming that surprises nobody: what is said and refused; what can't be read is never taken for damage."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import warnings
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import AsyncCheckpoint
from keras_turbo.checkpoint import latest, restore, verify
from keras_turbo.files import attempts
from tests.checkpoint.callbacks import BrokenOffError, Logging
from tests.checkpoint.saved import flip_bit

X = np.arange(48, dtype="float32").reshape(16, 3) / 48
Y = X.sum(axis=1, keepdims=True)


def small_model(optimizer="adam") -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def fit(model, *callbacks, epochs=1, **options):
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, epochs=epochs, callbacks=[*callbacks], **options)


def names(directory) -> list[str]:
    return sorted(path.name for path in Path(directory).glob("step-*"))


def breaking_off(batch):
    def end(number, logs):
        if number == batch:
            raise BrokenOffError

    return keras.callbacks.LambdaCallback(on_train_batch_end=end)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Tries are made one after the other."""
    monkeypatch.setattr(attempts, "_WAITS_SECONDS", (0.0, 0.0, 0.0))


# What is said.


@pytest.mark.filterwarnings("ignore:Resuming in the middle of an epoch reads")
def test_one_line_says_where_training_begins(tmp_path, capsys):
    def said(epochs, *others, **options):
        with contextlib.suppress(BrokenOffError):
            fit(model, AsyncCheckpoint(tmp_path, save_freq=3), *others, epochs=epochs, verbose=2, **options)
        return [line for line in capsys.readouterr().out.splitlines() if "AsyncCheckpoint" in line]

    model = small_model()
    assert said(1, breaking_off(3)) == [f"AsyncCheckpoint: starts anew in {tmp_path}"]
    assert said(1) == [f"AsyncCheckpoint: resumed at step 3 (epoch 1, batch 3) from {tmp_path / 'step-00000003'}"]
    assert said(2) == [f"AsyncCheckpoint: resumed at step 4 (epoch 2) from {tmp_path / 'step-00000004'}"]


def test_a_finished_run_says_so_each_time(tmp_path):
    model = small_model()
    fit(model, AsyncCheckpoint(tmp_path), epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        # As Python shows them: each place once.
        warnings.simplefilter("default")
        for _ in range(3):
            fit(model, AsyncCheckpoint(tmp_path), epochs=2)
    told = [one for one in caught if "has ended at step 8: all 2 epochs are done" in str(one.message)]
    assert len(told) == 3


# Who may go on.


def test_the_next_fold_is_refused_with_the_remedies(tmp_path):
    fit(small_model(), AsyncCheckpoint(tmp_path), epochs=2)
    fold = small_model()
    before = fold.get_weights()
    with pytest.raises(ValueError, match=r"Another model of this process.*directory of its own, or resume=True"):
        fit(fold, AsyncCheckpoint(tmp_path), epochs=2)
    np.testing.assert_array_equal(fold.get_weights()[0], before[0])
    assert fit(fold, AsyncCheckpoint(tmp_path / "fold 1"), epochs=2).epoch == [0, 1]
    assert fit(small_model(), AsyncCheckpoint(tmp_path, resume=True), epochs=3).epoch == [0, 1, 2]


def test_a_model_that_is_gone_is_another_one(tmp_path):
    for fold in range(2):
        if fold:
            with pytest.raises(ValueError, match="Another model of this process"):
                fit(small_model(), AsyncCheckpoint(tmp_path))
        else:
            fit(small_model(), AsyncCheckpoint(tmp_path))


def test_by_another_path_it_is_the_same_directory(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fit(small_model(), AsyncCheckpoint(tmp_path / "real"))
    with pytest.raises(ValueError, match="Another model of this process"):
        fit(small_model(), AsyncCheckpoint(tmp_path / "link"))


def test_the_same_model_goes_on_and_compiled_anew_it_is_another_phase(tmp_path):
    model = small_model()
    fit(model, AsyncCheckpoint(tmp_path), epochs=1)
    assert fit(model, AsyncCheckpoint(tmp_path), epochs=2).epoch == [0, 1]
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.raises(ValueError, match="before it was compiled anew"):
        fit(model, AsyncCheckpoint(tmp_path), epochs=3)
    assert fit(model, AsyncCheckpoint(tmp_path / "fine-tuning"), epochs=2).epoch == [0, 1]


@pytest.mark.filterwarnings("ignore:Resuming in the middle of an epoch reads")
def test_a_cell_that_broke_off_is_run_again(tmp_path):
    with pytest.raises(BrokenOffError):
        fit(small_model(), AsyncCheckpoint(tmp_path, save_freq=1), breaking_off(2))
    assert fit(small_model(), AsyncCheckpoint(tmp_path, save_freq=1)).epoch == [0]
    assert names(tmp_path)[-1] == "step-00000004"


def test_a_directory_that_was_emptied_is_new(tmp_path):
    fit(small_model(), AsyncCheckpoint(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run")
    assert fit(small_model(), AsyncCheckpoint(tmp_path / "run")).epoch == [0]


@pytest.mark.parametrize("path", ["best.keras", "model.weights.h5", "a/b.hdf5", "model-{epoch:02d}"])
def test_the_path_of_a_file_is_refused_with_what_to_give(path):
    with pytest.raises(ValueError, match=r"must be a folder.*Received: '.*AsyncCheckpoint\(\"checkpoints\", monitor="):
        AsyncCheckpoint(path)


def test_the_best_model_is_one_line_away(tmp_path):
    fit(small_model(), Logging(score=[0.5, 0.9, 0.7]), AsyncCheckpoint(tmp_path, monitor="score", mode="max"), epochs=3)
    model = small_model()
    state = restore(model, tmp_path, best=True)
    assert (state.epoch, state.metrics["score"]) == (2, 0.9)
    assert int(model.optimizer.iterations.numpy()) == 8
    flip_bit(tmp_path / "step-00000008" / "model.weights.h5")
    with pytest.warns(UserWarning, match="The best checkpoint is damaged.*the next best is used"):
        assert restore(small_model(), tmp_path, best=True).metrics["score"] == 0.7


def test_without_a_monitor_there_is_no_best(tmp_path):
    fit(small_model(), AsyncCheckpoint(tmp_path))
    with pytest.raises(ValueError, match="tells which is the best: AsyncCheckpoint had no `monitor`"):
        restore(small_model(), tmp_path, best=True)
    with pytest.raises(FileNotFoundError, match="no good checkpoint"):
        restore(small_model(), tmp_path / "nowhere", best=True)


# What can't be read.


@pytest.fixture
def directory(tmp_path):
    fit(small_model(), AsyncCheckpoint(tmp_path / "run", max_to_keep=2), epochs=2)
    return tmp_path / "run"


def snapshot_of(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file() and path.name != ".lock"}


def failing(monkeypatch, number, part, times=10**9):
    """Lets each opening of a file with this in its path fail, so many times."""
    opened = os.open
    left = [times]

    def open_or_fail(path, *arguments, **options):
        if part in os.fspath(path) and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), os.fspath(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_or_fail)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("part", ["step-", "model.weights.h5", "training_state.json"])
def test_what_can_not_be_read_is_an_error_and_nothing_is_trained(directory, monkeypatch, number, part):
    before = snapshot_of(directory)
    model = small_model()
    with monkeypatch.context() as patched:
        failing(patched, number, part)
        with pytest.raises(OSError, match=r"step-00000008") as raised:
            fit(model, AsyncCheckpoint(directory, resume=True), epochs=3)
    assert raised.value.errno == number
    assert int(model.optimizer.iterations.numpy()) == 0
    assert snapshot_of(directory) == before
    assert fit(small_model(), AsyncCheckpoint(directory, resume=True), epochs=3).epoch == [0, 1, 2]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EAGAIN])
def test_what_passes_is_tried_again(directory, monkeypatch, number):
    failing(monkeypatch, number, "step-00000008", times=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest(directory) == directory / "step-00000008"


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ESTALE])
def test_a_file_that_is_locked_for_a_moment_is_opened_again(directory, monkeypatch, number):
    file, failures = h5py.File, [number]

    def locked_once(*arguments, **options):
        if failures and str(arguments[0]).endswith(".h5"):
            raise OSError(failures.pop(), "Unable to synchronously open file (unable to lock file)")
        return file(*arguments, **options)

    monkeypatch.setattr(h5py, "File", locked_once)
    restore(small_model(), directory)
    assert failures == []


def test_a_file_that_another_program_has_locked_is_read(directory):
    with open(directory / "step-00000008" / "model.weights.h5", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        restore(small_model(), directory)


def test_a_stat_that_fails_at_the_start_is_asked_again(directory, monkeypatch):
    stat, failures = os.stat, [errno.ESTALE]

    def stale_once(path, *arguments, **options):
        if failures and str(path) == str(directory):
            raise OSError(failures.pop(), "Stale file handle", path)
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stale_once)
    assert fit(small_model(), AsyncCheckpoint(directory, resume=True), epochs=3).epoch == [0, 1, 2]
    assert failures == []


def damaged(folder):
    flip_bit(folder / "model.weights.h5")


def newer(folder):
    marker = json.loads((folder / "COMMITTED").read_text())
    (folder / "COMMITTED").write_text(json.dumps({**marker, "format_version": 2}))


def without_marker(folder):
    (folder / "COMMITTED").unlink()


@pytest.mark.filterwarnings("ignore:Damaged checkpoints were passed over")
@pytest.mark.parametrize("spoil", [damaged, newer, without_marker])
def test_where_none_is_good_training_begins_anew_on_request_alone(directory, spoil):
    for name in names(directory):
        spoil(directory / name)
    before = snapshot_of(directory)
    with pytest.raises(ValueError, match=r"no good checkpoint in .*step-00000008: .*resume=False to begin anew"):
        fit(small_model(), AsyncCheckpoint(directory, resume=True), epochs=2)
    assert snapshot_of(directory) == before
    # As the text says; and nothing is deleted that nobody has judged to be needless.
    fit(small_model(), AsyncCheckpoint(directory, resume=False, max_to_keep=1), epochs=1, batch_size=8)
    after = snapshot_of(directory)
    assert {path: after[path] for path in before} == before
    assert names(directory) == ["step-00000002", "step-00000004", "step-00000008"]


@pytest.mark.filterwarnings("ignore:Damaged checkpoints were passed over")
def test_a_run_never_deletes_what_it_can_not_read_nor_later_ones_than_its_own(directory, monkeypatch):
    fit(small_model(), AsyncCheckpoint(directory, resume=True, max_to_keep=None), epochs=4)
    assert names(directory) == ["step-00000004", "step-00000008", "step-00000012", "step-00000016"]
    damaged(directory / "step-00000016")
    failing(monkeypatch, errno.EIO, "step-00000004")
    checkpoint = AsyncCheckpoint(directory, resume=True, max_to_keep=1, save_freq=2)
    with pytest.raises(BrokenOffError):
        fit(small_model(), checkpoint, breaking_off(2), epochs=5)
    # It went on from 12: 16 is damaged and later, 4 can't be read.
    assert names(directory) == ["step-00000004", "step-00000014", "step-00000016"]


# One checkpoint a step.


def test_one_save_a_step_serves_both_reasons(tmp_path):
    checkpoint = AsyncCheckpoint(tmp_path, save_freq=4, monitor="val_score", mode="max", max_to_keep=2)
    fit(small_model(), Logging(val_score=[0.5, 0.9, 0.7]), checkpoint, epochs=3, validation_data=(X, Y))
    assert names(tmp_path) == ["step-00000008", "step-00000012"]
    best = {health.name: health.state.monitor["value"] for health in verify(tmp_path)}
    assert best == {"step-00000008": 0.9, "step-00000012": 0.7}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_where_the_length_of_an_epoch_is_not_known_the_later_save_takes_the_place(tmp_path):
    def batches():
        yield from ((X[start : start + 4], Y[start : start + 4]) for start in (0, 4, 8, 12))

    signature = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    checkpoint = AsyncCheckpoint(tmp_path, save_freq=2, monitor="val_score", mode="max", max_to_keep=None)
    callbacks = [Logging(val_score=[0.5, 0.7]), checkpoint]
    small_model().fit(data, epochs=2, verbose=0, validation_data=(X, Y), callbacks=callbacks)
    healths = [health for health in verify(tmp_path) if health.state.steps in (4, 8)]
    assert [health.state.steps for health in healths] == [4, 8]
    # What was judged at the end of the epoch stays.
    assert all(health.state.monitor["value"] is not None and health.state.batch == 0 for health in healths)
