"""`python -m keras_turbo`: exit codes, help and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_turbo
from keras_turbo.cli import main
from keras_turbo.doctor.findings import Examination, Finding

ROOT = Path(__file__).parents[1]


def run(*arguments) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keras_turbo", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def write_images(folder, classes=("bright", "dark"), number=20, size=(10, 12)):
    rng = np.random.default_rng(0)
    for index, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for count in range(number):
            pixels = rng.integers(index * 128, index * 128 + 128, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{count}.png")
    return folder


def exit_of(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_info:
        main([str(argument) for argument in arguments])
    return exit_info.value.code, capsys.readouterr()


def test_no_command_prints_the_help_and_exits_2(capsys):
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "demo" in printed.err
    assert printed.err.startswith("usage: python -m keras_turbo")


def test_version(capsys):
    code, printed = exit_of(capsys, "--version")
    assert code == 0
    assert printed.out.strip() == f"keras_turbo {keras_turbo.__version__}"


def test_help_says_every_default(capsys):
    code, printed = exit_of(capsys, "demo", "--help")
    assert code == 0
    flags = ("--data", "--epochs", "--batch-size", "--image-size", "--seed")
    for flag in flags:
        assert flag in printed.out
    assert printed.out.count("(default:") == len(flags)


def test_an_unknown_command(capsys):
    code, printed = exit_of(capsys, "dmeo")
    assert code == 2
    assert "dmeo" in printed.err
    assert "demo" in printed.err


@pytest.mark.parametrize(
    ("flag", "value", "smallest"),
    [
        ("--epochs", "0", 1),
        ("--epochs", "two", 1),
        ("--epochs", "1.5", 1),
        ("--batch-size", "-1", 1),
        ("--image-size", "0", 1),
        ("--seed", "-1", 0),
    ],
)
def test_a_bad_number(capsys, flag, value, smallest):
    code, printed = exit_of(capsys, "demo", f"{flag}={value}")
    assert code == 2
    assert f"argument {flag}: must be an integer from {smallest}. Received: {value!r}." in printed.err


def folder_without_anything(tmp_path):
    return tmp_path


def folder_without_class_folders(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    return tmp_path


def folder_without_images(tmp_path):
    (tmp_path / "cats").mkdir()
    (tmp_path / "dogs").mkdir()
    return tmp_path


def a_file(tmp_path):
    (tmp_path / "file").touch()
    return tmp_path / "file"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda tmp_path: tmp_path / "nowhere", "There is no folder"),
        (a_file, "is a file. Give the folder"),
        (folder_without_anything, "has no class folders"),
        (folder_without_class_folders, "has no class folders"),
        (folder_without_images, "No images under"),
        (lambda tmp_path: write_images(tmp_path, classes=("cats",)), "one class folder, 'cats'"),
        (lambda tmp_path: write_images(tmp_path, number=1), "2 images are too few to hold 20% of them out"),
    ],
    ids=["missing", "file", "empty", "flat", "no images", "one class", "too few"],
)
def test_a_folder_that_cannot_be(capsys, tmp_path, make, message):
    folder = make(tmp_path)
    code, printed = exit_of(capsys, "demo", "--data", folder)
    assert code == 2
    assert printed.out == ""
    assert printed.err.startswith("python -m keras_turbo demo: error: ")
    assert message in printed.err
    assert str(folder) in printed.err or "too few" in message
    assert printed.err.count("\n") == 1


def test_digits_without_scikit_learn(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    code, printed = exit_of(capsys, "demo")
    assert code == 2
    assert 'pip install "keras_turbo[demo]"' in printed.err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_it_quietly(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_turbo.demo.run_demo", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == ""


@pytest.fixture
def one_finding(monkeypatch):
    """The doctor finds one thing, at once."""
    report = Examination("1", (Finding("disk", "error", "It is gone.", "Look for it."),))
    monkeypatch.setattr("keras_turbo.doctor.examination.examine", lambda version, folder: report)


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_a_reader_that_has_gone_is_not_taken_for_something_wrong(one_finding, monkeypatch, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(arguments) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_a_report_that_can_not_be_written(one_finding, monkeypatch, capsys, arguments):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as exit_info:
            main(arguments)
    assert exit_info.value.code == 2
    assert "error: The report can't be written: [Errno 28]" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_the_exit_code_is_all_that_a_doctor_without_an_output_gives(one_finding, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(arguments) == 1


def test_demo_on_a_folder(capsys, tmp_path):
    folder = write_images(tmp_path)
    assert main(["demo", "--data", str(folder), "--epochs", "2", "--image-size", "8", "--batch-size", "16"]) == 0
    printed = capsys.readouterr()
    assert "32 images of 2 classes, 8 held out, 8 by 8 pixels, batch 16" in printed.out
    for row in ("first epoch, seconds", "epochs 2 to 2", "images a second", "validation accuracy"):
        assert row in printed.out
    # No terminal, no bar.
    assert printed.err == ""


@pytest.mark.slow
def test_as_a_program(tmp_path):
    nothing = run()
    assert nothing.returncode == 2
    assert "usage: python -m keras_turbo" in nothing.stderr

    missing = run("demo", "--data", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "There is no folder" in missing.stderr
    assert "Traceback" not in missing.stderr

    folder = write_images(tmp_path)
    (folder / "dark" / "broken.png").write_bytes((folder / "dark" / "0.png").read_bytes()[:40])
    result = run("demo", "--data", folder, "--epochs", 1, "--image-size", 8)
    assert result.returncode == 0, result.stderr
    assert "32 images of 2 classes" in result.stdout
    warning = next(line for line in result.stderr.splitlines() if line.startswith("warning:"))
    assert "1 of 41 images can't be read by stock Keras and are left out of both runs" in warning
    assert "broken.png" in warning
