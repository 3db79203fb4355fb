"""What users hand in as `map_fn`, `augment_fn` and `load_fn`: how it is called, and what it does at random."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.data.stateless_random import random_ops_of, with_stateless_random_ops

SEED_ARGUMENT = "seed"


class ElementFunction:
    """A user's function of an element, called as tf.data would call it, or on `x` alone.

    An element is `x`, `(x, y)` or `(x, y, sample_weight)`. A function with one positional argument is given `x` and
    its result takes the place of `x`; one with as many arguments as the element has parts is given all of them and
    returns the new element.

    Args:
        function: any callable that TensorFlow can trace, a Keras layer included.
        argument: the name under which the user gave it, for errors.

    Raises:
        TypeError: it can't be called.
    """

    def __init__(self, function: Callable, argument: str) -> None:
        if not callable(function):
            raise TypeError(f"`{argument}` must be a function or a Keras layer. Received: {function!r}.")
        self.function = function
        self.argument = argument
        self.is_layer = isinstance(function, keras.Layer)
        self.takes_seed = not self.is_layer and _takes_seed(function)
        self._layer_has_training_argument = (
            self.is_layer and "training" in inspect.signature(function.call).parameters
        )

    @property
    def name(self) -> str:
        """What to call the function in a message."""
        return getattr(self.function, "__name__", None) or type(self.function).__name__

    def __call__(self, element: Any, seed: tf.Tensor | None = None) -> Any:
        """Applies the function to an element, as graph code.

        Args:
            element: `x`, or a tuple `(x, y)` or `(x, y, sample_weight)`.
            seed: int64, shape (2,), for a function that has a parameter named `seed`.

        Raises:
            TypeError: the function takes another number of arguments than the element has parts.
        """
        keywords = {SEED_ARGUMENT: seed} if self.takes_seed else {}
        parts = element if isinstance(element, tuple) else (element,)
        if self.is_layer:
            # A layer's other arguments (training, mask) are not parts of an example. Random layers act in training.
            result = self.function(parts[0], **({"training": True} if self._layer_has_training_argument else {}))
            return (result, *parts[1:]) if isinstance(element, tuple) else result
        if _accepts(self.function, len(parts), keywords):
            # tf.data takes a list for something to stack; who returns [x, y] means (x, y), as everywhere in Keras.
            result = self.function(*parts, **keywords)
            return tuple(result) if isinstance(result, list) else result
        if _accepts(self.function, 1, keywords):
            return (self.function(parts[0], **keywords), *parts[1:])
        raise TypeError(
            f"`{self.argument}` ({self.name}) must take either {len(parts)} positional arguments, one for each part of "
            f"an example (x, y, ...), or one, which is given x alone; a parameter named `{SEED_ARGUMENT}` may come on "
            f"top. Its signature is {self.name}{inspect.signature(self.function)}."
        )


class RandomFunction:
    """A user's `augment_fn` as a function of the example and of a seed, whatever form the user wrote it in.

    - A parameter named `seed` is given the stateless seed.
    - A Keras layer (also a Sequential, and one that a function has in its closure) draws from its own seed generators;
      for the call, those are given the stateless seed in place of their state, by `keras.StatelessScope`.
    - TensorFlow's stateful random ops (`tf.random.uniform` and its like, which most of `tf.image.random_*` is made of)
      become the stateless op of the same distribution.

    Ops for which there is no stateless twin are left as they are and named in `leftover_ops`.

    Args:
        function: what the user gave.
    """

    def __init__(self, function: Callable) -> None:
        self._function = ElementFunction(function, "augment_fn")
        self.leftover_ops: list[str] = []

    @property
    def name(self) -> str:
        """What to call the function in a message."""
        return self._function.name

    def __call__(self, element: Any, seed: tf.Tensor) -> Any:
        """Applies the function, as graph code. `seed` is int64 of shape (2,): one example's own in this epoch."""
        # Different numbers for the user's own use of the seed, for each layer, and for the ops.
        states = [
            (state, tf.cast(_fold_in(seed, 2 + index), state.dtype))
            for index, state in enumerate(_seed_states(self._function.function))
        ]
        user_seed = _fold_in(seed, 0)

        def call(*leaves: tf.Tensor) -> Any:
            with keras.StatelessScope(state_mapping=states):
                return self._function(tf.nest.pack_sequence_as(element, leaves), user_seed)

        result, self.leftover_ops = with_stateless_random_ops(call, tf.nest.flatten(element), _fold_in(seed, 1))
        return result


def random_ops_in(function: ElementFunction, element_spec: Any) -> list[str]:
    """The names of the random ops that a function of an element would run: empty for a deterministic one."""
    leaves = tf.nest.flatten(element_spec)
    return random_ops_of(lambda *args: function(tf.nest.pack_sequence_as(element_spec, args)), leaves)


def _fold_in(seed: tf.Tensor, number: int) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(seed, tf.constant(number, tf.int64))


def _seed_states(function: Callable) -> list[Any]:
    """The states of the seed generators of a Keras layer, or of the layers that a function has in its closure."""
    candidates = [function]
    if inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        candidates = tf.nest.flatten([*variables.nonlocals.values(), *variables.globals.values()])
    states = []
    for candidate in candidates:
        if isinstance(candidate, keras.random.SeedGenerator):
            states.append(candidate.state)
        elif isinstance(candidate, keras.Layer):
            states += [variable for variable in candidate.variables if "seed_generator_state" in variable.path]
    return list({id(state): state for state in states}.values())


def _takes_seed(function: Callable) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get(SEED_ARGUMENT)
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _accepts(function: Callable, num_positional: int, keywords: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*[None] * num_positional, **keywords)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature: let the call itself tell
        return True
    return True

