"""The state of the other callbacks of a fit: EarlyStopping's patience, the history, what users' own have learned.

Of Keras' own callbacks it is what a table names. A callback of somebody else declares it:

```python
class WeightAverage(keras.callbacks.Callback):
    def get_state(self):
        return {"sum": self.sum, "count": self.count}

    def set_state(self, state):
        self.sum, self.count = state["sum"], state["count"]
```

Nothing else is ever set, whatever stands in a file. A callback that changes attributes and declares none is warned of.
"""

from __future__ import annotations

import collections
import copy
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_turbo.fit.steps import value_of

# Under this name stands what a callback has declared, beside what Keras' class above it has learned.
_DECLARED = "declared"
# What `keras.callbacks.Callback` itself keeps.
_OF_EVERY_CALLBACK = {"_model", "model", "params", "validation_data"}
# Of arrays that are larger, so many elements are compared: training changes all of them.
_COMPARED_ELEMENTS = 1 << 16
_COMPARED_ITEMS = 10_000
_COMPARED_DEPTH = 8


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return value is None or _count(value) or isinstance(value, float)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_count, value))


def _names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(one, str) for one in value))


def _arrays(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(one, np.ndarray) for one in value))


def _lists(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, list) for one in value.values())


# What Keras' callbacks learn while they run, and of which type it is. `min_delta` is not among it: Keras turns its sign
# when it first looks at the metric, and would turn it once more.
_LEARNED: dict[str, dict[str, Callable[[Any], bool]]] = {
    "History": {"epoch": _counts, "history": _lists},
    "EarlyStopping": {
        "wait": _count,
        "stopped_epoch": _count,
        "best": _number,
        "best_epoch": _count,
        "best_weights": _arrays,
    },
    "ReduceLROnPlateau": {"wait": _count, "cooldown_counter": _count, "best": _number},
    "ModelCheckpoint": {
        "best": _number,
        "_current_epoch": _count,
        "_batches_seen_since_last_saving": _count,
        "_last_batch_seen": _number,
    },
    "OrbaxCheckpoint": {
        "best": _number,
        "_total_batches_seen": _count,
        "_batches_seen_since_last_saving": _count,
        "_last_batch_seen": _number,
    },
    "CSVLogger": {"keys": _names},
    "TensorBoard": {"_global_train_batch": _count, "_global_test_batch": _count, "_previous_epoch_iterations": _count},
    "SwapEMAWeights": {"_ema_weights_in_model": _flag},
}


class CallbackStates:
    """Saves, restores and watches the state of callbacks."""

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self._callbacks = dict(_named(callbacks))
        self._learned_at_first = {key: _learned(callback) for key, callback in self._callbacks.items()}
        self._at_first = {key: _contents_of(callback) for key, callback in self._callbacks.items()}

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The state now, without references to what may change."""
        values: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        for key, callback in self._callbacks.items():
            # Keras puts new arrays in place of best weights, so that these need not be copied.
            values[key] = _plain(_learned(callback), key, arrays, copies=False)
            if _declares(callback):
                declared = callback.get_state()  # pyright: ignore[reportAttributeAccessIssue] (it declares it)
                if not isinstance(declared, Mapping):
                    raise TypeError(f"{key}.get_state() must return a dict. Received: {declared!r}.")
                values[key][_DECLARED] = _plain(declared, f"{key}/{_DECLARED}", arrays, copies=True)
        return values, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Puts a state back. What callbacks of Keras have learned since the beginning, and it does not name, goes."""
        missing = [key for key, value in values.items() if value and key not in self._callbacks]
        if missing:
            warnings.warn(
                f"The run that is resumed had callbacks that this one has not: {', '.join(missing)}. Their state is "
                "dropped.",
                stacklevel=2,
            )
        for key, callback in self._callbacks.items():
            if not isinstance(values.get(key), dict):
                continue
            new = {**self._learned_at_first[key], **copy.deepcopy(values[key]), **_arrays_below(key, arrays)}
            for name, is_of_type in _table_of(callback).items():
                if name in new:
                    if not is_of_type(new[name]):
                        raise ValueError(f"{new[name]!r} in the checkpoint can't be the {name!r} of {key}.")
                    setattr(callback, name, new[name])
            if _declares(callback) and _DECLARED in values[key]:
                declared = {**copy.deepcopy(values[key][_DECLARED]), **_arrays_below(f"{key}/{_DECLARED}", arrays)}
                callback.set_state(declared)  # pyright: ignore[reportAttributeAccessIssue] (it declares it)

    def warn_of_undeclared(self) -> None:
        """Warns, once for each callback, of attributes that have changed and are not saved."""
        for key, before in list(self._at_first.items()):
            now = _contents_of(self._callbacks[key])
            # Of what can't be compared nothing could be saved either: an open file, say.
            changed = sorted(name for name in now if now[name] != before.get(name) and isinstance(now[name], tuple))
            if changed:
                del self._at_first[key]
                warnings.warn(
                    f"The callback {key} changes {', '.join(map(repr, changed))} while it trains, which no checkpoint "
                    "saves: a run that is resumed begins without. Give it get_state(), which returns a dict of what it "
                    "has to keep (numbers, text, lists, dicts, arrays; {} for nothing), and set_state(state).",
                    stacklevel=2,
                )


