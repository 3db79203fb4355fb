"""A mode for finding faults: eager, float32, one step at a time, seeded, and stopping at the first NaN."""

from __future__ import annotations

import contextlib
import operator
import threading
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_turbo.execution.full_precision import full_precision
from keras_turbo.execution.non_finite import non_finite_raises
from keras_turbo.execution.patching import replaced_method
from keras_turbo.fit.random_states import seeded
from keras_turbo.fit.train_function import functions_set_aside


def debug_mode(*, seed: int | None = 0, check_numerics: bool = True) -> DebugMode:
    """Switches everything that is there for speed off, and looks for NaN and Inf, until it is closed.

    A fault is found where it is made when each operation runs as Python says it, in full precision: debug eagerly in
    float32 first, then turn speed on. It holds from the call on, for all models, those made before included; none needs
    to be passed:

    - Every `tf.function` runs eagerly: breakpoints and `print` work in layers and in `train_step`, and XLA
      (`jit_compile`) compiles nothing. Functions inside `tf.data` pipelines are graphs all the same.
    - `fit`, `evaluate` and `predict` take one step per execution, so that callbacks see each batch.
    - The global dtype policy is float32, and layers under a mixed policy compute in float32. Layers whose weights are
      half precision stay as they are.
    - The first NaN or Inf raises `NonFiniteError`, which names the layer, loss or weight by its path, with the step,
      how many values are meant and the range of what went in. It is looked for in the outputs of layers, in losses, in
      gradients as they flow back, and in weights after their update.
    - Python, NumPy, TensorFlow and Keras start from `seed`.
    - keras_turbo's own speed is off, too: multi-step execution, and saving in the background.

    Closing restores all of it, also when an exception passes through: the switches, policies, random states, and the
    functions of each model with what TensorFlow has traced of them. Models keep what they have learnt. A model that is
    made or saved meanwhile has float32 layers.

    Example:

    ```python
    with keras_turbo.debug_mode(seed=0):
        model.fit(train.take(20))

    debugging = keras_turbo.debug_mode()  # in a notebook: from here on,
    model.fit(train.take(20))
    debugging.close()  # to here
    ```

    Calls may be nested. What is global is restored when the last is closed, whatever the order.

    Args:
        seed: Non-negative integer below 2**32, 0 by default. None leaves random states alone.
        check_numerics: Whether the first NaN or Inf raises. True by default; False is for models in which layers
            give infinite values on purpose, such as masks of -inf.

    Returns:
        A `DebugMode`, which is on. It is a context manager, and has `close()`. Keep it: nothing else turns it off.

    Raises:
        ValueError: If an argument is out of its range.
    """
    return DebugMode(seed=seed, check_numerics=check_numerics)


def is_debugging() -> bool:
    """Tells whether a `debug_mode()` is open.

    Whatever trades transparency for speed asks this: functions that `tune()` sets on a model fall back to one eager
    step at a time, and checkpoints are written before the call returns.

    Returns:
        True from `debug_mode()` until its `close()`, in every thread.
    """
    return _switches.users > 0


class DebugMode:
    """A debug mode that is on until it is closed; made by `debug_mode()`, which see.

    Args:
        seed: As of `debug_mode`.
        check_numerics: As of `debug_mode`.
    """

    def __init__(self, *, seed: int | None = 0, check_numerics: bool = True) -> None:
        seed = None if seed is None else _checked_seed(seed)
        check_numerics = _checked_bool(check_numerics)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_switches)
            if check_numerics:
                stack.enter_context(_numerics)
            if seed is not None:
                stack.enter_context(seeded(seed))
            self._stack = stack.pop_all()
        self._lock = threading.Lock()
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether this debug mode is on."""
        return self._is_open

    def close(self) -> None:
        """Restores everything; a second call does nothing."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._stack.close()

    def __enter__(self) -> DebugMode:
        if not self._is_open:
            raise RuntimeError("This debug mode is closed. Call `keras_turbo.debug_mode()` for a new one.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DebugMode, {'on; close() turns it off' if self._is_open else 'closed'}>"


class _Shared:
    """A context that opens with the first of its users and closes with the last, in any order."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._stack = contextlib.ExitStack()
        self.users = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self.users:
                self._stack.enter_context(self._make())
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.users -= 1
            if not self.users:
                self._stack.close()


# TensorFlow says so for each function of a tf.data pipeline, and advises a switch that nothing turns off again.
_TF_DATA_WARNING = r"Even though the `tf.config.experimental_run_functions_eagerly` option is set"

_LOOPS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


@contextlib.contextmanager
def _speed_off() -> Iterator[None]:
    ran_eagerly = tf.config.functions_run_eagerly()
    with contextlib.ExitStack() as stack:
        stack.enter_context(full_precision())
        for name in _LOOPS:
            stack.enter_context(replaced_method(keras.Model, name, _one_eager_step_at_a_time))
        warnings.filterwarnings("ignore", message=_TF_DATA_WARNING, category=UserWarning)
        ignored = warnings.filters[0]
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(ran_eagerly)
            # Whoever has replaced all filters meanwhile has removed this one.
            with contextlib.suppress(ValueError):
                warnings.filters.remove(ignored)


_switches = _Shared(_speed_off)
_numerics = _Shared(non_finite_raises)


def _one_eager_step_at_a_time(original: Callable[..., Any], model: keras.Model, *args: Any, **kwargs: Any) -> Any:
    """Runs a loop of the model with other settings, and functions that are made for them."""
    if model.run_eagerly and model.steps_per_execution == 1:  # as inside fit, which evaluates
        return original(model, *args, **kwargs)
    settings = {name: getattr(model, name) for name in ("run_eagerly", "steps_per_execution")}
    model.run_eagerly, model.steps_per_execution = True, 1
    try:
        with functions_set_aside(model):
            return original(model, *args, **kwargs)
    finally:
        for name, value in settings.items():
            setattr(model, name, value)


def _checked_seed(seed: Any) -> int:
    try:
        # A bool is an int to Python, but True as a seed is a mistake.
        number = None if isinstance(seed, bool | np.bool_) else operator.index(seed)
    except TypeError:
        number = None
    if number is None or not 0 <= number < 2**32:
        raise ValueError(
            "`seed` of debug_mode must be an integer from 0 to 2**32 - 1, or None to leave random states alone. "
            f"Received: seed={seed!r} (of type {type(seed).__name__})."
        )
    return number


def _checked_bool(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(
            f"`check_numerics` of debug_mode must be True or False. Received: check_numerics={value!r} (of type "
            f"{type(value).__name__})."
        )
    return bool(value)
