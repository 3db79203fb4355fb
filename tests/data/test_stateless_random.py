"""Stateful random ops become functions of a seed, and keep their distributions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo.data.stateless_random import random_ops_in, with_stateless_random_ops

# TensorFlow's own warning about random ops in functions, which is what this module is for.
pytestmark = pytest.mark.filterwarnings("ignore:Seed .* from outer graph")

DRAWS = 20_000


def draws_of(function, seeds=((1, 2),), arguments=()) -> list[np.ndarray]:
    """What a function gives under each seed."""
    kept = []

    @tf.function
    def call(seed: tf.Tensor, *arguments: tf.Tensor):
        result, leftover, traced = with_stateless_random_ops(function, list(arguments), seed)
        assert leftover == []
        kept.append(traced)
        return result

    return [np.asarray(call(tf.constant(seed, tf.int64), *map(tf.constant, arguments))) for seed in seeds]


def leftover_of(function) -> list[str]:
    found = []

    @tf.function
    def call():
        result, leftover, _ = with_stateless_random_ops(function, [], tf.constant([1, 2], tf.int64))
        found.extend(leftover)
        return result

    call.get_concrete_function()
    return found


FUNCTIONS = {
    "uniform": lambda: tf.random.uniform([DRAWS], 2.0, 5.0),
    "uniform float64": lambda: tf.random.uniform([DRAWS], 2.0, 5.0, tf.float64),
    "uniform float16": lambda: tf.random.uniform([DRAWS], 2.0, 5.0, tf.float16),
    "int32": lambda: tf.random.uniform([DRAWS], 2, 7, tf.int32),
    "int64": lambda: tf.random.uniform([DRAWS], 2, 7, tf.int64),
    "normal": lambda: tf.random.normal([DRAWS], 1.0, 2.0),
    "truncated": lambda: tf.random.truncated_normal([DRAWS], 1.0, 2.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_functions_of_the_seed(name):
    first, again, other, third = draws_of(FUNCTIONS[name], [(1, 2), (1, 2), (1, 3), (2, 2)])
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, third)


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [
        ("uniform", 3.5, 3 / 12**0.5),
        ("uniform float64", 3.5, 3 / 12**0.5),
        ("uniform float16", 3.5, 3 / 12**0.5),
        ("int32", 4.0, 2**0.5),
        ("int64", 4.0, 2**0.5),
        ("normal", 1.0, 2.0),
        # A normal cut at two standard deviations has 0.8796 of the deviation.
        ("truncated", 1.0, 2 * 0.8796),
    ],
)
def test_distributions_stay(name, mean, deviation):
    (values,) = draws_of(FUNCTIONS[name])
    values = values.astype("float64")
    # Five standard errors of the mean; the deviation within 3 %.
    assert values.mean() == pytest.approx(mean, abs=5 * deviation / DRAWS**0.5)
    assert values.std() == pytest.approx(deviation, rel=0.03)


def test_bounds_stay():
    (uniform,) = draws_of(FUNCTIONS["uniform"])
    assert 2.0 <= uniform.min() < 2.01
    assert 4.99 < uniform.max() < 5.0
    (whole,) = draws_of(FUNCTIONS["int32"])
    assert whole.dtype == np.int32
    assert set(whole) == {2, 3, 4, 5, 6}
    (truncated,) = draws_of(FUNCTIONS["truncated"])
    assert np.abs(truncated - 1.0).max() <= 4.0


def test_each_op_draws_its_own_numbers():
    (pair,) = draws_of(lambda: tf.stack([tf.random.uniform([50]), tf.random.uniform([50])]))
    assert not np.array_equal(pair[0], pair[1])


def test_seeds_that_share_32_bits_differ():
    first, other = draws_of(FUNCTIONS["uniform"], [(1, 2), (1, 2 + 2**40)])
    assert not np.array_equal(first, other)


def test_arguments_closures_and_variables_are_kept():
    variable = tf.Variable([10.0])
    outside = tf.constant([100.0])
    results = draws_of(lambda x: x + variable + outside + tf.random.uniform([1]), arguments=([1000.0],))
    assert 1110.0 <= results[0][0] < 1111.0


def test_structures_and_shapes_are_kept():
    def function(x):
        return {"a": x + tf.random.normal([2, 3]), "b": (x, tf.constant(3))}

    @tf.function
    def call(x):
        result, _, _ = with_stateless_random_ops(function, [x], tf.constant([1, 2], tf.int64))
        assert result["a"].shape == (2, 3)
        return result

    result = call(tf.ones([2, 3]))
    np.testing.assert_array_equal(result["b"][0].numpy(), np.ones((2, 3)))
    assert int(result["b"][1]) == 3


def test_branches_and_loops_beside_random_ops():
    def function(x):
        chance = tf.random.uniform([])
        grown = tf.while_loop(lambda i, _: i < 3, lambda i, total: (i + 1, total + 1.0), (0, x))[1]
        return tf.cond(chance < 0.5, lambda: grown, lambda: grown + 100.0)

    results = np.array(draws_of(function, [(1, number) for number in range(40)], arguments=(1.0,)))
    assert set(results) == {4.0, 104.0}


def test_assertions_in_the_function_still_hold():
    def function(x):
        tf.debugging.assert_less(x, 5.0, message="too large")
        return x + tf.random.uniform([])

    (result,) = draws_of(function, arguments=(1.0,))
    assert 1.0 <= result < 2.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        draws_of(function, arguments=(6.0,))


def test_a_function_without_random_ops_is_called_as_it_is():
    (result,) = draws_of(lambda x: x * 2, arguments=(21,))
    assert result == 42


def branch_on_chance():
    return tf.cond(tf.random.uniform([]) < 0.5, lambda: tf.random.normal([2]), lambda: tf.zeros([2]))


def loop():
    return tf.while_loop(lambda i: i < 3, lambda i: [i + tf.random.uniform([], 1, 2, tf.int32)], [tf.constant(0)])


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda: tf.random.shuffle(tf.range(9)), ["RandomShuffle"]),
        (lambda: tf.random.categorical(tf.zeros([1, 3]), 4), ["Multinomial"]),
        (lambda: tf.random.gamma([3], 2.0), ["RandomGamma"]),
        (lambda: tf.random.poisson([3], 2.0), ["RandomPoissonV2"]),
        (branch_on_chance, ["RandomStandardNormal"]),
        (loop, ["RandomUniformInt"]),
        (
            lambda: tf.image.sample_distorted_bounding_box([9, 9, 3], tf.zeros([1, 0, 4]))[0],
            ["SampleDistortedBoundingBoxV2"],
        ),
    ],
    ids=["shuffle", "categorical", "gamma", "poisson", "cond", "while", "distorted_bounding_box"],
)
def test_ops_that_keep_their_state_are_named(function, names):
    assert leftover_of(function) == names


def test_a_generator_is_named():
    generator = tf.random.Generator.from_seed(1)
    assert leftover_of(lambda: generator.normal([3])) == ["RngReadAndSkip"]


def test_a_variable_that_is_written_is_named():
    counter = tf.Variable(0)
    assert leftover_of(lambda: counter.assign_add(1)) == ["AssignAddVariableOp"]


def test_random_ops_are_found_in_branches_and_loops():
    def random_ops_of(function) -> list[str]:
        return random_ops_in(tf.function(function).get_concrete_function())

    x = tf.constant(1.0)
    assert random_ops_of(lambda: x + 1) == []
    assert random_ops_of(lambda: tf.random.stateless_normal([2], [1, 2]) + x) == []
    assert random_ops_of(lambda: x + tf.random.normal([])) == ["RandomStandardNormal"]
    assert random_ops_of(branch_on_chance) == ["RandomStandardNormal", "RandomUniform"]
    assert random_ops_of(loop) == ["RandomUniformInt"]
