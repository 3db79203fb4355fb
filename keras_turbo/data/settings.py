"""The options that all kinds of FastDataset share, checked before anything is built."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_turbo.data.engine.buckets import TOO_LONG, check_boundaries
from keras_turbo.data.engine.failures import ON_ERROR
from keras_turbo.files import default_cache_dir, is_remote, resolved
from keras_turbo.machine import cores

Cache = Literal["auto", "memory", "disk", False]
CACHES: tuple[Any, ...] = ("auto", "memory", "disk", False)

# Loads that wait for the disk leave room for others to decode; twice the cores was never slower than once.
_LOADS_PER_CORE = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `FastDataset` documents under these names.

    Raises:
        TypeError, ValueError: an option that can't be, with what it could be.
    """

    batch_size: int | None = 32
    shuffle: bool = False
    seed: int | None = None
    reshuffle_each_epoch: bool = True
    map_fn: Callable | None = None
    augment_fn: Callable | None = None
    cache: Cache = "auto"
    cache_dir: str | os.PathLike | None = None
    drop_remainder: bool = False
    workers: int | None = None
    on_error: Literal["raise", "skip"] = "raise"
    bucket_by_length: Sequence[int] | None = None
    too_long: Literal["raise", "truncate"] = "raise"
    element_spec: Any = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size, "None, for examples one by one (or as they come)")
        _check_workers(self.workers)
        for name in ("shuffle", "reshuffle_each_epoch", "drop_remainder"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                hint = " All examples are shuffled, so there is no buffer to size." if name == "shuffle" else ""
                raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}.{hint}")
        if self.seed is not None and not is_integer(self.seed):
            raise TypeError(f"`seed` must be an integer or None. Received: seed={self.seed!r}.")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"`seed` must lie between 0 and 2**63 - 1. Received: seed={self.seed}.")
        # 0 equals False, and means something else to whoever writes it.
        if self.cache is not False and not (isinstance(self.cache, str) and self.cache in CACHES):
            raise ValueError(
                f"`cache` must be 'auto', 'memory', 'disk' or False. Received: cache={self.cache!r}."
                + (" 'auto' picks memory or disk by what is free." if self.cache is True else "")
            )
        if self.on_error not in ON_ERROR:
            raise ValueError(f"`on_error` must be 'raise' or 'skip'. Received: on_error={self.on_error!r}.")
        if self.cache_dir is not None and not isinstance(self.cache_dir, (str, os.PathLike)):
            raise TypeError(
                f"`cache_dir` must be the path of a folder, or None. Received: cache_dir={self.cache_dir!r}."
            )
        if self.cache_dir is not None and is_remote(resolved(self.cache_dir, "`cache_dir`")):
            raise ValueError(
                "`cache_dir` must be a folder of this machine: what is kept there is read by position in each epoch. "
                f"Received: cache_dir={os.fspath(self.cache_dir)!r}."
            )
        if self.cache_dir is not None:
            # This process may change its folder.
            object.__setattr__(self, "cache_dir", os.path.abspath(resolved(self.cache_dir, "`cache_dir`")))
        for name in ("map_fn", "augment_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(
                    f"`{name}` must be a function, a Keras layer or None. Received: {name}={getattr(self, name)!r}."
                )
        if self.element_spec is not None:
            object.__setattr__(self, "element_spec", _checked_spec(self.element_spec))
        if self.bucket_by_length is not None:
            check_boundaries(self.bucket_by_length)
            if self.batch_size is None:
                raise ValueError("`bucket_by_length` puts sequences together in batches. Give a batch_size.")
        if self.too_long not in TOO_LONG:
            raise ValueError(f"`too_long` must be 'raise' or 'truncate'. Received: too_long={self.too_long!r}.")
        if self.too_long != "raise" and self.bucket_by_length is None:
            raise ValueError("`too_long` is for sequences beyond the last length of `bucket_by_length`. Give that.")
        if self.drop_remainder and self.batch_size is None:
            raise ValueError("`drop_remainder=True` has no meaning with batch_size=None: there are no batches.")

    @classmethod
    def of(cls, options: dict[str, Any], constructor: Callable[..., Any]) -> Settings:
        """The settings that a constructor was given as further options.

        Raises:
            TypeError: there is no option of that name; the error names the nearest and lists those that there are.
        """
        unknown = sorted(set(options) - set(cls.__dataclass_fields__))
        if not unknown:
            return cls(**options)
        parameters = inspect.signature(constructor).parameters.values()
        known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY] + list(cls.__dataclass_fields__)
        near = [match for name in unknown for match in difflib.get_close_matches(name, known, 1)]
        meant = f" Did you mean {', '.join(near)}?" if near else ""
        raise TypeError(
            f"{constructor.__name__}() has no option {', '.join(unknown)}.{meant} Its options are: {', '.join(known)}."
        )

    def for_validation(self) -> Settings:
        """The same without what is for training only."""
        return dataclasses.replace(self, shuffle=False, augment_fn=None)

    def with_seed(self, seed: int) -> Settings:
        """The same with a seed that is settled."""
        return dataclasses.replace(self, seed=seed)

    @property
    def settled_seed(self) -> int:
        """The seed, which must have been drawn where the user gave none."""
        if self.seed is None:
            raise ValueError("The seed is not settled. Use with_seed() first.")
        return self.seed

    @property
    def parallel_calls(self) -> int:
        """How many examples are made at a time.

        Raises:
            ValueError: none at a time.
        """
        if self.workers == 0:
            raise ValueError(
                "`workers` must be at least 1, or None, for as many as the cores want: only for data that Python code "
                "makes (a PyDataset, a generator function, a PythonFunction) does 0 mean this process. Received: "
                "workers=0."
            )
        return self.workers or _LOADS_PER_CORE * available_cores()

    @property
    def cache_folder(self) -> pathlib.Path:
        """Where disk stores are kept."""
        return self.cache_dir_or(default_cache_dir() / "examples")

    def cache_dir_or(self, default: pathlib.Path) -> pathlib.Path:
        """The folder that was given for caches, or another."""
        return default if self.cache_dir is None else pathlib.Path(self.cache_dir)


