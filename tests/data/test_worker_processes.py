"""Scripts with worker processes: what they leave behind, and what they are told. Each is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

PROJECT = Path(__file__).parents[2]

DATA = """
    import os, time
    import numpy as np

    class Batches:
        def __init__(self, seconds=0.0, parent=None):
            self.seconds, self.parent = seconds, parent
        def __len__(self):
            return 40
        def __getitem__(self, index):
            if os.getpid() != self.parent:
                time.sleep(self.seconds)
            return np.full((2, 3), index, np.float32), np.zeros(2, np.float32)
        def on_epoch_end(self):
            pass
"""

MODEL = """
    import keras, keras_turbo as kt
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
"""


def shared_memory():
    """What has a name in shared memory: segments, and semaphores of multiprocessing."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture
def script(tmp_path):
    """Starts a script that has the data in a module beside it, in a process group of its own."""
    before = shared_memory()
    started = []

    def start(source, **options):
        (tmp_path / "own_data.py").write_text(textwrap.dedent(DATA))
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        process = subprocess.Popen(
            [sys.executable, str(path)],
            env=os.environ | {"PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=tmp_path,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        leftovers = [one for one in psutil.process_iter() if group_of(one) == process.pid]
        for one in leftovers:
            one.kill()
        process.wait()
        assert leftovers == []
    assert shared_memory() <= before


def group_of(process):
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def ended(process):
    """Waits for the end of a script and of all its processes, and gives exit code, output and errors."""
    output, errors = process.communicate(timeout=200)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(group_of(one) == process.pid for one in psutil.process_iter()):
        time.sleep(0.05)
    noise = ("0000", "WARNING: All log messages")
    return (
        process.returncode,
        output,
        "\n".join(line for line in errors.splitlines() if not any(part in line for part in noise)),
    )


def test_case_9_a_script_ends_and_leaves_nothing(script):
    source = textwrap.dedent(MODEL) + textwrap.dedent("""
        from own_data import Batches
        train, val = kt.FastDataset(Batches(), workers=2), kt.FastDataset(Batches(), workers=1)
        model.fit(train, validation_data=val, epochs=2, verbose=0, shuffle=False)
        print("done")
    """)
    assert ended(script(source)) == (0, "done\n", "")


def test_an_exception_in_a_callback(script):
    source = textwrap.dedent(MODEL) + textwrap.dedent("""
        from own_data import Batches
        def stop(batch, logs):
            if batch == 3:
                raise RuntimeError("stopped by a callback")
        train = kt.FastDataset(Batches(), workers=2)
        model.fit(train, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)])
    """)
    code, _, errors = ended(script(source))
    assert code == 1
    assert errors.endswith("RuntimeError: stopped by a callback")


ENDLESS = """
    import os
    from own_data import Batches
    train = kt.FastDataset(Batches(0.02, os.getpid()), workers=2).repeat()
    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                print("training", flush=True)
    model.fit(train, steps_per_epoch=1_000_000, verbose=0, callbacks=[Tell()])
"""


def test_ctrl_c(script):
    process = script(textwrap.dedent(MODEL) + textwrap.dedent(ENDLESS))
    assert process.stdout.readline() == "training\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the workers, too
    code, _, errors = ended(process)
    assert code == -signal.SIGINT
    assert errors.endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1


def test_a_kill_of_the_script_ends_its_workers(script):
    process = script(textwrap.dedent(MODEL) + textwrap.dedent(ENDLESS))
    assert process.stdout.readline() == "training\n"
    os.kill(process.pid, signal.SIGKILL)
    assert ended(process)[0] == -signal.SIGKILL


def test_the_end_does_not_wait_for_a_slow_batch(script):
    source = textwrap.dedent("""
        import os
        import keras_turbo as kt
        from own_data import Batches
        if __name__ == "__main__":
            data = kt.FastDataset(Batches(600, os.getpid()), workers=2)
            iterator = iter(data.prefetch(1))  # asks for the first one in the background
            import threading
            threading.Thread(target=lambda: next(iterator), daemon=True).start()
            import time
            time.sleep(3)
            print("end")
    """)
    code, output, _ = ended(script(source))
    assert (code, output) == (0, "end\n")


CLASS_IN_SCRIPT = """
    import numpy as np
    import keras_turbo as kt
    class Own:
        def __len__(self): return 3
        def __getitem__(self, index): return np.full((1, 1), index)
        def on_epoch_end(self): pass
"""


def test_a_class_in_a_guarded_script(script):
    source = textwrap.dedent(CLASS_IN_SCRIPT) + textwrap.dedent("""
        if __name__ == "__main__":
            print([int(batch[0, 0]) for batch in kt.FastDataset(Own(), workers=1)])
    """)
    assert ended(script(source)) == (0, "[0, 1, 2]\n", "")


def test_a_script_without_a_guard_is_not_run_again(script):
    source = textwrap.dedent(CLASS_IN_SCRIPT) + textwrap.dedent("""
        print("begins")
        print([int(batch[0, 0]) for batch in kt.FastDataset(Own(), workers=2)])
    """)
    assert ended(script(source)) == (0, "begins\n[0, 1, 2]\n", "")


def test_what_an_interactive_session_defines(run_python):
    source = textwrap.dedent(CLASS_IN_SCRIPT) + textwrap.dedent("""
        from keras_turbo.data.functions import PythonFunction
        offset = np.float32(5)
        def closure(factor):
            def generate():
                for number in range(3):
                    yield factor * number + offset
            return generate
        print([int(batch[0, 0]) for batch in kt.FastDataset(Own(), workers=1)])
        print([int(one) for one in kt.FastDataset(closure(10), workers=1, batch_size=None)])
        doubled = PythonFunction(lambda x: 2 * x + offset)
        print([int(one) for one in kt.FastDataset(np.arange(3.0), map_fn=doubled, workers=2, batch_size=None)])
    """)
    assert run_python(source) == "[0, 1, 2]\n[5, 15, 25]\n[5, 7, 9]\n"


# A module of this name is imported by nearly every other one of Python's.
SHADOWING = "raise SystemExit('a file of the current folder was run')"


def test_no_file_of_the_current_folder_is_run_before_the_object_needs_it(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("queue", "random", "numpy", "pickle", "socket", "importlib", "cloudpickle", "keras_turbo_worker"):
        (folder / f"{name}.py").write_text(SHADOWING)
    (folder / "beside.py").write_text("value = 7")
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "script.py"
    path.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(PROJECT)!r})
        import numpy as np, keras_turbo as kt
        class Own:
            def __len__(self): return 3
            def __getitem__(self, index):
                if {str(folder)!r} in sys.path:
                    import beside
                    return np.full((1, 1), beside.value)
                assert "" not in sys.path
                return np.full((1, 1), index)
            def on_epoch_end(self): pass
        print([int(batch[0, 0]) for batch in kt.FastDataset(Own(), workers=1)])
        sys.path.append({str(folder)!r})
        print([int(batch[0, 0]) for batch in kt.FastDataset(Own(), workers=1)])
    """)
    )
    for flags in ([], ["-I"]):
        done = subprocess.run(
            [sys.executable, *flags, str(path)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout) == (0, "[0, 1, 2]\n[7, 7, 7]\n"), done.stderr[-2000:]


def test_workers_of_an_isolated_parent_are_isolated(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('run from PYTHONPATH', flush=True)")
    source = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(PROJECT)!r})
        import numpy as np, keras_turbo as kt
        from tests.data.python_data import Sequence
        print(len(list(kt.FastDataset(Sequence(), workers=1))))
    """)
    done = subprocess.run(
        [sys.executable, "-I", "-c", source],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr[-2000:]
