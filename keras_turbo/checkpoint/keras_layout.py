"""Which object of a model Keras saves under which path, and where it keeps its global seeds.

Keras tells neither in public. What is private is touched here and nowhere else in this package.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import keras


@dataclass(frozen=True, eq=False)
class Owner:
    """An object that saves variables of its own (a layer, an optimizer).

    Args:
        path: where `.weights.h5` keeps it ("layers/dense"); "" for the model itself.
        object: the object.
    """

    path: str
    object: Any

    @property
    def prefix(self) -> str:
        """What stands before the names of what it owns."""
        return f"{self.path}/" if self.path else ""


def walk_owners(model: keras.Model) -> list[Owner]:
    """Every object that Keras visits when it saves the weights of a model, in its order, with its path.

    Keras itself walks: how it names paths and what it skips differs between versions.

    Args:
        model: any Keras model.

    Raises:
        RuntimeError: this version of Keras walks in another way.
    """
    try:
        from keras.src.saving import saving_lib

        walk, base = saving_lib._save_state, saving_lib.NpzIOStore
    except (ImportError, AttributeError) as error:
        raise RuntimeError(_unknown_version()) from error

    class NoStore(base):
        """Passes Keras' check of types and is false, so that no object is asked for its values."""

        def __init__(self) -> None:
            pass

        def __bool__(self) -> bool:
            return False

    visited = _Visited()
    walk(model, weights_store=NoStore(), assets_store=None, inner_path="", visited_saveables=visited)
    if not visited.owners or visited.owners[0].object is not model:
        raise RuntimeError(_unknown_version())
    return visited.owners


def saved_names(model: keras.Model) -> dict[str, str]:
    """The names that Keras keeps in `.weights.h5` beside the variables: path of a layer or optimizer to its name.

    Args:
        model: any Keras model.

    Raises:
        RuntimeError: this version of Keras walks in another way.
    """
    saving = [owner for owner in walk_owners(model) if hasattr(owner.object, "save_own_variables")]
    named = {owner.path: getattr(owner.object, "name", None) for owner in saving}
    return {path: name for path, name in named.items() if isinstance(name, str) and name}


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
            raise RuntimeError(_unknown_version())
        super().add(element)
        self.owners.append(Owner(path, saveable))


def global_seed_generator(*, create: bool) -> keras.random.SeedGenerator | None:
    """The generator behind `keras.random` functions that are given no seed.

    Args:
        create: whether it is made where there is none.

    Raises:
        RuntimeError: this version of Keras keeps it elsewhere.
    """
    try:
        from keras.src.backend.common import global_state
        from keras.src.random import seed_generator
    except ImportError as error:
        raise RuntimeError(_unknown_version()) from error
    if create:
        return seed_generator.global_seed_generator()
    return global_state.get_global_attribute("global_seed_generator")


def _unknown_version() -> str:
    return f"Keras {keras.__version__} does not save models as 3.12 to 3.15 do, so their state can't be taken."
