"""Puts a setting into a model, so that a stock `fit` runs by it, and takes it out again.

A model keeps its class: `fit`, `evaluate`, `predict` and `compile` are Keras' own, wrapped on this one model to learn
how many steps are asked for. What `fit` calls to get its train function (`make_train_function`, which Keras documents
for overriding) gives a function of ours. Nothing of it is saved with the model.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.execution.batch_callbacks import callbacks_of_every_batch, each_callback, save_frequencies
from keras_turbo.execution.block_function import BlockFunction
from keras_turbo.execution.predict_program import PredictLoop
from keras_turbo.execution.programs import GraphLoop, Steps, XlaLoop
from keras_turbo.execution.retracing import RetraceWatch, warn_if_eager
from keras_turbo.execution.setting import ExecutionSetting
from keras_turbo.execution.stacks import StackingDataset, why_not_stackable
from keras_turbo.fit.train_function import MAKERS, forget_functions, replace_makers, restore_makers

_ATTRIBUTE = "_keras_turbo_installation"


def apply_setting(model: keras.Model, setting: ExecutionSetting) -> None:
    """Makes `fit`, `evaluate` and `predict` of the model run by a setting, until `compile` is called again.

    Losses, metrics and weights are as with one step at a time: equal where the arithmetic is, and as close as float32
    sums in another order where XLA compiles the step. Random numbers drawn inside an XLA program (dropout) are others,
    from the same seeds.

    Args:
        model: a compiled model without a distribution strategy.
        setting: how to run it; with loop "keras", as `compile` set it up.

    Raises:
        ValueError: a setting of ours for a model that only Keras' own loop can run; see `why_not_settable`.
    """
    remove_setting(model)
    if setting.loop != "keras":
        Installation(model, setting).install()


def remove_setting(model: keras.Model) -> None:
    """Gives the model back what `compile` set; does nothing where no setting was applied."""
    installation = model.__dict__.get(_ATTRIBUTE)
    if installation is not None:
        installation.remove()


def setting_of(model: keras.Model) -> ExecutionSetting:
    """The setting that the model runs by."""
    installation = model.__dict__.get(_ATTRIBUTE)
    return ExecutionSetting() if installation is None else installation.setting


@contextlib.contextmanager
def without_setting(model: keras.Model) -> Iterator[ExecutionSetting]:
    """Takes the setting out for a while, and puts it back with all that is traced and compiled for it.

    Yields:
        The setting that the model had, that of Keras where none was applied.
    """
    installation = model.__dict__.get(_ATTRIBUTE)
    setting = setting_of(model)
    remove_setting(model)
    try:
        yield setting
    finally:
        remove_setting(model)
        if installation is not None:
            installation.install()


def why_not_settable(model: keras.Model) -> str | None:
    """Why only Keras' own loop can run this model; None if others can."""
    if not model.compiled:
        return "it is not compiled; call its compile() first"
    if model.run_eagerly:
        return "it runs eagerly; compile it without run_eagerly=True"
    if tf.config.functions_run_eagerly():
        return "all functions run eagerly; call tf.config.run_functions_eagerly(False) first"
    if tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy():
        return f"it is under {type(model.distribute_strategy).__name__}, where steps run one at a time"
    for name in MAKERS.values():
        replaced = name in vars(model) and _ATTRIBUTE not in vars(model)
        if replaced or getattr(type(model), name) is not getattr(keras.Model, name):
            return f"it has a {name} of its own"
    return None


