"""What saving takes of a step, and which saves can't be timed."""

from __future__ import annotations

import keras
import pytest

from keras_turbo.auditing import checkpoint_times as module
from keras_turbo.auditing.checkpoint_times import checkpoint_times
from tests.auditing.cases import model

ModelCheckpoint = keras.callbacks.ModelCheckpoint


@pytest.fixture
def saves_of_a_second(monkeypatch):
    """The clock goes on by a second between two looks."""
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))


@pytest.mark.usefixtures("saves_of_a_second")
def test_a_save_is_spread_over_the_steps_to_the_next(tmp_path):
    callbacks = [
        ModelCheckpoint(tmp_path / "{epoch}" / "whole.keras"),
        ModelCheckpoint(tmp_path / "some.weights.h5", save_weights_only=True, save_freq=10, save_best_only=True),
    ]
    times = checkpoint_times(model(), callbacks, num_batches=4, seconds=60)
    assert times.ms == {"ModelCheckpoint": 1000 / 4 + 1000 / 10}
    assert "takes 1000 ms, each 4 batches." in times.notes[0]
    assert "each 10 batches; it counts as if each were the best." in times.notes[1]
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_timed_is_told(tmp_path):
    class OfTheUser(ModelCheckpoint):
        pass

    callbacks = [
        ModelCheckpoint(tmp_path / "of_an_endless_epoch.keras"),
        ModelCheckpoint("s3://bucket/model.keras", save_freq=5),
        OfTheUser(tmp_path / "other.keras", save_freq=5),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    times = checkpoint_times(model(), callbacks, num_batches=None, seconds=1)
    assert times.ms == {}
    assert len(times.notes) == 2
    assert "how many batches an epoch has is not known" in times.notes[0]
    assert "s3://bucket/model.keras is on another machine" in times.notes[1]


def test_a_model_that_can_not_be_saved_leaves_nothing(tmp_path, monkeypatch):
    def fails(path, **options):
        with open(path, "w") as file:
            file.write("half of it")
        raise OSError("No space left on device")

    unsaved = model()
    monkeypatch.setattr(unsaved, "save", fails)
    times = checkpoint_times(unsaved, [ModelCheckpoint(tmp_path / "whole.keras", save_freq=1)], 4, seconds=1)
    assert times.ms == {}
    assert "No space left on device" in times.notes[0]
    assert list(tmp_path.iterdir()) == []
