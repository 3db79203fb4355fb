"""A checkpoint is written whole or not at all, whatever the disk does."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from keras_turbo.checkpoint import latest, verify
from keras_turbo.checkpoint.directory import claim, delete_checkpoint, sweep
from keras_turbo.checkpoint.hdf5 import hdf5_layout
from keras_turbo.checkpoint.location import LocalFiles
from keras_turbo.checkpoint.reading import read_checkpoint
from keras_turbo.checkpoint.writing import write_checkpoint
from keras_turbo.files import attempts
from tests.checkpoint.saved import EXTRA, Watch, assert_equal_arrays, make_arrays, make_state, save


@pytest.fixture
def no_waits(monkeypatch):
    monkeypatch.setattr(attempts, "_WAITS_SECONDS", (0.0, 0.0, 0.0))


def names_in(directory):
    return sorted(os.listdir(directory))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def only_that_one_is_there(directory, name, before):
    """Nothing that was committed is lost, and nothing of the failed save is left."""
    assert names_in(directory) == [".lock", name]
    assert contents(directory / name) == before
    assert latest(directory) == directory / name


def test_what_was_written_is_read(tmp_path):
    state = make_state(7, metrics={"loss": 0.5})
    folder = save(tmp_path / "deep" / "größe", 7, state=state)
    assert folder == tmp_path / "deep" / "größe" / "step-00000007"
    assert names_in(folder) == ["COMMITTED", "extra_state.h5", "model.weights.h5", "training_state.json"]
    weights, extra, found = read_checkpoint(folder)
    assert_equal_arrays(weights, make_arrays(7))
    assert_equal_arrays(extra, EXTRA)
    assert found.files.keys() == {"extra_state.h5", "model.weights.h5"}
    assert {**vars(found), "files": {}} == vars(state)


@pytest.mark.parametrize("convert", [str, Path, lambda path: f"file://{path}"], ids=["str", "Path", "file://"])
def test_kinds_of_paths(tmp_path, convert):
    assert save(convert(tmp_path), 1) == tmp_path / "step-00000001"
    assert latest(convert(tmp_path)) == tmp_path / "step-00000001"


def test_large_weights_are_sharded(tmp_path):
    folder = save(tmp_path, 7, max_shard_mb=0.0005)
    shards = [name for name in names_in(folder) if name.endswith(".weights.h5")]
    assert len(shards) == 3
    assert "model.weights.json" in names_in(folder)
    assert_equal_arrays(read_checkpoint(folder)[0], make_arrays(7))
    assert verify(tmp_path)[0].ok


def test_the_model_is_not_copied(tmp_path):
    weights = {f"layers/dense_{index}/vars/0": np.ones((4, 2**20), np.float32) for index in range(4)}
    tracemalloc.start()
    try:
        write_checkpoint(tmp_path, "big", weights, EXTRA, make_state())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 67 MB are written; the largest thing that is made is a chunk of small pieces.
    assert peak < 4e6
    assert_equal_arrays(read_checkpoint(tmp_path / "big")[0], weights)


def test_a_checkpoint_is_never_overwritten(tmp_path):
    folder = save(tmp_path, 7)
    before = contents(folder)
    with pytest.raises(FileExistsError, match=r"step-00000007 already\. It is not overwritten"):
        save(tmp_path, 8, name=folder.name)
    only_that_one_is_there(tmp_path, folder.name, before)


def test_an_unfinished_one_of_that_name_is_replaced(tmp_path):
    folder = save(tmp_path, 7)
    (folder / "COMMITTED").unlink()
    save(tmp_path, 8, name=folder.name)
    assert read_checkpoint(folder)[2].optimizer_step == 8
    assert names_in(tmp_path) == [".lock", folder.name]


def test_a_folder_of_somebody_else_is_not_overwritten(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events").touch()
    with pytest.raises(FileExistsError, match="has 'events' in it and is no checkpoint"):
        save(tmp_path, 7, name="logs")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a file"):
        save(tmp_path, 7, name="file")
    assert (tmp_path / "logs" / "events").exists()


@pytest.mark.parametrize("name", ["../x", "/x", ".x", ""])
def test_a_name_that_leads_elsewhere(tmp_path, name):
    with pytest.raises(ValueError, match="name"):
        save(tmp_path / "here", 7, name=name)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_shard_mb": 0},
        {"max_shard_mb": True},
        {"max_shard_mb": "1"},
        {"shard": (0, 0)},
        {"shard": (2, 2)},
        {"shard": (2, -1)},
        {"shard": (True, False)},
        {"shard": 2},
    ],
)
def test_options_that_can_not_be(tmp_path, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        save(tmp_path / "here", 7, **options)
    assert names_in(tmp_path) == []


# What a disk does


@contextlib.contextmanager
def files_of_at_most(nbytes):
    """The system refuses to let any file grow beyond that, by a real error of a real write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_can_not_grow(tmp_path):
    folder = save(tmp_path, 1)
    before = contents(folder)
    with files_of_at_most(3000), pytest.raises(OSError, match="File too large") as info:
        save(tmp_path, 2)
    assert info.value.errno == errno.EFBIG
    assert Path(info.value.filename).name == "model.weights.h5"
    only_that_one_is_there(tmp_path, folder.name, before)
    save(tmp_path, 2)
    assert latest(tmp_path).name == "step-00000002"