def available_cores() -> int:
    """Cores that this process may use, limits of containers included (`docker --cpus`)."""
    return max(1, math.ceil(cores().usable))


def _check_workers(workers: Any) -> None:
    """Checks a number of workers; whether 0 has a meaning depends on the source."""
    if workers is None:
        return
    wanted = (
        "`workers` must be an integer from 1; or 0, for this process, where Python code makes the data (a PyDataset, a "
        f"generator function, a PythonFunction); or None, to have it chosen. Received: workers={workers!r}."
    )
    if not is_integer(workers):
        raise TypeError(wanted)
    if workers < 0:
        raise ValueError(wanted)


def _checked_spec(spec: Any) -> Any:
    """An `element_spec` with tuples for lists."""
    if isinstance(spec, dict):
        return {key: _checked_spec(spec[key]) for key in sorted(spec)}
    if isinstance(spec, (tuple, list)):
        return tuple(map(_checked_spec, spec))
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        raise TypeError(
            "`element_spec` must be a tf.TensorSpec, or a dict or tuple of them, with shapes in which None stands "
            f"for sizes that differ. Received: {spec!r}."
        )
    return spec


def check_count(name: str, value: Any, none_means: str) -> None:
    """Checks a positive integer that may be None.

    Raises:
        TypeError, ValueError: it is something else.
    """
    if value is None:
        return
    if not is_integer(value):
        raise TypeError(f"`{name}` must be a positive integer, or {none_means}. Received: {name}={value!r}.")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1, or {none_means}. Received: {name}={value}.")


def is_integer(value: Any) -> bool:
    """Whether a value counts something: any integer, NumPy's too."""
    # A bool is an int to Python; batch_size=True would be a batch of one.
    if isinstance(value, (bool, np.bool_)):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
