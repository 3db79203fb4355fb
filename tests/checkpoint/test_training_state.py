"""The training state: checked, written as JSON, read back equal."""

from __future__ import annotations

import json
import math

import keras
import numpy as np
import pytest

import keras_turbo
from keras_turbo.checkpoint.layout import FileRecord, TrainingState
from tests.checkpoint.saved import make_state

pytestmark = pytest.mark.compatibility


def full_state():
    return make_state(
        7,
        metrics={"loss": np.float32(0.25), "val_auc": 0.9},
        monitor={"name": "val_auc", "mode": "max", "best": 0.95},
        data={"epoch": 3, "batch": np.int64(2), "seed": None},
        callbacks={"EarlyStopping": {"wait": 1, "best": -math.inf, "stopped": False, "logs": (1, 2)}},
        history={"loss": [1.5, 0.25]},
        loss_scale=32768.0,
        num_shards=2,
        wall_time=1234.5,
        files={"model.weights.h5": FileRecord(10, "crc32:00000000")},
    )


def test_a_state_survives_json():
    state = full_state()
    assert TrainingState.from_json(state.to_json()) == state
    assert state.metrics["loss"] == 0.25
    assert type(state.data["batch"]) is int
    assert state.callbacks["EarlyStopping"]["logs"] == [1, 2]


def test_json_is_strict_and_keeps_what_is_no_number():
    state = make_state(metrics={"nan": math.nan, "inf": math.inf, "minus": -np.inf, "tiny": 5e-324, "third": 1 / 3})
    text = state.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    found = TrainingState.from_json(text).metrics
    assert math.isnan(found.pop("nan"))
    assert found == {"inf": math.inf, "minus": -math.inf, "tiny": 5e-324, "third": 1 / 3}


def test_versions_and_time_are_filled_in():
    state = TrainingState(epoch=0, batch=0, optimizer_step=0, steps=0)
    assert state.versions["keras"] == keras.__version__
    assert state.versions["keras_turbo"] == keras_turbo.__version__
    assert state.wall_time > 1.7e9
    assert state.format_version == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": -1}, "epoch must be an integer from 0"),
        ({"batch": 1.5}, "batch must be an integer"),
        ({"steps": True}, "steps must be an integer"),
        ({"num_shards": 0}, "num_shards must be an integer from 1"),
        ({"metrics": {"loss": "low"}}, r"metrics\['loss'\] must be a number"),
        ({"metrics": {1: 2.0}}, "metrics must have text as keys. Received: 1"),
        (
            {"callbacks": {"x": {"weights": [np.zeros(2)]}}},
            r"callbacks\['x'\]\['weights'\]\[0\] must be text, a number",
        ),
        ({"history": {"loss": 3}}, r"history\['loss'\] must be a list"),
        ({"monitor": {"name": "loss", "mode": "auto"}}, '"min" or "max"'),
        ({"monitor": {"name": "loss", "mode": "min", "best": "x"}}, "must be a number or None"),
        ({"monitor": {"name": "loss", "mode": "min", "value": "x"}}, "must be a number or None"),
        ({"data": [1]}, "data must be a dict or None"),
        ({"wall_time": math.nan}, "wall_time must be seconds"),
        ({"loss_scale": "big"}, "loss_scale must be a number"),
        ({"files": {"../x": FileRecord(1, "crc32:0")}}, "plain name"),
        ({"format_version": 0}, "format version 0"),
    ],
)
def test_what_can_not_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_state(**changes)


def test_a_newer_format_is_refused_by_name():
    content = {**json.loads(full_state().to_json()), "format_version": 2, "versions": {"keras_turbo": "9.1"}}
    with pytest.raises(ValueError, match=r"format version 2, written by keras_turbo 9\.1.*Install a newer one"):
        TrainingState.from_json(json.dumps(content))


def test_what_a_later_writer_of_this_format_adds_is_let_be():
    content = {**json.loads(full_state().to_json()), "colour": "blue"}
    assert TrainingState.from_json(json.dumps(content)) == full_state()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", "", "a\\b", "x\0"])
def test_a_file_outside_its_folder_is_refused(name):
    content = json.loads(full_state().to_json())
    content["files"] = {name: {"bytes": 1, "checksum": "crc32:0"}}
    with pytest.raises(ValueError, match="plain name, without folders"):
        TrainingState.from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be a JSON object"),
        ("{}", "lacks epoch"),
        ("{", "Expecting"),
        ('{"epoch": NaN}', "no NaN"),
        ("[" * 100_000, "nested so deep"),
    ],
)
def test_what_is_no_state_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        TrainingState.from_json(text)


@pytest.mark.parametrize(
    "files", [[], {"a": 1}, {"a": {"bytes": -1, "checksum": ""}}, {"a": {"bytes": 1, "checksum": 2}}]
)
def test_bad_records_of_files_are_refused(files):
    content = {**json.loads(full_state().to_json()), "files": files}
    with pytest.raises(ValueError, match="files"):
        TrainingState.from_json(json.dumps(content))
