"""Batches wait on the GPU where there is one. Here a second CPU device stands in for it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset, GpuUtilization
from keras_turbo.data import device_prefetch
from keras_turbo.data.device_prefetch import accelerator, device_iterator
from keras_turbo.execution.stacks import StackReader
from keras_turbo.fit.input_wait import InputWait, why_not_timeable

pytestmark = pytest.mark.compatibility

ROWS = np.arange(40, dtype="float32").reshape(20, 2)
LABELS = np.arange(20) % 3


@pytest.fixture
def on_second_device(monkeypatch):
    """The second CPU device is taken for a GPU; gives its name."""
    name = tf.config.list_logical_devices("CPU")[1].name
    monkeypatch.setattr(device_prefetch, "accelerator", lambda: name)
    return name


def devices_of(iterator) -> set[str]:
    return {leaf.device.rpartition("/")[2] for batch in iterator for leaf in tf.nest.flatten(batch)}


def model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def losses(data, **options):
    return model().fit(data, epochs=2, verbose=0, **options).history["loss"]


class TestWhere:
    def test_without_a_gpu_batches_stay_on_the_host(self):
        assert accelerator() is None
        iterator = iter(FastDataset(ROWS, batch_size=4))
        assert not hasattr(iterator, "host_iterator")
        assert devices_of(iterator) == {"device:CPU:0"}

    def test_on_the_device_of_the_next_operation(self, monkeypatch):
        class Placed:
            device = "/job:localhost/replica:0/task:0/device:GPU:1"

        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: ["a GPU"])
        monkeypatch.setattr(tf, "zeros", lambda shape: Placed)
        assert accelerator() == Placed.device
        # In a scope of tf.device("CPU").
        monkeypatch.setattr(Placed, "device", "/job:localhost/replica:0/task:0/device:CPU:0")
        assert accelerator() is None

    def test_not_under_a_strategy(self, monkeypatch, two_cpu_strategy):
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: ["a GPU"])
        with two_cpu_strategy.scope():
            assert accelerator() is None


class TestPrefetched:
    def test_batches_are_there_and_the_same(self, on_second_device):
        data = FastDataset(ROWS, LABELS, batch_size=4, shuffle=True, seed=1)
        ours = list(data)
        assert devices_of(ours) == {"device:CPU:1"}
        data.resume_at(0, 0)
        for batch, expected in zip(ours, data.prefetch(1), strict=True):
            np.testing.assert_array_equal(batch[0], expected[0])

    @pytest.mark.parametrize("options", [{}, {"cache": "memory", "map_fn": lambda x, y: (x + 1, y)}])
    def test_epochs_are_counted_once(self, on_second_device, options):
        data = FastDataset(ROWS, LABELS, batch_size=4, shuffle=True, seed=1, **options)
        iter(data)  # dropped unread, as Keras does
        for epoch in range(3):
            assert data.epochs_begun == epoch
            assert len(list(data)) == 5

    @pytest.mark.parametrize("options", [{}, {"class_weight": {0: 3.0, 1: 0.5}}], ids=["", "class_weight"])
    def test_fit_reads_them_and_has_the_same_losses(self, on_second_device, monkeypatch, options):
        seen = []

        def watched(dataset, host_iterator):
            seen.append(device_iterator(dataset, host_iterator))
            return seen[-1]

        monkeypatch.setattr("keras_turbo.data.fast_dataset.device_iterator", watched)
        monkeypatch.setattr("keras_turbo.data.class_weights.device_iterator", watched)
        data = {"batch_size": 4, "shuffle": True, "seed": 1}
        ours = losses(FastDataset(ROWS, LABELS, **data), **options)
        assert all(hasattr(iterator, "host_iterator") for iterator in seen)
        assert len(seen) >= 2
        monkeypatch.setattr(device_prefetch, "accelerator", lambda: None)
        assert losses(FastDataset(ROWS, LABELS, **data), **options) == ours

    def test_what_has_no_form_on_a_gpu_stays(self, on_second_device):
        words = FastDataset(np.array(["a", "b"]), batch_size=1)
        assert not hasattr(iter(words), "host_iterator")
        ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]]))
        assert not hasattr(iter(FastDataset(ragged, batch_size=None)), "host_iterator")

    def test_where_it_fails_nothing_breaks(self, monkeypatch, caplog):
        monkeypatch.setattr(device_prefetch, "accelerator", lambda: "/job:nowhere/device:GPU:7")
        with caplog.at_level("DEBUG", logger=device_prefetch.__name__):
            assert len(list(FastDataset(ROWS, batch_size=4))) == 5
        assert "Batches are not prefetched to /job:nowhere/device:GPU:7" in caplog.text
        assert all(record.levelname == "DEBUG" for record in caplog.records if record.name == device_prefetch.__name__)


class TestReadOnTheHost:
    def test_waits_are_measured_on_the_same_epoch(self, on_second_device):
        data = FastDataset(ROWS, LABELS, batch_size=4)
        waits = InputWait()
        timed = waits.timed(iter(data))
        assert devices_of(timed) == {"device:CPU:0"}
        assert waits.read().batches == 5
        assert data.epochs_begun == 1
        assert timed.stacks(2) is not None

    def test_what_was_read_on_the_device_is_not_timed(self, on_second_device):
        iterator = iter(FastDataset(ROWS, batch_size=4))
        iterator.host_iterator = None
        assert why_not_timeable(iterator) == "its batches are on the GPU already"

    def test_stacks_are_made_of_it(self, on_second_device):
        data = FastDataset(tf.data.Dataset.from_tensor_slices(ROWS), batch_size=4)
        assert StackReader(iter(data), 5).take(5).batches.shape == (5, 4, 2)

    @pytest.mark.filterwarnings("ignore:GpuUtilization gives no figures of GPUs")
    def test_callbacks_that_measure(self, on_second_device):
        data = FastDataset(ROWS, LABELS, batch_size=4, shuffle=True, seed=1)
        history = model().fit(data, epochs=2, verbose=0, callbacks=[GpuUtilization(warn_below=0)]).history
        assert history["loss"] == losses(FastDataset(ROWS, LABELS, batch_size=4, shuffle=True, seed=1))
