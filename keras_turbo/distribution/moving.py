"""A built model, brought under a strategy."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_turbo.distribution.same_on_all_workers import state_without_metrics

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
    with _trusting_own_code(), keras.saving.CustomObjectScope(_own_code_of(model)):
        copy = _made_again(model)
    _copy_values(model, state_without_metrics(model), state_without_metrics(copy), "variables")
    source: Any = model
    if getattr(source, "optimizer", None) is None and not getattr(source, "compiled", False):
        return copy
    try:
        with _trusting_own_code(), keras.saving.CustomObjectScope(_own_code_of(source)):
            settings: Any = keras.saving.deserialize_keras_object(source.get_compile_config(), safe_mode=False)
        copy.compile(**settings)
    except Exception as error:  # whatever a user's loss, metric or optimizer raises
        raise ValueError(
            f"What {model.name!r} was compiled with can't be made again from its config: {error} {_BUILD_IT_THERE}"
        ) from error
    target: Any = copy
    if source.optimizer is not None and source.optimizer.built:
        target.optimizer.build(target.trainable_variables)
        _copy_values(model, source.optimizer.variables, target.optimizer.variables, "optimizer's variables")
    return copy


@contextlib.contextmanager
def _trusting_own_code() -> Iterator[None]:
    """Keras warns of code in a config, which may come from a stranger; here it is this process's own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        yield


def _own_code_of(model: Any) -> dict[str, Any]:
    """Classes of a model's layers, and what it was compiled with, by the names that stand in its config.

    Keras finds those alone that are registered, which code that is never saved need not be.
    """
    # What was given to compile(); there is no public way to it (Keras 3.12 to 3.15). Without it, Keras' error says what
    # to register.
    given = getattr(getattr(model, "_compile_config", None), "config", {})
    own: dict[str, Any] = {}
    compiled = keras.tree.flatten([given.get(name) for name in ("optimizer", "loss", "metrics", "weighted_metrics")])
    for one in [model, *_layers_in(model), *compiled]:
        code = one if callable(one) and hasattr(one, "__name__") else type(one)
        if not code.__module__.startswith(("keras.", "builtins")):
            own[code.__name__] = code
    return own


def _layers_in(model: Any) -> Iterator[Any]:
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from _layers_in(layer)


def _made_again(model: keras.Model) -> keras.Model:
    try:
        config = keras.saving.serialize_keras_object(model)
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
