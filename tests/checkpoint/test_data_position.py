"""Where a run is in its data: what is saved, and what is said where going there costs something."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf
from keras_turbo.callbacks.data_position import DataPosition
from keras_turbo.callbacks.fit_call import FitCall

from keras_turbo import FastDataset

X = np.arange(24, dtype="float32").reshape(12, 2)


def call(x, validation_data=None, steps_per_epoch=None) -> FitCall:
    return FitCall(x=x, validation_data=validation_data, epochs=3, steps_per_epoch=steps_per_epoch, counter=None)


def fast(**options) -> FastDataset:
    return FastDataset(X, batch_size=4, **{"shuffle": True, "seed": 1, **options})


def read(position: DataPosition, iterator, batches: int) -> None:
    position.meets(iterator)
    for _ in range(batches):
        next(iterator)
        position.took(1)


def test_in_an_epoch_and_between_two():
    data, validation = fast(), fast(seed=2)
    list(data)
    position = DataPosition(call(data, validation), 3)
    iterator = iter(data)
    read(position, iterator, 2)
    list(validation)
    state = position.state(in_epoch=True)
    assert (state["epochs"], state["batches"], state["validation_epochs"]) == ([1], 2, [1])
    assert state["order"] == [data.order_settings]
    assert position.batches_left() == 1
    read(position, iterator, 1)
    for in_epoch in (True, False):
        # Whoever reads next reads the next epoch.
        state = position.state(in_epoch=in_epoch)
        assert (state["epochs"], state["batches"]) == ([2], 0)


def test_one_iterator_for_several_epochs():
    data = fast().repeat()
    position = DataPosition(call(data, steps_per_epoch=2), 2)
    iterator = iter(data)
    read(position, iterator, 4)
    state = position.state(in_epoch=False)
    assert (state["epochs"], state["batches"]) == ([0], 4)
    following = [next(iterator).numpy().tolist() for _ in range(4)]

    again = fast().repeat()
    resumed = DataPosition(call(again, steps_per_epoch=2), 2)
    resumed.restore(state)
    iterator = iter(again)
    assert resumed.meets(iterator)
    resumed.skip_in(iterator)
    assert [next(iterator).numpy().tolist() for _ in range(4)] == following
    assert resumed.state(in_epoch=True)["batches"] == 4


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: tf.data.Dataset.from_tensor_slices(X).batch(4), "only if the data come in the same order again"),
        (lambda: fast().map(lambda x: x + 1), "a FastDataset itself, and not what was made of it"),
    ],
    ids=["tf.data", "made of a FastDataset"],
)
def test_what_must_be_read_is_said(make, remedy):
    data, again = make(), make()
    position = DataPosition(call(data), 3)
    iterator = iter(data)
    read(position, iterator, 2)
    state, following = position.state(in_epoch=True), next(iterator).numpy()
    resumed = DataPosition(call(again), 3)
    with pytest.warns(UserWarning, match=f"reads 2 batches of .*{remedy}"):
        resumed.restore(state)
    iterator = iter(again)
    resumed.meets(iterator)
    resumed.skip_in(iterator)
    np.testing.assert_array_equal(next(iterator).numpy(), following)


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (lambda: fast(seed=2), "seed=2, was 1.*Give it a seed"),
        (lambda: fast(drop_remainder=True), "drop_remainder=True, was False"),
        (lambda: tf.data.Dataset.from_tensor_slices(X).batch(4), "0 FastDatasets, where there were 1"),
    ],
    ids=["seed", "options", "kind"],
)
def test_other_data_are_told(other, match):
    state = DataPosition(call(fast()), 3).state(in_epoch=False)
    with pytest.warns(UserWarning, match=match):
        DataPosition(call(other()), 3).restore(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataPosition(call(fast()), 3).restore(state)


def test_without_a_call_nothing_is_known():
    position = DataPosition(None, None)
    position.meets(iter([1]))
    position.took(1)
    assert position.batches_left() is None
    assert position.state(in_epoch=True) == {"epochs": [], "batches": 1, "order": [], "validation_epochs": []}
