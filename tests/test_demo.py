"""The demo: its digits, which images are held out, and that both runs are given the same."""

from __future__ import annotations

import io
import os
import re
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_turbo.demo import DemoError, DemoResult, RunFigures, comparison, digit_folders, run_demo
from keras_turbo.demo.held_out import hold_out
from tests.test_cli import write_images


def relative_files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_digits_are_those_of_scikit_learn(tmp_path):
    from sklearn.datasets import load_digits

    folder = digit_folders(tmp_path)
    assert folder == tmp_path / "digits"
    assert sorted(path.name for path in folder.iterdir()) == [str(number) for number in range(10)]
    digits = load_digits()
    files = sorted(folder.rglob("*.png"), key=lambda path: path.name)
    assert len(files) == len(digits.images) == 1797
    assert [int(path.parent.name) for path in files] == digits.target.tolist()
    pixels = np.stack([np.asarray(Image.open(path)) for path in files])
    assert pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels / 255 * 16, digits.images, atol=0.04)
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def test_digits_are_written_once(tmp_path, monkeypatch):
    folder = digit_folders(tmp_path)
    times = [path.stat().st_mtime_ns for path in folder.rglob("*.png")]
    # What is there needs no scikit-learn.
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert digit_folders(tmp_path) == folder
    assert [path.stat().st_mtime_ns for path in folder.rglob("*.png")] == times


def test_a_set_with_files_missing_is_written_again(tmp_path):
    folder = digit_folders(tmp_path)
    before = relative_files(folder)
    (folder / before[5]).unlink()
    digit_folders(tmp_path)
    assert relative_files(folder) == before


def test_a_first_run_that_fails_leaves_nothing(tmp_path, monkeypatch):
    saved = []

    def save(self, path, *args, **kwargs):
        if len(saved) == 100:
            raise OSError(28, "No space left on device")
        saved.append(path)

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(OSError, match="No space left"):
        digit_folders(tmp_path)
    assert len(saved) == 100
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_later(tmp_path):
    old, new = tmp_path / ".writing-old", tmp_path / ".writing-new"
    for folder in (old, new):
        (folder / "0").mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    digit_folders(tmp_path)
    assert not old.exists()
    # It may belong to a process that is writing now.
    assert new.exists()


def test_two_processes_may_write_the_digits_at_the_same_time(tmp_path, monkeypatch):
    def rename_after_another(source, target):
        monkeypatch.undo()
        digit_folders(tmp_path)
        os.rename(source, target)

    monkeypatch.setattr("keras_turbo.demo.digits.os.rename", rename_after_another)
    folder = digit_folders(tmp_path)
    assert len(relative_files(folder)) == 1797
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def test_held_out_images_are_disjoint_and_complete(tmp_path):
    folder = write_images(tmp_path / "photos", classes=("a b", "cé"), number=10)
    (tmp_path / "1").mkdir()
    images = hold_out(folder, tmp_path / "1", seed=3)
    assert (images.num_training, images.num_validation) == (16, 4)
    assert images.class_names == ("a b", "cé")
    training = {os.path.realpath(path) for path in images.training.rglob("*.png")}
    validation = {os.path.realpath(path) for path in images.validation.rglob("*.png")}
    assert (len(training), len(validation)) == (16, 4)
    assert training | validation == {str(path) for path in folder.rglob("*.png")}
    for link in [*images.training.rglob("*.png"), *images.validation.rglob("*.png")]:
        assert link.parent.name == Path(os.path.realpath(link)).parent.name

    again = hold_out(folder, tmp_path / "2", seed=3)
    assert relative_files(again.validation) == relative_files(images.validation)
    other = hold_out(folder, tmp_path / "3", seed=4)
    assert relative_files(other.validation) != relative_files(images.validation)


def test_images_are_copied_where_links_cannot_be(tmp_path, monkeypatch):
    def no_links(self, target):
        raise OSError("operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", no_links)
    folder = write_images(tmp_path / "photos", number=5)
    images = hold_out(folder, tmp_path / "scratch", seed=0)
    copies = [*images.training.rglob("*.png"), *images.validation.rglob("*.png")]
    assert len(copies) == 10
    assert not any(path.is_symlink() for path in copies)
    assert {path.read_bytes() for path in copies} == {path.read_bytes() for path in folder.rglob("*.png")}


