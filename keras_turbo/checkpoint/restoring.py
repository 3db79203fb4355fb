"""Finds a checkpoint that is whole, reads it, and puts it into a model."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from keras_turbo.checkpoint.catalog import holds_checkpoint, newest_first
from keras_turbo.checkpoint.hdf5_reader import read_arrays
from keras_turbo.checkpoint.location import Directory, Location, locate
from keras_turbo.checkpoint.names import CALLBACKS, EXTRA, is_weights
from keras_turbo.checkpoint.training_state import TrainingState
from keras_turbo.checkpoint.verification import Health, examine

if TYPE_CHECKING:
    import keras
    import numpy as np


def latest(directory: Directory) -> Path | str | None:
    """Finds the newest checkpoint that is whole, every byte of it.

    The newest is the one with most optimizer steps, whatever the clock said. One that is damaged or was never finished
    is passed over, with a warning.

    Example:

    ```python
    folder = keras_turbo.checkpoint.latest("checkpoints")
    if folder is not None:
        model.load_weights(folder / "model.weights.h5")
    ```

    Args:
        directory: where checkpoints are kept. It may be missing.

    Returns:
        The checkpoint's folder (a `Path`; text behind a scheme), None if there is no good one.

    Raises:
        ValueError: no file system has the scheme of the path.
    """
    found = _newest_good(locate(directory))
    return None if found is None else found.path


def _newest_good(location: Location) -> Health | None:
    damaged: list[Health] = []
    good = None
    for name in newest_first(location):
        health = examine(location, location.child(name))
        if health.ok:
            good = health
            break
        # Another process may just have deleted it: then it isn't damaged but gone.
        if location.files.exists(location.child(name)):
            damaged.append(health)
    if damaged:
        used = f"{good.name} is used instead" if good else f"there is no good one in {location.path}"
        passed = "; ".join(f"{one.name}: {', '.join(one.problems)}" for one in damaged)
        warnings.warn(f"Damaged checkpoints were passed over ({passed}): {used}.", stacklevel=3)
    return good


def read_checkpoint(folder: Directory) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], TrainingState]:
    """Reads a checkpoint, after a look at every byte of it.

    Args:
        folder: the checkpoint.

    Returns:
        Weights by path, the other arrays by path, and the training state.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: it is damaged; the text says what is wrong with it.
    """
    location = locate(folder)
    if not holds_checkpoint(location, location.path):
        raise FileNotFoundError(f"{location.path} is no checkpoint.")
    return _read(location, _good(examine(location, location.path)))


def _good(health: Health) -> Health:
    if not health.ok:
        raise ValueError(f"The checkpoint {health.path} is damaged: {'; '.join(health.problems)}.")
    return health


def _read(location: Location, health: Health) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], TrainingState]:
    if health.state is None:
        raise ValueError(f"The checkpoint {health.path} has no training state.")
    folder, files = os.fspath(health.path), location.files
    weights: dict[str, np.ndarray] = {}
    for name in filter(is_weights, health.state.files):
        with files.local_copy(files.join(folder, name)) as path:
            arrays = read_arrays(path)
        twice = sorted(weights.keys() & arrays.keys())
        if twice:
            raise ValueError(f"The checkpoint {health.path} is damaged: {twice[0]!r} is in two of its files.")
        weights.update(arrays)
    with files.local_copy(files.join(folder, EXTRA)) as path:
        extra = read_arrays(path)
    return weights, extra, health.state


def restore(model: keras.Model, directory: Directory) -> TrainingState:
    """Puts a checkpoint into a model: weights, optimizer, seeds of random layers, metrics, loss scale.

    Nothing is assigned unless all of it fits. (Metrics that the model creates only at its first step are left out:
    `fit` begins them anew. `AsyncCheckpoint` restores them, too.)

    Example:

    ```python
    model.compile("adam", "mse")
    state = keras_turbo.checkpoint.restore(model, "checkpoints")
    print(state.epoch, state.metrics)
    ```

    Args:
        model: built, and compiled as the model that was saved.
        directory: where checkpoints are kept, of which the newest good one is taken; or one checkpoint.

    Returns:
        Where the run was.

    Raises:
        FileNotFoundError: there is no good checkpoint.
        ValueError: the checkpoint that was named is damaged, or doesn't fit the model; with the paths that differ.
    """
    from keras_turbo.checkpoint.model_state import assign_state

    location = locate(directory)
    if holds_checkpoint(location, location.path):
        health = _good(examine(location, location.path))
    else:
        found = _newest_good(location)
        if found is None:
            raise FileNotFoundError(f"There is no good checkpoint in {location.path}.")
        health = found
    weights, extra, state = _read(location, health)
    assign_state(model, weights, {path: array for path, array in extra.items() if not path.startswith(CALLBACKS)})
    return state
