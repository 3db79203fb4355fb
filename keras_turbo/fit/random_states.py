"""Random numbers that start from a seed for a while, and go on afterwards where they were."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds Python, NumPy, TensorFlow and Keras as `keras.utils.set_random_seed` does, and puts their states back.

    The seed generators of layers that exist (`Dropout`) and `tf.random.Generator`s have states of their own, which
    advance as they always do.

    Args:
        seed: Non-negative integer.

    Yields:
        Nothing.

    Raises:
        RuntimeError: If this version of Keras or TensorFlow keeps its random state elsewhere.
    """
    with kept_random_states() as keras_state:
        keras.utils.set_random_seed(seed)
        # Keras 3.12 goes on with the generator that there is.
        keras_state.set_global_attribute(_KERAS_GENERATOR, None)
        yield


@contextlib.contextmanager
def kept_random_states() -> Iterator[Any]:
    """Puts the global random states of Python, NumPy, TensorFlow and Keras back at its end.

    What draws from them meanwhile draws as it would otherwise.

    Yields:
        Where Keras keeps its own.

    Raises:
        RuntimeError: If this version of Keras or TensorFlow keeps its random state elsewhere.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 (the legacy state is the global one)
    context, keras_state = _eager_context(), _keras_state()
    tensorflow_seed, tensorflow_numbers = context._seed, getattr(context, "_rng", None)
    drawn = None if tensorflow_numbers is None else tensorflow_numbers.getstate()
    keras_values = {name: keras_state.get_global_attribute(name) for name in _KERAS_NAMES}
    generator = keras_values[_KERAS_GENERATOR]
    generated = None if generator is None else generator.state.numpy()
    try:
        yield keras_state
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 (see above)
        numbers = getattr(context, "_rng", None)
        is_other = context._seed != tensorflow_seed or numbers is not tensorflow_numbers
        if is_other or (numbers is not None and numbers.getstate() != drawn):
            # Setting the seed also drops cached kernels, in which the operations' own states are.
            tf.random.set_seed(tensorflow_seed)
        if tensorflow_numbers is not None:
            tensorflow_numbers.setstate(drawn)
            context._rng = tensorflow_numbers
        if generator is not None:
            generator.state.assign(generated)
        for name, value in keras_values.items():
            keras_state.set_global_attribute(name, value)


# The generator behind `keras.random` functions that are given no seed, and the seed that was set.
_KERAS_GENERATOR = "global_seed_generator"
_KERAS_NAMES = (_KERAS_GENERATOR, "global_random_seed")


def _eager_context() -> Any:
    # tf.random can set a seed and tell none. The seeds of single operations are drawn from `_rng`, which is not there
    # before a seed has been set.
    try:
        from tensorflow.python.eager.context import context
    except ImportError:
        found = None
    else:
        found = context()
    if not hasattr(found, "_seed"):
        raise RuntimeError(
            f"TensorFlow {tf.__version__} does not keep its random seed where 2.17 to 2.21 do, so that it can't be put "
            "back. In debug_mode(), give seed=None and call `keras.utils.set_random_seed`."
        )
    return found


def _keras_state() -> Any:
    # keras.utils sets both names and tells neither.
    try:
        from keras.src.backend.common import global_state
    except ImportError as error:
        raise RuntimeError(
            f"Keras {keras.__version__} does not keep its random seed where 3.12 to 3.15 do, so that it can't be put "
            "back. In debug_mode(), give seed=None and call `keras.utils.set_random_seed`."
        ) from error
    return global_state
