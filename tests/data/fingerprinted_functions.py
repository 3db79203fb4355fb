"""Functions whose fingerprints two processes compare; run as a script, it prints them as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Elements
from keras_turbo.data.fingerprint import function_fingerprint
from keras_turbo.data.functions import RowFunction

SPEC = tf.TensorSpec([4], tf.float32)

VARIABLE = tf.Variable([1.0, 2.0, 3.0, 4.0])
TENSOR = tf.constant([1.0, 2.0, 3.0, 4.0])
ARRAY = np.arange(4, dtype="float32")
LARGE_ARRAY = np.arange(10_000, dtype="float32").reshape(2_500, 4)


def branches(x):
    # Two of a kind, nested, so that the functions inside the graph have neighbouring numbers.
    return tf.cond(
        tf.reduce_sum(x) > 0,
        lambda: tf.cond(x[0] > 1, lambda: x * 2, lambda: x * 3),
        lambda: tf.cond(x[1] > 1, lambda: x * 4, lambda: x * 5),
    )


def python_branches(x):
    if tf.reduce_sum(x) > 0:
        for _ in tf.range(3):
            x = x * 2
    else:
        x = -x
    return x


@tf.function
def inner(x):
    return x + 1


@tf.function
def other_inner(x):
    return x - 1


def several_inner(x):
    return other_inner(inner(other_inner(x)))


def make_layer() -> keras.Layer:
    layer = keras.layers.Dense(3, kernel_initializer="ones")
    layer.build((None, 4))
    return layer


LAYER = make_layer()


def dense(x):
    return LAYER(x[None])[0]


FUNCTIONS: dict[str, Callable] = {
    "constant": lambda x: x * 2.0,
    "variable": lambda x: x * VARIABLE,
    "tensor": lambda x: x * TENSOR,
    "array": lambda x: x * ARRAY,
    "large array": lambda x: tf.reduce_sum(x * LARGE_ARRAY, 0),
    "branches": branches,
    "python branches": python_branches,
    "map_fn": lambda x: tf.map_fn(lambda value: value * 2, x),
    "vectorized_map": lambda x: tf.vectorized_map(lambda value: value * 2, x),
    "lambda in tf.function": tf.function(lambda x: tf.function(lambda y: y + 1)(x)),
    "several inner functions": several_inner,
    "layer": dense,
    "structure": lambda x: {"b": x, "a": (x + 1, x + 2)},
    "random": lambda x: x + tf.random.stateless_uniform([4], [1, 2]),
    "strings": lambda x: tf.strings.as_string(x) + "a",
}


def fingerprint_of(function: Callable, spec: tf.TensorSpec = SPEC, **options) -> str | None:
    traced = RowFunction(lambda value, _: function(value), Elements(spec), "the function")
    return function_fingerprint(traced, **options)


def fingerprints() -> dict[str, str | None]:
    """The fingerprint of each function."""
    return {name: fingerprint_of(function) for name, function in FUNCTIONS.items()}


if __name__ == "__main__":
    # What was traced before gives all that follows other numbers, some with more digits.
    for number in range(int(sys.argv[1])):
        tf.function(lambda x, number=number: tf.cond(x > 0, lambda: x + number, lambda: x))(tf.constant(1.0))
    print(json.dumps(fingerprints()))
