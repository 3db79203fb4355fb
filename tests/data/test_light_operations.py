"""The light operations give what tf.data's own give, in the same order."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data import light_operations
from keras_turbo.data.light_operations import light_filter, light_flat_map, light_map, light_scan, light_unbatch
from tests.data.epochs import batches_of


@pytest.fixture(params=[True, False], ids=["on one device", "attribute unknown"])
def _marked(request, monkeypatch):
    """With the attribute, and as on a TensorFlow that does not know it."""
    if not request.param:
        monkeypatch.setattr(light_operations, "on_one_device", dict)


def pairs() -> tf.data.Dataset:
    """Elements {"a": n, "b": (n, 2 n)}."""
    numbers = np.arange(5)
    return tf.data.Dataset.from_tensor_slices({"a": numbers, "b": (numbers, 2 * numbers)})


@pytest.mark.usefixtures("_marked")
class TestAgainstTfData:
    @pytest.mark.parametrize("num_parallel_calls", [None, 1, 3])
    def test_map(self, num_parallel_calls):
        def swapped(element):
            return element["b"], element["a"][None] + 1

        ours = light_map(pairs(), swapped, num_parallel_calls)
        assert ours.element_spec == (
            (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64)),
            tf.TensorSpec([1], tf.int64),
        )
        assert batches_of(ours) == batches_of(pairs().map(swapped)) == [((n, 2 * n), [n + 1]) for n in range(5)]
        assert int(ours.cardinality()) == 5

    def test_flat_map(self):
        ours = light_flat_map(pairs(), lambda element: tf.data.Dataset.range(element["a"]))
        assert batches_of(ours) == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]

    def test_scan(self):
        def summed(state, element):
            total = state + element["a"]
            # A branch that is only rarely taken, as in the account of what fails.
            tf.cond(total > 5, lambda: tf.numpy_function(lambda: seen.append(1), [], []), tf.no_op)
            return total, {"sum": total, "of": element["b"]}

        seen = []
        ours = light_scan(pairs(), tf.constant(0, tf.int64), summed)
        assert batches_of(ours) == [{"sum": n * (n + 1) // 2, "of": (n, 2 * n)} for n in range(5)]
        assert seen == [1, 1]

    def test_filter(self):
        assert batches_of(light_filter(pairs(), lambda element: element["a"] > 2)) == [
            {"a": 3, "b": (3, 6)},
            {"a": 4, "b": (4, 8)},
        ]

    def test_unbatch(self):
        ours = light_unbatch(pairs().batch(2))
        assert ours.element_spec == pairs().element_spec
        assert batches_of(ours) == batches_of(pairs())

    def test_errors_are_those_of_the_function(self):
        def fail(number):
            with tf.control_dependencies([tf.debugging.assert_less(number, tf.constant(2, tf.int64), "two is much")]):
                return tf.identity(number)

        with pytest.raises(tf.errors.InvalidArgumentError, match="two is much"):
            batches_of(light_map(tf.data.Dataset.range(3), fail))

    def test_captured_tensors_and_what_nobody_else_holds(self):
        one = tf.constant(1, tf.int64)
        many = light_flat_map(pairs(), lambda _: pairs())
        ours = light_map(many, lambda element: element["a"] + one)
        del many
        assert sum(batches_of(ours.skip(1).take(4))) == 2 + 3 + 4 + 5


def test_this_tensorflow_knows_the_attribute():
    """Else iterators cost ten times as much, and nothing else would tell."""
    light_operations.on_one_device.cache_clear()
    assert light_operations.on_one_device() == {"experimental_ints_on_device": True}


def test_options_pass_through():
    options = tf.data.Options()
    options.autotune.enabled = False
    assert light_map(pairs().with_options(options), lambda element: element).options().autotune.enabled is False
