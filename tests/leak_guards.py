"""Guards that fail a test which leaves something behind: a thread, a process, a setting, a variable or a file."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import psutil
import pytest
import tensorflow as tf

# What has been told to end may need a moment for it.
GRACE_SECONDS = 2.0

# Helpers that Python's multiprocessing starts once and keeps until the interpreter ends.
LASTING_CHILDREN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

# pytest tells its own state in this variable, and changes it between the phases of a test.
OTHERS_VARIABLES = {"PYTEST_CURRENT_TEST"}

# Caches of the tools themselves, and git's folder, in which a developer may be at work during the tests.
OTHERS_FILES = {"__pycache__", ".pytest_cache", ".ruff_cache", ".git"}


class LeakError(AssertionError):
    """A test left something behind."""


@dataclass(frozen=True)
class Guard:
    """One kind of leak.

    Args:
        snapshot: Gives the state before a test.
        leaks_since: Describes what differs from that state after it, and puts back what can be put back, so that the
            tests that follow are not blamed.
    """

    snapshot: Callable[[], Any]
    leaks_since: Callable[[Any], list[str]]


@dataclass(frozen=True)
class Setting:
    """A global setting of Keras, TensorFlow or Python; `put_back` is None where nothing public can restore it."""

    read: Callable[[], Any]
    put_back: Callable[[Any], None] | None


def _switch(turn_on: Callable[[], None], turn_off: Callable[[], None]) -> Callable[[Any], None]:
    return lambda on: turn_on() if on else turn_off()


SETTINGS = {
    "the global dtype policy": Setting(keras.config.dtype_policy, keras.config.set_dtype_policy),
    "floatx": Setting(keras.config.floatx, keras.config.set_floatx),
    "Keras' epsilon": Setting(keras.config.epsilon, keras.config.set_epsilon),
    "image_data_format": Setting(keras.config.image_data_format, keras.config.set_image_data_format),
    "interactive logging": Setting(
        keras.config.is_interactive_logging_enabled,
        _switch(keras.config.enable_interactive_logging, keras.config.disable_interactive_logging),
    ),
    "traceback filtering": Setting(
        keras.config.is_traceback_filtering_enabled,
        _switch(keras.config.enable_traceback_filtering, keras.config.disable_traceback_filtering),
    ),
    "the limit of epochs": Setting(keras.config.max_epochs, keras.config.set_max_epochs),
    "the limit of steps": Setting(keras.config.max_steps_per_epoch, keras.config.set_max_steps_per_epoch),
    "Keras' distribution": Setting(keras.distribution.distribution, keras.distribution.set_distribution),
    "an open tf.distribute scope": Setting(tf.distribute.has_strategy, None),
    "run_functions_eagerly": Setting(tf.config.functions_run_eagerly, tf.config.run_functions_eagerly),
    "tf.config.optimizer.set_jit": Setting(tf.config.optimizer.get_jit, tf.config.optimizer.set_jit),
    "soft device placement": Setting(tf.config.get_soft_device_placement, tf.config.set_soft_device_placement),
    "TensorFloat-32": Setting(
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
    "the level of TensorFlow's logger": Setting(
        lambda: logging.getLogger("tensorflow").level, logging.getLogger("tensorflow").setLevel
    ),
    "the working directory": Setting(os.getcwd, os.chdir),
}


def _wait_until_none(find: Callable[[], list[Any]]) -> list[Any]:
    deadline = time.monotonic() + GRACE_SECONDS
    found = find()
    if found:
        gc.collect()  # a model of Keras holds itself, and with it the iterator of a fit that was broken off
    while found and time.monotonic() < deadline:
        time.sleep(0.02)
        found = find()
    return found


def _leaked_threads(before: list[threading.Thread]) -> list[str]:
    def new() -> list[threading.Thread]:
        # A _DummyThread stands for a thread of TensorFlow's own pools that has once called into Python (py_function,
        # numpy_function). Nobody in Python started it, and Python keeps its entry for good.
        return [t for t in threading.enumerate() if t not in before and not isinstance(t, threading._DummyThread)]

    return [f"a thread: {thread!r}" for thread in _wait_until_none(new)]


def _running_children() -> list[psutil.Process]:
    multiprocessing.active_children()  # reaps those that have ended
    running = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            is_lasting = any(name in part for part in child.cmdline() for name in LASTING_CHILDREN)
            if child.status() != psutil.STATUS_ZOMBIE and not is_lasting:
                running.append(child)
    return running


def _leaked_children(before: list[psutil.Process]) -> list[str]:
    leaks = []
    for child in _wait_until_none(lambda: [one for one in _running_children() if one not in before]):
        with contextlib.suppress(psutil.NoSuchProcess):
            leaks.append(f"a child process: {child.pid} {child.cmdline()}")
            child.kill()
    return leaks


def _read_settings() -> dict[str, Any]:
    return {name: setting.read() for name, setting in SETTINGS.items()}


def _changed_settings(before: dict[str, Any]) -> list[str]:
    leaks = []
    for name, setting in SETTINGS.items():
        now = setting.read()
        if now != before[name]:
            leaks.append(f"{name}: {now!r}, was {before[name]!r}")
            if setting.put_back is not None:
                setting.put_back(before[name])
    return leaks


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in OTHERS_VARIABLES}


def _changed_variables(before: dict[str, str]) -> list[str]:
    now = _environment()
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    for name in names:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    return [f"an environment variable: {name}={now.get(name)!r}, was {before.get(name)!r}" for name in names]


def _top_two_levels(folders: set[Path]) -> set[Path]:
    found = set()
    for folder in folders:
        for entry in os.scandir(folder):
            if entry.name in OTHERS_FILES:
                continue
            found.add(Path(entry.path))
            if entry.is_dir(follow_symlinks=False):
                found.update(Path(below.path) for below in os.scandir(entry.path) if below.name not in OTHERS_FILES)
    return found


def _files_guard(folders: set[Path]) -> Guard:
    return Guard(
        lambda: _top_two_levels(folders),
        lambda before: [f"a file: {path}" for path in sorted(_top_two_levels(folders) - before)],
    )


@contextlib.contextmanager
def no_leaks(folders: set[Path]) -> Iterator[None]:
    """Raises when what runs inside leaves something behind.

    Args:
        folders: Folders in whose top two levels no file may appear.

    Raises:
        LeakError: Naming everything that was left. Settings, variables and child processes are put right first.
    """
    guards = [
        Guard(threading.enumerate, _leaked_threads),
        Guard(_running_children, _leaked_children),
        Guard(_read_settings, _changed_settings),
        Guard(_environment, _changed_variables),
        _files_guard(folders),
    ]
    before = [guard.snapshot() for guard in guards]
    yield
    leaks = [leak for guard, state in zip(guards, before, strict=True) for leak in guard.leaks_since(state)]
    if leaks:
        raise LeakError("the test left behind " + "; ".join(leaks))


@pytest.fixture(autouse=True)
def fail_on_leaks(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fails each test that leaves something behind, in the checkout or the working directory among other places."""
    with no_leaks({pytestconfig.rootpath, Path.cwd()}):
        yield
