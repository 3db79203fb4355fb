"""A function is recognised in another process, and told from one that does something else."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.data.fingerprinted_functions import FUNCTIONS, fingerprint_of, fingerprints
from tests.data.processes import run_python

SCRIPT = "import runpy; runpy.run_module('tests.data.fingerprinted_functions', run_name='__main__')"


@pytest.mark.slow
def test_another_process_finds_the_same():
    assert json.loads(run_python(SCRIPT, "7")) == fingerprints()


def test_all_are_recognised_and_different():
    found = fingerprints()
    assert None not in found.values()
    assert len(set(found.values())) == len(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tracing_again_changes_nothing(name):
    first = fingerprint_of(FUNCTIONS[name])
    for number in range(11):
        tf.function(lambda x, number=number: tf.cond(x > 0, lambda: x + number, lambda: x))(tf.constant(1.0))
    assert fingerprint_of(FUNCTIONS[name]) == first


def test_a_new_function_with_the_same_body_is_the_same():
    def make(factor):
        return lambda x: x * factor

    assert fingerprint_of(make(2.0)) == fingerprint_of(make(2.0))
    assert fingerprint_of(make(2.0)) == fingerprint_of(lambda x: x * 2.0)


class TestDifferences:
    def test_constants(self):
        assert fingerprint_of(lambda x: x * 2.0) != fingerprint_of(lambda x: x * 3.0)

    def test_closures(self):
        def make(factor):
            return lambda x: x * factor

        assert fingerprint_of(make(2.0)) != fingerprint_of(make(3.0))
        assert fingerprint_of(make(np.ones(4, "float32"))) != fingerprint_of(make(np.zeros(4, "float32")))

    def test_one_number_of_many(self):
        table = np.zeros((5_000, 4), "float32")
        changed = table.copy()
        changed[2_345, 1] = 1e-6
        for of in (lambda array: array, tf.constant, tf.Variable):
            assert fingerprint_of(lambda x, held=of(table): tf.reduce_sum(x * held, 0)) != fingerprint_of(
                lambda x, held=of(changed): tf.reduce_sum(x * held, 0)
            )

    def test_the_value_of_a_variable(self):
        variable = tf.Variable(2.0)

        def function(x):
            return x * variable

        before = fingerprint_of(function)
        assert fingerprint_of(function) == before
        variable.assign(3.0)
        assert fingerprint_of(function) != before

    def test_default_values(self):
        one, other = np.zeros(4, "float32"), np.ones(4, "float32")
        assert fingerprint_of(lambda x, held=one: x + held) != fingerprint_of(lambda x, held=other: x + held)

    def test_strings(self):
        def make(table):
            return lambda x: tf.gather(table, tf.cast(x, tf.int32))

        one, other = tf.constant(["a", "bc"]), tf.constant(["ab", "c"])
        assert fingerprint_of(make(one)) == fingerprint_of(make(tf.constant(["a", "bc"])))
        assert fingerprint_of(make(one)) != fingerprint_of(make(other))

    def test_the_order_of_results(self):
        assert fingerprint_of(lambda x: (x + 1, x + 2)) != fingerprint_of(lambda x: (x + 2, x + 1))

    def test_what_happens_in_a_branch(self):
        def make(factor):
            return lambda x: tf.cond(x[0] > 0, lambda: x * factor, lambda: x)

        assert fingerprint_of(make(2.0)) == fingerprint_of(make(2.0))
        assert fingerprint_of(make(2.0)) != fingerprint_of(make(3.0))

    def test_which_branch_is_which(self):
        def make(first, second):
            return lambda x: tf.cond(x[0] > 0, lambda: x * first, lambda: x * second)

        assert fingerprint_of(make(2.0, 3.0)) != fingerprint_of(make(3.0, 2.0))

    def test_specs(self):
        assert fingerprint_of(lambda x: x + 1) != fingerprint_of(lambda x: x + 1, tf.TensorSpec([5], tf.float32))
        assert fingerprint_of(lambda x: x + 1) != fingerprint_of(lambda x: x + 1, tf.TensorSpec([4], tf.float64))


class TestNotRecognised:
    @pytest.mark.parametrize("wrap", [tf.numpy_function, tf.py_function], ids=["numpy_function", "py_function"])
    def test_python(self, wrap):
        assert fingerprint_of(lambda x: wrap(lambda value: value, [x], tf.float32)) is None

    def test_python_in_a_branch(self):
        def function(x):
            return tf.cond(x[0] > 0, lambda: tf.numpy_function(lambda value: value, [x], tf.float32), lambda: x)

        assert fingerprint_of(function) is None

    def test_lookup_tables(self):
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant([3, 4], tf.int64))
        table = tf.lookup.StaticHashTable(pairs, -1)
        assert fingerprint_of(lambda x: table.lookup(x), tf.TensorSpec([2], tf.int64)) is None

    def test_generators(self):
        """Their state moves on."""
        generator = tf.random.Generator.from_seed(1)
        before = fingerprint_of(lambda x: x + generator.normal([4]))
        generator.normal([1])
        after = fingerprint_of(lambda x: x + generator.normal([4]))
        assert before is None or before != after

    @pytest.mark.parametrize("name", ["other.bin", "b.txt"])
    def test_what_reads_files(self, name):
        assert (
            fingerprint_of(
                lambda x: x + float(len(name)) * tf.cast(tf.strings.length(tf.io.read_file(name)), tf.float32)
            )
            is None
        )

    def test_a_loader_may_read_the_file_that_it_is_given(self):
        """Case N2: what else it reads, such as a mask, may change without its path."""
        path = tf.TensorSpec([], tf.string)

        def read(path):
            return tf.strings.length(tf.io.read_file(path))

        def read_both(path):
            return read(path) + read(tf.strings.regex_replace(path, "images", "masks"))

        def read_mask(path):
            return read(tf.strings.join([path, ".mask"]))

        assert fingerprint_of(read, path, is_loader=True) is not None
        assert fingerprint_of(tf.function(read), path, is_loader=True) is not None
        for loader in (read_both, read_mask, tf.function(read_both), tf.function(read_mask)):
            assert fingerprint_of(loader, path, is_loader=True) is None
