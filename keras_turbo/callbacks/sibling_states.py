"""What the other callbacks of a `fit` have learned on the way: EarlyStopping's patience, the history, best weights."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

# What `keras.callbacks.Callback` itself keeps.
_KERAS_OWN = {"_model", "model", "params", "validation_data"}
# Draws what is on the screen, and nothing that training depends on.
_WITHOUT_STATE = (keras.callbacks.ProgbarLogger,)


class SiblingStates:
    """Saves and restores the attributes that callbacks change while `fit` runs.

    What a callback was given when it was made belongs to whoever makes it, and may be another one in the run that
    resumes (more patience). So only what differs from the beginning of `fit` is its state: numbers, texts, lists and
    dicts of these, and arrays.

    Args:
        callbacks: those of the `fit` that is beginning, after `on_train_begin` of all of them.
    """

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self._callbacks = dict(_named(callbacks))
        self._at_first = {key: _attributes(callback) for key, callback in self._callbacks.items()}

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What differs from the beginning.

        Returns:
            Attributes that JSON can hold, by callback and name; and arrays, by a path "callback/name" or
            "callback/name/index".
        """
        values: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        for key, callback in self._callbacks.items():
            changed = self._changed(key, callback)
            values[key] = {name: copy.deepcopy(value) for name, value in changed.items() if _is_plain(value)}
            for name, value in changed.items():
                if isinstance(value, np.ndarray):
                    arrays[f"{key}/{name}"] = value
                elif not _is_plain(value):
                    arrays.update({f"{key}/{name}/{index}": one for index, one in enumerate(value)})
        return values, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Puts a state back.

        What a callback has changed since the beginning, and had not changed when the state was taken, is as it was at
        the beginning.
        """
        missing = [key for key, value in values.items() if value and key not in self._callbacks]
        if missing:
            warnings.warn(
                f"The run that is resumed had callbacks that this one has not: {', '.join(missing)}. Their state is "
                "dropped.",
                stacklevel=2,
            )
        for key, callback in self._callbacks.items():
            if key not in values:
                continue
            new = {**copy.deepcopy(values[key]), **_arrays_of(key, arrays)}
            for name in self._changed(key, callback):
                if name not in new:
                    vars(callback)[name] = copy.deepcopy(self._at_first[key][name])
            vars(callback).update(new)

    def _changed(self, key: str, callback: keras.callbacks.Callback) -> dict[str, Any]:
        at_first = self._at_first[key]
        return {
            name: value
            for name, value in _attributes(callback).items()
            if name not in at_first or not _equal(value, at_first[name])
        }


def _named(callbacks: Iterable[keras.callbacks.Callback]) -> Iterable[tuple[str, keras.callbacks.Callback]]:
    """Each callback with a key that it has in the next run, too: its class, counted where there are several."""
    counts: dict[str, int] = {}
    for callback in callbacks:
        if isinstance(callback, _WITHOUT_STATE):
            continue
        name = type(callback).__name__
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name}_{counts[name] - 1}"), callback


def _attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """The attributes that can be saved, copied where they can change."""
    left_out = set(_KERAS_OWN)
    if hasattr(callback, "monitor_op"):
        # Keras turns its sign when it first looks at the metric, and would turn it once more.
        left_out.add("min_delta")
    return {
        name: copy.deepcopy(value) if isinstance(value, (list, dict)) and _is_plain(value) else value
        for name, value in vars(callback).items()
        if name not in left_out and (_is_plain(value) or _has_arrays(value))
    }


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold it."""
    if value is None or isinstance(value, (bool, int, float, str, np.bool_, np.integer, np.floating)):
        return True
    if isinstance(value, list):
        return all(_is_plain(one) for one in value)
    # A defaultdict and its like would come back as another type.
    return type(value) is dict and all(isinstance(name, str) and _is_plain(one) for name, one in value.items())


def _has_arrays(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, np.ndarray) and one.dtype != object for one in value)
    return isinstance(value, np.ndarray) and value.dtype != object


def _arrays_of(key: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, array in arrays.items():
        owner, _, rest = path.partition("/")
        name, is_list, index = rest.partition("/")
        if owner != key:
            continue
        if is_list:
            found.setdefault(name, {})[int(index)] = array
        else:
            found[name] = array
    return {
        name: [value[index] for index in sorted(value)] if isinstance(value, dict) else value
        for name, value in found.items()
    }


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return value is other
    if isinstance(value, float) and isinstance(other, float) and math.isnan(value) and math.isnan(other):
        return True
    if isinstance(value, list) and any(isinstance(one, np.ndarray) for one in value):
        return value is other
    return type(value) is type(other) and value == other
