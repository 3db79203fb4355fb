"""A built model, brought under a strategy."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

_BUILD_IT_THERE = "Build and compile it inside `with keras_turbo.distribute():` in place of moving it."


def require_movable(model: keras.Model) -> None:
    """Refuses what can't be moved, before anything is done.

    Raises:
        ValueError: it is not built.
    """
    if not model.built:
        raise ValueError(
            f"The model {model.name!r} is not built, so that it has no weights that could be kept. {_BUILD_IT_THERE}"
        )


def is_under(model: keras.Model, strategy: tf.distribute.Strategy) -> bool:
    """Whether a model was built under a strategy; its own answer may be the one that is entered just now."""
    created: Any = strategy.extended.variable_created_in_scope
    return all(created(variable.value) for variable in model.variables)


def copy_of(model: keras.Model) -> keras.Model:
    """The same model anew, with its weights, its optimizer's state, its seeds and what it was compiled with.

    To be called in the scope of a strategy, whose variables the copy then has.

    Args:
        model: a built one.

    Raises:
        ValueError: it can't be made from its config; with the reason.
    """
    with _trusting_own_code(), keras.saving.CustomObjectScope(_classes_of(model)):
        copy = _made_again(model)
    _copy_values(model, _variables_of(model), _variables_of(copy), "variables")
    source: Any = model
    if not source.compiled:
        return copy
    try:
        copy.compile(**_compile_settings(source))
    except Exception as error:  # whatever a user's loss, metric or optimizer raises
        raise ValueError(
            f"What {model.name!r} was compiled with can't be made again: {error} {_BUILD_IT_THERE}"
        ) from error
    target: Any = copy
    if source.optimizer is not None and source.optimizer.built:
        target.optimizer.build(target.trainable_variables)
        _copy_values(model, source.optimizer.variables, target.optimizer.variables, "optimizer's variables")
    return copy


def _variables_of(model: Any) -> list[Any]:
    """Weights and seeds, each once. Metrics begin anew with each epoch."""
    of_metrics = {id(variable) for variable in model.metrics_variables}
    return list({id(one): one for one in model.variables if id(one) not in of_metrics}.values())


@contextlib.contextmanager
def _trusting_own_code() -> Iterator[None]:
    """Keras warns of code in a config, which may come from a stranger; here it is this process's own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        yield


def _compile_settings(model: Any) -> dict[str, Any]:
    """What a model was compiled with: its own losses and functions, and new ones of what has variables.

    Raises:
        RuntimeError: this version of Keras keeps them elsewhere.
    """
    # There is no public way to it but a config, in which functions without a name (lambda) lose what they refer to.
    given = getattr(getattr(model, "_compile_config", None), "config", None)
    if not isinstance(given, dict):
        raise RuntimeError(f"Keras {keras.__version__} does not keep it where 3.12 to 3.15 do.")
    return {name: keras.tree.map_structure(_without_variables, value) for name, value in given.items()}


def _without_variables(value: Any) -> Any:
    if isinstance(value, (keras.metrics.Metric, keras.optimizers.Optimizer)):
        return type(value).from_config(value.get_config())
    return value


def _classes_of(model: Any) -> dict[str, Any]:
    """Those of a model and its layers, by name: Keras finds those alone that are registered."""
    own = {type(one).__name__: type(one) for one in [model, *_layers_in(model)]}
    return {name: one for name, one in own.items() if not one.__module__.startswith("keras.")}


def _layers_in(model: Any) -> Iterator[Any]:
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from _layers_in(layer)


def _made_again(model: keras.Model) -> keras.Model:
    try:
        config: Any = keras.saving.serialize_keras_object(model)
        # Compiled by copy_of, with an error of its own.
        config.pop("compile_config", None)
        copy: Any = keras.saving.deserialize_keras_object(config, safe_mode=False)
    except Exception as error:  # whatever a user's layer raises
        raise ValueError(
            f"The model {model.name!r} can't be made again from its config: {error} {_BUILD_IT_THERE}"
        ) from error
    if not copy.built:
        raise ValueError(
            f"The model {model.name!r}, made again from its config, is not built: a model of a class of its own needs "
            f"get_config() and build_from_config(). {_BUILD_IT_THERE}"
        )
    return copy


def _copy_values(model: keras.Model, sources: list[Any], targets: list[Any], what: str) -> None:
    if [tuple(one.shape) for one in sources] != [tuple(one.shape) for one in targets]:
        raise ValueError(
            f"The model {model.name!r}, made again from its config, has other {what}: {len(targets)} where there were "
            f"{len(sources)}, or of other shapes. {_BUILD_IT_THERE}"
        )
    for source, target in zip(sources, targets, strict=True):
        target.assign(keras.ops.convert_to_numpy(source))
