"""The same random numbers on all workers."""

from __future__ import annotations

import random

import keras
import numpy as np
import tensorflow as tf

# TensorFlow gives this as the global seed where none has been set; it has no public way to ask whether one has.
_NO_SEED = 87654321
# Words of a Mersenne Twister's state, in Python and in NumPy.
_WORDS = 624


def share_random_state(strategy: tf.distribute.Strategy) -> None:
    """Gives all workers the chief's random state: Python's, NumPy's, and the seed of TensorFlow and Keras.

    Data that is shuffled in memory must have the same order on all workers, or some of it is trained on twice and some
    never; and layers draw their seeds from Python's. (TensorFlow itself sends the chief's initial weights to all.)
    On the chief, a script that has called `keras.utils.set_random_seed` goes on as it does on one device. Where it has
    not, TensorFlow gets a random seed.

    Args:
        strategy: of several workers; with others, this does nothing. To be called on all workers at the same time.
    """
    if strategy.num_replicas_in_sync == len(strategy.extended.worker_devices):
        return
    with strategy.scope():
        # TensorFlow sends the chief's initial value of a variable to all workers.
        variable = tf.Variable(tf.constant(_packed_state()), trainable=False)
    _take(strategy.experimental_local_results(variable)[0].numpy())


def _packed_state() -> np.ndarray:
    seed, _ = tf.compat.v1.random.get_seed(1)
    if seed == _NO_SEED:
        seed = random.SystemRandom().randrange(2**31)
    _, words, gauss = random.getstate()
    # The global generator, which data that users write is made with.
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    floats = np.array([0.0 if gauss is None else gauss, cached]).view(np.int64)
    numbers = [seed, *words, gauss is not None, *keys.tolist(), position, has_gauss, *floats]
    return np.array(numbers, np.int64)


def _take(state: np.ndarray) -> None:
    gauss, cached = (float(one) for one in state[-2:].copy().view(np.float64))
    seed, *numbers = state[:-2].tolist()
    words, (has_python_gauss, *numbers) = numbers[: _WORDS + 1], numbers[_WORDS + 1 :]
    keys, (position, has_gauss) = numbers[:_WORDS], numbers[_WORDS:]
    # First, as it sets Python's and NumPy's as well.
    keras.utils.set_random_seed(seed)
    random.setstate((3, tuple(words), gauss if has_python_gauss else None))
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, cached))  # noqa: NPY002 (as above)
