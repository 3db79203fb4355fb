"""What report() measures and says, and that it leaves the dataset as it was."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import tensorflow as tf

from keras_turbo import FastDataset
from keras_turbo.data.profile import PipelineReport, StageFigures
from tests.data.epochs import rows_of
from tests.data.noise_images import write_images

SECONDS = 0.05


def double(x):
    return x * 2


def add_noise(x):
    return x + tf.random.normal(tf.shape(x))


@pytest.fixture
def photos(tmp_path):
    write_images(tmp_path / "photos", [f"{name}/{number}.png" for name in "ab" for number in range(4)])
    return tmp_path / "photos"


def stages_of(report: PipelineReport) -> list[str]:
    return [stage.name for stage in report.stages]


def assert_sound(report: PipelineReport) -> None:
    assert all(stage.examples_per_second > 0 for stage in report.stages)
    assert all(0 <= stage.share_of_time <= 1 for stage in report.stages)
    assert report.slowest == max(report.stages, key=lambda stage: stage.microseconds_per_example).name
    for stage in report.stages:
        assert stage.examples_per_second * stage.microseconds_per_example == pytest.approx(1e6)
    assert 0 < report.examples_per_second <= report.limit_examples_per_second
    assert report.share_of_limit == pytest.approx(report.examples_per_second / report.limit_examples_per_second)
    assert report.advice


class TestStages:
    def test_of_arrays(self, capsys):
        report = FastDataset(np.ones((20, 3)), batch_size=4).report(SECONDS)
        assert stages_of(report) == ["gather", "batch"]
        assert report.stored_examples_per_second is None
        assert_sound(report)

    def test_of_arrays_with_functions(self, capsys):
        x = np.ones((20, 3), "float32")
        report = FastDataset(x, batch_size=4, map_fn=double, augment_fn=add_noise).report(SECONDS)
        assert stages_of(report) == ["gather", "map", "augment", "batch"]
        assert_sound(report)

    def test_of_images(self, photos, capsys):
        dataset = FastDataset.from_image_folder(photos, image_size=(8, 8), batch_size=4, map_fn=double, shuffle=False)
        report = dataset.report(SECONDS)
        assert stages_of(report) == ["read", "decode", "map", "batch"]
        # The store is measured apart, and stays empty.
        assert report.stored_examples_per_second > 0
        assert dataset._recipe.store.num_filled == 0
        assert_sound(report)

    def test_of_files_one_by_one(self, photos, capsys):
        dataset = FastDataset.from_files(f"{photos}/*/*.png", tf.io.read_file, batch_size=None)
        report = dataset.report(SECONDS)
        assert stages_of(report) == ["read", "load"]
        assert_sound(report)

    def test_of_a_single_example(self, capsys):
        assert_sound(FastDataset(np.ones(1)).report(SECONDS))

    def test_each_stage_has_what_it_adds(self, monkeypatch, capsys):
        # Seconds an example of gathering, up to the map, up to the augmentation, and of whole batches.
        measured = iter([0.01, 0.05, 0.04, 0.06])
        monkeypatch.setattr("keras_turbo.data.profile._seconds_per_example", lambda *_: next(measured))
        x = np.ones((20, 3), "float32")
        report = FastDataset(x, batch_size=4, map_fn=double, augment_fn=add_noise).report()
        added = {stage.name: stage.microseconds_per_example for stage in report.stages}
        # A stage that seems to take less than nothing takes next to nothing.
        assert added == pytest.approx({"gather": 10_000, "map": 40_000, "augment": 0.001, "batch": 10_000})
        assert [stage.share_of_time for stage in report.stages] == pytest.approx([1 / 6, 4 / 6, 0, 1 / 6], abs=1e-6)
        assert report.examples_per_second == pytest.approx(1 / 0.06)
        assert report.limit_examples_per_second == pytest.approx(1 / 0.01)
        assert report.slowest == "map"
        assert "map_fn" in report.advice


class TestOutput:
    REPORT = PipelineReport(
        stages=(StageFigures("read", 10_000.0, 100.0, 0.1), StageFigures("decode", 1111.1, 900.0, 0.9)),
        examples_per_second=1000.0,
        limit_examples_per_second=1250.0,
        stored_examples_per_second=50_000.0,
        slowest="decode",
        advice="Decode less.",
    )

    def test_a_table_is_printed(self, capsys):
        FastDataset(np.ones((20, 3)), batch_size=4).report(SECONDS)
        printed = capsys.readouterr().out
        for words in ("FastDataset, stage by stage", "examples/s alone", "gather", "batch", "of the limit. Slowest: "):
            assert words in printed

    def test_the_table_has_the_figures(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "120")
        text = str(self.REPORT)
        rows = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
        assert "read 10,000 100.0 10%" in rows
        assert "decode (slowest) 1,111 900.0 90%" in rows
        assert "all stages 1,000 1,000.0" in rows
        assert "limit: loading and nothing else 1,250" in rows
        assert "from the store, later epochs 50,000" in rows
        assert "80% of the limit. Slowest: decode. Decode less." in rows

    def test_it_prints_to_a_file(self):
        file = io.StringIO()
        self.REPORT.print(file)
        assert file.getvalue() == str(self.REPORT)

    def test_json(self):
        kept = json.loads(json.dumps(self.REPORT.to_dict()))
        assert kept["stages"][1] == {
            "name": "decode",
            "examples_per_second": 1111.1,
            "microseconds_per_example": 900.0,
            "share_of_time": 0.9,
        }
        assert kept["share_of_limit"] == 0.8
        assert kept["slowest"] == "decode"

    def test_json_of_what_was_measured(self, capsys):
        json.dumps(FastDataset(np.ones((20, 3))).report(SECONDS).to_dict())


def test_no_epoch_is_counted(capsys):
    x = np.arange(20, dtype="float32")
    options = {"batch_size": 4, "shuffle": True, "seed": 1, "augment_fn": add_noise, "cache": "memory"}
    measured, other = FastDataset(x, **options), FastDataset(x, **options)
    for _ in range(2):
        measured.report(SECONDS)
        np.testing.assert_array_equal(rows_of(measured), rows_of(other))


class TestErrors:
    @pytest.mark.parametrize("cache", [False, "memory"])
    def test_a_dataset_has_no_stages(self, cache):
        with pytest.raises(ValueError, match=r"report\(\) measures arrays and files"):
            FastDataset(tf.data.Dataset.range(5), cache=cache).report()

    @pytest.mark.parametrize("seconds", [0, -1])
    def test_no_time(self, seconds):
        with pytest.raises(ValueError, match="`seconds` must be positive"):
            FastDataset(np.ones(5)).report(seconds)

    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    def test_nothing_can_be_loaded(self, tmp_path, on_error):
        """Errors are left out of what is measured; where all fail, there would be no end."""
        for number in range(3):
            (tmp_path / f"{number}.png").write_bytes(b"no image")
        dataset = FastDataset.from_image_folder(
            tmp_path, labels=None, image_size=(8, 8), on_error=on_error, shuffle=False
        )
        with pytest.raises(ValueError, match=r"None of 3 examples that were tried can be loaded, .*0\.png"):
            dataset.report(SECONDS)

    def test_some_can_be_loaded(self, photos, capsys):
        (photos / "a" / "0.png").write_bytes(b"no image")
        dataset = FastDataset.from_image_folder(photos, image_size=(8, 8), on_error="skip", shuffle=False)
        assert_sound(dataset.report(SECONDS))
        assert dataset.skipped == []