def test_images_that_stock_keras_cannot_read_are_left_out_of_both_runs(tmp_path):
    folder = write_images(tmp_path / "photos", number=10)
    Image.new("RGB", (8, 8)).save(folder / "dark" / "web.webp")
    (folder / "dark" / "empty.jpg").touch()
    whole = (folder / "bright" / "0.png").read_bytes()
    (folder / "bright" / "half.png").write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match=r"3 of 23 images can't be read by stock Keras and are left out") as caught:
        images = hold_out(folder, tmp_path / "scratch", seed=0)
    assert len(caught) == 1
    for name in ("web.webp", "empty.jpg", "half.png"):
        assert name in str(caught[0].message)
    assert images.num_training + images.num_validation == 20


def test_nothing_that_can_be_read(tmp_path):
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for number in range(5):
            (tmp_path / name / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DemoError, match=r"10 of 10 images can't be read by stock Keras: .*0\.png .*and 5 more"):
        run_demo(tmp_path)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch_size": 0}, {"image_size": 0}, {"seed": -1}])
def test_a_number_out_of_range(wrong):
    (name,) = wrong
    with pytest.raises(DemoError, match=f"`{name}` must be at least .*{name}="):
        run_demo(**wrong)


def test_both_runs_are_given_the_same(tmp_path, monkeypatch):
    seen = []

    def train(title, model, training, validation, **kwargs):
        parts = [list(part) for part in (training, validation)]
        images = [np.concatenate([np.asarray(batch) for batch, _ in batches]) for batches in parts]
        labels = [np.concatenate([np.asarray(batch) for _, batch in batches]) for batches in parts]
        seen.append((model.get_weights(), images, labels))
        return RunFigures((1.0,), 0.5, 40)

    monkeypatch.setattr(comparison, "_train", train)
    result = run_demo(write_images(tmp_path), image_size=10)
    assert (result.num_training, result.num_validation) == (32, 8)
    (stock_weights, stock_images, stock_labels), (turbo_weights, turbo_images, turbo_labels) = seen
    for one, other in zip(stock_weights, turbo_weights, strict=True):
        np.testing.assert_array_equal(one, other)
    for part in (0, 1):
        # Each run has its own shuffled order; an image's partner is the one whose pixels differ by rounding alone.
        difference = np.abs(stock_images[part][:, None] - turbo_images[part][None].astype("float32")).max((2, 3, 4))
        stock_index, turbo_index = np.nonzero(difference < 0.51)
        assert sorted(stock_index) == sorted(turbo_index) == list(range(len(stock_images[part])))
        np.testing.assert_array_equal(stock_labels[part][stock_index], turbo_labels[part][turbo_index])


def test_one_epoch_on_a_few_images(tmp_path):
    before = set(Path(tmp_path).rglob("*"))
    folder = write_images(tmp_path / "photos")
    written = set(folder.rglob("*")) | {folder}
    result = run_demo(folder, epochs=1, batch_size=16, image_size=8, seed=1)
    assert set(tmp_path.rglob("*")) == before | written
    assert (result.num_training, result.num_validation) == (32, 8)
    assert result.class_names == ("bright", "dark")
    for figures in (result.stock, result.turbo):
        assert len(figures.epoch_seconds) == 1
        assert 0 < figures.epoch_seconds[0] == figures.first_epoch_seconds == figures.later_epoch_seconds
        assert figures.images_per_second == pytest.approx(40 / figures.epoch_seconds[0])
        assert 0 <= figures.val_accuracy <= 1


def test_the_ratio_is_of_the_later_epochs_and_printed_as_measured():
    stock = RunFigures((9.0, 1.0, 1.2, 1.1), 0.981, 100)
    turbo = RunFigures((3.0, 2.2, 2.0, 2.4), 0.9834, 100, "15 steps in a graph loop", 4.2)
    result = DemoResult(stock, turbo, 80, 20, ("a", "b"), 64, 32)
    assert stock.later_epoch_seconds == 1.1
    assert result.ratio == pytest.approx(0.5)
    text = io.StringIO()
    result.print(text)
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.getvalue().splitlines()]
    cells = {what: figures for what, *figures in lines if figures and figures[0][0].isdigit()}
    assert "tune() chose for its steps: 15 steps in a graph loop" in " ".join(text.getvalue().split())
    assert cells == {
        "first epoch, seconds": ["9.000", "3.000", "3.00"],
        "epochs 2 to 4, seconds each (median)": ["1.100", "2.200", "0.50"],
        "images a second": ["91", "45", "0.50"],
        "tune(), seconds once": ["4.2"],
        "validation accuracy at the end": ["0.9810", "0.9834"],
    }


@pytest.mark.slow
def test_digits_are_learned_by_both_runs():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run_demo()
    assert (result.num_training, result.num_validation) == (1438, 359)
    assert len(result.stock.epoch_seconds) == len(result.turbo.epoch_seconds) == 12
    assert result.stock.val_accuracy >= 0.97
    assert result.turbo.val_accuracy >= 0.97
