from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.execution.stacks import StackReader, why_not_stackable
from keras_turbo.execution.unread_copy import unread_copy

pytestmark = pytest.mark.compatibility


def read(iterator, capacity, asked):
    """All batches of a reader that is asked for the given numbers of batches in turn, and how many came."""
    reader, batches, counts = StackReader(iterator, capacity), [], []
    while True:
        for most in asked:
            stack = reader.take(most)
            if stack is None:
                return batches, counts
            counts.append(stack.end - stack.begin)
            assert 1 <= counts[-1] <= most
            batches += [stack.batches[i].numpy().tolist() for i in range(stack.begin, stack.end)]


SIZES = [[4] * 5, [4] * 5 + [2], [4, 4, 1, 4, 4], [3], [1, 2, 3, 4, 5], []]


@pytest.mark.parametrize("capacity", [1, 2, 3, 50])
@pytest.mark.parametrize("asked", [[1], [2], [3, 1], [50]])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_all_batches_come_in_order(sizes, asked, capacity):
    data = tf.data.Dataset.from_tensor_slices(tf.range(sum(sizes), dtype=tf.int64))
    splits = tf.data.Dataset.from_tensor_slices(tf.ragged.range(tf.constant(sizes, tf.int64)))
    starts = tf.data.Dataset.from_tensor_slices(np.cumsum([0, *sizes])[: len(sizes)].astype("int64"))
    data = tf.data.Dataset.zip(starts, splits).map(lambda start, part: start + part)
    batches, _ = read(iter(data), capacity, asked)
    flat = [number for batch in batches for number in batch]
    assert [len(batch) for batch in batches] == sizes
    assert flat == list(range(sum(sizes)))


def test_a_dataset_makes_its_own_stacks():
    data = FastDataset(np.arange(22), batch_size=4, shuffle=True, seed=3)
    expected = [batch.numpy().tolist() for batch in FastDataset(np.arange(22), batch_size=4, shuffle=True, seed=3)]
    batches, counts = read(iter(data), 3, [3])
    assert batches == expected
    assert counts == [3, 2, 1]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (tf.TensorSpec([None, 3]), None),
        ((tf.TensorSpec([4]), {"a": tf.TensorSpec([None, 2, 2], tf.uint8)}), None),
        (tf.TensorSpec([None, None]), "axis 1 of the batch is of unknown length, (None, None)"),
        ({"a": tf.TensorSpec([])}, "component a has no batch axis"),
        ((tf.TensorSpec([2]), tf.TensorSpec([2], tf.string)), "component 1 has dtype string"),
        (tf.TensorSpec(None), "the batch is of unknown rank"),
        (tf.RaggedTensorSpec([None, None]), "the batch is no dense tensor (RaggedTensor)"),
    ],
)
def test_why_not_stackable(spec, reason):
    found = why_not_stackable(spec)
    assert found is None if reason is None else found.startswith(reason)


def elements(dataset):
    return [element.numpy().tolist() for element in dataset]


def test_an_unread_copy_has_the_first_epoch_and_moves_nothing_on():
    def make():
        tf.random.set_seed(3)
        data = tf.data.Dataset.range(20).shuffle(20, seed=1).map(lambda x: x + 1).shuffle(4)
        return data.map(lambda x: tf.numpy_function(lambda x: 2 * x, [x], tf.int64)).batch(3)

    expected = make()
    epochs = [elements(expected) for _ in range(3)]
    assert epochs[0] != epochs[1]
    data = make()
    copy = unread_copy(data)
    assert copy.element_spec == data.element_spec
    assert elements(copy) == epochs[0]
    elements(copy)
    assert [elements(data) for _ in range(3)] == epochs


def test_an_unread_copy_has_the_same_tables_and_variables():
    variable = tf.Variable(3, dtype=tf.int64)
    keys = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([5, 6], tf.int64))
    table = tf.lookup.StaticHashTable(keys, -1)
    data = tf.data.Dataset.range(3).map(lambda x: table.lookup(x) + variable)
    assert elements(unread_copy(data)) == elements(data) == [8, 9, 2]
