"""Where a run is in its data: what is saved, and what is said where going there costs something."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.checkpoint.resuming import DataPosition
from keras_turbo.fit.call import FitCall

X = np.arange(24, dtype="float32").reshape(12, 2)


class Session:
    """What a position is told of a `fit`."""

    def __init__(self, x, validation_data=None, steps_per_epoch=None) -> None:
        self.call = FitCall(x=x, validation_data=validation_data, epochs=3, steps_per_epoch=steps_per_epoch)
        self.iterator, self.given = None, 0

    @property
    def batches_left(self) -> int | None:
        number = self.call.batches_of_iterator
        return None if number is None else max(0, number - self.given)


def fast(**options) -> FastDataset:
    return FastDataset(X, batch_size=4, **{"shuffle": True, "seed": 1, **options})


def read(session: Session, position: DataPosition, iterator, batches: int) -> None:
    session.iterator = iterator
    position.meets(iterator)
    for _ in range(batches):
        next(iterator)
        session.given += 1


def test_in_an_epoch_and_between_two():
    data, validation = fast(), fast(seed=2)
    list(data)
    session = Session(data, validation)
    position = DataPosition(session)
    iterator = iter(data)
    read(session, position, iterator, 2)
    list(validation)
    state = position.state(in_epoch=True)
    assert (state["epochs"], state["batches"], state["validation_epochs"]) == ([1], 2, [1])
    assert state["order"] == [data.order_settings]
    read(session, position, iterator, 1)
    for in_epoch in (True, False):
        # Whoever reads next reads the next epoch.
        state = position.state(in_epoch=in_epoch)
        assert (state["epochs"], state["batches"]) == ([2], 0)


def test_one_iterator_for_several_epochs():
    data = fast().repeat()
    session = Session(data, steps_per_epoch=2)
    position = DataPosition(session)
    iterator = iter(data)
    read(session, position, iterator, 4)
    state = position.state(in_epoch=False)
    assert (state["epochs"], state["batches"]) == ([0], 4)
    following = [next(iterator).numpy().tolist() for _ in range(4)]

    again = fast().repeat()
    session = Session(again, steps_per_epoch=2)
    resumed = DataPosition(session)
    resumed.restore(state)
    iterator = iter(again)
    read(session, resumed, iterator, 0)
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
    session = Session(data)
    position = DataPosition(session)
    iterator = iter(data)
    read(session, position, iterator, 2)
    state, following = position.state(in_epoch=True), next(iterator).numpy()
    resumed = DataPosition(Session(again))
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
    state = DataPosition(Session(fast())).state(in_epoch=False)
    with pytest.warns(UserWarning, match=match):
        DataPosition(Session(other())).restore(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataPosition(Session(fast())).restore(state)