def writing_folder(directory):
    return next(path for path in directory.iterdir() if path.name.startswith(".writing-"))


@pytest.mark.parametrize("name", ["extra_state.h5", "training_state.json", "COMMITTED"])
def test_a_full_disk(tmp_path, name):
    folder = save(tmp_path, 1)
    before = contents(folder)
    # While the weights are written, the place of a later file becomes a device that is always full.
    watch = Watch(action=lambda: (writing_folder(tmp_path) / name).symlink_to("/dev/full"))
    with pytest.raises(OSError, match="No space left on device") as info:
        save(tmp_path, 2, limit=watch)
    assert info.value.errno == errno.ENOSPC
    assert Path(info.value.filename).name == name
    only_that_one_is_there(tmp_path, folder.name, before)


def test_a_directory_that_is_removed_under_way(tmp_path, no_waits):
    directory = tmp_path / "checkpoints"
    save(directory, 1)
    with pytest.raises(FileNotFoundError, match="checkpoints"):
        save(directory, 2, limit=Watch(action=lambda: shutil.rmtree(directory)))
    # The next save makes it again.
    save(directory, 3)
    assert names_in(directory) == [".lock", "step-00000003"]


@pytest.mark.parametrize("where", ["file/checkpoints", "file"])
def test_a_directory_that_can_not_be_made(tmp_path, where):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        claim(tmp_path / where)
    with pytest.raises(OSError, match="file"):
        save(tmp_path / where, 1)


def test_a_directory_that_can_not_be_written():
    # Nobody, root neither, makes anything there.
    with pytest.raises(OSError, match="/sys/checkpoints") as info:
        claim("/sys/checkpoints")
    assert info.value.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_nothing(tmp_path, error):
    folder = save(tmp_path, 1)
    before = contents(folder)

    def interrupt():
        raise error

    with pytest.raises(error):
        save(tmp_path, 2, limit=Watch(action=interrupt))
    only_that_one_is_there(tmp_path, folder.name, before)


class Fails:
    """A call of the system that fails a number of times, as a network file system makes it."""

    def __init__(self, call, number, times, only=lambda *arguments: True, afterwards=False):
        self.call, self.number, self.times, self.only, self.afterwards = call, number, times, only, afterwards
        self.met = 0

    def __call__(self, *arguments, **options):
        if self.met < self.times and self.only(*arguments):
            self.met += 1
            if self.afterwards:
                self.call(*arguments, **options)
            raise OSError(self.number, os.strerror(self.number))
        return self.call(*arguments, **options)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ENOENT])
@pytest.mark.parametrize("name", ["open", "write", "fsync", "rename", "makedirs"])
def test_what_passes_is_tried_again(tmp_path, monkeypatch, no_waits, name, number):
    with claim(tmp_path):
        fault = Fails(getattr(os, name), number, times=2)
        monkeypatch.setattr(os, name, fault)
        save(tmp_path, 5)
        monkeypatch.undo()
    assert fault.met == 2
    assert latest(tmp_path).name == "step-00000005"
    assert verify(tmp_path)[0].ok


