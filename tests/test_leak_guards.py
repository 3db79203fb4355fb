"""Each kind of leak is seen, and what can be put back is put back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from tests import leak_guards
from tests.leak_guards import SETTINGS, LeakError, no_leaks


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(leak_guards, "GRACE_SECONDS", 0.2)


def leak_policy():
    keras.config.set_dtype_policy("mixed_float16")


def leak_floatx():
    keras.config.set_floatx("float64")


def leak_epsilon():
    keras.config.set_epsilon(1e-3)


def leak_image_data_format():
    keras.config.set_image_data_format("channels_first")


def leak_interactive_logging():
    keras.config.disable_interactive_logging()


def leak_traceback_filtering():
    keras.config.disable_traceback_filtering()


def leak_limits():
    keras.config.set_max_epochs(1)
    keras.config.set_max_steps_per_epoch(1)


def leak_eager_functions():
    tf.config.run_functions_eagerly(True)


def leak_jit():
    tf.config.optimizer.set_jit("autoclustering")


def leak_soft_device_placement():
    tf.config.set_soft_device_placement(not tf.config.get_soft_device_placement())


def leak_tensor_float_32():
    tf.config.experimental.enable_tensor_float_32_execution(False)


def leak_logger_level():
    tf.get_logger().setLevel("CRITICAL")


def leak_working_directory():
    os.chdir(os.sep)


def leak_new_variable():
    os.environ["KERAS_TURBO_LEAK"] = "1"


def leak_changed_variable():
    os.environ["KERAS_BACKEND"] = "numpy"


def leak_removed_variable():
    del os.environ["KERAS_BACKEND"]


@pytest.mark.parametrize(
    ("leak", "named"),
    [
        (leak_policy, "dtype policy.*mixed_float16"),
        (leak_floatx, "floatx: 'float64', was 'float32'"),
        (leak_epsilon, "epsilon: 0.001"),
        (leak_image_data_format, "image_data_format: 'channels_first'"),
        (leak_interactive_logging, "interactive logging"),
        (leak_traceback_filtering, "traceback filtering"),
        (leak_limits, "limit of epochs: 1.*limit of steps: 1"),
        (leak_eager_functions, "run_functions_eagerly"),
        (leak_jit, "set_jit"),
        (leak_soft_device_placement, "soft device placement"),
        (leak_tensor_float_32, "TensorFloat-32"),
        (leak_logger_level, "TensorFlow's logger"),
        (leak_working_directory, "the working directory"),
        (leak_new_variable, "KERAS_TURBO_LEAK='1', was None"),
        (leak_changed_variable, "KERAS_BACKEND='numpy', was 'tensorflow'"),
        (leak_removed_variable, "KERAS_BACKEND=None, was 'tensorflow'"),
    ],
)
def test_a_changed_setting_is_seen_and_put_back(leak, named):
    before = {name: setting.read() for name, setting in SETTINGS.items()}, dict(os.environ)
    with pytest.raises(LeakError, match=named), no_leaks(set()):
        leak()
    assert ({name: setting.read() for name, setting in SETTINGS.items()}, dict(os.environ)) == before


def test_an_open_strategy_scope_is_seen():
    scope = tf.distribute.OneDeviceStrategy("/cpu:0").scope()
    with pytest.raises(LeakError, match=r"tf\.distribute scope"), no_leaks(set()):
        scope.__enter__()
    scope.__exit__(None, None, None)


def test_a_thread_is_seen(short_grace):
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left-behind")
    with pytest.raises(LeakError, match=r"a thread: .*left-behind"), no_leaks(set()):
        thread.start()
    end.set()
    thread.join()


def test_a_thread_that_is_about_to_end_is_no_leak():
    with no_leaks(set()):
        threading.Thread(target=time.sleep, args=(0.3,)).start()


def test_threads_of_tensorflow_that_called_python_are_no_leak():
    with no_leaks(set()):
        dataset = tf.data.Dataset.range(8).map(
            lambda i: tf.numpy_function(lambda j: (threading.current_thread(), j)[1], [i], tf.int64),
            num_parallel_calls=4,
        )
        assert sorted(int(i) for i in dataset) == list(range(8))


def test_a_child_process_is_seen_and_ended(short_grace):
    with pytest.raises(LeakError, match=r"a child process: .*left-behind"), no_leaks(set()):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "left-behind"])
    assert child.wait(timeout=10) < 0


def test_a_child_process_that_was_waited_for_is_no_leak():
    with no_leaks(set()):
        subprocess.run([sys.executable, "-c", "pass"], check=True)


@pytest.mark.parametrize("path", ["new.txt", "new_folder/new.txt", "old_folder/new.txt"])
def test_a_file_is_seen(tmp_path: Path, path):
    (tmp_path / "old_folder").mkdir()
    with pytest.raises(LeakError, match=r"a file: .*new"), no_leaks({tmp_path}):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()


@pytest.mark.parametrize("folder", ["__pycache__", ".pytest_cache", ".ruff_cache", ".git"])
def test_files_of_tools_are_no_leak(tmp_path: Path, folder):
    with no_leaks({tmp_path}):
        (tmp_path / folder).mkdir()


def test_all_leaks_are_named_at_once(tmp_path: Path):
    with pytest.raises(LeakError, match=r"floatx.*KERAS_TURBO_LEAK.*new\.txt"), no_leaks({tmp_path}):
        leak_floatx()
        leak_new_variable()
        (tmp_path / "new.txt").touch()


def test_the_fixture_fails_the_test_that_leaks(pytester: pytest.Pytester):
    pytester.makeconftest("from tests.leak_guards import fail_on_leaks")
    pytester.makepyfile(
        """
        import keras, os, pathlib

        def test_policy():
            keras.config.set_dtype_policy("mixed_float16")

        def test_variable():
            os.environ["KERAS_TURBO_LEAK"] = "1"

        def test_file():
            pathlib.Path("left_behind.txt").touch()

        def test_nothing():
            assert keras.config.dtype_policy().name == "float32"
            assert "KERAS_TURBO_LEAK" not in os.environ
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, errors=3)
    result.stdout.fnmatch_lines(["*dtype policy*mixed_float16*", "*KERAS_TURBO_LEAK*", "*left_behind.txt*"])


def test_caches_of_the_user_are_not_touched():
    session_folder = Path(os.environ["XDG_CACHE_HOME"]).parent
    assert session_folder.name.startswith("keras_turbo_tests_")
    assert Path(os.environ["KERAS_HOME"]).parent == session_folder