def _named(callbacks: Iterable[keras.callbacks.Callback]) -> Iterator[tuple[str, keras.callbacks.Callback]]:
    """Each callback with a key that it has in the next run, too: its class, counted where there are several."""
    counts: dict[str, int] = {}
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ProgbarLogger):
            continue
        name = type(callback).__name__
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name}_{counts[name] - 1}"), callback


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "keras"


def _table_of(callback: keras.callbacks.Callback) -> dict[str, Callable[[Any], bool]]:
    kinds = (kind.__name__ for kind in type(callback).__mro__ if _is_of_keras(kind))
    return next((_LEARNED[name] for name in kinds if name in _LEARNED), {})


def _learned(callback: keras.callbacks.Callback) -> dict[str, Any]:
    found = vars(callback)
    return {name: _copied(found[name]) for name in _table_of(callback) if name in found}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _declares(callback: keras.callbacks.Callback) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _plain(state: Mapping[str, Any], path: str, arrays: dict[str, np.ndarray], *, copies: bool) -> dict[str, Any]:
    """What JSON can hold; arrays and variables, and lists of them, go where those are kept."""

    def take(value: Any) -> np.ndarray:
        array = _as_array(value)
        return np.array(array) if copies else array

    plain = {}
    for name, value in state.items():
        if _is_array(value):
            arrays[f"{path}/{name}"] = take(value)
        elif isinstance(value, (list, tuple)) and value and all(map(_is_array, value)):
            arrays.update({f"{path}/{name}/{index}": take(one) for index, one in enumerate(value)})
        else:
            plain[name] = copy.deepcopy(value)
    return plain


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "shape") and hasattr(value, "numpy"))


def _as_array(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else value_of(value)


def _arrays_below(path: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, array in arrays.items():
        if place.startswith(f"{path}/"):
            name, *index = place.removeprefix(f"{path}/").split("/")
            if not index:
                found[name] = array
            elif len(index) == 1 and index[0].isdecimal():
                found.setdefault(name, {})[int(index[0])] = array
    return {name: [one[at] for at in sorted(one)] if isinstance(one, dict) else one for name, one in found.items()}


def _contents_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """What the attributes hold that would be lost: of callbacks of users that declare nothing."""
    kind = type(callback)
    if _is_of_keras(kind) or kind.__module__.partition(".")[0] == "keras_turbo" or _declares(callback):
        return {}
    known = {*_OF_EVERY_CALLBACK, *_table_of(callback), "min_delta", "monitor_op"}
    return {name: contents(value) for name, value in vars(callback).items() if name not in known}


def contents(value: Any, depth: int = 0) -> Any:
    """Something to compare by that tells whether numbers, text, arrays and variables were changed, in place as well.

    Also those in lists, dicts, sets and their like. Of other objects only the type is looked at.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        return type(value), repr(value)
    if depth > _COMPARED_DEPTH:
        return type(value)
    if isinstance(value, Mapping):
        return type(value), [(contents(key, depth + 1), contents(one, depth + 1)) for key, one in _some(value.items())]
    if isinstance(value, (set, frozenset)):
        return type(value), len(value), sorted(repr(contents(one, depth + 1)) for one in _some(value))
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), len(value), [contents(one, depth + 1) for one in _some(value)]
    if _is_array(value):
        array = _as_array(value)
        if array.dtype.hasobject:
            return type(value), array.shape
        flat = array.reshape(-1)
        sample = np.ascontiguousarray(flat[:: max(1, flat.size // _COMPARED_ELEMENTS)])
        return type(value), array.shape, str(array.dtype), zlib.crc32(sample.tobytes())
    return type(value)


def _some(items: Iterable[Any]) -> list[Any]:
    # The last ones: what grows, grows at its end.
    return list(items)[-_COMPARED_ITEMS:]
