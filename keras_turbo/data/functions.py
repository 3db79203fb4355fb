"""`map_fn`, `augment_fn` and `load_fn`: how users' functions are called, seeded, and applied to several examples."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.elements import Column, Elements
from keras_turbo.data.stateless_random import random_ops_in, with_stateless_random_ops

SEED_ARGUMENT = "seed"


class PythonFunction:
    """A `map_fn` or `load_fn` that uses NumPy, Pillow, OpenCV and the like, which TensorFlow can't trace.

    It runs as it is, on numpy arrays, in this process or in worker processes (`workers`), wherever it is defined: in a
    module, a script or a notebook. It is said and not guessed, since a function of TensorFlow that has a mistake can't
    be told from one that was never meant for it.

    Example:

    ```python
    def load(path):  # Pillow, NumPy, anything
        return np.asarray(Image.open(path).resize((224, 224)))


    train = FastDataset.from_files("photos/**/*.jpg", PythonFunction(load), labels=label_of, workers=4)
    ```

    Args:
        function: takes `x`, or `x, y` (and `sample_weight`), as arrays of one example; as `load_fn` it takes
            the path, a `str`.

    Raises:
        TypeError: it can't be called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"PythonFunction takes a function. Received: {function!r}.")
        self.function = function

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


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
            _check_pairs(self, parts)
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


class RowFunction:
    """A function of one example as TensorFlow traces it, applied to some examples at a time.

    Examples of one shape go through one call of a graph that loops over them; others are passed one by one. Whatever
    thread calls it, TensorFlow runs it without Python's lock.

    Args:
        function: graph code: takes an element and its seed (int64, shape (2,)), and returns an element.
        elements: what it is given.
        name: what an error calls it.

    Raises:
        ValueError: it gives something other than dense tensors.
    """

    def __init__(self, function: Callable[[Any, tf.Tensor], Any], elements: Elements, name: str) -> None:
        self._function = function
        self._given = elements
        seed = tf.TensorSpec([2], tf.int64)
        with tf.device("CPU:0"):
            self.concrete: Any = tf.function(
                self._flat, input_signature=[seed, *elements.leaves]
            ).get_concrete_function()
        for spec in tf.nest.flatten(self._given_back):
            if not isinstance(spec, tf.TensorSpec):
                raise ValueError(
                    f"{name} must return dense tensors, and returns a {type(spec).__name__.removesuffix('Spec')}. "
                    "Call its to_tensor() (of a sparse tensor tf.sparse.to_dense) there, and pad to one shape; for "
                    "sequences of unequal lengths return the vectors themselves and give `bucket_by_length`."
                )
        #: What it gives.
        self.elements = Elements(self._given_back)
        self._many: Any = None
        if elements.is_fixed and self.elements.is_fixed:
            rows = [tf.TensorSpec([None, *leaf.shape], leaf.dtype) for leaf in elements.leaves]
            with tf.device("CPU:0"):
                many = tf.function(self._each, input_signature=[tf.TensorSpec([None, 2], tf.int64), *rows])
                self._many = many.get_concrete_function()

    @property
    def random_ops(self) -> list[str]:
        """The sorted names of the stateful random operations in it."""
        return random_ops_in(self.concrete)

    def __call__(self, columns: Sequence[Column], seeds: np.ndarray) -> tuple[list[Column], dict[int, Exception]]:
        """Applies it.

        Args:
            columns: for each tensor the values of some examples.
            seeds: int64, shape (examples, 2).

        Returns:
            The columns of what it gives, and by index the errors of those for which it failed, whose rows mean nothing.
        """
        if not len(seeds):
            return self.elements.zeros(0), {}
        if self._many is not None:
            try:
                return [as_array(tensor) for tensor in _called(self._many, seeds, columns)], {}
            except Exception as error:  # which example is to blame shows when each is tried
                if len(seeds) == 1:
                    return self.elements.zeros(1), {0: error}
        rows: list[list[np.ndarray]] = []
        failures: dict[int, Exception] = {}
        for index, seed in enumerate(seeds):
            try:
                rows.append([as_array(leaf) for leaf in _called(self.concrete, seed, [one[index] for one in columns])])
            except Exception as error:  # whatever the user's own function raises is the reason
                failures[index] = error
                rows.append([column[0] for column in self.elements.zeros(1)])
        made: list[Column] = [list(column) for column in zip(*rows, strict=True)]
        if self.elements.is_fixed:
            made = [np.stack([*column]) for column in made]
        return made, failures

    def _flat(self, seed: tf.Tensor, *leaves: tf.Tensor) -> list[tf.Tensor]:
        result = self._function(tf.nest.pack_sequence_as(self._given.spec, leaves), seed)
        tensors = tf.nest.map_structure(_as_tensor, result)
        self._given_back = tf.nest.map_structure(tf.type_spec_from_value, tensors)
        return tf.nest.flatten(tensors)

    def _each(self, seeds: tf.Tensor, *rows: tf.Tensor) -> list[tf.Tensor]:
        # One after the other: there are as many callers as there are cores.
        return tf.map_fn(
            lambda one: self._flat(*one),
            (seeds, *rows),
            fn_output_signature=self.elements.leaves,
            parallel_iterations=1,
        )


def as_array(tensor: tf.Tensor) -> np.ndarray:
    """A tensor's values, where they lie if NumPy knows their type."""
    if tensor.dtype in (tf.string, tf.bfloat16):
        return np.asarray(tensor.numpy())
    values: Any = tensor
    return np.asarray(memoryview(values))


def _called(function: Any, seed: np.ndarray, values: Sequence[Any]) -> Any:
    with tf.device("CPU:0"):
        inputs = [tf.convert_to_tensor(value) for value in (seed, *values)]
        return function(*inputs)


def _as_tensor(value: Any) -> Any:
    is_tensor = isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor))
    return value if is_tensor else tf.convert_to_tensor(value)


def _check_pairs(function: ElementFunction, parts: Sequence[Any]) -> None:
    """Refuses to turn an image and not the mask that belongs to it.

    Raises:
        ValueError: the layer transforms masks, too, and the targets may be some.
    """
    shapes = [part.shape for part in parts[:2] if isinstance(part, tf.Tensor)]
    if len(shapes) < 2 or any(shape.rank not in (2, 3) for shape in shapes) or shapes[0][:2] != shapes[1][:2]:
        return
    layers = [function.function, *getattr(function.function, "layers", [])]
    if any(hasattr(layer, "transform_segmentation_masks") for layer in layers):
        raise ValueError(
            f"`{function.argument}` ({function.name}) would change the images x and leave y as it is, whose shape "
            f"{shapes[1]} is that of masks. Give both as one dict, x={{'images': images, 'segmentation_masks': "
            "masks}, to have them changed alike; or a function of both, such as lambda x, y: (layer(x), y)."
        )


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