@pytest.mark.parametrize("name", ["open", "write", "fsync", "rename", "makedirs"])
def test_what_does_not_pass_is_raised(tmp_path, monkeypatch, no_waits, name):
    folder = save(tmp_path, 1)
    before = contents(folder)
    with claim(tmp_path):
        monkeypatch.setattr(os, name, Fails(getattr(os, name), errno.ESTALE, times=4, only=is_not_hidden_away))
        with pytest.raises(OSError, match="Stale file handle"):
            save(tmp_path, 5)
        monkeypatch.undo()
    only_that_one_is_there(tmp_path, folder.name, before)


def is_not_hidden_away(*arguments):
    # Cleaning up works again.
    return not (len(arguments) > 1 and ".deleted-" in str(arguments[1]))


def test_an_error_that_lasts_is_not_tried_again(tmp_path, monkeypatch, no_waits):
    save(tmp_path, 1)
    fault = Fails(os.fsync, errno.EIO, times=1)
    monkeypatch.setattr(os, "fsync", fault)
    with pytest.raises(OSError, match="Input/output error"):
        save(tmp_path, 2)
    assert names_in(tmp_path) == [".lock", "step-00000001"]


def test_a_rename_whose_answer_was_lost(tmp_path, monkeypatch, no_waits):
    monkeypatch.setattr(os, "rename", Fails(os.rename, errno.ESTALE, times=1, afterwards=True))
    save(tmp_path, 5)
    assert names_in(tmp_path) == [".lock", "step-00000005"]
    assert verify(tmp_path)[0].ok


def test_a_write_that_takes_only_a_part(tmp_path, monkeypatch):
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:1000]))
    save(tmp_path, 5)
    monkeypatch.undo()
    assert verify(tmp_path)[0].ok


def test_a_file_system_that_can_not_sync_folders(tmp_path, monkeypatch):
    def sync(file, fsync=os.fsync):
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(file)

    monkeypatch.setattr(os, "fsync", sync)
    save(tmp_path, 5)
    assert latest(tmp_path).name == "step-00000005"


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    log = []
    fsync, rename = os.fsync, os.rename

    def synced(file):
        log.append(Path(os.readlink(f"/proc/self/fd/{file}")).name.split("-")[0])
        fsync(file)

    def renamed(*paths):
        log.append("rename")
        rename(*paths)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    save(tmp_path / "here", 5)
    files = ["model.weights.h5", "extra_state.h5", "training_state.json", "COMMITTED"]
    assert log == [*files, ".writing", "rename", "here"]


def test_a_full_device_names_the_path():
    content = hdf5_layout(EXTRA).filled(EXTRA)
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        LocalFiles().write("/dev/full", content)


# Leftovers


def test_leftovers_are_swept_and_nothing_else(tmp_path):
    save(tmp_path, 1)
    for leftover in (".writing-step-2-1-ab", ".deleted-step-0-cd", ".sharing-step-3"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "model.weights.h5").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / "logs").mkdir()
    assert sweep(tmp_path) == [".deleted-step-0-cd", ".sharing-step-3", ".writing-step-2-1-ab"]
    assert names_in(tmp_path) == [".git", ".lock", "logs", "step-00000001"]
    with claim(tmp_path):
        assert names_in(tmp_path) == [".git", ".lock", "logs", "step-00000001"]


def test_a_deletion_that_breaks_off_leaves_no_part_in_sight(tmp_path, monkeypatch):
    save(tmp_path, 1)
    save(tmp_path, 2)

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        delete_checkpoint(tmp_path, "step-00000002")
    monkeypatch.undo()
    assert latest(tmp_path).name == "step-00000001"
    assert len(sweep(tmp_path)) == 1
    assert names_in(tmp_path) == [".lock", "step-00000001"]
    delete_checkpoint(tmp_path, "step-00000002")
    with pytest.raises(ValueError, match="name"):
        delete_checkpoint(tmp_path, "../x")
