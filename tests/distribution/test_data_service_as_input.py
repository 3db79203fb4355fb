"""A tf.data service as the input of two workers: a process for each of them, for the dispatcher and for what it has."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.distribution import keras_overrides, strategies
from tests.data.epochs import batches_of
from tests.data.service_parts import running_service
from tests.distribution.data_scenarios import received
from tests.distribution.workers import run_workers

# 12 batches of 8 and one of 4, of which the second worker has no row.
NUM_IDS = 100


def shuffled(x: Any, *others: Any, **settings: Any) -> FastDataset:
    return FastDataset(x, *others, batch_size=8, shuffle=True, seed=3, **settings)


def fitted(strategy: tf.distribute.Strategy | None, service: str | None) -> dict[str, Any]:
    """Two epochs with validation; on one device without a strategy."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((NUM_IDS, 6)).astype("float32"), np.arange(NUM_IDS) % 3
    with contextlib.ExitStack() as stack:
        if strategy is not None:
            stack.enter_context(keras_overrides.install(strategy))
            stack.enter_context(strategy.scope())
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], jit_compile=False)
    data, validation = (shuffled(x[:end], y[:end], service=service) for end in (NUM_IDS, 21))
    history = model.fit(data, epochs=2, validation_data=validation, verbose=0)
    return {"history": history.history, "weights": np.concatenate([one.ravel() for one in model.get_weights()])}


def on_this_worker(service: str, killed: int) -> dict[str, Any]:
    strategy = strategies.multi_worker()
    data = received(strategy, shuffled(np.arange(NUM_IDS), service=service), epochs=2)
    fit = fitted(strategy, service)
    if strategy.cluster_resolver.task_id == 0:
        os.kill(killed, signal.SIGKILL)
    without_one = received(strategy, shuffled(np.arange(NUM_IDS), service=service))
    api = tf.data.experimental.service
    dynamic = api.distribute(api.ShardingPolicy.DYNAMIC, service)
    of_tf_data = received(strategy, tf.data.Dataset.range(NUM_IDS).batch(8).apply(dynamic), steps=1)
    return {"data": data, "fit": fit, "without_one": without_one, "of_tf_data": of_tf_data}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with running_service(tmp_path_factory.mktemp("dispatcher")) as service:
        return run_workers(on_this_worker, service.address, service.workers[1].pid)


@pytest.mark.parametrize(("name", "epochs"), [("data", 2), ("without_one", 1)])
def test_together_they_have_each_batch_once(both, name, epochs):
    expected = shuffled(np.arange(NUM_IDS))
    assert all(worker[name]["warnings"] == [] for worker in both)
    for epoch in range(epochs):
        first, second = (worker[name]["epochs"][epoch] for worker in both)
        assert [len(rows) for rows in first] == [4] * 13
        assert [len(rows) for rows in second] == [4] * 12 + [0]
        together = [one + other for one, other in zip(first, second, strict=True)]
        assert together == [batch.tolist() for batch in batches_of(expected)]
        assert sorted(itertools.chain(*together)) == list(range(NUM_IDS))


def test_a_fit_is_that_of_one_device(both):
    expected = fitted(None, None)
    first, second = (worker["fit"] for worker in both)
    np.testing.assert_array_equal(first["weights"], second["weights"])
    assert first["history"] == second["history"]
    np.testing.assert_allclose(first["weights"], expected["weights"], atol=1e-6)
    for name, values in expected["history"].items():
        np.testing.assert_allclose(first["history"][name], values, atol=1e-6)


def test_tf_datas_own_way_is_warned_of(both):
    for worker in both:
        (message,) = worker["of_tf_data"]["warnings"]
        assert "hands them to whoever asks first" in message
        assert "FastDataset(..., service=" in message
