"""What users hand in as `map_fn`, `augment_fn` and `load_fn`: how it is called, and what it does at random."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.stateless_random import with_stateless_random_ops

SEED_ARGUMENT = "seed"


class ElementFunction:
    """A user's function of an element, called as tf.data would call it, or on `x` alone.

    An element is `x`, `(x, y)` or `(x, y, sample_weight)`. A function with one positional argument is given `x` and
    its result takes the place of `x`; one with as many arguments as the element has parts is given all of them and
    returns the new element. Arguments with a default are options (`def blur(x, size=3)`) and do not count.

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
            isinstance(function, keras.Layer) and "training" in inspect.signature(function.call).parameters
        )

    @property
    def name(self) -> str:
        """What to call the function in a message."""
        return getattr(self.function, "__name__", None) or type(self.function).__name__

    def __call__(self, element: Any, seed: tf.Tensor | None = None) -> Any:
        """Applies the function to an element, as graph code.

        Args:
            element: `x`, or a tuple `(x, y)` or `(x, y, sample_weight)`.
            seed: int64, shape (2,), for a function that has a parameter named `seed`. None leaves that to its default.

        Raises:
            TypeError: the function takes another number of arguments than the element has parts.
        """
        keywords = {SEED_ARGUMENT: seed} if self.takes_seed and seed is not None else {}
        parts: Sequence[Any] = element if isinstance(element, tuple) else (element,)
        x, *others = parts
        if self.is_layer:
            # A layer's other arguments (training, mask) are not parts of an example. Random layers act in training.
            result = self.function(x, **({"training": True} if self._layer_has_training_argument else {}))
            return (result, *others) if isinstance(element, tuple) else result
        if self.takes_all(len(parts), keywords, expects_seed=seed is not None):
            return _with_tuples(self.function(*parts, **keywords))
        return (_with_tuples(self.function(x, **keywords)), *others)

    def takes_all(self, num_parts: int, keywords: dict[str, Any], *, expects_seed: bool) -> bool:
        """Whether the function is given all parts of an element, and not `x` alone.

        Args:
            num_parts: how many parts elements have.
            keywords: what else it is given.
            expects_seed: whether it may have a parameter named `seed`.

        Raises:
            TypeError: it takes neither that many arguments nor one.
        """
        wants_x_alone = num_parts > 1 and _needs_one_argument(self.function, keywords)
        if not wants_x_alone and _accepts(self.function, num_parts, keywords):
            return True
        if _accepts(self.function, 1, keywords):
            return False
        on_top = f"a parameter named `{SEED_ARGUMENT}` may come on top"
        no_seed = f"a parameter named `{SEED_ARGUMENT}` needs a default, since what is random belongs in `augment_fn`"
        raise TypeError(
            f"`{self.argument}` ({self.name}) must take either {num_parts} positional arguments, one for each part of "
            f"an example (x, y, ...), or one, which is given x alone; {on_top if expects_seed else no_seed}. Its "
            f"signature is {self.name}{inspect.signature(self.function)}."
        )


class RandomFunction:
    """A user's `augment_fn` as a function of the example and of a seed, whatever form the user wrote it in.

    - A parameter named `seed` is given the stateless seed.
    - A Keras layer (also a Sequential, and one that a function calls) draws from its seed generators, and so do
      `keras.random.*`; for the call, those have the stateless seed in place of their state, by `keras.StatelessScope`.
    - TensorFlow's stateful random ops (`tf.random.uniform` and its like, which most of `tf.image.random_*` is made of)
      become the stateless op of the same distribution.

    Ops for which there is no stateless twin are left as they are and named in `leftover_ops`.

    Args:
        function: what the user gave.
    """

    def __init__(self, function: Callable) -> None:
        self._function = ElementFunction(function, "augment_fn")
        self.leftover_ops: list[str] = []
        #: Whether it drew from Python's or NumPy's generator while it was traced: once, and never again.
        self.draws_in_python = False
        self._traced: list[Any] = []

    @property
    def name(self) -> str:
        """What to call the function in a message."""
        return self._function.name

    def __call__(self, element: Any, seed: tf.Tensor) -> Any:
        """Applies the function, as graph code. `seed` is int64 of shape (2,): one example's own in this epoch."""
        # Different numbers for the user's own use of the seed, for the ops, and for Keras.
        user_seed = _fold_in(seed, 0)

        def call(*leaves: tf.Tensor) -> Any:
            before = _python_random_state()
            with _SeededScope(_fold_in(seed, 2)):
                result = self._function(tf.nest.pack_sequence_as(element, leaves), user_seed)
            self.draws_in_python |= before != _python_random_state()
            return result

        result, self.leftover_ops, traced = with_stateless_random_ops(call, tf.nest.flatten(element), _fold_in(seed, 1))
        self._traced.append(traced)
        return result


def _python_random_state() -> tuple[Any, Any, Any]:
    """Where the global generators of Python and NumPy stand."""
    numpys = np.random.get_state(legacy=False)  # noqa: NPY002 (the legacy generator is the one that can be watched)
    return random.getstate(), numpys["state"]["key"].tobytes(), numpys["state"]["pos"]


def _fold_in(seed: tf.Tensor, number: int) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(seed, tf.constant(number, tf.int64))


def _with_tuples(result: Any) -> Any:
    """Lists as tuples: tf.data takes a list for something to stack, but who returns [x, y] means (x, y)."""
    if isinstance(result, list) or type(result) is tuple:
        return tuple(_with_tuples(item) for item in result)
    return result


class _SeededScope(keras.StatelessScope):
    """A scope in which Keras' random layers draw from a seed, each from its own part of it.

    Keras asks its scope for the value of each variable that is read, and tells it what is assigned. So whatever layer
    the user's function comes to, its seed generator finds a state that is made of the seed.
    """

    def __init__(self, seed: tf.Tensor) -> None:
        super().__init__()
        self._seed = seed
        self._number_of_states = 0

    def get_current_value(self, variable: Any) -> Any:
        value = super().get_current_value(variable)
        if value is None and "seed_generator_state" in variable.path:
            value = tf.cast(_fold_in(self._seed, self._number_of_states), variable.dtype)
            self._number_of_states += 1
            self.add_update((variable, value))
        return value


def _is_of_tensorflow(function: Callable) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return (getattr(function, "__module__", None) or "").startswith("tensorflow.")


def _takes_seed(function: Callable) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get(SEED_ARGUMENT)
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    if parameter is None or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        return False
    # tf.image.random_* have a `seed=None` too, but mean a Python number for a stateful op by it.
    return parameter.default is parameter.empty or not _is_of_tensorflow(function)


def _needs_one_argument(function: Callable, keywords: dict[str, Any]) -> bool:
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in keywords]
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any_number = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    return not takes_any_number and sum(p.default is p.empty for p in positional) == 1


def _accepts(function: Callable, num_positional: int, keywords: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*[None] * num_positional, **keywords)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature: let the call itself tell
        return True
    return True
