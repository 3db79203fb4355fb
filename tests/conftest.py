"""What holds for every test: a known environment, known seeds, and nothing left behind."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SESSION_FOLDER = Path(tempfile.mkdtemp(prefix="keras_turbo_tests_"))

# These are read once, when TensorFlow and Keras are imported, so they are set before anything below imports them.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"
# The user's own keras.json and caches are neither read nor written.
os.environ["KERAS_HOME"] = str(SESSION_FOLDER / "keras")
os.environ["XDG_CACHE_HOME"] = str(SESSION_FOLDER / "cache")

import keras  # noqa: E402 (see above)
import tensorflow as tf  # noqa: E402 (see above)

from tests.leak_guards import fail_on_leaks  # noqa: E402, F401 (see above; pytest finds the fixture by its name here)
from tests.s3_server import s3_server  # noqa: E402 (see above)

# Two devices, so that strategies have something to distribute over. It can be set only before TensorFlow starts.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def pytest_unconfigure() -> None:
    """Removes the session's folder."""
    shutil.rmtree(SESSION_FOLDER, ignore_errors=True)


@pytest.fixture(autouse=True)
def known_seeds() -> None:
    """Seeds Python, NumPy and TensorFlow anew for each test, so that no result depends on which tests ran before."""
    keras.utils.set_random_seed(20)


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_look_through() -> None:
    """Takes what other modules left out of what the garbage collector looks through.

    TensorFlow keeps what it has traced: after some thousand tests one collection would take more than a second, and
    many tests ask for one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_autotuner() -> Iterator[None]:
    """Switches tf.data's autotuner off for datasets that do not say what they want.

    Its thread can miss that its iterator goes, and then sleeps on: whoever collects the iterator waits for it, for as
    long as the iterator lived, at most a minute. Stock datasets of one test are collected in a later one.
    """
    as_it_was = tf.data.Dataset._apply_debug_options

    def without_autotuner(dataset: tf.data.Dataset) -> tf.data.Dataset:
        dataset = as_it_was(dataset)
        if dataset.options().autotune.enabled is not None:
            return dataset
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options)

    with pytest.MonkeyPatch.context() as patches:
        # Private, but called for each iterator, of any kind, in all versions that are supported.
        patches.setattr(tf.data.Dataset, "_apply_debug_options", without_autotuner)
        yield


@pytest.fixture
def set_dtype_policy() -> Iterator[Callable[[str], None]]:
    """Gives a function that sets the global dtype policy until the end of the test."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.fixture(scope="session")
def two_cpu_strategy() -> tf.distribute.MirroredStrategy:
    """A MirroredStrategy over two virtual CPU devices."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[dict[str, str]]:
    """A real S3 server on this machine, and the variables by which TensorFlow finds it."""
    with s3_server() as variables:
        yield variables


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Gives a function that runs source code in a fresh process with arguments, and returns what it printed."""

    def run(source: str, *arguments: object) -> str:
        command = [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run