class Installation:
    """A setting for a model, with all that is traced and compiled for it. It can be put in and taken out many times.

    Args:
        model: see `apply_setting`.
        setting: one of ours, not that of Keras.

    Raises:
        ValueError: the model can only be run by Keras' own loop.
    """

    def __init__(self, model: keras.Model, setting: ExecutionSetting) -> None:
        reason = "that is Keras' own loop" if setting.loop == "keras" else why_not_settable(model)
        if reason is not None:
            raise ValueError(f"The model {model.name!r} can't run {setting.name}: {reason}.")
        self.setting = setting
        self._model = model
        self._before = (model.steps_per_execution, model.jit_compile)
        self._replaced: list[str] = []
        self._warned: set[str] = set()
        self._loops_running = 0
        self._watches: list[RetraceWatch] = []
        self._functions: dict[str, Any] = {}

    def install(self) -> None:
        """Puts it in, in place of another one."""
        model, setting = self._model, self.setting
        remove_setting(model)
        self._before = (model.steps_per_execution, model.jit_compile)
        # Past Keras' __setattr__, which would keep account of it as a part of the model.
        object.__setattr__(model, _ATTRIBUTE, self)
        model.steps_per_execution = setting.steps_per_execution
        if setting.loop == "graph":
            model.jit_compile = setting.jit_compile
        replace_makers(model, {make: functools.partial(self._make, name) for name, make in MAKERS.items()})
        for attribute, function in self._functions.items():
            setattr(model, attribute, function)
        self._replace("compile", self._compile)
        for name in ("fit", "evaluate"):
            self._replace(name, self._counting(name))
        self._replace("predict", self._predict())

    def remove(self) -> None:
        """Takes it out; the model is again as `compile` set it up."""
        model = self._model
        for name in [*self._replaced, _ATTRIBUTE]:
            model.__dict__.pop(name, None)
        self._replaced.clear()
        model.steps_per_execution, model.jit_compile = self._before
        restore_makers(model)

    def _replace(self, name: str, function: Callable) -> None:
        object.__setattr__(self._model, name, function)
        self._replaced.append(name)

    # What takes the place of the model's methods.

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.compile`; what was measured for the model as it was before no longer holds."""
        model = self._model
        remove_setting(model)
        warnings.warn(
            f"compile() has set the model {model.name!r} back to Keras' own loop; until now it ran {self.setting.name}."
            " Call tune() again for the new settings.",
            stacklevel=2,
        )
        model.compile(*args, **kwargs)

    def _make(self, attribute: str, force: bool = False) -> Any:
        """As Keras' `make_train_function` and its like: sets `train_function` and its like."""
        model, maker = self._model, MAKERS[attribute]
        if self._is_eager():
            return getattr(type(model), maker)(model, force=True)
        # None is how Keras, and whoever changes a model, says that a function is out of date.
        if force or attribute not in self._functions or getattr(model, attribute) is None:
            self._functions[attribute] = self._function(attribute)
        if self._functions[attribute] is None:
            return getattr(type(model), maker)(model, force=force)
        setattr(model, attribute, self._functions[attribute])
        return None

    def _is_eager(self) -> bool:
        # Someone debugs: every step is run as it is written.
        return self._model.run_eagerly or tf.config.functions_run_eagerly()

    def _function(self, attribute: str) -> Any:
        model, setting = self._model, self.setting
        step_name = attribute.replace("function", "step")
        each_with_xla = setting.loop == "graph" and setting.jit_compile
        watch = RetraceWatch(step_name.removesuffix("_step"), model.name, jit_compile=each_with_xla)
        self._watches.append(watch)

        def traced(batch: Any) -> None:
            # train_on_batch and its like are given whatever the user calls them with.
            if self._loops_running:
                watch.traced(batch)

        steps = Steps(model, getattr(model, step_name), traced)
        if attribute == "predict_function":
            return PredictLoop(steps, setting.steps_per_execution) if setting.loop == "xla" else None
        loop = GraphLoop(steps, jit_compile=each_with_xla)
        if setting.loop == "xla":
            loop = XlaLoop(steps, setting.steps_per_execution, loop, self._warn_of_unstackable)
        return BlockFunction(model, loop, watch, steps.xla if each_with_xla else steps.graph)

    def _counting(self, name: str) -> Callable:
        attribute, steps_argument = {
            "fit": ("train_function", "steps_per_epoch"),
            "evaluate": ("test_function", "steps"),
        }[name]

        @functools.wraps(getattr(type(self._model), name))
        def method(*args: Any, **kwargs: Any) -> Any:
            # Looked up now, since debug_mode() replaces it for a while.
            original = getattr(type(self._model), name)
            given = _arguments(original, self._model, args, kwargs)
            with contextlib.ExitStack() as contexts:
                self._loops_running += 1
                for watch in self._watches:
                    watch.new_run()
                contexts.callback(self._loop_ended)
                if name == "fit":
                    contexts.enter_context(self._as_callbacks_need(given.get("callbacks")))
                    contexts.enter_context(self._as_keras_counts(given.get("steps_per_epoch"), given.get("x")))
                if self._is_eager():
                    warn_if_eager(self._model)
                    contexts.enter_context(self._steps_per_execution(1))
                else:
                    self._make(attribute)
                    contexts.enter_context(self._functions[attribute].asked_for(given.get(steps_argument)))
                    args, kwargs = self._with_stacks(original, args, kwargs)
                return original(self._model, *args, **kwargs)

        return method

    def _loop_ended(self) -> None:
        self._loops_running -= 1

    def _with_stacks(self, method: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments of `fit` or `evaluate`, with datasets that make stacks where they do not by themselves."""
        if self.setting.loop != "xla":
            return args, kwargs
        try:
            bound = inspect.signature(method).bind(self._model, *args, **kwargs)
        except TypeError:
            return args, kwargs  # The method itself says what is wrong.
        for name in ("x", "validation_data"):
            data: Any = bound.arguments.get(name)
            # A subclass may make stacks itself, or have an iterator of its own.
            plain = isinstance(data, tf.data.Dataset) and type(data).__iter__ is tf.data.Dataset.__iter__
            if plain and why_not_stackable(data.element_spec) is None:
                bound.arguments[name] = StackingDataset(data, self.setting.steps_per_execution)
        return bound.args[1:], bound.kwargs

    def _predict(self) -> Callable:
        @functools.wraps(type(self._model).predict)
        def method(*args: Any, **kwargs: Any) -> Any:
            original = type(self._model).predict
            steps = _arguments(original, self._model, args, kwargs).get("steps")
            most = self._model.steps_per_execution
            if steps is None or steps % most == 0:
                return original(self._model, *args, **kwargs)
            # Keras takes full executions, and would predict more than was asked for. What it makes for one step an
            # execution looks at the first batch of a list alone, so that nothing is kept from here to the next call.
            with self._steps_per_execution(_largest_divisor(steps, most)):
                forget_functions(self._model, ("predict_function",))
                try:
                    return original(self._model, *args, **kwargs)
                finally:
                    forget_functions(self._model, ("predict_function",))

        return method

    def _as_callbacks_need(self, callbacks: Any) -> contextlib.AbstractContextManager[None]:
        steps = self.setting.steps_per_execution
        if steps == 1:
            return contextlib.nullcontext()
        names = callbacks_of_every_batch(callbacks)
        undeclared = [one for one in each_callback(callbacks) if not hasattr(one, "needs_every_batch")]
        for name in set(callbacks_of_every_batch(undeclared)) - self._warned:
            self._warned.add(name)
            warnings.warn(
                f"{name} is called for each batch, so fit runs one step at a time and not {steps}. If it needs only "
                "the last batch of an execution, give it the attribute needs_every_batch = False.",
                stacklevel=3,
            )
        for frequency in save_frequencies(undeclared):
            if frequency % steps and not names and str(frequency) not in self._warned:
                self._warned.add(str(frequency))
                warnings.warn(
                    f"A callback with save_freq={frequency} is asked once for {steps} batches, and saves at the end of "
                    f"the execution that reaches batch {frequency}. A multiple of {steps} saves where it says.",
                    stacklevel=3,
                )
        return self._steps_per_execution(1) if names else contextlib.nullcontext()

    def _as_keras_counts(self, steps: int | None, data: Any) -> contextlib.AbstractContextManager[None]:
        """Whole executions where an epoch is a part of finite data.

        Keras begins the data anew once it has counted as many steps as there are batches, and counts executions in
        full.
        """
        most = self._model.steps_per_execution
        batches = int(data.cardinality()) if isinstance(data, tf.data.Dataset) else None
        if steps is None or steps % most == 0 or batches == steps or (batches is not None and batches < 0):
            return contextlib.nullcontext()
        return self._steps_per_execution(_largest_divisor(steps, most))

    @contextlib.contextmanager
    def _steps_per_execution(self, steps: int) -> Iterator[None]:
        before = self._model.steps_per_execution
        self._model.steps_per_execution = steps
        try:
            yield
        finally:
            self._model.steps_per_execution = before

    def _warn_of_unstackable(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(
                f"The model {self._model.name!r} is set to run {self.setting.name}, which needs batches that stack, "
                f"but {reason}. Its steps run in a graph loop instead, without XLA. Call tune() with this data.",
                stacklevel=2,
            )


def _largest_divisor(number: int, most: int) -> int:
    return max(divisor for divisor in range(1, most + 1) if number % divisor == 0)


def _arguments(method: Callable, model: keras.Model, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        return inspect.signature(method).bind(model, *args, **kwargs).arguments
    except TypeError:
        return {}  # The method itself says what is wrong.
