from __future__ import annotations

import pytest
import tensorflow as tf

from keras_turbo import tune
from keras_turbo.execution import batch_size
from tests.execution.models import OwnTrainStep, batches, compiled, plain

pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")


class LittleMemory(OwnTrainStep):
    """Memory for 100 examples, as a GPU has it."""

    def train_step(self, data):
        x, y = data
        with tf.control_dependencies([tf.debugging.assert_less_equal(tf.shape(x)[0], 100, message="too many")]):
            x = tf.identity(x)
        return super().train_step((x, y))


def found_for(model, **options):
    options = {"budget_seconds": 20, "allow": (), **options}
    return tune(model, batches(40, 8), find_batch_size=True, **options)


def test_out_of_memory_is_survived_and_the_border_is_found(monkeypatch):
    # TensorFlow on a CPU has no such error of its own.
    monkeypatch.setattr(batch_size, "_MEMORY_ERRORS", (tf.errors.InvalidArgumentError,))
    model = compiled(LittleMemory())
    report = found_for(model)
    sizes = report.batch_sizes
    tried = {each.batch_size: each.failed is None for each in sizes.sizes}
    assert {size: fits for size, fits in tried.items() if size in (8, 16, 32, 64, 128)} == {
        8: True,
        16: True,
        32: True,
        64: True,
        128: False,
    }
    assert all(fits == (size <= 100) for size, fits in tried.items())
    best = max(size for size, fits in tried.items() if fits)
    assert 96 <= best <= 100
    assert sizes.largest == int(0.9 * best)
    assert "did not fit" in sizes.ended_by
    assert "too many" in next(each.failed for each in sizes.sizes if each.batch_size == 128)
    assert tried[sizes.fastest]
    assert int(model.optimizer.iterations) == 0
    assert "neither the batches of the data nor the learning rate" in str(report)
    model.fit(batches(40), verbose=0)


def test_the_budget_ends_it():
    sizes = found_for(plain(), budget_seconds=0.5).batch_sizes
    assert sizes.ended_by.startswith("the budget of 0.5 s")
    assert sizes.largest == max(each.batch_size for each in sizes.sizes) >= 8
    assert all(each.examples_per_second == pytest.approx(each.batch_size / each.step_ms * 1e3) for each in sizes.sizes)


def test_what_would_not_fit_into_free_memory_is_not_tried(monkeypatch):
    class Peak:
        def peak_mb(self):
            return 300.0

    monkeypatch.setattr(batch_size, "PeakMemory", Peak)
    monkeypatch.setattr(batch_size, "free_memory_bytes", lambda: 10**9)
    sizes = found_for(plain()).batch_sizes
    # 300 MB for 16 examples, so 600 of the 1,000 for 32 and 506 for 27. The first 300, for 8, are no measure.
    tried = {each.batch_size: each.failed for each in sizes.sizes}
    assert tried[32] == "it would take about 600 MB, more than half of the 1,000 MB that are free"
    assert tried == {8: None, 16: None, 32: tried[32], 24: None, 28: tried[28], 26: None, 27: tried[27]}
    assert tried[27].startswith("it would take about 506 MB")
    assert sizes.largest == 23


def test_the_batch_that_the_data_has_must_fit(monkeypatch):
    monkeypatch.setattr(batch_size, "_MEMORY_ERRORS", (tf.errors.InvalidArgumentError,))
    with pytest.raises(RuntimeError, match="The batch of 128 examples that `data` has does not fit"):
        tune(compiled(LittleMemory()), batches(256, 128), find_batch_size=True, budget_seconds=5)


def test_batches_that_larger_ones_can_not_be_made_of():
    ragged = tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.zeros([2])))
    model = compiled(plain())
    with pytest.raises((ValueError, TypeError)):
        tune(model, ragged, find_batch_size=True, budget_seconds=1)


def test_not_under_a_strategy(two_cpu_strategy):
    with two_cpu_strategy.scope():
        model = plain()
    with pytest.raises(ValueError, match="it is under MirroredStrategy"):
        tune(model, batches(40), find_batch_size=True, budget_seconds=1)
