import gc
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.fit.input_wait import InputWait, Waits, why_not_timeable

pytestmark = pytest.mark.compatibility

ROWS = np.arange(14, dtype=np.float32).reshape(7, 2)


def slow_batches(seconds, count):
    def generate():
        for number in range(count):
            time.sleep(seconds)
            yield np.full((3, 2), number, np.float32)

    options = tf.data.Options()
    # Else tf.data may make a batch while the one before is used, and less is waited for.
    options.experimental_optimization.inject_prefetch = False
    batches = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([None, 2]))
    return batches.with_options(options)


DATASETS = {
    "batches": lambda: tf.data.Dataset.from_tensor_slices(ROWS).batch(3),
    "scalars": lambda: tf.data.Dataset.range(5),
    "structures": lambda: tf.data.Dataset.from_tensor_slices(
        {"a": np.arange(7), "b": (ROWS, ["word"] * 7)},
    ).batch(2),
    "ragged": lambda: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3], [], [4]])).batch(2),
    "sparse": lambda: tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(np.eye(4))).batch(2),
    "shuffled": lambda: tf.data.Dataset.from_tensor_slices(ROWS).shuffle(7, seed=3).batch(2).prefetch(2),
    "fast": lambda: FastDataset(ROWS, batch_size=2, shuffle=True, seed=3),
    "empty": lambda: tf.data.Dataset.range(0),
    "parallel": lambda: tf.data.Dataset.range(50).map(lambda i: i * 2, num_parallel_calls=4).prefetch(8),
}


def as_arrays(batches):
    components = tf.nest.flatten(list(batches), expand_composites=True)
    return [component.numpy().tolist() for component in components]


@pytest.mark.parametrize("name", DATASETS)
def test_the_same_batches_in_the_same_order(name):
    iterator = iter(DATASETS[name]())
    timed = InputWait().timed(iterator)
    # What a train function was traced for, it need not be traced for anew.
    assert timed.element_spec == iterator.element_spec
    assert tf.type_spec_from_value(timed) == tf.type_spec_from_value(iterator)
    expected = DATASETS[name]()
    assert as_arrays(timed) == as_arrays(expected)


def test_optionals_pass():
    none = tf.experimental.Optional.empty(tf.TensorSpec([], tf.int64))
    iterator = iter(tf.data.Dataset.range(3).map(lambda number: (number, none)))
    batches = list(InputWait().timed(iterator))
    assert [int(number) for number, _ in batches] == [0, 1, 2]
    assert not any(bool(optional.has_value()) for _, optional in batches)


def test_what_is_waited_for_is_measured_and_counted():
    input_wait = InputWait()
    begin = time.perf_counter()
    for _ in input_wait.timed(iter(slow_batches(0.02, 5))):
        time.sleep(0.01)
    total = time.perf_counter() - begin
    waits = input_wait.read()
    assert (waits.batches, waits.examples) == (5, 15)
    # The generator slept that long, and the loop's own time is not in it.
    assert 0.1 <= waits.seconds <= total - 0.05


def test_sums_go_on_over_iterators():
    input_wait = InputWait()
    for count in (2, 3):
        list(input_wait.timed(iter(tf.data.Dataset.from_tensor_slices(ROWS).batch(count))))
    assert input_wait.read().batches == 4 + 3
    assert input_wait.read().examples == 14


def test_differences_and_sums_of_waits():
    assert Waits(3.0, 5, 40).plus(Waits(1.0, 2, 10)) == Waits(4.0, 7, 50)
    assert Waits(3.0, 5, 40).plus(Waits(1.0, 2, 10), -2) == Waits(1.0, 1, 20)


def test_nothing_is_read_ahead():
    made = []

    def generate():
        for number in range(4):
            made.append(number)
            yield number

    options = tf.data.Options()
    # By itself tf.data reads one ahead.
    options.experimental_optimization.inject_prefetch = False
    numbers = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32))
    iterator = iter(numbers.with_options(options))
    timed = InputWait().timed(iterator)
    assert made == []
    assert int(next(timed)) == 0
    assert made == [0]
    # Both may be read in turn.
    assert [int(next(iterator)), int(next(timed))] == [1, 2]
    assert made == [0, 1, 2]


def test_a_generators_error_is_told_as_it_is():
    def generate():
        yield 1
        raise KeyError("no such photo")

    numbers = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32))
    kinds = []
    for iterator in (iter(numbers), InputWait().timed(iter(numbers))):
        next(iterator)
        with pytest.raises(tf.errors.OpError, match="no such photo") as raised:
            next(iterator)
        kinds.append(type(raised.value))
    assert kinds[0] is kinds[1]


def test_in_a_graph():
    input_wait = InputWait()
    timed = input_wait.timed(iter(slow_batches(0.01, 6)))

    @tf.function
    def total_of_three(iterator):
        total = 0.0
        for _ in tf.range(3):
            total += tf.reduce_sum(next(iterator))
        return total

    assert float(total_of_three(timed)) == 6 * (0 + 1 + 2)
    assert float(total_of_three(timed)) == 6 * (3 + 4 + 5)
    with pytest.raises(tf.errors.OutOfRangeError):
        total_of_three(timed)
    assert input_wait.read().batches == 6
    assert input_wait.read().seconds >= 0.06


def test_a_fast_datasets_iterator_keeps_its_methods():
    data = FastDataset(np.arange(8.0), batch_size=2)
    timed = InputWait().timed(iter(data))
    assert len(list(timed.stacks(2))) == 2
    assert not hasattr(InputWait().timed(iter(tf.data.Dataset.range(3))), "stacks")


def test_the_dataset_lives_as_long_as_the_timed_iterator():
    timed = InputWait().timed(iter(slow_batches(0.0, 3)))
    gc.collect()
    assert len(list(timed)) == 3


def test_what_can_not_be_timed_is_refused_with_the_reason(two_cpu_strategy):
    distributed = iter(two_cpu_strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))
    assert "strategy" in str(why_not_timeable(distributed))
    with pytest.raises(ValueError, match="iterators of its own"):
        InputWait().timed(distributed)
    assert "generator" in str(why_not_timeable(number for number in range(3)))
    assert why_not_timeable(iter(tf.data.Dataset.range(3))) is None
