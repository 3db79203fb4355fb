"""Kind and rates of a folder's disk."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from keras_turbo.doctor import disk
from keras_turbo.doctor.disk import Disk, file_system, findings, located, measure, read_disk
from tests.doctor.judging import checked, only, worst

GB = 2**30
GOOD = Disk("/data", "ext4", "/dev/sda1", 100 * GB, 800.0, 2000.0)


def judged(**changes):
    return checked(list(findings(dataclasses.replace(GOOD, **changes))))


def test_a_good_disk():
    found = judged()
    assert worst(found) == "ok"
    assert only(found, "Writes 800 MB a second, reads 2,000").figures == {
        "write_mb_per_s": 800.0,
        "read_mb_per_s": 2000.0,
    }


@pytest.mark.parametrize(
    ("changes", "level", "part"),
    [
        ({"kind": "nfs4", "source": "server:/x"}, "warning", "over the network from server:/x"),
        ({"kind": "nfs"}, "warning", "over the network"),
        ({"kind": "lustre"}, "warning", "over the network"),
        ({"kind": "fuse.gcsfuse"}, "warning", "over the network"),
        ({"kind": "virtiofs"}, "warning", "a folder of the host"),
        ({"kind": "fuse", "source": "mountpoint-s3"}, "warning", "over the network from mountpoint-s3"),
        ({"kind": "fuse.drive"}, "warning", "over the network"),
        ({"kind": "fuse", "source": "/dev/sdb"}, "ok", "/data: fuse."),
        ({"kind": "fuseblk"}, "ok", "/data: fuseblk."),
        ({"kind": "overlay"}, "warning", "the container's own layer"),
        ({"kind": "tmpfs"}, "warning", "in memory"),
        ({"kind": "xfs"}, "ok", "/data: xfs."),
        ({"kind": None}, "ok", "unknown file system"),
        ({"read_mb_per_s": 40.0}, "warning", "reads 40"),
        ({"write_mb_per_s": 40.0}, "warning", "Writes 40"),
        ({"write_mb_per_s": None, "read_mb_per_s": None, "why_not_written": "x"}, "warning", "Nothing can be"),
        ({"free_bytes": GB}, "warning", "1.0 GB free"),
        ({"free_bytes": 50 * 2**20}, "error", "50 MB free"),
        ({"free_bytes": None}, "ok", "/data does not tell how much room it has"),
        ({"write_mb_per_s": None, "read_mb_per_s": None}, "warning", "that needs 16 MB of room"),
    ],
)
def test_what_a_disk_may_lack(changes, level, part):
    assert only(judged(**changes), part).level == level


MOUNTS = """\
proc /proc proc rw,relatime 0 0
/dev/vda / ext4 rw,relatime 0 0
server:/export/with\\040blank {data} nfs4 rw,relatime,vers=4.2 0 0
/dev/sdb1 {data}/my\\040photos xfs rw 0 0
first {top} tmpfs rw 0 0
second {top} overlay rw 0 0
not a mount
"""


@pytest.mark.parametrize(
    ("folder", "kind", "source"),
    [
        ("data", "nfs4", "server:/export/with blank"),
        ("data/deep", "nfs4", "server:/export/with blank"),
        ("data/my photos/cats", "xfs", "/dev/sdb1"),
        ("database", "ext4", "/dev/vda"),
        ("top", "overlay", "second"),
        ("link", "nfs4", "server:/export/with blank"),
    ],
)
def test_the_file_system_of_a_folder(tmp_path, monkeypatch, folder, kind, source):
    for name in ("data/deep", "data/my photos/cats", "database", "top"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "root/proc/self").mkdir(parents=True)
    mounts = MOUNTS.format(data=tmp_path / "data", top=tmp_path / "top")
    (tmp_path / "root/proc/self/mounts").write_text(mounts)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "root/proc"))
    assert file_system(tmp_path / folder) == (kind, source)


def test_without_proc_the_file_system_is_not_known(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert file_system(tmp_path) == (None, None)


def test_this_disk_is_measured_and_nothing_is_left(tmp_path):
    found = read_disk(tmp_path)
    assert found.write_mb_per_s > 0
    assert found.read_mb_per_s > 0
    assert found.free_bytes > 0
    assert found.why_not_written is None
    assert list(tmp_path.iterdir()) == []


def test_the_measurement_is_bounded_in_bytes_and_in_time(tmp_path, monkeypatch):
    sizes = []
    fsync = os.fsync

    def counted(descriptor):
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    assert None not in measure(tmp_path, most_bytes=9 * 2**20)
    assert sizes == [8 * 2**20]
    # A disk on which each look at the clock takes a second.
    ticks = iter(range(10_000))
    measure(tmp_path, most_bytes=256 * 2**20, most_seconds=2.5, clock=lambda: float(next(ticks)))
    assert sizes[1] == 3 * 4 * 2**20
    assert list(tmp_path.iterdir()) == []


def test_rates_are_those_of_the_clock(tmp_path):
    now = [0.0]

    def clock():
        now[0] += 0.5
        return now[0]

    write, read = measure(tmp_path, most_bytes=4 * 2**20, most_seconds=100, clock=clock)
    assert write == pytest.approx(4 / 0.5)
    assert read == pytest.approx(4 / 1.0)


def test_without_room_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: pytest.fail("written"))
    assert measure(tmp_path, most_bytes=2**20) == (None, None)


def test_a_folder_that_can_not_be_written(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refused)
    found = read_disk(tmp_path)
    assert found.write_mb_per_s is None
    assert found.why_not_written == "Permission denied (EACCES)"


def test_a_full_disk(tmp_path, monkeypatch):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "r+b", buffering=0) as full:
        monkeypatch.setattr(disk.tempfile, "TemporaryFile", lambda **_: full)
        found = read_disk(tmp_path)
    assert "ENOSPC" in found.why_not_written
    assert "df -i" in only(judged(why_not_written=found.why_not_written), "Nothing can be written").hint


def test_a_file_system_that_does_not_know_its_size_is_measured_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_MOST_BYTES", 8 * 2**20)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(0, 0, 0))
    found = read_disk(tmp_path)
    assert found.free_bytes is None
    assert found.write_mb_per_s > 0


def test_folders_that_can_be_used(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert located(Path("link")) == (tmp_path / "real").resolve()
    assert located(Path()) == tmp_path.resolve()


def test_folders_that_can_not_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("nowhere", "file", "file/below"):
        with pytest.raises(ValueError, match=f"There is no folder {tmp_path / name}"):
            located(tmp_path / name)
    for name, reason in (("loop", "ymlink|symbolic link"), ("x" * 300, "File name too long"), ("a\0b", "null")):
        with pytest.raises(ValueError, match=f"(?s)can't be used: .*({reason})"):
            located(tmp_path / name)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ValueError, match="There is no folder"):
        located(Path())
    monkeypatch.chdir(tmp_path)


def test_a_folder_that_may_not_be_entered(tmp_path, monkeypatch):
    def refused(path, **_):
        raise PermissionError(13, "Permission denied", path)

    folder = tmp_path.resolve()
    monkeypatch.setattr(disk.os, "stat", refused)
    monkeypatch.setattr(Path, "resolve", lambda self, strict=False: folder)
    with pytest.raises(ValueError, match="can't be used: Permission denied"):
        located(tmp_path)


def test_a_file_system_that_hangs_is_left_to_the_examination(tmp_path, monkeypatch):
    let_go = threading.Event()
    monkeypatch.setattr(disk, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(Path, "resolve", lambda self, strict=False: let_go.wait(60))
    assert located(tmp_path) == tmp_path
    let_go.set()
