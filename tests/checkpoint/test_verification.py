"""Damage is found by checksum, said, and the checkpoint before is used."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings

import pytest

from keras_turbo.checkpoint import latest, restore, verify
from keras_turbo.checkpoint.location import LocalFiles, checksum_of
from keras_turbo.checkpoint.reading import read_checkpoint
from keras_turbo.checkpoint.retention import Pruner
from keras_turbo.files import attempts
from tests.checkpoint.saved import flip_bit, make_state, save


def flip(name, position=None):
    return lambda folder: flip_bit(folder / name, position)


def cut(name, nbytes):
    def damage(folder):
        with open(folder / name, "r+b") as file:
            file.truncate((folder / name).stat().st_size - nbytes)

    return damage


def remove(name):
    return lambda folder: (folder / name).unlink()


def grow(folder):
    with open(folder / "extra_state.h5", "ab") as file:
        file.write(b"\0")


def lead_out(folder):
    state = json.loads((folder / "training_state.json").read_text())
    state["files"]["../step-00000001/model.weights.h5"] = {"bytes": 1, "checksum": "crc32:0"}
    (folder / "training_state.json").write_text(json.dumps(state))
    (folder / "COMMITTED").unlink()


def without_a_checksum(folder):
    marker = json.loads((folder / "COMMITTED").read_text())
    marker["training_state.json"]["checksum"] = None
    (folder / "COMMITTED").write_text(json.dumps(marker))


DAMAGE = {
    "a flipped bit in the weights": (flip("model_00001.weights.h5"), "model_00001.weights.h5 is damaged: its checksum"),
    "one in the last byte": (flip("model_00000.weights.h5", -1), "model_00000.weights.h5 is damaged"),
    "one in the first byte": (flip("extra_state.h5", 0), "extra_state.h5 is damaged"),
    "one in the index of shards": (flip("model.weights.json"), "model.weights.json is damaged"),
    "one in the training state": (flip("training_state.json"), "training_state.json is damaged"),
    "one in the commit marker": (flip("COMMITTED", 1), "COMMITTED is damaged"),
    "truncated weights": (cut("model_00001.weights.h5", 1), "model_00001.weights.h5 has"),
    "a truncated training state": (cut("training_state.json", 10), "training_state.json has"),
    "an empty commit marker": (lambda folder: (folder / "COMMITTED").write_bytes(b""), "COMMITTED is damaged"),
    "a commit marker without a checksum": (without_a_checksum, "COMMITTED is damaged"),
    "a commit marker that is nested deep": (
        lambda folder: (folder / "COMMITTED").write_text("[" * 100_000),
        "COMMITTED is damaged",
    ),
    "a byte too many": (grow, "extra_state.h5 has"),
    "a missing shard": (remove("model_00001.weights.h5"), "model_00001.weights.h5 is missing"),
    "a missing index of shards": (remove("model.weights.json"), "model.weights.json is missing"),
    "a missing training state": (remove("training_state.json"), "training_state.json is missing"),
    "no commit marker": (remove("COMMITTED"), "no commit marker"),
    "names that lead out of the folder": (lead_out, "plain name, without folders"),
}


@pytest.fixture
def directory(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, max_shard_mb=0.001)
    return tmp_path


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_the_one_before_used(directory, kind):
    damage, message = DAMAGE[kind]
    damage(directory / "step-00000003")
    assert [health.ok for health in verify(directory)] == [True, True, False]
    assert message in "; ".join(verify(directory)[-1].problems)
    with pytest.warns(UserWarning, match=r"passed over \(step-00000003: .*step-00000002 is used instead") as caught:
        assert latest(directory) == directory / "step-00000002"
    assert message in str(caught[0].message)
    assert len(caught) == 1
    with pytest.raises((ValueError, FileNotFoundError)):
        read_checkpoint(directory / "step-00000003")


def test_every_bit_counts(tmp_path):
    folder = save(tmp_path, 1)
    for path in folder.iterdir():
        whole = path.read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 50)):
            flip_bit(path, position)
            assert not verify(folder)[0].ok, (path.name, position)
            path.write_bytes(whole)
    assert verify(folder)[0].ok


def test_whole_ones_give_no_warning(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest(directory) == directory / "step-00000003"
    assert all(health.ok and health.whole and health.nbytes > 0 for health in verify(directory))


def test_several_damaged_ones_are_all_named(directory):
    for step in (1, 2, 3):
        flip_bit(directory / f"step-0000000{step}" / "extra_state.h5")
    with pytest.warns(UserWarning, match=r"step-00000003: .*step-00000002: .*step-00000001: .*there is no good one in"):
        assert latest(directory) is None
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(FileNotFoundError, match="no good checkpoint in"),
    ):
        restore(None, directory)


def test_the_one_that_was_named_is_not_replaced_by_another(directory):
    flip_bit(directory / "step-00000003" / "extra_state.h5")
    with pytest.raises(ValueError, match="step-00000003 is damaged: extra_state.h5"):
        restore(None, directory / "step-00000003")


def test_none_at_all(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    assert verify(tmp_path / "nowhere") == []
    with pytest.raises(FileNotFoundError, match="is no checkpoint"):
        read_checkpoint(tmp_path)


def test_folders_of_others_are_no_checkpoints(directory):
    (directory / "step-00000009").mkdir()
    (directory / "logs").mkdir()
    (directory / "logs" / "events").touch()
    (directory / "step-00000010").touch()
    (directory / ".writing-step-00000011").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest(directory).name == "step-00000003"
    assert len(verify(directory)) == 3


def test_one_that_is_deleted_meanwhile_is_not_called_damaged(directory, monkeypatch):
    read = LocalFiles.chunks

    def deleted(self, path):
        if "step-00000003" in path:
            shutil.rmtree(directory / "step-00000003")
        return read(self, path)

    monkeypatch.setattr(LocalFiles, "chunks", deleted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest(directory).name == "step-00000002"


def test_a_newer_format_is_named(directory):
    path = directory / "step-00000003" / "COMMITTED"
    marker = {**json.loads(path.read_text()), "format_version": 2}
    path.write_text(json.dumps(marker))
    health = verify(directory)[-1]
    assert "COMMITTED has format version 2; this version of keras_turbo knows 1" in health.problems
    assert health.newer
    assert not health.ok


def test_what_a_later_version_wrote_is_never_deleted(directory):
    path = directory / "step-00000001" / "COMMITTED"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    pruner = Pruner(directory, max_to_keep=1, keep_best=0, keep_every_hours=None)
    save(directory, 4)
    deleted = pruner.saved("step-00000004", verify(directory)[-1].state)
    assert "step-00000001" not in deleted
    assert "step-00000002" in deleted
    assert (directory / "step-00000001").is_dir()


def test_an_unknown_checksum_is_named(tmp_path):
    folder = save(tmp_path, 1)
    state = json.loads((folder / "training_state.json").read_text())
    state["files"]["extra_state.h5"]["checksum"] = "xxh3:00"
    content = json.dumps(state).encode()
    (folder / "training_state.json").write_bytes(content)
    marker = json.loads((folder / "COMMITTED").read_text())
    marker["training_state.json"] = {"bytes": len(content), "checksum": checksum_of([content])}
    (folder / "COMMITTED").write_text(json.dumps(marker))
    assert any("doesn't know: 'xxh3:00'" in problem for problem in verify(folder)[0].problems)


# The newest


def test_the_newest_when_the_clock_was_set_back(tmp_path):
    save(tmp_path, 10, state=make_state(10, wall_time=2e9))
    save(tmp_path, 20, state=make_state(20, wall_time=1e9))
    assert latest(tmp_path).name == "step-00000020"


def test_the_newest_by_state_where_names_tell_nothing(tmp_path):
    save(tmp_path, 100, name="b", state=make_state(100, wall_time=1.0))
    save(tmp_path, 9, name="c", state=make_state(9, wall_time=3.0))
    save(tmp_path, 20, name="a", state=make_state(20, wall_time=2.0))
    assert latest(tmp_path).name == "b"


def test_the_newest_where_only_some_names_tell(tmp_path):
    save(tmp_path, 5)
    save(tmp_path, 7, name="last")
    save(tmp_path, 6)
    assert latest(tmp_path).name == "last"


def test_the_newest_where_names_are_wrong(tmp_path):
    save(tmp_path, 5, name="step-9")
    save(tmp_path, 7, name="step-2")
    save(tmp_path, 6, name="x")
    assert latest(tmp_path).name == "step-2"


def test_the_newest_of_one_step(tmp_path):
    # All updates between were left out by loss scaling.
    save(tmp_path, 5, name="step-5-late", state=make_state(5, steps=9, wall_time=1.0))
    save(tmp_path, 5, name="step-5-more", state=make_state(5, steps=8, wall_time=2.0))
    save(tmp_path, 5, name="step-5", state=make_state(5, steps=9, wall_time=2.0))
    assert latest(tmp_path).name == "step-5"


def test_steps_beyond_the_width_of_the_name(tmp_path):
    save(tmp_path, 99_999_999)
    save(tmp_path, 100_000_000)
    assert latest(tmp_path).name == "step-100000000"


def test_of_ten_thousand_only_the_newest_is_read(tmp_path, monkeypatch):
    for step in range(10_000):
        (tmp_path / f"step-{step:08d}").mkdir()
    newest = save(tmp_path, 10_000)
    touched = set()

    for name in ("read", "names", "exists", "size", "chunks"):

        def watched(self, path, call=getattr(LocalFiles, name)):
            touched.add(path)
            return call(self, path)

        monkeypatch.setattr(LocalFiles, name, watched)
    assert latest(tmp_path) == newest
    files = ("model.weights.h5", "extra_state.h5", "training_state.json", "COMMITTED")
    # Of the directory itself, only whether it is a checkpoint is asked, and its names.
    assert {path for path in touched if "step-" in path} == {str(newest / name) for name in files}


@pytest.mark.parametrize(
    ("where", "call"), [(os, "open"), (LocalFiles, "chunks"), (os, "stat")], ids=["read", "chunks", "size"]
)
def test_a_stale_handle_is_no_damage(directory, monkeypatch, where, call):
    monkeypatch.setattr(attempts, "_WAITS_SECONDS", (0.0, 0.0, 0.0))
    whole = getattr(where, call)
    met = []

    def stale_once(*arguments, **options):
        # Only for files of the newest checkpoint: Python looks up paths of its own in the same ways.
        if not met and any("step-00000003" in str(one) and "." in str(one) for one in arguments):
            met.append(arguments)
            raise OSError(errno.ESTALE, "Stale file handle")
        return whole(*arguments, **options)

    monkeypatch.setattr(where, call, stale_once)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest(directory) == directory / "step-00000003"
    assert len(met) == 1
