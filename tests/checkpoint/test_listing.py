"""`python -m keras_turbo checkpoints`: step, metric, size, age, health; exit code 1 if none is good."""

from __future__ import annotations

import json
import math
import time

import pytest

from keras_turbo.cli import main
from tests.checkpoint.saved import flip_bit, make_state, save


def save_run(directory):
    monitor = {"name": "val_loss", "mode": "min", "best": 0.25}
    for step, loss, hours in ((10, 0.5, 30.0), (20, 0.25, 3.0), (30, 0.75, 0.05)):
        metrics = {"loss": 9.0, "val_loss": loss}
        wall_time = time.time() - hours * 3600
        save(directory, step, state=make_state(step, metrics=metrics, monitor=monitor, wall_time=wall_time))
    return directory


def listing(capsys, *arguments):
    code = main(["checkpoints", *map(str, arguments)])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out


def test_a_table(capsys, tmp_path):
    code, out = listing(capsys, save_run(tmp_path))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["checkpoint", "step", "epoch", "metric", "size", "age", "health"]
    rows = [line.split("  ") for line in lines[1:4]]
    assert [row[0] for row in rows] == ["step-00000010", "step-00000020", "step-00000030"]
    for line, parts in zip(
        lines[1:4],
        (
            ("10", "1+2 batches", "val_loss 0.5 ", "30 h", "ok"),
            ("20", "val_loss 0.25 (best)", "3 h", "ok"),
            ("30", "val_loss 0.75", "3 min", "ok"),
        ),
        strict=True,
    ):
        for part in parts:
            assert part in line
        assert " kB" in line
    assert lines[4] == "3 of 3 good (sizes were compared; --verify reads every byte)"


def test_damage_that_only_verify_finds(capsys, tmp_path):
    save_run(tmp_path)
    flip_bit(tmp_path / "step-00000020" / "model.weights.h5")
    assert "3 of 3 good" in listing(capsys, tmp_path)[1]
    code, out = listing(capsys, tmp_path, "--verify")
    assert code == 0
    assert "model.weights.h5 is damaged" in out
    assert out.splitlines()[-1] == "2 of 3 good (every byte was read)"
    # The best of those that can be restored.
    assert "val_loss 0.5 (best)" in out


def test_damage_that_is_seen_at_once(capsys, tmp_path):
    save_run(tmp_path)
    (tmp_path / "step-00000010" / "COMMITTED").unlink()
    (tmp_path / "step-00000020" / "training_state.json").write_text("{}")
    (tmp_path / "step-00000030" / "extra_state.h5").unlink()
    code, out = listing(capsys, tmp_path)
    assert code == 1
    for part in ("no commit marker", "training_state.json has", "extra_state.h5 is missing", "0 of 3 good"):
        assert part in out


def test_json(capsys, tmp_path):
    save_run(tmp_path)
    save(tmp_path, 40, state=make_state(40, metrics={"val_loss": math.nan}, monitor=None))
    flip_bit(tmp_path / "step-00000010" / "training_state.json")
    code, out = listing(capsys, tmp_path, "--json", "--verify")
    found = {one["name"]: one for one in json.loads(out, parse_constant=pytest.fail)}
    assert code == 0
    assert [one["ok"] for one in found.values()] == [False, True, True, True]
    assert found["step-00000020"]["best"]
    assert sum(one["best"] for one in found.values()) == 1
    assert found["step-00000020"]["optimizer_step"] == 20
    assert found["step-00000020"]["path"] == str(tmp_path / "step-00000020")
    assert found["step-00000040"]["metrics"] == {"val_loss": {"__float__": "nan"}}
    assert found["step-00000010"]["optimizer_step"] is None
    assert found["step-00000010"]["problems"]


def test_one_checkpoint(capsys, tmp_path):
    save_run(tmp_path)
    code, out = listing(capsys, tmp_path / "step-00000020")
    assert code == 0
    assert out.splitlines()[-1].startswith("1 of 1 good")


def test_none(capsys, tmp_path):
    code, out = listing(capsys, tmp_path)
    assert (code, out) == (1, f"There are no checkpoints in {tmp_path}.\n")
    assert listing(capsys, tmp_path, "--json") == (1, "[]\n")


@pytest.mark.parametrize(
    ("path", "message"), [("nowhere", "There is no folder"), ("foo://x", "No file system is installed")]
)
def test_a_path_that_can_not_be(capsys, tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        main(["checkpoints", path])
    assert exit_info.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("python -m keras_turbo checkpoints: error: ")
    assert message in printed.err


def test_the_value_that_judges_is_not_the_mean_of_half_an_epoch(capsys, tmp_path):
    for step, value in ((10, None), (20, 0.5)):
        monitor = {"name": "loss", "mode": "min", "best": 0.5, "value": value}
        save(tmp_path, step, state=make_state(step, metrics={"loss": 0.1}, monitor=monitor))
    out = listing(capsys, tmp_path)[1]
    assert "loss 0.1" not in out
    assert "loss 0.5 (best)" in out.splitlines()[2]


def test_a_clock_that_is_behind(capsys, tmp_path):
    save(tmp_path, 1, state=make_state(1, wall_time=time.time() + 1000))
    assert "in the future" in listing(capsys, tmp_path)[1]
