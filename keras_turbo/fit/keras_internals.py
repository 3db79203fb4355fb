"""What Keras keeps private and `fit/` needs, each with its reason. Keras 3.12 to 3.15 have all of it.

What another version lacks is named in an error before anything has been done.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import keras


def calling_list(callback: keras.callbacks.Callback) -> keras.callbacks.CallbackList | None:
    """The list of callbacks that is calling a hook of this one just now, on this thread; None without one.

    Keras tells a callback its model and its parameters, and neither its siblings nor the list that it is in.
    """
    for frame in _callers():
        found = frame.f_locals.get("self")
        if isinstance(found, keras.callbacks.CallbackList) and any(one is callback for one in found.callbacks):
            return found
    return None


def calling_fit(model: Any) -> FrameType | None:
    """The frame of Keras' own `fit` of a model that is running just now, on this thread; None without one.

    What `fit` was called with, its data among it, is in its arguments alone. Their names are documented.
    """
    for frame in _callers():
        is_of_keras = frame.f_code.co_name == "fit" and frame.f_globals.get("__name__", "").startswith("keras.")
        if is_of_keras and frame.f_locals.get("self") is model and "validation_data" in frame.f_locals:
            return frame
    return None


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def hook_of_loop() -> dict[CodeType, str]:
    """The code of each method of `CallbackList` that goes through its callbacks, with the hook that it calls.

    It calls some of them by way of `_on_train_batch_end` and its like, where hooks may run on another thread.
    """
    hooks = {}
    for name in dir(keras.callbacks.CallbackList):
        if name.startswith(("on_", "_on_")):
            hooks[getattr(keras.callbacks.CallbackList, name).__code__] = name.removeprefix("_")
    return hooks


def begin_at_epoch(model: Any, epoch: int | None) -> int | None:
    """Lets the `fit` that is beginning start at an epoch; returns what was set before.

    `fit` reads this attribute once, after `on_train_begin`; Keras' own BackupAndRestore sets it. It holds for every
    later `fit`, too, if nobody puts it back.
    """
    if not hasattr(model, "_initial_epoch"):
        raise _missing("Model", "_initial_epoch", "resume a fit at a later epoch")
    before, model._initial_epoch = model._initial_epoch, epoch
    return before


def count_batches(epoch_iterator: Any, batches: int) -> None:
    """Tells Keras that an iterator has given so many batches in earlier epochs.

    With `steps_per_epoch`, one iterator over finite data serves several epochs, and Keras makes a new one when it has
    counted as many batches as there are.
    """
    if not isinstance(getattr(epoch_iterator, "_steps_seen", None), int):
        raise _missing("EpochIterator", "_steps_seen", "resume an epoch in the middle of the data")
    epoch_iterator._steps_seen += batches


def dataset_of(epoch_iterator: Any) -> Any:
    """The dataset that Keras has made of what `fit` was given, or None: the shapes of its batches stand there alone."""
    return getattr(epoch_iterator, "_distributed_dataset", None)


def build_metrics(model: Any, batch_spec: Any) -> None:
    """Creates the metrics that were given to `compile`, which Keras does at the first step. Nothing is computed."""
    build = getattr(model, "_symbolic_build", None)
    if build is None:
        raise _missing("Model", "_symbolic_build", "create metrics before the first step")
    with model.distribute_strategy.scope():
        build(data_batch=batch_spec)


@dataclass(frozen=True, eq=False)
class Owner:
    """An object that saves variables of its own: a layer, an optimizer."""

    path: str
    object: Any

    @property
    def prefix(self) -> str:
        """What stands before the names of what it owns."""
        return f"{self.path}/" if self.path else ""


def walk_owners(model: Any) -> list[Owner]:
    """Every object that Keras visits when it saves the weights of a model, in its order, with its path.

    Keras itself walks: how it names paths and what it skips differs between versions.
    """
    try:
        from keras.src.saving import saving_lib

        walk, base = saving_lib._save_state, saving_lib.NpzIOStore
    except (ImportError, AttributeError) as error:
        raise _missing("saving_lib", "_save_state and NpzIOStore", "find the state of a model") from error

    class NoStore(base):
        """Passes Keras' check of types and is false, so that no object is asked for its values."""

        def __init__(self) -> None:
            pass

        def __bool__(self) -> bool:
            return False

    visited = _Visited()
    walk(model, weights_store=NoStore(), assets_store=None, inner_path="", visited_saveables=visited)
    if not visited.owners or visited.owners[0].object is not model:
        raise _missing("saving_lib", "_save_state as it was", "find the state of a model")
    return visited.owners


class _Visited(set):
    """The set in which Keras notes what it has visited: it is told ids only, so names are read where they are known."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[Owner] = []

    def add(self, element: int) -> None:
        # These are parameters of the function that `walk_owners` calls, by the same names.
        caller = sys._getframe(1).f_locals
        saveable, path = caller.get("saveable"), caller.get("inner_path")
        if id(saveable) != element or not isinstance(path, str):
            raise _missing("saving_lib", "_save_state as it was", "find the state of a model")
        super().add(element)
        self.owners.append(Owner(path, saveable))


def global_seed_generator(*, create: bool) -> keras.random.SeedGenerator | None:
    """The generator behind `keras.random` functions that are given no seed; None where there is none yet."""
    try:
        from keras.src.backend.common import global_state
        from keras.src.random import seed_generator
    except ImportError as error:
        raise _missing("keras.src", "backend.common.global_state", "save the global seed") from error
    if create:
        return seed_generator.global_seed_generator()
    return global_state.get_global_attribute("global_seed_generator")


def _missing(owner: str, name: str, purpose: str) -> RuntimeError:
    return RuntimeError(
        f"{owner} of Keras {keras.__version__} has no {name}, which keras_turbo needs to {purpose}. Keras 3.12 to 3.15 "
        "have it: install one of them."
    )


@functools.cache
def on_one_device() -> dict[str, Any]:
    """Attributes of a `tf.function` that say it stays on one device: tf.data then calls it at a tenth of the cost.

    TensorFlow's own datasets mark their functions so (data/experimental/ops/prefetching_ops.py, 2.17 to 2.21); the name
    is about where integers lie on a GPU, and of no account on a CPU. It is an attribute and no interface: where a
    TensorFlow does not know it, functions are instantiated as any other is, which is slower and the same.
    """
    import tensorflow as tf

    mark = {"experimental_ints_on_device": True}
    try:
        function: Any = tf.function(lambda: tf.constant(0), autograph=False, experimental_attributes=mark)
        function.get_concrete_function()
    except ValueError:
        return {}
    return mark
