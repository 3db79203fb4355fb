"""`python -m keras_turbo audit SCRIPT`: unmodified scripts, as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from keras_turbo.cli import main
from tests.auditing.turns import turns_of

ROOT = Path(__file__).parents[2]


def run(*arguments, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keras_turbo", "audit", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def write(folder: Path, source: str, name: str = "train.py") -> Path:
    (folder / name).write_text(textwrap.dedent(source), encoding="utf-8")
    return folder / name


SCRIPT = """
    import atexit, os, subprocess, sys, time
    import keras
    import numpy as np
    from beside import CLASSES

    atexit.register(lambda: print("exit handler"))
    subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
    os.write(1, b"of the file's number")
    print("arguments", sys.argv[1:], __name__, sys.path[0])


    class Sleepy(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.03)

        def on_epoch_end(self, epoch, logs=None):
            print("never: an epoch's end")


    x = np.random.normal(size=(400, 8)).astype("float32")
    y = np.random.randint(0, CLASSES, 400)
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(CLASSES)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    try:
        model.fit(
            x, y, batch_size=4, epochs=3, validation_split=0.2, class_weight={0: 1.0, 1: 2.0, 2: 1.0}, verbose=0,
            callbacks=[Sleepy(), keras.callbacks.ModelCheckpoint("never.keras")],
        )
        print("never: after fit")
    except Exception:
        print("never: an exception")
    finally:
        print("finally")
"""


@pytest.mark.slow
def test_an_unmodified_script_is_audited_at_its_first_fit(tmp_path):
    (tmp_path / "scripts").mkdir()
    write(tmp_path / "scripts", "CLASSES = 3", "beside.py")
    script = write(tmp_path / "scripts", SCRIPT)
    done = run("--steps", 5, "--budget", 2, "--html", "page.html", "--json", script, "--epochs", 3, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    # Standard output is the report's; what the script prints goes to the other.
    report = json.loads(done.stdout)
    for printed in ("exit handler", "of a child", "of the file's number"):
        assert printed in done.stderr
    assert f"arguments ['--epochs', '3'] __main__ {tmp_path / 'scripts'}" in done.stderr
    assert "finally" in done.stderr
    assert "never" not in done.stdout + done.stderr.replace("never.keras", "")
    assert report["verdict"]["kind"] == "callback-bound"
    assert "Sleepy" in report["headline"]
    # A fifth is held out.
    assert "4 examples a batch, 80 batches an epoch" in report["facts"]["data"]
    assert any("ModelCheckpoint" in note for note in report["notes"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["page.html", "scripts"]
    assert "callback-bound" in (tmp_path / "page.html").read_text(encoding="utf-8")


GENERATOR = """
    import keras
    import numpy as np


    def batches():
        while True:
            yield np.zeros([4, 8], "float32"), np.zeros([4], "int32")


    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    try:
        model.fit(batches(), steps_per_epoch=30, verbose=0)
    except:
        pass
    model.fit(batches(), steps_per_epoch=30, verbose=0)
    print("never")
"""


def audited(capsys, script: Path) -> Any:
    """What the command prints of a script in this process."""
    with turns_of(0.02):
        assert main(["audit", "--steps", "5", str(script)]) == 0
    return capsys.readouterr()


def test_a_generator_and_a_script_that_goes_on_all_the_same(tmp_path, capsys):
    printed = audited(capsys, write(tmp_path, GENERATOR)).out
    assert "a step of fit" in printed
    assert "never" not in printed
    assert "generator is one Python thread" in printed


IN_THREADS = """
    import threading
    import keras
    import numpy as np

    x, y = np.zeros([80, 8], "float32"), np.zeros([80], "int32")


    def train():
        model = keras.Sequential([keras.Input([8]), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        try:
            model.fit(x[:, 1:], y, verbose=0)
        except ValueError:
            print("a second try")
        model.fit(x, y, batch_size=4, verbose=0)
        print("never")


    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("joined")
"""


def test_fits_that_fail_and_two_at_once_in_threads(tmp_path, capsys, monkeypatch):
    # Python's own hook, which takes SystemExit for a quiet end; that of pytest does not.
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    printed = audited(capsys, write(tmp_path, IN_THREADS))
    assert "a second try" in printed.out
    assert printed.out.count("a step of fit") == 1
    assert "joined" in printed.out
    assert "never" not in printed.out
    assert "Traceback" not in printed.err


EAGER = """
    import keras

    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit([[0.0, 1.0]], [0.0])
"""


def refused(arguments) -> int:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    return exit_info.value.code


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("print('no training here')", "train.py ended without a call of model.fit()"),
        ("import sys\nsys.exit(3)", "train.py ended with exit code 3 without a call of model.fit()"),
        (
            EAGER,
            "runs eagerly",
        ),
    ],
    ids=["no fit", "exit", "eager"],
)
def test_scripts_that_can_not_be_audited(tmp_path, capsys, source, told):
    before = list(sys.path), list(sys.argv)
    assert refused(["audit", str(write(tmp_path, source))]) == 1
    printed = capsys.readouterr()
    assert told in printed.err
    assert "Traceback" not in printed.err
    assert (sys.path, sys.argv) == before


def test_an_error_of_the_script_is_shown_as_python_shows_it(tmp_path, capsys):
    script = write(tmp_path, "def train():\n    raise ValueError('of the script')\n\n\ntrain()\n")
    assert refused(["audit", str(script)]) == 1
    printed = capsys.readouterr().err
    lines = printed.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{script}", line 5, in <module>'
    assert "ValueError: of the script" in printed
    assert "runpy" not in printed
    assert "train.py raised ValueError before it could be audited." in printed


def test_a_script_that_is_no_python(tmp_path, capsys):
    script = write(tmp_path, "def train(:\n")
    assert refused(["audit", str(script)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f'  File "{script}", line 1'
    assert lines[-1].endswith("train.py raised SyntaxError before it could be audited.")


def test_what_stands_behind_the_script_is_its_own(tmp_path, capsys):
    script = write(tmp_path, "import sys\nprint(sys.argv[1:])")
    assert refused(["audit", str(script), "--html", "x.html", "--json"]) == 1
    printed = capsys.readouterr()
    assert "['--html', 'x.html', '--json']" in printed.out
    assert "note: --html, --json stands behind train.py, and so is the script's." in printed.err


def test_wrong_arguments(tmp_path, capsys):
    assert refused(["audit", str(tmp_path / "nothing.py")]) == 2
    assert "There is no script" in capsys.readouterr().err
    script = write(tmp_path, "raise SystemExit('never run')")
    assert refused(["audit", "--html", str(tmp_path), str(script)]) == 2
    assert "is a folder" in capsys.readouterr().err
    # Nobody, root included, can write there.
    assert refused(["audit", "--html", "/proc/a.html", str(script)]) == 2
    assert "Nothing can be written into '/proc'" in capsys.readouterr().err
    assert refused(["audit", "--html", str(tmp_path / "nowhere" / "a.html"), str(script)]) == 2
    assert "There is no folder" in capsys.readouterr().err
    assert refused(["audit", "--steps", "0", str(script)]) == 2
    assert "must be an integer from 1" in capsys.readouterr().err
    assert refused(["audit", "--help"]) == 0
    assert capsys.readouterr().out.count("(default:") == 4
